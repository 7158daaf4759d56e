"""Whether a stored generator or checkpoint fits a configuration and a character."""

from __future__ import annotations

from typing import Any

from algorithms.diffusion.checkpoint import GeneratorFile
from algorithms.diffusion.config import DiffusionConfig
from parc_ray.character.character import Character
from parc_ray.errors import InputError

_BUDGET_KEYS = frozenset(
    {
        "steps",
        "max_seconds",
        "max_cpu_s",
        "report_every",
        "log_every",
        "pictures",
        "min_energy_ratio",
        "frozen_reports",
        "frozen_after",
        "torch_threads",
        "compile",
    }
)
_EQUAL = ("num_frames", "num_past", "fps", "rotations", "diffusion_steps", "grid", "terrain")


def check_warm_start(file: GeneratorFile, character: Character, config: DiffusionConfig) -> None:
    """Raise InputError unless a training of ``config`` can start from the weights of ``file``."""
    if file.character["digest"] != character.digest:
        raise InputError(
            f"warm start: was trained for character {file.character['name']!r} "
            f"({file.character['digest'][:12]}), this is {character.name!r} "
            f"({character.digest[:12]}); use a generator of the same character."
        )
    for name in (
        "num_frames",
        "num_past",
        "fps",
        "rotations",
        "diffusion_steps",
        "grid",
        "terrain",
    ):
        _demand_equal(name, getattr(file.config, name), getattr(config, name))
    for name in (
        "width",
        "heads",
        "layers",
        "feedforward",
        "frame_hidden",
        "target_hidden",
        "past_anchor",
    ):
        old, new = getattr(file.config.denoiser, name), getattr(config.denoiser, name)
        _demand_equal(f"denoiser.{name}", old, new)
    for name in ("target_distance", "second_target", "target_speed"):
        old, new = getattr(file.config.conditioning, name), getattr(config.conditioning, name)
        _demand_equal(f"conditioning.{name}", old, new)


def _demand_equal(name: str, old: object, new: object) -> None:
    if old != new:
        raise InputError(
            f"{name}: is {new!r}, but the generator to start from has {old!r}; "
            "use the same, or start without it."
        )


def check_same_run(state: dict[str, Any], config: DiffusionConfig, character: Character) -> None:
    """Raise InputError unless a checkpoint's state belongs to the same training as ``config``.

    Budgets, reports and sampling settings may differ.
    """
    if state["digest"] != character.digest:
        raise InputError("checkpoint: belongs to another character; use another run directory.")
    old, new = dict(state["config"]), config.to_dict()
    old_train, new_train = dict(old.pop("train")), dict(new.pop("train"))
    for key in _BUDGET_KEYS:
        old_train.pop(key, None)
        new_train.pop(key, None)
    for name, before, now in [
        *((k, old.get(k), v) for k, v in new.items() if k != "sampling"),
        *((f"train.{k}", old_train.get(k), v) for k, v in new_train.items()),
    ]:
        if before != now:
            raise InputError(
                f"{name}: is {now!r}, but the checkpoint was made with {before!r}; "
                "use another run directory."
            )
