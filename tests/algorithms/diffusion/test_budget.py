from __future__ import annotations

import itertools
import time

import pytest

from algorithms.diffusion import budget
from algorithms.diffusion.budget import Clock
from algorithms.diffusion.checkpoint import read_tensors
from algorithms.diffusion.profiles import tiny
from algorithms.diffusion.train import CHECKPOINT, train_local
from parc_ray.errors import InputError
from tests.algorithms.diffusion.conftest import with_train


def test_clock_adds_earlier_sittings_and_counts_cpu_time_only_where_asked():
    clock = Clock(elapsed_s=100.0, cpu_s=40.0)
    time.sleep(0.2)
    assert clock.seconds() >= 100.2
    assert 40.0 <= clock.cpu_s() < 40.2  # sleeping costs none
    walled = with_train(tiny(), max_seconds=1_000.0).train
    counted = with_train(tiny(), max_cpu_s=80.0).train
    both = with_train(tiny(), max_seconds=1_000.0, max_cpu_s=80.0).train
    assert clock.spent(tiny().train) == 0.0
    assert clock.spent(walled) == pytest.approx(0.1, abs=0.01)
    assert clock.spent(counted) == pytest.approx(0.5, abs=0.01)
    assert clock.spent(both) == pytest.approx(0.5, abs=0.01)


@pytest.fixture
def ticking(monkeypatch) -> None:
    """A process whose CPU time moves on by a second whenever it is read."""
    ticks = itertools.count()
    monkeypatch.setattr(budget.time, "process_time", lambda: float(next(ticks)))


@pytest.mark.usefixtures("ticking")
def test_cpu_time_limit_ends_a_training_and_is_carried_over(tmp_path, humanoid, bank, config):
    """A second sitting with the same budget finds it used up and does no step."""
    config = with_train(config, steps=100_000, max_cpu_s=20.0)
    result = train_local(bank, humanoid, config, tmp_path)
    steps = result.metrics["steps"]
    assert 2 <= steps <= 20
    used = read_tensors(tmp_path / CHECKPOINT, "checkpoint")["cpu_s"]
    assert used >= 20.0
    assert train_local(bank, humanoid, config, tmp_path).metrics["steps"] == steps
    longer = with_train(config, max_cpu_s=used + 20.0)
    assert train_local(bank, humanoid, longer, tmp_path).metrics["steps"] >= steps + 2


@pytest.mark.usefixtures("ticking")
def test_rate_follows_the_cpu_budget(tmp_path, humanoid, bank, config):
    """At the end of its CPU time a training has come down its cosine, far from its steps."""
    config = with_train(
        config, steps=100_000, max_cpu_s=60.0, final_lr_fraction=0.0, warmup_steps=0
    )
    rows = []
    train_local(bank, humanoid, config, tmp_path, callback=rows.append)
    rates = [row["learning_rate"] for row in rows]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.1 * config.train.learning_rate


@pytest.mark.parametrize("name", ["max_seconds", "max_cpu_s"])
def test_budgets_are_positive(name):
    with pytest.raises(InputError, match=rf"train\.{name}"):
        with_train(tiny(), **{name: 0.0})
