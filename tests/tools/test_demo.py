"""``parc demo``: maps, way-points, what is written, going on, and wrong words."""

from __future__ import annotations

import csv
import json
import types

import pytest
import torch
from PIL import Image

from algorithms.diffusion.generator import DiffusionGenerator
from algorithms.diffusion.profiles import tiny
from algorithms.diffusion.train import train_local
from parc_ray.data.store import load_dataset
from parc_ray.errors import InputError
from parc_ray.motion.clip import validate_clip
from parc_ray.terrain.files import TerrainMap, save_map
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.terrain.mending import reachable_cells
from parc_ray.tools import demo as tool
from parc_ray.tools.demo_files import DemoFolder
from tests.algorithms.diffusion.conftest import with_train
from tests.algorithms.diffusion.fakes import make_bank
from tests.synthesis.helpers import Glider

SHORT = ["--seconds", "4", "--segment", "1", "--candidates", "4", "--beam", "2"]
SHORT += ["--iterations", "2"]


@pytest.fixture
def glider(humanoid, monkeypatch, tmp_path):
    """A generator that glides to its target stands in for the file ``g.pt``."""
    (tmp_path / "g.pt").write_bytes(b"weights")
    made = Glider(humanoid, speed=3.0)
    load = types.SimpleNamespace(load=lambda *a, **k: made)
    monkeypatch.setattr(tool, "DiffusionGenerator", load)
    monkeypatch.chdir(tmp_path)
    return made


def rows(path):
    with open(path) as file:
        return list(csv.DictReader(file))


def test_chained_skills_become_a_data_set_with_tables_and_a_picture(glider, tmp_path, capsys):
    tool.run(["g.pt", "--preset", "jump_catch", "--out", "d", "--name", "leap", *SHORT])
    manifest, (clip,) = load_dataset(tmp_path / "d")
    assert manifest.name == clip.clip_id == "leap"
    assert clip.provenance.maker == "generate"
    assert clip.provenance.seeds == {"demo": 0}
    assert clip.terrain.upper is not None
    assert clip.path_nodes is not None
    validate_clip(clip, glider.character)
    seconds = rows(tmp_path / "d" / "seconds.csv")
    assert [int(r["second"]) for r in seconds] == list(range(len(seconds)))
    covered = [float(r["progress_m"]) for r in seconds]
    assert covered == sorted(covered)
    seen = "+".join(r["steps"] for r in seconds)
    assert seen.index("jump") < seen.index("climb") < seen.index("drop")
    segments = rows(tmp_path / "d" / "segments.csv")
    assert sum(int(r["frames"]) for r in segments) >= clip.num_frames
    assert all(int(r["candidates"]) == 4 for r in segments)
    report = json.loads((tmp_path / "d" / "demo.json").read_text())
    assert report["finished"] is True
    assert {k: n for k, n in report["steps"].items() if k != "walk"} == {
        "climb": 1,
        "drop": 1,
        "jump": 1,
    }
    assert report["metrics"]["kin_loss_after"] < report["metrics"]["kin_loss_before"]
    picture = tmp_path / "d" / "demo.png"
    assert picture.stat().st_size < 300_000
    with Image.open(picture) as image:
        assert image.size[0] > 900
    printed = capsys.readouterr().out
    assert "arrived" in printed
    assert "1 jump" in printed
    assert not (tmp_path / "d" / "work").exists()
    with pytest.raises(InputError, match="not empty"):
        tool.run(["g.pt", "--preset", "jump_catch", "--out", "d", "--name", "leap", *SHORT])


def test_waypoints_on_a_map_of_a_file(glider, tmp_path):
    terrain = Heightfield.flat((40, 30))
    made = TerrainMap(terrain=terrain, reachable=reachable_cells(terrain.heights.numpy(), 2.1))
    save_map(tmp_path / "m.npz", made)
    words = ["g.pt", "--map", "m.npz", "--waypoints=-6,-4;-6,2;4,2", "--out", "d", *SHORT]
    tool.run([*words, "--seconds", "12"])
    clip = load_dataset(tmp_path / "d")[1][0]
    assert clip.frames.root_pos[-1, :2].tolist() == pytest.approx([4.0, 2.0], abs=1.0)
    corner = (clip.frames.root_pos[:, :2] - torch.tensor([-6.0, 2.0])).norm(dim=-1).min()
    assert float(corner) < 3.0
    # As a straight line to the end would be.
    assert clip.duration_s > 10.0 / 3.0


