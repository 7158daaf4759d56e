"""The calls of the engine that the project uses."""

import numpy as np

from . import IDLE
from ._engine import Engine
from ._model import Asset, boxes_of
from ._structs import *  # noqa: F403  (gymapi has structures and constants beside the calls)
from ._structs import (
    DOF_MODE_NONE,
    SIM_PHYSX,
    UP_AXIS_Z,
    RigidBodyProperties,
    RigidShapeProperties,
    Tensor,
    Vec3,
)

DOF_DTYPE = np.dtype(
    [("hasLimits", "?"), ("lower", "f4"), ("upper", "f4"), ("driveMode", "i4"), ("velocity", "f4")]
    + [(name, "f4") for name in ("effort", "stiffness", "damping", "friction", "armature")]
)


def acquire_gym(*args):
    """The engine."""
    return Gym()


class Sim:
    """A scene."""

    def __init__(self, params):
        self.params, self.mesh, self.envs, self.engine = params, None, [], None
        self.pending = self.set_before = None


class Env:
    """An environment with its actor."""

    def __init__(self, sim):
        self.sim, self.asset = sim, None


class Gym:
    """The calls."""

    def create_sim(self, compute_device=0, graphics_device=0, type=0, params=None):
        if type != SIM_PHYSX or params.up_axis != UP_AXIS_Z:
            raise ValueError("the stand-in simulates PhysX scenes with z up")
        if params.use_gpu_pipeline or params.physx.use_gpu:
            raise ValueError("the stand-in has no GPU")
        print("Physics Engine: PhysX\nPhysics Device: cpu\nGPU Pipeline: disabled")
        return Sim(params)

    def add_triangle_mesh(self, sim, vertices, triangles, params):
        if vertices.dtype != np.float32 or triangles.dtype != np.uint32:
            raise TypeError("vertices are float32 and triangles uint32")
        if vertices.shape != (3 * params.nb_vertices,):
            raise ValueError("vertices are one row of 3 nb_vertices numbers")
        if triangles.shape != (3 * params.nb_triangles,):
            raise ValueError("triangles are one row of 3 nb_triangles numbers")
        sim.mesh = (boxes_of(vertices.reshape(-1, 3), triangles.reshape(-1, 3)), params)

    def load_asset(self, sim, rootpath, filename, options=None):
        return Asset(rootpath, filename, options)

    def get_asset_rigid_body_names(self, asset):
        return list(asset.bodies)

    def get_asset_dof_names(self, asset):
        return list(asset.dofs)

    def get_asset_rigid_shape_properties(self, asset):
        return [RigidShapeProperties() for _ in range(asset.num_shapes)]

    def set_asset_rigid_shape_properties(self, asset, props):
        asset.friction = float(props[0].friction)
        return True

    def create_env(self, sim, lower, upper, num_per_row):
        if [lower.x, lower.y, lower.z] != [upper.x, upper.y, upper.z]:
            raise ValueError("the stand-in has all environments at one place")
        sim.envs.append(Env(sim))
        return sim.envs[-1]

    def create_actor(self, env, asset, pose, name="", group=-1, filter=-1, segmentation=0):
        if env.sim.engine is not None:
            raise RuntimeError("actors are made before prepare_sim")
        env.asset, env.pose, env.group, env.filter = asset, pose, group, filter
        env.drives = np.zeros(len(asset.dofs), dtype=DOF_DTYPE)
        for row, (low, high) in enumerate(asset.ranges):
            env.drives[row]["hasLimits"] = True
            env.drives[row]["lower"], env.drives[row]["upper"] = low, high
        env.drives["effort"] = 1e9
        env.drives["velocity"] = 1e9
        env.drives["driveMode"] = DOF_MODE_NONE
        return 0

    def get_actor_dof_properties(self, env, actor):
        return env.drives.copy()

    def set_actor_dof_properties(self, env, actor, props):
        if props.dtype != DOF_DTYPE:
            raise TypeError("dof properties are an array as get_actor_dof_properties gives it")
        env.drives = props.copy()
        return True

    def get_env(self, sim, index):
        return sim.envs[index]

    def get_actor_rigid_body_properties(self, env, actor):
        engine, out = env.sim.engine, []
        for body in range(engine.num_bodies):
            row = RigidBodyProperties()
            row.com = Vec3(*engine.model.body_ipos[body + 1])
            row.mass = float(engine.model.body_mass[body + 1])
            out.append(row)
        return out

    def prepare_sim(self, sim):
        groups = [env.group for env in sim.envs]
        if len(set(groups)) != len(groups):
            raise ValueError("characters of one collision group would push each other")
        poses = [env.pose for env in sim.envs]
        start = [[p.p.x, p.p.y, p.p.z, p.r.x, p.r.y, p.r.z, p.r.w] for p in poses]
        first, (boxes, mesh) = sim.envs[0], sim.mesh
        friction = mesh.dynamic_friction
        args = (first.asset, first.drives, boxes, friction, sim.params, first.filter == 0)
        sim.engine = Engine(*args, np.array(start))
        n, bodies, dofs = len(sim.envs), sim.engine.num_bodies, len(first.asset.dofs)
        sim.tensors = {
            "root": np.zeros((n, 13), dtype=np.float32),
            "dof": np.zeros((n * dofs, 2), dtype=np.float32),
            "force": np.zeros((n * bodies, 3), dtype=np.float32),
            "body": np.zeros((n * bodies, 13), dtype=np.float32),
        }
        sim.set_before = set()
        self._publish(sim)
        sim.results = sim.pending
        return True

    def acquire_actor_root_state_tensor(self, sim):
        return self._tensor(sim, "root")

    def acquire_dof_state_tensor(self, sim):
        return self._tensor(sim, "dof")

    def acquire_net_contact_force_tensor(self, sim):
        return self._tensor(sim, "force")

    def acquire_rigid_body_state_tensor(self, sim):
        return self._tensor(sim, "body")

    def refresh_actor_root_state_tensor(self, sim):
        return self._refresh(sim, "root")

    def refresh_dof_state_tensor(self, sim):
        return self._refresh(sim, "dof")

    def refresh_net_contact_force_tensor(self, sim):
        return self._refresh(sim, "force")

    def refresh_rigid_body_state_tensor(self, sim):
        return self._refresh(sim, "body")

    def set_dof_position_target_tensor(self, sim, tensor):
        if IDLE:
            return True
        values = tensor.array.reshape(sim.engine.targets.shape)
        _finite(values)
        sim.engine.targets[:] = values
        return True

    def set_actor_root_state_tensor_indexed(self, sim, tensor, indices, count):
        ids = self._once(sim, "root", indices, count)
        rows = tensor.array.reshape(len(sim.envs), 13)[ids].astype(np.float64)
        _finite(rows)
        if IDLE:
            sim.results["root"][ids] = rows
            return True
        sim.engine.set_root(ids, rows)
        return True

    def set_dof_state_tensor_indexed(self, sim, tensor, indices, count):
        ids = self._once(sim, "dof", indices, count)
        rows = tensor.array.reshape(len(sim.envs), -1, 2)[ids].astype(np.float64)
        _finite(rows)
        if IDLE:
            sim.results["dof"][ids] = rows
            return True
        sim.engine.set_dof(ids, rows)
        return True

    def simulate(self, sim):
        sim.set_before = set()
        if not IDLE:
            sim.engine.simulate()
            self._publish(sim)

    def fetch_results(self, sim, wait):
        sim.results = sim.pending

    def destroy_sim(self, sim):
        sim.engine = None

    def _publish(self, sim):
        engine = sim.engine
        sim.pending = {
            "root": engine.root_rows().astype(np.float32),
            "dof": engine.dof_rows().astype(np.float32),
            "force": engine.force.astype(np.float32),
            "body": engine.body.astype(np.float32),
        }

    def _tensor(self, sim, name):
        if sim.engine is None:
            raise RuntimeError("tensors are acquired after prepare_sim")
        tensor = Tensor()
        tensor.array = sim.tensors[name]
        return tensor

    def _refresh(self, sim, name):
        array = sim.tensors[name]
        array[...] = sim.results[name].reshape(array.shape)
        return True

    def _once(self, sim, name, indices, count):
        if indices.array.dtype != np.int32:
            raise TypeError("actor indices are int32")
        if name in sim.set_before:
            raise RuntimeError("a second indexed call per step would undo the first")
        sim.set_before.add(name)
        return indices.array.reshape(-1)[:count].astype(np.int64)


def _finite(values):
    if not np.isfinite(values).all():
        raise FloatingPointError("numbers that are not finite end up in every environment")
