"""MuJoCo models of a character on box terrain.

The character's MJCF gives bodies, geoms and inertias; joints and actuators are rebuilt from the
skeleton: one ball joint per spherical joint with three position actuators on its rotation vector,
one hinge per hinge (why: docs/design/physics.md, Ball joints). A terrain is a fixed number of
static boxes, unused ones switched off far below, so that all models of a backend have equal sizes
and one batch can mix them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import mujoco
import numpy as np
from numpy.typing import NDArray

from envs.sims.base import SimConfig
from parc_ray.errors import InputError
from parc_ray.terrain.boxes import boxes_to_world
from parc_ray.terrain.heightfield import Heightfield

if TYPE_CHECKING:
    from parc_ray.character.character import Character

_TERRAIN_DEPTH_M = 2.0
_PARKED_Z_M = -1000.0
_BOX_BUCKET = 8
_SOLREF = (0.02, 1.0)
_SOLIMP = (0.9, 0.95, 0.001, 0.5, 2.0)
_TORSION_ROLL_FRICTION = (0.005, 0.0001)
_CONTACT_DATA_FORCE = 1 << 1
_CONTACT_REDUCE_NET = 3


def terrain_boxes(terrain: Heightfield, extension_m: float) -> NDArray[np.float32]:
    """Cover a heightfield with disjoint static boxes.

    Args:
        terrain: flat-topped columns, in their own frame.
        extension_m: how far the outermost cells reach beyond the grid.

    Returns:
        (K, 6) float32: centre and half sizes in metres. Bottoms lie 2 m below the lowest cell.
    """
    bottom = float(terrain.heights.min()) - _TERRAIN_DEPTH_M
    return boxes_to_world(terrain, bottom, apron_m=extension_m).numpy()


class ModelBuilder:
    """Builds MjModels that share a character and differ in their terrain boxes.

    Args:
        character: figures and MJCF text of the character.
        config: simulator settings.
        num_boxes: boxes every model holds, used or not.

    Raises:
        InputError: if the MJCF and the skeleton disagree about bodies.
    """

    def __init__(self, character: Character, config: SimConfig, num_boxes: int) -> None:
        """Prepare the specification; see the class."""
        self.num_boxes = -(-max(num_boxes, 1) // _BOX_BUCKET) * _BOX_BUCKET
        self._spec = _character_spec(character, config)
        self._actuators = _add_actuators(self._spec, character, config)
        self._boxes = [
            self._spec.worldbody.add_geom(
                name=f"terrain_{k}", type=mujoco.mjtGeom.mjGEOM_BOX, size=[1, 1, 1], condim=3
            )
            for k in range(self.num_boxes)
        ]
        for geom in self._boxes:
            _set_contact(geom, config.friction)
        _add_contact_sensors(self._spec, character)
        self._limit_damping(character, config)

    def build(self, boxes: NDArray[np.float32]) -> mujoco.MjModel:
        """Compile the model of one terrain.

        Args:
            boxes: (K, 6) centres and half sizes, K <= num_boxes.
        """
        if len(boxes) > self.num_boxes:
            raise InputError(f"terrain: {len(boxes)} boxes; this backend holds {self.num_boxes}")
        for k, geom in enumerate(self._boxes):
            used = k < len(boxes)
            row = boxes[k].astype(np.float64) if used else None
            geom.pos = row[:3] if row is not None else [3.0 * k, 0.0, _PARKED_Z_M]
            geom.size = row[3:] if row is not None else [1.0, 1.0, 1.0]
            geom.contype, geom.conaffinity = (2, 1) if used else (0, 0)
        return self._spec.compile()

    def _limit_damping(self, character: Character, config: SimConfig) -> None:
        """Lower kd to critical damping where the effective inertia asks for it.

        Measured, see docs/design/physics.md, Gains.
        """
        kp, kd = np.asarray(character.kp, np.float64), np.asarray(character.kd, np.float64).copy()
        if config.gains == "critical":
            inertia = effective_inertia(self._spec.compile())
            kd = np.minimum(kd, 2.0 * np.sqrt(kp * inertia))
        for actuator, p, d in zip(self._actuators, kp, kd, strict=True):
            actuator.set_to_position(kp=float(p), kv=float(d))
        self.kp, self.kd = kp, kd


def effective_inertia(model: mujoco.MjModel) -> NDArray[np.float64]:
    """Inertia each actuator feels at the neutral pose: 1 / diag(M^-1), in actuator order (A,)."""
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    mass = np.zeros((model.nv, model.nv))
    mujoco.mj_fullM(model, data, mass)
    inverse = np.diag(np.linalg.inv(mass))
    out = np.empty(model.nu)
    for a in range(model.nu):
        joint = model.actuator_trnid[a, 0]
        axis = int(np.argmax(np.abs(model.actuator_gear[a, :3])))
        is_ball = model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_BALL
        out[a] = 1.0 / inverse[model.jnt_dofadr[joint] + (axis if is_ball else 0)]
    return out


def model_hash(character: Character, config: SimConfig) -> str:
    """Hash of everything that decides the dynamics, apart from the terrain."""
    fields = (
        config.control_hz,
        config.substeps,
        config.gains,
        config.torque_limits,
        config.friction,
        config.self_collision,
        config.solver_iterations,
        config.line_search_iterations,
        config.max_velocity,
    )
    text = f"mujoco {mujoco.__version__}|{character.digest}|{fields}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _character_spec(character: Character, config: SimConfig) -> mujoco.MjSpec:
    """Read the MJCF, drop what is not body or geom, and set joints and options anew."""
    spec = mujoco.MjSpec.from_string(character.mjcf_xml)
    for element in (
        *spec.actuators,
        *spec.sensors,
        *spec.joints,
        *spec.worldbody.geoms,
        *spec.worldbody.lights,
        *spec.cameras,
        *spec.keys,
    ):
        spec.delete(element)
    names = {body.name for body in spec.bodies}
    missing = [n for n in character.skeleton.body_names if n not in names]
    if missing:
        raise InputError(f"{character.name}: the MJCF has no body '{missing[0]}'")
    for geom in spec.geoms:
        _set_contact(geom, config.friction)
        geom.condim = 3
        geom.contype, geom.conaffinity = (1, 1) if config.self_collision else (0, 2)
    _add_joints(spec, character)
    _set_options(spec, config)
    return spec


def _set_contact(geom: mujoco.MjsGeom, friction: float) -> None:
    """One contact law for everything that can touch."""
    geom.friction = [friction, *_TORSION_ROLL_FRICTION]
    geom.solref = list(_SOLREF)
    geom.solimp = list(_SOLIMP)
    geom.margin, geom.gap, geom.priority, geom.solmix = 0.0, 0.0, 0, 1.0


def _add_joints(spec: mujoco.MjSpec, character: Character) -> None:
    """A free root, a ball per spherical joint without limits, a hinge with its range."""
    skeleton = character.skeleton
    armature = np.asarray(character.armature, dtype=np.float64)
    limits = np.asarray(skeleton.dof_limits, dtype=np.float64)
    unit = 180.0 / math.pi if spec.compiler.degree else 1.0
    for index, (name, kind) in enumerate(
        zip(skeleton.body_names, skeleton.joint_kinds, strict=True)
    ):
        body = spec.body(name)
        if kind == "root":
            body.add_freejoint(name="root")
            continue
        if kind == "fixed":
            continue
        dofs = skeleton.dof_slices[index]
        joint = body.add_joint(
            name=f"{name}_joint",
            type=mujoco.mjtJoint.mjJNT_BALL if kind == "spherical" else mujoco.mjtJoint.mjJNT_HINGE,
        )
        joint.pos = [0.0, 0.0, 0.0]
        joint.damping, joint.stiffness = np.zeros(3), np.zeros(3)
        joint.frictionloss, joint.ref = 0.0, 0.0
        joint.armature = float(armature[dofs].max())
        joint.limited = int(kind == "hinge")
        if kind == "hinge":
            joint.axis = np.asarray(skeleton.hinge_axes, dtype=np.float64)[index]
            joint.range = limits[dofs.start] * unit
        else:
            joint.range = [0.0, 0.0]


def _set_options(spec: mujoco.MjSpec, config: SimConfig) -> None:
    """Integrator, solver and flags; measured, see docs/design/physics.md, Rates."""
    option = spec.option
    option.timestep = config.timestep
    option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    option.solver = mujoco.mjtSolver.mjSOL_NEWTON
    option.cone = mujoco.mjtCone.mjCONE_PYRAMIDAL
    option.iterations = config.solver_iterations
    option.ls_iterations = config.line_search_iterations
    option.gravity = [0.0, 0.0, -9.81]
    option.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)


def _add_actuators(
    spec: mujoco.MjSpec, character: Character, config: SimConfig
) -> list[mujoco.MjsActuator]:
    """One position servo per dof, in dof order."""
    skeleton = character.skeleton
    effort = np.asarray(character.effort, dtype=np.float64)
    out: list[mujoco.MjsActuator] = []
    for index, kind in enumerate(skeleton.joint_kinds):
        dofs = skeleton.dof_slices[index]
        if kind not in ("spherical", "hinge"):
            continue
        for axis, dof in enumerate(range(dofs.start, dofs.stop)):
            actuator = spec.add_actuator(name=f"servo_{dof}")
            actuator.trntype = mujoco.mjtTrn.mjTRN_JOINT
            actuator.target = f"{skeleton.body_names[index]}_joint"
            gear = np.zeros(6)
            gear[axis] = 1.0
            actuator.gear = gear
            actuator.set_to_position(kp=float(np.asarray(character.kp)[dof]), kv=0.0)
            actuator.ctrllimited = 0
            actuator.forcelimited = int(config.torque_limits)
            actuator.forcerange = [-effort[dof], effort[dof]]
            out.append(actuator)
    return out


def _add_contact_sensors(spec: mujoco.MjSpec, character: Character) -> None:
    """Net force of each body on the world, in body order (the backend flips the sign)."""
    for name in character.skeleton.body_names:
        spec.add_sensor(
            name=f"contact_{name}",
            type=mujoco.mjtSensor.mjSENS_CONTACT,
            objtype=mujoco.mjtObj.mjOBJ_BODY,
            objname=name,
            reftype=mujoco.mjtObj.mjOBJ_BODY,
            refname="world",
            intprm=[_CONTACT_DATA_FORCE, _CONTACT_REDUCE_NET, 1],
        )


def shared_num_boxes(boxes: Sequence[NDArray[np.float32]]) -> int:
    """Number of boxes that models of all these terrains must hold."""
    return max((len(b) for b in boxes), default=1)
