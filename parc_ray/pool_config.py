"""Size of a pool of actors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PoolConfig:
    """How many actors work on a stage's items, and what each may use."""

    actors: int = 2
    """Number of actors; 0 works in the driver's process, without Ray."""

    cpus: float = 0.9
    """Logical CPUs of one actor."""

    gpus: float = 0.0
    """GPUs, or a share of one, of one actor."""

    threads: int = 1
    """Torch threads of one actor."""
