"""What the policy sees, number by number; the layouts of ``envs.tracking.observations``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parc_ray.runner.kinematics import Body, Floats, heading, six
from parc_ray.runner.reference import Clip


@dataclass
class State:
    """The simulated character, world frame.

    Attributes:
        root_pos: (3,) m.
        root_rot: (4,) xyzw.
        root_lin_vel: (3,) m/s.
        root_ang_vel: (3,) rad/s.
        dof_pos: (D,) rad.
        dof_vel: (D,) rad/s.
        contact_force: (B, 3) N, of the terrain on each body.
    """

    root_pos: Floats
    root_rot: Floats
    root_lin_vel: Floats
    root_ang_vel: Floats
    dof_pos: Floats
    dof_vel: Floats
    contact_force: Floats


class Observer:
    """Makes the actor's observations (O,).

    Args:
        body: the character.
        settings: ``observation`` of the bundle: layout, target steps, clip, threshold.
        keys: (K,) indices of the key bodies.
        points: (P, 2) m, where heights are looked up in the heading frame.
    """

    def __init__(
        self,
        body: Body,
        settings: dict[str, Any],
        keys: NDArray[np.int64],
        points: Floats,
    ) -> None:
        """Keep the settings."""
        self.body, self.keys, self.points = body, keys, points
        self.upstream = settings["layout"] == "upstream"
        self.steps = np.array(settings["target_steps"])
        self.clip_m = np.float32(settings["height_clip_m"])
        self.threshold_sq = np.float32(settings["contact_threshold_n"]) ** 2

    def __call__(self, state: State, clip: Clip, frame: int) -> Floats:
        """The observation at a frame of the clip."""
        joint_rot = self.body.joint_rot(state.dof_pos)
        body_pos, _ = self.body.place(state.root_pos, state.root_rot, joint_rot)
        angle = heading(state.root_rot)
        c, s = np.cos(angle), np.sin(angle)
        turn = np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]], dtype=np.float32)
        axes = six(state.root_rot).reshape(2, 3) @ turn
        base = [axes, (state.root_lin_vel @ turn)[None], (state.root_ang_vel @ turn)[None]]
        shown = body_pos[self.keys] if self.upstream else body_pos[1:]
        own = (shown - state.root_pos) @ turn
        touching = (np.square(state.contact_force).sum(-1) > self.threshold_sq).astype(np.float32)
        targets, labels = self._targets(state, clip, frame, turn)
        heights = self._heights(state, clip, c, s)
        if self.upstream:
            parts = [*base, six(joint_rot), state.dof_vel, own, targets, labels, touching, heights]
        else:
            keys = body_pos[self.keys]
            above = keys[:, 2] - clip.ground.height_at(keys[:, :2])
            pose = [state.dof_pos, state.dof_vel, own]
            parts = [*base, *pose, targets, labels, touching[self.keys], heights, above]
        return np.concatenate([np.ravel(part) for part in parts]).astype(np.float32)

    def _targets(self, state: State, clip: Clip, frame: int, turn: Floats) -> tuple[Floats, Floats]:
        """References at the target steps, seen from the root (S, ...), and their contacts."""
        at = np.minimum(frame + self.steps, len(clip.root_pos) - 1)
        place = (clip.root_pos[at] - state.root_pos) @ turn
        axes = six(clip.root_rot[at]).reshape(-1, 2, 3) @ turn
        keys = (clip.body_pos[at][:, self.keys] - state.root_pos) @ turn
        pose = six(clip.joint_rot[at]).reshape(len(at), -1) if self.upstream else clip.dof[at]
        labels = clip.contacts[at] if self.upstream else clip.contacts[at][:, self.keys]
        rows = (place, axes.reshape(len(at), -1), pose, keys.reshape(len(at), -1))
        return np.concatenate(rows, axis=-1), labels

    def _heights(self, state: State, clip: Clip, c: Floats, s: Floats) -> Floats:
        """Ground heights (P,) relative to the root, clamped."""
        x, y = self.points.T
        xy = np.stack((c * x - s * y, s * x + c * y), axis=-1) + state.root_pos[:2]
        heights = clip.ground.height_at(xy.astype(np.float32)) - state.root_pos[2]
        return np.clip(heights, -self.clip_m, self.clip_m)
