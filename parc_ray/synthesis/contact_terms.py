"""Penetration and contact of bodies with the terrain, computed only where they can matter.

A point under the surface has its own column above it, so penetration needs distances only for the
few points below their own cell; contact needs them only for bodies that are labelled. Edge cells
extend outside the grid.

Legend: N motions, T frames, B bodies, P surface points, Q most points of one body, K selected.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from parc_ray.character.character import Character
from parc_ray.character.surface import surface_points
from parc_ray.synthesis.column_search import (
    Ground,
    Kind,
    OwnColumns,
    cell_tops,
    column_gap,
    nearest_cells,
    nearest_distance,
    search,
)

__all__ = [
    "BodyPoints",
    "Ground",
    "Kind",
    "cell_tops",
    "column_gap",
    "contact_distances",
    "contact_sum",
    "nearest_cells",
    "nearest_distance",
    "penetration_sum",
    "place_selected",
]


@dataclass(frozen=True, kw_only=True, eq=False)
class BodyPoints:
    """Surface points by body.

    Attributes:
        offset: (B, Q, 3) metres in the body frame, padded by repeating a point of the body.
        count: (B,) true number of points.
        real: (B, Q) bool, False for padding.
        reach: (B,) largest distance of a point from the body's origin, metres.
    """

    offset: Tensor
    count: Tensor
    real: Tensor
    reach: Tensor

    @classmethod
    def of(cls, character: Character, kind: Literal["full", "minimal"] = "full") -> BodyPoints:
        """Gather the points of ``character``; bodies without points get none that count."""
        points = surface_points(character, kind)
        num_bodies = character.skeleton.num_bodies
        groups = [points.offset[points.body == b].float() for b in range(num_bodies)]
        most = max(len(g) for g in groups)
        padded = []
        for g in groups:
            filler = g[:1] if len(g) else torch.zeros(1, 3)
            padded.append(torch.cat([g, filler.expand(most - len(g), 3)]))
        count = torch.tensor([len(g) for g in groups])
        return cls(
            offset=torch.stack(padded),
            count=count,
            real=torch.arange(most)[None] < count[:, None],
            reach=torch.stack(
                [g.norm(dim=-1).amax() if len(g) else g.new_zeros(()) for g in groups]
            ),
        )

    def to(self, device: torch.device) -> BodyPoints:
        """The same points on another device."""
        return BodyPoints(**{k: getattr(self, k).to(device) for k in self.__dataclass_fields__})

    @cached_property
    def flat(self) -> tuple[Tensor, Tensor]:
        """Body (P,) and offset (P, 3) of all points, without padding."""
        body, q = self.real.nonzero(as_tuple=True)
        return body, self.offset[body, q]

    @cached_property
    def lever(self) -> Tensor:
        """(4 B, P): times (rotation row, height) of all bodies it gives the points' heights."""
        body, offset = self.flat
        count = len(self.count)
        out = offset.new_zeros(count, 4, len(body))
        index = torch.arange(len(body), device=body.device)
        out[body, :3, index] = offset
        out[body, 3, index] = 1.0
        return out.flatten(0, 1)


def place_selected(body_pos: Tensor, body_mat: Tensor, item: Tensor, offset: Tensor) -> Tensor:
    """World points (K, 3) of ``offset`` (K, 3) on bodies ``item`` (K,) of flattened (N, T, B)."""
    pos = body_pos.reshape(-1, 3).index_select(0, item)
    mat = body_mat.reshape(-1, 3, 3).index_select(0, item)
    return pos + (mat * offset[:, None, :]).sum(-1)


def penetration_sum(
    body_pos: Tensor, body_mat: Tensor, mask: Tensor, points: BodyPoints, ground: Ground
) -> Tensor:
    """Sum over frames and surface points of the depth below the terrain (TPL), per motion.

    Args:
        body_pos: (N, T, B, 3) metres.
        body_mat: (N, T, B, 3, 3) rotation matrices.
        mask: (N, T) bool, frames that count.
        points: surface points.
        ground: N terrains.

    Returns:
        (N,) metres * points.
    """
    frames, bodies = body_pos.shape[1:3]
    with torch.no_grad():
        frame, index = _low_points(body_pos, body_mat, mask, points, ground)
        body, offset = (x.index_select(0, index) for x in points.flat)
        item, row = frame * bodies + body, frame // frames
        place = place_selected(body_pos, body_mat, item, offset)
        cells = torch.round((place[:, :2] - ground.batch.origin[row]) / ground.batch.cell_size)
        inside = (place[:, 2] < cell_tops(cells, row, ground.batch)).nonzero()[:, 0]
        item, offset, row = item[inside], offset[inside], row[inside]
    p = place_selected(body_pos, body_mat, item, offset)
    depth = nearest_distance(p, row, ground, "depth")
    return depth.new_zeros(len(ground.batch)).index_add(0, row, depth)


