"""Simulators by name. A new one is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from envs.sims.base import BackendFactory, ContainedBackend, SimConfig
from envs.sims.isaacgym import IsaacGymBackend
from envs.sims.mujoco_cpu import MujocoCpuBackend
from envs.sims.mujoco_warp import MujocoWarpBackend
from parc_ray.errors import InputError
from parc_ray.terrain.heightfield import Heightfield

if TYPE_CHECKING:
    from parc_ray.character.character import Character

BACKENDS: dict[str, Callable[[Character, int, SimConfig], ContainedBackend]] = {
    MujocoCpuBackend.name: MujocoCpuBackend,
    MujocoWarpBackend.name: MujocoWarpBackend,
    IsaacGymBackend.name: IsaacGymBackend,
}


def make_backend(
    name: str,
    character: Character,
    num_envs: int,
    terrains: Sequence[Heightfield],
    config: SimConfig | None = None,
) -> ContainedBackend:
    """A simulator with ``terrains`` loaded; InputError lists the names there are."""
    if name not in BACKENDS:
        raise InputError(f"simulator '{name}' is unknown; use one of {', '.join(BACKENDS)}")
    backend = BACKENDS[name](character, num_envs, config or SimConfig())
    backend.load_terrains(terrains)
    return backend


def backend_factory(
    name: str, character: Character, config: SimConfig | None = None
) -> BackendFactory:
    """A `BackendFactory` for recorders and evaluators."""

    def build(num_envs: int, terrains: Sequence[Heightfield]) -> ContainedBackend:
        return make_backend(name, character, num_envs, terrains, config)

    return build


def missing(name: str) -> str | None:
    """What this machine lacks for backend ``name``, in one sentence; None where it can run.

    A backend that needs more than the package's own dependencies says so in a static method
    ``missing()`` of its class.
    """
    if name not in BACKENDS:
        return f"simulator '{name}' is unknown; use one of {', '.join(BACKENDS)}"
    look = getattr(BACKENDS[name], "missing", None)
    return look() if look is not None else None


def found_by_trying(name: str) -> str | None:
    """As `missing`, and what shows only when the engine is loaded, which may take a while.

    Backends whose engine is not this interpreter's say so in a static method ``trial()``.
    """
    lack = missing(name)
    trial = getattr(BACKENDS[name], "trial", None) if lack is None else None
    return trial() if trial is not None else lack


def wants_gpu(name: str, config: SimConfig) -> bool:
    """Whether backend ``name`` with these settings is meant to simulate on a GPU.

    Backends for GPUs say so in a static method ``wants_gpu(config)`` of their class.
    """
    ask = getattr(BACKENDS[name], "wants_gpu", None)
    return ask is not None and ask(config)
