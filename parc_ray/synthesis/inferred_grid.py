"""From levels and swept free space to a grid of columns.

Evidence is gathered on a fine grid: seconds that bodies rested on each level in a cell (votes) and
the lowest body point ever above it (bound). Fine cells take the level of the nearest rest that
their bound allows; blocks of them are then pooled to the wanted cell size, at the phase and with
the levels that contradict the evidence least, and borders are smoothed where nothing speaks against
it (a Potts model, solved by iterated conditional modes).

Legend: L levels (a pit, if any, is the last one), (X, Y) fine cells, (I, J) cells of the result;
metres, world frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from parc_ray.synthesis.contact_events import ContactEvent
from parc_ray.synthesis.inference_config import InferenceConfig
from parc_ray.synthesis.inferred_levels import Level

PIT_CONFIDENCE = 0.05
"""Greatest confidence of a pit: that there is one is seen, its height is a mere guess."""

SKIN_M = 0.01
"""How far a body may reach into a cell without telling of it: feet sink that far into walls."""

CENTRAL = 0.35
"""A rest this near to the centre of a cell, as a share of the cell, tells all of its height."""

PASSING_S = 0.001
"""s that one point of a sole counts for where it only passes."""

_MOST_RISE_M = 0.5
_SWEEPS = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class FineGrid:
    """The fine grid and the lowest body point ever above each of its cells."""

    low: np.ndarray
    """(2,) m, lower corner."""
    cell: float
    """m."""
    bound: np.ndarray
    """(X, Y) m, infinite where nothing passed."""

    def cells(self, xy: np.ndarray) -> np.ndarray:
        """Cell indices (K, 2) of points (K, 2), clamped to the grid."""
        index = np.floor((xy - self.low) / self.cell).astype(np.int64)
        return np.clip(index, 0, np.array(self.bound.shape) - 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Pit:
    """A pit of unknown depth below all levels."""

    height: float
    """m."""
    xy: np.ndarray
    """(K, 2) m, places over it."""
    edge: np.ndarray
    """(E, 2) m, places on the lowest level that soles touched in passing."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """What speaks for each level where."""

    levels: np.ndarray
    """(L,) m."""
    certainty: np.ndarray
    """(L,) confidence of each level itself."""
    votes: np.ndarray
    """(L, X, Y) s of rests."""
    distance: np.ndarray
    """(L, X, Y) m to the nearest rest or touch; infinite where the level may not reach."""
    rest_distance: np.ndarray
    """(L, X, Y) m to the nearest rest, for the confidence."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Pooled:
    """Cells of the result."""

    label: np.ndarray
    """(I, J) index of the level."""
    origin: np.ndarray
    """(2,) m, centre of cell (0, 0)."""
    confidence: np.ndarray
    """(I, J) 0 to 1."""


def make_grid(points: np.ndarray, config: InferenceConfig) -> FineGrid:
    """The grid around body points (K, 3) of all frames."""
    cell, coarse = config.fine_cell, config.cell_size
    shift = 0.0 if config.phase is None else np.array(config.phase) - coarse / 2
    low = np.floor((points[:, :2].min(0) - config.margin - shift) / coarse) * coarse + shift
    high = np.ceil((points[:, :2].max(0) + config.margin - shift) / coarse) * coarse + shift
    # one coarse cell more on each side leaves room to shift the coarse grid by any phase
    low, high = low - coarse, high + coarse
    shape = np.round((high - low) / cell).astype(int)
    place = (points[:, :2] - low) / cell
    index = np.floor(place).astype(np.int64)
    inner = (np.abs(place - index - 0.5) < 0.5 - SKIN_M / cell).all(axis=1)
    index, points = index[inner], points[inner]
    bound = np.full(shape, np.inf)
    np.minimum.at(bound.reshape(-1), index[:, 0] * shape[1] + index[:, 1], points[:, 2])
    return FineGrid(low=low, cell=cell, bound=bound)


