"""Runs of the loop as a user starts them, and what the tests read from a run directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from parc_ray.data.manifest import Manifest
from parc_ray.data.storage import Storage
from parc_ray.data.store import read_clips
from parc_ray.motion.clip import MotionClip

ROOT = Path(__file__).resolve().parent.parent.parent
DRIVER = ROOT / "run_parc.py"


def environment() -> dict[str, str]:
    """A user's environment: nothing of the test process's Ray."""
    return {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}


def command(*words: str) -> list[str]:
    """The driver's command line."""
    return [sys.executable, str(DRIVER), *words]


def drive(*words: str, timeout_s: float = 1100.0) -> subprocess.CompletedProcess[str]:
    """Run the driver to its end."""
    return subprocess.run(
        command(*words),
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


class RunFiles:
    """A run directory, read."""

    def __init__(self, path: Path) -> None:
        """Look into ``path``; nothing is written."""
        self.path = path
        self.storage = Storage.from_uri(path)

    def json(self, path: str) -> Any:
        """A JSON file."""
        return json.loads((self.path / path).read_text())

    def marker(self, label: str) -> dict[str, Any]:
        """``_DONE.json`` of a stage such as ``it_01/generate``."""
        return self.json(f"{label}/_DONE.json")

    def labels(self) -> list[str]:
        """Finished stages, sorted."""
        found = self.path.glob("it_*/*/_DONE.json")
        return sorted(str(p.parent.relative_to(self.path)) for p in found)

    def manifest(self, label: str) -> Manifest:
        """The data set that a stage made."""
        return Manifest.load(self.storage, f"{label}/manifest.json")

    def clips(self, label: str) -> list[MotionClip]:
        """Its clips; reading verifies every hash."""
        return read_clips(self.storage, self.manifest(label))

    def markers(self) -> dict[str, tuple[int, bytes]]:
        """Time and bytes of every marker of a finished stage."""
        files = [self.path / label / "_DONE.json" for label in self.labels()]
        return {
            str(f.parent.relative_to(self.path)): (f.stat().st_mtime_ns, f.read_bytes())
            for f in files
        }
