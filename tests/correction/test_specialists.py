from __future__ import annotations

import pytest
import torch

from algorithms.ppo.networks import NetSpec
from algorithms.ppo.policy import MlpPolicy
from envs.tracking.config import TrackingConfig
from envs.tracking.env import VectorTrackingEnv
from parc_ray.correction.specialists import DistilConfig, distil, expert_actions
from parc_ray.correction.teacher import Fit
from parc_ray.errors import InputError
from tests.envs.helpers import stand_clip, sway_clip

SHORT = DistilConfig(rounds=3, steps=10, noise=0.05, fit=Fit(epochs=40, batch=64, lr=3e-3))


@pytest.fixture
def env(humanoid):
    clips = [sway_clip(humanoid), stand_clip(humanoid)]
    made = VectorTrackingEnv(humanoid, clips, 12, TrackingConfig(), seed=3)
    yield made
    made.close()


def spec_of(env) -> NetSpec:
    return NetSpec(obs_dim=env.obs_dim, action_dim=env.action_dim, hidden=(32,), activation="silu")


def constant(spec: NetSpec, value: float) -> MlpPolicy:
    """Always the same action."""
    policy = MlpPolicy(spec)
    torch.nn.init.zeros_(policy.actor.out.weight)
    torch.nn.init.constant_(policy.actor.out.bias, value)
    return policy.eval()


def test_each_environment_asks_the_specialist_of_its_clip(env):
    spec = spec_of(env)
    experts = [constant(spec, 0.2), constant(spec, -0.1)]
    clip = torch.tensor([1, 0, 0, 1])
    found = expert_actions(experts, clip, torch.zeros(4, env.obs_dim))
    assert found[:, 0].tolist() == pytest.approx([-0.1, 0.2, 0.2, -0.1])


def test_the_student_does_what_each_specialist_does_on_its_clip(env):
    spec = spec_of(env)
    experts = [constant(spec, 0.3), constant(spec, -0.3)]
    student, figures = distil(env, experts, spec, SHORT, seed=0)
    assert figures["rounds"] == 3
    assert figures["pairs"] == 3 * 10 * env.num_envs
    assert figures["explained"] > 0.8  # of states that it brought about and had not learned
    obs = env.observe()
    wanted = expert_actions(experts, env.clip, obs)
    assert float((student.act(obs) - wanted).abs().mean()) < 0.1
    assert set(env.clip.tolist()) == {0, 1}


def test_without_mixing_the_student_acts_from_the_second_round_on(env, monkeypatch):
    """Actions that the environment gets: the specialist's first, the untaught student's later."""
    spec = spec_of(env)
    taken = []
    step = env.step

    def watched(action):
        taken.append(action[:, 0].clone())
        return step(action)

    monkeypatch.setattr(env, "step", watched)
    config = DistilConfig(
        rounds=2, steps=2, mixing=0.0, noise=0.0, fit=Fit(epochs=1, batch=64, lr=1e-12)
    )
    distil(env, [constant(spec, 0.5), constant(spec, 0.5)], spec, config, seed=0)
    first, second = torch.cat(taken[:2]), torch.cat(taken[2:])
    assert torch.allclose(first, torch.full_like(first, 0.5))
    assert float((second - 0.5).abs().min()) > 0.05


def test_equal_seeds_make_equal_students(humanoid):
    digests = []
    for _ in range(2):
        env = VectorTrackingEnv(humanoid, [sway_clip(humanoid)], 6, TrackingConfig(), seed=3)
        spec = spec_of(env)
        student, _ = distil(env, [constant(spec, 0.1)], spec, SHORT, seed=4)
        digests.append(student.digest)
        env.close()
    assert digests[0] == digests[1]


def test_specialists_that_do_not_fit_are_refused(env):
    spec = spec_of(env)
    with pytest.raises(InputError, match="1 policies for 2 clips"):
        distil(env, [constant(spec, 0.0)], spec, SHORT, seed=0)
    other = NetSpec(obs_dim=7, action_dim=env.action_dim, hidden=(4,), activation="silu")
    with pytest.raises(InputError, match="policy 1 has"):
        distil(env, [constant(spec, 0.0), constant(other, 0.0)], spec, SHORT, seed=0)


@pytest.mark.parametrize("values", [{"rounds": 0}, {"mixing": 1.5}, {"noise": -1.0}], ids=str)
def test_ranges(values):
    with pytest.raises(InputError, match="distil"):
        DistilConfig(**values)
