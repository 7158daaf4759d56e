"""From a foreign skeleton to a character: rest poses aligned, joints mapped, ends held by IK."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from parc_ray.character import rotations as rot
from parc_ray.character.character import Character
from parc_ray.character.kinematics import dof_to_joint_rot, fk_from_dof, joint_rot_to_dof
from parc_ray.character.skeleton import Skeleton
from parc_ray.data.importers.raw import RawMotion
from parc_ray.data.retarget.align import align_rest, leg_scale
from parc_ray.data.retarget.ik import IkProblem, solve
from parc_ray.data.retarget.jacobian import Kinematics
from parc_ray.data.retarget.joint_map import JointMap
from parc_ray.data.retarget.mapping import MappedPose, map_pose
from parc_ray.data.retarget.source import TO_Z_UP, SourceMotion
from parc_ray.data.retarget.targets import held_targets
from parc_ray.errors import InputError

_LIMIT_SLACK = 1e-4
_FURTHEST_M = 1e5


@dataclass(frozen=True, kw_only=True)
class RetargetConfig:
    """What counts as equally bad in inverse kinematics, and how it is solved."""

    ankle_m: float = 0.003
    """m, distance of a foot from its place."""
    wrist_m: float = 0.02
    """m, distance of a hand from its place: arms of another length give way to the pose."""
    foot_rad: float = 0.1
    """rad, turn of a foot away from the mapped one."""
    trunk_rad: float = 0.2
    """rad, the same for root, torso and head."""
    limb_rad: float = 0.5
    """rad, the same for the bones of limbs."""
    stay_rad: float = 1.0
    """rad, change of one degree of freedom."""
    root_m: float = 0.05
    """m, shift of the root from where the hips are those of the source."""
    root_rad: float = 1.0
    """rad, turn of the root."""
    smooth_m_s2: float = 5.0
    """m/s^2, acceleration of the root's shift."""
    smooth_rad_s2: float = 60.0
    """rad/s^2, acceleration of a joint's change."""
    iterations: int = 20
    """Most Gauss-Newton steps."""
    tolerance: float = 1e-3
    """Relative decrease of the cost below which the steps end."""
    part_frames: int = 512
    """Frames solved at once; longer motions are solved part by part."""
    overlap_frames: int = 32
    """Frames over which two parts are blended."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        for entry in fields(self):
            value = getattr(self, entry.name)
            if not 0.0 < value < math.inf:
                raise InputError(f"{entry.name}: {value}; a number > 0 is allowed; correct it")
        if self.part_frames <= 2 * self.overlap_frames:
            raise InputError(
                f"part_frames: {self.part_frames}; more than twice overlap_frames "
                f"({self.overlap_frames}) is allowed; use 512 and 32"
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class RetargetedFrames:
    """Frames of the character at the source's rate."""

    root_pos: Tensor
    """(T, 3) float64 m."""
    root_rot: Tensor
    """(T, 4) float64 xyzw, unit."""
    dof: Tensor
    """(T, D) float64 rad."""


@dataclass(frozen=True, kw_only=True)
class RetargetReport:
    """How well a motion fits; what :meth:`metrics` gives is stored with the clip."""

    scale: float
    """Metres of the result per unit of the source."""
    ankle_mean_m: float
    """m, mean distance of the feet's joints from the scaled source."""
    ankle_max_m: float
    """m, greatest such distance."""
    wrist_mean_m: float
    """m, the same for hands, from the places of ``targets.py``; 0 for characters without."""
    wrist_max_m: float
    """m, greatest such distance."""
    limit_share: float
    """Share of degrees of freedom times frames beyond their range (by more than 1e-4 rad)."""

    def metrics(self) -> dict[str, float]:
        """Figures by name, as they stand in the clip's metrics."""
        return {
            "retarget_scale": self.scale,
            "retarget_ankle_mean_m": self.ankle_mean_m,
            "retarget_ankle_max_m": self.ankle_max_m,
            "retarget_wrist_mean_m": self.wrist_mean_m,
            "retarget_wrist_max_m": self.wrist_max_m,
            "retarget_limit_share": self.limit_share,
        }


