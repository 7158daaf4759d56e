"""Networks in ONNX give torch's numbers to 1e-5 and tell their layout."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("onnx", reason="writes the networks: pip install '.[export]'")
pytest.importorskip("onnxscript", reason="writes the networks: pip install '.[export]'")
pytest.importorskip("onnxruntime", reason="runs the networks: pip install '.[export]'")

import onnx
import onnxruntime

from algorithms.diffusion.conditions import Conditions
from algorithms.diffusion.generator import DiffusionGenerator
from algorithms.diffusion.profiles import profile
from algorithms.diffusion.targets import target_size
from algorithms.ppo.config import ObsBlock
from algorithms.ppo.policy import MlpPolicy
from envs.tracking.config import preset
from parc_ray.deploy.networks import GENERATOR_INPUTS, generator_onnx, policy_onnx
from parc_ray.errors import InputError
from tests.deploy.bundles import make_policy, save_random_generator


def metadata(content):
    model = onnx.load_from_string(content)
    return json.loads({p.key: p.value for p in model.metadata_props}["parc_ray"])


@pytest.mark.parametrize("tracking", ["base", "upstream"])
def test_a_policy_acts_as_in_torch(humanoid, tracking):
    policy, builder = make_policy(humanoid, preset(tracking))
    if tracking == "upstream":  # with a shared encoder for the rows of the targets
        place = builder.layout.slices["targets"]
        count = len(preset(tracking).observation.target_steps)
        block = ObsBlock(
            start=place.start,
            width=(place.stop - place.start) // count,
            count=count,
            hidden=(16, 8),
        )
        policy = MlpPolicy(replace(policy.spec, blocks=(block,), residual=True)).eval()
    content = policy_onnx(policy, builder.layout, {"extra": 1})
    session = onnxruntime.InferenceSession(content)
    size = policy.spec.actor_dim
    for count in (1, 7):
        observation = 3.0 * torch.randn(count, size)
        (found,) = session.run(["action"], {"observation": observation.numpy()})
        np.testing.assert_allclose(found, policy.act(observation).numpy(), atol=1e-5)
    told = metadata(content)
    blocks = [b for b in builder.layout.blocks if not b.critic_only]
    assert [(b["name"], tuple(b["shape"])) for b in told["observation"]] == [
        (b.name, b.shape) for b in blocks
    ]
    slices = builder.layout.slices
    assert all(b["start"] == slices[b["name"]].start for b in told["observation"])
    assert len(told["normaliser"]["mean"]) == size
    assert (told["extra"], told["digest"]) == (1, policy.digest)


def test_a_policy_of_another_layout_is_refused(humanoid):
    policy, _ = make_policy(humanoid, preset("quick"))
    _, builder = make_policy(humanoid, preset("upstream"))
    with pytest.raises(InputError, match="export it with the config it was trained with"):
        policy_onnx(policy, builder.layout, {})


def test_a_generator_predicts_as_in_torch(humanoid, tmp_path):
    config = profile("tiny")
    save_random_generator(tmp_path / "g.pt", humanoid, config)
    generator = DiffusionGenerator.load(tmp_path / "g.pt", humanoid)
    content = generator_onnx(generator, {})
    session = onnxruntime.InferenceSession(content)
    for count in (1, 3):
        flags = {k: torch.rand(count) > 0.4 for k in GENERATOR_INPUTS[4:]}
        window = torch.randn(count, config.num_frames, generator.layout.size)
        level = torch.randint(0, config.diffusion_steps, (count,))
        heights = torch.randn(count, *config.grid.shape)
        target = torch.randn(count, target_size(config.conditioning))
        given = {"window": window, "level": level, "heights": heights, "target": target, **flags}
        clean, features = session.run(
            ["clean", "features"], {k: v.numpy() for k, v in given.items()}
        )
        cond = Conditions(heights=heights, target=target, **flags)
        with torch.no_grad():
            wanted = generator.denoiser(window, level, cond)
        np.testing.assert_allclose(clean, wanted.numpy(), atol=1e-5)
        natural = generator.stats.denormalise(wanted)
        np.testing.assert_allclose(features, natural.numpy(), atol=1e-4)
    told = metadata(content)
    assert (told["frames"], told["past_frames"]) == (config.num_frames, config.num_past)
    assert np.allclose(told["normaliser"]["std"], generator.stats.std)
    assert len(told["alpha_bar"]) == config.diffusion_steps
