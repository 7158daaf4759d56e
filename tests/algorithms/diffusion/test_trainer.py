from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from algorithms.diffusion.checkpoint import load_generator, read_tensors
from algorithms.diffusion.generator import DiffusionGenerator
from algorithms.diffusion.profiles import tiny
from algorithms.diffusion.train import (
    CHECKPOINT,
    TrainingDivergedError,
    _whole_checkpoint,
    train_local,
)
from algorithms.diffusion.trainer import Trainer, learning_rate, private_randomness
from parc_ray.character.character import load_character
from parc_ray.data.bank import ClipBank
from parc_ray.data.digests import write_digest
from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip
from parc_ray.motion.features import FeatureLayout
from tests.algorithms.diffusion.conftest import with_train
from tests.algorithms.diffusion.fakes import make_bank


def weights(path):
    return load_generator(path).model


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def with_dropout(config):
    net = dataclasses.replace(config.denoiser, dropout=0.1, attention_dropout=0.1)
    return dataclasses.replace(config, denoiser=net)


def test_resumed_run_is_bit_equal(tmp_path, humanoid, bank, config):
    """4 steps, against 2 steps, save, load, 2 steps: the same bits, dropout included."""
    config = with_dropout(config)
    whole = train_local(bank, humanoid, config, tmp_path / "whole")

    class PowerCutError(Exception):
        pass

    def cut(row):
        if row["step"] == 3:
            raise PowerCutError

    with pytest.raises(PowerCutError):
        train_local(bank, humanoid, config, tmp_path / "cut", callback=cut)
    assert int(read_tensors(tmp_path / "cut" / CHECKPOINT, "checkpoint")["step"]) == 2
    torch.rand(7)  # the caller's random state is none of the training's business
    resumed = train_local(bank, humanoid, config, tmp_path / "cut")
    assert_same(weights(whole.path), weights(resumed.path))
    assert_same(load_generator(whole.path).ema, load_generator(resumed.path).ema)
    steps = [json.loads(x)["step"] for x in (tmp_path / "cut/metrics.jsonl").open()]
    assert steps == [1, 2, 3, 4]


def test_finished_run_does_nothing(tmp_path, humanoid, bank, config):
    first = train_local(bank, humanoid, config, tmp_path)
    before = weights(first.path)
    again = train_local(bank, humanoid, config, tmp_path)
    assert again.metrics["steps"] == 4
    assert_same(before, weights(again.path))


def test_global_random_state_is_left_alone(tmp_path, humanoid, bank, config):
    state = torch.get_rng_state()
    train_local(bank, humanoid, with_dropout(config), tmp_path)
    assert torch.equal(state, torch.get_rng_state())


def test_other_configuration_is_refused(tmp_path, humanoid, bank, config):
    train_local(bank, humanoid, config, tmp_path)
    other = with_train(config, learning_rate=1e-3)
    with pytest.raises(InputError, match=r"train\.learning_rate"):
        train_local(bank, humanoid, other, tmp_path)


def test_loss_falls_on_a_small_bank(tmp_path, humanoid, bank):
    config = with_train(tiny(), steps=60, batch_size=16, stat_windows=128, log_every=10)
    rows = []
    train_local(bank, humanoid, config, tmp_path, callback=rows.append)
    assert rows[-1]["loss"] < 0.5 * rows[0]["loss"]
    assert {"root_pos", "penetration", "target", "grad_norm", "seconds"} <= rows[0].keys()
    assert rows[-1]["sample_energy_ratio"] > 0
    assert list((tmp_path / "tb").iterdir())


def test_loss_that_is_not_finite_stops(tmp_path, humanoid, bank, config, monkeypatch):
    real = Trainer.loss

    def broken(self, batch):
        loss, shares = real(self, batch)
        return (loss * float("nan") if self.step == 3 else loss), shares

    monkeypatch.setattr(Trainer, "loss", broken)
    with pytest.raises(TrainingDivergedError, match="step 3") as caught:
        train_local(bank, humanoid, config, tmp_path)
    assert "\n" not in str(caught.value)
    dump = read_tensors(tmp_path / "nonfinite_step_0000003.pt", "dump")
    assert {"x0", "noise", "t", "terms", "model"} <= dump.keys()
    kept = read_tensors(tmp_path / CHECKPOINT, "checkpoint")
    assert all(torch.isfinite(v).all() for v in kept["model"].values())


def test_wall_time_limit(tmp_path, humanoid, bank, config):
    config = with_train(config, steps=10_000, max_seconds=0.5)
    result = train_local(bank, humanoid, config, tmp_path)
    assert 1 <= result.metrics["steps"] < 200


def test_warm_start_keeps_statistics(tmp_path, humanoid, bank, config):
    first = train_local(bank, humanoid, with_train(config, keep_optimizer=True), tmp_path / "a")
    still = with_train(config, steps=0, keep_optimizer=True, seed=9)
    second = train_local(bank, humanoid, still, tmp_path / "b", warm_start=first.path)
    assert_same(weights(first.path), weights(second.path))
    assert_same(load_generator(first.path).ema, load_generator(second.path).ema)
    old, new = load_generator(first.path), load_generator(second.path)
    assert torch.equal(old.stats.mean, new.stats.mean)
    assert new.optimizer["state"][0]["step"] == 4


