"""Hands and feet held at one surface point per contact run.

A term of the published code that the paper does not mention.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from parc_ray.character.character import Character
from parc_ray.synthesis.contact_terms import BodyPoints, Ground, Kind, cell_tops, nearest_cells

CONTACT_THRESHOLD = 0.9
_SOLE_FACTOR = 1.25
_SOLE_TOLERANCE_M = 1e-3


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldBodies:
    """Which bodies can be held and by which of their points.

    Attributes:
        bodies: (K,) long.
        centre: (K, 3) metres in the body frame; its mean over a run decides the surface point.
        points: (K, Q, 3) metres in the body frame: the centre of round bodies, else the sole.
        real: (K, Q) bool, False for padding.
        radius: (K,) metres: of the ball, or 1.25 half diagonals of the sole's box.
        round_: (K,) bool.
    """

    bodies: Tensor
    centre: Tensor
    points: Tensor
    real: Tensor
    radius: Tensor
    round_: Tensor

    @classmethod
    def of(cls, character: Character) -> HeldBodies:
        """Hands and feet of ``character``; a body of a single sphere is round."""
        surface = BodyPoints.of(character)
        bodies = sorted({*character.feet, *character.hands})
        centre, points, radius, round_ = [], [], [], []
        for b in bodies:
            geoms = [g for g in character.geoms if g.body == b]
            own = surface.offset[b, : int(surface.count[b])]
            is_round = len(geoms) == 1 and geoms[0].kind == "sphere"
            middle = (own.amax(0) + own.amin(0)) / 2
            if is_round:
                middle = torch.tensor(geoms[0].pos, dtype=own.dtype)
                points.append(middle[None])
                radius.append(geoms[0].radius)
            else:
                points.append(own[own[:, 2] < own[:, 2].amin() + _SOLE_TOLERANCE_M])
                radius.append(_SOLE_FACTOR * float((own.amax(0) - own.amin(0)).norm()) / 2)
            centre.append(middle)
            round_.append(is_round)
        most = max(len(p) for p in points)
        return cls(
            bodies=torch.tensor(bodies),
            centre=torch.stack(centre),
            points=torch.stack([torch.cat([p, p[:1].expand(most - len(p), 3)]) for p in points]),
            real=torch.arange(most)[None] < torch.tensor([len(p) for p in points])[:, None],
            radius=torch.tensor(radius),
            round_=torch.tensor(round_),
        )

    def place(self, body_pos: Tensor, body_mat: Tensor, offsets: Tensor) -> Tensor:
        """World points (N, T, K, Q, 3) of body-frame ``offsets`` (K, Q, 3)."""
        pos, mat = body_pos[:, :, self.bodies], body_mat[:, :, self.bodies]
        return pos[..., None, :] + offsets @ mat.transpose(-1, -2)

    def place_some(
        self, body_pos: Tensor, body_mat: Tensor, frame: Tensor, which: Tensor
    ) -> Tensor:
        """World points (M, Q, 3) of bodies ``which`` (M,) of K in frames (M,) of (N T)."""
        item = frame * body_pos.shape[2] + self.bodies[which]
        pos = body_pos.reshape(-1, 3).index_select(0, item)
        mat = body_mat.reshape(-1, 3, 3).index_select(0, item)
        return pos[:, None] + self.points[which] @ mat.transpose(-1, -2)


def contact_runs(active: Tensor) -> Tensor:
    """Number the runs of consecutive True frames along dim 1.

    Args:
        active: (N, T, K) bool.

    Returns:
        (N, T, K) long: 0, 1, ... for each run of a body, -1 outside runs.
    """
    before = torch.cat([torch.zeros_like(active[:, :1]), active[:, :-1]], dim=1)
    run = (active & ~before).long().cumsum(1) - 1
    return torch.where(active, run, -1)


def project_to_surface(points: Tensor, row: Tensor, ground: Ground) -> Tensor:
    """Nearest points (K, 3) of the terrain surface to world points (K, 3), closed form.

    A free point goes to the nearest ground column, a buried one to the nearest air column.
    """
    t = ground.batch
    out = torch.zeros_like(points)
    ij = torch.round((points[:, :2] - t.origin[row]) / t.cell_size).long()
    buried = points[:, 2] < cell_tops(ij, row, t)
    sides: tuple[tuple[Kind, Tensor], ...] = (("out", ~buried), ("depth", buried))
    for kind, mask in sides:
        p, r = points[mask], row[mask]
        cells = nearest_cells(p, r, ground, kind)
        low = t.origin[r] + (cells.to(p.dtype) - 0.5) * t.cell_size
        xy = torch.minimum(torch.maximum(p[:, :2], low), low + t.cell_size)
        top = cell_tops(cells, r, t)
        z = torch.minimum(p[:, 2], top) if kind == "out" else torch.maximum(p[:, 2], top)
        out[mask] = torch.cat([xy, z[:, None]], dim=-1)
    return out


def automatic_constraints(
    body_pos: Tensor,
    body_mat: Tensor,
    contacts: Tensor,
    mask: Tensor,
    held: HeldBodies,
    ground: Ground,
) -> tuple[Tensor, Tensor]:
    """Surface point and frames of every contact run of hands and feet.

    Args:
        body_pos: (N, T, B, 3) metres, source motion.
        body_mat: (N, T, B, 3, 3).
        contacts: (N, T, B) labels; above 0.9 is a contact.
        mask: (N, T) bool, frames that count.
        held: which bodies.
        ground: N terrains.

    Returns:
        (N, T, K, 3) surface point of the run a frame belongs to (zeros outside runs);
        (N, T, K) bool, frames within runs.
    """
    active = (contacts[..., held.bodies] > CONTACT_THRESHOLD) & mask[..., None]
    run = contact_runs(active)
    centre = held.place(body_pos, body_mat, held.centre[:, None])[..., 0, :]
    n, t, k = active.shape
    slots = t // 2 + 1
    pair = torch.arange(n * k, device=active.device).view(n, 1, k)
    key = pair * slots + run.clamp(min=0)
    flat = key[active]
    total = centre.new_zeros(n * k * slots, 3).index_add(0, flat, centre[active])
    count = torch.bincount(flat, minlength=n * k * slots)
    used = count > 0
    row = torch.arange(n, device=active.device).repeat_interleave(k * slots)
    goal = torch.zeros_like(total)
    goal[used] = project_to_surface(total[used] / count[used, None], row[used], ground)
    target = torch.where(active[..., None], goal[key], 0.0)
    return target, active
