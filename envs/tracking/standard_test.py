"""The standard test of a tracking policy, told for all clips, by class and by terrain difficulty.

Fixed definition: deterministic policy, 64 episodes per clip from frame 0 and as many from random
frames, start noise of 5 cm and 0.05 in velocity, seeds that training does not use. Success is
reaching the last frame under the task's terminations. Distances are means over an episode's steps,
then over episodes: of bodies relative to the root (PARC's joint error, the root counting as 0), and
of bodies and root in the world.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from envs.tracking.motion_bank import crop_to_path
from envs.tracking.rollouts import STANDARD_NOISE, EpisodeRunner, Episodes
from envs.tracking.task import Noise
from parc_ray.motion.clip import MotionClip
from parc_ray.protocols import Policy
from parc_ray.terrain.difficulty import terrain_difficulty

EPISODES = 64
"""Episodes per clip and kind of start."""
TEST_SEED = 700_001
"""Seed of start noise and random frames."""
LEVELS = (("level", 0.02), ("low", 0.15), ("medium", 0.4), ("high", float("inf")))
"""Names of terrain difficulty and the measure (extra effort of crossing) that each ends at."""
_MARGIN_M = 1.0


@dataclass(frozen=True)
class StandardTest:
    """Episodes of the standard test and the clips they were run on."""

    clips: Sequence[MotionClip]
    """Clips by the index that episodes have."""
    first: Episodes
    """From frame 0."""
    anywhere: Episodes
    """From random frames."""

    def rows(self) -> list[dict[str, float | str]]:
        """Figures of all clips, of each class and of each level of terrain difficulty."""
        return group_rows(self.clips, self.first, self.anywhere)


def standard_test(
    runner: EpisodeRunner,
    policy: Policy | None,
    *,
    episodes: int = EPISODES,
    noise: Noise = STANDARD_NOISE,
    seed: int = TEST_SEED,
) -> StandardTest:
    """Run the standard test on all clips of a runner; None plays the references back."""
    first = runner.run_from_start(policy, episodes, noise, seed)
    anywhere = runner.run_random(policy, episodes, noise, seed + 1)
    return StandardTest(runner.bank.clips, first, anywhere)


def difficulty_of(clip: MotionClip) -> float:
    """Measured difficulty of the ground along a clip's path and a metre around it, m/m."""
    return terrain_difficulty(crop_to_path(clip, _MARGIN_M))


def level_of(difficulty: float) -> str:
    """Name of a measured difficulty."""
    return next(name for name, end in LEVELS if difficulty < end)


def group_rows(
    clips: Sequence[MotionClip], first: Episodes, anywhere: Episodes
) -> list[dict[str, float | str]]:
    """One row for all clips, one per class, one per level of terrain difficulty.

    Args:
        clips: by the index that episodes have.
        first: episodes from frame 0.
        anywhere: episodes from random frames.
    """
    difficulties = [difficulty_of(clip) for clip in clips]
    groups: list[tuple[str, str, list[int]]] = [("all", "all", list(range(len(clips))))]
    classes = [clip.provenance.class_name or "unnamed" for clip in clips]
    groups += [("class", name, _where(classes, name)) for name in sorted(set(classes))]
    levels = [level_of(value) for value in difficulties]
    groups += [("terrain", name, _where(levels, name)) for name, _ in LEVELS if name in levels]
    rows: list[dict[str, float | str]] = []
    for kind, name, members in groups:
        start, random = (e.summary(_among(e.clip, members)) for e in (first, anywhere))
        rows.append(
            {
                "by": kind,
                "group": name,
                "clips": float(len(members)),
                "difficulty": sum(difficulties[i] for i in members) / len(members),
                "episodes": start["episodes"],
                "completed_from_start": start["completed"],
                "survived_from_start": start["survived"],
                "random_completed": random["completed"],
                "random_survived": random["survived"],
                "body_error_relative_m": start["body_local_m"],
                "body_error_global_m": start["body_global_m"],
                "root_error_m": start["root_pos_m"],
                "root_error_rad": start["root_rot_rad"],
                "random_body_error_relative_m": random["body_local_m"],
                "random_body_error_global_m": random["body_global_m"],
                "contact_agreement": start["contact_agreement"],
            }
        )
    return rows


def _where(names: Sequence[str], name: str) -> list[int]:
    return [index for index, other in enumerate(names) if other == name]


def _among(clip: Tensor, members: Sequence[int]) -> Tensor:
    return torch.isin(clip, torch.tensor(members))
