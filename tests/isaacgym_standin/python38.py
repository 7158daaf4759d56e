"""A Python 3.8 for the stand-in: one that pyenv has, with NumPy and the last MuJoCo for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.isaacgym_standin import REAL, standin

WANTED = ("numpy==1.24.4", "mujoco==3.2.3")
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "parc-ray"
_INSTALL_S = 80.0
"""Time that all of the making may take, s; where it does not suffice the tests are skipped."""
_FAILED: list[str] = []
"""Why it could not be made; it is tried once per session."""
_PIP = ("--disable-pip-version-check", "--retries", "1", "--timeout", "10", "--only-binary=:all:")


def find_python() -> str | None:
    """A Python 3.8 on the path or among pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = sorted((pyenv / "versions").glob("3.8.*/bin/python"))
    return str(found[-1]) if found else shutil.which("python3.8")


def prepared_python() -> Path:
    """Its environment with what the stand-in needs, made once and kept; skips without one."""
    home = _CACHE / "-".join(("standin-py38", *WANTED))
    python = home / "bin" / "python"
    if python.exists():
        return python
    base = find_python()
    if base is None:
        pytest.skip("no Python 3.8 here (pyenv install 3.8 makes one)")
    if _FAILED:
        pytest.skip(_FAILED[0])
    making = home.with_name(f"{home.name}.{os.getpid()}")
    try:
        end = time.monotonic() + _INSTALL_S
        pip = [str(making / "bin" / "python"), "-m", "pip", "install", "-q", *_PIP, *WANTED]
        for command in ([base, "-m", "venv", str(making)], pip):
            subprocess.run(
                command,
                check=True,
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                timeout=max(1.0, end - time.monotonic()),
            )
        if not python.exists():
            making.rename(home)
    except (OSError, subprocess.SubprocessError) as error:
        stderr = getattr(error, "stderr", None) or ""
        known = isinstance(stderr, str) and stderr.strip()  # bytes after a timeout
        reason = (known or str(error)).strip().splitlines()[-1]
        _FAILED.append(f"{' '.join(WANTED)} cannot be installed for {base}: {reason}")
        pytest.skip(_FAILED[0])
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return python


@contextmanager
def standin38() -> Iterator[None]:
    """The stand-in on Python 3.8, without torch."""
    if os.environ.get(REAL) == "1":
        pytest.skip("the real package is under test")
    with standin(prepared_python(), torch=False):
        yield
