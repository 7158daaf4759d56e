"""The RLlib algorithm: sampling and learning in three placements, and complete checkpoints.

``local``: runner and learner are objects of this process and share one module. ``split``: runner
actors sample under weights that come as an argument, learner actors read their parts from the
object store. ``colocated``: every learner actor samples from its own simulator and only gradients
travel.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.rllib.algorithms.ppo import PPO
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.utils.metrics import (
    ENV_RUNNER_RESULTS,
    LEARNER_RESULTS,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
)

from algorithms.ppo.algorithm_config import TensorPPOConfig
from algorithms.ppo.checkpoint import STATE_FILE, load_state, save_state
from algorithms.ppo.config import TrackerConfig
from algorithms.ppo.learner import TensorPPOLearner
from algorithms.ppo.module import ActorCritic
from algorithms.ppo.networks import NetSpec
from algorithms.ppo.policy import MlpPolicy
from algorithms.ppo.runner import TensorEnvRunner
from parc_ray.errors import SimulatorLostError

logger = logging.getLogger(__name__)

Metrics = dict[str, float]


class TensorPPO(PPO):
    """PPO without episodes and connectors; results hold our metrics under ``tracker``."""

    @classmethod
    def get_default_config(cls) -> TensorPPOConfig:
        """A config object to be filled by ``TensorPPOConfig.from_tracker``."""
        return TensorPPOConfig()

    def setup(self, config: Any) -> None:
        """Build runners and learners; a local runner uses the learner's module."""
        super().setup(config)
        self.knobs: TrackerConfig = self.config.learner_config_dict["tracker"]  # pyright: ignore
        self.samples = 0
        if self.knobs.placement == "local":
            self._local_runner.module = self._local_learner.actor_critic
            self._local_learner.sampler = self._local_runner.sampler

    @property
    def _local_runner(self) -> TensorEnvRunner:
        runner = self.env_runner
        if not isinstance(runner, TensorEnvRunner):
            raise RuntimeError("this placement has no runner in this process")
        return runner

    @property
    def _runners(self) -> Any:
        """RLlib's manager of the runner actors."""
        group: Any = self.env_runner_group
        return group._worker_manager

    @property
    def _learners(self) -> Any:
        """RLlib's learner group."""
        return self.learner_group

    @property
    def _local_learner(self) -> TensorPPOLearner:
        learner = self._learners._learner
        if not isinstance(learner, TensorPPOLearner):
            raise RuntimeError("the learner of this placement lives in another process")
        return learner

    def training_step(self) -> None:
        """One iteration: sample a fragment everywhere, learn, log."""
        start = time.perf_counter()
        step = {
            "local": self._step_local,
            "split": self._step_split,
            "colocated": self._step_colocated,
        }[self.knobs.placement]
        sampled, learned, steps = step()
        self.samples += steps
        metrics = merge_metrics(sampled) | merge_metrics(learned)
        seconds = time.perf_counter() - start
        metrics |= {
            "samples": float(self.samples),
            "samples_per_s": steps / max(seconds, 1e-9),
            "iteration_s": seconds,
        }
        for key, value in metrics.items():
            self.metrics.log_value(("tracker", key), value, window=1)
        key = (ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME)
        self.metrics.log_value(key, steps, reduce="lifetime_sum")
        for name in ("episode_return", "episode_length"):
            if name in metrics:
                target = (ENV_RUNNER_RESULTS, f"{name}_mean".replace("length", "len"))
                self.metrics.log_value(target, metrics[name], window=1)
        self.metrics.log_value((LEARNER_RESULTS, "lr"), metrics["lr"], window=1)

    def _step_local(self) -> tuple[list[Metrics], list[Metrics], int]:
        rollout, sampled = self._local_runner.sample()
        return [sampled], [self._local_learner.update(rollout)], rollout.num_steps

    def _step_colocated(self) -> tuple[list[Metrics], list[Metrics], int]:
        results = self._on_learners(lambda learner: learner.sample_and_update())
        steps = self.knobs.num_envs * self.knobs.horizon * len(results)
        return [r[0] for r in results], [r[1] for r in results], steps

    def _step_split(self) -> tuple[list[Metrics], list[Metrics], int]:
        learners = max(1, self.knobs.num_learners)
        sampled, parts = self._collect(learners)
        if self.knobs.num_learners == 0:
            learned = [self._local_learner.update(refs=[p[0] for p in parts])]
        else:
            kwargs = [{"refs": [p[i] for p in parts]} for i in range(learners)]
            manager = self._learners._worker_manager
            learned = _answers(manager.foreach_actor("update", kwargs=kwargs))
        steps = self.knobs.num_envs * self.knobs.horizon * len(sampled)
        return sampled, learned, steps

    def _collect(self, learners: int) -> tuple[list[Metrics], list[list[Any]]]:
        """Ask every healthy runner for a fragment; a runner that died costs only its own.

        The parts are owned by this process (they are return values, not objects put by the
        runner), so they outlive the runner that made them.
        """
        state = ray.put(self._on_learners(_inference_state, first_only=True)[0])
        manager = self._runners
        asked = {}
        for index in manager.healthy_actor_ids():
            method = manager.actors()[index].rollout.options(num_returns=learners + 1)
            asked[index] = method.remote(state, learners)
        heads = [refs[0] for refs in asked.values()]
        if heads:
            ray.wait(heads, num_returns=len(heads), timeout=self.knobs.sample_timeout_s)
        sampled, parts, lost = [], [], False
        for index, refs in asked.items():
            try:
                sampled.append(ray.get(refs[0], timeout=0.1))
                parts.append(list(refs[1:]))
            except (RayError, TimeoutError) as error:
                lost = lost or isinstance(error, SimulatorLostError)
                first = str(error).strip().splitlines()[0]
                logger.warning("runner %d brought nothing in this iteration: %s", index, first)
                manager.set_actor_state(index, healthy=False)
        if not parts:
            kind = SimulatorLostError if lost else RuntimeError
            raise kind("no runner brought a fragment in this iteration")
        return sampled, parts

    def _on_learners(self, func: Any, first_only: bool = False) -> list[Any]:
        if self._learners.is_local:
            return [func(self._local_learner)]
        ids = [0] if first_only else None
        results = self._learners.foreach_learner(func, remote_actor_ids=ids)
        return _answers(results)

    def training_state(self) -> dict[str, Any]:
        """Weights, optimiser, learning rate, normaliser, environments, generators, counters."""
        colocated = self.knobs.placement == "colocated"
        state: dict[str, Any] = {
            "iteration": self.iteration,
            "samples": self.samples,
            "learners": self._on_learners(_LearnerState(colocated)),
            "runners": {},
        }
        if self.knobs.placement == "local":
            state["runners"] = {0: self._local_runner.get_state(components="sampler")}
        elif self.knobs.placement == "split":
            manager = self._runners
            results = manager.foreach_actor(lambda r: r.get_state(components="sampler"))
            state["runners"] = {r.actor_id: r.get() for r in results.ignore_errors()}
        return state

    def load_training_state(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`training_state`; runners without a stored state start anew."""
        self._on_learners(_LoadLearner(state["learners"]))
        if self.knobs.placement == "local":
            self._local_runner.set_state(state["runners"].get(0, {}))
        elif self.knobs.placement == "split":
            for index, own in state["runners"].items():
                self._runners.foreach_actor(_LoadRunner(own), remote_actor_ids=[index])
        self.samples = int(state["samples"])
        self._iteration = int(state["iteration"])

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Write the complete state as one safe file (Tune and ``Algorithm.save`` come here)."""
        save_state(Path(checkpoint_dir) / STATE_FILE, self.training_state())

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Continue from a directory written by :meth:`save_checkpoint`."""
        self.load_training_state(load_state(Path(checkpoint_dir) / STATE_FILE))

    def export_policy(self) -> MlpPolicy:
        """A copy of the present policy, critic tensors included."""
        state = self._on_learners(_full_module_state, first_only=True)[0]
        policy = MlpPolicy.from_state(self._spec(), state)
        policy.notes = {"iteration": self.iteration, "samples": self.samples}
        return policy

    def warm_start(self, policy: MlpPolicy) -> None:
        """Start from another run's policy (and critic, if the file holds it)."""
        self._on_learners(_WarmStart(policy))

    def _spec(self) -> NetSpec:
        config: Any = self.config
        return NetSpec.from_dict(config.model_config["spec"])


def _answers(results: Iterable[Any]) -> list[Any]:
    """What actors returned; an error is raised, that of a lost actor before those of its peers.

    RLlib hands errors back as values. Peers of a lost learner fail too, in the middle of a message.
    """
    results = list(results)
    errors = [result.get() for result in results if not result.ok]
    if errors:
        raise next((e for e in errors if isinstance(e, RayActorError)), errors[0])
    return [result.get() for result in results]


def merge_metrics(parts: Iterable[Metrics]) -> Metrics:
    """Join the metrics of several processes: ``_sum``/``_count`` keys add up, others average."""
    parts = list(parts)
    out: Metrics = {}
    for key in sorted({key for part in parts for key in part}):
        values = [part[key] for part in parts if key in part]
        added = key.endswith(("_sum", "_count"))
        out[key] = sum(values) if added else sum(values) / len(values)
    return out


def _inference_state(learner: TensorPPOLearner) -> dict[str, Any]:
    module: ActorCritic = learner.module[DEFAULT_MODULE_ID]  # pyright: ignore
    return module.get_state(inference_only=True)


def _full_module_state(learner: TensorPPOLearner) -> dict[str, Any]:
    return {k: v.detach().cpu().clone() for k, v in learner.actor_critic.state_dict().items()}


class _LearnerState:
    def __init__(self, with_runner: bool) -> None:
        self.with_runner = with_runner

    def __call__(self, learner: TensorPPOLearner) -> dict[str, Any]:
        return learner.training_state(self.with_runner)


class _LoadLearner:
    def __init__(self, states: list[dict[str, Any]]) -> None:
        self.states = states

    def __call__(self, learner: TensorPPOLearner) -> None:
        learner.load_training_state(self.states)


class _LoadRunner:
    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def __call__(self, runner: Any) -> None:
        runner.set_state(self.state)


class _WarmStart:
    def __init__(self, policy: MlpPolicy) -> None:
        self.policy = policy

    def __call__(self, learner: TensorPPOLearner) -> None:
        learner.warm_start(self.policy)
