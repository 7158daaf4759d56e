from __future__ import annotations

import dataclasses
import pickle

import pytest
import torch

from algorithms.diffusion.checkpoint import load_generator
from algorithms.diffusion.generator import DiffusionGenerator
from algorithms.diffusion.profiles import tiny
from algorithms.diffusion.train import train_local
from parc_ray.character.rotations import heading_angle
from parc_ray.errors import InputError
from parc_ray.protocols import Generator, SampleRequest
from tests.algorithms.diffusion.conftest import with_train

N = 3


@pytest.fixture(scope="module")
def path(tmp_path_factory, humanoid, bank):
    config = with_train(tiny(), steps=30, batch_size=16, stat_windows=128)
    return train_local(bank, humanoid, config, tmp_path_factory.mktemp("generator")).path


@pytest.fixture
def generator(path, humanoid) -> DiffusionGenerator:
    return DiffusionGenerator.load(path, humanoid)


@pytest.fixture
def request_(bank) -> SampleRequest:
    past = bank.clips[:N].time(10, 12)
    anchor = past.root_pos[:, -1]
    return SampleRequest(
        past=past,
        anchor_pos=anchor,
        anchor_heading=heading_angle(past.root_rot[:, -1]),
        terrain=bank.terrains.index_select(torch.arange(N)),
        target_w=anchor[:, :2] + 2.0,
    )


def sample(generator, request, seed=0):
    return generator.sample(request, torch.Generator().manual_seed(seed))


def assert_equal(a, b):
    for name in ("root_pos", "root_rot", "dof", "contacts"):
        assert torch.equal(getattr(a, name), getattr(b, name)), name


def test_fulfils_the_protocol(generator):
    assert isinstance(generator, Generator)
    assert (generator.num_frames, generator.num_past, generator.fps) == (15, 2, 30.0)


def test_given_frames_come_back(generator, request_):
    out = sample(generator, request_)
    assert out.num_frames == 15
    assert_equal(out.time(0, 2), request_.past)
    assert torch.isfinite(out.dof).all()
    assert float(out.contacts.min()) >= 0
    assert float(out.contacts.max()) <= 1


def test_save_and_load_sample_the_same(generator, request_, humanoid, tmp_path):
    generator.save(tmp_path / "copy.pt")
    copy = DiffusionGenerator.load(tmp_path / "copy.pt", humanoid)
    assert_equal(sample(generator, request_), sample(copy, request_))
    assert not torch.equal(sample(copy, request_, 1).dof, sample(copy, request_, 0).dof)


def test_samples_move_with_the_world(generator, request_):
    """Shift everything by (10, -20, 5) m: the same motion, shifted."""
    shift = torch.tensor([10.0, -20.0, 5.0])
    past = request_.past.clone()
    past.root_pos = past.root_pos + shift
    ground = request_.terrain
    moved = SampleRequest(
        past=past,
        anchor_pos=request_.anchor_pos + shift,
        anchor_heading=request_.anchor_heading,
        terrain=type(ground)(
            heights=ground.heights + shift[2],
            origin=ground.origin + shift[:2],
            size=ground.size,
            cell_size=ground.cell_size,
        ),
        target_w=request_.target_w + shift[:2],
    )
    here, there = sample(generator, request_), sample(generator, moved)
    torch.testing.assert_close(here.root_pos + shift, there.root_pos, rtol=0, atol=1e-3)
    torch.testing.assert_close(here.dof, there.dof, rtol=0, atol=1e-2)


def test_first_window_stands_at_the_anchor(generator, request_):
    request_.past = None
    request_.anchor_heading = torch.tensor([0.3, -2.0, 3.0])
    out = sample(generator, request_)
    torch.testing.assert_close(out.root_pos[:, 1], request_.anchor_pos, rtol=0, atol=1e-3)
    turned = heading_angle(out.root_rot[:, 1]) - request_.anchor_heading
    assert float(turned.sin().abs().max()) < 0.2


def test_averaged_weights_are_the_ones_used(generator, path):
    file = load_generator(path)
    for name, value in generator.denoiser.state_dict().items():
        assert torch.equal(value, file.ema[name])
    assert any(not torch.equal(file.ema[k], file.model[k]) for k in file.ema)


def test_blend_and_stride_can_be_chosen(path, humanoid, request_):
    full = DiffusionGenerator.load(path, humanoid, blend=1.0, stride=2)
    assert (full.config.sampling.blend, full.config.sampling.stride) == (1.0, 2)
    assert sample(full, request_).num_frames == 15
    with pytest.raises(InputError, match="stride"):
        DiffusionGenerator.load(path, humanoid, stride=3)


def test_wrong_number_of_past_frames(generator, request_):
    request_.past = request_.past.time(0, 1)
    with pytest.raises(ValueError, match="1 frames"):
        sample(generator, request_)


def test_files_that_are_no_generators(tmp_path, humanoid, path):
    with pytest.raises(InputError, match="no such"):
        DiffusionGenerator.load(tmp_path / "missing.pt", humanoid)
    (tmp_path / "text.pt").write_text("hello")
    with pytest.raises(InputError, match=r"text\.pt"):
        DiffusionGenerator.load(tmp_path / "text.pt", humanoid)
    torch.save({"header": "{}"}, tmp_path / "other.pt")
    with pytest.raises(InputError, match=r"other\.pt"):
        DiffusionGenerator.load(tmp_path / "other.pt", humanoid)
    (tmp_path / "cut.pt").write_bytes(path.read_bytes()[:5000])
    with pytest.raises(InputError, match=r"cut\.pt"):
        DiffusionGenerator.load(tmp_path / "cut.pt", humanoid)


class Hostile:
    def __init__(self, target):
        self.target = str(target)

    def __reduce__(self):
        return (open, (self.target, "w"))


def test_a_file_cannot_run_code(tmp_path, humanoid):
    target = tmp_path / "written"
    torch.save({"header": Hostile(target)}, tmp_path / "hostile.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Hostile(target)))
    (tmp_path / "short.pt").write_bytes(b"\x80\x02J\x01.")
    (tmp_path / "stack.pt").write_bytes(b"\x80\x02R.")
    for name in ("hostile.pt", "plain.pt", "short.pt", "stack.pt"):
        with pytest.raises(InputError, match=name):
            DiffusionGenerator.load(tmp_path / name, humanoid)
    assert not target.exists()


def test_another_blend_keeps_its_schedule(generator, humanoid, tmp_path):
    """An iteration's s replaces the first value; how s changes stays as trained."""
    sampling = dataclasses.replace(generator.config.sampling, blend_end=0.1, blend_fade=3)
    generator.config = dataclasses.replace(generator.config, sampling=sampling)
    generator.save(tmp_path / "generator.pt")
    again = DiffusionGenerator.load(tmp_path / "generator.pt", humanoid, blend=0.4)
    assert again.config.sampling == dataclasses.replace(sampling, blend=0.4)
