"""Processes that a driver started, by their ids (Linux)."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def start_time(pid: int) -> str | None:
    """What tells a living process from a later one of the same id; None once it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def descendants(pid: int) -> dict[int, str]:
    """Children, grandchildren, ... of a process, with their start times."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(fields[1])
    found: set[int] = set()
    grown = {pid}
    while grown:
        grown = {child for child, parent in parents.items() if parent in grown} - found
        found |= grown
    return {p: t for p in found if (t := start_time(p)) is not None}


def survivors(known: dict[int, str], wait_s: float) -> list[int]:
    """Which of these still live after at most ``wait_s`` seconds."""
    end = time.monotonic() + wait_s
    while True:
        alive = [pid for pid, began in known.items() if start_time(pid) == began]
        if not alive or time.monotonic() > end:
            return alive
        time.sleep(0.2)


def end(pids: list[int]) -> None:
    """Kill processes of ours, one by one."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
