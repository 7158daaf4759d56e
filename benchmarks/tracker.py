"""What the tracker costs beside the simulation that it cannot do without.

    python benchmarks/tracker.py [--quick] [--data DIR] [--envs N] [--no-rllib]

Every ratio is between two things measured in turn in this run, in CPU time of this process:
``mujoco.rollout`` alone is given exactly the states, warm starts and targets that the backend or
the environment gave it, so both do the same simulation. RLlib's cost is that of sampling, learning
and bookkeeping through ``TensorPPO`` above a bare loop of policy and environment and above a bare
update, on an environment that costs nothing. Two learners sample and learn in processes of their
own (placement ``colocated``); how they scale is told by their CPU time, as if each had a core, and
by the clock, which means something on an idle machine only. The last line is JSON.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import mujoco
import ray
import torch
from ray.tune.registry import register_env
from torch import Tensor

from algorithms.ppo.algorithm import TensorPPO
from algorithms.ppo.algorithm_config import TensorPPOConfig
from algorithms.ppo.config import PRESETS, TrackerConfig
from algorithms.ppo.sizes import EnvSizes
from benchmarks import _common
from benchmarks._common import Row
from benchmarks.generator_study_parts import default_data
from envs.sims.mujoco_cpu import MujocoCpuBackend
from envs.tracking import config as tasks
from envs.tracking.config import TrackingConfig
from envs.tracking.creator import ENV_NAME, make_tracking_env
from envs.tracking.env import VectorTrackingEnv
from parc_ray.character.character import Character, load_character
from parc_ray.config import DataConfig
from parc_ray.motion.clip import MotionClip
from parc_ray.protocols import StepResult
from parc_ray.tools.import_data import load_source

TAKES = ("run30", "stairs03", "platform17")
BACKEND_FLOOR, STEP_FLOOR, PPO_FLOOR, PPO_RATE = 0.9, 0.75, 0.5, 3500.0
RLLIB_LIMIT_US, SCALING_FLOOR = 3.0, 1.8
OBS, ACTIONS, RLLIB_ENVS = 300, 28, 1024
_CTRL = mujoco.mjtState.mjSTATE_CTRL.value
_IDLE = "bench-idle"

Work = dict[str, tuple[Callable[[], object], Callable[[], object]]]
"""What is prepared, and what is timed, by name."""


@dataclass(frozen=True)
class Setup:
    """What is simulated, and how long."""

    character: Character
    clips: list[MotionClip]
    num_envs: int
    steps: int
    rounds: int


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print the tables and a last line of JSON."""
    parser = _common.parser("What the tracker costs beside its simulation.")
    parser.add_argument("--data", default=default_data(), metavar="DIR", help="(%(default)s)")
    parser.add_argument("--envs", type=int, default=256, metavar="N", help="(%(default)s)")
    parser.add_argument("--no-rllib", action="store_true", help="the simulation's part alone")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    character = load_character("humanoid")
    clips, _ = load_source(DataConfig(path=options.data), character)
    chosen = [clip for clip in clips if clip.clip_id.endswith(TAKES)] or clips[:3]
    steps, rounds = (12, 3) if options.quick else (32, 12)
    setup = Setup(character, chosen, options.envs, steps, rounds)
    rows, found = simulation_rows(setup)
    _common.print_table(f"beside mujoco.rollout, N = {setup.num_envs}, one thread", rows)
    if not options.no_rllib:
        rows = learning_rows(setup, found)
        _common.print_table("through RLlib", rows)
    _common.print_result(found)


# Beside the simulation ---------------------------------------------------------------------------


class Recorder:
    """Stands for a backend's pool once, and keeps what it was given."""

    def __init__(self, backend: MujocoCpuBackend) -> None:
        """Call `take` to record."""
        self.backend, self.pool = backend, backend._pool
        self.calls: list[tuple[Any, ...]] = []

    def rollout(self, models: Any, data: Any, physics: Any, control: Any, **options: Any) -> Any:
        """Copy the arguments and do as asked."""
        warm = options["initial_warmstart"].copy()
        self.calls.append((list(models), physics.copy(), control.copy(), warm))
        return self.pool.rollout(models, data, physics, control, **options)

    def take(self, work: Callable[[], object]) -> list[tuple[Any, ...]]:
        """What the pool is given by ``work``."""
        self.backend._pool = self  # pyright: ignore[reportAttributeAccessIssue]
        try:
            work()
        finally:
            self.backend._pool = self.pool
        return self.calls

    def replay(self) -> None:
        """The simulation alone."""
        backend = self.backend
        for models, physics, control, warm in self.calls:
            self.pool.rollout(
                models,
                backend._data,
                physics,
                control,
                control_spec=_CTRL,
                skip_checks=True,
                nstep=backend.config.substeps,
                initial_warmstart=warm,
                state=backend._states,
                sensordata=backend._sensors,
            )


