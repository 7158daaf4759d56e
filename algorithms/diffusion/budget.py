"""How much of its time a training has used, over all its sittings."""

from __future__ import annotations

import time

from algorithms.diffusion.config import TrainConfig


class Clock:
    """Wall and CPU time since a training began; earlier sittings are carried over."""

    def __init__(self, elapsed_s: float = 0.0, cpu_s: float = 0.0) -> None:
        """Start to count.

        Args:
            elapsed_s: wall time of earlier sittings, s.
            cpu_s: CPU time of earlier sittings, s.
        """
        self._elapsed_s, self._cpu_s = elapsed_s, cpu_s
        self._since, self._cpu_since = time.monotonic(), time.process_time()

    def seconds(self) -> float:
        """Wall time, s."""
        return self._elapsed_s + time.monotonic() - self._since

    def cpu_s(self) -> float:
        """CPU time of this process with all its threads, s."""
        return self._cpu_s + time.process_time() - self._cpu_since

    def spent(self, cfg: TrainConfig) -> float:
        """Share of the time budgets that is used up, the greater one; 0 without any budget."""
        wall = self.seconds() / cfg.max_seconds if cfg.max_seconds else 0.0
        cpu = self.cpu_s() / cfg.max_cpu_s if cfg.max_cpu_s else 0.0
        return max(wall, cpu)
