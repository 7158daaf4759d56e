"""``parc import-model`` on a network built from PyTorch's own parts, with names of its own."""

from __future__ import annotations

import json
import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
import yaml
from torch import nn

from algorithms.diffusion.conditions import Conditions
from algorithms.diffusion.generator import DiffusionGenerator
from parc_ray import cli

FEATURES, FRAMES, WIDTH = 91, 15, 256


class Published(nn.Module):
    """The published network as its sizes describe it: 82 tokens, post-norm encoder, MLPs."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [(1, 32, 5), (32, 32, 5), (32, 32, 5), (32, 64, 4)]
        layers: list[nn.Module] = []
        for inputs, outputs, kernel in sizes:
            layers += [nn.Conv2d(inputs, outputs, kernel), nn.LeakyReLU(0.01)]
        self._cnn = nn.Sequential(*layers)
        self._patch_layer = nn.Linear(64 * 4, WIDTH)
        self._goal_mlp = nn.Sequential(nn.Linear(2, 512), nn.SiLU(), nn.Linear(512, WIDTH))
        self._flag = nn.Embedding(2, WIDTH)
        self._t_mlp = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self._in = nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self._out = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, FEATURES))
        layer = nn.TransformerEncoderLayer(
            WIDTH, 8, WIDTH, 0.1, activation="gelu", batch_first=True
        )
        self._transformer_encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.register_buffer("_sines", sines(82, WIDTH))

    def forward(self, x, t, heights, target, clean):
        pixels = self._cnn((heights.clamp(-3, 3) / 3)[:, None])
        patches = F.unfold(pixels, kernel_size=2, stride=2).transpose(1, 2)
        tokens = torch.cat(
            [
                self._t_mlp(self._sines[t])[:, None],
                self._patch_layer(patches),
                self._goal_mlp(target)[:, None],
                self._flag(clean.long())[:, None],
                self._in(x),
            ],
            dim=1,
        )
        return self._out(self._transformer_encoder(tokens + self._sines))[:, -FRAMES:]


def sines(length: int, width: int) -> torch.Tensor:
    table = torch.zeros(length, width)
    for k in range(width // 2):
        rate = 10_000.0 ** (-2 * k / width)
        for position in range(length):
            table[position, 2 * k] = math.sin(position * rate)
            table[position, 2 * k + 1] = math.cos(position * rate)
    return table


@pytest.fixture(scope="module")
def network() -> Published:
    torch.manual_seed(11)
    net = Published().eval()
    assert sum(p.numel() for p in net.parameters()) == 2_177_307
    return net


@pytest.fixture
def stats(tmp_path):
    path = tmp_path / "stats.yaml"
    mean, std = torch.randn(FRAMES, FEATURES), 0.5 + torch.rand(FRAMES, FEATURES)
    path.write_text(yaml.safe_dump({"feature_mean": mean.tolist(), "feature_std": std.tolist()}))
    return path, mean, std


def call(capsys, *argv, code: int = 0) -> str:
    with pytest.raises(SystemExit) as caught:
        cli.main(["import-model", *(str(a) for a in argv)])
    output = capsys.readouterr()
    assert caught.value.code == code, output.err
    return output.out if code == 0 else output.err


def refused(capsys, out, *argv) -> str:
    """The one line of a refusal, after which there is no file."""
    message = call(capsys, *argv, "--out", out, code=2)
    assert message.strip().count("\n") == 0
    assert not out.exists()
    return message


def test_predictions_are_the_published_networks(tmp_path, capsys, humanoid, network, stats):
    """Oracle: PyTorch's own encoder, given the same weights."""
    source, out = tmp_path / "model_50000.pkl", tmp_path / "generator.pt"
    moved = {k: v + 0.01 for k, v in network.state_dict().items()}
    optimizer = torch.optim.AdamW(network.parameters()).state_dict()
    content = {"model": network.state_dict(), "ema_model": moved, "optim": optimizer, "epoch": 5}
    torch.save(content, source)
    path, mean, std = stats
    text = call(capsys, source, "--out", out, "--stats", path)
    assert "2177307 parameters" in text
    assert "averaged weights: yes" in text
    assert "unverified" in text
    generator = DiffusionGenerator.load(out, humanoid)
    torch.testing.assert_close(generator.stats.mean, mean)
    torch.testing.assert_close(generator.stats.std, std)
    n = 3
    x, t = torch.randn(n, FRAMES, FEATURES), torch.tensor([0, 7, 20])
    heights, target = 2 * torch.randn(n, 31, 31), torch.randn(n, 2)
    clean, yes = torch.tensor([True, False, True]), torch.ones(n, dtype=torch.bool)
    cond = Conditions(heights, target, clean, yes, yes, yes)
    generator.denoiser.load_state_dict(generator.file.model)
    with torch.no_grad():
        expected = network(x, t, heights, target, clean)
        found = generator.denoiser(x, t, cond)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    shift = generator.file.ema["frames_in.0.weight"] - generator.file.model["frames_in.0.weight"]
    torch.testing.assert_close(shift, torch.full_like(shift, 0.01), rtol=1e-4, atol=1e-6)


