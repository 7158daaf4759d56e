"""Build a tracking environment from a plain mapping, as environment registries want it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from envs.sims.base import SimConfig
from envs.tracking.config import TrackingConfig
from envs.tracking.env import VectorTrackingEnv
from parc_ray.character.character import load_character
from parc_ray.errors import InputError

ENV_NAME = "parc_tracking"
"""Name under which the environment is registered."""

_KEYS = {"character", "clips", "num_envs", "tracking", "sim", "simulator", "seed", "margin_m"}


def make_tracking_env(config: Mapping[str, Any]) -> VectorTrackingEnv:
    """Make an environment.

    Args:
        config: `clips` (a sequence of `MotionClip`, or a function that returns one) and
            `num_envs`; optional `character` (name, path or `Character`), `tracking`
            (`TrackingConfig`), `sim` (`SimConfig`), `simulator`, `seed`, `margin_m`.

    Raises:
        InputError: a key is missing or unknown.
    """
    unknown = sorted(set(config) - _KEYS)
    if unknown:
        raise InputError(
            f"env_config: key '{unknown[0]}' is unknown; use {', '.join(sorted(_KEYS))}"
        )
    for key in ("clips", "num_envs"):
        if key not in config:
            raise InputError(f"env_config: key '{key}' is missing")
    clips = config["clips"]
    if isinstance(clips, Callable):
        clips = clips()
    character = config.get("character", "humanoid")
    if isinstance(character, str) or hasattr(character, "joinpath"):
        character = load_character(character)
    return VectorTrackingEnv(
        character,
        clips,
        int(config["num_envs"]),
        config.get("tracking") or TrackingConfig(),
        config.get("sim") or SimConfig(),
        config.get("simulator", "mujoco_cpu"),
        int(config.get("seed", 0)),
        float(config.get("margin_m", 3.0)),
    )
