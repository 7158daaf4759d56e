"""What every simulator backend shares: its settings, and the containment flag above the protocol.

The contract itself is `parc_ray.protocols.SimBackend`. Backends are adapters: they convert to the
project's conventions at their border and know nothing of references, rewards or episodes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from parc_ray.errors import InputError
from parc_ray.protocols import SimBackend
from parc_ray.terrain.heightfield import Heightfield


@dataclass(frozen=True, kw_only=True)
class SimConfig:
    """Settings of a physics backend; the measurements behind them: docs/design/physics.md."""

    control_hz: float = 30.0
    """Rate of PD targets in Hz. PARC: 30."""
    substeps: int = 4
    """Solver steps per control step; 4 gives 120 Hz, PARC's rate."""
    gains: Literal["critical", "xml"] = "critical"
    """`critical` limits each damping gain to 2 sqrt(kp I_eff); `xml` takes PARC's kd = kp / 10."""
    torque_limits: bool = True
    """Limit each actuator to the character's effort (N m). Upstream most likely ran without."""
    friction: float = 1.0
    """Sliding friction of every contact. PARC: 1."""
    self_collision: bool = True
    """Let the character's bodies collide with each other (never with a neighbour). PARC: on."""
    terrain_extension_m: float = 3.0
    """How far the outermost cells of a terrain reach beyond its grid, in metres."""
    solver_iterations: int = 5
    """Newton iterations per solver step."""
    line_search_iterations: int = 8
    """Line-search iterations per Newton iteration."""
    max_velocity: float = 300.0
    """An environment with a generalised velocity above this (m/s or rad/s) counts as blown up."""
    num_threads: int = 1
    """Simulator threads; one process per core with one thread each scales best."""
    device: str = "auto"
    """Where `mujoco_warp` simulates: `auto` (a GPU where there is one), `cpu`, `cuda` or `cuda:N`.
    Other simulators ignore it."""
    max_contacts: int = 48
    """Room for contacts per environment on average, to begin with (`mujoco_warp`)."""
    max_constraints: int = 224
    """Room for constraint rows per environment, to begin with: four per contact (`mujoco_warp`)."""

    def __post_init__(self) -> None:
        """Check the ranges that would otherwise fail deep inside an engine."""
        positive = ("control_hz", "friction", "max_velocity")
        for name in positive:
            if not getattr(self, name) > 0:
                raise InputError(f"sim.{name}: must be above 0, got {getattr(self, name)}")
        counts = ("substeps", "solver_iterations", "line_search_iterations", "num_threads")
        for name in (*counts, "max_contacts", "max_constraints"):
            if getattr(self, name) < 1:
                raise InputError(f"sim.{name}: must be 1 or more, got {getattr(self, name)}")
        if self.terrain_extension_m < 0:
            raise InputError("sim.terrain_extension_m: must be 0 or more")
        if self.gains not in ("critical", "xml"):
            raise InputError(f"sim.gains: '{self.gains}' is unknown; use critical or xml")
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise InputError(
                f"sim.device: '{self.device}' is unknown; use auto, cpu, cuda or cuda:N"
            )

    @property
    def control_dt(self) -> float:
        """Seconds per control step."""
        return 1.0 / self.control_hz

    @property
    def timestep(self) -> float:
        """Seconds per solver step."""
        return 1.0 / (self.control_hz * self.substeps)


@runtime_checkable
class ContainedBackend(SimBackend, Protocol):
    """A backend that contains blow-ups: one bad environment never disturbs the others."""

    boxes: list[NDArray[np.float32]]
    """Per terrain the (K, 6) static boxes it is made of: centre and half sizes, metres."""

    @property
    def bad(self) -> Tensor:
        """(N,) bool: diverged, standing still until the next ``set_state``."""
        ...

    def close(self) -> None:
        """Release threads or processes."""
        ...


@runtime_checkable
class BackendFactory(Protocol):
    """Makes a backend of a given size on given terrains, for recorders and evaluators."""

    def __call__(self, num_envs: int, terrains: Sequence[Heightfield]) -> ContainedBackend:
        """Return a backend with ``terrains`` loaded."""
        ...
