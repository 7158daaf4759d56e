from __future__ import annotations

import dataclasses

import pytest
import torch

from algorithms.diffusion import distill as module
from algorithms.diffusion.chains import Chains, join
from algorithms.diffusion.checkpoint import load_generator, save_generator
from algorithms.diffusion.distill import DistillConfig, Distiller, distill, student_config
from algorithms.diffusion.generator import DiffusionGenerator
from algorithms.diffusion.profiles import tiny
from algorithms.diffusion.train import train_local
from parc_ray.character.rotations import heading_angle
from parc_ray.errors import InputError
from parc_ray.protocols import Generator, SampleRequest
from tests.algorithms.diffusion.conftest import with_train

SMALL = DistillConfig(updates=4, batch_size=8, pool=2, depth=3, report_every=2, warmup_steps=1)


@pytest.fixture(scope="module")
def path(tmp_path_factory, humanoid, bank):
    config = with_train(tiny(), steps=30, batch_size=16, stat_windows=128)
    return train_local(bank, humanoid, config, tmp_path_factory.mktemp("teacher")).path


@pytest.fixture
def teacher(path, humanoid) -> DiffusionGenerator:
    return DiffusionGenerator.load(path, humanoid)


def make_chains(bank, teacher, **changes) -> Chains:
    settings = {"depth": 3, "rewind": 5, "first_share": 0.25}
    return Chains(bank, teacher, 16, **(settings | changes))


def test_the_teachers_answers_are_its_samples(bank, teacher):
    """Where the past is given it comes back; the same noise in the teacher gives the answer."""
    rng = torch.Generator().manual_seed(0)
    items = make_chains(bank, teacher).items(rng)
    assert 0 < int(items.clean.sum()) < 16
    assert torch.equal(items.answer[items.clean, :2], items.past[items.clean])
    some = items.select(items.clean)
    again = teacher.windows(some.conditions(), some.past, some.noise)
    torch.testing.assert_close(again, some.answer, rtol=0, atol=1e-4)
    first = items.select(~items.clean)
    again = teacher.windows(first.conditions(), None, first.noise)
    torch.testing.assert_close(again, first.answer, rtol=0, atol=1e-4)
    assert len(join([some, first]).clean) == 16


def test_chains_go_on_from_the_windows(bank, teacher):
    """The next past is frames 7 and 8 of the window, seen anew; finished chains are replaced."""
    rng = torch.Generator().manual_seed(1)
    chains = make_chains(bank, teacher, depth=50, first_share=0.0)
    items = chains.items(rng)
    frame = teacher.frame(chains._request(chains.state))
    world = teacher.place(items.answer, frame, torch.device("cpu"))
    chains.state["clearance"] = chains.state["clearance"] * 0 + 1e6  # all lost but ...
    ground = chains._terrain(chains.state).height_at(world.root_pos[:1, 8:9, :2])[:, 0]
    chains.state["clearance"][0] = world.root_pos[0, 8, 2] - ground[0]  # ... the first
    chains.state["age"][:] = 0
    chains.advance(rng, items.answer)
    assert torch.equal(chains.state["root_pos"][0], world.root_pos[0, 7:9])
    assert torch.equal(chains.state["dof"][0], world.dof[0, 7:9])
    assert chains.state["age"].tolist() == [1] + [0] * 15
    assert float(chains.state["root_pos"][1:, 1].abs().max()) < 1e-3  # of the data: canonical
    past = chains.items(rng).past[0]
    request = SampleRequest(
        past=world[:1].time(7, 9),
        anchor_pos=world.root_pos[:1, 8],
        anchor_heading=heading_angle(world.root_rot[:1, 8]),
        terrain=chains._terrain(chains.state).index_select(torch.tensor([0])),
        target_w=world.root_pos[:1, 8, :2],
    )
    expected = teacher.past_features(request.past, teacher.frame(request))[0]
    torch.testing.assert_close(past, expected, rtol=0, atol=1e-4)


def test_chains_end_at_their_depth(bank, teacher):
    rng = torch.Generator().manual_seed(2)
    chains = make_chains(bank, teacher, depth=2)
    items = chains.items(rng)
    assert set(chains.state["age"].tolist()) == {0, 1}
    old = chains.state["age"] == 1
    chains.advance(rng, items.answer)
    assert bool((chains.state["age"][old] == 0).all())
    assert not bool(chains.state["first"][~old & (chains.state["age"] > 0)].any())