def retarget(
    source: SourceMotion,
    joint_map: JointMap,
    character: Character,
    config: RetargetConfig | None = None,
) -> tuple[RetargetedFrames, RetargetReport]:
    """Put a foreign motion onto a character.

    Rest poses are aligned bone by bone, the path and all places are scaled by the length of the
    legs, bodies turn as the joints they are mapped to, and inverse kinematics over all frames
    brings ankles and wrists to their places (``targets.py``) within the joint ranges.

    Args:
        source: the foreign motion, z up.
        joint_map: joints to bodies.
        character: the target.
        config: weights; the defaults serve people of any size.

    Returns:
        Frames at the source's rate, and how well they fit.

    Raises:
        InputError: joints are missing, or no scale can be found.
    """
    config = config or RetargetConfig()
    mapped = joint_map.resolve(source.joint_names, character, source.name)
    source = _with_rest(source, joint_map)
    scale = joint_map.scale
    if scale is None:
        scale = leg_scale(source, mapped, character)
    align = align_rest(source, mapped, character, level_feet=joint_map.feet == "ground")
    held = torch.tensor(joint_map.held(character, mapped), dtype=torch.long)
    kinematics = Kinematics.of(character.skeleton)
    place, turn = source.forward()
    place = _within_reach(place * scale, source.name)
    pose = map_pose(place, turn, align, mapped, character)
    target = held_targets(place, pose, held, mapped, character, source.fps)
    problem = _problem(pose, held, target, mapped, character, config, source.fps)
    x = _solve_in_parts(kinematics, problem, config)
    root_rot = rot.quat_mul(problem.reference_rot, rot.quat_from_exp(x[:, 3:6]))
    frames = RetargetedFrames(
        root_pos=x[:, :3],
        root_rot=rot.quat_positive(rot.quat_normalize(root_rot)),
        dof=joint_rot_to_dof(
            character.skeleton, dof_to_joint_rot(character.skeleton, x[:, 6:].contiguous())
        ),
    )
    return frames, _report(frames, held, target, scale, character)


def _within_reach(place: Tensor, name: str) -> Tensor:
    """``place`` (T, J, 3) m, if it is somewhere on this world."""
    furthest = float(place.abs().max())
    if not furthest < _FURTHEST_M:
        raise InputError(
            f"{name}: joints up to {furthest:.3g} m from the origin once scaled; below "
            f"{_FURTHEST_M:g} m are allowed; positions or bones are damaged or in another unit"
        )
    return place


def _with_rest(source: SourceMotion, joint_map: JointMap) -> SourceMotion:
    """``source`` with the upright pose that the joint map describes (axes of the file)."""
    if not joint_map.rest:
        return source
    vectors = torch.zeros(len(source.joint_names), 3, dtype=torch.float64)
    for joint, degrees in joint_map.rest.items():
        if joint not in source.joint_names:
            raise InputError(
                f"{source.name}: no joint {joint!r} for rest of joint map {joint_map.name}; joints "
                f"are {', '.join(source.joint_names[:8])}, ...; correct the map"
            )
        vectors[source.index(joint)] = torch.deg2rad(torch.tensor(degrees, dtype=torch.float64))
    turn = source.offsets.new_tensor(TO_Z_UP[joint_map.up])
    return replace(source, rest_rot=rot.quat_from_exp(rot.quat_rotate(turn, vectors)))


def _problem(
    pose: MappedPose,
    held: Tensor,
    target: Tensor,
    mapped: Mapping[int, int],
    character: Character,
    config: RetargetConfig,
    fps: float,
) -> IkProblem:
    """The inverse kinematics of a mapped pose."""
    skeleton = character.skeleton
    rest = pose.root_pos.new_zeros(len(target), 3)
    start = torch.cat((pose.root_pos, rest, pose.dof), dim=1)
    bounds = start.new_full((2, start.shape[1]), math.inf)
    bounds[0] = -math.inf
    bounds[:, 6:] = skeleton.dof_limits.double().T
    turned = torch.tensor([b for b in mapped if skeleton.joint_kinds[b] != "fixed"])
    is_hand = [int(b) in character.hands for b in held]
    held_sigma = [config.wrist_m if hand else config.ankle_m for hand in is_hand]
    turn_sigma = [
        config.foot_rad if int(b) in character.feet
        else config.trunk_rad if character.mirror_bodies[int(b)] == int(b)
        else config.limb_rad
        for b in turned
    ]  # fmt: skip
    dofs = skeleton.num_dofs
    stay = [config.root_m] * 3 + [config.root_rad] * 3 + [config.stay_rad] * dofs
    smooth = [config.smooth_m_s2] * 3 + [config.smooth_rad_s2] * (3 + dofs)
    return IkProblem(
        reference_rot=pose.root_rot,
        start=start,
        bounds=bounds,
        balls=_balls(skeleton),
        held=held,
        target=target,
        held_weight=_inverse_square(held_sigma),
        turned=turned,
        wanted_rot=pose.wanted_rot[:, turned],
        turned_weight=_inverse_square(turn_sigma),
        stay_weight=_inverse_square(stay),
        smooth_weight=_inverse_square([s / fps**2 for s in smooth]),
    )


