"""A stand-in for NVIDIA's package, and how a test makes the bridge use it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from envs.sims import isaacgym_bridge

HERE = Path(__file__).parent
REAL = "PARC_TEST_REAL_ISAACGYM"
"""Set to 1, the tests run against the real package behind `PARC_ISAACGYM_PYTHON`."""


@contextmanager
def standin(
    python: str | Path = sys.executable, *, torch: bool = True, idle: bool = False
) -> Iterator[None]:
    """Servers that are started inside the block find the stand-in.

    Args:
        python: their interpreter.
        torch: whether it has torch; otherwise the stand-in's own few lines of it are used.
        idle: nothing is simulated.
    """
    path = [str(HERE)] if torch else [str(HERE), str(HERE / "no_torch")]
    settings = {
        isaacgym_bridge.PYTHON: str(python),
        isaacgym_bridge.PYTHONPATH: os.pathsep.join(path),
        "ISAACGYM_STANDIN": "idle" if idle else "",
        "OMP_NUM_THREADS": "1",
    }
    if os.environ.get(REAL) == "1":
        settings = {}
    with patch.dict(os.environ, settings):
        yield
