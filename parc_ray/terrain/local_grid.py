"""The terrain as the character sees it: a grid in its heading frame."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from parc_ray.errors import InputError
from parc_ray.terrain.heightfield import HeightfieldBatch


@dataclass(frozen=True, kw_only=True)
class GridSpec:
    """Sample points around the root, x forward and y left."""

    x_cells_back: int = 10
    """Points behind the root. PARC: 10 (2 m)."""
    x_cells_front: int = 20
    """Points in front of the root. PARC: 20 (4 m)."""
    y_cells_side: int = 15
    """Points to either side. PARC: 15 (3 m)."""
    spacing: float = 0.2
    """Metres between points. PARC: 0.2."""

    def __post_init__(self) -> None:
        """Refuse negative counts and spacings that are not positive."""
        for name in ("x_cells_back", "x_cells_front", "y_cells_side"):
            if getattr(self, name) < 0:
                raise InputError(f"grid.{name}: {getattr(self, name)} is not allowed; give >= 0")
        if not 0.0 < self.spacing < float("inf"):
            raise InputError(f"grid.spacing: {self.spacing} is not allowed; give metres > 0")

    @property
    def shape(self) -> tuple[int, int]:
        """Points along x and y."""
        return self.x_cells_back + self.x_cells_front + 1, 2 * self.y_cells_side + 1

    @property
    def root_cell(self) -> tuple[int, int]:
        """Index of the point under the root."""
        return self.x_cells_back, self.y_cells_side


def local_grid_xy(spec: GridSpec, device: torch.device | str | None = None) -> Tensor:
    """Sample points (GX, GY, 2) in the heading frame, metres."""
    x = torch.arange(-spec.x_cells_back, spec.x_cells_front + 1, device=device)
    y = torch.arange(-spec.y_cells_side, spec.y_cells_side + 1, device=device)
    return torch.stack(torch.meshgrid(x, y, indexing="ij"), dim=-1) * spec.spacing


def world_grid_xy(spec: GridSpec, root_xy: Tensor, heading: Tensor) -> Tensor:
    """Sample points (N, GX, GY, 2) in the world for roots (N, 2) m with headings (N,) rad."""
    grid = local_grid_xy(spec, root_xy.device).to(root_xy.dtype)
    cos, sin = (f(heading)[:, None, None] for f in (torch.cos, torch.sin))
    x, y = grid[..., 0], grid[..., 1]
    turned = torch.stack([cos * x - sin * y, sin * x + cos * y], dim=-1)
    return turned + root_xy[:, None, None]


def sample_local_heights(
    spec: GridSpec, batch: HeightfieldBatch, root_pos: Tensor, heading: Tensor
) -> Tensor:
    """Heights (N, GX, GY) above the root, metres, of the nearest cells; not clamped.

    Args:
        spec: the grid.
        batch: N terrains.
        root_pos: (N, 3) world position of the root.
        heading: (N,) rad, its heading.
    """
    xy = world_grid_xy(spec, root_pos[:, :2], heading)
    return batch.height_at(xy) - root_pos[:, 2, None, None]