def test_random_waypoints_depend_on_the_seed_only(glider, tmp_path):
    words = ["g.pt", "--map", "boxes", "--cells", "44", "44", "--random", "3", *SHORT]
    words += ["--seconds", "2"]
    for out, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        tool.run([*words, "--out", out, "--seed", seed])
    nodes = [json.loads((tmp_path / d / "demo.json").read_text())["legs"] for d in "abc"]
    assert nodes[0] == nodes[1] != nodes[2]
    clips = [load_dataset(tmp_path / d)[1][0] for d in "ab"]
    assert torch.equal(clips[0].frames.root_pos, clips[1].frames.root_pos)


def test_it_goes_on_where_it_was_stopped(glider, tmp_path, monkeypatch):
    words = ["g.pt", "--preset", "fall_catch", *SHORT, "--seconds", "3"]
    tool.run([*words, "--out", "whole", "--name", "n"])
    store = type(DemoFolder(tmp_path).store)
    save = store.save

    def stop(self, state):
        save(self, state)
        if len(state.levels) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store, "save", stop)
        with pytest.raises(KeyboardInterrupt):
            tool.run([*words, "--out", "cut", "--name", "n"])
    assert not (tmp_path / "cut" / "manifest.json").exists()
    with pytest.raises(InputError, match="unfinished demonstration of another seed"):
        tool.run([*words, "--out", "cut", "--name", "n", "--seed", "5"])
    calls = len(glider.calls)
    tool.run([*words, "--out", "cut", "--name", "n"])
    assert len(glider.calls) - calls < calls
    a, b = (load_dataset(tmp_path / d)[0] for d in ("whole", "cut"))
    assert a.parts == b.parts  # byte for byte


def test_wrong_words_are_refused_and_nothing_is_written(glider, tmp_path):
    flat = ["--map", "flat", "--cells", "20", "20"]
    for words, name in (
        ([], "give one of them, or a --preset"),
        ([*flat, "--waypoints", "1,1;2"], "number 1, '2', is not X,Y"),
        ([*flat, "--waypoints", "1,1;nan,1"], "number 1"),
        ([*flat, "--waypoints", "1,1;9,1"], "way-point 1: .* off the map"),
        ([*flat, "--waypoints", "1,1"], "at least two"),
        ([*flat, "--random", "1"], "at least 2"),
        ([*flat, "--random", "9", "--waypoints", "1,1;2,2"], "one of them"),
        (["--preset", "tour", "--random", "3"], "--random: does not apply"),
        (["--map", "mountain", "--random", "3"], "neither a family"),
        (["--map", "m.npz", "--cells", "9", "9", "--random", "3"], "--cells"),
        (["--map", "flat", "--cells", "8", "8", "--random", "3"], "no cell is 8 m"),
        ([*flat, "--waypoints", "1,1;3,1", "--seconds", "0"], "DemoConfig.seconds"),
        ([*flat, "--waypoints", "1,1;3,1", "--synthesis.rollout.no_such", "1"], "no_such"),
    ):
        with pytest.raises(InputError, match=name):
            tool.run(["g.pt", *words, "--out", str(tmp_path / "d")])
        assert not (tmp_path / "d").exists(), words
    with pytest.raises(InputError, match=r"none\.pt: cannot be read"):
        tool.run(["none.pt", "--preset", "tour", "--out", str(tmp_path / "d")])
    with pytest.raises(InputError, match="object store"):
        tool.run(["g.pt", "--preset", "jump_catch", "--out", "s3://bucket/d"])


def test_a_generator_that_fails_at_once_is_told(glider, tmp_path):
    glider.nan_after = 0
    glider.speed = 0.0
    with pytest.raises(InputError, match="no candidate came through the first segment in 2 tries"):
        tool.run(["g.pt", "--preset", "jump_catch", "--out", "d", "--retries", "1", *SHORT])


@pytest.mark.slow
def test_a_real_generator_goes_through_the_same_steps(humanoid, tmp_path, capsys):
    """Mechanics only: after 60 steps of training nothing walks."""
    config = with_train(tiny(), steps=60, batch_size=16, stat_windows=128)
    path = train_local(make_bank(humanoid), humanoid, config, tmp_path / "generator").path
    assert DiffusionGenerator.load(path, humanoid, blend=0.5).config.sampling.blend == 0.5
    words = [str(path), "--map", "flat", "--cells", "60", "60", "--waypoints=-6,0;6,0"]
    words += ["--out", str(tmp_path / "d"), *SHORT, "--retries", "2"]
    words += ["--synthesis.rollout.fall_depth_m", "50", "--synthesis.rollout.lost_margin_m", "50"]
    tool.run(words)
    assert "of the path" in capsys.readouterr().out
    manifest, (clip,) = load_dataset(tmp_path / "d")
    validate_clip(clip, humanoid)
    assert manifest.rows == 1
    assert clip.num_frames <= 4 * 30 + 1
    assert (tmp_path / "d" / "demo.png").exists()
