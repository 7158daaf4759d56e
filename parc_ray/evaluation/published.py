"""Figures that the PARC paper prints (arXiv 2505.04002v1, tables 1 to 3), to stand beside ours.

They were made on other terrains, with other data and budgets, and partly by another definition
(docs/design/synthesis.md, Metrics); every table that shows them says whose they are.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """One row of the paper's tables.

    Attributes:
        label: as the table names it.
        iteration: generator of this iteration; None for the run without physics correction.
        fwd_m, tpl, tcl, hjf_percent: table 1 or 3.
        success_percent, joint_error_m: table 2, where it has the row.
        s: blend coefficient.
    """

    label: str
    iteration: int | None
    fwd_m: float
    tpl: float
    tcl: float
    hjf_percent: float
    success_percent: float | None = None
    joint_error_m: float | None = None
    s: float = 0.65


def _row(iteration: int, *values: float) -> PublishedRow:
    fwd, tpl, tcl, hjf, success, error = values
    return PublishedRow(
        label=f"iteration {iteration}",
        iteration=iteration,
        fwd_m=fwd,
        tpl=tpl,
        tcl=tcl,
        hjf_percent=hjf,
        success_percent=success,
        joint_error_m=error,
    )


def _blend(s: float, *values: float) -> PublishedRow:
    fwd, tpl, tcl, hjf = values
    return PublishedRow(
        label=f"s = {s:g}", iteration=4, fwd_m=fwd, tpl=tpl, tcl=tcl, hjf_percent=hjf, s=s
    )


ITERATIONS = (
    _row(1, 1.908, 2093, 114.1, 10.70, 27, 0.08294),
    _row(2, 1.586, 705.5, 9.761, 4.387, 44, 0.05851),
    _row(3, 0.747, 448.2, 8.070, 3.238, 60, 0.05321),
    _row(4, 0.596, 179.6, 9.763, 2.730, 68, 0.05167),
)
"""Tables 1 and 2, by iteration."""
WITHOUT_PHYSICS = PublishedRow(
    label="no physics correction",
    iteration=None,
    fwd_m=1.572,
    tpl=547.3,
    tcl=17.44,
    hjf_percent=18.68,
)
"""Table 1, last row: one iteration of uncorrected motions; compare with iteration 2."""
BLENDS = (
    _blend(0.0, 0.908, 40796, 185.3, 1.479),
    _blend(0.25, 0.776, 7411, 44.93, 1.113),
    _blend(0.5, 0.571, 4872, 32.58, 1.017),
    _blend(0.65, 0.596, 179.6, 9.763, 2.730),
    _blend(0.75, 0.574, 132.2, 7.718, 8.434),
    _blend(1.0, 0.537, 129.8, 6.751, 54.82),
)
"""Table 3: the generator of iteration 4 over s."""


def published_iteration(iteration: int) -> PublishedRow | None:
    """The paper's row of an iteration, or None where it has none."""
    found = [row for row in ITERATIONS if row.iteration == iteration]
    return found[0] if found else None
