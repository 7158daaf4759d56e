"""RLlib's learner around :class:`~algorithms.ppo.update.Updater`."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ray
import torch
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core import DEFAULT_MODULE_ID

from algorithms.ppo.config import TrackerConfig
from algorithms.ppo.module import ActorCritic
from algorithms.ppo.nan_guard import dump_rollout
from algorithms.ppo.policy import MlpPolicy
from algorithms.ppo.rollout import Rollout, Sampler, cat_rollouts
from algorithms.ppo.runner import TensorEnvRunner, from_numpy
from algorithms.ppo.update import TrainingDivergedError, Updater, make_optimiser
from parc_ray.data.storage import Storage


class TensorPPOLearner(PPOTorchLearner):
    """Learns from [T, N] fragments; in colocated placement it also owns a simulator."""

    knobs: TrackerConfig
    updater: Updater
    runner: TensorEnvRunner | None = None
    sampler: Sampler | None = None
    """That of this process in local placement; what a dump takes the simulator's state from."""

    def build(self) -> None:
        """Create module and optimiser, align the processes' weights."""
        self.knobs = self.config.learner_config_dict["tracker"]
        torch.set_num_threads(self.knobs.threads)
        torch.manual_seed(self.knobs.seed)
        super().build()
        self.updater = Updater(
            self.actor_critic,
            self.get_optimizer(DEFAULT_MODULE_ID),
            self.knobs,
            world=max(1, self.knobs.num_learners),
            rank=self._learner_index,
        )

    @property
    def actor_critic(self) -> ActorCritic:
        """The module being trained."""
        return self.module[DEFAULT_MODULE_ID]  # pyright: ignore[reportReturnType]

    def _make_modules_ddp_if_necessary(self) -> None:
        """No DDP wrapper: gradients are averaged by the updater in one message per minibatch."""

    def configure_optimizers_for_module(
        self, module_id: str, config: AlgorithmConfig | None = None
    ) -> None:
        """Register our optimiser; its learning rate is ours to steer."""
        module: ActorCritic = self.module[module_id]  # pyright: ignore
        optimiser = make_optimiser(module, self.knobs)
        params = [p for group in optimiser.param_groups for p in group["params"]]
        self.register_optimizer(
            module_id=module_id, optimizer=optimiser, params=params, lr_or_lr_schedule=None
        )

    def update(self, rollout: Any = None, *, refs: Any = None, **kwargs: Any) -> dict[str, float]:
        """Learn from a fragment.

        Args:
            rollout: a :class:`Rollout` in this process, or None.
            refs: object references to this learner's parts, one per runner, instead.
            **kwargs: ignored (RLlib's own update options).

        Returns:
            Metrics as plain floats.
        """
        start = time.perf_counter()
        if rollout is None:
            parts = [from_numpy(part, self.updater.device) for part in ray.get(list(refs))]
            rollout = cat_rollouts(parts)
        self._weights_seq_no += 1
        before = {k: v.detach().clone() for k, v in self.actor_critic.state_dict().items()}
        try:
            metrics = self.updater.update(rollout)
        except TrainingDivergedError as error:
            path = self._dump(rollout, before)
            raise TrainingDivergedError(f"{error}; the last fragment is in {path}") from error
        metrics["update_s"] = time.perf_counter() - start
        return metrics

    def _dump(self, rollout: Rollout, sampled_by: dict[str, torch.Tensor]) -> str:
        """Write a dump to where the training's files belong, from this node; where it is."""
        place = Storage.from_uri(self.config.learner_config_dict["dump_dir"])
        name = f"nan_rank{self._learner_index}_it{self.updater.iteration:06d}.pt"
        sampler = self.sampler if self.runner is None else self.runner.sampler
        before = sampler and sampler.before
        if place.is_local:
            path = place.local_path(name)
            return str(dump_rollout(path, rollout, self.updater, sampled_by, before))
        with TemporaryDirectory(prefix="parc-dump-") as scratch:
            path = Path(scratch) / name
            dump_rollout(path, rollout, self.updater, sampled_by, before)
            place.write_bytes_atomic(name, path.read_bytes())
        return f"{place}/{name}"

    def make_runner(self) -> TensorEnvRunner:
        """The simulator of this learner (colocated placement), created at first use."""
        if self.runner is None:
            index = 1 + self._learner_index
            self.runner = TensorEnvRunner(config=self.config, worker_index=index)
            self.runner.module = self.actor_critic
        return self.runner

    def sample_and_update(self) -> tuple[dict[str, float], dict[str, float]]:
        """Sample a fragment from the own simulator and learn from it with the other processes."""
        rollout, sample_metrics = self.make_runner().sample()
        return sample_metrics, self.update(rollout)

    def training_state(self, with_runner: bool) -> dict[str, Any]:
        """Everything this process needs to continue bit for bit; weights only from process 0."""
        state: dict[str, Any] = {"rng": self.updater.rng.get_state()}
        if with_runner:
            state["sampler"] = self.make_runner().get_state().get("sampler")
        if self._learner_index == 0:
            state["module"] = {k: v.clone() for k, v in self.actor_critic.state_dict().items()}
            state["updater"] = self.updater.state_dict()
        return state

    def load_training_state(self, states: list[dict[str, Any]]) -> None:
        """Continue from the states of all processes (fewer than processes: fresh generators)."""
        self.actor_critic.load_state_dict(states[0]["module"])
        self.updater.load_state_dict(states[0]["updater"])
        if self._learner_index >= len(states):
            return
        own = states[self._learner_index]
        self.updater.rng.set_state(own["rng"])
        if own.get("sampler") is not None:
            self.make_runner().set_state({"sampler": own["sampler"]})

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """RLlib's own checkpoint state (``save_to_path``), with our controller's in it."""
        state: dict[str, Any] = super().get_state(*args, **kwargs)
        updater = self.updater.state_dict()
        del updater["optimiser"]  # RLlib stores it as its own component
        state["updater"] = {**updater, "rng": self.updater.rng.get_state().numpy()}
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Apply a state, always: an older sequence number does not veto it."""
        self._weights_seq_no = 0
        super().set_state(state)
        if "updater" in state:
            own = dict(state["updater"])
            self.updater.rng.set_state(torch.from_numpy(own.pop("rng").copy()))
            self.updater.load_counters(own)

    def warm_start(self, policy: MlpPolicy) -> None:
        """Start from a policy's weights and normaliser; its statistics count as warmed up."""
        self.updater.warm_start(policy)

    def shutdown(self) -> None:
        """Close the simulator."""
        if self.runner is not None:
            self.runner.stop()
            self.runner = None
