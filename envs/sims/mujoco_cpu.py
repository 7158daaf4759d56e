"""MuJoCo on CPU threads: many characters, each on its own terrain, one call per control step.

One MjModel per terrain, shared by all environments on it, stepped by ``mujoco.rollout`` with a
persistent pool (docs/design/physics.md, Speed and batching). Everything that decides the future of
an environment is its row of a few arrays, so copying, saving and restoring are exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import mujoco
import mujoco.rollout
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from envs.sims.base import SimConfig
from envs.sims.mujoco_model import ModelBuilder, model_hash, shared_num_boxes, terrain_boxes
from envs.sims.mujoco_state import pack_state, state_layout, unpack_state
from parc_ray.protocols import SimState
from parc_ray.terrain.heightfield import Heightfield

if TYPE_CHECKING:
    from parc_ray.character.character import Character

_CTRL = mujoco.mjtState.mjSTATE_CTRL.value
_PUSH = _CTRL | mujoco.mjtState.mjSTATE_QFRC_APPLIED.value


def _ignore_warning(message: str) -> None:
    """Blow-ups are found and contained by the backend; MuJoCo's own message would only repeat."""


class MujocoCpuBackend:
    """`parc_ray.protocols.SimBackend` on MuJoCo's C engine.

    Args:
        character: the simulated character.
        num_envs: number of environments N.
        config: simulator settings.
    """

    name = "mujoco_cpu"

    def __init__(
        self, character: Character, num_envs: int, config: SimConfig | None = None
    ) -> None:
        """Allocate the environments; terrains are loaded separately."""
        self.character = character
        self.config = config or SimConfig()
        self.num_envs = num_envs
        self.control_dt = self.config.control_dt
        self.model_hash = model_hash(character, self.config)
        self._models: list[mujoco.MjModel] = []
        self.boxes: list[NDArray[np.float32]] = []
        threads = self.config.num_threads
        self._pool = mujoco.rollout.Rollout(nthread=threads if threads > 1 else 0)
        mujoco.set_mju_user_warning(_ignore_warning)

    def load_terrains(self, terrains: Sequence[Heightfield]) -> None:
        """Compile one model per terrain; environments start on the first, at rest at the origin."""
        extension = self.config.terrain_extension_m
        self.load_boxes([terrain_boxes(t, extension) for t in terrains])

    def load_boxes(self, boxes: Sequence[NDArray[np.float32]]) -> None:
        """As `load_terrains`, from boxes (K, 6) of centres and half sizes in metres."""
        self.boxes = [np.asarray(b, dtype=np.float32) for b in boxes]
        builder = ModelBuilder(self.character, self.config, shared_num_boxes(self.boxes))
        unique = {b.tobytes(): b for b in self.boxes}
        built = {key: builder.build(b) for key, b in unique.items()}
        self._models = [built[b.tobytes()] for b in self.boxes]
        model = self._models[0]
        self._data = [mujoco.MjData(model) for _ in range(self.config.num_threads)]
        self._layout = state_layout(model, self.character.skeleton)
        n, k = self.num_envs, self.config.substeps
        self._neutral = np.zeros(self._layout.num_state)
        self._neutral[self._layout.pos] = model.qpos0
        self._physics = np.tile(self._neutral, (n, 1))
        self._warm = np.zeros((n, model.nv))
        self._force = np.zeros((n, self.character.skeleton.num_bodies, 3), dtype=np.float32)
        self._terrain = np.zeros(n, dtype=np.int64)
        self._bad = np.zeros(n, dtype=np.bool_)
        self._control = np.empty((n, k, model.nu))
        self._push: NDArray[np.float64] | None = None
        self._states = np.empty((n, k, self._layout.num_state))
        self._sensors = np.empty((n, k, model.nsensordata))
        self._env_models = [model] * n

    @property
    def bad(self) -> Tensor:
        """(N,) bool: diverged, standing still until the next ``set_state``."""
        return torch.from_numpy(self._bad.copy())

    @property
    def terrain_ids(self) -> Tensor:
        """(N,) long: the terrain of each environment."""
        return torch.from_numpy(self._terrain.copy())

    def set_state(self, env_ids: Tensor, terrain_ids: Tensor, state: SimState) -> None:
        """Put environments (K,) on terrains (K,) in ``state`` (K leading)."""
        ids = env_ids.numpy()
        self._physics[ids] = pack_state(self._layout, state)
        self._warm[ids] = 0.0
        self._force[ids] = 0.0
        self._bad[ids] = False
        self._terrain[ids] = terrain_ids.numpy()
        self._refresh_models(ids)

    def push_root(self, force: Tensor) -> None:
        """Apply forces (N, 3) N, world frame, at the roots' origins during the next step alone."""
        forces = np.zeros((self.num_envs, self._warm.shape[1]))
        forces[:, :3] = force.numpy()  # the free joint comes first, its translation in the world
        self._push = forces

    def step(self, pd_targets: Tensor) -> None:
        """Advance all environments by one control period under PD targets (N, D) in rad."""
        self._control[:] = pd_targets.detach().numpy()[:, None, :]
        control, spec = self._control, _CTRL
        if self._push is not None:
            pushes = np.broadcast_to(self._push[:, None], (*control.shape[:2], self._push.shape[1]))
            control, spec = np.concatenate((control, pushes), axis=-1), _PUSH
            self._push = None
        self._bad |= ~np.isfinite(control[:, 0]).all(axis=-1)
        self._pool.rollout(
            self._env_models,
            self._data,
            self._physics,
            control,
            control_spec=spec,
            skip_checks=True,
            nstep=self.config.substeps,
            initial_warmstart=self._warm,
            state=self._states,
            sensordata=self._sensors,
        )
        self._contain()
        last = self._states[:, -1]
        velocity = self._states[:, :, self._layout.vel]
        before = velocity[:, -2] if self.config.substeps > 1 else self._physics[:, self._layout.vel]
        self._warm[:] = (velocity[:, -1] - before) / self.config.timestep
        self._physics[:] = last
        self._force[:] = -self._sensors[:, -1].reshape(self._force.shape)
        if self._bad.any():
            self._warm[self._bad] = 0.0
            self._force[self._bad] = 0.0

    def state(self) -> SimState:
        """The present state of all environments (a copy)."""
        return unpack_state(self._layout, self._physics, self._force)

    def rollout(self, pd_targets: Tensor) -> SimState:
        """Advance by H control periods under targets (N, H, D); states after each, (N, H, ...).

        Bit-equal to H calls of `step`.
        """
        n, horizon = pd_targets.shape[:2]
        physics = np.empty((n, horizon, self._layout.num_state))
        force = np.empty((n, horizon, *self._force.shape[1:]), dtype=np.float32)
        for h in range(horizon):
            self.step(pd_targets[:, h])
            physics[:, h], force[:, h] = self._physics, self._force
        flat = unpack_state(
            self._layout,
            physics.reshape(n * horizon, -1),
            force.reshape(n * horizon, *force.shape[2:]),
        )
        return SimState(**{k: v.unflatten(0, (n, horizon)) for k, v in vars(flat).items()})

    def copy_env(self, source: int, env_ids: Tensor) -> None:
        """Copy the complete internal state (and terrain) of ``source`` onto ``env_ids``."""
        ids = env_ids.numpy()
        for array in (self._physics, self._warm, self._force, self._terrain, self._bad):
            array[ids] = array[source]
        self._refresh_models(ids)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue bit for bit."""
        return {
            "physics": torch.from_numpy(self._physics.copy()),
            "warm": torch.from_numpy(self._warm.copy()),
            "force": torch.from_numpy(self._force.copy()),
            "terrain": torch.from_numpy(self._terrain.copy()),
            "bad": torch.from_numpy(self._bad.copy()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict` of a backend of equal size and terrains."""
        for key, array in (
            ("physics", self._physics),
            ("warm", self._warm),
            ("force", self._force),
            ("terrain", self._terrain),
            ("bad", self._bad),
        ):
            value = state[key].numpy()
            if value.shape != array.shape:
                raise ValueError(f"backend state '{key}' is {value.shape}, not {array.shape}")
            array[:] = value
        self._refresh_models(np.arange(self.num_envs))

    def close(self) -> None:
        """Stop the thread pool."""
        self._pool.close()

    def _refresh_models(self, ids: NDArray[np.int64]) -> None:
        for env in ids.tolist():
            self._env_models[env] = self._models[self._terrain[env]]

    def _contain(self) -> None:
        """Freeze environments that diverged at their last good configuration, without velocity.

        Where even the configuration before the step was not finite, the neutral pose takes over.
        """
        velocity = self._states[:, :, self._layout.vel]
        fast = np.abs(velocity).max(axis=(1, 2)) <= self.config.max_velocity
        fine = fast & np.isfinite(self._states[:, -1]).all(axis=-1)
        self._bad |= ~fine
        if self._bad.any():
            safe = self._physics[self._bad]
            safe[:, self._layout.vel] = 0.0
            safe[~np.isfinite(safe).all(axis=-1)] = self._neutral
            self._states[self._bad] = safe[:, None]
