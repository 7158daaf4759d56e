"""How a policy fares in a simulator that it was not trained in, clip by clip.

Both simulators get the same starts: the same frames with the same noise of the same seed. Errors
are means over the steps that were survived, so they are to be read beside the completion.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from envs.sims.base import SimConfig
from envs.sims.registry import backend_factory
from envs.tracking.config import TrackingConfig
from envs.tracking.rollouts import STANDARD_NOISE, EpisodeRunner
from parc_ray.character.character import Character
from parc_ray.motion.clip import MotionClip
from parc_ray.protocols import Policy

SHOWN = ("completed", "survived", "joint_rad", "body_local_m", "root_pos_m", "contact_agreement")
"""Figures that are compared: shares, rad, m, m, share."""
ALL = "all clips"
"""Name of the row of means."""


def measure_in(
    simulator: str,
    character: Character,
    clips: Sequence[MotionClip],
    policy: Policy | None,
    tracking: TrackingConfig,
    sim: SimConfig,
    *,
    starts: int,
    seed: int,
    num_envs: int = 256,
) -> pd.DataFrame:
    """One row per clip and a row of means: figures of ``starts`` episodes from frame 0 each.

    Args:
        simulator: name in the registry.
        character: the character.
        clips: what is tracked.
        policy: deterministic; None plays the reference back.
        tracking: rules, PARC's terminations among them.
        sim: settings of the physics.
        starts: episodes per clip.
        seed: of the start noise.
        num_envs: environments at once.
    """
    factory = backend_factory(simulator, character, sim)
    size = min(num_envs, starts * len(clips))
    runner = EpisodeRunner(character, clips, tracking, factory, size, sim.control_hz)
    try:
        episodes = runner.run_from_start(policy, starts, STANDARD_NOISE, seed=seed)
    finally:
        runner.close()
    rows = []
    for index, clip in enumerate(clips):
        summary = episodes.summary(episodes.clip == index)
        rows.append({"clip": clip.clip_id, **{name: summary[name] for name in SHOWN}})
    table = pd.DataFrame(rows)
    means = {name: _mean(table[name].to_numpy(dtype=float)) for name in SHOWN}
    return pd.concat((table, pd.DataFrame([{"clip": ALL, **means}])), ignore_index=True)


def _mean(values: NDArray[np.float64]) -> float:
    """Mean of what is known: a clip that ends at once has no errors; NaN where nothing is."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def gap_table(home: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """Both tables side by side: ``<figure>_home``, ``_other`` and ``_gap`` (other minus home).

    Rows belong together by their place: clips of several sources may have the same id.

    Raises:
        ValueError: the tables are not about the same clips.
    """
    if home["clip"].tolist() != other["clip"].tolist():
        raise ValueError("the tables are of other clips, or in another order")
    figures = other.drop(columns="clip").add_suffix("_other")
    both = home.add_suffix("_home").rename(columns={"clip_home": "clip"}).join(figures)
    columns = ["clip"]
    for name in SHOWN:
        both[f"{name}_gap"] = both[f"{name}_other"] - both[f"{name}_home"]
        columns += [f"{name}_{end}" for end in ("home", "other", "gap")]
    return pd.DataFrame(both[columns])


def gap_rows(table: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of what is printed: completion, survival and joint error of both."""
    heads = ["clip"]
    for words in ("completed", "survived", "joint rad"):
        heads += [words, "there", "gap"]
    rows = []
    for row in table.to_dict("records"):
        cells = [str(row["clip"])]
        for name, digits in (("completed", 2), ("survived", 2), ("joint_rad", 3)):
            values = [row[f"{name}_{end}"] for end in ("home", "other", "gap")]
            cells += [f"{values[0]:.{digits}f}", f"{values[1]:.{digits}f}"]
            cells.append(f"{values[2]:+.{digits}f}")
        rows.append(cells)
    return heads, rows
