from __future__ import annotations

import math

import pytest
import torch

from envs.tracking import config as presets
from envs.tracking.config import ObservationConfig
from envs.tracking.motion_bank import MotionBank, TerrainBank
from envs.tracking.observations import local_heights, ray_points
from envs.tracking.resets import reference_state
from envs.tracking.task import TrackingTask
from parc_ray.character.character import load_character
from parc_ray.character.rotations import (
    quat_mul,
    quat_rotate,
    quat_rotate_inv,
    quat_to_6d,
    rotate_xy,
    yaw_quat,
)
from parc_ray.protocols import SimState
from parc_ray.terrain.heightfield import Heightfield
from tests.envs.helpers import WADDLER, random_state, sway_clip


def task_of(character, layout="base", clips=None, **kwargs):
    config = presets.TrackingConfig(observation=ObservationConfig(layout=layout, **kwargs))
    clips = clips or [sway_clip(character)]
    return TrackingTask(character, MotionBank(character, clips), config)


def observe(task, state, clip, frame):
    return task.builder(task.observe(state, task.references(clip, frame), clip, frame))


def test_upstream_layout_of_the_humanoid(humanoid):
    layout = task_of(humanoid, "upstream").builder.layout
    sizes = {block.name: block.size for block in layout.blocks}
    assert list(sizes.values()) == [136, 630, 90, 15, 441]
    assert layout.size == 1312
    raw = {"target_contacts", "contacts", "heights"}
    assert {b.name for b in layout.blocks if not b.normalise} == raw
    assert int((~layout.normalise).sum()) == 90 + 15 + 441


def test_base_layout_of_the_humanoid(humanoid):
    layout = task_of(humanoid).builder.layout
    shapes = {block.name: block.shape for block in layout.blocks}
    assert shapes["targets"] == (6, 49)
    assert shapes["heights"] == (11, 11)
    assert layout.size == 557
    assert layout.slices["heights"] == slice(432, 553)


@pytest.mark.parametrize("layout", ["base", "upstream"])
def test_observations_have_the_size_of_their_layout(layout):
    character = load_character(WADDLER)
    task = task_of(character, layout, privileged=True)
    obs = observe(task, random_state(character, 3), torch.zeros(3).long(), torch.arange(3))
    assert obs.shape == (3, task.builder.layout.size)
    last = task.builder.layout.blocks[-1]
    assert last.critic_only
    assert last.size == 4 * character.skeleton.num_bodies + 1


@pytest.mark.parametrize("layout", ["base", "upstream"])
def test_turning_and_shifting_the_world_changes_nothing(humanoid, layout):
    """The same motion in a world turned by 90 degrees (a symmetry of the grid) and moved."""
    turn, shift = math.pi / 2, torch.tensor([2.0, -1.2, 0.7])
    clip = sway_clip(humanoid, speed=0.5)
    heights = torch.rand(24, 24)
    clip.terrain = Heightfield(heights=heights, origin=torch.tensor([-4.5, -4.7]))
    moved = sway_clip(humanoid, speed=0.5)
    yaw = yaw_quat(torch.tensor(turn))

    def move(points):
        return quat_rotate(yaw.expand(*points.shape[:-1], 4), points) + shift

    moved.frames.root_pos = move(clip.frames.root_pos)
    moved.frames.root_rot = quat_mul(yaw.expand(61, 4), clip.frames.root_rot)
    corner = clip.terrain.origin + torch.tensor([0.0, 23 * 0.4])
    moved.terrain = Heightfield(
        heights=torch.rot90(heights) + shift[2],
        origin=rotate_xy(corner, torch.tensor(turn)) + shift[:2],
    )
    task = task_of(humanoid, layout, [clip, moved], privileged=True)
    state = random_state(humanoid, 2, z=1.0)
    state.contact_force[:, 3] = torch.tensor([3.0, 4.0, 0.0])
    turned = SimState(**{k: v.clone() for k, v in vars(state).items()})
    turned.root_pos = move(state.root_pos)
    turned.root_rot = quat_mul(yaw.expand(2, 4), state.root_rot)
    for name in ("root_lin_vel", "root_ang_vel"):
        setattr(turned, name, quat_rotate(yaw.expand(2, 4), getattr(state, name)))
    frame = torch.tensor([3, 30])
    one = observe(task, state, torch.tensor([0, 0]), frame)
    two = observe(task, turned, torch.tensor([1, 1]), frame)
    heights_at = task.builder.layout.slices["heights"]
    other = torch.ones(one.shape[1], dtype=torch.bool)
    other[heights_at] = False
    torch.testing.assert_close(one[:, other], two[:, other], atol=2e-5, rtol=1e-4)
    same = (one[:, heights_at] - two[:, heights_at]).abs() < 1e-4
    assert float(same.float().mean()) > 0.99  # points on a cell border may fall to either side


