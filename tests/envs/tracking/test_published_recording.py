"""Observation blocks of PARC's shipped recording, rebuilt where they can be.

The recording stores the observations of an older character: arm blocks differ, and the targets
are of a reference that is not shipped. Root, trunk, head, legs, key bodies and heights can be
checked.
"""

from __future__ import annotations

import pytest
import torch

from envs.tracking import config as presets
from envs.tracking.motion_bank import MotionBank
from envs.tracking.task import TrackingTask
from parc_ray.data.importers import load_raw
from parc_ray.data.unpickle import safe_load
from parc_ray.motion.clip import MotionClip
from parc_ray.motion.frames import MotionFrames
from parc_ray.protocols import SimState

ARMS = ("arm", "hand")


@pytest.fixture(scope="module")
def recording(shared_data, humanoid):
    """Ours and theirs, (T, 1312) each, the layout, and whether each ray lies on the terrain."""
    path = shared_data / "formats" / "ms" / "dec2024_teaser_717_1_opt_dm.pkl"
    raw = load_raw(path, humanoid)
    misc = safe_load(safe_load(path.read_bytes(), "file")["misc_data"], "misc")
    stored = torch.as_tensor(misc["obs"], dtype=torch.float32)
    frames = MotionFrames(
        raw.root_pos.float(), raw.root_rot.float(), raw.dof.float(), raw.contacts.float()
    )
    count = frames.num_frames
    clip = MotionClip(clip_id="teaser", frames=frames, fps=30.0, terrain=raw.terrain)
    task = TrackingTask(humanoid, MotionBank(humanoid, [clip]), presets.upstream())
    bodies = humanoid.skeleton.num_bodies
    state = SimState(
        root_pos=frames.root_pos,
        root_rot=frames.root_rot,
        root_lin_vel=torch.zeros(count, 3),
        root_ang_vel=torch.zeros(count, 3),
        dof_pos=frames.dof,
        dof_vel=torch.zeros_like(frames.dof),
        contact_force=torch.zeros(count, bodies, 3),
    )
    ids, frame = torch.zeros(count, dtype=torch.long), torch.arange(count)
    seen = task.observe(state, task.references(ids, frame), ids, frame)
    ours = task.builder(seen)
    assert stored.shape == ours.shape == (count, 1312)
    return ours, stored, task, raw


def test_root_rotation(recording):
    ours, stored, _, _ = recording
    torch.testing.assert_close(ours[:, :6], stored[:, :6], atol=1e-4, rtol=0)


def test_trunk_head_and_legs(recording, humanoid):
    ours, stored, _, _ = recording
    for joint, name in enumerate(humanoid.skeleton.body_names[1:]):
        if any(word in name for word in ARMS):
            continue
        at = slice(12 + 6 * joint, 18 + 6 * joint)
        torch.testing.assert_close(ours[:, at], stored[:, at], atol=1e-4, rtol=0, msg=name)


def test_key_bodies(recording):
    ours, stored, _, _ = recording
    torch.testing.assert_close(ours[:, 124:136], stored[:, 124:136], atol=1e-4, rtol=0)


def test_heights_on_the_terrain(recording):
    from parc_ray.character.rotations import heading_angle, rotate_xy

    ours, stored, task, raw = recording
    heading = heading_angle(raw.root_rot.float())
    xy = rotate_xy(task.builder.points[None], heading[:, None]) + raw.root_pos[:, None, :2].float()
    inside = raw.terrain.contains(xy)
    assert float(inside.float().mean()) > 0.5
    difference = (ours[:, -441:] - stored[:, -441:]).abs()[inside]
    assert float((difference < 1e-4).float().mean()) > 0.999
