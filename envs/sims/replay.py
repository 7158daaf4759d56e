"""Simulate a recorded clip again: bit-equal on the same machine and versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from envs.sims.base import SimConfig
from envs.sims.mujoco_cpu import MujocoCpuBackend
from parc_ray.errors import InputError
from parc_ray.motion.clip import Replay
from parc_ray.protocols import SimBackend, SimState

if TYPE_CHECKING:
    from parc_ray.character.character import Character


def initial_state(replay: Replay, num_bodies: int) -> SimState:
    """The recorded initial state with a leading dimension of one, without contact forces."""
    return SimState(
        root_pos=replay.root_pos[None],
        root_rot=replay.root_rot[None],
        root_lin_vel=replay.root_lin_vel[None],
        root_ang_vel=replay.root_ang_vel[None],
        dof_pos=replay.dof_pos[None],
        dof_vel=replay.dof_vel[None],
        contact_force=torch.zeros(1, num_bodies, 3),
    )


def simulate(backend: SimBackend, start: SimState, pd_targets: torch.Tensor) -> SimState:
    """States of environment 0 before and after each of T-1 control steps, (T, ...).

    Args:
        backend: holds one environment; its terrain 0 is used.
        start: (1, ...) initial state.
        pd_targets: (T-1, D) rad.
    """
    zero = torch.zeros(1, dtype=torch.long)
    backend.set_state(zero, zero, start)
    first = backend.state()
    rest = backend.rollout(pd_targets[None])
    return SimState(**{k: torch.cat((v, getattr(rest, k)[0])) for k, v in vars(first).items()})


def replay_clip(
    character: Character, replay: Replay, config: SimConfig | None = None, *, check: bool = True
) -> SimState:
    """Trajectory (T, ...) of a recorded clip, in the simulated frame (add ``replay.offset``).

    Args:
        character: the character it was recorded with.
        replay: initial state, targets and boxes.
        config: simulator settings of the recording.
        check: refuse a recording of another simulator or model.

    Raises:
        InputError: recorded by another simulator or model.
    """
    backend = MujocoCpuBackend(character, 1, config)
    found = (backend.name, backend.model_hash)
    if check and found != (replay.backend, replay.model_hash):
        raise InputError(
            f"replay: recorded with {replay.backend} model {replay.model_hash}, but this is "
            f"{found[0]} model {found[1]}; use what it was made with"
        )
    backend.load_boxes([replay.boxes.numpy()])
    try:
        start = initial_state(replay, character.skeleton.num_bodies)
        return simulate(backend, start, replay.pd_targets)
    finally:
        backend.close()
