"""What can be mended in a motion without guessing much, and what was changed.

``repair_motion`` works on what an importer read leniently (``raw.reading_to_repair``): frames that
are NaN or that jump away from their neighbours are interpolated, rotations by slerp. ``turn_up``
turns a motion that was written with y up. ``repair_floor`` moves a motion that hovers over its own
terrain, or stands in it, onto it. All return lines that say what they did; longer faults are
refused, because filling them would invent motion.

Legend: T frames, J joints, D dofs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from parc_ray.character import rotations as rot
from parc_ray.character.character import Character
from parc_ray.character.kinematics import dof_to_joint_rot, fk_from_dof, joint_rot_to_dof
from parc_ray.character.skeleton import Skeleton
from parc_ray.character.surface import place_points, sole_points, surface_points
from parc_ray.data.importers.raw import RawMotion
from parc_ray.data.up_axis import best_reading, root_as_read, sole_indices
from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip
from parc_ray.motion.resample import PARC_FPS

_EDGES = 2  # the good frames on both sides of a spike
_AXES = ("x", "y", "z")
_FLOOR_FRAMES = 5
_FLOOR_QUARTILES = (0.25, 0.5, 0.75)


@dataclass(frozen=True, kw_only=True)
class RepairConfig:
    """What counts as a fault that can be mended. Reasons: docs/design/data.md, Repair."""

    max_gap_s: float = 0.5
    """s, longest stretch without numbers that is interpolated."""
    spike_s: float = 0.04
    """s, longest jump away from the neighbours (one frame at 30 fps) that is interpolated."""
    spike_rad: float = 0.6
    """rad, least deviation of a joint or the root that counts as a jump."""
    spike_m: float = 0.15
    """m, least deviation of the root that counts as a jump."""
    spike_ratio: float = 3.0
    """Times by which the jump must exceed what the neighbours move among themselves."""
    range_rad: float = 0.5
    """rad beyond a joint's range from which a short excursion is a fault."""
    range_s: float = 0.1
    """s, longest such excursion that is interpolated."""
    floor_m: float = 0.03
    """m, least distance of resting soles from the terrain that is corrected."""
    floor_max_m: float = 1.0
    """m, greatest one."""
    floor_spread_m: float = 0.05
    """m, greatest interquartile range of that distance: more is no floor that is off as a whole."""
    rest_m_s: float = 0.3
    """m/s, soles slower than this rest."""

    def __post_init__(self) -> None:
        """All thresholds are positive."""
        for name, value in vars(self).items():
            if not value > 0.0:
                raise InputError(f"repair {name}: {value:g}; more than 0 is allowed; raise it")


@dataclass(frozen=True, eq=False)
class _Series:
    """Values over time that are filled alike: (T, K, n), bad where (T, K)."""

    label: str
    names: tuple[str, ...]
    values: Tensor
    bad: Tensor
    blend: Callable[[Tensor, Tensor, Tensor], Tensor]


def repair_motion(
    raw: RawMotion, character: Character, config: RepairConfig | None = None
) -> tuple[RawMotion, list[str]]:
    """Mend gaps and jumps of a motion.

    A joint without any number becomes zero where neither feet nor hands hang on it (the neck of a
    published walk). Labels and paths with NaN are dropped; contacts are then labelled anew.

    Args:
        raw: what an importer read within ``reading_to_repair``.
        character: whose motion it is.
        config: thresholds.

    Returns:
        The motion, the same object where nothing was wrong, and one line per change.

    Raises:
        InputError: a gap longer than ``max_gap_s``, or a joint or root without any number.
    """
    config = config or RepairConfig()
    if not len(raw.dof):
        return raw, []  # too short, as is said elsewhere
    skeleton = character.skeleton
    joints = dof_to_joint_rot(skeleton, raw.dof)
    bad_joints = ~torch.isfinite(joints).all(-1)
    joints, bad_joints, notes = _empty_joints(joints, bad_joints, character)
    zeroed = bool(notes)
    outside = _range_spikes(raw.dof, skeleton, raw.fps, config)
    names = tuple(skeleton.body_names[1:])
    bad_roots = ~torch.isfinite(raw.root_rot).all(-1, keepdim=True)
    position = _Series(
        "root position", _AXES, raw.root_pos[..., None], ~torch.isfinite(raw.root_pos), _lerp
    )
    rotation = _Series("root rotation", ("",), raw.root_rot[:, None], bad_roots, rot.slerp)
    moving = _Series("joint", names, joints, bad_joints | outside, rot.slerp)
    filled: list[Tensor] = []
    changed: list[Tensor] = []
    for series, least in (
        (position, config.spike_m),
        (rotation, config.spike_rad),
        (moving, config.spike_rad),
    ):
        values, bad, lines = _mend(series, least, raw.fps, config)
        filled.append(values)
        changed.append(bad)
        notes += lines
    raw, dropped = _without_bad_labels(raw)
    notes += dropped
    if not zeroed and not any(bool(bad.any()) for bad in changed):
        return raw, notes
    mask = _dofs_of(changed[2], skeleton) | ~torch.isfinite(raw.dof)
    dof = torch.where(mask, joint_rot_to_dof(skeleton, filled[2]), raw.dof)
    mended = replace(raw, root_pos=filled[0][..., 0], root_rot=filled[1][:, 0], dof=dof)
    return mended, notes


