"""Figures of a recording frame by frame, so that a refusal can say where it went wrong.

Everything follows from two stored clips, the recording and the kinematic motion it follows; nothing
is simulated. Legend: T frames, B bodies, D dofs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from parc_ray.character.character import Character
from parc_ray.character.kinematics import dof_to_joint_rot, forward_kinematics
from parc_ray.character.rotations import quat_angle
from parc_ray.character.surface import place_points, surface_points
from parc_ray.evaluation.metrics import JERK_LIMIT, joint_jerk
from parc_ray.motion.clip import MotionClip
from parc_ray.terrain.distance import penetration_depth
from parc_ray.terrain.heightfield import HeightfieldBatch


@dataclass(frozen=True, kw_only=True)
class FrameMeasures:
    """What a recording is judged by, one number per frame.

    Attributes:
        body_m: (T,) mean world distance of the bodies to the reference, m.
        local_m: (T,) the same relative to the root, m.
        root_m: (T,) root distance to the reference, m.
        root_rad, joint_rad: (T,) root angle, and mean angle of the joints, rad.
        hits, misses: (T,) bodies that touch in both motions, and in one of them alone.
        agreement: (T,) share of bodies with equal contact labels.
        depth_m: (T,) depth of the deepest surface point below the terrain, m.
        jerk: (T,) greatest jerk of a body, m/s^3, 0 in the first and the last frames, where it
            is not defined.
        saturation: (T,) share of actuators whose target, at the end of a control step, still asks
            for more than their greatest torque; 0 in frame 0.
        slide_mps: (T,) mean speed of planted feet since the frame before, m/s; NaN where no foot
            is planted.
    """

    body_m: Tensor
    local_m: Tensor
    root_m: Tensor
    root_rad: Tensor
    joint_rad: Tensor
    hits: Tensor
    misses: Tensor
    agreement: Tensor
    depth_m: Tensor
    jerk: Tensor
    saturation: Tensor
    slide_mps: Tensor

    def figures(self) -> dict[str, float]:
        """Means and extremes under the names that recordings are stored with.

        Errors are means over the frames after the first, which is the reference's own.
        """
        hits, misses = float(self.hits.sum()), float(self.misses.sum())
        planted = self.slide_mps[~self.slide_mps.isnan()]
        return {
            "body_local_m": float(self.local_m[1:].mean()),
            "body_global_m": float(self.body_m[1:].mean()),
            "root_pos_m": float(self.root_m[1:].mean()),
            "root_rot_rad": float(self.root_rad[1:].mean()),
            "joint_rad": float(self.joint_rad[1:].mean()),
            "root_max_m": float(self.root_m.max()),
            "contact_agreement": float(self.agreement.mean()),
            "contact_f1": 2.0 * hits / (2.0 * hits + misses) if hits + misses else 1.0,
            "deepest_m": float(self.depth_m.mean()),
            "high_jerk_share": float((self.jerk[1:-2] > JERK_LIMIT).float().mean())
            if len(self.jerk) > 3
            else 0.0,
            "torque_saturation": float(self.saturation[1:].mean()),
            "slide_mps": float(planted.mean()) if len(planted) else 0.0,
        }


def measure(
    clip: MotionClip, source: MotionClip, start: int, character: Character
) -> FrameMeasures:
    """Measure a recording.

    Args:
        clip: a recording.
        source: the kinematic motion that it follows.
        start: frame of the source that the recording starts at.
        character: the character.

    Raises:
        ValueError: ``clip`` is no recording.
    """
    if clip.replay is None:
        raise ValueError(f"clip {clip.clip_id!r} is kinematic; only recordings follow a source")
    mine, theirs = clip.frames, source.frames.time(start, start + clip.num_frames)
    turns = [dof_to_joint_rot(character.skeleton, f.dof) for f in (mine, theirs)]
    placed = [
        forward_kinematics(character.skeleton, f.root_pos, f.root_rot, joint_rot)
        for f, joint_rot in zip((mine, theirs), turns, strict=True)
    ]
    offset = placed[0][0] - clip.replay.offset - placed[1][0]
    a, b = mine.contacts > 0.5, theirs.contacts > 0.5
    bodies = surface_points(character, "full")
    points = place_points(bodies, *placed[0])
    terrain = HeightfieldBatch.stack([clip.terrain])
    feet = [points[:, bodies.point_ranges[f]] for f in character.feet]
    return FrameMeasures(
        body_m=offset.norm(dim=-1).mean(-1),
        local_m=(offset - offset[:, :1]).norm(dim=-1).mean(-1),
        root_m=offset[:, 0].norm(dim=-1),
        root_rad=quat_angle(mine.root_rot, theirs.root_rot),
        joint_rad=quat_angle(*turns).mean(-1),
        hits=(a & b).sum(-1),
        misses=(a ^ b).sum(-1),
        agreement=(a == b).float().mean(-1),
        depth_m=penetration_depth(points[None], terrain, exact=True)[0].amax(-1),
        jerk=_jerk(placed[0][0], clip.fps),
        saturation=_saturation(clip, character),
        slide_mps=_slide(feet, a[:, list(character.feet)], clip.fps),
    )


def _jerk(body_pos: Tensor, fps: float) -> Tensor:
    """Greatest jerk (T,) of bodies (T, B, 3): the third difference at frame k is of k-1 to k+2."""
    out = body_pos.new_zeros(len(body_pos))
    if len(body_pos) > 3:
        out[1:-2] = joint_jerk(body_pos, fps).amax(-1)
    return out


def _saturation(clip: MotionClip, character: Character) -> Tensor:
    """Share (T,) of actuators that still want more than their limit when a step ends."""
    out = clip.frames.dof.new_zeros(clip.num_frames)
    if clip.replay is not None:
        wanted = character.kp * (clip.replay.pd_targets - clip.frames.dof[1:])
        out[1:] = (wanted.abs() > character.effort).float().mean(-1)
    return out


def _slide(feet: list[Tensor], contacts: Tensor, fps: float) -> Tensor:
    """Mean speed (T,) of feet that are planted now and before; NaN where none is.

    Args:
        feet: points (T, P, 3) of each foot; the slowest point counts, so that rolling is no slide.
        contacts: (T, F) bool.
        fps: frames per second.
    """
    speed = torch.stack([f.diff(dim=0).norm(dim=-1).amin(-1) for f in feet], dim=-1) * fps
    both = contacts[1:] & contacts[:-1]
    mean = (speed * both).sum(-1) / both.sum(-1)  # 0 / 0 is NaN
    return torch.cat((mean.new_full((1,), torch.nan), mean))
