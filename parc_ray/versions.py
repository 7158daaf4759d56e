"""Versions of what a result depends on, for markers and ``parc info``."""

from __future__ import annotations

import platform
from importlib import metadata

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
