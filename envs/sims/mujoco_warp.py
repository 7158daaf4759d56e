"""MuJoCo Warp: many characters on one GPU (or, for tests and comparisons, on a CPU).

The same model as `envs.sims.mujoco_cpu`, stepped for all environments at once. Environments keep
their own terrain in a pool of boxes. Room for contacts and constraints grows where it does not
suffice; a step that lacked room is never kept. The engine's packages are imported on first use, so
that a machine without them can still ask what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from envs.sims.base import SimConfig
from envs.sims.mujoco_model import ModelBuilder, model_hash, shared_num_boxes, terrain_boxes
from envs.sims.mujoco_state import state_layout
from envs.sims.warp_state import TorchLayout, pack, unpack
from parc_ray.errors import InputError
from parc_ray.protocols import SimState
from parc_ray.terrain.heightfield import Heightfield

if TYPE_CHECKING:
    from envs.sims.warp_world import WarpWorlds
    from parc_ray.character.character import Character

_PACKAGES = ("warp", "mujoco_warp")
_PARKED_Z_M = -1000.0
_KEPT = ("qpos", "qvel", "warm", "force", "terrain", "bad")


class MujocoWarpBackend:
    """`parc_ray.protocols.SimBackend` on MuJoCo Warp.

    Args:
        character: the simulated character.
        num_envs: number of environments N.
        config: simulator settings; ``device``, ``max_contacts`` and ``max_constraints`` are this
            backend's own.

    Raises:
        InputError: the packages are not installed, or there is no such device.
    """

    name = "mujoco_warp"

    def __init__(
        self, character: Character, num_envs: int, config: SimConfig | None = None
    ) -> None:
        """Choose the device; environments are allocated with the terrains."""
        lacking = self.missing()
        if lacking:
            raise InputError(f"simulator {self.name}: {lacking}")
        from envs.sims.warp_world import pick_device

        self.character = character
        self.config = config or SimConfig()
        self.num_envs = num_envs
        self.control_dt = self.config.control_dt
        self.model_hash = model_hash(character, self.config)
        self.boxes: list[NDArray[np.float32]] = []
        self._device = pick_device(self.config.device)

    @staticmethod
    def missing() -> str | None:
        """Which package this machine lacks; None where the backend can run (on a CPU at least)."""
        lacking = [name for name in _PACKAGES if find_spec(name) is None]
        if not lacking:
            return None
        return f"package {lacking[0]} is not installed; run: pip install 'parc-ray[warp]'"

    @staticmethod
    def wants_gpu(config: SimConfig) -> bool:
        """Whether the device is left to what there is, which should be a GPU."""
        return config.device == "auto"

    def load_terrains(self, terrains: Sequence[Heightfield]) -> None:
        """Compile the model; environments start on the first terrain, at rest at the origin."""
        extension = self.config.terrain_extension_m
        self.load_boxes([terrain_boxes(t, extension) for t in terrains])

    def load_boxes(self, boxes: Sequence[NDArray[np.float32]]) -> None:
        """As `load_terrains`, from boxes (K, 6) of centres and half sizes in metres."""
        from envs.sims.warp_world import Capacity, WarpWorlds

        self.boxes = [np.asarray(b, dtype=np.float32) for b in boxes]
        builder = ModelBuilder(self.character, self.config, shared_num_boxes(self.boxes))
        count = builder.num_boxes
        model = builder.build(np.array([[0, 0, 0, 1, 1, 1]] * count, dtype=np.float32))
        first = model.geom("terrain_0").id
        config = self.config
        self._worlds: WarpWorlds = WarpWorlds(
            model,
            self.num_envs,
            slice(first, first + count),
            Capacity(config.max_contacts, config.max_constraints),
            self._device,
            config.substeps,
        )
        device = self._worlds.qpos.device
        self._layout = TorchLayout.of(state_layout(model, self.character.skeleton), device)
        self._centre, self._half = (x.to(device) for x in _tables(self.boxes, count))
        n = self.num_envs
        self._neutral = torch.as_tensor(model.qpos0, dtype=torch.float32, device=device)
        self._force = torch.zeros(n, self.character.skeleton.num_bodies, 3, device=device)
        self._terrain = torch.zeros(n, dtype=torch.long, device=device)
        self._bad = torch.zeros(n, dtype=torch.bool, device=device)
        everyone = torch.arange(n, device=device)
        self._worlds.qpos[:] = self._neutral
        self._worlds.qvel.zero_()
        self._move_ground(everyone)

    @property
    def device(self) -> torch.device:
        """Where the simulation runs; states are handed out on the CPU."""
        return self._force.device

    @property
    def bad(self) -> Tensor:
        """(N,) bool: diverged, standing still until the next ``set_state``."""
        return self._bad.cpu().clone()

    @property
    def growths(self) -> int:
        """How often the room for contacts or constraints had to grow."""
        return self._worlds.growths

    @property
    def terrain_ids(self) -> Tensor:
        """(N,) long: the terrain of each environment."""
        return self._terrain.cpu().clone()

    def set_state(self, env_ids: Tensor, terrain_ids: Tensor, state: SimState) -> None:
        """Put environments (K,) on terrains (K,) in ``state`` (K leading)."""
        ids = env_ids.to(self.device)
        local = SimState(**{k: v.detach().to(self.device) for k, v in vars(state).items()})
        qpos, qvel = pack(self._layout, local, len(self._neutral))
        worlds = self._worlds
        worlds.qpos[ids], worlds.qvel[ids], worlds.warmstart[ids] = qpos, qvel, 0.0
        self._force[ids] = 0.0
        self._bad[ids] = False
        self._terrain[ids] = terrain_ids.to(self.device)
        self._move_ground(ids)

    def step(self, pd_targets: Tensor) -> None:
        """Advance all environments by one control period under PD targets (N, D) in rad."""
        worlds = self._worlds
        safe_pos = worlds.qpos.clone()
        target = pd_targets.detach().to(self.device, torch.float32)
        self._bad |= ~torch.isfinite(target).all(-1)
        self._bad |= ~torch.isfinite(safe_pos).all(-1) | ~torch.isfinite(worlds.qvel).all(-1)
        self._hold(safe_pos)
        worlds.control.copy_(torch.where(self._bad[:, None], torch.zeros_like(target), target))
        worlds.advance()
        self._bad |= ~(worlds.peak <= self.config.max_velocity)
        self._bad |= ~torch.isfinite(worlds.qpos).all(-1)
        self._force.copy_(-worlds.sensors.view(self._force.shape))
        self._hold(safe_pos)

    def state(self) -> SimState:
        """The present state of all environments (a copy, on the CPU)."""
        worlds = self._worlds
        state = unpack(self._layout, worlds.qpos, worlds.qvel, self._force)
        return SimState(**{name: value.cpu() for name, value in vars(state).items()})

    def rollout(self, pd_targets: Tensor) -> SimState:
        """Advance by H control periods under targets (N, H, D); states after each, (N, H, ...)."""
        states = []
        for target in pd_targets.unbind(1):
            self.step(target)
            states.append(self.state())
        names = vars(states[0])
        return SimState(**{k: torch.stack([vars(s)[k] for s in states], dim=1) for k in names})

    def copy_env(self, source: int, env_ids: Tensor) -> None:
        """Copy the complete internal state (and terrain) of ``source`` onto ``env_ids``."""
        ids = env_ids.to(self.device)
        for array in self._arrays().values():
            array[ids] = array[source].clone()
        self._move_ground(ids)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue (bit for bit on a CPU)."""
        return {name: array.cpu().clone() for name, array in self._arrays().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict` of a backend of equal size and terrains."""
        for key, array in self._arrays().items():
            value = state[key]
            if value.shape != array.shape:
                raise ValueError(
                    f"backend state '{key}' is {tuple(value.shape)}, not {tuple(array.shape)}"
                )
            array.copy_(value)
        self._move_ground(torch.arange(self.num_envs, device=self.device))

    def close(self) -> None:
        """Release the arrays."""
        self.__dict__.pop("_worlds", None)

    def _arrays(self) -> dict[str, Tensor]:
        """Everything that decides the future of an environment: one row each."""
        worlds = self._worlds
        arrays = (worlds.qpos, worlds.qvel, worlds.warmstart)
        return dict(zip(_KEPT, (*arrays, self._force, self._terrain, self._bad), strict=True))

    def _move_ground(self, ids: Tensor) -> None:
        """Put the boxes of environments (K,) where their terrain has them."""
        terrain = self._terrain[ids]
        self._worlds.place(ids, self._centre[terrain], self._half[terrain])

    def _hold(self, safe_pos: Tensor) -> None:
        """Keep diverged environments at ``safe_pos`` (N, nq), or neutral, without velocity."""
        if not bool(self._bad.any()):
            return
        worlds, bad = self._worlds, self._bad
        place = safe_pos[bad]
        lost = ~torch.isfinite(place).all(-1)
        place[lost] = self._neutral
        worlds.qpos[bad] = place
        worlds.qvel[bad], worlds.warmstart[bad], self._force[bad] = 0.0, 0.0, 0.0


def _tables(boxes: Sequence[NDArray[np.float32]], count: int) -> tuple[Tensor, Tensor]:
    """Centres and half sizes (T, count, 3) of T terrains; what is unused is parked far below."""
    centre = torch.zeros(len(boxes), count, 3)
    centre[..., 0], centre[..., 2] = 3.0 * torch.arange(count), _PARKED_Z_M
    half = torch.ones(len(boxes), count, 3)
    for row, own in enumerate(boxes):
        values = torch.from_numpy(own)
        centre[row, : len(own)], half[row, : len(own)] = values[:, :3], values[:, 3:]
    return centre, half
