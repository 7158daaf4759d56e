from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from algorithms.diffusion.batch import BatchMaker, Placed, _mirrored, estimate_stats
from algorithms.diffusion.conditions import draw_visibility, target_direction
from algorithms.diffusion.config import ConditioningConfig
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.character.rotations import quat_mul, rotate_xy, yaw_quat
from parc_ray.character.surface import place_points, surface_points
from parc_ray.motion.features import FeatureLayout, canonical_frame, to_canonical, unpack
from parc_ray.motion.frames import MotionFrames
from parc_ray.terrain.heightfield import HeightfieldBatch
from parc_ray.terrain.local_cells import local_cells
from parc_ray.terrain.local_grid import sample_local_heights
from tests.algorithms.diffusion.fakes import FakeBank, make_bank


def with_conditioning(config, **changes):
    return dataclasses.replace(
        config, conditioning=dataclasses.replace(config.conditioning, **changes)
    )


def draw(bank, humanoid, config, n=16, seed=5):
    stats = estimate_stats(bank, humanoid, config)
    maker = BatchMaker(bank, humanoid, config, stats)
    return maker.draw(torch.Generator().manual_seed(seed), n)


def moved(bank: FakeBank) -> FakeBank:
    """The same clips and terrains, turned by 90 degrees and shifted by (11.3, -7.1, 10) m."""
    other = FakeBank.__new__(FakeBank)
    quarter, shift = math.pi / 2, torch.tensor([11.3, -7.1, 10.0])
    clips, ground = bank.clips, bank.terrains
    position = clips.root_pos.clone()
    position[..., :2] = rotate_xy(position[..., :2], torch.tensor(quarter))
    turn = yaw_quat(torch.tensor(quarter)).expand_as(clips.root_rot)
    other.clips = MotionFrames(
        root_pos=position + shift,
        root_rot=quat_mul(turn, clips.root_rot),
        dof=clips.dof,
        contacts=clips.contacts,
    )
    x, y = ground.origin.unbind(-1)
    last = (ground.size[:, 1] - 1) * ground.cell_size
    other.terrains = HeightfieldBatch(
        heights=ground.heights.transpose(1, 2).flip(1).contiguous() + shift[2],
        origin=torch.stack([-(y + last), x], dim=-1) + shift[:2],
        size=ground.size.flip(-1),
        cell_size=ground.cell_size,
    )
    return other


def test_conditions_do_not_know_where_the_world_is(humanoid, bank, config):
    """World shift (10 m upwards too) and yaw leave every input of the network unchanged."""
    config = with_conditioning(config, target_noise=0.0)
    here = draw(bank, humanoid, config)
    there = draw(moved(bank), humanoid, config)
    torch.testing.assert_close(here.features, there.features, rtol=0, atol=1e-4)
    torch.testing.assert_close(here.cond.target, there.cond.target, rtol=0, atol=1e-4)
    differs = (here.cond.heights - there.cond.heights).abs() > 1e-4
    assert float(differs.float().mean()) < 1e-3


def test_target_direction_cases():
    """The published code's cases; the last two show that both sides of a turn count."""
    offset = torch.tensor([[3.0, 4.0], [0.05, 0.0], [0.0, 0.05], [0.05, 0.0], [0.0, -0.05]])
    heading = torch.tensor([2.0, 0.2, 0.6, -0.6, -3.0])
    out = target_direction(offset, heading, 0.1, 0.5)
    expected = [[0.6, 0.8], [0.0, 0.0]]
    expected += [[math.cos(a), math.sin(a)] for a in (0.6, -0.6, -3.0)]
    torch.testing.assert_close(out, torch.tensor(expected))


def test_reference_frame_is_the_origin(humanoid, bank, config):
    batch = draw(bank, humanoid, config)
    assert float(batch.features[:, 1, :3].abs().max()) == 0.0
    assert float(batch.features[:, 1, 5].abs().max()) < 1e-5


