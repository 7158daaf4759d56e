"""What all benchmarks share: options, a table, the JSON line, CPU time, memory of a process tree.

A benchmark prints a table of its figures beside a peer's or a limit, and as its last line one JSON
object. CPU time is what is compared: it does not depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure of a benchmark."""

    name: str
    """What was measured."""
    ours: float
    """Our figure."""
    other: float | None = None
    """The peer's figure, or the limit."""
    label: str = ""
    """What the other figure is: "limit", "published code (quoted)", ..."""
    unit: str = ""
    """Unit of both."""
    note: str = ""
    """How it was measured: CPU-seconds, threads, batch."""


def parser(description: str) -> argparse.ArgumentParser:
    """Options that every benchmark has."""
    result = argparse.ArgumentParser(description=description)
    result.add_argument("--quick", action="store_true", help="end within four minutes")
    return result


def print_table(title: str, rows: Sequence[Row]) -> None:
    """Print figures: ours, the other, their ratio."""
    head = ("", "ours", "other", "ours/other", "unit", "other is", "how")
    lines = [head, *(_cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    print(f"\n{title}")
    for line in lines:
        cells = [
            c.rjust(w) if 1 <= i <= 3 else c.ljust(w)
            for i, (c, w) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def _cells(row: Row) -> tuple[str, ...]:
    other = "" if row.other is None else f"{row.other:,.4g}"
    ratio = f"{row.ours / row.other:.3g}" if row.other else ""
    return (row.name, f"{row.ours:,.4g}", other, ratio, row.unit, row.label, row.note)


def print_result(figures: Mapping[str, float]) -> None:
    """Print the JSON object that ends a benchmark."""
    print(json.dumps({name: round(float(value), 4) for name, value in figures.items()}), flush=True)


def cpu_s(work: Callable[[], object], *, seconds: float = 2.0, least: int = 3) -> float:
    """CPU seconds of one call of ``work`` by this process, mean over calls, after a first one.

    Args:
        work: what is measured.
        seconds: CPU time to spend at least.
        least: calls at least.
    """
    work()
    began, calls = time.process_time(), 0
    while calls < least or time.process_time() - began < seconds:
        work()
        calls += 1
    return (time.process_time() - began) / calls


@dataclass
class TreeUsage:
    """Memory and CPU time of this process and all below it, sampled while the block runs (Linux).

    Memory is the sum of the proportional set sizes: a page that several processes map (a library,
    the object store) counts once. ``peak_rss_mb``, the sum of the resident sets, counts it in each.
    """

    interval_s: float = 0.25
    """Time between samples, s."""
    peak_mb: float = 0.0
    """Largest sum seen, MB."""
    peak_rss_mb: float = 0.0
    """Largest sum of resident set sizes seen, MB: an upper bound of what was in use."""
    peak_parts: dict[str, float] = field(default_factory=dict)
    """What the peak was made of, MB: anonymous pages by kind of process, files, shared memory."""
    processes: int = 0
    """Most processes seen."""
    _cpu: dict[int, float] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)

    @property
    def cpu_s(self) -> float:
        """CPU time spent since the block began, s."""
        return sum(self._cpu.values()) - self._before

    def __enter__(self) -> Self:
        """Begin to sample."""
        self._sample()
        self._before = sum(self._cpu.values())
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop sampling."""
        self._stop.set()
        self._thread.join()
        self._sample()

    def _loop(self) -> None:
        while not self._stop.wait(self.interval_s):
            self._sample()

    def _sample(self) -> None:
        pids = _tree(os.getpid())
        parts: dict[str, float] = {"files": 0.0, "shared": 0.0}
        total, resident = 0.0, 0.0
        for pid in pids:
            memory, name = _kilobytes(pid, "smaps_rollup"), _name(pid)
            parts[name] = parts.get(name, 0.0) + memory.get("Pss_Anon", 0.0)
            parts["files"] += memory.get("Pss_File", 0.0)
            parts["shared"] += memory.get("Pss_Shmem", 0.0)
            total += memory.get("Pss", 0.0)
            resident += memory.get("Rss", 0.0)
            self._cpu[pid] = max(self._cpu.get(pid, 0.0), _cpu_time(pid))
        if total > self.peak_mb:
            self.peak_mb, self.peak_parts = total, parts
        self.peak_rss_mb = max(self.peak_rss_mb, resident)
        self.processes = max(self.processes, len(pids))


def resident_mb(peak: bool = False) -> float:
    """Resident memory of this process, MB: now, or its greatest so far (Linux)."""
    return _kilobytes(os.getpid(), "status")["VmHWM" if peak else "VmRSS"]


def _tree(root: int) -> list[int]:
    """A process and all below it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))):
            children.setdefault(int(stat[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def _name(pid: int) -> str:
    """First word of a process's command, without its directory."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").split()
    except OSError:
        return ""
    return words[0].decode(errors="replace").rpartition("/")[2] if words else ""


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on; empty for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _cpu_time(pid: int) -> float:
    stat = _stat(pid)
    return (int(stat[11]) + int(stat[12])) / _TICKS if stat else 0.0


def _kilobytes(pid: int, file: str) -> dict[str, float]:
    """Memory figures of a process from a file below /proc, MB; empty for one that is gone."""
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except OSError:
        return {}
    pairs = [line.split() for line in lines if line.endswith(" kB")]
    return {words[0].rstrip(":"): int(words[1]) * 1024 / 1e6 for words in pairs}
