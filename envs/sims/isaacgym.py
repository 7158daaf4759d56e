"""Isaac Gym through a bridge: the gated engine in a process of its own, on a Python of its own.

The engine is never imported here. A server (`envs.sims.isaacgym_server`) runs it and sends raw
state; this class converts, keeps what was set or seen last, and contains what the engine cannot:

* A state that was set counts at once. The engine learns of all that waits right before its next
  step, by one indexed call per tensor, because its own tensors are old until it has stepped.
* The engine's root velocity is that of the centre of mass, ours of the body's origin.
* The engine sums all contacts of a body; where characters collide with themselves, only what is at
  the terrain counts as the terrain's (`envs.sims.terrain_contact`).
* Nothing that is not finite is sent. Environments that diverge are held where they were last well.
* A server that is lost raises `SimulatorLostError`; the next step starts another one, in which
  every environment is where it was last seen.

What the engine keeps to itself (contact caches) is neither saved nor copied, so that continuing
from `state_dict` or `copy_env` is not bit for bit as in the backends that promise it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from envs.sims.base import SimConfig
from envs.sims.isaacgym_asset import isaacgym_mjcf
from envs.sims.isaacgym_bridge import Bridge, failed_import, missing_interpreter
from envs.sims.isaacgym_state import Conversion, Floats, Frame, blank_frame
from envs.sims.mujoco_model import ModelBuilder, terrain_boxes
from envs.sims.terrain_contact import TerrainContact
from envs.sims.terrain_mesh import mesh_of
from parc_ray.errors import SimulatorLostError
from parc_ray.protocols import SimState
from parc_ray.terrain.heightfield import Heightfield

if TYPE_CHECKING:
    from parc_ray.character.character import Character

_UNLIMITED_EFFORT = 1.0e6


class IsaacGymBackend:
    """`parc_ray.protocols.SimBackend` on Isaac Gym's PhysX.

    Args:
        character: the simulated character.
        num_envs: number of environments N.
        config: simulator settings; those of MuJoCo's solver have no effect.
    """

    name = "isaacgym"

    def __init__(
        self, character: Character, num_envs: int, config: SimConfig | None = None
    ) -> None:
        """Keep the settings; the server is started when the terrains are known."""
        self.character = character
        self.config = config or SimConfig()
        self.num_envs = num_envs
        self.control_dt = self.config.control_dt
        self.boxes: list[NDArray[np.float32]] = []
        self._asset = isaacgym_mjcf(character)
        self._drives = _drives(character, self.config)
        self.model_hash = self._hash()
        self._bridge: Bridge | None = None
        self._frames: tuple[Frame, ...] = ()

    @staticmethod
    def missing() -> str | None:
        """What this machine lacks to run it; None where a server can be tried."""
        return missing_interpreter()

    @staticmethod
    def trial() -> str | None:
        """What keeps the server's interpreter from importing the package; None where it can."""
        return failed_import()

    @staticmethod
    def wants_gpu(config: SimConfig) -> bool:
        """Always: its server takes whatever GPU it is given."""
        del config
        return True

    def load_terrains(self, terrains: Sequence[Heightfield]) -> None:
        """Lay the terrains out and start a server; environments begin on the first, in the air."""
        self.close()
        extension = self.config.terrain_extension_m
        self.boxes = [terrain_boxes(t, extension) for t in terrains]
        self._mesh = mesh_of(terrains, extension)
        n, skeleton = self.num_envs, self.character.skeleton
        self._contact = TerrainContact(self.character, terrains, extension)
        self._terrain = np.zeros(n, dtype=np.int64)
        self._bad = np.zeros(n, dtype=np.bool_)
        self._spoilt = np.zeros(n, dtype=np.bool_)
        self._waiting = np.ones(n, dtype=np.bool_)
        self._offset = np.repeat(self._mesh.offsets[:1].T, n, axis=1)
        self._now = blank_frame(n, skeleton.num_bodies, skeleton.num_dofs)
        air = self.character.stand_height + float(terrains[0].heights.max())
        self._now.arrays["root_pos"][:, 2] = air
        self._neutral = {k: v[0].copy() for k, v in self._now.arrays.items()}
        self._start()

    @property
    def bad(self) -> Tensor:
        """(N,) bool: diverged, standing still until the next ``set_state``."""
        return torch.from_numpy(self._bad.copy())

    @property
    def terrain_ids(self) -> Tensor:
        """(N,) long: the terrain of each environment."""
        return torch.from_numpy(self._terrain.copy())

    @property
    def about(self) -> dict[str, Any]:
        """What the server says of itself: its process, Python and device."""
        return dict(self._started().about)

    def set_state(self, env_ids: Tensor, terrain_ids: Tensor, state: SimState) -> None:
        """Put environments (K,) on terrains (K,) in ``state`` (K leading)."""
        ids, now = env_ids.numpy(), self._now.arrays
        rows = {k: v.detach().numpy() for k, v in vars(state).items()}
        rows["root_rot"] = _unit(rows["root_rot"])
        rows["contact_force"] = np.zeros((len(ids), 1, 3), dtype=np.float32)
        for key, value in now.items():
            value[ids] = rows[key]
        self._stand_on(ids, terrain_ids.numpy())
        self._bad[ids] = False
        self._waiting[ids] = True
        self._spoilt[ids] = ~self._well(rows)

    def step(self, pd_targets: Tensor) -> None:
        """Advance all environments by one control period under PD targets (N, D) in rad.

        Raises:
            SimulatorLostError: the server is gone; the step was not taken and can be repeated.
        """
        bridge = self._started()
        arrays, turn = bridge.arrays, self._conversion
        targets = pd_targets.detach().numpy()
        if not _finite(targets):
            self._spoilt |= ~np.isfinite(targets).all(axis=-1)
        if self._spoilt.any():
            self._hold(self._spoilt.copy())
        if self._bad.any():
            targets = np.where(self._bad[:, None], self._now.arrays["dof_pos"], targets)
        turn.write_targets(arrays, targets)
        ids = np.flatnonzero(self._waiting)
        arrays["count"][0] = len(ids)
        if len(ids):
            turn.write_rows(arrays, self._now, ids, self._offset[:, ids])
        half = int(self._now is self._frames[0])
        arrays["half"][0] = half
        try:
            bridge.step()
        except SimulatorLostError:
            self.close()
            raise
        self._waiting[ids] = False
        with np.errstate(all="ignore"):  # what diverged is found and contained
            turn.read(arrays, half, self._offset, self._frames[half])
        self._take(self._frames[half], arrays)

    def state(self) -> SimState:
        """The present state of all environments (a copy)."""
        return self._now.state.clone()

    def rollout(self, pd_targets: Tensor) -> SimState:
        """Advance by H control periods under targets (N, H, D); states after each, (N, H, ...)."""
        seen = []
        for h in range(pd_targets.shape[1]):
            self.step(pd_targets[:, h])
            seen.append(self.state())
        return SimState(
            **{k: torch.stack([getattr(s, k) for s in seen], dim=1) for k in self._now.arrays}
        )

    def copy_env(self, source: int, env_ids: Tensor) -> None:
        """Copy the visible state and the terrain of ``source`` onto ``env_ids``."""
        ids = env_ids.numpy()
        for array in (*self._now.arrays.values(), self._bad, self._spoilt):
            array[ids] = array[source]
        self._stand_on(ids, self._terrain[[source]])
        self._waiting[ids] = True

    def state_dict(self) -> dict[str, Any]:
        """Visible state, terrains and containment of all environments."""
        flags = {"terrain": self._terrain, "bad": self._bad, "spoilt": self._spoilt}
        return {k: torch.from_numpy(v.copy()) for k, v in (self._now.arrays | flags).items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict` of a backend of equal size and terrains."""
        targets: dict[str, Any] = dict(vars(self._now.state))
        for name in ("terrain", "bad", "spoilt"):
            targets[name] = torch.from_numpy(getattr(self, f"_{name}"))
        for key, target in targets.items():
            if state[key].shape != target.shape:
                expected, found = tuple(target.shape), tuple(state[key].shape)
                raise ValueError(f"backend state '{key}' is {found}, not {expected}")
        for key, target in targets.items():
            target.copy_(state[key])
        self._stand_on(slice(None), self._terrain)
        self._waiting[:] = True

    def close(self) -> None:
        """End the server; what was seen last is kept, out of the memory shared with it."""
        if self._bridge is not None:
            self._bridge.close()
            self._bridge = None
            self._now = self._now.clone()
            self._frames = ()

    def _stand_on(self, ids: NDArray[np.int64] | slice, terrains: NDArray[np.int64]) -> None:
        """Environments (K,) are on terrains (K,)."""
        self._terrain[ids] = terrains
        self._offset[:, ids] = self._mesh.offsets[terrains].T

    def _started(self) -> Bridge:
        """The server; a new one after the last was lost and that was said."""
        if not self.boxes:
            raise RuntimeError("load_terrains comes first")
        return self._bridge or self._start()

    def _start(self) -> Bridge:
        """Start a server and let every environment wait to be set in it."""
        self.close()
        skeleton = self.character.skeleton
        start = self._neutral["root_pos"] + self._mesh.offsets[0]
        terrain = {
            "vertices": self._mesh.vertices,
            "triangles": self._mesh.triangles,
            "start": start.astype(np.float32),
        }
        names = (tuple(skeleton.body_names), tuple(skeleton.dof_names))
        self._bridge = Bridge(self._hello(), terrain, names)
        self._conversion = Conversion(self._bridge.about, *names)
        self._frames = self._conversion.frames(self._bridge.arrays)
        self._waiting[:] = True
        return self._bridge

    def _hello(self) -> dict[str, Any]:
        config = self.config
        return {
            "num_envs": self.num_envs,
            "control_dt": config.control_dt,
            "substeps": config.substeps,
            "friction": config.friction,
            "self_collision": config.self_collision,
            "with_bodies": config.self_collision,
            "asset": self._asset,
            "drives": self._drives,
        }

    def _hash(self) -> str:
        """Hash of what decides the dynamics here; the engine's version is not known before."""
        fields = {k: v for k, v in self._hello().items() if k not in ("num_envs", "asset")}
        text = json.dumps([fields, self.character.digest, self.config.max_velocity], sort_keys=True)
        return hashlib.sha256(f"isaacgym|{text}".encode()).hexdigest()[:16]

    def _take(self, seen: Frame, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Make what the engine reports the present state, apart from what has diverged."""
        if self.config.self_collision and arrays["touch_count"][0]:
            env, body, pose = self._conversion.touched(arrays)
            pose[:, :3] -= self._offset[:, env].T
            force = seen.state.contact_force
            self._contact.keep_terrain(force, env, body, pose, self._terrain[env])
        failed, before = ~self._well(seen.arrays), self._now.arrays
        self._now = seen
        if not failed.any() and not self._bad.any():
            return
        keep = self._bad | failed
        for key, value in seen.arrays.items():
            value[keep] = before[key][keep]
        self._hold(failed)

    def _hold(self, failed: NDArray[np.bool_]) -> None:
        """Environments that diverged, these and earlier ones, stand still where they are."""
        self._bad |= failed
        self._spoilt[failed] = False
        if not self._bad.any():
            return
        now = self._now.arrays
        for key in ("root_lin_vel", "root_ang_vel", "dof_vel", "contact_force"):
            now[key][self._bad] = 0.0
        lost = self._bad & ~self._well(now)
        for key, value in now.items():
            value[lost] = self._neutral[key]
        self._waiting |= self._bad

    def _well(self, state: Mapping[str, Floats]) -> NDArray[np.bool_]:
        """(K,) whether everything is finite and no velocity beyond the limit."""
        limit = self.config.max_velocity
        velocities = [state[k] for k in ("root_lin_vel", "root_ang_vel", "dof_vel")]
        places = [state[k] for k in ("root_pos", "root_rot", "dof_pos", "contact_force")]
        # Mostly everything is well, which is seen much sooner for all at once.
        with np.errstate(all="ignore"):
            slow = all(v.max() <= limit and v.min() >= -limit for v in velocities if v.size)
        if slow and all(_finite(p) for p in places):
            return np.ones(len(places[0]), dtype=np.bool_)
        fine = np.asarray(np.isfinite(state["contact_force"]).all(axis=(-2, -1)))
        for place in places[:3]:
            fine &= np.isfinite(place).all(axis=-1)
        for velocity in velocities:
            fine &= (np.abs(velocity) <= limit).all(axis=-1)
        return fine


def _finite(values: Floats) -> bool:
    """Whether all are finite, in one pass; so large that their squares overflow counts as not."""
    flat = values.reshape(-1)
    return math.isfinite(np.dot(flat, flat))


def _unit(quat: Floats) -> Floats:
    """Unit quaternions with w >= 0."""
    with np.errstate(all="ignore"):
        length = np.sqrt(np.einsum("ki,ki->k", quat, quat))
        return np.asarray(quat / np.copysign(length, quat[:, 3])[:, None], dtype=np.float32)


def _drives(character: Character, config: SimConfig) -> dict[str, dict[str, float]]:
    """Gains, armature and effort limit of every dof, by name."""
    model = ModelBuilder(character, config, 1)
    armature, effort = np.asarray(character.armature), np.asarray(character.effort)
    return {
        name: {
            "stiffness": float(model.kp[dof]),
            "damping": float(model.kd[dof]),
            "armature": float(armature[dof]),
            "effort": float(effort[dof]) if config.torque_limits else _UNLIMITED_EFFORT,
        }
        for dof, name in enumerate(character.skeleton.dof_names)
    }
