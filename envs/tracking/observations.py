"""Observations of the tracking task: the upstream layout number by number, and our own.

Everything positional is relative to the simulated root in its heading frame (`_h`), so that an
observation does not change when the world is turned about z or shifted (docs/design/tracker.md,
Observations). Shapes: N environments, S target steps, B bodies, J joints, D dofs, K key bodies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from envs.tracking.columns import columns, six
from envs.tracking.config import ObservationConfig
from envs.tracking.motion_bank import Reference, TerrainBank
from parc_ray.character.rotations import heading_angle, quat_to_6d
from parc_ray.protocols import SimState

if TYPE_CHECKING:
    from parc_ray.character.character import Character

_RAY_ANGLES = 7
_RAY_STEP_RAD = 0.261799
_RAY_POINTS = 63
_RAY_START_M = -0.1
_RAY_SPACING_M = 0.05


@dataclass(frozen=True, kw_only=True)
class Block:
    """One contiguous part of the observation vector."""

    name: str
    """What it is."""
    shape: tuple[int, ...]
    """Its natural shape; flattened row-major in the vector."""
    normalise: bool = True
    """Whether a running normaliser may touch it; flags and heights stay as they are."""
    critic_only: bool = False
    """Whether the actor must not see it."""
    encode: Literal["none", "rows", "heights"] = "none"
    """What a network's encoder may do with it: nothing, read row after row with one network, or
    read the whole as heights of the ground."""

    @property
    def size(self) -> int:
        """Numbers in the block."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """Order of the blocks in an observation."""

    blocks: tuple[Block, ...]

    @property
    def size(self) -> int:
        """Length O of an observation."""
        return sum(block.size for block in self.blocks)

    @property
    def slices(self) -> dict[str, slice]:
        """Place of each block by name."""
        out, start = {}, 0
        for block in self.blocks:
            out[block.name] = slice(start, start + block.size)
            start += block.size
        return out

    @property
    def normalise(self) -> Tensor:
        """(O,) bool: numbers a running normaliser may touch."""
        return torch.cat([torch.full((b.size,), b.normalise) for b in self.blocks])


def heading_matrix(heading: Tensor) -> Tensor:
    """(N, 3, 3) matrices M such that ``v @ M`` is the row vector v seen from the heading frame."""
    c, s = torch.cos(heading), torch.sin(heading)
    zero, one = torch.zeros_like(c), torch.ones_like(c)
    rows = torch.stack((c, -s, zero, s, c, zero, zero, zero, one), dim=-1)
    return rows.unflatten(-1, (3, 3))


def ray_points() -> Tensor:
    """(P, 2) metres: the published code's height samples in the heading frame, ray-major."""
    half = _RAY_ANGLES // 2
    angles = torch.arange(-half, half + 1) * _RAY_STEP_RAD
    reach = _RAY_START_M + _RAY_SPACING_M * torch.arange(_RAY_POINTS)
    direction = torch.stack((torch.cos(angles), torch.sin(angles)), dim=-1)
    return (direction[:, None] * reach[None, :, None]).reshape(-1, 2)


def grid_points(config: ObservationConfig) -> Tensor:
    """(P, 2) metres: the heading-frame height grid, x-major."""
    x = torch.arange(-config.grid_back, config.grid_front + 1) * config.grid_spacing_m
    y = torch.arange(-config.grid_side, config.grid_side + 1) * config.grid_spacing_m
    return torch.stack(torch.meshgrid(x, y, indexing="ij"), dim=-1).reshape(-1, 2)


def local_heights(
    terrain: TerrainBank, terrain_ids: Tensor, root_pos: Tensor, heading: Tensor, points: Tensor
) -> Tensor:
    """Ground heights (N, P) minus the root's z under heading-frame points (P, 2)."""
    return terrain.local_heights(terrain_ids, root_pos[:, :2], heading, points) - root_pos[:, 2:]


