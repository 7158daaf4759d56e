"""Rows of training figures: JSON lines, TensorBoard and a callback."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
from tensorboardX.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
from tensorboardX.summary import image as image_summary
from tensorboardX.summary import scalar as scalar_summary

MetricsCallback = Callable[[dict[str, float]], None]


class MetricsLog:
    """Writes rows; when a run resumes, rows beyond its step are dropped first."""

    def __init__(
        self,
        directory: Path,
        *,
        step: int = 0,
        callback: MetricsCallback | None = None,
        tag: str = "generator",
    ) -> None:
        """Open ``directory/metrics.jsonl`` and an event file beside it.

        Args:
            directory: made if missing.
            step: rows with a larger ``step`` are of a run that was cut off and are removed.
            callback: called with every row.
            tag: prefix of the scalars' names.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / "metrics.jsonl"
        self.tag, self.callback = tag, callback
        kept = [row for row in read_rows(self.path) if row["step"] <= step]
        self.path.write_text("".join(json.dumps(row) + "\n" for row in kept))
        self.last: dict[str, float] = kept[-1] if kept else {}
        (directory / "tb").mkdir(exist_ok=True)
        # Not SummaryWriter, whose thread writes later than its ``flush`` returns.
        self._events = EventsWriter(str(directory / "tb" / "events"))
        # TensorBoard leaves out what earlier files have of this step and later ones.
        start = SessionLog(status=SessionLog.START)
        self._events.write_event(Event(step=step + 1, wall_time=time.time(), session_log=start))
        self._closed = False

    def write(self, row: dict[str, float]) -> None:
        """Append a row; it has a ``step``."""
        self.last = row
        with self.path.open("a") as f:
            f.write(json.dumps(row) + "\n")
        for name, value in row.items():
            if name != "step":
                self._add(scalar_summary(f"{self.tag}/{name}", value), int(row["step"]))
        if self.callback is not None:
            self.callback(row)

    def picture(self, name: str, image: NDArray[np.uint8], step: int) -> None:
        """Add an RGB picture (H, W, 3) to the event file."""
        self._add(image_summary(f"{self.tag}/{name}", image, dataformats="HWC"), step)

    def _add(self, summary: Summary, step: int) -> None:
        self._events.write_event(Event(step=step, wall_time=time.time(), summary=summary))

    def flush(self) -> None:
        """Bring everything that was written into the files."""
        self._events.flush()

    def close(self) -> None:
        """Flush and close the event file. Calling it twice does no harm."""
        if not self._closed:
            self._closed = True
            self._events.close()

    def __enter__(self) -> MetricsLog:
        """Use as a context."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()


def read_rows(path: Path) -> list[dict[str, float]]:
    """Rows of a metrics file; a last line that was cut off is ignored."""
    rows: list[dict[str, float]] = []
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                break
    return rows
