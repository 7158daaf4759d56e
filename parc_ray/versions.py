"""Versions of what a result depends on, for markers and ``parc info``."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from pathlib import Path

import parc_ray

_PACKAGES = ("torch", "ray", "mujoco", "numpy", "scipy", "pyarrow")


def versions() -> dict[str, str]:
    """Name to version of this package, of Python and of the libraries that decide results."""
    found = {"parc-ray": parc_ray.__version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def commit() -> str:
    """Git commit of this checkout, with "and changes" where files differ; else "unknown"."""
    home = Path(parc_ray.__file__).resolve().parent.parent
    git = ["git", "-C", str(home)]
    try:
        found = subprocess.run(
            [*git, "describe", "--always", "--abbrev=12", "--dirty= and changes"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return found.stdout.strip() or "unknown"