def simulation_rows(setup: Setup) -> tuple[list[Row], dict[str, float]]:
    """The backend and whole environments against the simulation they contain."""
    rows, found = [], {}
    for name, config, noise in cases():
        us = {k: 1e6 * v for k, v in step_costs(setup, config, noise, name == "quick").items()}
        if name == "quick":
            found["backend_over_bare"] = us["backend_bare"] / us["backend"]
            found["bare_steps_per_s"] = 1e6 / us["bare"]
            rows.append(row("backend", found["backend_over_bare"], BACKEND_FLOOR, us["backend"]))
        ratio = us["bare"] / us["env"]
        found[f"step_{name}_over_bare"] = ratio
        found[f"step_{name}_extra_us"] = us["env"] - us["bare"]
        rows.append(row(f"step, {name}", ratio, STEP_FLOOR, us["env"], us["bare"]))
    return rows, found


def step_costs(
    setup: Setup, config: TrackingConfig, noise: float, with_backend: bool
) -> dict[str, float]:
    """CPU seconds per environment step: of the environment, the backend, and each one's bare part.

    Every round starts from the same state and gives the same actions, so that the simulation is
    the same in all rounds and in the bare replay.
    """
    env = VectorTrackingEnv(setup.character, setup.clips, setup.num_envs, config, seed=0)
    backend: Any = env.backend
    rng = torch.Generator().manual_seed(0)
    shape = (setup.steps, setup.num_envs, env.action_dim)
    actions = noise * torch.randn(*shape, generator=rng)
    env.reset()
    for action in actions[:8]:  # leave the exact start of episodes
        env.step(action)
    state, sim_state = env.state_dict(), backend.state_dict()

    def restart() -> None:
        env.load_state_dict(state)

    def restart_simulation() -> None:
        backend.load_state_dict(sim_state)

    def whole() -> None:
        for action in actions:
            env.step(action)

    recorder = Recorder(backend)
    recorder.take(whole)
    targets = [torch.from_numpy(control[:, 0].copy()) for _, _, control, _ in recorder.calls]

    def simulation() -> None:
        for target in targets:
            backend.step(target)

    work: Work = {"bare": (_nothing, recorder.replay), "env": (restart, whole)}
    if with_backend:
        restart_simulation()
        alone = Recorder(backend)
        alone.take(simulation)
        work["backend_bare"] = (_nothing, alone.replay)
        work["backend"] = (restart_simulation, simulation)
    least = in_turn(work, setup.rounds)
    env.close()
    return {key: value / (setup.steps * setup.num_envs) for key, value in least.items()}


def cases() -> list[tuple[str, TrackingConfig, float]]:
    """Names, tasks and exploration noise: presets, and `quick` with the upstream layout."""
    quick = tasks.quick()
    wide = replace(quick, observation=replace(quick.observation, layout="upstream"))
    return [
        ("quick", quick, 0.3),
        ("base", tasks.base(), 0.3),
        ("upstream_layout", wide, 0.3),
        ("upstream", tasks.upstream(), 0.05),
    ]


def in_turn(work: Work, rounds: int) -> dict[str, float]:
    """Least CPU seconds of each, all taking turns; the first of each pair is not counted."""
    best = dict.fromkeys(work, float("inf"))
    for _ in range(rounds):
        for key, (prepare, run) in work.items():
            prepare()
            start = time.process_time()
            run()
            best[key] = min(best[key], time.process_time() - start)
    return best


def _nothing() -> None:
    """No preparation."""


def row(name: str, ratio: float, floor: float, cost: float, bare: float | None = None) -> Row:
    """A ratio beside its floor."""
    note = f"{cost:.1f} us" + ("" if bare is None else f", simulation {bare:.1f} us")
    return Row(name=name, ours=ratio, other=floor, label="floor", unit="of bare", note=note)


# Through RLlib -----------------------------------------------------------------------------------


class Idle:
    """A tracking environment that costs nothing: its observations never change."""

    obs_dim, action_dim = OBS, ACTIONS

    def __init__(self, num_envs: int) -> None:
        """Fill the answers."""
        self.num_envs = num_envs
        self._obs = torch.randn(num_envs, OBS)
        no, none = torch.zeros(num_envs, dtype=torch.bool), torch.zeros(0, dtype=torch.long)
        self._result = StepResult(
            self._obs, torch.ones(num_envs), no, no, none, self._obs[:0], {"reward/total": 1.0}
        )

    def reset(self) -> Tensor:
        """The observations."""
        return self._obs

    def step(self, action: Tensor) -> StepResult:
        """The same again."""
        return self._result

    def state_dict(self) -> dict[str, Any]:
        """Nothing changes."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing changes."""

    def metrics(self) -> dict[str, float]:
        """None."""
        return {}

    def close(self) -> None:
        """Nothing to release."""


