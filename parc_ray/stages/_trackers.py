"""The tracking policy between stages: its file, its simulator, its test on clips."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from algorithms.ppo.policy import MlpPolicy
from envs.sims.base import BackendFactory, SimConfig
from envs.sims.registry import backend_factory, wants_gpu
from envs.tracking.config import TrackingConfig
from envs.tracking.rollouts import STANDARD_NOISE, EpisodeRunner, Episodes
from envs.tracking.task import Noise
from parc_ray.character.character import Character
from parc_ray.config import ParcConfig
from parc_ray.motion.clip import MotionClip
from parc_ray.protocols import Policy
from parc_ray.stages.base import StageRun

COMPLETED_SHARE = 0.75
"""A clip counts as completed if this share of its starts from frame 0 reach its end."""

_NUMBERS = ("starts", "completed", "survived", "random_completed", "level_change_m")
_NUMBERS += ("body_error_relative_m", "body_error_global_m")


def read_policy(run: StageRun, name: str = "tracker") -> MlpPolicy:
    """The policy behind an input."""
    storage, path = run.open_input(name)
    with storage.fetched(path) as file:
        return MlpPolicy.load(file)


def make_factory(character: Character, sim: SimConfig, simulator: str) -> BackendFactory:
    """Makes simulators for recorders and tests."""
    return backend_factory(simulator, character, sim)


def warn_of_cpu(run: StageRun, gpus: float, setting: str) -> None:
    """Say in the driver that workers without a GPU will run a simulator that is made for one.

    Args:
        run: the stage whose workers simulate.
        gpus: what each of them asks Ray for.
        setting: what gives them more, as on the command line.
    """
    config: ParcConfig = run.ctx.config
    if gpus > 0 or not wants_gpu(config.simulator, config.sim):
        return
    run.log.warning(
        "[%s] its workers have no GPU, so that %s simulates on their CPUs, which is slow; give "
        "each a share with %s",
        run.ctx.stage_path(run.name),
        config.simulator,
        setting,
    )


def track_clips(
    character: Character,
    factory: BackendFactory,
    clips: Sequence[MotionClip],
    policy: Policy | None,
    tracking: TrackingConfig,
    *,
    starts: int,
    random_starts: int,
    seed: int,
    noise: Noise = STANDARD_NOISE,
    num_envs: int = 256,
) -> tuple[Episodes, Episodes]:
    """Episodes from frame 0 and from random frames, with small start noise and a fresh seed.

    Args:
        character: the character.
        factory: makes the simulator.
        clips: what is tracked.
        policy: deterministic; None plays the reference back.
        tracking: rules, PARC's terminations among them.
        starts: episodes from frame 0 per clip.
        random_starts: episodes from random frames per clip.
        seed: of noise and random frames.
        noise: of the starts.
        num_envs: environments at once.
    """
    size = min(num_envs, max(starts, random_starts) * len(clips))
    runner = EpisodeRunner(character, clips, tracking, factory, size)
    try:
        first = runner.run_from_start(policy, starts, noise, seed=seed)
        anywhere = runner.run_random(policy, random_starts, noise, seed=seed + 1)
    finally:
        runner.close()
    return first, anywhere


def clip_table(
    clips: Sequence[MotionClip],
    first: Episodes,
    anywhere: Episodes,
    level_changes: Sequence[float],
) -> pd.DataFrame:
    """One row per clip: starts, completions, survival, errors."""
    rows: list[dict[str, Any]] = []
    for index, clip in enumerate(clips):
        mine, other = first.clip == index, anywhere.clip == index
        summary, random = first.summary(mine), anywhere.summary(other)
        rows.append(
            {
                "clip": clip.clip_id,
                "seconds": clip.duration_s,
                "level_change_m": level_changes[index],
                "maker": clip.provenance.maker,
                "starts": int(summary["episodes"]),
                "completed": int(first.completed[mine].sum()),
                "survived": summary["survived"],
                "random_starts": int(random["episodes"]),
                "random_completed": random["completed"],
                "body_error_relative_m": summary["body_local_m"],
                "body_error_global_m": summary["body_global_m"],
                "root_error_m": summary["root_pos_m"],
            }
        )
    return pd.DataFrame(rows)


def table_figures(table: pd.DataFrame, prefix: str) -> dict[str, float]:
    """Means and counts over a clip table."""
    numbers = {name: table[name].to_numpy(dtype=float) for name in _NUMBERS}
    completed = numbers["completed"] / numbers["starts"]
    done = completed >= COMPLETED_SHARE
    high = done & (numbers["level_change_m"] >= 0.2 - 1e-4)
    return {
        f"{prefix}_clips": float(len(table)),
        f"{prefix}_clips_completed": float(done.sum()),
        f"{prefix}_clips_completed_02m": float(high.sum()),
        f"{prefix}_survived_from_start": float(numbers["survived"].mean()),
        f"{prefix}_completed_from_start": float(completed.mean()),
        f"{prefix}_random_completed": float(numbers["random_completed"].mean()),
        f"{prefix}_body_error_relative_m": _mean(numbers["body_error_relative_m"]),
        f"{prefix}_body_error_global_m": _mean(numbers["body_error_global_m"]),
    }


def _mean(values: NDArray[np.float64]) -> float:
    """Mean of what is a number; NaN where nothing is."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else math.nan
