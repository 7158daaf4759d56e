"""A table that grows row by row without being held twice."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_GROWTH = 1.25


class RowBuffer:
    """Rows of float32 in one block of memory, which the system enlarges in place."""

    def __init__(self, width: int) -> None:
        """An empty table of ``width`` columns."""
        self._data = np.empty((0, width), dtype=np.float32)
        self._rows = 0

    def append(self, rows: Tensor) -> None:
        """Add rows (n, width)."""
        end = self._rows + len(rows)
        if end > len(self._data):
            self._resize(max(end, int(len(self._data) * _GROWTH), 1024))
        self._data[self._rows : end] = rows.numpy()
        self._rows = end

    def take(self) -> Tensor:
        """All rows (n, width), sharing the memory; the buffer is empty afterwards."""
        self._resize(self._rows)
        data, self._data = self._data, np.empty((0, self._data.shape[1]), dtype=np.float32)
        self._rows = 0
        return torch.from_numpy(data)

    def _resize(self, rows: int) -> None:
        # No view of the array outlives a call, so the check of references is not needed.
        self._data.resize((rows, self._data.shape[1]), refcheck=False)
