from __future__ import annotations

import dataclasses

import pytest
import torch

from algorithms.diffusion.anchor import SCALE_FLOOR, PastAnchor, fit_gains
from algorithms.diffusion.batch import estimate_stats, sample_features
from algorithms.diffusion.checkpoint import load_generator
from algorithms.diffusion.denoiser import ConditionTokens, Denoiser
from algorithms.diffusion.train import train_local
from parc_ray.errors import InputError
from parc_ray.motion.features import FeatureLayout, FeatureStats
from tests.algorithms.diffusion.conftest import with_train


def anchored(config):
    net = dataclasses.replace(config.denoiser, past_anchor=True)
    return dataclasses.replace(config, denoiser=net)


def windows(count: int, velocity_gain: float) -> torch.Tensor:
    """Frames that leave the last past frame (index 1) at a share of the past velocity."""
    torch.manual_seed(0)
    before, last = torch.randn(count, 1, 5), torch.randn(count, 1, 5)
    ahead = velocity_gain * torch.arange(-1, 3)[None, :, None]
    x = last + ahead * (last - before)
    x[:, 0], x[:, 1] = before[:, 0], last[:, 0]
    return x


def test_gains_of_known_motions():
    x = windows(50, 0.8)
    gain, rest = fit_gains(x, 1)
    expected = torch.tensor([-1.0, 0.0, 0.8, 1.6])[:, None].expand(4, 5)
    torch.testing.assert_close(gain, expected)
    assert rest.abs().max() < 1e-5


def test_rest_is_the_part_velocity_does_not_explain():
    torch.manual_seed(1)
    noise = 0.3 * torch.randn(4000, 5)
    x = windows(4000, 0.8)
    x[:, 3] += noise
    gain, rest = fit_gains(x, 1)
    torch.testing.assert_close(gain[3], torch.full((5,), 1.6), atol=0.02, rtol=0)
    torch.testing.assert_close(rest[3], torch.full((5,), 0.3), atol=0.01, rtol=0)


def test_one_past_frame_has_no_velocity():
    gain, rest = fit_gains(windows(50, 0.8), 0)
    assert gain.abs().max() == 0
    assert rest[0].abs().max() == 0
    assert rest[1].min() > 0


def test_guess_in_normalised_features_is_the_guess():
    """A motion that the guess explains comes out exactly, whatever mean and spread are."""
    x = windows(50, 0.8)
    stats = FeatureStats(mean=torch.randn(4, 5), std=torch.rand(4, 5) + 0.5)
    anchor = PastAnchor(4, 5, 1)
    anchor.fit(x, stats)
    normal = stats.normalise(x)
    seen = normal.clone()
    seen[:, 2:] = 1e6  # frames to come must not matter
    out = stats.denormalise(anchor(seen, torch.zeros_like(seen)))
    torch.testing.assert_close(out, x, atol=1e-4, rtol=1e-4)
    assert torch.equal(anchor.scale, torch.full((4, 5), SCALE_FLOOR))


def test_anchor_on_data_is_tight_at_the_seam(humanoid, bank, config):
    """Right after the past, less is left to the network than later."""
    config = anchored(config)
    stats = estimate_stats(bank, humanoid, config)
    net = Denoiser(config, FeatureLayout(humanoid.skeleton).size, config.grid.shape)
    assert net.anchor is not None
    net.anchor.fit(sample_features(bank, humanoid, config), stats)
    dof = net.anchor.scale[:, FeatureLayout(humanoid.skeleton).dof].mean(dim=1)
    assert dof[2] < 0.5 * dof[4] < 0.5 * dof[8]


def test_only_clean_visible_past_is_anchored(config):
    """Elsewhere the network predicts whole frames, and nothing leaks from a hidden past."""
    torch.manual_seed(0)
    plain = Denoiser(config, 20, config.grid.shape)
    net = Denoiser(anchored(config), 20, config.grid.shape)
    missing = net.load_state_dict(plain.state_dict(), strict=False).missing_keys
    assert all(name.startswith("anchor.") for name in missing)
    net.anchor.of_last.fill_(2.0)
    net.anchor.scale.fill_(0.0)
    x, t = torch.randn(4, config.num_frames, 20), torch.full((4,), 3)
    clean = torch.tensor([True, True, False, False])
    seen = torch.tensor([True, False, True, False])
    cond_tokens = plain.terrain.num_tokens + 1

    tokens = ConditionTokens(
        torch.randn(4, cond_tokens, config.denoiser.width),
        torch.ones(4, cond_tokens, dtype=torch.bool),
    )
    with torch.no_grad():
        out = net.denoise(x, t, tokens, clean, seen)
        usual = plain.denoise(x, t, tokens, clean, seen)
    torch.testing.assert_close(out[0], (2.0 * x[0, 1]).expand(config.num_frames, 20))
    assert torch.equal(out[1:], usual[1:])


def test_tables_are_stored_and_warm_starts_keep_them(tmp_path, humanoid, bank, config):
    config = anchored(config)
    first = train_local(bank, humanoid, config, tmp_path / "a")
    tables = {k: v for k, v in load_generator(first.path).ema.items() if "anchor" in k}
    assert set(tables) == {f"anchor.{n}" for n in ("offset", "of_last", "of_before", "scale")}
    assert tables["anchor.scale"].unique().numel() > 10
    again = with_train(config, seed=9)
    second = train_local(bank, humanoid, again, tmp_path / "b", warm_start=first.path)
    for name, value in tables.items():
        assert torch.equal(load_generator(second.path).model[name], value)


def test_warm_start_must_agree(tmp_path, humanoid, bank, config):
    first = train_local(bank, humanoid, config, tmp_path / "a")
    with pytest.raises(InputError, match="past_anchor"):
        train_local(bank, humanoid, anchored(config), tmp_path / "b", warm_start=first.path)


def test_resumed_run_is_bit_equal(tmp_path, humanoid, bank, config):
    config = with_train(anchored(config), start_windows=4)
    whole = train_local(bank, humanoid, config, tmp_path / "whole")

    class PowerCutError(Exception):
        pass

    def cut(row):
        if row["step"] == 3:
            raise PowerCutError

    with pytest.raises(PowerCutError):
        train_local(bank, humanoid, config, tmp_path / "cut", callback=cut)
    resumed = train_local(bank, humanoid, config, tmp_path / "cut")
    one, other = load_generator(whole.path), load_generator(resumed.path)
    for name, value in one.ema.items():
        assert torch.equal(value, other.ema[name]), name
    assert torch.equal(one.starts.features, other.starts.features)
