"""Making random terrain passable before a path is planned over it."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from parc_ray.errors import InputError
from parc_ray.terrain.heightfield import Heightfield


def flat_maxpool_2x2(heights: Tensor) -> Tensor:
    """Raise every 2 x 2 block of (X, Y) to its highest cell; removes walls and gaps of one cell.

    Blocks do not overlap; the last row or column of an odd size stays as it is. A new tensor.
    """
    out = heights.clone()
    x, y = (n // 2 * 2 for n in heights.shape)
    blocks = out[:x, :y].reshape(x // 2, 2, y // 2, 2)
    out[:x, :y] = blocks.amax(dim=(1, 3), keepdim=True).expand_as(blocks).reshape(x, y)
    return out


def flatten_around(heights: Tensor, node: tuple[int, int]) -> Tensor:
    """Give 4 x 4 cells around ``node`` its height, so that a motion can start or end there.

    The block begins at an even index and holds the node in its middle 2 x 2 cells; what reaches
    over the border is left out. A new tensor (X, Y).
    """
    for axis, index in enumerate(node):
        if not 0 <= index < heights.shape[axis]:
            raise InputError(
                f"node[{axis}]: {index} is outside the terrain; allowed are 0 to "
                f"{heights.shape[axis] - 1}"
            )
    out = heights.clone()
    first = [i - 2 if i % 2 == 0 else i - 1 for i in node]
    rows, cols = (slice(max(f, 0), f + 4) for f in first)
    out[rows, cols] = heights[node[0], node[1]]
    return out


def simplified(terrain: Heightfield) -> Heightfield:
    """The terrain after ``flat_maxpool_2x2``, without bounds (they belong to old heights)."""
    return replace(terrain, heights=flat_maxpool_2x2(terrain.heights), upper=None, lower=None)
