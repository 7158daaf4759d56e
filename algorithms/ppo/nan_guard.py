"""What a diverged training leaves behind, and how to look at it again.

A dump holds the last fragment and the weights that sampled it, weights and optimiser at the moment
of failure (steps that are not finite are never taken, so they are finite), and where the simulator
is in the same process its state before the fragment. `replay_update` learns from the fragment once
more and says where numbers stop being finite; `replay_fragment` samples it once more.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from algorithms.ppo.checkpoint import decode, encode
from algorithms.ppo.config import ObsBlock, TrackerConfig
from algorithms.ppo.module import ActorCritic, model_config
from algorithms.ppo.networks import NetSpec
from algorithms.ppo.policy import read_safe, write_atomic
from algorithms.ppo.rollout import Rollout, Sampler
from algorithms.ppo.runner import box_space
from algorithms.ppo.update import Updater, make_optimiser
from parc_ray.errors import InputError
from parc_ray.protocols import TrackingEnv

FORMAT = "parc-ray/nan-dump"
VERSION = 2


def dump_rollout(
    path: Path,
    rollout: Rollout,
    updater: Updater,
    sampled_by: Mapping[str, Tensor],
    sampler: Mapping[str, Any] | None = None,
) -> Path:
    """Write a dump; returns ``path``.

    Args:
        path: file to write.
        rollout: the fragment.
        updater: what was to learn from it.
        sampled_by: the module's tensors of before the update.
        sampler: ``Sampler.state_dict()`` of before the fragment, if it is at hand.
    """
    payload = {
        "format": FORMAT,
        "version": VERSION,
        "rollout": {k: v.detach().cpu().clone() for k, v in rollout.to_dict().items()},
        "sampled_by": {k: v.detach().cpu().clone() for k, v in sampled_by.items()},
        "module": {k: v.detach().cpu().clone() for k, v in updater.module.state_dict().items()},
        "updater": encode(updater.state_dict()),
        "rng": updater.rng.get_state(),
        "config": json.dumps(asdict(updater.config)),
        "spec": json.dumps(updater.module.spec.to_dict()),
        "sampler": None if sampler is None else encode(dict(sampler)),
    }
    write_atomic(path, payload)
    return path


def describe_dump(path: str | Path) -> list[str]:
    """Say what is not finite in a dump.

    Args:
        path: file written by :func:`dump_rollout`.

    Returns:
        One line per tensor that holds NaN or infinity: its name, how many numbers, and for
        fragments the first control step and environment; empty if everything is finite.
    """
    payload = read_safe(Path(path), FORMAT, VERSION)
    named = ((f"{g}.{n}", t) for g in ("rollout", "module") for n, t in payload[g].items())
    return list(_not_finite(named))


def replay_update(path: str | Path) -> list[str]:
    """Learn from a dump's fragment once more, minibatch by minibatch.

    Args:
        path: file written by :func:`dump_rollout`.

    Returns:
        One line per stage and tensor with numbers that are not finite: the fragment, values and
        targets, then of the first minibatches that fail the loss or gradient; empty if the update
        goes through.
    """
    payload = _whole(path)
    updater = _updater(payload)
    rollout = Rollout(**payload["rollout"])
    lines = list(_not_finite((f"rollout.{n}", t) for n, t in rollout.to_dict().items()))
    batch, _ = updater.prepare(rollout)
    lines += _not_finite((f"batch.{f.name}", getattr(batch, f.name)) for f in fields(batch))
    parts = max(1, round(batch.target.numel() / updater.config.minibatch))
    order = torch.randperm(batch.target.numel(), generator=updater.rng)
    for number, ids in enumerate(order.tensor_split(parts)):
        if updater._step(batch.take(ids)) is not None:
            continue
        lines.append(f"minibatch {number}: not finite")
        gradients = (
            (f"minibatch {number}, gradient of {name}", parameter.grad)
            for name, parameter in updater.module.named_parameters()
            if parameter.grad is not None
        )
        lines += _not_finite(gradients)
        break
    return lines


def replay_fragment(path: str | Path, env: TrackingEnv) -> list[str]:
    """Sample a dump's fragment once more from the environment's state of before it.

    Args:
        path: file written by :func:`dump_rollout`.
        env: an environment made with the training's arguments.

    Returns:
        What differs from the stored fragment (nothing on the same machine and versions), and the
        first numbers that are not finite.

    Raises:
        InputError: the dump holds no state of the environment, or one of another environment.
    """
    payload = _whole(path)
    if payload["sampler"] is None:
        raise InputError(
            f"{path}: holds no state of the environment, which was in another process; "
            "replay the update alone, or train with placement local or colocated"
        )
    config = _config(payload)
    sampler = Sampler(env, config.horizon, 0, torch.device("cpu"), config.noise_memory)
    try:
        sampler.load_state_dict(decode(payload["sampler"]))
    except (KeyError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{path}: its environment's state does not fit this environment ({error}); make it "
            "with the training's clips, settings and num_envs"
        ) from error
    module = _module(payload)
    module.load_state_dict(payload["sampled_by"])
    again, _ = sampler.run(module)
    stored, lines = payload["rollout"], []
    for name, tensor in again.to_dict().items():
        other = stored[name]
        if tensor.shape != other.shape or not torch.allclose(
            tensor.double(), other.double(), rtol=0.0, atol=0.0, equal_nan=True
        ):
            lines.append(f"rollout.{name}: differs from the stored one")
    return lines + list(_not_finite((f"rollout.{n}", t) for n, t in again.to_dict().items()))


def _whole(path: str | Path) -> dict[str, Any]:
    """A dump that can be replayed."""
    payload = read_safe(Path(path), FORMAT, VERSION)
    if payload["version"] < VERSION:
        raise InputError(
            f"{path}: dumps of before version {VERSION} can be described, not replayed"
        )
    return payload


def _config(payload: Mapping[str, Any]) -> TrackerConfig:
    values = json.loads(payload["config"])
    blocks = [{**b, "hidden": tuple(b["hidden"])} for b in values.pop("blocks")]
    skip = tuple((a, b) for a, b in values.pop("normaliser_skip"))
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    one = {"placement": "local", "num_runners": 0, "num_learners": 0}
    return TrackerConfig(
        **{**values, **one}, blocks=tuple(ObsBlock(**b) for b in blocks), normaliser_skip=skip
    )


def _module(payload: Mapping[str, Any]) -> ActorCritic:
    spec, config = NetSpec.from_dict(json.loads(payload["spec"])), _config(payload)
    return ActorCritic(
        observation_space=box_space(spec.obs_dim),
        action_space=box_space(spec.action_dim),
        inference_only=False,
        model_config=model_config(spec, config),
    )


def _updater(payload: Mapping[str, Any]) -> Updater:
    config, module = _config(payload), _module(payload)
    updater = Updater(module, make_optimiser(module, config), config)
    module.load_state_dict(payload["module"])
    updater.load_state_dict(decode(payload["updater"]))
    updater.rng.set_state(payload["rng"])
    return updater


def _not_finite(named: Iterator[tuple[str, Tensor | None]]) -> Iterator[str]:
    for name, tensor in named:
        if tensor is None or not tensor.is_floating_point():
            continue
        bad = torch.nonzero(~torch.isfinite(tensor))
        if len(bad):
            where = ", ".join(str(int(i)) for i in bad[0])
            yield f"{name}: {len(bad)} not finite, first at [{where}]"
