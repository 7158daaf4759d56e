"""Removal of frames in which nothing happens, with a limit on the speed-up."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from parc_ray.character.character import Character
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.motion.clip import MotionClip
from parc_ray.synthesis.config import HesitationConfig


def repeated_frames(body_pos: Tensor, distance_m: float) -> Tensor:
    """Frames whose pose an earlier, unrepeated frame already has.

    Args:
        body_pos: (T, B, 3) metres, world.
        distance_m: Frobenius distance that counts as the same pose.

    Returns:
        (T,) bool.
    """
    flat = body_pos.reshape(len(body_pos), -1).double()
    near = torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist") < distance_m
    repeated = torch.zeros(len(flat), dtype=torch.bool)
    for i in range(len(flat)):
        if not repeated[i]:
            repeated[i + 1 :] |= near[i, i + 1 :]
    return repeated


def _bridge(body_pos: Tensor, before: int, after: int, allowed_m: float) -> list[int]:
    """Fewest frames between ``before`` and ``after`` so that no step is longer than allowed.

    From each frame goes on to the farthest frame within reach, or to the next one.
    """
    kept, i = [], before
    while i < after:
        steps = (body_pos[i + 1 : after + 1] - body_pos[i]).norm(dim=-1).amax(-1)
        reach = (steps <= allowed_m).nonzero()
        i = i + 1 + (int(reach[-1]) if len(reach) else 0)
        if i < after:
            kept.append(i)
    return kept


def frames_to_keep(body_pos: Tensor, cfg: HesitationConfig) -> Tensor:
    """Indices of the frames that stay when hesitations are removed.

    Runs of ``min_run`` or more repeated frames go, except that at the cut no body may move further
    per frame than ``speedup_cap`` times its largest step in and around the run; where it would,
    as many frames stay as are needed. PARC has no such limit and speeds slow walks up twelvefold.

    Args:
        body_pos: (T, B, 3) metres, world.
        cfg: distance, run length and cap.

    Returns:
        (K,) long, increasing, the first frame always among them.
    """
    repeated = repeated_frames(body_pos, cfg.distance_m).tolist()
    steps = (body_pos[1:] - body_pos[:-1]).norm(dim=-1).amax(-1)
    keep: list[int] = []
    i, total = 0, len(body_pos)
    while i < total:
        end = i
        while end < total and repeated[end]:
            end += 1
        if end == i:
            keep.append(i)
            i += 1
            continue
        if end - i < cfg.min_run:
            keep.extend(range(i, end))
        elif end < total and math.isfinite(cfg.speedup_cap):
            near = steps[max(0, i - cfg.min_run) : end + cfg.min_run]
            keep.extend(_bridge(body_pos, i - 1, end, cfg.speedup_cap * float(near.max())))
        i = end
    return torch.tensor(keep, dtype=torch.long)


def remove_hesitation(
    clip: MotionClip, character: Character, cfg: HesitationConfig
) -> tuple[MotionClip, int]:
    """The clip without hesitations and the number of frames removed.

    Args:
        clip: motion of ``character``; its replay, if any, no longer fits and is dropped where
            frames go.
        character: for the body positions.
        cfg: settings; disabled returns the clip as it is.
    """
    if not cfg.enabled or clip.num_frames < 2:
        return clip, 0
    f = clip.frames
    body_pos, _ = fk_from_dof(character.skeleton, f.root_pos, f.root_rot, f.dof)
    keep = frames_to_keep(body_pos, cfg)
    removed = clip.num_frames - len(keep)
    if removed == 0:
        return clip, 0
    return replace(clip, frames=f[keep], replay=None), removed
