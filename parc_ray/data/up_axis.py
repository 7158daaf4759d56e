"""Whether a motion was written with y up, told by what bears the body.

A body that moves on its feet stands still where it is lowest, most of the time. Read with the
wrong axis up it does not: its lowest point then travels along. So two shares of the frames are
compared: those in which a lowest point of the body rests in the motion as it is read (z up), and
those in which a flat sole rests and is lowest if it is read in one of the ways in which a motion
with y up might have been written (docs/design/data.md, Checks).

Legend: T frames, P surface points, K points of a sole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from parc_ray.character import rotations as rot
from parc_ray.character.character import Character
from parc_ray.character.surface import surface_points

LOW_M = 0.03
"""m above the lowest point of the body that still counts as lowest."""
SOLE_LOW_M = 0.04
"""m, the same for points of a sole, of which half must be so low."""
REST_M_S = 0.4
"""m/s, slower points rest."""
CERTAIN = 100.0
"""%, what ``y_up_gain`` says where the trunk points along y all the time."""
DOUBTFUL = 10.0
"""%, the most that ``y_up_gain`` says where no reading makes somebody who stands."""
STANDS = 0.4
"""Share of the frames with a standing foot from which a reading makes somebody who stands."""
_ALONG = math.cos(math.radians(45.0))
_ALL_THE_TIME = 0.95
_AS_WELL = 0.02
_SOLE_DEPTH_M = 0.005
_ABOUT_X = (math.sqrt(0.5), 0.0, 0.0, math.sqrt(0.5))
_CYCLIC = (0.5, 0.5, 0.5, 0.5)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A way in which a motion with y up may have been written."""

    name: str
    """What is turned, in words."""
    turn: tuple[float, float, float, float]
    """Quaternion xyzw that takes y to z; for ``swap`` it is not used."""
    how: Literal["world", "frames", "path", "swap"]
    """``world``: positions and rotations are to the axes of a world with y up. ``frames``: the
    root's own axes have y up too. ``path``: positions only. ``swap``: y and z of the positions
    were exchanged."""


READINGS: tuple[Reading, ...] = (
    Reading(name="positions and root rotations turned", turn=_ABOUT_X, how="world"),
    Reading(name="positions and axes of root rotations turned", turn=_ABOUT_X, how="frames"),
    Reading(name="positions and axes of root rotations turned", turn=_CYCLIC, how="frames"),
    Reading(name="positions turned", turn=_ABOUT_X, how="path"),
    Reading(name="positions turned", turn=_CYCLIC, how="path"),
    Reading(name="y and z of the positions exchanged", turn=_ABOUT_X, how="swap"),
)
"""The first of several that fit alike is taken."""


def sole_indices(character: Character) -> tuple[Tensor, ...]:
    """Indices (K,) of the lowest points of each foot among the full surface points."""
    points = surface_points(character, "full")
    soles: list[Tensor] = []
    for foot in character.feet:
        span = points.point_ranges[foot]
        height = points.offset[span, 2]
        soles.append(span.start + (height < height.min() + _SOLE_DEPTH_M).nonzero()[:, 0])
    return tuple(soles)


def borne_share(points: Tensor, fps: float) -> float:
    """Share of the frames in which a lowest point rests, 0 to 1; 0 for a single frame.

    Args:
        points: (T, P, 3) m, world, z up.
        fps: frames per second.
    """
    return _share(_bearing(points, fps) < REST_M_S)


def standing_share(points: Tensor, soles: Sequence[Tensor], fps: float) -> float:
    """Share of the frames in which half of a sole is lowest, and some of that rests, 0 to 1.

    Args:
        points: (T, P, 3) m, world, z up.
        soles: of ``sole_indices``.
        fps: frames per second.
    """
    return _share(_standing(points, soles, fps) < REST_M_S)


def _bearing(points: Tensor, fps: float) -> Tensor:
    """Speed (T - 1,) m/s of the slowest of the lowest points."""
    return _speed(points, fps).masked_fill(~_low(points, LOW_M), math.inf).amin(-1)


