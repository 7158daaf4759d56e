"""Rest poses brought together: how each body lies on the joint that moves it, and the scale.

Both skeletons stand upright in their rest poses, but one may hold its arms level and the other let
them hang. What differs is computed from the directions of bones; no angle is written down by hand.
T frames, B bodies of the character.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from parc_ray.character import rotations as rot
from parc_ray.character.character import Character
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.character.skeleton import Skeleton
from parc_ray.data.retarget.roles import path_from_root
from parc_ray.data.retarget.source import SourceMotion
from parc_ray.errors import InputError

_SMALL = 1e-9


def rest_pose(skeleton: Skeleton) -> tuple[Tensor, Tensor]:
    """Positions (B, 3) m and rotations (B, 4) at zero dofs, root at the origin; float64."""
    zero = torch.zeros(skeleton.num_dofs + 3, dtype=torch.float64)
    return fk_from_dof(skeleton, zero[:3], _identity(), zero[3:])


def _identity() -> Tensor:
    return torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=torch.float64)


def turn_between(a: Tensor, b: Tensor) -> Tensor:
    """Smallest rotation (4,) that turns vector ``a`` (3,) to the direction of ``b`` (3,)."""
    a, b = a / a.norm(), b / b.norm()
    axis = torch.linalg.cross(a, b)
    sine, cosine = axis.norm(), a @ b
    if float(sine) < _SMALL:
        if float(cosine) > 0.0:
            return _identity().to(a)
        axis = torch.linalg.cross(a, torch.eye(3).to(a)[int(a.abs().argmin())])
        sine = sine * 0.0
    return rot.quat_from_axis_angle(axis / axis.norm(), torch.atan2(sine, cosine))


def mapped_children(skeleton: Skeleton, mapped: Mapping[int, int]) -> dict[int, list[int]]:
    """For each mapped body the mapped bodies next below it."""
    below: dict[int, list[int]] = {body: [] for body in mapped}
    for body in mapped:
        up = skeleton.parents[body]
        while up > 0 and up not in mapped:
            up = skeleton.parents[up]
        if body:
            below[max(up, 0)].append(body)
    return below


def heading_between(
    character: Character, mapped: Mapping[int, int], place: Tensor, source_place: Tensor
) -> float:
    """Angle (rad about z) from the character's heading at rest to the source's.

    From the vectors between the bodies of each left and right pair, in the plane, by least squares.
    """
    dot = cross = 0.0
    for body in mapped:
        other = character.mirror_bodies[body]
        if other <= body or other not in mapped:
            continue
        a = (place[body] - place[other])[:2]
        b = (source_place[mapped[body]] - source_place[mapped[other]])[:2]
        dot += float(a @ b)
        cross += float(a[0] * b[1] - a[1] * b[0])
    return math.atan2(cross, dot) if dot or cross else 0.0


def align_rest(
    source: SourceMotion,
    mapped: Mapping[int, int],
    character: Character,
    *,
    level_feet: bool = True,
) -> Tensor:
    """Constant rotations (B, 4) from joints to bodies: R_body(t) = R_joint(t) A_body.

    The trunk is turned about the vertical only (both stand upright), and so are the feet where
    the source's soles are level at rest. Limbs are turned by the smallest rotation, on top of that
    of the body above, that brings the bone's direction to the source's: twist is inherited, never
    guessed.

    Args:
        source: foreign motion, z up.
        mapped: joint of each mapped body.
        character: the target.
        level_feet: whether the source's soles are level at rest; else they are square to its
            shins, as the character's are.

    Returns:
        Rotations by body; identity for bodies that are not mapped.
    """
    place, turn = rest_pose(character.skeleton)
    source_place, source_turn = source.rest()
    heading = heading_between(character, mapped, place, source_place)
    upright = rot.yaw_quat(torch.tensor(heading, dtype=torch.float64))
    below = mapped_children(character.skeleton, mapped)
    above = {child: body for body, children in below.items() for child in children}
    world: dict[int, Tensor] = {}
    result = _identity().repeat(character.skeleton.num_bodies, 1)
    for body in sorted(mapped):
        middle = character.mirror_bodies[body] == body
        if middle or (level_feet and body in character.feet):
            world[body] = upright
        else:
            world[body] = _limb(body, world[above[body]], below, mapped, place, source_place)
        inverse = rot.quat_conj(source_turn[mapped[body]])
        result[body] = rot.quat_mul(inverse, rot.quat_mul(world[body], turn[body]))
    return result


def _limb(
    body: int,
    inherited: Tensor,
    below: Mapping[int, list[int]],
    mapped: Mapping[int, int],
    place: Tensor,
    source_place: Tensor,
) -> Tensor:
    """World rotation (4,) from the rest pose of one bone to that of the source."""
    if not below[body]:
        return inherited
    child = below[body][0]
    bone = rot.quat_rotate(inherited, place[child] - place[body])
    source_bone = source_place[mapped[child]] - source_place[mapped[body]]
    if float(bone.norm()) < _SMALL or float(source_bone.norm()) < _SMALL:
        return inherited
    return rot.quat_mul(turn_between(bone, source_bone), inherited)


def leg_tops(character: Character, mapped: Mapping[int, int]) -> dict[int, int]:
    """First mapped body (the thigh) of each leg whose foot is mapped, by foot."""
    tops = {}
    for foot in character.feet:
        path = [b for b in path_from_root(character.skeleton, foot) if b in mapped]
        if foot in mapped and len(path) > 1:
            tops[foot] = path[0]
    return tops


def leg_scale(source: SourceMotion, mapped: Mapping[int, int], character: Character) -> float:
    """Length of the character's legs per length of the source's, hip to ankle along the bones.

    Raises:
        InputError: no leg is mapped from top to foot, or the source's has no length.
    """
    own = foreign = 0.0
    for foot, top in leg_tops(character, mapped).items():
        path = path_from_root(character.skeleton, foot)
        bones = path[path.index(top) + 1 :]
        chain = source.chain(mapped[top], mapped[foot])
        if chain:
            own += float(character.skeleton.offsets[list(bones)].double().norm(dim=-1).sum())
            foreign += float(source.offsets[list(chain)].norm(dim=-1).sum())
    if not foreign > _SMALL:
        raise InputError(
            f"{source.name}: no leg from hip to ankle among the mapped joints; the scale needs "
            "one; map thigh and foot, or give scale as a number in the joint map"
        )
    return own / foreign
