"""``parc import-model --kind tracker`` on networks built from PyTorch's own parts."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
import torch
from torch import nn

from algorithms.ppo.policy import MlpPolicy
from parc_ray import cli

OBS, ACTIONS = 1312, 28
RAW = [(766, 1312)]  # contacts and heights


class Statistics(nn.Module):
    def __init__(self, size: int, mean: torch.Tensor, std: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("_count", torch.tensor(300_000_000))
        self.register_buffer("_mean", mean)
        self.register_buffer("_std", std)


def layers(inputs: int) -> nn.Sequential:
    sizes, parts = (inputs, 2048, 1024, 512), []
    for a, b in pairwise(sizes):
        parts += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*parts)


class Published(nn.Module):
    """Actor, critic and normalisers in the sizes of the published code."""

    def __init__(self, offset: torch.Tensor, scale: torch.Tensor) -> None:
        super().__init__()
        mean, std = torch.randn(OBS), 0.5 + torch.rand(OBS)
        for start, stop in RAW:
            mean[start:stop], std[start:stop] = 0.0, 1.0
        self._obs_norm = Statistics(OBS, mean, std)
        self._a_norm = Statistics(ACTIONS, offset, scale)
        self._model = nn.Module()
        self._model._actor_layers = layers(OBS)
        self._model._action_dist = nn.Module()
        self._model._action_dist._mean_net = nn.Linear(512, ACTIONS)
        self._model._critic_layers = layers(OBS)
        self._model._critic_out = nn.Linear(512, 1)

    def normalised(self, obs: torch.Tensor) -> torch.Tensor:
        out = (obs - self._obs_norm._mean) / self._obs_norm._std
        return torch.cat((out[:, :766].clamp(-10, 10), out[:, 766:]), dim=-1)

    def act(self, obs: torch.Tensor) -> torch.Tensor:
        features = self._model._actor_layers(self.normalised(obs))
        return self._model._action_dist._mean_net(features)

    def value(self, obs: torch.Tensor) -> torch.Tensor:
        return self._model._critic_out(self._model._critic_layers(self.normalised(obs)))


@pytest.fixture(scope="module")
def network(humanoid) -> Published:
    torch.manual_seed(5)
    net = Published(humanoid.action_offset, humanoid.action_scale)
    count = sum(p.numel() for p in net.parameters())
    assert count == pytest.approx(10.64e6, rel=0.01)  # 10.64 million in the published code
    return net


def call(capsys, *argv, code: int = 0) -> str:
    with pytest.raises(SystemExit) as caught:
        cli.main(["import-model", "--kind", "tracker", *(str(a) for a in argv)])
    output = capsys.readouterr()
    assert caught.value.code == code, output.err
    return output.out if code == 0 else output.err


def test_actions_and_values_are_the_published_networks(tmp_path, capsys, network):
    """Oracle: PyTorch's own layers with the same weights."""
    torch.save(network.state_dict(), tmp_path / "model.pt")
    text = call(capsys, tmp_path / "model.pt", "--out", tmp_path / "policy.pt")
    assert "unverified" in text
    assert "range of actions is ours" in text
    policy = MlpPolicy.load(tmp_path / "policy.pt")
    obs = 3 * torch.randn(5, OBS)
    with torch.no_grad():
        torch.testing.assert_close(policy.act(obs), network.act(obs), atol=1e-4, rtol=1e-3)
        critic = type(policy.actor)(policy.spec, OBS, 1)
        critic.load_state_dict(policy.critic_state)
        value = critic(policy.normaliser(obs))
        torch.testing.assert_close(value, network.value(obs), atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(policy.log_std.exp(), torch.full((ACTIONS,), 0.05))
    assert policy.notes["verified"] is False


def test_a_map_names_what_is_not_recognised(tmp_path, capsys, network):
    state = {k.replace("_actor_layers", "pi").replace("_critic", "v"): v
             for k, v in network.state_dict().items()}  # fmt: skip
    torch.save(state, tmp_path / "m.pt")
    message = call(capsys, tmp_path / "m.pt", "--out", tmp_path / "p.pt", code=2)
    assert "actor.trunk.layers.0.weight" in message
    assert message.strip().count("\n") == 0
    names = {}
    for head, other in (("actor", "pi"), ("critic", "v_layers")):
        for k in range(3):
            for kind in ("weight", "bias"):
                names[f"{head}.trunk.layers.{k}.{kind}"] = f"_model.{other}.{2 * k}.{kind}"
    (tmp_path / "names.json").write_text(json.dumps(names))
    call(capsys, tmp_path / "m.pt", "--out", tmp_path / "p.pt", "--map", tmp_path / "names.json")
    obs = torch.randn(2, OBS)
    with torch.no_grad():
        got = MlpPolicy.load(tmp_path / "p.pt").act(obs)
        torch.testing.assert_close(got, network.act(obs), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.pop("_model._critic_out.bias"), "critic.out.weight"),
        (lambda s: s.pop("_obs_norm._std"), "normaliser.std"),
        (lambda s: s.update({"_model._actor_layers.0.weight": torch.zeros(9, 9)}), "actor.trunk"),
        (lambda s: s["_a_norm._std"].add_(1.0), "range of actions"),
        (lambda s: s["_obs_norm._mean"].fill_(float("nan")), "not finite"),
    ],
)
def test_wrong_files_are_refused_in_one_line(tmp_path, capsys, network, change, words):
    state = {k: v.clone() for k, v in network.state_dict().items()}
    change(state)
    torch.save(state, tmp_path / "m.pt")
    message = call(capsys, tmp_path / "m.pt", "--out", tmp_path / "p.pt", code=2)
    assert words in message
    assert message.strip().count("\n") == 0
    assert not (tmp_path / "p.pt").exists()
