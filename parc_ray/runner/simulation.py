"""The physics of a bundle in plain MuJoCo: its MJCF, terrain boxes, PD targets."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from parc_ray.runner.kinematics import Body, Floats, exp_to_quat, quat_conj, quat_to_exp, rotate
from parc_ray.runner.observations import State
from parc_ray.runner.reference import Ground
from parc_ray.terrain.rectangles import merge_rectangles

_DEPTH_M = 2.0


def ground_boxes(ground: Ground, extension_m: float) -> NDArray[np.float64]:
    """Disjoint boxes (K, 6) of centre and half sizes that cover the ground.

    Args:
        ground: the columns.
        extension_m: how far the outermost cells reach beyond the grid.
    """
    rows = np.array(merge_rectangles(ground.heights.astype(np.float64)))
    low, high = rows[:, [0, 2]], rows[:, [1, 3]]
    shape = np.array(ground.heights.shape)
    corner = ground.origin.astype(np.float64) - ground.cell_size / 2
    x0 = corner + low * ground.cell_size - (low == 0) * extension_m
    x1 = corner + high * ground.cell_size + (high == shape) * extension_m
    top = rows[:, 4:]
    floor = np.full_like(top, float(ground.heights.min()) - _DEPTH_M)
    first, last = np.hstack([x0, floor]), np.hstack([x1, top])
    return np.hstack([(first + last) / 2, (last - first) / 2]).astype(np.float32).astype(float)


class Simulation:
    """One character on one ground.

    Args:
        xml: the bundle's MJCF: bodies, servos, contact sensors, no ground.
        body: the kinematic tree.
        settings: ``simulation`` of the bundle.
        ground: the ground, already cropped.
    """

    def __init__(self, xml: str, body: Body, settings: dict[str, Any], ground: Ground) -> None:
        """Compile the model; see the class."""
        spec = mujoco.MjSpec.from_string(xml)
        contact = settings["terrain_contact"]
        for number, box in enumerate(ground_boxes(ground, settings["terrain_extension_m"])):
            spec.worldbody.add_geom(
                name=f"terrain_{number}",
                type=mujoco.mjtGeom.mjGEOM_BOX,
                pos=box[:3],
                size=box[3:],
                **contact,
            )
        self.model = spec.compile()
        # MJCF text holds six digits.
        self.model.opt.timestep = 1.0 / (settings["control_hz"] * settings["substeps"])
        self.data = mujoco.MjData(self.model)
        self.substeps = int(settings["substeps"])
        self.max_velocity = float(settings["max_velocity"])
        self._body, self._force = body, np.zeros((len(body.names), 3), np.float32)
        self._joints = [
            (kind, self.model.joint(f"{name}_joint"), slice(*body.dofs[index]))
            for index, (name, kind) in enumerate(zip(body.names, body.kinds, strict=True))
            if kind in ("spherical", "hinge")
        ]

    def set_state(self, state: State) -> None:
        """Put the character into a state, without contact forces."""
        data = self.data
        mujoco.mj_resetData(self.model, data)
        quat = state.root_rot.astype(np.float64)
        quat /= np.linalg.norm(quat)
        data.qpos[:3], data.qpos[3:7] = state.root_pos, quat[[3, 0, 1, 2]]
        data.qvel[:3] = state.root_lin_vel
        data.qvel[3:6] = rotate(quat_conj(quat), state.root_ang_vel.astype(np.float64))
        for kind, joint, dofs in self._joints:
            value = state.dof_pos[dofs].astype(np.float64)
            place, speed = int(joint.qposadr[0]), int(joint.dofadr[0])
            if kind == "spherical":
                data.qpos[place : place + 4] = exp_to_quat(value)[[3, 0, 1, 2]]
            else:
                data.qpos[place] = value[0]
            data.qvel[speed : speed + len(value)] = state.dof_vel[dofs]
        self._force[:] = 0.0

    def step(self, targets: Floats) -> bool:
        """One control period under PD targets (D,) rad; False where the character blew up."""
        self.data.ctrl[:] = targets
        for _ in range(self.substeps):
            mujoco.mj_step(self.model, self.data)
        speed = np.abs(self.data.qvel).max()
        self._force[:] = -self.data.sensordata.reshape(self._force.shape)
        return bool(np.isfinite(self.data.qpos).all() and speed <= self.max_velocity)

    def state(self) -> State:
        """The present state."""
        data = self.data
        quat = data.qpos[[4, 5, 6, 3]]
        quat = -quat if quat[3] < 0 else quat
        dof = np.zeros(int(self._body.dofs.max()))
        dof_vel = np.zeros_like(dof)
        for kind, joint, dofs in self._joints:
            place, speed = int(joint.qposadr[0]), int(joint.dofadr[0])
            if kind == "spherical":
                w, x, y, z = data.qpos[place : place + 4]
                dof[dofs] = quat_to_exp(np.array([x, y, z, w]))
            else:
                dof[dofs] = data.qpos[place]
            dof_vel[dofs] = data.qvel[speed : speed + dofs.stop - dofs.start]
        return State(
            root_pos=data.qpos[:3].astype(np.float32),
            root_rot=quat.astype(np.float32),
            root_lin_vel=data.qvel[:3].astype(np.float32),
            root_ang_vel=rotate(quat, data.qvel[3:6]).astype(np.float32),
            dof_pos=dof.astype(np.float32),
            dof_vel=dof_vel.astype(np.float32),
            contact_force=self._force.copy(),
        )
