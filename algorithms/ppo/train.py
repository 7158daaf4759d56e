"""Train a tracking policy with checkpoints, budgets and resume: what the tracker stage calls.

Layout of ``out_dir``: ``ckpt_NNNNNN/{state.pt, policy.pt, best.pt}`` per checkpoint, ``LATEST``
(the name of the newest), ``metrics.jsonl`` (one line per iteration), ``policy.pt`` (the last
policy), ``best.pt`` (the best by the evaluation callback). Every file appears by rename.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from ray.exceptions import RayActorError

from algorithms.ppo.algorithm import TensorPPO
from algorithms.ppo.algorithm_config import TensorPPOConfig
from algorithms.ppo.checkpoint import STATE_FILE, load_state
from algorithms.ppo.config import TrackerConfig
from algorithms.ppo.policy import MlpPolicy
from algorithms.ppo.sizes import EnvSizes
from algorithms.ppo.storage import RunFolder, run_folder
from algorithms.ppo.update import TrainingDivergedError
from parc_ray.data.storage import Storage
from parc_ray.errors import InputError, SimulatorLostError

logger = logging.getLogger(__name__)

OnIteration = Callable[[int, dict[str, float]], None]
Evaluate = Callable[[MlpPolicy], Mapping[str, float]]

SCORE = "score"
_FREE = {"samples", "wall_s", "checkpoint_every", "keep_checkpoints", "evaluate_every"}
_FREE |= {"sample_timeout_s", "max_bad_updates", "restarts"}


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """What a training left behind."""

    policy: Path
    """File of the last policy."""
    best: Path | None
    """File of the best evaluated policy; None without evaluations."""
    best_score: float | None
    """Its score."""
    iterations: int
    """Iterations done, earlier sittings included."""
    samples: int
    """Environment steps used, earlier sittings included."""
    wall_s: float
    """Seconds used, earlier sittings included."""
    resumed_from: int
    """Iteration of the checkpoint this sitting started from; 0 for a fresh start."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the last iteration (empty where nothing was left to do)."""

    @property
    def chosen(self) -> Path:
        """The best policy where there is one, else the last."""
        return self.best or self.policy


def train_tracker(
    config: TrackerConfig,
    env_name: str,
    env_config: Mapping[str, Any],
    out_dir: str | Path | Storage,
    *,
    warm_start: str | Path | None = None,
    samples: int | None = None,
    wall_s: float | None = None,
    on_iteration: OnIteration | None = None,
    evaluate: Evaluate | None = None,
    resume: bool = True,
    sizes: EnvSizes | None = None,
    custom_resources: Mapping[str, float] | None = None,
) -> TrainResult:
    """Train until the budget is used up; Ray must be running and the environment registered.

    A learner actor or a simulator that is lost costs what was done since the newest checkpoint: the
    training goes on from there, ``config.restarts`` times at most. So does a later call after the
    driver's end.

    Args:
        config: knobs.
        env_name: registered name of the environment's creator.
        env_config: its options; the creator also gets ``num_envs`` and ``seed``.
        out_dir: folder of this run; a killed run goes on from its newest checkpoint. On an object
            store the run works in a local folder of this machine and sends its checkpoints there.
        warm_start: policy file to start from (ignored when resuming).
        samples: budget in environment steps, in place of ``config.samples``.
        wall_s: budget in seconds, in place of ``config.wall_s``.
        on_iteration: called with the iteration (from 1) and its metrics.
        evaluate: called every ``config.evaluate_every`` iterations and at the end with a copy of
            the policy; its ``"score"`` decides which policy is the best. The other numbers are
            logged under ``eval/``. The call must not disturb the global random state it needs.
        resume: continue from checkpoints found in ``out_dir``; otherwise refuse to run into them.
        sizes: of the environment; read from a one-environment simulator made for this purpose
            where they are not given.
        custom_resources: what each runner and learner actor asks of its node, beside CPUs and GPUs.

    Returns:
        Paths and totals. Where ``out_dir`` is on an object store only the names of the paths
        count; the files of these names lie there.

    Raises:
        InputError: checkpoints of another configuration, unregistered environment, unreadable
            warm start.
        TrainingDivergedError: too many non-finite updates; the last fragment is in ``out_dir``.
    """
    sizes = sizes or EnvSizes.probe(env_name, env_config)
    effective = sizes.apply(_effective(config, samples, wall_s, warm_start is not None))
    with run_folder(out_dir, effective.keep_checkpoints) as folder:
        if folder.in_use() and not resume:
            raise InputError(f"{out_dir}: holds checkpoints already; allow resuming or use another")
        dims = (sizes.obs_dim, sizes.action_dim)
        ppo = TensorPPOConfig.from_tracker(
            effective,
            env_name,
            env_config,
            *dims,
            dump_dir=folder.home,
            custom_resources=custom_resources,
        )
        task = _Task(
            ppo=ppo,
            config=effective,
            folder=folder,
            fingerprint=_fingerprint(effective, env_name),
            warm_start=warm_start,
            on_iteration=on_iteration,
            evaluate=evaluate,
        )
        try:
            return _sittings(task)
        except TrainingDivergedError:
            folder.publish_log()
            raise