def gather(
    levels: Sequence[Level],
    pit: Pit | None,
    grid: FineGrid,
    config: InferenceConfig,
) -> Evidence:
    """Votes and distances of all levels.

    Args:
        levels: ascending; at least one.
        pit: becomes the last level.
        grid: the fine grid.
        config: reach of blocks.
    """
    count = len(levels) + (pit is not None)
    votes = np.zeros((count, *grid.bound.shape))
    distance = np.full(votes.shape, np.inf)
    for k, level in enumerate(levels):
        for event in level.events:
            cells = np.unique(grid.cells(event.xy), axis=0)
            votes[k, cells[:, 0], cells[:, 1]] += (event.stop - event.start) / config.rate_hz
        if level.kind == "hand":
            distance[k] = _block_distance(level.events, grid, config)
        else:
            distance[k] = _nearest(votes[k], grid.cell)
    rest_distance = distance.copy()
    heights, certainty = [v.height for v in levels], [v.confidence for v in levels]
    if pit is not None:
        for row, places in ((0, pit.edge), (-1, pit.xy)):
            cells = grid.cells(places)
            np.add.at(votes[row], (cells[:, 0], cells[:, 1]), PASSING_S)
        votes[-1, votes[:-1].sum(axis=0) >= votes[-1]] = 0.0
        distance[0] = _nearest(votes[0], grid.cell)
        distance[-1] = _nearest(votes[-1], grid.cell)
        distance[-1, distance[-1] > config.gap_reach] = np.inf
        rest_distance[-1] = distance[-1]
        heights, certainty = [*heights, pit.height], [*certainty, PIT_CONFIDENCE]
    return Evidence(
        levels=np.array(heights),
        certainty=np.array(certainty),
        votes=votes,
        distance=distance,
        rest_distance=rest_distance,
    )


def pool(evidence: Evidence, grid: FineGrid, config: InferenceConfig) -> Pooled:
    """The cells, phase and labels that contradict the evidence least."""
    label = _label(evidence, grid, config)
    cost = _level_cost(evidence, label, grid, config)
    size = round(config.cell_size / grid.cell)
    phases = [(0, 0)] if config.phase is not None else list(np.ndindex(size, size))
    sums = _running_sum(cost)
    pooled = [_block_sum(sums, size, phase) for phase in phases]
    totals = np.array([p.min(axis=0).sum() for p in pooled])
    best = int(np.flatnonzero(totals <= totals.min() + 1e-9)[0])
    phase, data = phases[best], pooled[best]
    chosen = _smoothed(data, evidence.levels, config.smoothing * 0.25 * size**2)
    blocks = tuple(slice(p, p + n * size) for p, n in zip(phase, chosen.shape, strict=True))
    fine = (chosen.shape[0], size, chosen.shape[1], size)
    near = _from_centre(evidence.rest_distance[(slice(None), *blocks)].reshape(-1, *fine))
    near = np.clip(near - CENTRAL * config.cell_size, 0.0, None)
    known = np.exp2(-near / config.known_distance) * evidence.certainty[:, None, None]
    confidence = np.take_along_axis(known, chosen[None], axis=0)[0]
    agrees = label[blocks].reshape(fine) == chosen[:, None, :, None]
    return Pooled(
        label=chosen,
        origin=grid.low + (np.array(phase) + size / 2) * grid.cell,
        confidence=confidence * agrees.mean(axis=(1, 3)),
    )


def _from_centre(distance: np.ndarray) -> np.ndarray:
    """Distance (L, I, J) from the centres of cells, of fine cells (L, I, size, J, size)."""
    size = distance.shape[2]
    low, high = (size - 1) // 2, size // 2 + 1
    return distance[:, :, low:high, :, low:high].mean(axis=(2, 4))


def _nearest(votes: np.ndarray, cell: float) -> np.ndarray:
    """Distance (X, Y) in m to the nearest cell with votes."""
    if not votes.any():
        return np.full(votes.shape, np.inf)
    return np.asarray(ndimage.distance_transform_edt(votes == 0)) * cell


