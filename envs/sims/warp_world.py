"""The arrays and kernels behind `envs.sims.mujoco_warp`: many worlds of one model on one device.

All worlds share a compiled model. What differs between them are the boxes of the terrain: a pool
of static geoms whose place and size are kept per world. Torch looks at Warp's own arrays, nothing
is copied. On a GPU all solver steps of a control step are one CUDA graph.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

import mujoco
import mujoco_warp as mjw
import numpy as np
import warp as wp
from numpy.typing import NDArray
from torch import Tensor

from envs.sims.devices import assigned_gpu
from parc_ray.errors import InputError

logger = logging.getLogger(__name__)

_GROWTH = 1.5
_MOST_GROWTHS = 8
_PER_WORLD_FIELDS = ("geom_size", "geom_aabb", "geom_rbound")
_FULL = mjw.OverflowType
_CONTACTS = _FULL.BROADPHASE | _FULL.NARROWPHASE | _FULL.CCD
_CONSTRAINTS = _FULL.NEFC | _FULL.NJMAX_NNZ
_MATCHES = _FULL.CONTACT_MATCH
_GROWABLE = int(_CONTACTS | _CONSTRAINTS | _MATCHES)
_HARMLESS = int(_FULL.ITERATIONS | _FULL.LS_ITERATIONS)  # a solver that used all it was given
_SLOW_START_S = 5.0


@wp.kernel
def _peak_speed(qvel: wp.array2d[float], peak: wp.array[float]) -> None:
    world = wp.tid()
    top = peak[world]  # pyright: ignore
    for i in range(qvel.shape[1]):  # pyright: ignore
        speed = wp.abs(qvel[world, i])  # pyright: ignore
        if not wp.isfinite(speed):  # pyright: ignore
            speed = wp.inf
        top = wp.max(top, speed)  # pyright: ignore
    peak[world] = top  # pyright: ignore


@dataclass(frozen=True)
class Capacity:
    """Room in the solver's arrays.

    Attributes:
        contacts: per world on average; all worlds share one pool.
        constraints: rows per world.
        matches: contacts that one sensor can add up.
    """

    contacts: int
    constraints: int
    matches: int = 64


def pick_device(name: str) -> str:
    """Warp's name of the device that ``sim.device`` means.

    ``auto`` never takes a GPU that Ray did not give to this worker.

    Raises:
        InputError: no such device here.
    """
    wp.config.log_level = max(wp.config.log_level, wp.LOG_WARNING)
    wp.init()
    have = [str(device) for device in wp.get_devices()]
    if name == "auto":
        # Ray shows a worker only its own GPUs where it gave it some: the first is the one.
        free = "cuda:0" in have and assigned_gpu() != ""
        if not free:
            logger.warning(
                "mujoco_warp: %s and simulates on the CPU, which is slow",
                "got no GPU from Ray" if "cuda:0" in have else "found no GPU",
            )
        return "cuda:0" if free else "cpu"
    wanted = "cuda:0" if name == "cuda" else name
    if wanted not in have:
        raise InputError(
            f"sim.device: '{name}' is not on this machine; use auto or one of {', '.join(have)}"
        )
    return wanted


class WarpWorlds:
    """N worlds of ``model`` on ``device``.

    Args:
        model: compiled with all terrain boxes in use.
        num_worlds: number of worlds N.
        boxes: the geoms of the terrain pool.
        capacity: room to begin with; it grows where it does not suffice.
        device: Warp's name of the device.
        substeps: solver steps per `advance`.
    """

    qpos: Tensor
    qvel: Tensor
    warmstart: Tensor
    control: Tensor
    sensors: Tensor
    peak: Tensor

    def __init__(
        self,
        model: mujoco.MjModel,
        num_worlds: int,
        boxes: slice,
        capacity: Capacity,
        device: str,
        substeps: int,
    ) -> None:
        """Allocate; worlds begin in the model's neutral pose, without ground."""
        self.device, self.capacity, self.num_worlds = device, capacity, num_worlds
        self.growths = 0
        self._told = 0
        self._mjm, self._boxes, self._substeps = model, boxes, substeps
        # Divergence is found and contained above; MuJoCo Warp cannot switch its own off.
        model.opt.disableflags &= ~int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
        with wp.ScopedDevice(device):
            sizes: dict[str, int] = {name: num_worlds for name in _PER_WORLD_FIELDS}
            self._model = mjw.put_model(model, batch_sizes=sizes)
            self._model.opt.warn_overflow = 0
            self._allocate()
        self._size, self._aabb, self._bound = (
            wp.to_torch(getattr(self._model, name)) for name in _PER_WORLD_FIELDS
        )
        self._started = False

    def place(self, worlds: Tensor, centre: Tensor, half: Tensor) -> None:
        """Give worlds (K,) terrain boxes (K, G, 3): centres and half sizes, metres."""
        index = (worlds, self._boxes)
        self._xpos[index] = centre
        self._size[index] = half
        self._aabb[worlds, self._boxes, 1] = half
        self._bound[index] = half.square().sum(-1).sqrt()

    def advance(self) -> None:
        """Run all solver steps of one control step under `control`.

        Where the engine had no room for a contact or a constraint, nothing of the step counts: it
        is run again from its beginning with more room.

        Raises:
            InputError: the room has grown as far as it may.
        """
        before = [x.clone() for x in (self.qpos, self.qvel, self.warmstart)]
        while True:
            began = time.monotonic()
            self._run()
            full = self._lacking()
            if not self._started:
                self._started = True
                if time.monotonic() - began > _SLOW_START_S:
                    logger.warning(
                        "mujoco_warp: kernels for this model were compiled (%.0f s); they are "
                        "kept in %s",
                        time.monotonic() - began,
                        wp.config.kernel_cache_dir,
                    )
            if not full:
                return
            self._grow(full)
            for array, old in zip((self.qpos, self.qvel, self.warmstart), before, strict=True):
                array.copy_(old)

    def _run(self) -> None:
        self.peak.zero_()
        self._overflow.zero_()
        with wp.ScopedDevice(self.device) as device:
            if not device.is_cuda:
                self._substep_all()
            elif self._graph is None:
                self._substep_all()  # loads every kernel, which a capture may not do
                self._restore_and_capture()
            else:
                wp.capture_launch(self._graph)

    def _restore_and_capture(self) -> None:
        """Record the graph; recording does not run it, so the step that was taken stands."""
        with wp.ScopedCapture() as capture:
            self._substep_all()
        self._graph = capture.graph

    def _substep_all(self) -> None:
        for _ in range(self._substeps):
            mjw.step(self._model, self._data)
            wp.launch(_peak_speed, self.num_worlds, [self._data.qvel], [self._peak])

    def _lacking(self) -> int:
        """Which arrays were too small since the last look, as bits of `OverflowType`."""
        bits = self._overflow.cpu().numpy()  # the only wait for the device
        found = int(np.bitwise_or.reduce(bits))
        if found & ~(_GROWABLE | _HARMLESS | self._told):
            self._warn_of_others(bits)
        full = found & _GROWABLE
        if full:
            logger.warning(
                "mujoco_warp: %d of %d environments had more %s than there was room for (%d "
                "contacts on average, %d constraints); the step is repeated with more; set "
                "sim.max_contacts and sim.max_constraints higher to begin with",
                np.count_nonzero(bits & _GROWABLE),
                self.num_worlds,
                " and ".join(_names(full)),
                self.capacity.contacts,
                self.capacity.constraints,
            )
        return full

    def _warn_of_others(self, bits: NDArray[np.int32]) -> None:
        """Say once per kind what else overflowed; more room is no cure for these."""
        others = bits & ~(_GROWABLE | _HARMLESS | self._told)
        for kind in _FULL:
            count = np.count_nonzero(others & int(kind))
            if count:
                self._told |= int(kind)
                logger.warning(
                    "mujoco_warp: overflow %s in %d of %d environments; their contacts in this "
                    "step may be wrong (said once)",
                    kind.name,
                    count,
                    self.num_worlds,
                )

    def _grow(self, full: int) -> None:
        """More room where it lacked; states, controls and ground are kept."""
        old = self.capacity
        if self.growths >= _MOST_GROWTHS:
            raise InputError(
                f"mujoco_warp: no room for {' and '.join(_names(full))} even with {old.contacts} "
                f"contacts and {old.constraints} constraints per environment; set "
                "sim.max_contacts and sim.max_constraints higher if that many are real"
            )

        def more(value: int, bits: int) -> int:
            return int(value * _GROWTH) + 1 if full & int(bits) else value

        self.growths += 1
        self.capacity = Capacity(
            more(old.contacts, _CONTACTS),
            more(old.constraints, _CONSTRAINTS),
            more(old.matches, _MATCHES),
        )
        kept = self.control.clone(), self._xpos.clone()
        with wp.ScopedDevice(self.device):
            self._allocate()
        self.control.copy_(kept[0])
        self._xpos.copy_(kept[1])

    def _allocate(self) -> None:
        capacity = self.capacity
        self._model.opt.contact_sensor_maxmatch = capacity.matches
        self._data = mjw.make_data(
            self._mjm,
            nworld=self.num_worlds,
            nconmax=capacity.contacts,
            njmax=capacity.constraints,
        )
        self._graph: Any = None
        self._peak = wp.zeros(self.num_worlds, dtype=float)
        self.peak = wp.to_torch(self._peak)
        self.qpos = wp.to_torch(self._data.qpos)
        self.qvel = wp.to_torch(self._data.qvel)
        self.warmstart = wp.to_torch(self._data.qacc_warmstart)
        self.control = wp.to_torch(self._data.ctrl)
        self.sensors = wp.to_torch(self._data.sensordata)
        self._overflow = wp.to_torch(self._data.overflow)
        self._xpos = wp.to_torch(self._data.geom_xpos)


def _names(full: int) -> list[str]:
    """What there was no room for, in words."""
    words = ((_CONTACTS, "contacts"), (_CONSTRAINTS, "constraints"), (_MATCHES, "sensed contacts"))
    return [word for bits, word in words if full & int(bits)]
