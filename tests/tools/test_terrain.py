"""``parc terrain``: families and files become maps and pictures; wrong words are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from parc_ray.errors import InputError
from parc_ray.evaluation.terrain_pictures import draw_terrain
from parc_ray.terrain.files import content_hash, load_map
from parc_ray.terrain.generators import TerrainSpec, make_terrain
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.tools import terrain as tool


def test_a_family_becomes_a_map_and_a_picture(tmp_path, capsys):
    out, picture = tmp_path / "gaps.npz", tmp_path / "gaps.png"
    words = ["gaps", "--cells", "20", "24", "--seed", "3", "--difficulty", "0.5"]
    words += ["--set", "gaps.width_m=[1.0, 1.2]", "--out", str(out), "--picture", str(picture)]
    tool.run(words)
    gaps = TerrainSpec().gaps.__class__(width_m=(1.0, 1.2))
    spec = TerrainSpec(kind="gaps", cells=(20, 24), difficulty=0.5, gaps=gaps)
    expected = make_terrain(spec, np.random.default_rng(3))
    assert torch.equal(load_map(out).terrain.heights, expected.heights)
    printed = capsys.readouterr().out
    assert "20 x 24 cells of 0.4 m" in printed
    assert content_hash(out) in printed
    assert picture.stat().st_size < 60_000
    with Image.open(picture) as image:
        assert len(np.unique(np.array(image.convert("RGB")).reshape(-1, 3), axis=0)) > 20
    tool.run([str(out), "--cell-size", "0.8", "--out", str(tmp_path / "coarse.npz")])
    assert load_map(tmp_path / "coarse.npz").terrain.shape == (10, 12)


def test_a_file_becomes_a_map(tmp_path, capsys):
    np.save(tmp_path / "hill.npy", np.full((30, 20), 100.0))
    words = [str(tmp_path / "hill.npy"), "--pixel-size", "0.2", "0.4", "--out"]
    tool.run([*words, str(tmp_path / "hill.npz")])
    held = load_map(tmp_path / "hill.npz")
    assert held.terrain.shape == (15, 20)
    assert "lowered by 100.000 m" in capsys.readouterr().out


def test_pictures_mark_what_cannot_be_reached():
    heights = torch.zeros(8, 8)
    heights[2:4, 5:8] = 5.0
    ground = Heightfield(heights=heights, origin=torch.zeros(2))
    plain = draw_terrain(ground, "m")
    marked = draw_terrain(ground, "m", heights.numpy() < 1.0)
    assert "out of reach" not in plain.axes[0].get_title()
    assert "red: 9.4 % out of reach" in marked.axes[0].get_title()
    colours = [f.axes[0].collections[0].get_facecolor() for f in (plain, marked)]
    red = [((c[:, 0] > 1.5 * c[:, 1]) & (c[:, 0] > 1.5 * c[:, 2])).sum() for c in colours]
    # Six tops, the sides of three along x and of two along y.
    assert red == [0, 6 + 3 + 2]


def test_wrong_words_are_refused_and_nothing_is_written(tmp_path):
    out = str(tmp_path / "m.npz")
    np.save(tmp_path / "a.npy", np.zeros((9, 9)))
    array = str(tmp_path / "a.npy")
    (tmp_path / "there.npz").write_text("x")
    for words, name in (
        (["mountains", "--out", out], "neither a family nor a file"),
        (["gaps", "--unit", "m", "--out", out], "--unit"),
        ([array, "--seed", "3", "--out", out], "--seed"),
        ([array, "--out", out], "--pixel-size"),
        ([array, "--pixel-size", "1", "1", "1", "--out", out], "--pixel-size"),
        (["gaps", "--out", str(tmp_path / "m.parquet")], r"\.npz"),
        (["gaps", "--out", str(tmp_path / "there.npz")], "never written over"),
        (["gaps", "--out", str(tmp_path / "no" / "m.npz")], "no directory"),
        (["gaps", "--picture", str(tmp_path / "no" / "m.png")], "--picture"),
        (["gaps", "--cells", "300", "300", "--picture", str(tmp_path / "m.png")], "--picture"),
        (["gaps", "--set", "gaps.width=[1, 2]", "--out", out], "width_m"),
        (["gaps", "--set", "gap.width_m=[1, 2]", "--out", out], "'gap' is no section"),
        (["gaps", "--set", "gaps.width_m", "--out", out], "FIELD=VALUE"),
        (["gaps", "--set", "gaps.width_m=[2, 1]", "--out", out], "gaps.width_m"),
        (["gaps", "--difficulty", "-1", "--out", out], "difficulty"),
        (["file", "--out", out], "terrain.file.path"),
    ):
        with pytest.raises(InputError, match=name) as caught:
            tool.run(words)
        assert "\n" not in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.npy", "there.npz"]