def learning_rows(setup: Setup, found: dict[str, float]) -> list[Row]:
    """RLlib's own cost, PPO end to end, and two learners."""
    ray.init(
        address="local", num_cpus=3, include_dashboard=False, log_to_driver=False,
        object_store_memory=200 * 2**20, logging_level="ERROR",
    )  # fmt: skip
    try:
        found["rllib_us"] = rllib_us(setup)
        single = ppo_rate(setup, learners=0)
        double = ppo_rate(setup, learners=2)
    finally:
        ray.shutdown()
    bare = found["bare_steps_per_s"]
    found["ppo_steps_per_cpu_s"] = single["cpu"]
    found["ppo_over_bare"] = single["cpu"] / bare
    found["two_learners_over_one"] = double["cpu"] / single["cpu"]
    found["two_learners_over_one_wall"] = double["wall"] / single["wall"]
    return [
        Row(name="RLlib above bare loops", ours=found["rllib_us"], other=RLLIB_LIMIT_US,
            label="limit", unit="us/step", note=f"N = {RLLIB_ENVS}, T = 32"),
        Row(name="PPO, quick", ours=single["cpu"], other=PPO_RATE, label="floor",
            unit="steps/CPU-s"),
        Row(name="PPO beside simulation", ours=found["ppo_over_bare"], other=PPO_FLOOR,
            label="floor", unit="of bare"),
        Row(name="two learners, CPU", ours=found["two_learners_over_one"], other=SCALING_FLOOR,
            label="floor", unit="times one"),
        Row(name="two learners, clock", ours=found["two_learners_over_one_wall"],
            label="", unit="times one", note="on an idle machine"),
    ]  # fmt: skip


def rllib_us(setup: Setup) -> float:
    """CPU microseconds per environment step of an iteration above bare sampling and update."""
    register_env(_IDLE, lambda context: Idle(int(context["num_envs"])))
    knobs = TrackerConfig(
        num_envs=RLLIB_ENVS, hidden=(256, 128), epochs=1, minibatch=8192, normaliser_warmup=0
    )
    algorithm = TensorPPOConfig.from_tracker(knobs, _IDLE, {}, OBS, ACTIONS).build_algo()
    if not isinstance(algorithm, TensorPPO):
        raise TypeError("the algorithm is not ours")
    module = algorithm._local_learner.actor_critic
    env = Idle(RLLIB_ENVS)
    std = torch.exp(module.log_std.detach())

    @torch.no_grad()
    def loop() -> None:
        obs = env.reset()
        for _ in range(knobs.horizon):
            action = module.act_mean(obs)
            action += std * torch.randn_like(action)
            obs = env.step(action).obs

    rollout, _ = algorithm._local_runner.sample()
    updater = algorithm._local_learner.updater
    least = in_turn(
        {
            "loop": (_nothing, loop),
            "update": (_nothing, lambda: updater.update(rollout)),
            "train": (_nothing, algorithm.train),
        },
        2 * setup.rounds,
    )
    algorithm.stop()
    extra = least["train"] - least["loop"] - least["update"]
    return 1e6 * extra / (knobs.num_envs * knobs.horizon)


def ppo_rate(setup: Setup, learners: int) -> dict[str, float]:
    """Steps per second of training with `quick`, by CPU time (of the busiest) and by the clock."""
    register_env(ENV_NAME, make_tracking_env)
    knobs = PRESETS["quick"]().replace(num_envs=setup.num_envs, threads=1)
    if learners:
        knobs = knobs.replace(placement="colocated", num_learners=learners)
    options = {"clips": setup.clips, "tracking": tasks.quick(), "character": setup.character}
    sizes = EnvSizes.probe(ENV_NAME, options)
    dims = (sizes.obs_dim, sizes.action_dim)
    config = TensorPPOConfig.from_tracker(sizes.apply(knobs), ENV_NAME, options, *dims)
    algorithm = config.build_algo()
    if not isinstance(algorithm, TensorPPO):
        raise TypeError("the algorithm is not ours")
    for _ in range(2):
        algorithm.train()
    iterations = max(4, setup.rounds)
    cpu, wall, steps = _clocks(algorithm), time.monotonic(), algorithm.samples
    for _ in range(iterations):
        algorithm.train()
    spent = max(b - a for a, b in zip(cpu, _clocks(algorithm), strict=True))
    steps = algorithm.samples - steps
    wall = time.monotonic() - wall
    algorithm.stop()
    return {"cpu": steps / spent, "wall": steps / wall}


def _clocks(algorithm: TensorPPO) -> list[float]:
    """CPU seconds so far of every process that samples and learns."""
    return algorithm._on_learners(_process_time)


def _process_time(learner: Any) -> float:
    return time.process_time()


if __name__ == "__main__":
    main()