@dataclass(frozen=True, kw_only=True)
class _Task:
    """What all sittings of a training share."""

    ppo: TensorPPOConfig
    config: TrackerConfig
    folder: RunFolder
    fingerprint: dict[str, Any]
    warm_start: str | Path | None
    on_iteration: OnIteration | None
    evaluate: Evaluate | None


def _sittings(task: _Task) -> TrainResult:
    """Train to the end, again from the newest checkpoint after a learner or simulator was lost."""
    config, folder = task.config, task.folder
    for left in range(config.restarts, -1, -1):
        try:
            return _sitting(task)
        except (RayActorError, SimulatorLostError) as error:
            simulator = isinstance(error, SimulatorLostError)
            if left == 0 or not (simulator or config.num_learners):
                raise
            line = str(error).strip().splitlines()[-1 if simulator else 0]
            what = "simulator" if simulator else "learner"
            logger.warning("a %s was lost (%s); going on from the newest checkpoint", what, line)
            if folder.newest() is None:
                folder.restore(0)
    raise AssertionError("the loop returns or raises")


def _sitting(task: _Task) -> TrainResult:
    """Build the algorithm, continue from the newest checkpoint, train to the end."""
    newest = task.folder.newest()
    state = load_state(newest / STATE_FILE) if newest is not None else None
    if state is not None:
        _check_same_run(state["run"]["fingerprint"], task.fingerprint, task.folder.home)
    policy = None
    if task.warm_start is not None and state is None:
        policy = MlpPolicy.load(task.warm_start)
    threads = torch.get_num_threads()
    algorithm = TensorPPO(config=task.ppo.copy(copy_frozen=False))
    try:
        run = _Run(algorithm, task)
        if state is not None:
            run.restore(state)
        elif policy is not None:
            algorithm.warm_start(policy)
        return run.loop()
    finally:
        algorithm.stop()
        torch.set_num_threads(threads)


