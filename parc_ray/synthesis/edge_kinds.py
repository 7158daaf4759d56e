"""What the steps of a path ask of the body: walk, climb, drop or jump."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from parc_ray.synthesis.waypoints import arc_lengths

WALK_STEP_M = 0.3
"""Steps up or down by at most this are walked: a little more than the highest stair of PARC's
terrains, 0.25 m."""
KINDS = ("walk", "climb", "drop", "jump")


def edge_kinds(rise_m: NDArray, jump: NDArray) -> tuple[str, ...]:
    """Kind of every step of a path.

    Args:
        rise_m: (E,) height of the cell entered over the cell left, metres.
        jump: (E,) bool, whether the step is one of the planner's jump edges.

    Returns:
        One of ``KINDS`` per step: jumps as the graph has them; of the others a rise above
        ``WALK_STEP_M`` is a climb and a fall below it a drop. PARC calls them all the same.
    """
    kinds = np.where(rise_m > WALK_STEP_M, "climb", np.where(rise_m < -WALK_STEP_M, "drop", "walk"))
    return tuple(np.where(jump, "jump", kinds).tolist())


def kinds_between(
    nodes: Tensor, kinds: Sequence[str], low_m: float, high_m: float
) -> tuple[str, ...]:
    """Kinds of the steps that lie between two arc lengths, each once, in the order of ``KINDS``.

    Args:
        nodes: (K, 3) nodes of the path, metres.
        kinds: (K - 1,) kind of every step between them.
        low_m: horizontal arc length where the stretch begins, metres.
        high_m: where it ends; a stretch of no length holds the step that it lies on.
    """
    arc = arc_lengths(nodes.double()).numpy()
    first = int(np.searchsorted(arc, low_m, side="right")) - 1
    last = int(np.searchsorted(arc, high_m, side="left")) - 1
    first = min(max(first, 0), len(kinds) - 1)
    seen = set(kinds[first : max(last, first) + 1])
    return tuple(kind for kind in KINDS if kind in seen)