@dataclass
class Observed:
    """What an observation is made of, N leading.

    Attributes:
        state: simulated state.
        joint_rot: (N, J, 4) of the state.
        body_pos: (N, B, 3) of the state, world.
        features: (N, S, W) features of the references at the target steps
            (`ObservationBuilder.features`).
        terrain_ids: (N,) long.
        current: reference at the present time, (N, ...).
        frame: (N,) place in the clip.
        root_angle: (N,) rad between the root and its reference.
        remaining_s: (N,) seconds to the end of the clip; used by critic-only blocks.
    """

    state: SimState
    joint_rot: Tensor
    body_pos: Tensor
    features: Tensor
    terrain_ids: Tensor
    current: Reference
    frame: Tensor
    root_angle: Tensor
    remaining_s: Tensor

    @cached_property
    def force_sq(self) -> Tensor:
        """(N, B) squared terrain force on each body, N^2."""
        return self.state.contact_force.square().sum(-1)


class ObservationBuilder:
    """Makes observations of one layout.

    Args:
        character: the tracked character.
        config: layout and sizes.
        terrain: grounds of all clips.
    """

    def __init__(
        self, character: Character, config: ObservationConfig, terrain: TerrainBank
    ) -> None:
        """Fix the layout; see the class."""
        self.config = config
        self.terrain = terrain
        self.keys = torch.tensor(character.key_bodies)
        self._weight_n = 9.81 * float(character.body_masses.sum())
        upstream = config.layout == "upstream"
        self.points = ray_points() if upstream else grid_points(config)
        blocks = self._upstream_blocks(character) if upstream else self._base_blocks(character)
        if config.privileged:
            bodies = character.skeleton.num_bodies
            blocks = (*blocks, Block(name="privileged", shape=(4 * bodies + 1,), critic_only=True))
        self.layout = Layout(blocks)
        self._vectors = 3 + len(self.keys)
        self._labelled = range(character.skeleton.num_bodies) if upstream else self.keys
        shifted = torch.ones(self._vectors, 1)
        shifted[1:3] = 0.0  # axes are directions
        self._shifted = shifted

    def features(self, reference: Reference) -> Tensor:
        """What a target shows of a reference (M, ...), before it is seen from a root: (M, W).

        In the world's frame: root position, images of x and z, key positions; then the pose (joint
        coordinates, or 6-D rotations in the upstream layout) and contact labels.
        """
        upstream = self.config.layout == "upstream"
        turns = reference.joint_rot.flatten(1) if upstream else reference.root_rot[:, :0]
        quats = columns(torch.cat((reference.root_rot, turns), dim=-1))
        axes = np.swapaxes(six(np.swapaxes(quats.reshape(-1, 4, quats.shape[-1]), 0, 1)), 0, 1)
        axes = torch.from_numpy(axes.reshape(-1, quats.shape[-1]).T.copy())
        pose = axes[:, 6:] if upstream else reference.dof
        contacts = reference.contacts if upstream else reference.contacts[:, self.keys]
        keys = reference.body_pos.index_select(1, self.keys).flatten(1)
        return torch.cat((reference.root_pos, axes[:, :6], keys, pose, contacts), dim=-1)

    def __call__(self, seen: Observed) -> Tensor:
        """Observations (N, O), float32."""
        heading = heading_angle(seen.state.root_rot)
        parts = (
            self._upstream_parts(seen, heading)
            if self.config.layout == "upstream"
            else self._base_parts(seen, heading)
        )
        if self.config.privileged:
            parts.append(self._privileged(seen, heading))
        return torch.cat([part.flatten(1) for part in parts], dim=-1)

    def _upstream_blocks(self, character: Character) -> tuple[Block, ...]:
        skeleton, steps = character.skeleton, len(self.config.target_steps)
        keys, joints = 3 * len(self.keys), 6 * skeleton.num_joints
        return (
            Block(name="proprio", shape=(12 + joints + skeleton.num_dofs + keys,)),
            Block(name="targets", shape=(steps, 9 + joints + keys), encode="rows"),
            Block(name="target_contacts", shape=(steps, skeleton.num_bodies), normalise=False),
            Block(name="contacts", shape=(skeleton.num_bodies,), normalise=False),
            Block(
                name="heights",
                shape=(_RAY_ANGLES, _RAY_POINTS),
                normalise=False,
                encode="heights",
            ),
        )

    def _base_blocks(self, character: Character) -> tuple[Block, ...]:
        skeleton, config = character.skeleton, self.config
        steps, keys = len(config.target_steps), len(self.keys)
        grid = (config.grid_back + config.grid_front + 1, 2 * config.grid_side + 1)
        own = 12 + 2 * skeleton.num_dofs + 3 * skeleton.num_joints
        return (
            Block(name="proprio", shape=(own,)),
            Block(name="targets", shape=(steps, 9 + skeleton.num_dofs + 3 * keys), encode="rows"),
            Block(name="target_contacts", shape=(steps, keys), normalise=False),
            Block(name="contacts", shape=(keys,), normalise=False),
            Block(name="heights", shape=grid, normalise=False, encode="heights"),
            Block(name="key_heights", shape=(keys,)),
        )

    def _seen_from_heading(
        self, seen: Observed, heading: Tensor, own: Tensor
    ) -> tuple[Tensor, Tensor]:
        """All vectors of both layouts, turned at once.

        Args:
            seen: state and references.
            heading: (N,) rad.
            own: (N, M, 3) positions of our bodies relative to our root.

        Returns:
            Root rotation, velocities and ``own`` (N, 12 + 3 M); the targets' root offset, rotation
            and key bodies (N, S, 9 + 3 K).
        """
        state, count = seen.state, self._vectors
        axes = quat_to_6d(state.root_rot).unflatten(-1, (2, 3))
        vectors = seen.features[..., : 3 * count].unflatten(-1, (count, 3))
        vectors = vectors - (state.root_pos[:, None, None] * self._shifted)
        steps = vectors.shape[1]
        everything = torch.cat(
            (
                axes,
                state.root_lin_vel[:, None],
                state.root_ang_vel[:, None],
                own,
                vectors.flatten(1, 2),
            ),
            dim=1,
        )
        local = everything @ heading_matrix(heading)
        first = 4 + own.shape[1]
        return local[:, :first].flatten(1), local[:, first:].reshape(-1, steps, 3 * count)

    def _targets(self, seen: Observed, local: Tensor) -> tuple[Tensor, Tensor]:
        """Target blocks (N, S, ...): what is seen of them, and their contact labels."""
        labels = len(self._labelled)
        pose, contacts = seen.features[..., 3 * self._vectors :].split(
            [seen.features.shape[-1] - 3 * self._vectors - labels, labels], dim=-1
        )
        return torch.cat((local[..., :9], pose, local[..., 9:]), dim=-1), contacts

    def _touching(self, seen: Observed) -> Tensor:
        return (seen.force_sq > self.config.contact_threshold_n**2).float()

    def _heights(self, seen: Observed, heading: Tensor) -> Tensor:
        clip = self.config.height_clip_m
        root = seen.state.root_pos
        heights = local_heights(self.terrain, seen.terrain_ids, root, heading, self.points)
        return heights.clamp(-clip, clip)

    def _upstream_parts(self, seen: Observed, heading: Tensor) -> list[Tensor]:
        state = seen.state
        keys = seen.body_pos.index_select(1, self.keys) - state.root_pos[:, None]
        own, local = self._seen_from_heading(seen, heading, keys)
        targets, contacts = self._targets(seen, local)
        return [
            own[:, :12],
            quat_to_6d(seen.joint_rot),
            state.dof_vel,
            own[:, 12:],
            targets,
            contacts,
            self._touching(seen),
            self._heights(seen, heading),
        ]

    def _base_parts(self, seen: Observed, heading: Tensor) -> list[Tensor]:
        state = seen.state
        bodies = seen.body_pos[:, 1:] - state.root_pos[:, None]
        own, local = self._seen_from_heading(seen, heading, bodies)
        targets, contacts = self._targets(seen, local)
        key_pos = seen.body_pos.index_select(1, self.keys)
        ground = self.terrain.height_at(seen.terrain_ids, key_pos[..., :2])
        return [
            own[:, :12],
            state.dof_pos,
            state.dof_vel,
            own[:, 12:],
            targets,
            contacts,
            self._touching(seen).index_select(1, self.keys),
            self._heights(seen, heading),
            key_pos[..., 2] - ground,
        ]

    def _privileged(self, seen: Observed, heading: Tensor) -> Tensor:
        """Critic only: body errors (3 B), terrain force in body weights (B), time left in s."""
        errors = (seen.current.body_pos - seen.body_pos) @ heading_matrix(heading)
        force = seen.force_sq.sqrt() / self._weight_n
        return torch.cat((errors.flatten(1), force, seen.remaining_s[:, None]), dim=-1)