def _standing(points: Tensor, soles: Sequence[Tensor], fps: float) -> Tensor:
    """Speed (T - 1,) m/s of the slowest low point of a sole half of which is lowest; else inf."""
    low = _low(points, SOLE_LOW_M)
    slowest = points.new_full((len(low),), math.inf)
    for sole in soles:
        under = low[:, sole]
        flat = under.double().mean(-1, keepdim=True) >= 0.5
        speed = _speed(points[:, sole], fps).masked_fill(~(under & flat), math.inf)
        slowest = torch.minimum(slowest, speed.amin(-1))
    return slowest


def _speed(points: Tensor, fps: float) -> Tensor:
    return points.diff(dim=0).norm(dim=-1) * fps


def _low(points: Tensor, within: float) -> Tensor:
    """Which points (T - 1, P) lie at most ``within`` m above the lowest one of their frame."""
    height = points[:-1, :, 2]
    return height <= height.amin(-1, keepdim=True) + within


def _share(frames: Tensor) -> float:
    return float(frames.double().mean()) if len(frames) else 0.0


def y_up_gain(
    points: Tensor, soles: Sequence[Tensor], root_pos: Tensor, root_rot: Tensor, fps: float
) -> float:
    """By how many percent of the frames more the body is borne if y is taken for up, at least 0.

    Args:
        points: (T, P, 3) m, all surface points as read, z up.
        soles: of ``sole_indices``.
        root_pos: (T, 3) m.
        root_rot: (T, 4) xyzw.
        fps: frames per second.
    """
    return best_reading(points, soles, root_pos, root_rot, fps)[0]


def best_reading(
    points: Tensor, soles: Sequence[Tensor], root_pos: Tensor, root_rot: Tensor, fps: float
) -> tuple[float, Reading | None]:
    """The gain of ``y_up_gain``, and the reading that it is of; None where none is better.

    A frame counts for another reading where a sole rests in it and what bears the body as read is
    faster by more than what counts as rest: a foot that slides in both is no evidence. Who skates
    or only runs stands in few frames whatever is up, so little can be said of them.
    """
    bearing = _bearing(points, fps)
    rests = bearing < REST_M_S
    best, stood, chosen = 0.0, 0.0, None
    for reading, other in _read_again(points, root_pos, root_rot):
        standing = _standing(other, soles, fps)
        stands = standing < REST_M_S
        share = _share(stands)
        bears_as_well = share >= max(STANDS, _share(rests) - _AS_WELL)
        if reading.how == "world" and bears_as_well and _lies_along_y(root_rot):
            return CERTAIN, reading
        won = stands & ~rests & (bearing - standing > REST_M_S)
        gain = _share(won) - _share(rests & ~stands)
        if gain > best + (_AS_WELL if chosen else 0.0):
            best, stood, chosen = gain, share, reading
    gain = 100.0 * best
    return gain if stood >= STANDS else min(gain, DOUBTFUL), chosen


def _lies_along_y(root_rot: Tensor) -> bool:
    """Whether the trunk points along the y axis in nearly all frames."""
    up = rot.quat_rotate(root_rot, root_rot.new_tensor([0.0, 0.0, 1.0]).expand(len(root_rot), 3))
    return float((up[:, 1] > _ALONG).double().mean()) >= _ALL_THE_TIME


def _read_again(
    points: Tensor, root_pos: Tensor, root_rot: Tensor
) -> Iterator[tuple[Reading, Tensor]]:
    """The surface points (T, P, 3) under each reading."""
    offset = points - root_pos[:, None]
    own = rot.quat_rotate(rot.quat_conj(root_rot)[:, None].expand(*offset.shape[:2], 4), offset)
    for reading in READINGS:
        pos, quat = root_as_read(reading, root_pos, root_rot)
        turned = rot.quat_rotate(quat[:, None].expand(*own.shape[:2], 4), own)
        yield reading, turned + pos[:, None]


def root_as_read(reading: Reading, pos: Tensor, quat: Tensor) -> tuple[Tensor, Tensor]:
    """Root positions (T, 3) and rotations (T, 4) with z up."""
    if reading.how == "swap":
        return pos[:, [0, 2, 1]], quat
    turn = pos.new_tensor(reading.turn).expand(len(pos), 4)
    new = rot.quat_rotate(turn, pos)
    if reading.how == "path":
        return new, quat
    quat = rot.quat_mul(turn, quat)
    return new, quat if reading.how == "world" else rot.quat_mul(quat, rot.quat_conj(turn))