def test_normalised_features_have_unit_spread(humanoid, bank, config):
    config = with_conditioning(config, mirror_chance=0.0)
    batch = draw(bank, humanoid, config, n=512)
    moving = batch.features[:, 5:, 48:76].std(dim=0) > 1e-3
    spread = batch.x0[:, 5:, 48:76].std(dim=0)[moving]
    assert float((spread - 1).abs().max()) < 0.35


def test_augmentation_spares_touched_ground(humanoid, bank, config):
    """Cells under the window's surface points keep their height, others vary."""
    config = with_conditioning(config, ood_chance=0.0, mirror_chance=0.0)
    stats = estimate_stats(bank, humanoid, config)
    rng = torch.Generator().manual_seed(1)
    windows = bank.sample_windows(rng, 32, config.num_frames)
    frame = canonical_frame(windows.frames, 1)
    frames = to_canonical(windows.frames, frame)
    terrain = bank.terrains.index_select(windows.terrain_ids)
    heights = sample_local_heights(config.grid, terrain, frame.origin, frame.heading)
    cells = local_cells(
        config.grid, bank.terrains, windows.terrain_ids, frame.origin, frame.heading
    )
    assert torch.equal(cells.heights(bank.terrains.heights), heights)
    maker = BatchMaker(bank, humanoid, config, stats)
    body_pos, body_rot = fk_from_dof(
        humanoid.skeleton, frames.root_pos, frames.root_rot, frames.dof
    )
    varied = maker._augmented(rng, heights, Placed(body_pos, body_rot), frame, cells)
    changed = (varied - heights.clamp(-3, 3)).abs() > 1e-6
    assert float(changed.float().mean()) > 0.05
    points = place_points(surface_points(humanoid), body_pos, body_rot).flatten(1, 2)
    cell = (points[..., :2] / config.grid.spacing).round().long()
    i = cell[..., 0] + config.grid.x_cells_back
    j = cell[..., 1] + config.grid.y_cells_side
    # A local sample and a body point in the same terrain cell: compare where they coincide.
    n = torch.arange(32)[:, None].expand_as(i)
    samples = (cell.float() * config.grid.spacing - points[..., :2]).norm(dim=-1) < 0.02
    centre = frame.point_to_world(torch.cat([points[..., :2], points[..., 2:]], dim=-1))[..., :2]
    margin = (centre - terrain.origin[:, None]) / terrain.cell_size
    well_inside = ((margin - margin.round()).abs() < 0.4).all(dim=-1)
    assert not changed[n, i, j][samples & well_inside].any()


def test_mirroring_twice_is_the_identity(humanoid, bank, config):
    windows = bank.sample_windows(torch.Generator().manual_seed(1), 4, 15).frames
    frames = to_canonical(windows, canonical_frame(windows, 1))
    heights, target = torch.randn(4, 31, 31), torch.randn(4, 2)
    flip = torch.tensor([True, False, True, True])
    once = _mirrored(humanoid, flip, frames, heights, target)
    assert torch.equal(once[1][1], heights[1])
    assert torch.equal(once[1][0], heights[0].flip(-1))
    torch.testing.assert_close(once[0].root_pos[0, :, 1], -frames.root_pos[0, :, 1])
    twice = _mirrored(humanoid, flip, *once)
    torch.testing.assert_close(twice[0].dof, frames.dof, rtol=0, atol=1e-5)
    assert torch.equal(twice[1], heights)
    assert torch.equal(twice[2], target)


def test_foreign_terrain_is_level_at_the_root(humanoid, bank, config):
    batch = draw(bank, humanoid, with_conditioning(config, ood_chance=1.0), n=8)
    assert batch.ood.all()
    i, j = config.grid.root_cell
    middle = batch.cond.heights[:, i - 2 : i + 3, j - 2 : j + 3]
    assert float((middle - middle[:, :1, :1]).abs().max()) == 0.0
    none = draw(bank, humanoid, with_conditioning(config, ood_chance=0.0), n=8)
    assert not none.ood.any()


