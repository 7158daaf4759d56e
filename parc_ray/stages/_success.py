"""How much of what earlier iterations generated was corrected, and the difficulty that follows."""

from __future__ import annotations

from dataclasses import replace

from parc_ray.config import IterationConfig, ParcConfig
from parc_ray.stages._datasets import read_manifest
from parc_ray.stages.base import StageRun
from parc_ray.terrain.curriculum import scaled

_MADE, _KEPT = "motions_", "recorded_"


def success_shares(run: StageRun) -> dict[int, float]:
    """Share (0 to 1) of the generated seconds that correction kept, by iteration.

    The inputs ``motions_NN`` and ``recorded_NN`` are the data sets of iteration NN; their hashes
    are part of what decides the stage, so the shares are as well. Nothing generated is share 0.
    """
    shares = {}
    for name in sorted(run.inputs):
        if name.startswith(_MADE):
            number = name.removeprefix(_MADE)
            made, kept = (read_manifest(run, f"{word}{number}") for word in (_MADE, _KEPT))
            shares[int(number)] = min(kept.seconds / made.seconds, 1.0) if made.seconds else 0.0
    return shares


def row_and_factor(run: StageRun) -> tuple[IterationConfig, float]:
    """Settings of the iteration, at the difficulty that its curriculum asks for, and the factor."""
    config: ParcConfig = run.ctx.config
    row, curriculum = config.row(run.ctx.iteration), config.curriculum
    if curriculum.by == "schedule":
        return row, curriculum.factor(run.ctx.iteration)
    shares = success_shares(run)
    factor = curriculum.factor_after([shares[k] for k in sorted(shares)])
    said = ", ".join(f"iteration {k} {100 * v:.0f} %" for k, v in shares.items()) or "nothing yet"
    run.log.info(
        "[%s] terrain difficulty times %.3g; corrected: %s",
        run.ctx.stage_path(run.name),
        factor,
        said,
    )
    return replace(row, terrain=scaled(row.terrain, factor)), factor
