"""Isaac Gym itself: one scene with all environments on one terrain mesh.

Everything here is in the engine's own terms: world coordinates, quaternions xyzw, root velocities
of the centre of mass, dof states as pairs. The client converts. All environments have the world's
origin as theirs, so there are no environment offsets to get wrong; where a character stands is
decided by the tile of the terrain that the client puts it on.
"""

from __future__ import annotations

import os
import tempfile
import time
from typing import Any

# isort: off
from isaacgym import gymapi  # refuses to be imported after torch
from isaacgym import gymtorch  # pyright: ignore[reportAttributeAccessIssue]  (not in the stubs)

import numpy as np
import torch
# isort: on

_PHYSX_SUBSTEPS = 2
"""Solver steps per call of ``simulate``, where the number of all is even. PARC: 2."""
_SPACING = 0.0


class Simulation:
    """All environments in one scene.

    Args:
        hello: settings, the asset's text, gains by dof name.
        vertices: (V, 3) float32 m, terrain.
        triangles: (F, 3) uint32.
        start: (3,) position at which characters are made, m.
    """

    def __init__(
        self, hello: dict[str, Any], vertices: np.ndarray, triangles: np.ndarray, start: np.ndarray
    ) -> None:
        """Build the scene and acquire the tensors."""
        self.num_envs = int(hello["num_envs"])
        self.device = "cuda:0" if torch.cuda.is_available() else "cpu"
        self.gym = gymapi.acquire_gym()
        even = hello["substeps"] % _PHYSX_SUBSTEPS == 0
        self._substeps = _PHYSX_SUBSTEPS if even else 1
        self._calls = int(hello["substeps"]) // self._substeps
        graphics = -1  # none
        params = self._sim_params(hello)
        self.sim = self.gym.create_sim(0, graphics, gymapi.SIM_PHYSX, params)
        if self.sim is None:
            raise RuntimeError("create_sim failed; the log above says why")
        self._add_terrain(vertices, triangles, float(hello["friction"]))
        asset = self._load_asset(hello)
        self.body_names: list[str] = self.gym.get_asset_rigid_body_names(asset)
        self.dof_names: list[str] = self.gym.get_asset_dof_names(asset)
        self._populate(asset, hello, start)
        self.gym.prepare_sim(self.sim)
        self._acquire()

    def step(self, arrays: dict[str, np.ndarray]) -> None:
        """One control period: rows to set, targets, simulation, and the buffers anew."""
        rows = self._write_rows(arrays, int(arrays["count"][0]))
        self._targets.copy_(torch.from_numpy(arrays["targets"]).reshape(self._targets.shape))
        began, began_cpu = time.perf_counter(), time.process_time()
        if rows is not None:
            self._set_rows(rows)
        self.gym.set_dof_position_target_tensor(self.sim, gymtorch.unwrap_tensor(self._targets))
        for _ in range(self._calls):
            self.gym.simulate(self.sim)
            if self.device == "cpu":
                self.gym.fetch_results(self.sim, True)
        with_bodies = len(arrays["touch_ids"]) > 0
        self._refresh(with_bodies)
        arrays["sim_seconds"][0] = time.perf_counter() - began
        arrays["sim_cpu_seconds"][0] = time.process_time() - began_cpu
        self._copy_out(arrays, with_bodies)

    def root_com(self) -> list[float]:
        """Centre of mass of the root body in its own frame, m."""
        env = self.gym.get_env(self.sim, 0)
        com = self.gym.get_actor_rigid_body_properties(env, 0)[0].com
        return [com.x, com.y, com.z]

    def _sim_params(self, hello: dict[str, Any]) -> gymapi.SimParams:
        """PARC's settings of PhysX."""
        gpu = self.device != "cpu"
        params = gymapi.SimParams()
        params.dt = float(hello["control_dt"]) / self._calls
        params.substeps = self._substeps
        params.up_axis = gymapi.UP_AXIS_Z
        params.gravity = gymapi.Vec3(0.0, 0.0, -9.81)
        params.use_gpu_pipeline = gpu
        physx = params.physx
        physx.use_gpu = gpu
        physx.solver_type = 1  # TGS
        physx.num_position_iterations = 4
        physx.num_velocity_iterations = 0
        physx.contact_offset = 0.02
        physx.rest_offset = 0.0
        physx.bounce_threshold_velocity = 0.2
        physx.max_depenetration_velocity = 10.0
        physx.default_buffer_size_multiplier = 10.0
        physx.max_gpu_contact_pairs = 8 * 2**20
        physx.num_threads = 4
        physx.num_subscenes = 0
        return params

    def _add_terrain(self, vertices: np.ndarray, triangles: np.ndarray, friction: float) -> None:
        """One static mesh for all environments."""
        params = gymapi.TriangleMeshParams()
        params.nb_vertices, params.nb_triangles = len(vertices), len(triangles)
        params.static_friction = params.dynamic_friction = friction
        params.restitution = 0.0
        flat = np.ascontiguousarray(vertices, dtype=np.float32).reshape(-1)
        index = np.ascontiguousarray(triangles, dtype=np.uint32).reshape(-1)
        # The stubs give the type of the items as that of the shape.
        self.gym.add_triangle_mesh(self.sim, flat, index, params)  # pyright: ignore[reportArgumentType]

    def _load_asset(self, hello: dict[str, Any]) -> gymapi.Asset:
        """The character from its MJCF; the engine reads files only."""
        options = gymapi.AssetOptions()
        options.angular_damping = 0.01
        options.max_angular_velocity = 100.0
        options.default_dof_drive_mode = int(gymapi.DOF_MODE_NONE)
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "character.xml"), "w", encoding="utf-8") as file:
                file.write(hello["asset"])
            asset = self.gym.load_asset(self.sim, folder, "character.xml", options)
        if asset is None:
            raise RuntimeError("load_asset failed; the log above says why")
        shapes = self.gym.get_asset_rigid_shape_properties(asset)
        for shape in shapes:
            shape.friction = float(hello["friction"])
            shape.restitution = 0.0
        self.gym.set_asset_rigid_shape_properties(asset, shapes)
        return asset

    def _populate(self, asset: gymapi.Asset, hello: dict[str, Any], start: np.ndarray) -> None:
        """One character per environment, each in a collision group of its own."""
        corner = gymapi.Vec3(_SPACING, _SPACING, _SPACING)
        pose = gymapi.Transform()
        pose.p = gymapi.Vec3(*(float(x) for x in start))
        pose.r = gymapi.Quat(0.0, 0.0, 0.0, 1.0)
        per_row = max(int(self.num_envs**0.5), 1)
        no_self = 0 if hello["self_collision"] else 1
        for index in range(self.num_envs):
            env = self.gym.create_env(self.sim, corner, corner, per_row)
            actor = self.gym.create_actor(env, asset, pose, "character", index, no_self, 0)
            properties = self.gym.get_actor_dof_properties(env, actor)
            for row, name in enumerate(self.dof_names):
                drive = hello["drives"][name]
                properties["driveMode"][row] = int(gymapi.DOF_MODE_POS)
                properties["stiffness"][row] = drive["stiffness"]
                properties["damping"][row] = drive["damping"]
                properties["armature"][row] = drive["armature"]
                properties["effort"][row] = drive["effort"]
            self.gym.set_actor_dof_properties(env, actor, properties)

    def _acquire(self) -> None:
        """Tensors of the engine's memory; their contents are old until they are refreshed."""
        gym, sim = self.gym, self.sim
        wrap = gymtorch.wrap_tensor
        n, d, b = self.num_envs, len(self.dof_names), len(self.body_names)
        self._root = wrap(gym.acquire_actor_root_state_tensor(sim)).reshape(n, 13)
        self._dof = wrap(gym.acquire_dof_state_tensor(sim)).reshape(n, d, 2)
        self._force = wrap(gym.acquire_net_contact_force_tensor(sim)).reshape(n, b, 3)
        self._bodies = wrap(gym.acquire_rigid_body_state_tensor(sim)).reshape(n, b, 13)
        self._targets = torch.zeros(n * d, dtype=torch.float32, device=self.device)
        self._hit = np.empty(n * b * 3, dtype=np.bool_)

    def _write_rows(self, arrays: dict[str, np.ndarray], count: int) -> torch.Tensor | None:
        """Write the rows that wait into the engine's tensors; their actors, int32."""
        if count == 0:
            return None
        where = arrays["set_ids"][:count]
        ids = torch.from_numpy(where.copy()).to(self.device)  # int32, as the engine wants it
        rows = torch.from_numpy(where.astype(np.int64)).to(self.device)
        self._root[rows] = torch.from_numpy(arrays["set_root"][:count]).to(self.device)
        self._dof[rows] = torch.from_numpy(arrays["set_dof"][:count]).to(self.device)
        return ids

    def _set_rows(self, ids: torch.Tensor) -> None:
        """Hand the rows of these actors over by one indexed call per tensor."""
        index, count = gymtorch.unwrap_tensor(ids), ids.shape[0]
        root, dof = gymtorch.unwrap_tensor(self._root), gymtorch.unwrap_tensor(self._dof)
        self.gym.set_actor_root_state_tensor_indexed(self.sim, root, index, count)
        self.gym.set_dof_state_tensor_indexed(self.sim, dof, index, count)

    def _refresh(self, with_bodies: bool) -> None:
        """Bring the tensors up to date; last what is copied whole, while caches have it."""
        if with_bodies:
            self.gym.refresh_rigid_body_state_tensor(self.sim)
        self.gym.refresh_actor_root_state_tensor(self.sim)
        self.gym.refresh_dof_state_tensor(self.sim)
        self.gym.refresh_net_contact_force_tensor(self.sim)

    def _copy_out(self, arrays: dict[str, np.ndarray], with_bodies: bool) -> None:
        """Bring the engine's tensors to the host, where they are not, and to the shared memory.

        Between the two NumPy copies: across strides it is several times faster than PyTorch.
        """
        half = int(arrays["half"][0])
        dof, force = self._dof.cpu().numpy(), self._force.cpu().numpy()
        arrays["root"][...] = self._root.cpu().numpy().T
        arrays["dof_pos"][half] = dof[:, :, 0]
        arrays["dof_vel"][half] = dof[:, :, 1]
        arrays["force"][half] = force
        if with_bodies:
            np.not_equal(force.reshape(-1), 0.0, out=self._hit)
            x, y, z = self._hit.reshape(-1, 3).T
            touched = np.flatnonzero(np.bitwise_or(np.bitwise_or(x, y), z))
            count = len(touched)
            arrays["touch_count"][0] = count
            arrays["touch_ids"][:count] = touched
            rows = self._bodies.reshape(-1, 13)[torch.from_numpy(touched).to(self.device)]
            arrays["touch_pose"][:count] = rows.cpu().numpy()[:, :7]
