"""A guard for long trainings: samples that have stopped moving.

Squared errors reward the mean pose, so that a network can go on lowering its loss while its samples
freeze; a long run would only show it at its end.
"""

from __future__ import annotations

import logging

from algorithms.diffusion.config import TrainConfig

log = logging.getLogger(__name__)


class FrozenGuard:
    """Counts reports in a row whose samples move too little.

    A young network answers with the mean pose too. Reports count once samples have moved enough, or
    after ``frozen_after`` steps if they never have.
    """

    def __init__(self, cfg: TrainConfig) -> None:
        """Keep the limits."""
        self.cfg = cfg
        self.still = 0
        self.moved = False

    def check(self, step: int, figures: dict[str, float]) -> bool:
        """Take in a report; whether the training is to be given up.

        Args:
            step: optimiser steps so far.
            figures: of ``probe``, with ``sample_energy_ratio``.
        """
        ratio = figures.get("sample_energy_ratio", 1.0)
        if ratio >= self.cfg.min_energy_ratio:
            self.moved, self.still = True, 0
            return False
        if not self.moved and step <= self.cfg.frozen_after:
            return False
        self.still += 1
        log.warning(
            "step %d: samples move with %.3f of the data's energy, below %.3f (%d of %d reports)",
            step,
            ratio,
            self.cfg.min_energy_ratio,
            self.still,
            self.cfg.frozen_reports,
        )
        return self.still >= self.cfg.frozen_reports
