"""What a run says while it works: log lines on stderr, and the same in the run directory."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path

_ROOT = "parc_ray"
_PACKAGES = ("parc_ray", "algorithms", "envs")


def setup_logging(level: str = "INFO", file: Path | None = None) -> None:
    """Send the packages' log records to stderr and, if given, append them to ``file``.

    Calling it again replaces the earlier handlers. Loggers of other libraries are left alone.

    Args:
        level: name of the lowest level shown on the console.
        file: log file that gets everything from INFO upwards.
    """
    console = logging.StreamHandler(sys.stderr)
    console.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    console.setLevel(level)
    handlers: list[logging.Handler] = [console]
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        log_file = logging.FileHandler(file)
        log_file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
        log_file.setLevel(logging.INFO)
        handlers.append(log_file)
    for package in _PACKAGES:
        root = logging.getLogger(package)
        for old in list(root.handlers):
            root.removeHandler(old)
            old.close()
        for handler in handlers:
            root.addHandler(handler)
        root.setLevel(min(logging.INFO, logging.getLevelName(level)))
        root.propagate = False


def format_metrics(metrics: Mapping[str, float | None], limit: int = 6) -> str:
    """Metrics on one line, at most ``limit`` of them, for example ``loss 0.31, clips 12``."""
    shown = [f"{key} {_number(value)}" for key, value in list(metrics.items())[:limit]]
    return ", ".join(shown) + (", ..." if len(metrics) > limit else "")


def format_seconds(seconds: float) -> str:
    """A duration for people: ``8.1 s``, ``3 min 05 s``, ``2 h 10 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _number(value: float | None) -> str:
    if value is None:
        return "undefined"
    return str(int(value)) if float(value).is_integer() else f"{value:.4g}"
