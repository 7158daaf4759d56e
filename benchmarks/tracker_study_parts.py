"""Parts of the tracker study: clips, settings, the bare training loop and the standard test."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from algorithms.ppo import config as ppo_presets
from algorithms.ppo.checkpoint import load_state, save_state
from algorithms.ppo.config import TrackerConfig
from algorithms.ppo.module import ActorCritic, model_config
from algorithms.ppo.networks import NetSpec
from algorithms.ppo.policy import MlpPolicy
from algorithms.ppo.rollout import Sampler
from algorithms.ppo.runner import box_space
from algorithms.ppo.sizes import EnvSizes
from algorithms.ppo.update import Updater, make_optimiser
from envs.sims.base import SimConfig
from envs.sims.registry import backend_factory
from envs.tracking import config as task_presets
from envs.tracking.config import TrackingConfig
from envs.tracking.env import VectorTrackingEnv
from envs.tracking.rollouts import EpisodeRunner
from envs.tracking.standard_test import EPISODES as STANDARD_EPISODES
from envs.tracking.standard_test import standard_test
from parc_ray.character.character import Character
from parc_ray.config import DataConfig
from parc_ray.config_io import from_plain, to_plain
from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip
from parc_ray.stages._initial import import_source

EPISODES = STANDARD_EPISODES
"""Episodes of the standard test, per clip and kind of start."""
RETEST_SEED = 900_001
RETEST_SEEDS = 4
"""Fresh seeds that the best checkpoint is tested with again, 64 episodes each."""
SHOWN = (
    "step/reward/pose",
    "step/reward/root",
    "step/reward/root_vel",
    "reward_per_step",
    "failure_rate",
    "explained_variance",
    "kl_last_epoch",
    "epochs",
    "lr",
    "std",
    "clip_fraction",
    "grad_norm",
)
"""Means over the iterations since the last test that go into the curve."""


@dataclass(frozen=True, kw_only=True)
class StudySetting:
    """Everything that a training of the study depends on beside its clip, seed and budget."""

    preset: str = "quick"
    """Preset of the task and of PPO."""
    ppo: TrackerConfig
    """Learner."""
    task: TrackingConfig
    """Task."""
    sim: SimConfig
    """Simulator."""
    cell_size: float = 0.4
    """Cell size of the inferred terrain, m."""


def setting(preset: str, seed: int, changes: Mapping[str, Any] | None = None) -> StudySetting:
    """A preset with values changed by dotted key (`ppo.`, `task.`, `sim.`, `cell_size`).

    Raises:
        InputError: an unknown preset, or a key that does not exist.
    """
    if preset not in ppo_presets.PRESETS:
        raise InputError(
            f"preset '{preset}' is unknown; use one of {', '.join(task_presets.PRESETS)}"
        )
    plain: dict[str, Any] = {
        "ppo": to_plain(ppo_presets.PRESETS[preset]()),
        "task": to_plain(task_presets.preset(preset)),
        "sim": to_plain(SimConfig()),
        "cell_size": 0.4,
    }
    fixed = {"ppo.seed": seed, "ppo.threads": 1, "ppo.gpus_per_learner": 0.0}
    for key, value in {**fixed, **(changes or {})}.items():
        *parents, leaf = key.split(".")
        node = plain
        for parent in parents:
            node = node.get(parent, {})
        if leaf not in node:
            raise InputError(f"{key}: unknown setting; use ppo., task. or sim. and a field's name")
        node[leaf] = value
    return StudySetting(
        preset=preset,
        ppo=from_plain(TrackerConfig, plain["ppo"]),
        task=from_plain(TrackingConfig, plain["task"]),
        sim=from_plain(SimConfig, plain["sim"]),
        cell_size=float(plain["cell_size"]),
    )


def default_data() -> str:
    """Where the development data is."""
    shared = os.environ.get("PARC_SHARED_DATA")
    root = Path(shared) if shared else Path(__file__).resolve().parents[2] / "shared" / "data"
    return str(root / "parc_clips")


def load_take(data: str, take: str, character: Character, cell_size: float) -> MotionClip:
    """One clip of PARC's motion capture, whole, with its terrain inferred by the import.

    Raises:
        InputError: there is no such file.
    """
    path = Path(data) / f"humanoid_{take}.pkl"
    if not path.is_file():
        raise InputError(f"{path}: no such file; give --data PARC's clips and a take that is there")
    config = replace(DataConfig(), path=str(path), cell_size=cell_size)
    clips, _ = import_source(config, character)
    return clips[0]


class Training:
    """One process, one thread: sample, learn, test; budget in CPU-seconds of this process.

    Args:
        character: the character.
        clips: what is tracked.
        config: all settings.
        folder: checkpoint, best policy; an earlier training in it is gone on with.
        warm: policy to start from, with the settings' ``warm_std``.
        spent_s: CPU time that making it took, which counts.
    """

    def __init__(
        self,
        character: Character,
        clips: Sequence[MotionClip],
        config: StudySetting,
        folder: Path,
        warm: MlpPolicy | None = None,
        spent_s: float = 0.0,
    ) -> None:
        """Make simulator, networks and learner."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.setting = folder, config
        seed = config.ppo.seed
        torch.manual_seed(seed)
        num = config.ppo.num_envs
        self.env = VectorTrackingEnv(character, clips, num, config.task, config.sim, seed=seed)
        sizes = EnvSizes.of(self.env)
        self.config = sizes.apply(config.ppo)
        spec = NetSpec.from_config(self.config, sizes.obs_dim, sizes.action_dim)
        self.module = make_module(self.config, spec, sizes)
        self.spec = spec
        self.updater = Updater(self.module, make_optimiser(self.module, self.config), self.config)
        self.sampler = Sampler(
            self.env,
            self.config.horizon,
            seed + 7919,
            torch.device("cpu"),
            self.config.noise_memory,
        )
        factory = backend_factory("mujoco_cpu", character, config.sim)
        self.tester = EpisodeRunner(character, clips, config.task, factory, EPISODES * len(clips))
        self.samples, self.used_s, self.test_s, self.tests = 0, spent_s, 0.0, 0
        self.best = (-1.0, -1.0)
        self.rows: list[dict[str, float]] = []
        self.sums: dict[str, float] = {}
        if self.state_path.exists():
            self.restore()
        elif warm is not None:
            self.updater.warm_start(warm)

    @property
    def state_path(self) -> Path:
        """The checkpoint."""
        return self.folder / "state.pt"

    @property
    def best_path(self) -> Path:
        """The best policy by the test during training."""
        return self.folder / "best.pt"

    def iterate(self) -> dict[str, float]:
        """One fragment and its update; the time it takes counts."""
        start = time.process_time()
        rollout, figures = self.sampler.run(self.module)
        figures |= self.updater.update(rollout)
        self.samples += rollout.num_steps
        self.used_s += time.process_time() - start
        self.sums["iterations"] = self.sums.get("iterations", 0.0) + 1.0
        for key in SHOWN:
            self.sums[key] = self.sums.get(key, 0.0) + figures.get(key, 0.0)
        return figures

    def policy(self) -> MlpPolicy:
        """A copy of the present policy."""
        return MlpPolicy.from_state(self.spec, self.module.state_dict())

    def test(self) -> dict[str, float]:
        """The standard test with noise of its own; a new row, and perhaps a new best policy."""
        start = time.process_time()
        policy = self.policy()
        seed = 10_000 + self.tests
        figures = tested(self.tester, policy, seed)
        count = self.sums.pop("iterations", 0.0)
        means = {k.removeprefix("step/"): v / max(count, 1.0) for k, v in self.sums.items()}
        self.sums = {}
        self.test_s += time.process_time() - start
        self.tests += 1
        clocks = {"cpu_s": self.used_s, "test_cpu_s": self.test_s, "samples": float(self.samples)}
        row = {**clocks, **figures, **means}
        self.rows.append(row)
        score = (figures["start_completed"], figures["start_survived"])
        if score > self.best:
            self.best = score
            policy.notes |= {"cpu_s": self.used_s, "samples": self.samples}
            policy.save(self.best_path)
        return row

    def save(self) -> None:
        """Write everything that going on bit for bit needs."""
        state = {
            "module": dict(self.module.state_dict()),
            "updater": self.updater.state_dict(),
            "update_rng": self.updater.rng.get_state(),
            "sampler": self.sampler.state_dict(),
            "torch_rng": torch.get_rng_state(),
            "clocks": [self.samples, self.used_s, self.test_s, self.tests],
            "best": list(self.best),
            "rows": self.rows,
            "sums": self.sums,
        }
        save_state(self.state_path, state)

    def restore(self) -> None:
        """Go on from `save`."""
        state = load_state(self.state_path)
        self.module.load_state_dict(state["module"])
        self.module.normaliser.refresh()
        self.updater.load_state_dict(state["updater"])
        self.updater.rng.set_state(state["update_rng"])
        self.sampler.load_state_dict(state["sampler"])
        torch.set_rng_state(state["torch_rng"])
        self.samples, self.used_s, self.test_s, self.tests = state["clocks"]
        self.best = (state["best"][0], state["best"][1])
        self.rows, self.sums = state["rows"], state["sums"]

    def retest(self) -> dict[str, float]:
        """The best policy with fresh seeds, `RETEST_SEEDS` times the standard test."""
        policy = MlpPolicy.load(self.best_path)
        results = [tested(self.tester, policy, RETEST_SEED + i) for i in range(RETEST_SEEDS)]
        keys = [k for k in results[0] if all(k in r for r in results)]
        means = {k: sum(r[k] for r in results) / len(results) for k in keys}
        means["start_completed_least"] = min(r["start_completed"] for r in results)
        return means

    def test_beside(self, character: Character, clips: Sequence[MotionClip]) -> dict[str, float]:
        """The standard test of the best policy on other clips."""
        factory = backend_factory("mujoco_cpu", character, self.setting.sim)
        tester = EpisodeRunner(character, clips, self.setting.task, factory, EPISODES * len(clips))
        try:
            return tested(tester, MlpPolicy.load(self.best_path), RETEST_SEED)
        finally:
            tester.close()

    def close(self) -> None:
        """Release the simulators."""
        self.env.close()
        self.tester.close()


