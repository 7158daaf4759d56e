"""What the networks must know of an environment before it exists in every process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ray.tune.registry import ENV_CREATOR, _global_registry

from algorithms.ppo.config import TrackerConfig
from parc_ray.errors import InputError


class ObservationBlock(Protocol):
    """One contiguous part of an observation."""

    @property
    def size(self) -> int:
        """Numbers in the block."""
        ...

    @property
    def normalise(self) -> bool:
        """Whether a running normaliser may touch it."""
        ...

    @property
    def critic_only(self) -> bool:
        """Whether the actor must not see it; such blocks come last."""
        ...


@dataclass(frozen=True, kw_only=True)
class EnvSizes:
    """Observation and action sizes and how the observation wants to be treated."""

    obs_dim: int
    """Observation size O."""
    action_dim: int
    """Action size A."""
    normaliser_skip: tuple[tuple[int, int], ...] = ()
    """Ranges that pass the normaliser unchanged."""
    privileged_dims: int = 0
    """Trailing observations for the critic alone."""

    @classmethod
    def of(cls, env: Any) -> EnvSizes:
        """Read the sizes of a tracking environment.

        Where it has a ``layout`` with ``blocks`` (:class:`ObservationBlock`), those say what is
        normalised and what only the critic sees.
        """
        layout = getattr(env, "layout", None)
        skip, privileged = treat_blocks(layout.blocks) if layout is not None else ((), 0)
        return cls(
            obs_dim=env.obs_dim,
            action_dim=env.action_dim,
            normaliser_skip=skip,
            privileged_dims=privileged,
        )

    @classmethod
    def probe(cls, env_name: str, env_config: Mapping[str, Any]) -> EnvSizes:
        """Read the sizes from a registered environment made for this purpose and closed again.

        Raises:
            InputError: the name is not registered.
        """
        if not _global_registry.contains(ENV_CREATOR, env_name):
            raise InputError(f"environment {env_name!r}: not registered; call register_env first")
        creator = _global_registry.get(ENV_CREATOR, env_name)
        env = creator({**env_config, "num_envs": 1, "seed": 0})
        try:
            return cls.of(env)
        finally:
            env.close()

    def apply(self, config: TrackerConfig) -> TrackerConfig:
        """Fill in the treatment of the observation where ``config`` leaves it open."""
        changes: dict[str, Any] = {}
        if not config.normaliser_skip:
            changes["normaliser_skip"] = self.normaliser_skip
        if config.privileged_dims == 0:
            changes["privileged_dims"] = self.privileged_dims
        return config.replace(**changes)


def treat_blocks(
    blocks: Iterable[ObservationBlock],
) -> tuple[tuple[tuple[int, int], ...], int]:
    """Ranges that are not normalised and the number of trailing critic-only observations.

    Raises:
        InputError: a critic-only block is followed by one for the actor.
    """
    skip: list[tuple[int, int]] = []
    start = privileged = 0
    for block in blocks:
        stop = start + block.size
        if not block.normalise:
            joins = bool(skip) and skip[-1][1] == start
            first = skip.pop()[0] if joins else start
            skip.append((first, stop))
        if block.critic_only:
            privileged += block.size
        elif privileged:
            raise InputError("observation layout: critic-only blocks must come last")
        start = stop
    return tuple(skip), privileged