class _Run:
    """One sitting of a training."""

    def __init__(self, algorithm: TensorPPO, task: _Task) -> None:
        self.algorithm, self.config, self.folder = algorithm, task.config, task.folder
        self.fingerprint = task.fingerprint
        self.on_iteration, self.evaluate = task.on_iteration, task.evaluate
        self.best_score: float | None = None
        self.resumed_from = 0
        self.used_s = 0.0
        self.saved = -1
        self.evaluated = -1
        self.metrics: dict[str, float] = {}
        self.started = time.monotonic()

    @property
    def wall_s(self) -> float:
        return self.used_s + time.monotonic() - self.started

    def restore(self, state: dict[str, Any]) -> None:
        run = state["run"]
        self.algorithm.load_training_state(state)
        self.used_s = float(run["wall_s"])
        self.best_score = run["best_score"]
        self.evaluated = int(run["evaluated"])
        torch.set_rng_state(run["torch_rng"])
        self.resumed_from = self.saved = self.algorithm.iteration
        self.folder.restore(self.saved)
        logger.info("continuing from iteration %d in %s", self.saved, self.folder.home)

    def loop(self) -> TrainResult:
        while not self._finished():
            result = self.algorithm.train()
            iteration = self.algorithm.iteration
            self.metrics = {k: float(v) for k, v in result["tracker"].items()}
            self.metrics["wall_s"] = self.wall_s
            every = self.config.evaluate_every
            if every and (iteration % every == 0 or self._finished()):
                self._evaluate(iteration)
            self.folder.log(iteration, self.metrics)
            if self.on_iteration is not None:
                self.on_iteration(iteration, self.metrics)
            if iteration % self.config.checkpoint_every == 0:
                self._save()
        if self.saved != self.algorithm.iteration:
            self._save()
        policy, best = self.folder.publish(self.algorithm.export_policy())
        return TrainResult(
            policy=policy,
            best=best,
            best_score=self.best_score,
            iterations=self.algorithm.iteration,
            samples=self.algorithm.samples,
            wall_s=self.wall_s,
            resumed_from=self.resumed_from,
            metrics=self.metrics,
        )

    def _finished(self) -> bool:
        limit = self.config.wall_s
        out_of_time = limit is not None and self.wall_s >= limit
        return out_of_time or self.algorithm.samples >= self.config.samples

    def _evaluate(self, iteration: int) -> None:
        if self.evaluate is None or iteration == self.evaluated:
            return
        policy = self.algorithm.export_policy()
        figures = {k: float(v) for k, v in self.evaluate(policy).items()}
        self.evaluated = iteration
        self.metrics |= {f"eval/{k}": v for k, v in figures.items()}
        score = figures.get(SCORE)
        if score is None:
            raise KeyError(f"the evaluation callback returned no {SCORE!r}: {sorted(figures)}")
        if self.best_score is None or score > self.best_score:
            self.best_score = score
            policy.notes |= {"score": score}
            self.folder.keep_best(policy)

    def _save(self) -> None:
        state = self.algorithm.training_state()
        state["run"] = {
            "fingerprint": self.fingerprint,
            "wall_s": self.wall_s,
            "best_score": self.best_score,
            "evaluated": self.evaluated,
            "torch_rng": torch.get_rng_state(),
        }
        self.saved = self.algorithm.iteration
        self.folder.save(self.saved, state, self.algorithm.export_policy())


def _effective(
    config: TrackerConfig, samples: int | None, wall_s: float | None, warm: bool
) -> TrackerConfig:
    """Apply the call's budgets and what a warm start implies."""
    changes: dict[str, Any] = {}
    if samples is not None:
        changes["samples"] = samples
    if wall_s is not None:
        changes["wall_s"] = wall_s
    if not warm:
        changes["critic_only_iterations"] = 0
    elif config.warm_freeze:
        changes["normaliser"] = "frozen"
    return config.replace(**changes)


def _fingerprint(config: TrackerConfig, env_name: str) -> dict[str, Any]:
    values = {k: v for k, v in asdict(config).items() if k not in _FREE}
    return {"env": env_name, "config": json.dumps(values, sort_keys=True)}


def _check_same_run(old: dict[str, Any], new: dict[str, Any], home: Storage) -> None:
    # A field that is younger than the checkpoint had its default's effect then.
    default = json.loads(json.dumps(asdict(TrackerConfig())))
    before, now = (default | json.loads(run["config"]) for run in (old, new))
    keys = sorted(k for k in before | now if before.get(k) != now.get(k))
    if old["env"] != new["env"]:
        keys.insert(0, "env")
    if keys:
        raise InputError(
            f"{home}: its checkpoints were made with another configuration ({', '.join(keys)} "
            "differ); use the same one or another folder"
        )
