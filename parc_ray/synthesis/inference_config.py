"""Settings of terrain inference. Why each has its value: docs/design/data.md, Inferred terrain."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from parc_ray.errors import InputError
from parc_ray.synthesis.contact_events import EventConfig


@dataclass(frozen=True, kw_only=True)
class InferenceConfig:
    """How a terrain is inferred. Measured, see docs/design/data.md, Inferred terrain."""

    cell_size: float = 0.4
    """m, cell size of the result. PARC: 0.4."""
    margin: float = 1.2
    """m of ground around everything that the body passes over."""
    rate_hz: float = 60.0
    """Rate at which the motion is looked at."""
    fine_cell: float = 0.1
    """m, fine grid; the cell size must be a multiple of it."""
    phase: tuple[float, float] | None = None
    """m, world xy of any cell centre of the result where the grid is known; None finds a phase."""
    events: EventConfig = field(default_factory=EventConfig)
    """When feet and hands count as resting."""
    level_tolerance: float = 0.06
    """m, foot rests within this height are one level."""
    hand_snap: float = 0.08
    """m, a hand rest this close to a foot level belongs to it."""
    hand_tolerance: float = 0.12
    """m, hand rests within this height are one level."""
    lattice_tolerance: float = 0.015
    """m, levels this close to regular steps are moved onto them."""
    brace_s: float = 0.1
    """s, a level with less contact than this may be a foot braced on a wall."""
    brace_reach: float = 0.35
    """m, how near such a wall stands ..."""
    brace_rise: float = 0.5
    """m, ... and how far it rises above the braced foot, at the least."""
    headroom: float = 0.03
    """m, how far ground may reach into the space that the body swept."""
    hand_block: float = 0.45
    """m, how far a level that only hands touched reaches along the travel, from the hands."""
    hand_block_width: float = 1.2
    """m, how far it reaches across the travel."""
    smoothing: float = 0.1
    """Cost of a border between cells of two levels, as a share of what a wrong cell costs."""
    gaps: Literal["none", "seen", "jumped"] = "seen"
    """Pits under flights. seen: where a foot dips below every level; jumped: also under the middle
    of long jumps, a mere guess; none: never."""
    gap_dip: float = 0.04
    """m, a flying foot this far below every level shows a pit."""
    gap_edge: float = 0.015
    """m, a point of a sole this close to the lowest level ..."""
    gap_touch: float = 2.0
    """m/s, ... and slower than this stands on the edge of a pit and ends a flight."""
    gap_reach: float = 0.5
    """m, how far a pit reaches from where it shows."""
    gap_depth: float = 0.5
    """m, how far below the lowest point over it the bottom of a pit is put."""
    jump_s: float = 0.35
    """s, shortest flight with a pit under it if ``gaps`` is "jumped"."""
    known_distance: float = 0.3
    """m from the nearest rest at which confidence has fallen to one half. With 0.3 confidence is
    about the share of cells that are right on PARC's two published terrains, both rough."""
    certain_s: float = 0.2
    """s of contact after which a level is certain; less gives proportionally less confidence."""

    def __post_init__(self) -> None:
        """Check the cell sizes and the name of the rule for gaps."""
        ratio = self.cell_size / self.fine_cell if self.fine_cell > 0 else 0.0
        if ratio < 0.999 or abs(ratio - round(ratio)) > 1e-6:
            raise InputError(
                f"cell_size: {self.cell_size:g} m; multiples of the fine cell "
                f"({self.fine_cell:g} m) are allowed; choose 0.1, 0.2, 0.3, 0.4 ..."
            )
        if self.gaps not in ("none", "seen", "jumped"):
            raise InputError(f"gaps: {self.gaps!r}; none, seen or jumped is allowed; use seen")
        for name in ("known_distance", "certain_s", "hand_block", "hand_block_width", "rate_hz"):
            if not 0.0 < getattr(self, name) < float("inf"):
                raise InputError(f"{name}: {getattr(self, name)}; a number above 0 is allowed")
