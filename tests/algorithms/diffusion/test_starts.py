from __future__ import annotations

import dataclasses

import pytest
import torch

from algorithms.diffusion.config import DiffusionConfig, SamplingConfig
from algorithms.diffusion.generator import DiffusionGenerator
from algorithms.diffusion.starts import collect_starts
from algorithms.diffusion.train import train_local
from parc_ray.character.rotations import heading_angle, wrap_angle
from parc_ray.errors import InputError
from parc_ray.motion.features import FeatureLayout
from parc_ray.protocols import SampleRequest
from parc_ray.terrain.heightfield import Heightfield, HeightfieldBatch
from tests.algorithms.diffusion.conftest import with_train
from tests.algorithms.diffusion.fakes import FakeBank, make_bank

N = 6


def from_data(config: DiffusionConfig) -> DiffusionConfig:
    sampling = dataclasses.replace(config.sampling, start="data")
    return dataclasses.replace(with_train(config, start_windows=16), sampling=sampling)


def request(height: float, heading: torch.Tensor) -> SampleRequest:
    """Start at (1, 2) on level ground of a height, below an anchor that hangs high up."""
    ground = Heightfield(heights=torch.full((20, 20), height), origin=torch.tensor([-3.0, -2.0]))
    anchor = torch.tensor([1.0, 2.0, height + 5.0]).expand(N, 3)
    return SampleRequest(
        past=None,
        anchor_pos=anchor,
        anchor_heading=heading,
        terrain=HeightfieldBatch.stack([ground] * N),
        target_w=anchor[:, :2] + 2.0,
    )


def test_starts_stand_where_the_data_stood(humanoid, bank, config):
    """The made-up bank glides 0.9 m above ground 0; its feet touch in half of its frames."""
    starts = collect_starts(bank, humanoid, from_data(config))
    layout = FeatureLayout(humanoid.skeleton)
    assert starts.features.shape == (16, config.num_past, layout.size)
    level = starts.clearance > 0.89  # the other starts lie on the bank's raised half
    torch.testing.assert_close(starts.clearance[level], torch.full((int(level.sum()),), 0.9))
    feet = [layout.contacts.start + b for b in humanoid.feet]
    assert bool((starts.features[:, 1, feet].amax(dim=-1) >= 0.5).all())
    again = collect_starts(bank, humanoid, from_data(config))
    assert torch.equal(starts.features, again.features)


def test_data_without_level_ground_is_refused(humanoid, config):
    bank = make_bank(humanoid)
    steep = Heightfield(heights=torch.arange(576.0).reshape(24, 24), origin=torch.zeros(2) - 3)
    rough = FakeBank.__new__(FakeBank)
    rough.clips, rough.terrains = bank.clips, HeightfieldBatch.stack([steep] * 3)
    with pytest.raises(InputError, match="start_windows"):
        collect_starts(rough, humanoid, from_data(config))


def test_first_window_begins_with_the_data(tmp_path, humanoid, bank, config):
    path = train_local(bank, humanoid, from_data(config), tmp_path).path
    generator = DiffusionGenerator.load(path, humanoid)
    starts = generator.file.starts
    assert starts is not None
    heading = torch.linspace(-2.0, 2.0, N)
    low, high = (
        generator.sample(request(h, heading), torch.Generator().manual_seed(4)) for h in (0.0, 1.5)
    )
    root = low.root_pos[:, 1]
    torch.testing.assert_close(root[:, :2], torch.tensor([[1.0, 2.0]]).expand(N, 2))
    turned = wrap_angle(heading_angle(low.root_rot[:, 1]) - heading)
    assert turned.abs().max() < 1e-5
    known = {round(float(c), 4) for c in starts.clearance}
    assert {round(float(z), 4) for z in root[:, 2]} <= known
    dof = FeatureLayout(humanoid.skeleton).dof
    distance = torch.cdist(low.dof[:, :2].flatten(1), starts.features[..., dof].flatten(1))
    assert distance.amin(dim=1).max() < 1e-5
    lift = torch.tensor([0.0, 0.0, 1.5])
    torch.testing.assert_close(high.root_pos, low.root_pos + lift, atol=1e-4, rtol=0)


def test_a_file_without_starts_says_so(tmp_path, humanoid, bank, config):
    path = train_local(bank, humanoid, config, tmp_path).path
    generator = DiffusionGenerator.load(path, humanoid)
    sampling = dataclasses.replace(config.sampling, start="data")
    generator.config = dataclasses.replace(
        with_train(generator.config, start_windows=1), sampling=sampling
    )
    with pytest.raises(InputError, match="holds no starts"):
        generator.sample(request(0.0, torch.zeros(N)), torch.Generator())


def test_config_demands_kept_windows():
    with pytest.raises(InputError, match=r"sampling\.start"):
        DiffusionConfig(sampling=SamplingConfig(start="data"))
