"""Sizes of pools of actors, and whether the operators of a chain share one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from parc_ray.errors import InputError
from parc_ray.placement import PlaceConfig


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

    most: int | None = None
    """Actors that the pool may grow to while items wait; None: ``actors``."""

    node: str = ""
    """Custom resource that nodes of these actors offer; empty: any node."""

    def custom(self) -> dict[str, float]:
        """The custom resource that one actor asks for; empty where any node will do."""
        return PlaceConfig(node=self.node).custom()

    @property
    def device(self) -> str:
        """Where an actor puts its tensors."""
        return "cuda" if self.gpus > 0 else "cpu"


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """What there is for actors."""

    cpus: float
    """Logical CPUs."""

    cores: float
    """CPUs that can be busy at once: fewer than ``cpus`` where Ray was told more than there are."""

    gpus: float
    """GPUs."""


@dataclass(frozen=True, kw_only=True)
class ChainPools:
    """Pools for a chain of operators, both ways of placing them."""

    operators: Mapping[str, PoolConfig]
    """One pool per operator, where they are apart."""

    together: PoolConfig
    """The pool whose actors run all operators."""

    placement: Literal["auto", "apart", "together"] = "auto"
    """Whether operators are apart; ``auto`` leaves it to ``shared``."""

    queued: int = 2
    """Items that may wait before an operator."""

    def shared(self, capacity: Capacity) -> PoolConfig | None:
        """The pool that all operators share, or None where each has its own.

        ``auto`` puts them apart where every actor has a core to itself and its GPUs: pools that
        share too few starve each other (docs/design/ray.md, Chains).

        Raises:
            InputError: ``apart`` where the pools do not fit at once; they would wait for ever.
        """
        pools = self.operators.values()
        actors = sum(pool.actors for pool in pools)
        cpus = sum(pool.actors * pool.cpus for pool in pools)
        gpus = sum(pool.actors * pool.gpus for pool in pools)
        room = cpus <= capacity.cpus and gpus <= capacity.gpus
        if self.placement == "apart" and not room:
            raise InputError(
                f"resources.generate_operators: apart takes {cpus:g} CPUs and {gpus:g} GPUs, Ray "
                f"has {capacity.cpus:g} and {capacity.gpus:g}; allowed are auto and together; "
                "change it, or ask for fewer actors or smaller shares"
            )
        apart = self.placement == "apart" or (
            self.placement == "auto" and room and actors <= capacity.cores
        )
        return None if apart else self.together
