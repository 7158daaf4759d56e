from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from algorithms.diffusion.checkpoint import load_generator
from algorithms.diffusion.generator import DiffusionGenerator
from algorithms.diffusion.metrics_log import read_rows
from algorithms.diffusion.train import TrainingDivergedError, train_generator, train_local
from parc_ray.errors import InputError
from tests.algorithms.diffusion.conftest import with_train
from tests.algorithms.diffusion.fakes import make_bank
from tests.algorithms.diffusion.faults import FaultyBank, faulty_config, lives

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


def test_two_workers_at_half_the_batch_give_the_curve_of_one(tmp_path, humanoid, config):
    """As near as the noise of a row allows; the source is loaded in the workers.

    A row of two workers is that of the first, half as many samples as a row of one.
    """
    config = with_train(config, steps=60, batch_size=32, log_every=10, report_every=60)
    result = train_generator(
        lambda: make_bank(humanoid),
        humanoid,
        config,
        tmp_path / "two",
        "two",
        num_workers=2,
        resources=HALF,
    )
    DiffusionGenerator.load(result.path, humanoid)
    two = read_rows(tmp_path / "two" / "metrics.jsonl")
    alone = []
    for seed in (config.train.seed, 1, 2):
        out = tmp_path / f"alone{seed}"
        train_local(make_bank(humanoid), humanoid, with_train(config, seed=seed), out)
        alone.append(read_rows(out / "metrics.jsonl"))
    assert [row["step"] for row in two] == [10, 20, 30, 40, 50, 60]
    for i, row in enumerate(two):
        losses = [rows[i]["loss"] for rows in alone]
        mean, spread = sum(losses) / len(losses), max(losses) - min(losses)
        assert abs(row["loss"] - mean) <= max(3.0 * spread, 0.15 * mean), (i, row["loss"], losses)
    assert two[-1]["loss"] < 0.6 * two[0]["loss"]


def test_a_killed_worker_costs_the_steps_since_the_checkpoint(tmp_path, humanoid):
    """Rank 1 of two is killed in step 6 of 10; the group goes on from the checkpoint at step 4."""
    diary = tmp_path / "diary"
    result = train_generator(
        lambda: FaultyBank(humanoid, diary, 4, 6, rank=1),
        humanoid,
        faulty_config(10),
        tmp_path,
        "killed",
        num_workers=2,
        resources=HALF,
    )
    assert diary.with_suffix(".killed").exists()
    assert result.metrics["steps"] == 10
    counts = list(lives(diary).values())
    assert len(counts) == 4
    assert counts[2:] == [6, 6]  # steps 5 to 10: it went on, it did not begin again
    rows = read_rows(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 11))


def test_a_killed_driver_is_continued_to_the_same_bits(tmp_path, humanoid):
    """The driver and its worker are killed in step 6; started again, it equals a calm run."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.algorithms.diffusion.faults", str(tmp_path)],
        cwd=Path(__file__).parents[3],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    diary = tmp_path / "diary"
    assert list(lives(diary).values()) == [6]
    result = train_generator(
        lambda: FaultyBank(humanoid, diary, 8, 6),
        humanoid,
        faulty_config(10),
        tmp_path,
        "faulty",
        resources=HALF,
    )
    first, second = lives(diary).values()
    assert (first, second) == (6, 6)  # the second life did steps 5 to 10
    calm = train_local(make_bank(humanoid), humanoid, faulty_config(10), tmp_path / "calm")
    expected, found = load_generator(calm.path), load_generator(result.path)
    for name, value in expected.model.items():
        assert torch.equal(value, found.model[name]), name


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