def test_a_student_gets_nearer_to_its_teacher(bank, path, humanoid):
    """From disturbed weights, on windows that were never drawn in training."""
    config = dataclasses.replace(SMALL, updates=25, batch_size=16, learning_rate=2e-3)
    run = Distiller(load_generator(path), bank, humanoid, config)
    held_out = make_chains(bank, run.teacher).items(torch.Generator().manual_seed(99))
    with torch.no_grad():
        for parameter in run.student.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    run.ema.module.load_state_dict(run.student.state_dict())

    def error() -> float:
        made = run.answers(held_out)
        return float((made - held_out.answer)[:, 2:].square().mean())

    before = error()
    for _ in range(25):
        row = run.update()
    assert error() < 0.5 * before
    assert all(torch.isfinite(v) for v in row.values())


def test_its_file_is_a_generator_like_any_other(bank, path, humanoid, tmp_path, caplog):
    out = distill(path, bank, humanoid, SMALL, tmp_path)
    student = DiffusionGenerator.load(out, humanoid, blend=0.2, stride=1)
    assert "distilled at blend 0.65, not 0.2" in caplog.text
    assert isinstance(student, Generator)
    teacher = DiffusionGenerator.load(path, humanoid)
    assert student.config.sampling == dataclasses.replace(
        teacher.config.sampling, sampler="few_step", steps=2
    )
    past = bank.clips[:2].time(10, 12)
    anchor = past.root_pos[:, -1]
    request = SampleRequest(
        past=past,
        anchor_pos=anchor,
        anchor_heading=heading_angle(past.root_rot[:, -1]),
        terrain=bank.terrains.index_select(torch.arange(2)),
        target_w=anchor[:, :2] + 2.0,
    )
    calls = []
    denoise = student.denoiser.denoise
    student.denoiser.denoise = lambda x, *rest: calls.append(len(x)) or denoise(x, *rest)
    made = student.sample(request, torch.Generator().manual_seed(0))
    assert calls == [2, 2]  # two evaluations of two windows, one branch
    assert torch.equal(made.time(0, 2).dof, past.dof)
    assert torch.isfinite(made.root_pos).all()


def test_cut_off_and_continued_it_is_the_same(bank, path, humanoid, tmp_path, monkeypatch):
    whole = distill(path, bank, humanoid, SMALL, tmp_path / "whole")
    update = Distiller.update

    def fail(self):
        if self.step == 3:
            raise KeyboardInterrupt
        return update(self)

    monkeypatch.setattr(Distiller, "update", fail)
    with pytest.raises(KeyboardInterrupt):
        distill(path, bank, humanoid, SMALL, tmp_path / "cut")
    monkeypatch.setattr(Distiller, "update", update)
    cut = distill(path, bank, humanoid, SMALL, tmp_path / "cut")
    a, b = load_generator(whole), load_generator(cut)
    assert a.config == b.config
    for name in a.ema:
        assert torch.equal(a.ema[name], b.ema[name]), name
        assert torch.equal(a.model[name], b.model[name]), name


def test_what_does_not_fit_is_refused(bank, path, humanoid, tmp_path):
    distill(path, bank, humanoid, SMALL, tmp_path / "out")
    other = dataclasses.replace(SMALL, depth=4)
    with pytest.raises(InputError, match=r"distill\.depth: is 4"):
        distill(path, bank, humanoid, other, tmp_path / "out")
    file = load_generator(path)
    weights = {k: v + 1 for k, v in file.ema.items()}
    save_generator(dataclasses.replace(file, ema=weights), tmp_path / "other.pt")
    with pytest.raises(InputError, match="another teacher"):
        distill(tmp_path / "other.pt", bank, humanoid, SMALL, tmp_path / "out")
    with pytest.raises(InputError, match="distilled"):
        distill(tmp_path / "out" / "generator.pt", bank, humanoid, SMALL, tmp_path / "again")
    with pytest.raises(InputError, match=r"sampling\.steps"):
        student_config(tiny(), 11)
    with pytest.raises(InputError, match=r"distill\.rewind"):
        distill(path, bank, humanoid, dataclasses.replace(SMALL, rewind=12), tmp_path / "far")
    with pytest.raises(InputError, match=r"distill\.updates"):
        DistillConfig(updates=-1)


def test_a_loss_that_is_not_finite_stops(bank, path, humanoid, tmp_path, monkeypatch):
    def score(self, features, items):
        return features.sum() * torch.nan, {}

    monkeypatch.setattr(module.Distiller, "_score", score)
    with pytest.raises(RuntimeError, match="not finite at step 0"):
        distill(path, bank, humanoid, SMALL, tmp_path)
    assert not (tmp_path / "generator.pt").exists()
