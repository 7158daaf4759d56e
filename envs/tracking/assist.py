"""A helping hand on the root while a policy learns, which goes away: a curriculum.

A critically damped spring pulls the root to where the reference has it one control step ahead. Its
strength falls linearly to zero over the environment's own steps. Root drift is what ends most
episodes early in training, and what comes later in a clip is seldom reached before it is learned.
PARC has none. Recordings, tests and evaluations never have it.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from envs.tracking.config import AssistConfig
from envs.tracking.motion_bank import Reference
from parc_ray.errors import InputError
from parc_ray.protocols import SimBackend, SimState


@runtime_checkable
class PushingBackend(SimBackend, Protocol):
    """A simulator that can push a character's root."""

    def push_root(self, force: Tensor) -> None:
        """Apply forces (N, 3) N, world frame, at the roots' origins during the next step alone."""
        ...


class Assist:
    """The spring, and how much of it is left.

    Args:
        config: strength, duration and frequency.
        mass_kg: of the whole character.
        backend: the simulator that is to push.

    Raises:
        InputError: help is wanted and the simulator cannot push.
    """

    def __init__(self, config: AssistConfig, mass_kg: float, backend: SimBackend) -> None:
        """Check that the simulator can do it."""
        self.config, self.mass_kg = config, mass_kg
        self._backend = backend if isinstance(backend, PushingBackend) else None
        if config.strength > 0 and self._backend is None:
            raise InputError(
                f"tracking.assist.strength: {backend.name} cannot push the root; use the simulator "
                "mujoco_cpu, or a strength of 0"
            )

    def strength(self, steps: int) -> float:
        """Share of the full force after so many control steps of the environments."""
        left = max(0.0, 1.0 - steps / self.config.steps)
        return self.config.strength * left

    def push(self, steps: int, state: SimState, ahead: Reference) -> None:
        """Push for the next control step, if help is left.

        Args:
            steps: control steps that the environments have taken.
            state: the present one, N leading.
            ahead: references one control step later, N leading.
        """
        strength = self.strength(steps)
        if strength > 0 and self._backend is not None:
            stiffness = strength * self.mass_kg
            self._backend.push_root(stiffness * spring(state, ahead, self.config.frequency_rad_s))


def spring(state: SimState, ahead: Reference, frequency_rad_s: float) -> Tensor:
    """Accelerations (N, 3) m/s^2, world frame, of a critically damped spring to the reference."""
    offset = ahead.root_pos - state.root_pos
    drift = ahead.root_lin_vel - state.root_lin_vel
    return frequency_rad_s**2 * offset + 2.0 * frequency_rad_s * drift
