"""From one worker process to two: generation, optimisation, recording, tracker rollouts; memory.

Weak scaling: every worker gets the same work, and two workers at once should take as long as one
alone. Rounds with one and with two alternate, so that both see the same machine; the ratio is that
of the fastest rounds. CPU time of a unit says the same for a machine that other work keeps busy.
``machine`` multiplies matrices that stay in a core's own cache: two processes that share nothing.
Its ratio is what this machine has to give, and what other work takes of it shows there first.
``--part rllib`` tells RLlib's own share of a tracker iteration with 1024 environments.
``--part soak`` looks at the memory of driver, workers and object store over 200 tracker iterations
and 500 generator steps.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import numpy as np
import ray
import torch
from ray.tune.registry import register_env

from algorithms.diffusion.config import DiffusionConfig
from algorithms.diffusion.profiles import profile
from algorithms.diffusion.train import GENERATOR, train_local
from algorithms.diffusion.trainer import Trainer, private_randomness
from algorithms.ppo.algorithm_config import TensorPPOConfig
from algorithms.ppo.config import PRESETS
from algorithms.ppo.sizes import EnvSizes
from benchmarks import _common, tracker
from benchmarks.synthesis_motions import flawed_walk
from envs.tracking import config as tasks
from envs.tracking.creator import ENV_NAME, make_tracking_env
from parc_ray.character.character import Character, load_character
from parc_ray.data.bank import ClipBank
from parc_ray.data.sample_data import load_sample_clips
from parc_ray.motion.clip import MotionClip
from parc_ray.recipes import get_recipe
from parc_ray.stages._operators import OptimizeStep, PlanStep, RollOutStep
from parc_ray.stages._rollouts import pack_clips
from parc_ray.stages.pool import WorkItem
from parc_ray.stages.record import MpcWorker, RecordSetup

STAGES = ("machine", "generation", "optimisation", "recording", "tracker")
GOAL, RLLIB_LIMIT_PERCENT = 0.85, 5.0
SOAK_ITERATIONS, SOAK_STEPS = 200, 500
SEED = 0


def main(argv: Sequence[str] | None = None) -> None:
    parser = _common.parser((__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, metavar="N", help="of each (5; quick: 3)")
    parser.add_argument("--part", choices=["all", "weak", "rllib", "soak"], default="weak")
    options = parser.parse_args(argv)
    rounds = options.rounds or (3 if options.quick else 5)
    torch.set_num_threads(1)
    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        object_store_memory=256 * 2**20,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    figures: dict[str, float] = {}
    rows = []
    character = load_character("humanoid")
    clips = [_first_second(c) for c in load_sample_clips(character)][:4]
    generator = _generator(character, clips)
    for stage in STAGES if options.part in ("all", "weak") else ():
        wall, cpu = weak_scaling(stage, generator, clips, rounds)
        figures |= {f"{stage}_weak_scaling": wall, f"{stage}_weak_scaling_cpu": cpu}
        goal: dict[str, Any] = {} if stage == "machine" else {"other": GOAL, "label": "goal"}
        rows += [
            _common.Row(name=stage, ours=wall, note="clock, fastest round", **goal),
            _common.Row(name=f"{stage}, CPU", ours=cpu, note="CPU-s", **goal),
        ]
    if rows:
        _common.print_table("Two workers: work per worker and second, relative to one", rows)
    if options.part in ("all", "rllib"):
        figures |= rllib_share(character, clips)
    if options.part in ("all", "soak"):
        figures |= soak(character, clips)
    ray.shutdown()
    _common.print_result(figures)


def weak_scaling(
    stage: str, generator: bytes, clips: list[MotionClip], rounds: int
) -> tuple[float, float]:
    """Rate per worker of two workers over that of one: by the clock, and by CPU time."""
    make = ray.remote(num_cpus=1)(_Worker)
    workers = [make.remote(stage, generator, clips) for _ in range(2)]
    ray.get([w.run.remote() for w in workers])  # warm up
    wall: dict[int, list[float]] = {1: [], 2: []}
    cpu: dict[int, list[float]] = {1: [], 2: []}
    for turn in range(rounds):
        for count in (1, 2) if turn % 2 else (2, 1):
            began = time.monotonic()
            spent = ray.get([w.run.remote() for w in workers[:count]])
            wall[count].append(time.monotonic() - began)
            cpu[count].append(max(spent))
    for worker in workers:
        ray.kill(worker)  # pyright: ignore[reportArgumentType]
    return min(wall[1]) / min(wall[2]), min(cpu[1]) / min(cpu[2])


class _Worker:
    """One worker process of a stage; ``run`` does the same work every time."""

    def __init__(self, stage: str, generator: bytes, clips: list[MotionClip]) -> None:
        torch.set_num_threads(1)
        self._work = _MAKERS[stage](load_character("humanoid"), generator, clips)

    def run(self) -> float:
        """Do the work; CPU seconds of this process."""
        began = time.process_time()
        self._work()
        return time.process_time() - began


def _generation(
    character: Character, generator: bytes, clips: list[MotionClip]
) -> Callable[[], object]:
    config = get_recipe("quick")
    row = replace(config.iterations[0], candidates=8)
    rollout = replace(config.synthesis.rollout, max_duration_s=1.5)
    synthesis = replace(config.synthesis, rollout=rollout)
    plan = PlanStep(row=row, synthesis=synthesis, seed=SEED)
    step = RollOutStep(
        generator=generator,
        character=character,
        row=row,
        synthesis=synthesis,
        iteration=1,
        seed=SEED,
        device="cpu",
    )
    item = WorkItem(id="i", payload={"first": 0, "last": 2})
    planned = plan(item, b"").data
    return lambda: step(item, planned)


def _optimisation(
    character: Character, generator: bytes, clips: list[MotionClip]
) -> Callable[[], object]:
    synthesis = get_recipe("quick").synthesis
    synthesis = replace(synthesis, optimizer=replace(synthesis.optimizer, iterations=40))
    step = OptimizeStep(character=character, synthesis=synthesis, device="cpu")
    walk = flawed_walk(character, SEED, frames=60, cells=16)
    walk.metrics.update(dict.fromkeys(("sel_tpl", "sel_tcl", "sel_progress", "sel_seam_jerk"), 0.0))
    data = pack_clips([walk])
    return lambda: step(WorkItem(id="i", payload={}), data)


def _recording(
    character: Character, generator: bytes, clips: list[MotionClip]
) -> Callable[[], object]:
    config = get_recipe("quick")
    mpc = replace(config.correction.mpc, samples=32)
    setup = RecordSetup(
        clips=clips[:1],
        character=character,
        correction=replace(config.correction, mpc=mpc, mpc_retries=0),
        tracking=config.tracking,
        sim=replace(config.sim, num_threads=1),
        simulator=config.simulator,
        iteration=1,
        seed=SEED,
    )
    worker = MpcWorker(setup)
    item = WorkItem(id="i", payload={"clip": clips[0].clip_id})
    return lambda: worker(item)


def _tracker(
    character: Character, generator: bytes, clips: list[MotionClip]
) -> Callable[[], object]:
    options = {"clips": clips, "tracking": tasks.quick(), "character": character, "num_envs": 256}
    env = make_tracking_env(options)
    env.reset()
    action = torch.zeros(env.num_envs, env.action_dim)

    def steps() -> None:
        for _ in range(24):
            env.step(action)

    return steps


def _machine(
    character: Character, generator: bytes, clips: list[MotionClip]
) -> Callable[[], object]:
    square = torch.eye(64)

    def multiply() -> None:
        for _ in range(100_000):
            torch.mm(square, square)

    return multiply


_MAKERS = {
    "machine": _machine,
    "generation": _generation,
    "optimisation": _optimisation,
    "recording": _recording,
    "tracker": _tracker,
}


def _first_second(clip: MotionClip) -> MotionClip:
    return replace(clip, frames=clip.frames.time(0, 31), loop="clamp")


def _settings() -> DiffusionConfig:
    config = profile("small")
    train = replace(config.train, steps=2, batch_size=8, stat_windows=64, report_every=2)
    return replace(config, train=train)


def _generator(character: Character, clips: list[MotionClip]) -> bytes:
    """A generator that learnt nothing: its speed is that of any other."""
    with TemporaryDirectory() as folder:
        bank = ClipBank(clips, character.skeleton)
        train_local(bank, character, _settings(), folder)
        return (Path(folder) / GENERATOR).read_bytes()


def rllib_share(character: Character, clips: list[MotionClip]) -> dict[str, float]:
    """What RLlib adds to an iteration with 1024 environments, as a share of the iteration.

    What it adds is measured on an environment that costs nothing, above bare loops of policy and
    update: beside a real simulation it would drown in the noise.
    """
    setup = tracker.Setup(character, clips, tracker.RLLIB_ENVS, steps=32, rounds=4)
    own = tracker.rllib_us(setup)
    whole = 1e6 / tracker.ppo_rate(setup, learners=0)["cpu"]
    row = _common.Row(
        name="RLlib's own share",
        ours=100.0 * own / whole,
        other=RLLIB_LIMIT_PERCENT,
        label="limit",
        unit="%",
        note=f"{own:.2f} of {whole:.0f} CPU-us per step, N = {tracker.RLLIB_ENVS}",
    )
    _common.print_table("A tracker iteration, quick", [row])
    return {"rllib_share": own / whole, "rllib_us": own, "iteration_us_per_step": whole}


def soak(character: Character, clips: list[MotionClip]) -> dict[str, float]:
    """Growth of memory, MB per 100 iterations or steps, over the second half of each."""
    register_env(ENV_NAME, make_tracking_env)
    options = {"clips": clips, "tracking": tasks.quick(), "character": character}
    knobs = PRESETS["quick"]().replace(
        num_envs=16,
        horizon=8,
        epochs=1,
        minibatch=128,
        threads=1,
        placement="colocated",
        num_learners=1,
    )
    sizes = EnvSizes.probe(ENV_NAME, options)
    dims = (sizes.obs_dim, sizes.action_dim)
    algorithm = TensorPPOConfig.from_tracker(
        sizes.apply(knobs), ENV_NAME, options, *dims
    ).build_algo()
    seen: list[dict[str, float]] = []
    for iteration in range(SOAK_ITERATIONS):
        algorithm.train()
        if iteration % 5 == 4:
            seen.append(_memory())
    algorithm.stop()
    figures = {f"tracker_{k}_mb_per_100": v for k, v in _slopes(seen, 5).items()}
    config = _settings()
    train = replace(config.train, steps=SOAK_STEPS, batch_size=8)
    held: list[dict[str, float]] = []
    with private_randomness(SEED, 1):
        bank = ClipBank(clips, character.skeleton)
        trainer = Trainer(bank, character, replace(config, train=train))
        for step in range(SOAK_STEPS):
            trainer.train_step()
            if step % 10 == 9:
                held.append({"driver": _memory()["driver"]})
    figures |= {f"generator_{k}_mb_per_100": v for k, v in _slopes(held, 10).items()}
    rows = [
        _common.Row(name=name, ours=value, unit="MB/100", note="second half, least squares")
        for name, value in figures.items()
    ]
    _common.print_table("Growth of memory", rows)
    return figures


def _memory() -> dict[str, float]:
    """Anonymous memory of this process and of Ray's workers, and shared memory of all, MB."""
    found = {"driver": 0.0, "workers": 0.0, "store": 0.0}
    root = os.getpid()
    for pid in _common._tree(root):
        held = _common._kilobytes(pid, "smaps_rollup")
        found["store"] += held.get("Pss_Shmem", 0.0)
        if pid == root:
            found["driver"] += held.get("Pss_Anon", 0.0)
        elif _common._name(pid).startswith("ray::"):
            found["workers"] += held.get("Pss_Anon", 0.0)
    return found


def _slopes(seen: list[dict[str, float]], every: int) -> dict[str, float]:
    """Least-squares slope over the second half, MB per 100."""
    half: list[dict[str, Any]] = seen[len(seen) // 2 :]
    x = np.arange(len(half)) * every / 100.0
    return {key: float(np.polyfit(x, [row[key] for row in half], 1)[0]) for key in seen[0]}


if __name__ == "__main__":
    main()
