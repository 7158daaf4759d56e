"""Heightfields: flat-topped columns centred on grid points.

Cell (i, j) of a terrain is a column centred at ``origin + (i, j) * cell_size`` whose footprint is
one cell wide, whose top is ``heights[i, j]`` and which has no bottom. Walls are exactly vertical
and stand half-way between cell centres. A look-up outside the grid returns the nearest edge cell.

Legend: X, Y cells of one terrain, N terrains, K points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parc_ray.errors import InputError

MAX_CELLS = 20_000_000
"""Most cells of a resampled terrain, more than a square kilometre at PARC's cell size."""


def cell_index(xy: Tensor, origin: Tensor, size: Tensor, cell_size: float) -> Tensor:
    """Nearest cells of points, clamped to the grid.

    Args:
        xy: (..., 2) world metres.
        origin: (..., 2) centre of cell (0, 0), broadcastable to ``xy``.
        size: (..., 2) number of cells, broadcastable to ``xy``.
        cell_size: metres.

    Returns:
        (..., 2) long. A point exactly on a cell border goes to the even index.
    """
    cells = torch.round((xy - origin) / cell_size)
    limit = (size - 1).to(cells.dtype)
    return torch.minimum(cells.clamp(min=0.0), limit).long()


@dataclass(frozen=True, kw_only=True, eq=False)
class Heightfield:
    """One terrain in world coordinates."""

    heights: Tensor
    """(X, Y) float32, metres: top of every column."""
    origin: Tensor
    """(2,) float32, metres: world xy of the centre of cell (0, 0)."""
    cell_size: float = 0.4
    """Metres between cell centres. PARC: 0.4."""
    upper: Tensor | None = None
    """(X, Y) world metres: greatest height that augmentation may give to a cell."""
    lower: Tensor | None = None
    """(X, Y) world metres: least height that augmentation may give to a cell."""
    confidence: Tensor | None = None
    """(X, Y) in [0, 1]: how well a cell is known (inferred terrains); None means measured."""

    @classmethod
    def flat(
        cls,
        size: tuple[int, int] = (16, 16),
        *,
        height: float = 0.0,
        cell_size: float = 0.4,
        origin: tuple[float, float] | None = None,
    ) -> Heightfield:
        """Flat terrain of ``size`` cells, centred on the world origin if ``origin`` is None."""
        if origin is None:
            origin = (-(size[0] - 1) * cell_size / 2, -(size[1] - 1) * cell_size / 2)
        return cls(
            heights=torch.full(size, float(height), dtype=torch.float32),
            origin=torch.tensor(origin, dtype=torch.float32),
            cell_size=cell_size,
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Number of cells along x and y."""
        return self.heights.shape[0], self.heights.shape[1]

    @property
    def size(self) -> Tensor:
        """(2,) long: number of cells along x and y."""
        return torch.tensor(self.shape, device=self.heights.device)

    @property
    def extent(self) -> tuple[Tensor, Tensor]:
        """World xy (2,) of the lower and upper corner of the physical ground."""
        low = self.origin - self.cell_size / 2
        return low, low + self.size * self.cell_size

    def index_of(self, xy: Tensor) -> Tensor:
        """Cells (..., 2) long nearest to world points (..., 2), clamped to the grid."""
        return cell_index(xy, self.origin, self.size, self.cell_size)

    def cell_centers(self) -> Tensor:
        """(X, Y, 2) world xy of all cell centres."""
        axes = [torch.arange(n, dtype=self.origin.dtype) for n in self.shape]
        grid = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).to(self.origin.device)
        return self.origin + grid * self.cell_size

    def height_at(self, xy: Tensor) -> Tensor:
        """Heights (...) under world points (..., 2); edge cells extend outside the grid."""
        ij = self.index_of(xy)
        return self.heights[ij[..., 0], ij[..., 1]]

    def contains(self, xy: Tensor) -> Tensor:
        """Bool (...): whether world points (..., 2) lie on the physical ground (borders count)."""
        low, high = self.extent
        return ((xy >= low) & (xy <= high)).all(dim=-1)

    def translated(self, offset: Tensor | Sequence[float]) -> Heightfield:
        """Moved by ``offset`` (3,) metres; heights and bounds move with z."""
        d = torch.as_tensor(offset, dtype=self.heights.dtype, device=self.heights.device)
        return replace(
            self,
            heights=self.heights + d[2],
            origin=self.origin + d[:2],
            upper=None if self.upper is None else self.upper + d[2],
            lower=None if self.lower is None else self.lower + d[2],
        )

    def mirrored(self) -> Heightfield:
        """Mirrored about the xz plane (y becomes -y)."""
        y = -(self.origin[1] + (self.shape[1] - 1) * self.cell_size)
        return replace(
            self,
            origin=torch.stack([self.origin[0], y]),
            **{k: v.flip(1).contiguous() for k, v in self._layers().items()},
        )

    def cropped(
        self,
        xy_min: Tensor | Sequence[float],
        xy_max: Tensor | Sequence[float],
        margin_m: float = 1.2,
    ) -> Heightfield:
        """Rectangle around ``xy_min`` to ``xy_max`` (2,), on the same cell centres.

        The margin (PARC: 1.2 m) is added on all sides and the corners are rounded to cell
        centres. What reaches over the edge of the grid is filled with the edge cells.
        """
        lo = torch.as_tensor(xy_min, dtype=self.origin.dtype) - margin_m - self.origin
        hi = torch.as_tensor(xy_max, dtype=self.origin.dtype) + margin_m - self.origin
        first = torch.round(lo / self.cell_size).long()
        last = torch.maximum(torch.round(hi / self.cell_size).long(), first)
        rows = torch.arange(int(first[0]), int(last[0]) + 1).clamp(0, self.shape[0] - 1)
        cols = torch.arange(int(first[1]), int(last[1]) + 1).clamp(0, self.shape[1] - 1)
        return replace(
            self,
            origin=self.origin + first * self.cell_size,
            **{k: v[rows][:, cols].contiguous() for k, v in self._layers().items()},
        )

    def resampled(self, cell_size: float) -> Heightfield:
        """The same ground with another cell size (metres).

        Finer cells take the height of the old cell under their centre. Coarser cells take the
        greatest height of the old cells whose centre they cover, the least confidence, and lose
        the augmentation bounds (recompute them).
        """
        if not (math.isfinite(cell_size) and cell_size > 0.0):
            raise InputError(f"cell_size: {cell_size} is not allowed; give metres > 0")
        spans = [n * self.cell_size / cell_size for n in self.shape]
        if not math.prod(spans) <= MAX_CELLS:
            raise InputError(
                f"cell_size: {cell_size:g} m makes {math.prod(spans):.3g} cells of a terrain with "
                f"cells of {self.cell_size:g} m; up to {MAX_CELLS} are allowed; lengths are metres"
            )
        count = [max(1, round(span)) for span in spans]
        origin = self.origin + (cell_size - self.cell_size) / 2
        new = Heightfield(heights=torch.zeros(count), origin=origin, cell_size=cell_size)
        if cell_size <= self.cell_size:
            ij = self.index_of(new.cell_centers())
            layers = {k: v[ij[..., 0], ij[..., 1]] for k, v in self._layers().items()}
            return replace(new, **layers)
        ij = new.index_of(self.cell_centers())
        flat = (ij[..., 0] * count[1] + ij[..., 1]).reshape(-1)

        def pool(layer: Tensor, how: str) -> Tensor:
            out = torch.zeros(count[0] * count[1], dtype=layer.dtype)
            out = out.scatter_reduce(0, flat, layer.reshape(-1), how, include_self=False)
            return out.reshape(count)

        known = None if self.confidence is None else pool(self.confidence, "amin")
        return replace(new, heights=pool(self.heights, "amax"), confidence=known)

    def to(self, device: torch.device | str) -> Heightfield:
        """The same terrain on another device."""
        moved = {k: v.to(device) for k, v in self._layers().items()}
        return replace(self, origin=self.origin.to(device), **moved)

    def validate(self, name: str = "terrain") -> Heightfield:
        """Return itself, or raise ``InputError`` naming the field that cannot be used."""
        if self.heights.ndim != 2 or min(self.heights.shape) < 1:
            raise InputError(
                f"{name}.heights: shape {tuple(self.heights.shape)} is not allowed; "
                "give a two-dimensional array with at least one cell"
            )
        if tuple(self.origin.shape) != (2,) or not bool(torch.isfinite(self.origin).all()):
            raise InputError(f"{name}.origin: must be two finite numbers (x, y) in metres")
        if not (math.isfinite(self.cell_size) and self.cell_size > 0.0):
            raise InputError(f"{name}.cell_size: {self.cell_size} is not allowed; give metres > 0")
        for key, layer in self._layers().items():
            if layer.shape != self.heights.shape:
                raise InputError(
                    f"{name}.{key}: shape {tuple(layer.shape)} differs from the heights' "
                    f"{tuple(self.heights.shape)}; give one value per cell"
                )
            bad = ~torch.isfinite(layer)
            if bool(bad.any()):
                i, j = (int(v) for v in bad.nonzero()[0])
                raise InputError(
                    f"{name}.{key}: {int(bad.sum())} cells are NaN or infinite, the first at "
                    f"({i}, {j}); only finite metres are allowed, mend or cut these cells"
                )
        return self

    def to_dict(self) -> dict[str, Any]:
        """Plain numpy arrays and numbers; the inverse of ``from_dict``."""
        arrays = {k: v.detach().cpu().numpy().copy() for k, v in self._layers().items()}
        origin = self.origin.detach().cpu().numpy().copy()
        return {**arrays, "origin": origin, "cell_size": self.cell_size}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Heightfield:
        """Build and validate a terrain from ``to_dict``'s mapping (bounds may be missing)."""

        def tensor(key: str) -> Tensor | None:
            value = data.get(key)
            if value is None:
                return None
            return torch.from_numpy(np.array(value, dtype=np.float32, order="C"))

        heights, origin = tensor("heights"), tensor("origin")
        if heights is None or origin is None:
            raise InputError("terrain: 'heights' and 'origin' are required; one of them is missing")
        layers = {k: tensor(k) for k in ("upper", "lower", "confidence")}
        field = cls(heights=heights, origin=origin, cell_size=float(data["cell_size"]), **layers)
        return field.validate()

    def _layers(self) -> dict[str, Tensor]:
        """All arrays with one value per cell, by field name."""
        named = {k: getattr(self, k) for k in ("heights", "upper", "lower", "confidence")}
        return {k: v for k, v in named.items() if v is not None}


@dataclass(frozen=True, kw_only=True, eq=False)
class HeightfieldBatch:
    """N terrains of one cell size, padded to a common shape by repeating their edge cells."""

    heights: Tensor
    """(N, X, Y) metres."""
    origin: Tensor
    """(N, 2) metres: centre of cell (0, 0) of each terrain."""
    size: Tensor
    """(N, 2) long: true number of cells of each terrain."""
    cell_size: float
    """Metres, the same for all terrains."""
    upper: Tensor | None = None
    """(N, X, Y) world metres: augmentation bounds, where all terrains have them."""
    lower: Tensor | None = None
    """(N, X, Y) world metres: augmentation bounds, where all terrains have them."""
    confidence: Tensor | None = None
    """(N, X, Y) in [0, 1], where any terrain has it; 1 in measured ones."""

    @classmethod
    def stack(cls, terrains: Sequence[Heightfield]) -> HeightfieldBatch:
        """Stack terrains of equal cell size; raises ``InputError`` where sizes differ."""
        if not terrains:
            raise InputError("terrains: the list is empty; give at least one terrain")
        cell = terrains[0].cell_size
        for k, terrain in enumerate(terrains):
            if abs(terrain.cell_size - cell) > 1e-6:
                raise InputError(
                    f"terrains[{k}].cell_size: {terrain.cell_size} differs from {cell} of the "
                    "first; a batch needs one cell size, resample the terrains first"
                )
        x_max = max(t.shape[0] for t in terrains)
        y_max = max(t.shape[1] for t in terrains)

        def pad(layer: Tensor) -> Tensor:
            rows = torch.arange(x_max, device=layer.device).clamp(max=layer.shape[0] - 1)
            cols = torch.arange(y_max, device=layer.device).clamp(max=layer.shape[1] - 1)
            return layer[rows][:, cols]

        upper = [pad(t.upper) for t in terrains if t.upper is not None]
        lower = [pad(t.lower) for t in terrains if t.lower is not None]
        known = None
        if any(t.confidence is not None for t in terrains):
            sure = (
                torch.ones_like(t.heights) if (c := t.confidence) is None else c for t in terrains
            )
            known = torch.stack([pad(layer) for layer in sure])
        return cls(
            heights=torch.stack([pad(t.heights) for t in terrains]),
            origin=torch.stack([t.origin for t in terrains]),
            size=torch.stack([t.size for t in terrains]),
            cell_size=cell,
            upper=torch.stack(upper) if len(upper) == len(terrains) else None,
            lower=torch.stack(lower) if len(lower) == len(terrains) else None,
            confidence=known,
        )

    def __len__(self) -> int:
        """Number of terrains."""
        return self.heights.shape[0]

    def index_of(self, xy: Tensor) -> Tensor:
        """Cells (N, ..., 2) long nearest to world points (N, ..., 2), clamped to each grid."""
        shape = (len(self), *([1] * (xy.ndim - 2)), 2)
        return cell_index(xy, self.origin.view(shape), self.size.view(shape), self.cell_size)

    def height_at(self, xy: Tensor) -> Tensor:
        """Heights (N, ...) under world points (N, ..., 2); edge cells extend outside."""
        ij = self.index_of(xy)
        n = torch.arange(len(self), device=ij.device).view(-1, *([1] * (xy.ndim - 2)))
        return self.heights[n, ij[..., 0], ij[..., 1]]

    def contains(self, xy: Tensor) -> Tensor:
        """Bool (N, ...): whether world points (N, ..., 2) lie on the physical ground."""
        shape = (len(self), *([1] * (xy.ndim - 2)), 2)
        low = (self.origin - self.cell_size / 2).view(shape)
        high = low + (self.size * self.cell_size).view(shape)
        return ((xy >= low) & (xy <= high)).all(dim=-1)

    def index_select(self, ids: Tensor) -> HeightfieldBatch:
        """The terrains ``ids`` (M,) long, in that order, repeats allowed."""
        return self._map(lambda tensor: tensor[ids])

    def expand(self, n: int) -> HeightfieldBatch:
        """A batch of one seen as ``n`` equal terrains, without copying."""
        return self._map(lambda tensor: tensor.expand(n, *tensor.shape[1:]))

    def to(self, device: torch.device | str) -> HeightfieldBatch:
        """The same batch on another device."""
        return self._map(lambda tensor: tensor.to(device))

    def get(self, i: int) -> Heightfield:
        """Terrain ``i`` without its padding."""
        x, y = (int(v) for v in self.size[i])
        return Heightfield(
            heights=self.heights[i, :x, :y].clone(),
            origin=self.origin[i].clone(),
            cell_size=self.cell_size,
            upper=None if self.upper is None else self.upper[i, :x, :y].clone(),
            lower=None if self.lower is None else self.lower[i, :x, :y].clone(),
            confidence=None if self.confidence is None else self.confidence[i, :x, :y].clone(),
        )

    def _map(self, function: Callable[[Tensor], Tensor]) -> HeightfieldBatch:
        return replace(
            self,
            heights=function(self.heights),
            origin=function(self.origin),
            size=function(self.size),
            upper=None if self.upper is None else function(self.upper),
            lower=None if self.lower is None else function(self.lower),
            confidence=None if self.confidence is None else function(self.confidence),
        )
