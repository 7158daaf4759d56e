"""Track a clip in MuJoCo with a bundle's policy, judged by the rules it was trained with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parc_ray.errors import InputError
from parc_ray.runner.bundle import Bundle
from parc_ray.runner.kinematics import (
    Floats,
    angle_between,
    exp_to_quat,
    quat_mul,
    quat_to_exp,
    rotate,
)
from parc_ray.runner.observations import Observer, State
from parc_ray.runner.reference import Clip, read_clip
from parc_ray.runner.simulation import Simulation

_MARGIN_M = 3.0
"""Ground around the path that is simulated."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Tracked:
    """What became of a clip.

    Attributes:
        completed: the end was reached.
        steps: control steps survived.
        of: control steps there were.
        reason: "", or what failed: body, root_pos, root_rot, diverged.
        body_error_m: mean distance of all bodies from the reference.
        root_pos: (steps + 1, 3) m.
        root_rot: (steps + 1, 4) xyzw.
        dof: (steps + 1, D) rad.
        targets: (steps, D) rad, PD targets.
    """

    completed: bool
    steps: int
    of: int
    reason: str
    body_error_m: float
    root_pos: Floats
    root_rot: Floats
    dof: Floats
    targets: Floats

    def save(self, path: str | Path) -> None:
        """Write the motion as .npz."""
        names = ("root_pos", "root_rot", "dof", "targets")
        np.savez_compressed(path, **{name: getattr(self, name) for name in names})


class Tracker:
    """A policy with its character.

    Args:
        bundle: what ``parc export RUN`` wrote.
    """

    def __init__(self, bundle: Bundle) -> None:
        """Prepare observations and rules; see the class."""
        self.bundle, self.body = bundle, bundle.body
        sheet, arrays = bundle.sheet, bundle.arrays
        self.control: dict[str, Any] = sheet["control"]
        self.rules: dict[str, Any] = sheet["termination"]
        self.observer = Observer(
            self.body, sheet["observation"], arrays["key_bodies"], arrays["height_points"]
        )
        kinds = np.array(self.body.kinds)
        self._balls = np.flatnonzero(kinds == "spherical")
        self._ball_dofs = self.body.dofs[self._balls][:, :1] + np.arange(3)

    def read(self, path: str | Path) -> Clip:
        """A clip file at the control rate.

        Raises:
            InputError: not readable, of another character, or at another rate.
        """
        clip = read_clip(path, self.body)
        wanted = self.bundle.sheet["simulation"]["control_hz"]
        if abs(clip.fps - wanted) > 1e-6:
            raise InputError(f"{path}: {clip.fps:g} fps; the policy needs {wanted:g}; resample it")
        return clip

    def track(self, clip: Clip) -> Tracked:
        """Follow a clip from its first frame until its end or a failure."""
        ground = clip.ground.cropped(clip.root_pos[:, :2], _MARGIN_M)
        settings = self.bundle.sheet["simulation"]
        simulation = Simulation(self.bundle.simulation_xml, self.body, settings, ground)
        simulation.set_state(self.start(clip))
        last = len(clip.root_pos) - 1
        states, targets, errors, reason = [simulation.state()], [], [], ""
        for frame in range(last):
            action = self.bundle.act(self.observer(states[-1], clip, frame))
            targets.append(self.target(action, clip, frame))
            fine = simulation.step(targets[-1])
            state = simulation.state()
            reason, error = self._judge(state, clip, frame + 1, fine)
            if reason:
                targets.pop()
                break
            states.append(state)
            errors.append(error)
        return Tracked(
            completed=not reason,
            steps=len(targets),
            of=last,
            reason=reason,
            body_error_m=float(np.mean(errors)) if errors else float("nan"),
            root_pos=np.stack([s.root_pos for s in states]),
            root_rot=np.stack([s.root_rot for s in states]),
            dof=np.stack([s.dof_pos for s in states]),
            targets=np.array(targets, dtype=np.float32).reshape(len(targets), -1),
        )

    def start(self, clip: Clip) -> State:
        """The first frame's state, raised out of the ground as in training."""
        lift = self._lift(clip)
        return State(
            root_pos=clip.root_pos[0] + np.array([0.0, 0.0, lift], np.float32),
            root_rot=clip.root_rot[0],
            root_lin_vel=clip.root_lin_vel[0],
            root_ang_vel=clip.root_ang_vel[0],
            dof_pos=clip.dof[0],
            dof_vel=clip.dof_vel[0],
            contact_force=np.zeros((len(self.body.names), 3), np.float32),
        )

    def target(self, action: Floats, clip: Clip, frame: int) -> Floats:
        """PD targets (D,) rad of a normalised action (D,)."""
        limit, arrays = self.control["max_action"], self.bundle.arrays
        if self.control["mode"] == "absolute":
            return arrays["action_offset"] + arrays["action_scale"] * np.clip(action, -1.0, 1.0)
        turn = np.clip(action, -limit, limit) * np.float32(self.control["residual_scale_rad"])
        ahead = min(frame + 1, len(clip.dof) - 1)
        out = clip.dof[ahead] + turn
        balls, at = self._balls, self._ball_dofs
        joint = quat_mul(clip.joint_rot[ahead][balls - 1], exp_to_quat(turn[at]))
        out[at] = quat_to_exp(joint)
        return out.astype(np.float32)

    def _lift(self, clip: Clip) -> float:
        limit, arrays = self.bundle.sheet["max_lift_m"], self.bundle.arrays
        owner = arrays["surface_body"]
        points = rotate(clip.body_rot[0][owner], arrays["surface_offset"]) + clip.body_pos[0][owner]
        depth = clip.ground.height_at(points[:, :2]) - points[:, 2]
        return float(np.clip(np.where(depth <= limit, depth, 0.0).max(), 0.0, None))

    def _judge(self, state: State, clip: Clip, frame: int, fine: bool) -> tuple[str, float]:
        """What failed ("" if nothing), and the mean distance of the bodies, m."""
        joints = self.body.joint_rot(state.dof_pos)
        place, _ = self.body.place(state.root_pos, state.root_rot, joints)
        gap = clip.body_pos[frame] - place
        apart = np.linalg.norm(gap[1:] - gap[:1], axis=-1)
        distances = np.linalg.norm(gap, axis=-1)
        failed = {
            "body": bool((apart > self.bundle.arrays["body_limits"]).any()),
            "root_pos": bool(distances[0] > self.rules["root_pos_m"]),
            "root_rot": bool(
                angle_between(state.root_rot, clip.root_rot[frame]) > self.rules["root_rot_rad"]
            ),
            "diverged": not fine or not np.isfinite(state.dof_vel).all(),
        }
        return next((name for name, bad in failed.items() if bad), ""), float(distances.mean())
