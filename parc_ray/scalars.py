"""Scalars of every stage in one log tree: TensorBoard events and a plain CSV beside them.

``<run>/logs/it_NN/<stage>/`` holds event files and ``scalars.csv`` (step, tag, value, wall time).
``tensorboard --logdir <run>/logs`` shows the whole run; ``read_scalars`` gives the same numbers
to the report without TensorBoard.
"""

from __future__ import annotations

import csv
import io
import math
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tensorboardX import SummaryWriter

from parc_ray.data.storage import Storage
from parc_ray.driver_record import drives

LOGS = "logs"
CSV_NAME = "scalars.csv"
_SEND_S = 30.0
_COLUMNS = ("step", "tag", "value", "wall_unix_s")


@dataclass(frozen=True, kw_only=True)
class ScalarRow:
    """One logged number."""

    group: str
    """Log directory below ``logs``, for example ``it_01/train-tracker``."""
    tag: str
    step: int
    value: float
    wall_unix_s: float


class ScalarWriter:
    """Appends scalars to one directory of the log tree.

    On remote storage the files are written locally and sent at most once in half a minute and by
    ``flush`` and ``close``. Safe to create again after a kill: the CSV is continued, and readers
    keep the last value per step.
    """

    def __init__(self, storage: Storage, path: str, *, part: str = "") -> None:
        """Open directory ``path`` of ``storage``.

        Args:
            storage: where the log tree is.
            path: directory in it.
            part: distinguishes writers that write to one directory at the same time.
        """
        self._storage, self._path = storage, path
        self._csv_name = f"scalars-{part}.csv" if part else CSV_NAME
        self._staging = None if storage.is_local else tempfile.TemporaryDirectory()
        if self._staging is None:
            self._local = storage.local_path(path)
            self._local.mkdir(parents=True, exist_ok=True)
        else:
            self._local = Path(self._staging.name)
            if storage.exists(f"{path}/{self._csv_name}"):
                old = storage.read_bytes(f"{path}/{self._csv_name}")
                (self._local / self._csv_name).write_bytes(old)
        self._events: SummaryWriter | None = None
        self._rows: list[tuple[int, str, float, float]] = []
        self._checked = False
        self._sent_s = time.monotonic()

    def add(self, tag: str, value: float, step: int) -> None:
        """Log one number."""
        if self._events is None:  # no empty event file for a stage that logs nothing
            self._events = SummaryWriter(str(self._local), flush_secs=30)
        now = time.time()
        self._events.add_scalar(tag, float(value), step, walltime=now)
        self._rows.append((int(step), tag, float(value), now))
        if self._staging is not None and time.monotonic() - self._sent_s > _SEND_S:
            self.flush()
        elif len(self._rows) >= 256:
            self._write_rows()

    def add_all(self, values: Mapping[str, float], step: int) -> None:
        """Log several numbers at one step; what is not finite is left out."""
        for tag, value in values.items():
            if math.isfinite(value):
                self.add(tag, value, step)

    def flush(self) -> None:
        """Make everything logged so far readable by others."""
        self._write_rows()
        if self._events is not None:
            self._events.flush()
        self._send()

    def _send(self) -> None:
        if self._staging is not None:
            self._sent_s = time.monotonic()
            for file in sorted(self._local.iterdir()):
                self._storage.write_bytes_atomic(f"{self._path}/{file.name}", file.read_bytes())

    def close(self) -> None:
        """Flush and release the files. Calling it twice does no harm."""
        self._write_rows()
        self._close_events()  # which writes what its thread has not written yet
        self._send()
        self._release()

    def _close_events(self) -> None:
        if self._events is not None:
            self._events.close()
            self._events = None

    def _release(self) -> None:
        self._close_events()
        if self._staging is not None:
            self._staging.cleanup()
            self._staging = None

    def __enter__(self) -> ScalarWriter:
        """Use as a context manager."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close, whatever happened; a driver interrupted for its lost lock sends nothing more."""
        if self._staging is not None and kind is KeyboardInterrupt and not drives(self._storage):
            self._release()
        else:
            self.close()

    def _write_rows(self) -> None:
        if not self._rows:
            return
        path = self._local / self._csv_name
        present = path.read_bytes() if path.exists() and not self._checked else b""
        fresh, self._checked = not path.exists(), True
        with path.open("a", newline="") as file:
            writer = csv.writer(file)
            if fresh:
                writer.writerow(_COLUMNS)
            elif present and not present.endswith(b"\n"):
                file.write("\r\n")  # a kill cut the last line short
            writer.writerows((s, tag, repr(v), f"{t:.3f}") for s, tag, v, t in self._rows)
        self._rows.clear()


def read_scalars(run: Storage) -> list[ScalarRow]:
    """All scalars of a run; where a step was logged twice (after a kill) the later value counts.

    Lines cut short by a kill are left out. Sorted by group, tag and step.
    """
    rows: dict[tuple[str, str, int], ScalarRow] = {}
    for name in run.list(LOGS, recursive=True, suffix=".csv"):
        group = name[len(LOGS) + 1 :].rpartition("/")[0]
        text = run.read_bytes(name).decode(errors="replace")
        for row in _parse(group, csv.DictReader(io.StringIO(text))):
            key = (row.group, row.tag, row.step)
            if key not in rows or rows[key].wall_unix_s <= row.wall_unix_s:
                rows[key] = row
    return [rows[key] for key in sorted(rows)]


def _parse(group: str, lines: Iterable[Mapping[str, str | None]]) -> Iterable[ScalarRow]:
    for line in lines:
        try:
            yield ScalarRow(
                group=group,
                tag=str(line["tag"]),
                step=int(line["step"] or ""),
                value=float(line["value"] or ""),
                wall_unix_s=float(line["wall_unix_s"] or ""),
            )
        except ValueError:
            continue