def _balls(skeleton: Skeleton) -> Tensor:
    """Coordinates (S, 3) of the ball joints whose ranges include zero."""
    limits = skeleton.dof_limits
    rows = [
        list(range(6 + dofs.start, 6 + dofs.stop))
        for kind, dofs in zip(skeleton.joint_kinds, skeleton.dof_slices, strict=True)
        if kind == "spherical" and bool((limits[dofs, 0] <= 0).all() & (limits[dofs, 1] >= 0).all())
    ]
    return torch.tensor(rows, dtype=torch.long).reshape(-1, 3)


def _inverse_square(sigma: Sequence[float]) -> Tensor:
    return torch.tensor(sigma, dtype=torch.float64).pow(-2)


def _solve_in_parts(kinematics: Kinematics, problem: IkProblem, config: RetargetConfig) -> Tensor:
    """Coordinates (T, N), part by part so that memory stays bounded; overlaps are blended."""
    total, overlap = len(problem.start), config.overlap_frames
    result = problem.start.clone()
    begin = 0
    while begin < total:
        end = min(begin + config.part_frames, total)
        if total - end < overlap:
            end = total
        part = slice(max(begin - overlap, 0), end)
        x = solve(kinematics, problem.part(part), config.iterations, config.tolerance)
        shared = begin - part.start
        if shared:
            weight = torch.linspace(0.0, 1.0, shared + 2, dtype=x.dtype)[1:-1, None]
            x[:shared] = torch.lerp(result[part.start : begin], x[:shared], weight)
        result[part] = x
        begin = end
    return result


def _report(
    frames: RetargetedFrames, held: Tensor, target: Tensor, scale: float, character: Character
) -> RetargetReport:
    """Distances of held bodies from their places, and joint ranges, of the final frames."""
    pos, _ = fk_from_dof(character.skeleton, frames.root_pos, frames.root_rot, frames.dof)
    miss = (pos[:, held] - target).norm(dim=-1)

    def figures(bodies: tuple[int, ...]) -> tuple[float, float]:
        chosen = miss[:, [int(b) in bodies for b in held]]
        return (float(chosen.mean()), float(chosen.max())) if chosen.numel() else (0.0, 0.0)

    ankle, wrist = figures(character.feet), figures(character.hands)
    limits = character.skeleton.dof_limits.double()
    out = (frames.dof < limits[:, 0] - _LIMIT_SLACK) | (frames.dof > limits[:, 1] + _LIMIT_SLACK)
    return RetargetReport(
        scale=scale,
        ankle_mean_m=ankle[0],
        ankle_max_m=ankle[1],
        wrist_mean_m=wrist[0],
        wrist_max_m=wrist[1],
        limit_share=float(out.double().mean()),
    )


def retarget_raw(
    source: SourceMotion,
    joint_map: JointMap,
    character: Character,
    *,
    format_name: str,
    licence: str = "unknown",
) -> RawMotion:
    """What an importer returns: the retargeted motion with its report as metrics.

    Args:
        source: motion of the file, in the axes of the file; ``joint_map.up`` tells which is up.
        joint_map: joints to bodies.
        character: the target.
        format_name: for the provenance.
        licence: licence of the data.
    """
    frames, report = retarget(source.converted(joint_map.up), joint_map, character)
    return RawMotion(
        root_pos=frames.root_pos,
        root_rot=frames.root_rot,
        dof=frames.dof,
        fps=source.fps,
        loop="clamp",
        source=format_name,
        licence=licence,
        metrics=report.metrics(),
    )
