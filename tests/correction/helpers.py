"""Kinematic clips and recordings of them, made without a simulator."""

from __future__ import annotations

from dataclasses import replace

import torch

from parc_ray.character.character import Character
from parc_ray.correction.outcome import Outcome
from parc_ray.motion.clip import MotionClip, Replay
from tests.envs.helpers import sway_clip

OFFSET = torch.tensor([1.0, -2.0, 0.5])


def recording_of(
    source: MotionClip,
    character: Character,
    *,
    first: int = 0,
    last: int | None = None,
    shift: tuple[float, float, float] = (0.0, 0.0, 0.0),
) -> MotionClip:
    """Frames ``first`` to ``last`` of a clip, moved by ``shift`` (m) after the first frame."""
    stop = source.num_frames if last is None else last + 1
    frames = source.frames.time(first, stop).clone()
    frames.root_pos[1:] += torch.tensor(shift)
    frames.root_pos += OFFSET
    replay = Replay(
        root_pos=frames.root_pos[0] - OFFSET,
        root_rot=frames.root_rot[0],
        root_lin_vel=torch.zeros(3),
        root_ang_vel=torch.zeros(3),
        dof_pos=frames.dof[0],
        dof_vel=torch.zeros_like(frames.dof[0]),
        pd_targets=frames.dof[1:],
        boxes=torch.zeros(1, 6),
        offset=OFFSET,
        backend="none",
        model_hash="",
    )
    terrain = source.terrain.translated(OFFSET)
    return replace(
        source, clip_id=f"{source.clip_id}_rec", frames=frames, terrain=terrain, replay=replay
    )


def outcome_of(
    character: Character,
    frames: int = 46,
    *,
    first: int = 0,
    last: int | None = None,
    shift: tuple[float, float, float] = (0.0, 0.0, 0.0),
) -> tuple[Outcome, MotionClip]:
    """An outcome that nobody has judged, and its source."""
    source = sway_clip(character, frames)
    clip = recording_of(source, character, first=first, last=last, shift=shift)
    end = first + clip.num_frames - 1
    outcome = Outcome(
        source_id=source.clip_id,
        clip=clip,
        corrector="tracker",
        whole=first == 0 and end == source.num_frames - 1,
        start_frame=first,
        end_frame=end,
    )
    return outcome, source
