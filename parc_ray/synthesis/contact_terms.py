"""Penetration and contact of bodies with the terrain, computed only where they can matter.

A point under the surface has its own column above it, so penetration needs distances only for the
few points below their own cell; contact needs them only for bodies that are labelled. Edge cells
extend outside the grid.

Legend: N motions, T frames, B bodies, P surface points, Q most points of one body, K selected.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from parc_ray.character.character import Character
from parc_ray.character.surface import surface_points
from parc_ray.terrain.heightfield import HeightfieldBatch

Kind = Literal["out", "depth"]


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


@dataclass(frozen=True, kw_only=True, eq=False)
class Ground:
    """Terrains with what the searches need beside them.

    Attributes:
        batch: N terrains.
        pooled: (N, X, Y) largest height within ``reach`` of a cell, metres.
        window: cells on each side that are searched.
    """

    batch: HeightfieldBatch
    pooled: Tensor
    window: int

    @classmethod
    def of(cls, batch: HeightfieldBatch, reach_m: float, window: int) -> Ground:
        """Prepare ``batch`` for bodies whose points lie within ``reach_m`` of their origin."""
        rings = math.ceil(reach_m / batch.cell_size)
        heights = batch.heights[:, None]
        pooled = torch.nn.functional.max_pool2d(heights, 2 * rings + 1, 1, rings)[:, 0]
        return cls(batch=batch, pooled=pooled, window=window)

    def index_select(self, ids: Tensor) -> Ground:
        """The terrains ``ids`` (M,)."""
        return replace(self, batch=self.batch.index_select(ids), pooled=self.pooled[ids])


def nearest_cells(points: Tensor, row: Tensor, ground: Ground, kind: Kind) -> Tensor:
    """Nearest column (``out``) or air column (``depth``) of each point; no gradient.

    Args:
        points: (K, 3) world metres.
        row: (K,) terrain of each point.
        ground: terrains.
        kind: which of the two distances.

    Returns:
        (K, 2) long cell indices, not clamped to the grid (edge cells extend).
    """
    with torch.no_grad():
        t, w = ground.batch, ground.window
        size = t.cell_size
        local = points[:, :2] - t.origin[row]
        base = torch.round(local / size)
        axis = torch.arange(-w, w + 1, device=points.device)
        off = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
        gap = local - base * size
        steps = axis.to(points.dtype) * size
        gap_x = ((gap[:, :1] - steps).abs() - size / 2).clamp(min=0.0).square()
        gap_y = ((gap[:, 1:] - steps).abs() - size / 2).clamp(min=0.0).square()
        rho = (gap_x[:, :, None] + gap_y[:, None, :]).flatten(1)
        cells = base.long()
        limit = t.size[row] - 1
        i = torch.minimum((cells[:, :1] + axis).clamp(min=0), limit[:, :1])
        j = torch.minimum((cells[:, 1:] + axis).clamp(min=0), limit[:, 1:])
        width = t.heights.shape[2]
        flat = (row[:, None] * t.heights.shape[1] + i)[:, :, None] * width + j[:, None, :]
        tops = t.heights.reshape(-1)[flat.flatten(1)]
        rise = points[:, 2:] - tops if kind == "out" else tops - points[:, 2:]
        best = (rho + rise.clamp(min=0.0).square()).argmin(1)
        return cells + off[best]


def cell_tops(cells: Tensor, row: Tensor, terrain: HeightfieldBatch) -> Tensor:
    """Heights (K,) of unclamped cells (K, 2) of terrains ``row`` (K,)."""
    ij = torch.minimum(cells.clamp(min=0), terrain.size[row] - 1)
    return terrain.heights[row, ij[:, 0], ij[:, 1]]


def column_gap(
    points: Tensor, cells: Tensor, row: Tensor, terrain: HeightfieldBatch, kind: Kind
) -> Tensor:
    """Distance (K,) of points (K, 3) to given columns, differentiable in the points."""
    centers = terrain.origin[row] + cells.to(points.dtype) * terrain.cell_size
    gap = ((points[:, :2] - centers).abs() - terrain.cell_size / 2).clamp(min=0.0)
    tops = cell_tops(cells, row, terrain)
    rise = points[:, 2] - tops if kind == "out" else tops - points[:, 2]
    square = gap.square().sum(-1) + rise.clamp(min=0.0).square()
    positive = square > 0
    return torch.where(positive, torch.where(positive, square, 1.0).sqrt(), 0.0)


def nearest_distance(points: Tensor, row: Tensor, ground: Ground, kind: Kind) -> Tensor:
    """Distance (K,) of points (K, 3) of terrains ``row`` to ground or air columns."""
    cells = nearest_cells(points, row, ground, kind)
    return column_gap(points, cells, row, ground.batch, kind)


def body_surface(
    body_pos: Tensor, body_mat: Tensor, points: BodyPoints, which: tuple[Tensor, ...]
) -> Tensor:
    """World points (K, Q, 3) of selected bodies ``which`` = (n, t, b), each (K,)."""
    n, t, b = which
    offset = points.offset[b]
    return body_pos[n, t, b][:, None] + offset @ body_mat[n, t, b].transpose(-1, -2)


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
    with torch.no_grad():
        flat = body_pos.flatten(1, 2)
        ij = ground.batch.index_of(flat[..., :2])
        row = torch.arange(len(ground.batch), device=flat.device)[:, None]
        high = ground.pooled[row, ij[..., 0], ij[..., 1]].view(body_pos.shape[:3])
        near = (body_pos[..., 2] - points.reach < high) & mask[..., None]
        which = near.nonzero(as_tuple=True)
        place = body_surface(body_pos, body_mat, points, which)
        own = _own_height(place, which[0], ground.batch)
        k, q = ((place[..., 2] < own) & points.real[which[2]]).nonzero(as_tuple=True)
    n, t, b = (w[k] for w in which)
    offset = points.offset[b, q]
    p = body_pos[n, t, b] + (body_mat[n, t, b] @ offset[..., None])[..., 0]
    depth = nearest_distance(p, n, ground, "depth")
    return torch.zeros(len(ground.batch), dtype=depth.dtype, device=depth.device).index_add(
        0, n, depth
    )


def _own_height(place: Tensor, row: Tensor, terrain: HeightfieldBatch) -> Tensor:
    """Height (K, Q) of the column under each of the points (K, Q, 3)."""
    cells = torch.round((place[..., :2] - terrain.origin[row][:, None]) / terrain.cell_size)
    limit = (terrain.size[row] - 1)[:, None]
    ij = torch.minimum(cells.long().clamp(min=0), limit)
    return terrain.heights[row[:, None], ij[..., 0], ij[..., 1]]


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
    with torch.no_grad():
        place = body_surface(body_pos, body_mat, points, which)
        k, q = place.shape[:2]
        row = which[0].repeat_interleave(q)
        flat = place.reshape(-1, 3)
        cells = nearest_cells(flat, row, ground, "out")
        out = column_gap(flat, cells, row, ground.batch, "out").view(k, q)
        out = torch.where(points.real[which[2]], out, torch.inf)
        best = out.argmin(1) if k else torch.zeros(0, dtype=torch.long, device=out.device)
        cells = cells.view(k, q, 2)[torch.arange(k, device=best.device), best]
    n, t, b = which
    offset = points.offset[b, best]
    p = body_pos[n, t, b] + (body_mat[n, t, b] @ offset[..., None])[..., 0]
    value = column_gap(p, cells, n, ground.batch, "out")
    return torch.where(points.count[b] > 0, value, 0.0), cells


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