def test_joint_frequencies_of_masks():
    """PARC: .425, .425, .075, .075; ours never shows clean past frames masked."""
    rng = torch.Generator().manual_seed(0)
    clean, visible, ground, goal = draw_visibility(rng, ConditioningConfig(), 40_000)
    both = float((clean & visible).float().mean()), float((~clean & ~visible).float().mean())
    assert both == (pytest.approx(0.425, abs=0.01), pytest.approx(0.075, abs=0.005))
    assert float(ground.float().mean()) == pytest.approx(0.975, abs=0.005)
    assert float(goal.float().mean()) == pytest.approx(0.975, abs=0.005)
    ours = ConditioningConfig(noised_when_masked=True, mask_past_chance=0.3)
    clean, visible, _, _ = draw_visibility(rng, ours, 40_000)
    assert not (clean & ~visible).any()
    assert float((~visible).float().mean()) == pytest.approx(0.3, abs=0.01)


def test_same_seed_same_batch(humanoid, bank, config):
    first, second = draw(bank, humanoid, config), draw(bank, humanoid, config)
    for name in ("x0", "noise", "t"):
        assert torch.equal(getattr(first, name), getattr(second, name))
    other = draw(make_bank(humanoid), humanoid, config, seed=6)
    assert not torch.equal(first.x0, other.x0)


def guessing(bank: FakeBank, confidence: float) -> FakeBank:
    """The same clips; every second row of cells is as sure as given."""
    other = FakeBank.__new__(FakeBank)
    other.clips = bank.clips
    sure = torch.ones_like(bank.terrains.heights)
    sure[:, ::2] = confidence
    other.terrains = dataclasses.replace(bank.terrains, confidence=sure)
    return other


def test_ground_that_nobody_saw_is_not_scored(humanoid, bank, config):
    """Unseen cells that augmentation left alone lie at the bottom of the scored ground only."""
    config = with_conditioning(config, ood_chance=0.0, augment_terrain=False, mirror_chance=0.5)
    known, unsure = draw(bank, humanoid, config), draw(guessing(bank, 0.01), humanoid, config)
    assert torch.equal(known.cond.heights, unsure.cond.heights)
    removed = unsure.terrain.heights != known.terrain.heights
    assert 0.2 < float(removed.float().mean()) < 0.8
    assert (unsure.terrain.heights[removed] == -config.terrain.max_height).all()
    off = with_conditioning(config, min_confidence=0.0)
    assert torch.equal(
        draw(guessing(bank, 0.01), humanoid, off).terrain.heights, known.terrain.heights
    )
    sure = draw(guessing(bank, 0.5), humanoid, config)
    assert torch.equal(sure.terrain.heights, known.terrain.heights)


def test_unseen_ground_under_the_motion_is_varied_downwards_only(humanoid, bank, config):
    config = with_conditioning(config, ood_chance=0.0, mirror_chance=0.0)
    known = draw(bank, humanoid, config, n=64)
    unsure = draw(guessing(bank, 0.01), humanoid, config, n=64)
    moved = unsure.cond.heights - known.cond.heights
    assert float(moved.max()) < 1e-6
    assert float((moved < -0.05).float().mean()) > 1e-3


def test_memory_of_kinematics_equals_doing_them_again(humanoid, bank, config):
    """Body positions of mirrored samples are mirrored, not computed: both must agree."""
    batch = draw(bank, humanoid, with_conditioning(config, mirror_chance=1.0))
    layout = FeatureLayout(humanoid.skeleton)
    frames, stored = unpack(layout, batch.features)
    body_pos, _ = fk_from_dof(humanoid.skeleton, frames.root_pos, frames.root_rot, frames.dof)
    torch.testing.assert_close(stored, body_pos[..., 1:, :], rtol=0, atol=1e-5)