def test_bare_weights_with_statistics_inside(tmp_path, capsys, humanoid, network, stats):
    _, mean, std = stats
    content = {**network.state_dict(), "features.mean": mean, "features.std": std}
    torch.save(content, tmp_path / "bare.pt")
    text = call(capsys, tmp_path / "bare.pt", "--out", tmp_path / "generator.pt")
    assert "averaged weights: no" in text
    assert DiffusionGenerator.load(tmp_path / "generator.pt", humanoid).file.step == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.pop("_flag.weight"), "indicator.weight"),
        (lambda s: s.pop("_transformer_encoder.layers.2.norm1.bias"), "layers.2.norm1.bias"),
        (lambda s: s.update({"_extra.weight": torch.zeros(3, 3, 3)}), "_extra.weight"),
        (
            lambda s: s.update({"_transformer_encoder.layers.0.linear1.weight": torch.zeros(9, 9)}),
            r"linear1.weight has shape (9, 9); (256, 256)",
        ),
        (lambda s: s.update({"_cnn.0.weight": torch.zeros(32, 3, 5, 5)}), "_cnn.0.weight"),
    ],
)
def test_wrong_weights_are_named(tmp_path, capsys, network, stats, change, words):
    state = dict(network.state_dict())
    change(state)
    torch.save(state, tmp_path / "bad.pt")
    message = refused(capsys, tmp_path / "out.pt", tmp_path / "bad.pt", "--stats", stats[0])
    assert words in message


def test_other_sizes_and_missing_statistics(tmp_path, capsys, network, stats):
    source, out = tmp_path / "m.pt", tmp_path / "out.pt"
    torch.save(network.state_dict(), source)
    assert "profile" in refused(capsys, out, source, "--profile", "paper", "--stats", stats[0])
    assert "--stats" in refused(capsys, out, source)
    (tmp_path / "empty.yaml").write_text("mean: [1, 2]\n")
    assert "15 x 91" in refused(capsys, out, source, "--stats", tmp_path / "empty.yaml")
    assert "cannot be read" in refused(capsys, out, source, "--stats", tmp_path / "none.yaml")


def test_a_map_decides_where_parts_are_not_unmistakable(tmp_path, capsys, humanoid, network, stats):
    """Flat names without modules: nothing but the encoder is recognised, the map does the rest."""
    renamed = {
        k if "layers" in k else k.replace("_patch_layer.", "_patch_layer_").replace(".", "_"): v
        for k, v in network.state_dict().items()
    }
    source, out = tmp_path / "flat.pt", tmp_path / "out.pt"
    torch.save(renamed, source)
    message = refused(capsys, out, source, "--stats", stats[0])
    assert "map" in message
    theirs = {
        "terrain.cnn": "_cnn",
        "target": "_goal_mlp",
        "time": "_t_mlp",
        "frames_in": "_in",
        "frames_out": "_out",
    }
    names = {"indicator.weight": "_flag_weight"}
    for kind in ("weight", "bias"):
        names[f"terrain.embed.{kind}"] = f"_patch_layer_{kind}"
        for ours, other in theirs.items():
            for i in (0, 2, 4, 6) if ours == "terrain.cnn" else (0, 2):
                names[f"{ours}.{i}.{kind}"] = f"{other}_{i}_{kind}"
    (tmp_path / "map.json").write_text(json.dumps(names))
    call(capsys, source, "--out", out, "--stats", stats[0], "--map", tmp_path / "map.json")
    generator = DiffusionGenerator.load(out, humanoid)
    assert torch.equal(
        generator.file.model["terrain.embed.weight"], network.state_dict()["_patch_layer.weight"]
    )
    (tmp_path / "map.json").write_text(json.dumps({"nonsense": "_in_0_weight"}))
    refused(capsys, tmp_path / "b.pt", source, "--stats", stats[0], "--map", tmp_path / "map.json")


def test_files_that_run_code_or_are_none_are_refused(tmp_path, capsys, network):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "evil"), "w"))

    torch.save({"model": Evil()}, tmp_path / "evil.pt")
    assert "published generator" in refused(capsys, tmp_path / "o.pt", tmp_path / "evil.pt")
    assert not (tmp_path / "evil").exists()
    assert "no such" in refused(capsys, tmp_path / "o.pt", tmp_path / "missing.pt")
    torch.save({"a": torch.zeros(3)}, tmp_path / "none.pt")
    assert "encoder" in refused(capsys, tmp_path / "o.pt", tmp_path / "none.pt")


def test_nothing_is_written_over(tmp_path, capsys, network):
    (tmp_path / "out.pt").write_text("mine")
    message = call(capsys, tmp_path / "m.pt", "--out", tmp_path / "out.pt", code=2)
    assert "exists" in message
    assert (tmp_path / "out.pt").read_text() == "mine"
