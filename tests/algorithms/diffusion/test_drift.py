from __future__ import annotations

import dataclasses

import pytest
import torch

from algorithms.diffusion.batch import BatchMaker, estimate_stats
from algorithms.diffusion.config import ConditioningConfig
from algorithms.diffusion.drift import add_drift, drifts, return_weights
from parc_ray.character.rotations import heading_angle, quat_angle, wrap_angle
from parc_ray.errors import InputError


def windows(bank, n=400):
    rng = torch.Generator().manual_seed(0)
    return bank.sample_windows(rng, n, 15).frames


def displaced(bank, **changes):
    frames = windows(bank)
    cfg = ConditioningConfig(**changes)
    return frames, add_drift(torch.Generator().manual_seed(1), frames, cfg, 1)


def test_weights_go_from_one_to_zero_smoothly():
    w = return_weights(15, 1)
    assert w[:2].tolist() == [1.0, 1.0]
    assert w[10:].abs().max() < 1e-6  # 70 % of 13 new frames are 9
    assert bool((w[1:] <= w[:-1]).all())
    assert w[1] - w[2] < 0.05


def test_height_is_displaced_and_regained(bank):
    frames, out = displaced(bank, drift_height=0.05)
    lift = (out.root_pos - frames.root_pos)[..., 2]
    assert (out.root_pos - frames.root_pos)[..., :2].abs().max() == 0
    assert float(lift[:, 1].std()) == pytest.approx(0.05, rel=0.1)
    torch.testing.assert_close(lift[:, 0], lift[:, 1])
    assert lift[:, -1].abs().max() < 1e-5
    assert torch.equal(out.dof, frames.dof)


def test_heading_turns_about_the_vertical(bank):
    frames, out = displaced(bank, drift_turn=0.2)
    turn = wrap_angle(heading_angle(out.root_rot) - heading_angle(frames.root_rot))
    assert float(turn[:, 1].std()) == pytest.approx(0.2, rel=0.1)
    torch.testing.assert_close(
        quat_angle(out.root_rot, frames.root_rot), turn.abs(), atol=2e-3, rtol=0
    )
    assert torch.equal(out.root_pos, frames.root_pos)


def test_joints_move_independently(bank):
    frames, out = displaced(bank, drift_joint=0.1)
    bend = (out.dof - frames.dof)[:, 1]
    assert float(bend.std()) == pytest.approx(0.1, rel=0.05)
    assert abs(float((bend[:, 0] * bend[:, 1]).mean())) < 0.002


def test_batches_with_drift_still_begin_at_the_origin(humanoid, bank, config):
    cond = dataclasses.replace(config.conditioning, drift_height=0.05, drift_turn=0.2)
    config = dataclasses.replace(config, conditioning=cond)
    maker = BatchMaker(bank, humanoid, config, estimate_stats(bank, humanoid, config))
    first, second = (maker.draw(torch.Generator().manual_seed(5), 8) for _ in range(2))
    assert torch.equal(first.features, second.features)
    assert first.features[:, 1, :3].abs().max() < 1e-5


def test_switched_off_by_default():
    assert not drifts(ConditioningConfig())
    assert drifts(ConditioningConfig(drift_tilt=0.1))
    with pytest.raises(InputError, match="drift_joint"):
        ConditioningConfig(drift_joint=-0.1)
