"""Changing a terrain and its way-points by hand: every change can be undone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from parc_ray.errors import InputError
from parc_ray.terrain.heightfield import Heightfield

_UNDO = 50
MAX_HEIGHT_M = 20.0
Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True, eq=False)
class _State:
    heights: Tensor
    waypoints: tuple[Point, ...]


@dataclass(kw_only=True, eq=False)
class TerrainEditor:
    """A terrain under work.

    Attributes:
        terrain: as it is now; bounds and confidence of a changed terrain are gone.
        waypoints: (x, y) m, in order.
    """

    terrain: Heightfield
    waypoints: tuple[Point, ...] = ()
    _past: list[_State] = field(default_factory=list)
    _future: list[_State] = field(default_factory=list)

    def raise_by(self, at: Point, amount_m: float, radius_m: float = 0.0) -> int:
        """Raise (or lower) the cells within ``radius_m`` of a point, at least its own.

        Returns:
            Number of cells changed.
        """
        cells = self._disc(at, radius_m)
        return self._change(cells, self.terrain.heights[cells] + _finite("amount", amount_m))

    def level(self, at: Point, height_m: float, radius_m: float = 0.0) -> int:
        """Give cells around a point one height; number of cells."""
        cells = self._disc(at, radius_m)
        heights = torch.full_like(self.terrain.heights[cells], _finite("height", height_m))
        return self._change(cells, heights)

    def stamp_box(self, at: Point, size_m: Sequence[float], height_m: float) -> int:
        """A box of ``size_m`` along x and y, as high above the ground at its centre; cells."""
        half = [_positive("size", s) / 2 for s in size_m]
        away = (self.terrain.cell_centers() - torch.tensor(at)).abs()
        cells = (away <= torch.tensor(half) + 1e-6).all(-1) | self._disc(at, 0.0)
        top = self._ground(at) + _finite("height", height_m)
        return self._change(cells, torch.full_like(self.terrain.heights[cells], top))

    def stamp_stairs(
        self,
        at: Point,
        *,
        steps: int,
        rise_m: float,
        run_m: float,
        width_m: float,
        heading_deg: float = 0.0,
    ) -> int:
        """Stairs that begin at a point and go up (or down) along a heading.

        Args:
            at: middle of the lower edge, m.
            steps: how many.
            rise_m: height of one; negative goes down.
            run_m: length of one.
            width_m: across.
            heading_deg: 0 along x, 90 along y.

        Returns:
            Number of cells changed.
        """
        if not 1 <= steps <= 100:
            raise InputError(f"steps: {steps}; allowed is 1 to 100")
        run, width = _positive("run", run_m), _positive("width", width_m)
        angle = math.radians(_finite("heading", heading_deg))
        ahead = torch.tensor([math.cos(angle), math.sin(angle)])
        away = self.terrain.cell_centers() - torch.tensor(at)
        along = away @ ahead
        across = (away @ torch.tensor([-ahead[1], ahead[0]])).abs()
        # Cells count by their centres; half a cell of slack keeps narrow stairs whole.
        slack = self.terrain.cell_size / 2
        cells = (along > -1e-6) & (along < steps * run - 1e-6)
        cells &= across <= max(width / 2, slack) + 1e-6
        number = torch.floor(along[cells] / run + 1e-6) + 1.0
        return self._change(cells, self._ground(at) + number * _finite("rise", rise_m))

    def add_waypoint(self, at: Point) -> None:
        """The path goes on to here."""
        if not bool(self.terrain.contains(torch.tensor(at))):
            raise InputError(f"way-point ({at[0]:.2f}, {at[1]:.2f}): is off the terrain; move it")
        self._remember()
        self.waypoints = (*self.waypoints, (float(at[0]), float(at[1])))

    def remove_waypoint(self) -> None:
        """Without the last one."""
        if self.waypoints:
            self._remember()
            self.waypoints = self.waypoints[:-1]

    def clear_waypoints(self) -> None:
        """Without any."""
        if self.waypoints:
            self._remember()
            self.waypoints = ()

    def undo(self) -> bool:
        """Back by one change; whether there was one."""
        return self._swap(self._past, self._future)

    def redo(self) -> bool:
        """Forward again; whether there was anything."""
        return self._swap(self._future, self._past)

    def waypoints_w(self) -> Tensor:
        """(M, 3) m: the way-points on the ground."""
        xy = torch.tensor(self.waypoints, dtype=torch.float32).reshape(-1, 2)
        return torch.cat((xy, self.terrain.height_at(xy)[:, None]), dim=-1)

    def _ground(self, at: Point) -> float:
        return float(self.terrain.height_at(torch.tensor(at)))

    def _disc(self, at: Point, radius_m: float) -> Tensor:
        """Bool (X, Y): cells whose centre is within a radius, and the one that the point is on."""
        point = torch.tensor(at)
        if not bool(self.terrain.contains(point)):
            raise InputError(f"({at[0]:.2f}, {at[1]:.2f}): is off the terrain; click on it")
        cells = (self.terrain.cell_centers() - point).norm(dim=-1) <= radius_m + 1e-6
        i, j = self.terrain.index_of(point).tolist()
        cells[i, j] = True
        return cells

    def _change(self, cells: Tensor, heights: Tensor) -> int:
        if heights.numel() and float(heights.abs().max()) > MAX_HEIGHT_M:
            raise InputError(
                f"height: {float(heights.abs().max()):.1f} m; allowed is up to {MAX_HEIGHT_M:g} m; "
                "give less"
            )
        self._remember()
        new = self.terrain.heights.clone()
        new[cells] = heights.to(new.dtype)
        changed = int((new != self.terrain.heights).sum())
        self.terrain = replace(self.terrain, heights=new, upper=None, lower=None, confidence=None)
        return changed

    def _state(self) -> _State:
        return _State(heights=self.terrain.heights, waypoints=self.waypoints)

    def _remember(self) -> None:
        self._past = [*self._past[-_UNDO + 1 :], self._state()]
        self._future = []

    def _swap(self, source: list[_State], target: list[_State]) -> bool:
        if not source:
            return False
        target.append(self._state())
        state = source.pop()
        self.terrain = replace(
            self.terrain, heights=state.heights, upper=None, lower=None, confidence=None
        )
        self.waypoints = state.waypoints
        return True


def _finite(name: str, value: float) -> float:
    if not math.isfinite(value):
        raise InputError(f"{name}: {value}; a finite number is needed")
    return float(value)


def _positive(name: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{name}: {value}; a number above 0 is needed")
    return float(value)