def _block_distance(
    events: Sequence[ContactEvent], grid: FineGrid, config: InferenceConfig
) -> np.ndarray:
    """Distance (X, Y) from rests of hands, with what lies across the travel drawn nearer.

    Whoever vaults crosses a wall or a box the short way, so it is taken to be longer across the
    travel than along it.
    """
    squeeze = config.hand_block / config.hand_block_width
    axes = [grid.low[a] + (np.arange(n) + 0.5) * grid.cell for a, n in enumerate(grid.bound.shape)]
    x, y = np.meshgrid(*axes, indexing="ij")
    best = np.full(grid.bound.shape, np.inf)
    for event in events:
        ux, uy = event.heading
        for px, py in event.xy:
            along, across = (x - px) * ux + (y - py) * uy, (y - py) * ux - (x - px) * uy
            best = np.minimum(best, np.hypot(along, squeeze * across))
        cells = grid.cells(event.xy)
        best[cells[:, 0], cells[:, 1]] = 0.0
    return np.where(best <= config.hand_block, best, np.inf)


def _label(evidence: Evidence, grid: FineGrid, config: InferenceConfig) -> np.ndarray:
    """Index (X, Y) of the nearest level that the bound allows; else the lowest level."""
    allowed = evidence.levels[:, None, None] <= grid.bound + config.headroom
    cost = np.where(allowed, evidence.distance, np.inf)
    label = cost.argmin(axis=0)
    label[~np.isfinite(cost.min(axis=0))] = int(evidence.levels.argmin())
    return label


def _level_cost(
    evidence: Evidence, label: np.ndarray, grid: FineGrid, config: InferenceConfig
) -> np.ndarray:
    """Cost (L, X, Y) of giving a fine cell each level, in m of contradicted evidence."""
    levels = evidence.levels
    above = levels[:, None, None]
    sunk = np.clip(above - grid.bound - config.headroom, 0.0, None)
    differs = np.minimum(np.abs(above - levels[label]), _MOST_RISE_M)
    cost = 4.0 * sunk + 0.25 * differs
    for k, seconds in enumerate(evidence.votes):
        rise = np.minimum(np.abs(levels - levels[k]), _MOST_RISE_M)
        cost += 8.0 * np.minimum(seconds, 0.5) * rise[:, None, None]
    return cost


def _running_sum(values: np.ndarray) -> np.ndarray:
    """Sums (L, X + 1, Y + 1) of all values below and left of each corner."""
    return np.pad(values.cumsum(axis=1).cumsum(axis=2), ((0, 0), (1, 0), (1, 0)))


def _block_sum(sums: np.ndarray, size: int, phase: tuple[int, int]) -> np.ndarray:
    """Sums (L, I, J) over ``size`` x ``size`` blocks that start at ``phase``."""
    x, y = (slice(p, None, size) for p in phase)
    corners = sums[:, x, y]
    return np.diff(np.diff(corners, axis=1), axis=2)


def _smoothed(data: np.ndarray, levels: np.ndarray, weight: float) -> np.ndarray:
    """Labels (I, J) of least data cost (L, I, J) plus ``weight`` m per m of step to a neighbour.

    Cells of one colour of a chessboard move at a time, so every sweep lowers the total.
    """
    label = data.argmin(axis=0)
    if len(levels) == 1 or weight <= 0.0:
        return label
    rise = np.minimum(np.abs(levels[:, None] - levels[None]), _MOST_RISE_M)
    black = np.add.outer(np.arange(label.shape[0]), np.arange(label.shape[1])) % 2 == 0
    for _ in range(_SWEEPS):
        before = label
        for colour in (black, ~black):
            edge = np.pad(label, 1, mode="edge")
            around = (edge[2:, 1:-1], edge[:-2, 1:-1], edge[1:-1, 2:], edge[1:-1, :-2])
            total = data + weight * sum(rise[:, other] for other in around)
            label = np.where(colour, total.argmin(axis=0), label)
        if np.array_equal(before, label):
            break
    return label
