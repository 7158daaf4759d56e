from __future__ import annotations

import dataclasses

import pytest
import torch

from algorithms.diffusion.checkpoint import load_generator
from algorithms.diffusion.generator import DiffusionGenerator
from algorithms.diffusion.metrics_log import read_rows
from algorithms.diffusion.train import TrainingDivergedError, train_generator, train_local
from parc_ray.errors import InputError
from tests.algorithms.diffusion.conftest import with_train
from tests.algorithms.diffusion.fakes import make_bank

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_session")]

HALF = {"CPU": 0.5}


def test_ray_continues_by_name_and_equals_the_local_run(tmp_path, humanoid, bank, config):
    """2 steps, then the same name again up to 4: the bits of 4 local steps, dropout included."""
    net = dataclasses.replace(config.denoiser, dropout=0.1)
    config = dataclasses.replace(config, denoiser=net)
    config = with_train(config, warmup_steps=0, final_lr_fraction=1.0, torch_threads=1)
    local = train_local(bank, humanoid, config, tmp_path / "local")
    out = tmp_path / "ray"
    half = with_train(config, steps=2)
    train_generator(bank, humanoid, half, out, "run-it1-gen", resources=HALF)
    result = train_generator(bank, humanoid, config, out, "run-it1-gen", resources=HALF)
    assert result.metrics["steps"] == 4
    assert result.cpu_s > 0
    expected, found = load_generator(local.path), load_generator(result.path)
    for name, value in expected.model.items():
        assert torch.equal(value, found.model[name]), name
    assert [row["step"] for row in read_rows(out / "metrics.jsonl")] == [1, 2, 3, 4]


def loss_curve(folder) -> torch.Tensor:
    return torch.tensor([row["loss"] for row in read_rows(folder / "metrics.jsonl")])


def test_two_workers_learn_as_one_does(tmp_path, humanoid, config):
    """Half the batch each; their curve lies among those of one worker with other seeds."""
    config = with_train(
        config, steps=60, batch_size=16, log_every=10, report_every=60, warmup_steps=0
    )
    result = train_generator(
        lambda: make_bank(humanoid),  # the source is loaded inside the workers
        humanoid,
        config,
        tmp_path / "two",
        "two",
        num_workers=2,
        resources=HALF,
    )
    assert result.metrics["steps"] == 60
    DiffusionGenerator.load(result.path, humanoid)
    alone = []
    for seed in range(3):
        folder = tmp_path / f"alone{seed}"
        train_local(make_bank(humanoid), humanoid, with_train(config, seed=seed), folder)
        alone.append(loss_curve(folder))
    two, one = loss_curve(tmp_path / "two"), torch.stack(alone)
    assert len(two) == 6
    mean = one.mean(0)
    noise = (one - mean).abs().mean()
    assert (two - mean).abs().mean() < 2.0 * noise
    assert mean[0] - mean[-1] > 6.0 * noise  # far more is learned than seeds differ by
    assert two[0] - two[-1] > 6.0 * noise


def test_mistakes_come_back_as_they_are(tmp_path, humanoid, bank, config):
    """No restarts and no traceback for what only the user can mend."""
    odd = with_train(config, stat_windows=2, learning_rate=1e30, clip_norm=1e30, steps=30)
    with pytest.raises(TrainingDivergedError, match="not finite"):
        train_generator(bank, humanoid, odd, tmp_path, "diverges", resources=HALF)
    local = train_local(bank, humanoid, config, tmp_path / "a")
    net = dataclasses.replace(config.denoiser, layers=3)
    with pytest.raises(InputError, match=r"denoiser\.layers"):
        train_generator(
            bank,
            humanoid,
            dataclasses.replace(config, denoiser=net),
            tmp_path,
            "misfit",
            warm_start=local.path,
            resources=HALF,
        )
