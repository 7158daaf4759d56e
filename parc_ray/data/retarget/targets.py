"""Where inverse kinematics holds feet and hands.

Feet go where the scaled source has them, so that they stand where it stands. Hands follow the arm:
they keep their place relative to the shoulder, in proportion to the arm's length, as trunks differ
in height. But while hands bear the body (they are slow and no foot is), they too go to the scaled
source's places, as what they hold on to was scaled with the path.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from scipy.ndimage import gaussian_filter1d, maximum_filter1d
from torch import Tensor

from parc_ray.character.character import Character
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.data.retarget.mapping import MappedPose
from parc_ray.data.retarget.roles import path_from_root

_SLOW_M_S = 0.5
_GRIP_S = 0.1
_SMALL = 1e-6


def held_targets(
    place: Tensor,
    pose: MappedPose,
    held: Tensor,
    mapped: Mapping[int, int],
    character: Character,
    fps: float,
) -> Tensor:
    """Places (T, K, 3) m of the bodies ``held`` (K,).

    Args:
        place: (T, J, 3) m, scaled positions of the source's joints.
        pose: the mapped pose.
        held: bodies.
        mapped: joint of each mapped body.
        character: the target.
        fps: frames per second.
    """
    skeleton = character.skeleton
    target = place[:, [mapped[int(b)] for b in held]].clone()
    own, _ = fk_from_dof(skeleton, pose.root_pos, pose.root_rot, pose.dof)
    feet = [mapped[b] for b in character.feet if b in mapped]
    for k, hand in enumerate(held.tolist()):
        path = path_from_root(skeleton, hand)
        arm = [b for b in path if b in mapped and character.mirror_bodies[b] != b]
        if hand not in character.hands or len(arm) < 2:
            continue
        reach = place[:, mapped[hand]] - place[:, mapped[arm[0]]]
        size = _length(place, [mapped[b] for b in arm])
        if size < _SMALL:
            continue
        free = own[:, arm[0]] + reach * (_length(own, arm) / size)
        grip = bearing(place[:, mapped[hand]], place[:, feet], fps)[:, None]
        target[:, k] = torch.lerp(free, target[:, k], grip)
    return target


def _length(place: Tensor, joints: list[int]) -> float:
    """Mean length of the chain through ``joints``."""
    return float(place[:, joints].diff(dim=1).norm(dim=-1).sum(-1).mean())


def bearing(hand: Tensor, feet: Tensor, fps: float) -> Tensor:
    """How much a hand (T, 3) bears the body, (T,) in [0, 1], smooth over time.

    It does where it is slow and none of the ``feet`` (T, F, 3) is.
    """
    if not feet.shape[1]:
        return torch.zeros_like(hand[:, 0])

    def speed(points: Tensor) -> Tensor:
        step = points.diff(dim=0).norm(dim=-1) * fps
        return torch.cat((step, step[-1:]))

    alone = (speed(hand) < _SLOW_M_S) & (speed(feet).amin(1) > _SLOW_M_S)
    width = _GRIP_S * fps
    wide = maximum_filter1d(alone.double().numpy(), 2 * int(width) + 1, mode="nearest")
    return torch.from_numpy(gaussian_filter1d(wide, width, mode="nearest")).to(hand)