def test_warm_start_of_another_size_is_refused(tmp_path, humanoid, bank, config):
    first = train_local(bank, humanoid, config, tmp_path / "a")
    net = dataclasses.replace(config.denoiser, layers=3)
    with pytest.raises(InputError, match=r"denoiser\.layers"):
        train_local(
            bank,
            humanoid,
            dataclasses.replace(config, denoiser=net),
            tmp_path / "b",
            warm_start=first.path,
        )


def test_learning_rate_by_hand():
    config = with_train(tiny(), learning_rate=1.0, warmup_steps=9, final_lr_fraction=0.1).train
    assert learning_rate(config, 0, 0.0) == pytest.approx(0.1)
    assert learning_rate(config, 9, 0.0) == pytest.approx(1.0)
    assert learning_rate(config, 50, 0.5) == pytest.approx(0.55)
    assert learning_rate(config, 99, 1.0) == pytest.approx(0.1)
    flat = with_train(tiny(), learning_rate=1e-5, warmup_steps=0, final_lr_fraction=1.0).train
    assert learning_rate(flat, 0, 0.0) == learning_rate(flat, 7, 0.9) == 1e-5


def test_average_of_weights_by_hand(humanoid, bank, config):
    """A copy up to ema_start, then a running mean with the given decay."""
    config = with_train(config, ema_start=1, ema_decay=0.9, ema_ramp=False)
    with private_randomness(0, 1):
        trainer = Trainer(bank, humanoid, config)
        name, parameter = next(iter(trainer.denoiser.named_parameters()))
        trainer.train_step()
        expected = parameter.detach().clone()
        for _ in range(3):
            trainer.train_step()
            expected = 0.9 * expected + 0.1 * parameter.detach()
    averaged = dict(trainer.ema.module.named_parameters())[name]
    torch.testing.assert_close(averaged, expected, rtol=1e-5, atol=1e-7)


def test_given_past_frames_are_not_scored_in_our_profiles(humanoid, bank, config):
    """Wrong predictions of clean past frames cost nothing; those of noised ones do."""
    conditioning = dataclasses.replace(
        config.conditioning, clean_past_chance=1.0, mask_past_chance=0.0, ood_chance=0.0
    )
    config = dataclasses.replace(config, conditioning=conditioning)
    with private_randomness(0, 1):
        trainer = Trainer(bank, humanoid, config)
        batch = trainer.batches.draw(trainer.rng, 4)
        answer = batch.x0.clone()
        trainer.net = lambda x, t, cond: answer
        truth, _ = trainer.loss(batch)
        answer[:, :2] += 1.0
        wrong_past, _ = trainer.loss(batch)
        answer[:, 2:] += 1.0
        wrong_future, _ = trainer.loss(batch)
    assert float(wrong_past) == pytest.approx(float(truth), abs=1e-5)
    assert float(wrong_future) > float(truth) + 1.0


def test_trains_from_a_bank_of_clips(tmp_path, humanoid, bank, config):
    """The real bank fits: interpolated windows, terrains and targets of stored clips."""
    clips = [
        MotionClip(clip_id=f"clip{i}", frames=bank.clips[i], fps=30.0, terrain=bank.terrains.get(i))
        for i in range(2)
    ]
    result = train_local(lambda: ClipBank(clips, humanoid.skeleton), humanoid, config, tmp_path)
    assert result.metrics["steps"] == 4


def test_another_character_trains_too(tmp_path, config):
    """Nothing here knows the humanoid's sizes: a character with other bodies and dofs."""
    other = load_character(Path(__file__).parents[2] / "assets" / "waddler.xml")
    assert other.skeleton.num_dofs != load_character("humanoid").skeleton.num_dofs
    conditioning = dataclasses.replace(config.conditioning, mirror_chance=0.0)
    config = dataclasses.replace(config, conditioning=conditioning)
    result = train_local(make_bank(other), other, config, tmp_path)
    generator = DiffusionGenerator.load(result.path, other)
    assert generator.layout.size == FeatureLayout(other.skeleton).size
    with pytest.raises(InputError, match="character"):
        DiffusionGenerator.load(result.path, load_character("humanoid"))


def test_a_damaged_checkpoint_is_passed_over(tmp_path):
    """Of three of Ray Train's folders the newest whole one is taken, none where all are damaged."""
    folders = [tmp_path / f"checkpoint_2026-01-01_00-00-0{k}.5" for k in range(3)]
    for folder in folders:
        folder.mkdir()
        (folder / CHECKPOINT).write_bytes(folder.name.encode())
        write_digest(folder / CHECKPOINT)
    assert _whole_checkpoint(folders[1]) == folders[1] / CHECKPOINT
    for damaged, expected in ((2, folders[1]), (1, folders[0]), (0, None)):
        (folders[damaged] / CHECKPOINT).write_bytes(b"x")
        found = _whole_checkpoint(folders[2])
        assert found == (expected / CHECKPOINT if expected else None)