def _low_points(
    body_pos: Tensor, body_mat: Tensor, mask: Tensor, points: BodyPoints, ground: Ground
) -> tuple[Tensor, Tensor]:
    """Points that are lower than the highest ground which their body reaches.

    Returns:
        Frame of (N T) and point of P, each (K,) long.
    """
    ij = ground.batch.index_of(body_pos[..., :2])
    row = torch.arange(len(ground.batch), device=mask.device)[:, None, None]
    high = ground.pooled[row, ij[..., 0], ij[..., 1]]
    rows = torch.cat([body_mat[..., 2, :], (body_pos[..., 2] - high)[..., None]], dim=-1)
    low = (rows.flatten(0, 1).flatten(1) @ points.lever) < 0.0
    frame, index = (low & mask.reshape(-1, 1)).nonzero(as_tuple=True)
    return frame, index


def contact_distances(
    body_pos: Tensor,
    body_mat: Tensor,
    which: tuple[Tensor, ...],
    points: BodyPoints,
    ground: Ground,
) -> tuple[Tensor, Tensor]:
    """Distance of selected bodies to the terrain and the column they are nearest to.

    Args:
        body_pos: (N, T, B, 3) metres.
        body_mat: (N, T, B, 3, 3).
        which: (n, t, b), each (K,) long: the bodies asked for.
        points: surface points.
        ground: N terrains.

    Returns:
        (K,) metres, the least ``out`` over the body's points (0 inside the terrain), with gradient
        through the winning point; (K, 2) cells, not clamped.
    """
    n, t, b = which
    item = (n * body_pos.shape[1] + t) * body_pos.shape[2] + b
    with torch.no_grad():
        best, cells = _nearest_points(body_pos, body_mat, item, n, b, points, ground)
    p = place_selected(body_pos, body_mat, item, points.offset[b, best])
    value = column_gap(p, cells, n, ground.batch, "out")
    return torch.where(points.count[b] > 0, value, 0.0), cells


def _nearest_points(
    body_pos: Tensor,
    body_mat: Tensor,
    item: Tensor,
    n: Tensor,
    b: Tensor,
    points: BodyPoints,
    ground: Ground,
) -> tuple[Tensor, Tensor]:
    """Point (K,) of Q and cell (K, 2) that bring bodies ``item`` nearest to the ground.

    The distance to the own columns bounds a body's distance; other columns are searched only for
    points whose cell has a border within that bound.
    """
    k, q = len(item), points.offset.shape[1]
    if k == 0:
        return item, item.new_zeros(0, 2)
    pos = body_pos.reshape(-1, 3).index_select(0, item)
    mat = body_mat.reshape(-1, 3, 3).index_select(0, item)
    place = (pos[:, None] + points.offset[b] @ mat.transpose(-1, -2)).reshape(-1, 3)
    row = n.repeat_interleave(q)
    own = OwnColumns.of(place, row, ground, "out")
    out = torch.where(points.real[b], own.rise.view(k, q), torch.inf)
    bound = out.amin(1, keepdim=True)
    below = torch.where(points.real[b], torch.minimum(out, bound), -torch.inf).reshape(-1)
    ids = own.open(ground, "out", below)
    found, distance = search(place, row, own, ids, ground, "out")
    out, cells = out.reshape(-1), own.cells
    out[ids], cells[ids] = distance, found
    best = out.view(k, q).argmin(1)
    return best, cells.view(k, q, 2)[torch.arange(k, device=best.device), best].long()


def contact_sum(
    body_pos: Tensor,
    body_mat: Tensor,
    contacts: Tensor,
    mask: Tensor,
    points: BodyPoints,
    ground: Ground,
    floor: float = 0.0,
) -> Tensor:
    """Sum over frames and bodies of contact label times distance to the terrain (TCL).

    Args:
        body_pos: (N, T, B, 3) metres.
        body_mat: (N, T, B, 3, 3).
        contacts: (N, T, B) labels; negative ones count as 0.
        mask: (N, T) bool, frames that count.
        points: surface points.
        ground: N terrains.
        floor: labels up to this are no contact.

    Returns:
        (N,) metres.
    """
    which = ((contacts > floor) & mask[..., None]).nonzero(as_tuple=True)
    value, _ = contact_distances(body_pos, body_mat, which, points, ground)
    total = torch.zeros(len(ground.batch), dtype=value.dtype, device=value.device)
    return total.index_add(0, which[0], value * contacts[which])
