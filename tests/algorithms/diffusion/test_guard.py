from __future__ import annotations

import dataclasses
import io
import struct
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboardX.proto.event_pb2 import Event

from algorithms.diffusion.checkpoint import read_tensors
from algorithms.diffusion.generator import DiffusionGenerator
from algorithms.diffusion.guard import FrozenGuard
from algorithms.diffusion.pictures import HEIGHT, WIDTH, draw_windows
from algorithms.diffusion.probe import motion_energy, probe
from algorithms.diffusion.profiles import tiny
from algorithms.diffusion.train import CHECKPOINT, TrainingDivergedError, train_local
from parc_ray.motion.frames import MotionFrames
from parc_ray.terrain.heightfield import Heightfield, HeightfieldBatch
from tests.algorithms.diffusion.conftest import with_train
from tests.algorithms.diffusion.fakes import walking


def test_energy_by_hand():
    """One joint of two moves 0.1 rad a frame at 30 fps: 9 (rad/s)^2, halved over the joints."""
    dof = torch.zeros(1, 4, 2)
    dof[0, :, 0] = 0.1 * torch.arange(4)
    frames = MotionFrames(
        root_pos=torch.zeros(1, 4, 3),
        root_rot=torch.zeros(1, 4, 4),
        dof=dof,
        contacts=torch.zeros(1, 4, 1),
    )
    assert motion_energy(frames, 30.0) == pytest.approx(4.5)


def test_only_reports_in_a_row_after_samples_have_moved_count():
    guard = FrozenGuard(
        with_train(tiny(), min_energy_ratio=0.1, frozen_reports=2, frozen_after=1000).train
    )
    still, alive = {"sample_energy_ratio": 0.01}, {"sample_energy_ratio": 0.5}
    assert not any(guard.check(step, still) for step in (5, 10, 20, 30))  # a young network
    assert not guard.check(40, alive)
    assert not guard.check(50, still)
    assert not guard.check(60, alive)
    assert not guard.check(70, still)
    assert guard.check(80, still)


def test_samples_that_never_move_count_late():
    cfg = with_train(tiny(), min_energy_ratio=0.1, frozen_reports=2, frozen_after=1000).train
    guard, still = FrozenGuard(cfg), {"sample_energy_ratio": 0.01}
    assert not guard.check(1000, still)
    assert not guard.check(1100, still)
    assert guard.check(1200, still)


def test_no_guard_at_zero():
    guard = FrozenGuard(with_train(tiny(), min_energy_ratio=0.0, frozen_reports=1).train)
    assert not guard.check(100, {"sample_energy_ratio": 0.0})


def test_a_training_whose_samples_freeze_stops(tmp_path, humanoid, bank, config, monkeypatch):
    """The real probe, on a network whose weights are held at zero: it answers with the mean."""

    def freeze(self, request, rng):
        window = sample(self, request, rng)
        return dataclasses.replace(window, dof=window.dof[:, :1].expand_as(window.dof))

    sample = DiffusionGenerator.sample
    monkeypatch.setattr(DiffusionGenerator, "sample", freeze)
    config = with_train(
        config, steps=50, report_every=2, min_energy_ratio=0.05, frozen_reports=3, frozen_after=0
    )
    with pytest.raises(TrainingDivergedError, match="energy") as caught:
        train_local(bank, humanoid, config, tmp_path)
    assert "\n" not in str(caught.value)
    assert int(read_tensors(tmp_path / CHECKPOINT, "checkpoint")["step"]) == 6


def test_pictures_reach_the_event_file(tmp_path, humanoid, bank, config):
    train_local(bank, humanoid, with_train(config, pictures=2), tmp_path)
    (path,) = (tmp_path / "tb").iterdir()
    images = [
        (event.step, value.image)
        for event in events(path.read_bytes())
        for value in event.summary.value
        if value.tag == "generator/samples"
    ]
    assert [step for step, _ in images] == [2, 4]
    assert (images[0][1].height, images[0][1].width) == (2 * HEIGHT, WIDTH)
    picture = np.asarray(Image.open(io.BytesIO(images[1][1].encoded_image_string)))
    assert (picture == (200, 60, 80)).all(-1).sum() > 0


def events(content: bytes) -> Iterator[Event]:
    """Records of an event file: length (8 bytes), check (4), event, check (4)."""
    at = 0
    while at < len(content):
        (size,) = struct.unpack("<Q", content[at : at + 8])
        yield Event.FromString(content[at + 12 : at + 12 + size])
        at += size + 16


def test_what_is_drawn(humanoid):
    """Level ground below, a step to the right, and a body on it."""
    past, length = 2, 15
    clips = [walking(humanoid, length, 1.0, 0.4)]
    true = clips[0].map(lambda x: x[None])
    heights = torch.zeros(40, 40)
    heights[28:] = 0.5
    ground = Heightfield(heights=heights, origin=torch.tensor([-8.0, -8.0]))
    terrain = HeightfieldBatch.stack([ground])
    still = true.map(torch.clone)
    still.root_pos = still.root_pos + torch.tensor([0.0, 0.0, 5.0])
    picture = draw_windows(humanoid.skeleton, true, true, terrain, past)
    assert picture.shape == (HEIGHT, WIDTH, 3)
    assert picture.dtype == np.uint8
    earth = (picture == (150, 125, 80)).all(-1).sum(0)
    assert earth[5] < earth[-5]  # the step lies ahead
    drawn = (picture == (200, 60, 80)).all(-1)
    assert 100 < drawn.sum() < 20_000
    away = draw_windows(humanoid.skeleton, still, true, terrain, past)
    assert (away == (200, 60, 80)).all(-1).sum() == 0  # five metres up it is out of the picture
    assert (away == (170, 170, 170)).all(-1).sum() > 100


def test_samples_that_are_not_finite_are_left_out(humanoid):
    true = walking(humanoid, 15, 1.0, 0.0).map(lambda x: x[None])
    broken = true.map(lambda x: torch.full_like(x, float("nan")))
    terrain = HeightfieldBatch.stack([Heightfield.flat((20, 20), cell_size=0.4)])
    picture = draw_windows(humanoid.skeleton, broken, true, terrain, 2)
    assert (picture == (200, 60, 80)).all(-1).sum() == 0


def test_probing_is_repeatable(tmp_path, humanoid, bank, config):
    result = train_local(bank, humanoid, config, tmp_path)
    generator = DiffusionGenerator.load(result.path, humanoid)
    first, second = probe(generator, bank), probe(generator, bank)
    assert first.figures == second.figures
    assert first.made.root_pos.shape == first.true.root_pos.shape