def _lerp(a: Tensor, b: Tensor, weight: Tensor) -> Tensor:
    return torch.lerp(a, b, weight[..., None].to(a))


def _dofs_of(joints: Tensor, skeleton: Skeleton) -> Tensor:
    """From a mask of joints (T, J) to one of their degrees of freedom (T, D)."""
    mask = torch.zeros(len(joints), skeleton.num_dofs, dtype=torch.bool)
    for body, columns in enumerate(skeleton.dof_slices):
        if body:
            mask[:, columns] = joints[:, body - 1, None]
    return mask


def _without_bad_labels(raw: RawMotion) -> tuple[RawMotion, list[str]]:
    """Contacts and path nodes go where they hold NaN."""
    notes: list[str] = []
    if raw.contacts is not None and not bool(torch.isfinite(raw.contacts).all()):
        raw = replace(raw, contacts=None)
        notes.append("contacts with NaN dropped and labelled by touch")
    if raw.path_nodes is not None and not bool(torch.isfinite(raw.path_nodes).all()):
        raw = replace(raw, path_nodes=None)
        notes.append("path nodes with NaN dropped")
    return raw, notes


def _empty_joints(
    joints: Tensor, bad: Tensor, character: Character
) -> tuple[Tensor, Tensor, list[str]]:
    """Joints (T, J, 4) that have no number at all become the identity, where that is harmless."""
    notes: list[str] = []
    skeleton = character.skeleton
    limbs = set(character.feet) | set(character.hands)
    for joint in bad.all(0).nonzero()[:, 0].tolist():
        name = skeleton.body_names[joint + 1]
        if limbs & _subtree(skeleton, joint + 1):
            raise InputError(
                f"joint {name}: no frame has numbers; feet or hands hang on it, so it is not set "
                "to zero; export the motion again with this joint"
            )
        joints, bad = joints.clone(), bad.clone()
        joints[:, joint] = joints.new_tensor([0.0, 0.0, 0.0, 1.0])
        bad[:, joint] = False
        notes.append(f"joint {name} without numbers set to zero")
    return joints, bad, notes


def _subtree(skeleton: Skeleton, body: int) -> set[int]:
    inside = {body}
    for child, parent in enumerate(skeleton.parents):
        if parent in inside:
            inside.add(child)
    return inside


def _range_spikes(dof: Tensor, skeleton: Skeleton, fps: float, config: RepairConfig) -> Tensor:
    """Joints (T, J) that leave their range by much and come back soon."""
    low, high = skeleton.dof_limits.to(dof).unbind(-1)
    beyond = (torch.maximum(low - dof, dof - high) > config.range_rad) & torch.isfinite(dof)
    joints = torch.stack(
        [beyond[:, columns].any(-1) for columns in skeleton.dof_slices[1:]], dim=-1
    )
    return joints & (_run_lengths(joints) <= max(1, round(config.range_s * fps)))


def _run_lengths(mask: Tensor) -> Tensor:
    """For each True of (T, K) the length of the run of Trues it belongs to, 0 elsewhere."""
    start = mask & ~torch.cat((torch.zeros_like(mask[:1]), mask[:-1]))
    run = torch.cumsum(start, 0) * mask
    sizes = torch.zeros(int(run.max()) + 1, mask.shape[1], dtype=torch.long)
    sizes.scatter_add_(0, run, mask.long())
    return sizes.gather(0, run) * mask


def _mend(
    series: _Series, least: float, fps: float, config: RepairConfig
) -> tuple[Tensor, Tensor, list[str]]:
    """Filled values (T, K, n), the places (T, K) that were filled, and what to say of it."""
    gaps = series.bad
    if bool(gaps.all(0).any()):
        name = series.names[int(gaps.all(0).long().argmax())]
        what = f"{series.label} {name}".strip()
        raise InputError(f"{what}: no frame has numbers; export the motion again")
    longest = int(_run_lengths(gaps).max())
    if longest > config.max_gap_s * fps:
        which = int(_run_lengths(gaps).amax(0).argmax())
        what = f"{series.label} {series.names[which]}".strip()
        raise InputError(
            f"{what}: no usable numbers in {longest} frames in a row ({longest / fps:.2f} s); gaps "
            f"of up to {config.max_gap_s:g} s are interpolated; cut the motion there"
        )
    values = _fill(series, gaps) if bool(gaps.any()) else series.values
    spikes = _spikes(values, series.blend, least, fps, config)
    notes = _say(series, gaps, "interpolated") + _say(series, spikes & ~gaps, "jumps smoothed")
    if bool(spikes.any()):
        values = _fill(replace(series, values=values), spikes)
    return values, gaps | spikes, notes


