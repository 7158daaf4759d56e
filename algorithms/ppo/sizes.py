"""What the networks must know of an environment before it exists in every process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from ray.tune.registry import ENV_CREATOR, _global_registry

from algorithms.ppo.config import ObsBlock, TrackerConfig
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

    @property
    def shape(self) -> tuple[int, ...]:
        """Natural shape."""
        ...

    @property
    def encode(self) -> Literal["none", "rows", "heights"]:
        """What an encoder may do: nothing, read row after row, or read all of it as heights."""
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
    rows: tuple[tuple[int, int, int], ...] = ()
    """Start, width and count of equal rows that one encoder may read."""
    heights: tuple[tuple[int, int], ...] = ()
    """Start and width of blocks of heights."""

    @classmethod
    def of(cls, env: Any) -> EnvSizes:
        """Read the sizes of a tracking environment.

        Where it has a ``layout`` with ``blocks`` (:class:`ObservationBlock`), those say what is
        normalised and what only the critic sees.
        """
        layout = getattr(env, "layout", None)
        blocks = () if layout is None else tuple(layout.blocks)
        skip, privileged = treat_blocks(blocks)
        rows, heights = encodable(blocks)
        return cls(
            obs_dim=env.obs_dim,
            action_dim=env.action_dim,
            normaliser_skip=skip,
            privileged_dims=privileged,
            rows=rows,
            heights=heights,
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
        """Fill in the treatment of the observation where ``config`` leaves it open.

        Raises:
            InputError: encoders are asked for and the observation does not say what they may read.
        """
        changes: dict[str, Any] = {}
        if config.encoders == "shared" and not config.blocks:
            changes["blocks"] = self._encoders(config)
        if not config.normaliser_skip:
            changes["normaliser_skip"] = self.normaliser_skip
        if config.privileged_dims == 0:
            changes["privileged_dims"] = self.privileged_dims
        return config.replace(**changes)

    def _encoders(self, config: TrackerConfig) -> tuple[ObsBlock, ...]:
        frames = [
            ObsBlock(start=start, width=width, count=count, hidden=config.frame_encoder)
            for start, width, count in self.rows
        ]
        heights = [
            ObsBlock(start=start, width=width, count=1, hidden=config.height_encoder)
            for start, width in self.heights
        ]
        if not frames and not heights:
            raise InputError(
                "TrackerConfig.encoders: this environment has no target frames and no heights to "
                "encode; allowed: none"
            )
        return (*frames, *heights)


def encodable(
    blocks: Iterable[ObservationBlock],
) -> tuple[tuple[tuple[int, int, int], ...], tuple[tuple[int, int], ...]]:
    """Rows (start, width, count) and heights (start, width) that encoders may read."""
    rows, heights, start = [], [], 0
    for block in blocks:
        if block.encode == "rows":
            rows.append((start, block.size // block.shape[0], block.shape[0]))
        elif block.encode == "heights":
            heights.append((start, block.size))
        start += block.size
    return tuple(rows), tuple(heights)


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
