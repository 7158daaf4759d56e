"""All characters of a scene, stepped by MuJoCo one after the other. Arrays are float64 inside."""

import mujoco
import numpy as np

from ._model import build


class Engine:
    """N characters of one asset on one terrain."""

    def __init__(self, asset, drives, boxes, mesh_friction, params, self_collision, start):
        self.model = build(asset, drives, boxes, mesh_friction, params, self_collision)
        self.data = mujoco.MjData(self.model)
        self.substeps = params.substeps
        model, n = self.model, len(start)
        self.num_bodies = len(asset.bodies)
        self.com = model.body_ipos[1].copy()
        self.qpos = np.tile(model.qpos0, (n, 1))
        self.qpos[:, :7] = np.concatenate((start[:, :3], start[:, [6, 3, 4, 5]]), axis=1)
        self.qvel = np.zeros((n, model.nv))
        self.warm = np.zeros((n, model.nv))
        self.targets = np.zeros((n, model.nu))
        self.force = np.zeros((n, self.num_bodies, 3))
        self.body = np.zeros((n, self.num_bodies, 13))
        self.joints = [
            (int(model.jnt_type[j]) == int(mujoco.mjtJoint.mjJNT_BALL), int(model.jnt_qposadr[j]))
            for j in range(1, model.njnt)
        ]

    def simulate(self):
        """One call of ``simulate``: some substeps for everybody."""
        model, data = self.model, self.data
        for i in range(len(self.qpos)):
            data.qpos[:], data.qvel[:] = self.qpos[i], self.qvel[i]
            data.qacc_warmstart[:], data.ctrl[:] = self.warm[i], self.targets[i]
            for _ in range(self.substeps):
                mujoco.mj_step(model, data)
            self._contacts(i)
            mujoco.mj_kinematics(model, data)
            mujoco.mj_comPos(model, data)
            mujoco.mj_comVel(model, data)
            self._bodies(i)
            self.qpos[i], self.qvel[i] = data.qpos, data.qvel
            self.warm[i] = data.qacc_warmstart

    def _contacts(self, i):
        """Net force on each body, of the ground and of other bodies."""
        model, data = self.model, self.data
        self.force[i] = 0.0
        six = np.zeros(6)
        for k in range(data.ncon):
            contact = data.contact[k]
            mujoco.mj_contactForce(model, data, k, six)
            world = np.asarray(contact.frame).reshape(3, 3).T.dot(six[:3])
            for geom, sign in ((contact.geom1, -1.0), (contact.geom2, 1.0)):
                body = int(model.geom_bodyid[geom]) - 1
                if body >= 0:
                    self.force[i, body] += sign * world

    def _bodies(self, i):
        data, rows = self.data, self.body[i]
        rows[:, :3] = data.xpos[1:]
        rows[:, 3:7] = data.xquat[1:, [1, 2, 3, 0]]
        spin = data.cvel[1:, :3]
        rows[:, 7:10] = data.cvel[1:, 3:] + np.cross(spin, data.xipos[1:] - data.subtree_com[1])
        rows[:, 10:13] = spin

    def root_rows(self):
        """(N, 13): velocities of the centre of mass, xyzw."""
        quat = self.qpos[:, [4, 5, 6, 3]]
        spin = turn(quat, self.qvel[:, 3:6])
        lin = self.qvel[:, :3] + np.cross(spin, turn(quat, np.broadcast_to(self.com, spin.shape)))
        return np.concatenate((self.qpos[:, :3], quat, lin, spin), axis=1)

    def set_root(self, ids, rows):
        """Rows as `root_rows`."""
        quat = rows[:, 3:7] / np.linalg.norm(rows[:, 3:7], axis=1, keepdims=True)
        spin = rows[:, 10:13]
        arm = turn(quat, np.broadcast_to(self.com, spin.shape))
        self.qpos[ids, :3] = rows[:, :3]
        self.qpos[ids, 3:7] = quat[:, [3, 0, 1, 2]]
        self.qvel[ids, :3] = rows[:, 7:10] - np.cross(spin, arm)
        self.qvel[ids, 3:6] = turn(quat * [-1, -1, -1, 1], spin)
        self.warm[ids] = 0.0

    def dof_rows(self):
        """(N, D, 2): rotation vectors for spherical joints."""
        parts = [
            quat_to_vector(self.qpos[:, a : a + 4]) if ball else self.qpos[:, a : a + 1]
            for ball, a in self.joints
        ]
        return np.stack((np.concatenate(parts, axis=1), self.qvel[:, 6:]), axis=-1)

    def set_dof(self, ids, rows):
        """Rows as `dof_rows`."""
        at = 0
        for ball, a in self.joints:
            if ball:
                self.qpos[ids, a : a + 4] = vector_to_quat(rows[:, at : at + 3, 0])
            else:
                self.qpos[ids, a] = rows[:, at, 0]
            at += 3 if ball else 1
        self.qvel[ids, 6:] = rows[:, :, 1]
        self.warm[ids] = 0.0


def turn(quat, vector):
    """Rotate (K, 3) by xyzw (K, 4)."""
    u, w = quat[:, :3], quat[:, 3:]
    twice = 2.0 * np.cross(u, vector)
    return vector + w * twice + np.cross(u, twice)


def vector_to_quat(vector):
    """wxyz (K, 4) of rotation vectors (K, 3)."""
    angle = np.linalg.norm(vector, axis=1, keepdims=True)
    return np.concatenate((np.cos(angle / 2), 0.5 * np.sinc(angle / (2 * np.pi)) * vector), axis=1)


def quat_to_vector(quat):
    """Rotation vectors (K, 3) of wxyz (K, 4)."""
    quat = np.where(quat[:, :1] < 0, -quat, quat)
    norm = np.linalg.norm(quat[:, 1:], axis=1, keepdims=True)
    angle = 2.0 * np.arctan2(norm, quat[:, :1])
    return quat[:, 1:] * np.where(norm > 1e-12, angle / np.maximum(norm, 1e-12), 2.0)
