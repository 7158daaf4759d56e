"""The kinematic tree of a character and the layout of its degrees of freedom.

Shapes: B bodies, J = B - 1 joints (joint j moves body j + 1), D degrees of freedom.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

JointKind = Literal["root", "spherical", "hinge", "fixed"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Skeleton:
    """Tree of rigid bodies in depth-first order; the root moves freely.

    Spherical joints have three degrees of freedom, the exponential map of the child's rotation
    relative to its parent; hinges have one, the signed angle about their axis; fixed joints none.
    The convention is the published code's.
    """

    body_names: tuple[str, ...]
    """Names of the B bodies."""
    parents: tuple[int, ...]
    """Index of the parent of each body, -1 for the root; always smaller than the body's own."""
    offsets: Tensor
    """(B, 3) m, origin of each body in its parent's frame."""
    rest_rot: Tensor
    """(B, 4) xyzw, rotation of each body relative to its parent at zero joint rotation."""
    joint_kinds: tuple[JointKind, ...]
    """Kind of the joint that moves each body, "root" for body 0."""
    dof_slices: tuple[slice, ...]
    """Slice of the dof vector that belongs to each body (empty for the root and fixed joints)."""
    hinge_axes: Tensor
    """(B, 3) unit axis in the body's frame for hinges, zeros elsewhere."""
    dof_limits: Tensor
    """(D, 2) rad, lower and upper limit; per exponential-map component for spherical joints."""
    dof_names: tuple[str, ...]
    """Names of the D degrees of freedom: joint name plus _x, _y, _z for spherical joints."""
    levels: tuple[tuple[int, ...], ...] = field(init=False)
    """Bodies by depth in the tree, the root alone in level 0."""

    def __post_init__(self) -> None:
        """Check the tree and group the bodies by depth."""
        depth: list[int] = []
        for body, parent in enumerate(self.parents):
            if (parent < 0) != (body == 0) or parent >= body:
                raise ValueError("parents must precede their children and body 0 be the only root")
            depth.append(0 if parent < 0 else depth[parent] + 1)
        levels = tuple(
            tuple(b for b, d in enumerate(depth) if d == level) for level in range(max(depth) + 1)
        )
        object.__setattr__(self, "levels", levels)

    @property
    def num_bodies(self) -> int:
        """Number of bodies B."""
        return len(self.body_names)

    @property
    def num_joints(self) -> int:
        """Number of joints J, one per body except the root."""
        return self.num_bodies - 1

    @property
    def num_dofs(self) -> int:
        """Number of degrees of freedom D, without the root's six."""
        return len(self.dof_names)

    def body_index(self, name: str) -> int:
        """Index of the body called ``name``; KeyError if there is none."""
        try:
            return self.body_names.index(name)
        except ValueError:
            raise KeyError(f"no body {name!r}; bodies are {', '.join(self.body_names)}") from None


@dataclass(frozen=True, eq=False)
class SkeletonConstants:
    """Index and constant tensors of a skeleton on one device in one dtype.

    Attributes:
        offsets: per level after the root, (L, 3) offsets in the parent frame.
        rest_rot: per level after the root, (L, 4), or None where all are the identity.
        parent_slots: per level after the root, (L,) position of the parent in the level above.
        joints: per level after the root, (L,) joint index (body - 1).
        body_order: (B,) position of each body in the concatenation of the levels.
        spherical_joint: (S,) joint index of the spherical joints.
        spherical_dof: (3 S,) their degrees of freedom.
        hinge_joint: (H,) joint index of the hinges.
        hinge_dof: (H,) their degrees of freedom.
        hinge_axes: (H, 3) their axes.
        joint_slot: (J,) position of each joint in the list spherical + hinges + fixed.
        dof_slot: (D,) position of each dof in the list spherical dofs + hinge dofs.
        num_fixed: number of fixed joints.
    """

    offsets: tuple[Tensor, ...]
    rest_rot: tuple[Tensor | None, ...]
    parent_slots: tuple[Tensor, ...]
    joints: tuple[Tensor, ...]
    body_order: Tensor
    spherical_joint: Tensor
    spherical_dof: Tensor
    hinge_joint: Tensor
    hinge_dof: Tensor
    hinge_axes: Tensor
    joint_slot: Tensor
    dof_slot: Tensor
    num_fixed: int


@lru_cache(maxsize=64)
def skeleton_constants(
    skeleton: Skeleton, device: torch.device, dtype: torch.dtype
) -> SkeletonConstants:
    """Constant tensors for kinematics on ``device`` in ``dtype``, cached per skeleton."""

    def long(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    levels = skeleton.levels
    identity = torch.tensor([0.0, 0.0, 0.0, 1.0])
    offsets, rests, slots, joints = [], [], [], []
    for above, level in pairwise(levels):
        ids = list(level)
        rest = skeleton.rest_rot[ids]
        is_identity = bool((rest - identity.to(rest)).abs().max() == 0)
        offsets.append(skeleton.offsets[ids].to(device, dtype))
        rests.append(None if is_identity else rest.to(device, dtype))
        slots.append(long([above.index(skeleton.parents[b]) for b in ids]))
        joints.append(long([b - 1 for b in ids]))
    order = [b for level in levels for b in level]
    by_kind = {
        kind: [b for b, k in enumerate(skeleton.joint_kinds) if k == kind]
        for kind in ("spherical", "hinge", "fixed")
    }
    spherical_dof = [
        d for b in by_kind["spherical"] for d in range(skeleton.num_dofs)[skeleton.dof_slices[b]]
    ]
    hinge_dof = [skeleton.dof_slices[b].start for b in by_kind["hinge"]]
    joint_list = [b - 1 for b in by_kind["spherical"] + by_kind["hinge"] + by_kind["fixed"]]
    dof_list = spherical_dof + hinge_dof
    return SkeletonConstants(
        offsets=tuple(offsets),
        rest_rot=tuple(rests),
        parent_slots=tuple(slots),
        joints=tuple(joints),
        body_order=long([order.index(b) for b in range(skeleton.num_bodies)]),
        spherical_joint=long([b - 1 for b in by_kind["spherical"]]),
        spherical_dof=long(spherical_dof),
        hinge_joint=long([b - 1 for b in by_kind["hinge"]]),
        hinge_dof=long(hinge_dof),
        hinge_axes=skeleton.hinge_axes[by_kind["hinge"]].to(device, dtype),
        joint_slot=long([joint_list.index(j) for j in range(skeleton.num_joints)]),
        dof_slot=long([dof_list.index(d) for d in range(skeleton.num_dofs)]),
        num_fixed=len(by_kind["fixed"]),
    )
