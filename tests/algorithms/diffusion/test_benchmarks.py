"""The benchmarks of the generator on networks that take seconds."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from algorithms.diffusion.generator import DiffusionGenerator
from algorithms.diffusion.profiles import tiny
from algorithms.diffusion.train import train_local
from benchmarks import few_step, generator
from tests.algorithms.diffusion.conftest import with_train


@pytest.fixture(scope="module")
def made(tmp_path_factory, humanoid, bank) -> DiffusionGenerator:
    config = with_train(tiny(), steps=10, batch_size=8, stat_windows=64)
    path = train_local(bank, humanoid, config, tmp_path_factory.mktemp("bench")).path
    return DiffusionGenerator.load(path, humanoid)


@pytest.fixture
def setup(humanoid, bank) -> generator.Setup:
    return generator.Setup(humanoid, bank, 1)


def test_windows_are_timed_against_the_reference_and_compared(setup, made, monkeypatch):
    """float32 rows deviate by nothing, bfloat16 rows by little; the reference agrees with ours."""
    monkeypatch.setattr(generator, "forms", lambda: ("float32", "bfloat16"))
    found: dict[str, float] = {}
    rows = generator.sampling_rows(setup, [made], found)
    assert [row[0] for row in rows] == [
        f"upstream, {key}, {form}" for key in ("plain", "blend") for form in ("float32", "bfloat16")
    ]
    assert all(row[7] == "0.0e+00" for row in rows[::2])
    assert all(0 < float(row[7]) < 0.1 for row in rows[1::2])
    assert {"sample32_cpu_s", "sample32_blend_cpu_s"} <= set(found)
    assert all(value > 0 for value in found.values())
    given = generator.inputs(setup, made)
    (reference,) = generator.reference_run(made, given, generator.BLEND)
    ours = generator.with_sampling(made, blend=generator.BLEND, stride=generator.STRIDE)
    expected = ours.windows(given.cond, given.past, given.noise)
    torch.testing.assert_close(reference(), expected, rtol=0, atol=1e-3)


def test_advances_are_those_of_whole_rollouts(setup, made):
    found: dict[str, float] = {}
    rows = generator.advance_rows(setup, made, found, duration_s=1.0)
    assert [row[0] for row in rows][1:] == ["few-step, 1", "few-step, 2", "few-step, 4"]
    assert found["advance_realtime_s"] == found["advance_2_step_s"] > 0


def test_networks_with_parts_of_our_own_have_no_reference(setup):
    assert generator.reference_train_run(setup, "base", penetration=False) == []
    (step,) = generator.reference_train_run(setup, "upstream", penetration=False)
    assert callable(step)


def test_training_settings_switch_the_geometric_terms():
    off, on = (generator.settings("base", penetration=p) for p in (False, True))
    assert (off.loss.penetration, off.loss.target) == (0.0, 0.0)
    assert (on.loss.penetration, on.loss.target) == (15.0, 0.02)
    assert generator.settings("base", penetration=True, low=True).train.precision == "bfloat16"


def test_students_are_compared_with_the_first_row(humanoid, made, monkeypatch, capsys):
    figures = iter([(1.0, 10.0, 1.0), (1.2, 12.0, 0.8), (1.0, 10.0, 0.5)])

    def roll_out(generator, character, energy):
        fwd, tpl, moved = next(figures)
        rest = {"tcl": 1.0, "hjf_percent": 2.0, "finished": 0.5}
        return {"fwd_m": fwd, "tpl": tpl, "energy_ratio": moved, **rest}

    monkeypatch.setattr(few_step, "roll_out_figures", roll_out)
    monkeypatch.setattr(few_step, "advance_cpu_s", lambda *_: 0.01)
    few_step.report([("teacher", made), ("near", made), ("frozen", made)], humanoid, 1.0)
    rows = {line.split()[0]: line.split()[-2:] for line in capsys.readouterr().out.splitlines()}
    assert rows["near"] == ["20%", "yes"]
    assert rows["frozen"] == ["50%", "no"]


def test_an_advance_is_timed(humanoid, made):
    few = dataclasses.replace(made.config.sampling, sampler="few_step", steps=1)
    student = DiffusionGenerator(made.file, humanoid, sampling=few)
    assert 0 < few_step.advance_cpu_s(student, humanoid) < 5.0
