from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from algorithms.diffusion.batch import BatchMaker, estimate_stats
from algorithms.diffusion.config import ConditioningConfig
from algorithms.diffusion.generator import DiffusionGenerator
from algorithms.diffusion.profiles import tiny
from algorithms.diffusion.targets import (
    future_target,
    mirror_target,
    target_size,
    turn_target,
    wanted_target,
)
from algorithms.diffusion.train import train_local
from parc_ray.character.rotations import heading_angle
from parc_ray.data.bank import ClipBank
from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip
from parc_ray.protocols import SampleRequest

EVERYTHING = ConditioningConfig(target_distance=True, second_target=True, target_speed=True)


def told_everything(config):
    conditioning = dataclasses.replace(
        config.conditioning, target_distance=True, second_target=True, target_speed=True
    )
    return dataclasses.replace(config, conditioning=conditioning)


def test_sizes():
    assert target_size(ConditioningConfig()) == 2
    assert target_size(ConditioningConfig(target_distance=True)) == 3
    assert target_size(ConditioningConfig(second_target=True)) == 4
    assert target_size(ConditioningConfig(second_target=True, target_distance=True)) == 6
    assert target_size(EVERYTHING) == 7


def test_numbers_by_hand():
    """3 m ahead after 1.5 s, then 4 m to the left of where it started."""
    offsets = [torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 4.0]])]
    headings = [torch.zeros(1), torch.zeros(1)]
    target = future_target(EVERYTHING, offsets, headings, torch.tensor([1.5]))
    expected = torch.tensor([[1.0, 0.0, 0.0, 1.0, 3 / 3, 4 / 3, (3 / 1.5) / 3]])
    torch.testing.assert_close(target, expected)
    torch.testing.assert_close(wanted_target(EVERYTHING, offsets, 2.0), expected)
    plain = future_target(ConditioningConfig(), offsets, headings, torch.tensor([1.5]))
    assert plain.tolist() == [[1.0, 0.0]]


def test_standing_keeps_its_distance_and_speed():
    offsets = [torch.tensor([[0.06, 0.0]]), torch.tensor([[0.0, 0.0]])]
    target = future_target(EVERYTHING, offsets, [torch.zeros(1)] * 2, torch.tensor([1.0]))
    torch.testing.assert_close(target, torch.tensor([[0.0, 0, 0, 0, 0.02, 0.0, 0.02]]))


def test_turns_and_mirrors_touch_directions_only():
    target = torch.tensor([[1.0, 0.0, 0.0, 1.0, 0.5, 0.7, 0.9]])
    turned = turn_target(EVERYTHING, target, torch.tensor([math.pi / 2]))
    expected = torch.tensor([[0.0, 1.0, -1.0, 0.0, 0.5, 0.7, 0.9]])
    torch.testing.assert_close(turned, expected, rtol=0, atol=1e-6)
    mirrored = mirror_target(EVERYTHING, turned)
    torch.testing.assert_close(
        mirrored, torch.tensor([[0.0, -1.0, -1.0, 0.0, 0.5, 0.7, 0.9]]), rtol=0, atol=1e-6
    )
    assert torch.equal(mirror_target(EVERYTHING, mirrored), turned)


def test_batches_of_the_real_bank_carry_them(humanoid, bank):
    """Walks at 0.5, 1 and 1.5 m/s along their heading: so say distance and speed."""
    clips = [
        MotionClip(clip_id=f"clip{i}", frames=bank.clips[i], fps=30.0, terrain=bank.terrains.get(i))
        for i in range(3)
    ]
    config = told_everything(tiny())
    conditioning = dataclasses.replace(
        config.conditioning, target_noise=0.0, ood_chance=0.0, mirror_chance=0.0
    )
    config = dataclasses.replace(config, conditioning=conditioning)
    source = ClipBank(clips, humanoid.skeleton)
    batch = BatchMaker(source, humanoid, config, estimate_stats(source, humanoid, config)).draw(
        torch.Generator().manual_seed(0), 40
    )
    target = batch.cond.target
    speeds = target[:, 6] * 3.0
    near = (speeds[:, None] - torch.tensor([0.5, 1.0, 1.5])).abs().amin(dim=1)
    # The bank moves the target to its grid of quarter frames: up to 2 % of the time to it.
    assert float(near.max()) < 0.03
    assert bool((target[:, 5] >= target[:, 4] - 1e-6).all())
    torch.testing.assert_close(target[:, :2], torch.tensor([[1.0, 0.0]]).expand(40, 2))


def test_second_point_speed_and_distance_reach_the_samples(tmp_path, humanoid, bank, config):
    result = train_local(bank, humanoid, told_everything(config), tmp_path)
    generator = DiffusionGenerator.load(result.path, humanoid)
    windows = bank.sample_windows(torch.Generator().manual_seed(1), 3, 2)
    past = windows.frames
    there = windows.target_pos[:, :2]
    request = SampleRequest(
        past=past,
        anchor_pos=past.root_pos[:, -1],
        anchor_heading=heading_angle(past.root_rot[:, -1]),
        terrain=bank.terrains.index_select(windows.terrain_ids),
        target_w=there,
        second_w=windows.second_pos[:, :2] + 1.0,
    )
    here = past.root_pos[:, -1, :2]
    changes = {
        "second point": dataclasses.replace(request, second_w=request.second_w - 3.0),
        "distance": dataclasses.replace(request, target_w=here + 2.0 * (there - here)),
    }

    def draw(asked, model=generator):
        return model.sample(asked, torch.Generator().manual_seed(2)).root_pos

    base = draw(request)
    for name, asked in changes.items():
        assert not torch.equal(base, draw(asked)), name
    sampling = dataclasses.replace(generator.config.sampling, speed=0.5)
    slow = DiffusionGenerator(generator.file, humanoid, sampling=sampling)
    assert not torch.equal(base, draw(request, slow))


def test_warm_start_must_agree(tmp_path, humanoid, bank, config):
    first = train_local(bank, humanoid, config, tmp_path / "a")
    with pytest.raises(InputError, match=r"conditioning\.target_distance"):
        train_local(bank, humanoid, told_everything(config), tmp_path / "b", warm_start=first.path)