def _say(series: _Series, where: Tensor, what: str) -> list[str]:
    return [
        f"{f'{series.label} {name}'.strip()}: {int(count)} frames {what}"
        for name, count in zip(series.names, where.sum(0).tolist(), strict=True)
        if count
    ]


def _fill(series: _Series, bad: Tensor) -> Tensor:
    """Values with the ``bad`` (T, K) ones between their nearest good neighbours; ends are held."""
    count = len(bad)
    at = torch.arange(count)[:, None].expand_as(bad)
    before = torch.where(bad, -1, at).cummax(0).values
    after = torch.where(bad, count, at).flip(0).cummin(0).values.flip(0)
    left = torch.where(before < 0, after, before)
    right = torch.where(after >= count, before, after)
    weight = (at - left).double() / (right - left).clamp(min=1).double()
    channel = torch.arange(bad.shape[1]).expand_as(bad)
    a, b = series.values[left, channel], series.values[right, channel]
    return torch.where(bad[..., None], series.blend(a, b, weight.to(a)), series.values)


def _spikes(
    values: Tensor,
    blend: Callable[[Tensor, Tensor, Tensor], Tensor],
    least: float,
    fps: float,
    config: RepairConfig,
) -> Tensor:
    """Places (T, K) that jump away while the frames on both sides agree."""
    count = len(values)
    found = torch.zeros(values.shape[:2], dtype=torch.bool)
    for width in range(1, max(1, round(config.spike_s * fps)) + 1):
        if count < width + _EDGES:
            break
        a, b = values[: count - width - 1], values[width + 1 :]
        apart = _distance(a, b)
        inner = []
        for step in range(1, width + 1):
            weight = a.new_full(a.shape[:2], step / (width + 1))
            off = _distance(values[step : step + len(a)], blend(a, b, weight))
            inner.append((off > least) & (off > config.spike_ratio * apart))
        jump = torch.stack(inner).all(0)
        for step in range(1, width + 1):
            found[step : step + len(a)] |= jump
    return found


def _distance(a: Tensor, b: Tensor) -> Tensor:
    """Angle between quaternions, distance between positions (..., n)."""
    return rot.quat_angle(a, b) if a.shape[-1] == 4 else (a - b).norm(dim=-1)


@torch.no_grad()
def turn_up(raw: RawMotion, character: Character, limit: float) -> tuple[RawMotion, list[str]]:
    """Turn a motion with y up to z up.

    Args:
        raw: a motion without NaN; one with a terrain of its own is left alone.
        character: whose motion it is.
        limit: gain of ``up_axis.y_up_gain`` (%) beyond which it is turned.

    Returns:
        The motion, the same object where nothing was wrong, and one line on what was done.
    """
    if raw.terrain is not None or len(raw.dof) <= _EDGES:
        return raw, []
    step = max(1, round(raw.fps / PARC_FPS))
    pos, quat = raw.root_pos[::step], raw.root_rot[::step]
    bodies = fk_from_dof(character.skeleton, pos, quat, raw.dof[::step])
    points = place_points(surface_points(character, "full"), *bodies)
    soles = sole_indices(character)
    gain, reading = best_reading(points, soles, pos, quat, raw.fps / step)
    if reading is None or gain <= limit:
        return raw, []
    pos, quat = root_as_read(reading, raw.root_pos, raw.root_rot)
    turned = replace(raw, root_pos=pos, root_rot=rot.quat_positive(quat))
    return turned, [f"y was up, z is now: {reading.name}"]


@torch.no_grad()
def repair_floor(
    clip: MotionClip, character: Character, config: RepairConfig | None = None
) -> tuple[MotionClip, list[str]]:
    """Move a motion vertically so that its resting soles lie on its terrain.

    Args:
        clip: a clip with the terrain that belongs to it.
        character: whose motion it is.
        config: thresholds.

    Returns:
        The clip and a line on the move; the clip itself where soles rest on the ground already,
        hardly rest, or rest at different distances from it.
    """
    config = config or RepairConfig()
    frames = clip.frames
    bodies = fk_from_dof(character.skeleton, frames.root_pos, frames.root_rot, frames.dof)
    points = sole_points(character)
    placed = place_points(points, *bodies)
    above = placed[..., 2] - clip.terrain.height_at(placed[..., :2])
    speed = placed.diff(dim=0).norm(dim=-1) * clip.fps
    rests = []
    for foot in character.feet:
        span = points.point_ranges[foot]
        resting = speed[:, span].amin(-1) < config.rest_m_s
        rests.append(above[:-1, span].amin(-1)[resting])
    distance = torch.cat(rests)
    if len(distance) < _FLOOR_FRAMES:
        return clip, []
    low, middle, high = torch.quantile(distance, distance.new_tensor(_FLOOR_QUARTILES)).tolist()
    within = config.floor_m < abs(middle) <= config.floor_max_m
    if not within or high - low > config.floor_spread_m:
        return clip, []
    down = frames.root_pos.new_tensor([0.0, 0.0, -middle])
    moved = replace(frames, root_pos=frames.root_pos + down)
    return replace(clip, frames=moved), [f"motion moved by {-middle:+.3f} m onto its terrain"]