def make_module(config: TrackerConfig, spec: NetSpec, sizes: EnvSizes) -> ActorCritic:
    """The actor-critic as RLlib would build it."""
    module = RLModuleSpec(
        module_class=ActorCritic,
        observation_space=box_space(sizes.obs_dim),
        action_space=box_space(sizes.action_dim),
        model_config=model_config(spec, config),
    ).build()
    if not isinstance(module, ActorCritic):
        raise TypeError(f"RLlib built a {type(module).__name__}")
    return module


def tested(tester: EpisodeRunner, policy: MlpPolicy, seed: int) -> dict[str, float]:
    """Figures of the standard test from frame 0 and from random frames; of several clips each."""
    made = standard_test(tester, policy, episodes=EPISODES, seed=seed)
    out = {}
    for kind, episodes in (("start", made.first), ("random", made.anywhere)):
        summary = episodes.summary()
        keys = ("completed", "survived", "body_local_m", "body_global_m", "root_pos_m")
        keys += ("end/body", "end/root_pos", "end/root_rot") if kind == "start" else ()
        out.update({f"{kind}_{k}": summary[k] for k in keys})
    done = made.first.completed
    if bool(done.any()):
        out["completed_body_local_m"] = made.first.summary(done)["body_local_m"]
    for index, clip in enumerate(made.clips if len(made.clips) > 1 else ()):
        mine = made.first.summary(made.first.clip == index)
        out.update({f"{k}/{clip.clip_id}": mine[k] for k in ("completed", "survived")})
    return out
