"""The policy file: round trip, digest, hostile and broken files."""

from __future__ import annotations

import pickle

import pytest
import torch

from algorithms.ppo.networks import NetSpec
from algorithms.ppo.policy import MlpPolicy
from parc_ray.errors import InputError
from parc_ray.protocols import Policy


@pytest.fixture
def policy():
    torch.manual_seed(0)
    made = MlpPolicy(
        NetSpec(obs_dim=7, action_dim=3, hidden=(8,), activation="elu", privileged_dims=2)
    )
    made.normaliser.merge(made.normaliser.sums(5.0 + torch.randn(100, 7)))
    made.notes = {"iteration": 12}
    made.critic_state = {"out.bias": torch.ones(1)}
    return made


def test_round_trip_keeps_actions_notes_critic_and_digest(policy, tmp_path):
    policy.save(tmp_path / "p.pt")
    loaded = MlpPolicy.load(tmp_path / "p.pt")
    obs = torch.randn(11, 7)
    assert isinstance(loaded, Policy)
    assert torch.equal(loaded.act(obs), policy.act(obs))
    assert loaded.notes == {"iteration": 12}
    assert torch.equal(loaded.critic_state["out.bias"], torch.ones(1))
    assert loaded.digest == policy.digest
    assert [p.name for p in tmp_path.iterdir()] == ["p.pt"]  # no temporary file left


def test_actor_does_not_look_at_privileged_numbers(policy):
    obs = torch.randn(4, 7)
    other = obs.clone()
    other[:, 5:] = 99.0
    assert torch.equal(policy.act(obs), policy.act(other))
    assert torch.equal(policy.act(obs), policy.act(obs[:, :5]))


def test_digest_follows_weights_and_statistics_but_not_notes(policy):
    before = policy.digest
    policy.notes = {}
    assert policy.digest == before
    policy.normaliser.mean += 1e-9
    assert policy.digest != before


def test_acting_keeps_no_gradient_and_sampling_follows_its_generator(policy):
    obs = torch.randn(4, 7)
    assert not policy.act(obs).requires_grad
    one = policy.sample(obs, torch.Generator().manual_seed(3))
    two = policy.sample(obs, torch.Generator().manual_seed(3))
    assert torch.equal(one, two)
    assert not torch.equal(one, policy.act(obs))


class Bomb:
    def __reduce__(self):
        return (open, ("/tmp/should-not-exist-ppo", "w"))


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_files_that_are_no_policy_give_one_line(tmp_path):
    cases = {
        "lfs.pt": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        "bomb.pt": pickle.dumps(Bomb()),
        "empty.pt": b"",
        "memo.pt": b"\x80\x02h\x05.",  # of what is not there: KeyError, struct.error, IndexError
        "short.pt": b"\x80\x02J\x01.",
        "stack.pt": b"\x80\x02R.",
    }
    for name, content in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=name) as caught:
            MlpPolicy.load(tmp_path / name)
        assert "\n" not in str(caught.value)
    torch.save({"format": "something else", "version": 1}, tmp_path / "other.pt")
    with pytest.raises(InputError, match="is not a"):
        MlpPolicy.load(tmp_path / "other.pt")
    with pytest.raises(InputError, match="no such file"):
        MlpPolicy.load(tmp_path / "missing.pt")


def test_newer_version_and_misfit_tensors_are_refused(policy, tmp_path):
    policy.save(tmp_path / "p.pt")
    payload = torch.load(tmp_path / "p.pt", weights_only=True)
    torch.save(payload | {"version": 99}, tmp_path / "new.pt")
    with pytest.raises(InputError, match="newer"):
        MlpPolicy.load(tmp_path / "new.pt")
    payload["tensors"]["actor.out.weight"] = torch.zeros(9, 9)
    torch.save(payload, tmp_path / "misfit.pt")
    with pytest.raises(InputError, match="does not fit"):
        MlpPolicy.load(tmp_path / "misfit.pt")