def test_proprioception_by_independent_formulas(humanoid):
    task = task_of(humanoid, "upstream")
    state = random_state(humanoid, 2, seed=4)
    clip, frame = torch.zeros(2).long(), torch.tensor([0, 5])
    obs = observe(task, state, clip, frame)
    refs = task.references(clip, frame)
    seen = task.observe(state, refs, clip, frame)
    x_axis = quat_rotate(state.root_rot, torch.tensor([1.0, 0, 0]).expand(2, 3))
    heading = yaw_quat(torch.atan2(x_axis[:, 1], x_axis[:, 0]))
    local = quat_mul(heading * torch.tensor([-1.0, -1, -1, 1]), state.root_rot)
    torch.testing.assert_close(obs[:, :6], quat_to_6d(local), atol=1e-6, rtol=1e-5)
    velocity = quat_rotate_inv(heading, state.root_lin_vel)
    torch.testing.assert_close(obs[:, 6:9], velocity, atol=1e-6, rtol=1e-5)
    joints = quat_to_6d(seen.joint_rot).reshape(2, -1)
    torch.testing.assert_close(obs[:, 12:96], joints)
    torch.testing.assert_close(obs[:, 96:124], state.dof_vel)
    hand = seen.body_pos[:, humanoid.key_bodies[0]] - state.root_pos
    torch.testing.assert_close(
        obs[:, 124:127], quat_rotate_inv(heading, hand), atol=1e-6, rtol=1e-5
    )
    target = obs[:, 136:766].reshape(2, 6, 105)
    ahead = task.bank.query(clip, frame + 3)
    offset = quat_rotate_inv(heading, ahead.root_pos - state.root_pos)
    torch.testing.assert_close(target[:, 2, :3], offset, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(target[:, 2, 9:93], quat_to_6d(ahead.joint_rot).reshape(2, -1))


def test_targets_past_the_end_repeat_the_last_frame(humanoid):
    task = task_of(humanoid)
    clip, frame = torch.tensor([0]), torch.tensor([55])
    state = reference_state(task.bank.query(clip, frame))
    obs = observe(task, state, clip, frame)
    target = obs[:, task.builder.layout.slices["targets"]].reshape(6, 49)
    assert torch.equal(target[4], target[5])
    assert not torch.equal(target[2], target[3])


def test_rays_are_the_published_ones():
    points = ray_points()
    assert points.shape == (441, 2)
    torch.testing.assert_close(points[3 * 63], torch.tensor([-0.1, 0.0]))
    torch.testing.assert_close(points[4 * 63 - 1], torch.tensor([3.0, 0.0]), atol=1e-6, rtol=0)
    edge = points[62]
    assert math.degrees(math.atan2(edge[1], edge[0])) == pytest.approx(-45.0, abs=1e-3)


def test_heights_are_nearest_cells_relative_to_the_root():
    heights = torch.zeros(8, 8)
    heights[5:, :] = 0.6
    terrain = TerrainBank(
        [Heightfield.flat((3, 3)), Heightfield(heights=heights, origin=torch.zeros(2))]
    )
    root = torch.tensor([[1.6, 1.2, 0.9]])
    points = torch.tensor([[0.0, 0.0], [0.15, 0.0], [0.25, 0.0], [9.0, 0.0]])
    got = local_heights(terrain, torch.tensor([1]), root, torch.zeros(1), points)
    expected = torch.tensor([[-0.9, -0.9, -0.3, -0.3]])
    torch.testing.assert_close(got, expected)
    back = local_heights(terrain, torch.tensor([1]), root, torch.tensor([math.pi]), points)
    torch.testing.assert_close(back, torch.full((1, 4), -0.9))
