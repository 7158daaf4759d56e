from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest
import torch

from envs.tracking.motion_bank import MotionBank, Reference, TerrainBank
from parc_ray.character.kinematics import finite_velocities, fk_from_dof
from parc_ray.character.rotations import quat_angle, slerp
from parc_ray.terrain.heightfield import Heightfield
from tests.envs.helpers import stand_clip, sway_clip


@pytest.fixture
def clips(humanoid):
    return [sway_clip(humanoid, 40, speed=0.8), stand_clip(humanoid, 20), sway_clip(humanoid, 31)]


def test_whole_frames_are_the_stored_ones(humanoid, clips):
    bank = MotionBank(humanoid, clips)
    ref = bank.query(torch.tensor([2, 0]), torch.tensor([[0, 30], [39, 5]]))
    assert torch.equal(ref.root_pos[0, 1], clips[2].frames.root_pos[30])
    assert torch.equal(ref.dof[1, 0], clips[0].frames.dof[39])
    pos, _ = fk_from_dof(
        humanoid.skeleton,
        clips[0].frames.root_pos[5],
        clips[0].frames.root_rot[5],
        clips[0].frames.dof[5],
    )
    torch.testing.assert_close(ref.body_pos[1, 1], pos)


def test_interpolation_agrees_with_gathering_on_frames(humanoid, clips):
    bank = MotionBank(humanoid, clips)
    clip = torch.tensor([0, 1, 2])
    frame = torch.tensor([[0, 7, 39], [0, 3, 19], [1, 29, 30]])
    whole, between = bank.query(clip, frame), bank.query(clip, frame.float())
    last = frame == (bank.length[clip] - 1)[:, None]
    for f in fields(Reference):
        a, b = getattr(whole, f.name), getattr(between, f.name)
        if "vel" in f.name:  # at the end the frame below is the one before the last
            a, b = a[~last], b[~last]
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_between_frames_rotations_are_slerped_and_positions_blended(humanoid, clips):
    bank = MotionBank(humanoid, clips)
    ref = bank.query(torch.tensor([0]), torch.tensor([[10.25]]))
    frames = clips[0].frames
    blend = torch.tensor(0.25)
    torch.testing.assert_close(
        ref.root_pos[0, 0], torch.lerp(frames.root_pos[10], frames.root_pos[11], 0.25)
    )
    expected = slerp(frames.root_rot[10], frames.root_rot[11], blend)
    assert float(quat_angle(ref.root_rot[0, 0], expected)) < 1e-3
    lin, _, dof_vel = finite_velocities(
        humanoid.skeleton, frames.root_pos, frames.root_rot, frames.dof, 30.0
    )
    assert torch.equal(ref.root_lin_vel[0, 0], lin[10])
    assert torch.equal(ref.dof_vel[0, 0], dof_vel[10])


def test_velocities_are_forward_differences(humanoid, clips):
    bank = MotionBank(humanoid, clips)
    ref = bank.query(torch.tensor([0]), torch.tensor([[4]]))
    assert float(ref.root_lin_vel[0, 0, 0]) == pytest.approx(0.8, abs=1e-4)


def test_a_clip_stands_still_past_its_end_and_never_reads_its_neighbour(humanoid, clips):
    bank = MotionBank(humanoid, clips)
    for frame in (torch.tensor([[19, 20, 500]]), torch.tensor([[19.0, 19.5, 500.0]])):
        ref = bank.query(torch.tensor([1]), frame)
        assert torch.allclose(ref.root_pos[0], clips[1].frames.root_pos[-1], atol=1e-6)


def test_loops_are_unrolled(humanoid):
    loop = replace(sway_clip(humanoid, 31, speed=1.0), loop="wrap")
    bank = MotionBank(humanoid, [loop])
    assert int(bank.length[0]) >= 91
    assert math.isclose(float(bank.frames.root_pos[90, 0]), 3.0, abs_tol=0.05)


def test_terrain_bank_equals_each_heightfield():
    rng = torch.Generator().manual_seed(0)
    terrains = [
        Heightfield(heights=torch.rand(5, 9, generator=rng), origin=torch.tensor([-1.0, 0.3])),
        Heightfield(
            heights=torch.rand(7, 3, generator=rng), origin=torch.tensor([2.0, -0.7]), cell_size=0.2
        ),
    ]
    bank = TerrainBank(terrains)
    ids = torch.tensor([1, 0, 1])
    xy = 6.0 * torch.rand(3, 50, 2, generator=rng) - 2.0
    got = bank.height_at(ids, xy)
    for row, terrain in enumerate(ids.tolist()):
        expected = terrains[terrain].height_at(xy[row])
        assert float((got[row] == expected).float().mean()) > 0.97
    assert bank.height_at(ids, xy[:, 0]).shape == (3,)


def test_simulated_terrain_is_the_neighbourhood_of_the_path(humanoid):
    clip = sway_clip(humanoid, 31, speed=1.0)
    clip.terrain = Heightfield(heights=torch.rand(80, 80), origin=torch.tensor([-16.0, -16.0]))
    cut = MotionBank(humanoid, [clip]).terrains(2.0)[0]
    assert cut.shape[0] * cut.cell_size == pytest.approx(5.0, abs=0.9)
    xy = clip.frames.root_pos[:, :2] + torch.tensor([0.55, -0.9])
    assert torch.equal(cut.height_at(xy), clip.terrain.height_at(xy))
    near_edge = MotionBank(humanoid, [replace(clip, terrain=Heightfield.flat((6, 6)))])
    assert near_edge.terrains(50.0)[0].shape == (6, 6)
