"""A corpus of broken and hostile files of every format: a clip or one line, and nothing else."""

from __future__ import annotations

import os
import resource
import shutil
from pathlib import Path

import pytest
import torch

from parc_ray.data.importers import ImportOptions, import_path
from parc_ray.errors import InputError
from parc_ray.motion.clip import validate_clip
from parc_ray.synthesis.terrain_inference import TerrainEstimate
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.tools import import_data
from tests.data.fuzz_seeds import SEEDS
from tests.data.mutations import corpus

COUNT = 220
MEMORY = 2**30
"""Bytes that an import of a small file may take on top of what the process has."""
ANY_LENGTH = ImportOptions(min_frames=2)


def flat(character, frames, fps, loop):
    """A floor, for clips that are thrown away."""
    return TerrainEstimate(terrain=Heightfield.flat((1, 1)), levels=(), foot_levels=(), events=())


@pytest.fixture
def bounded_memory():
    """Whatever takes more than ``MEMORY`` fails with MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def put(folder, content):
    """The files of one case, alone in a directory."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, data in content.items():
        (folder / name).write_bytes(data)


def judge(path, character, label):
    """``read`` or ``refused``; anything else is raised."""
    try:
        clips = import_path(path, character, ANY_LENGTH, infer=flat)
    except InputError as error:
        message = str(error)
        assert "\n" not in message, label
        assert any(f"{path.stem}{end}" in message for end in (path.suffix, ".asf")), (
            label,
            message,
        )
        assert len(message) < 2000, (label, message)
        return "refused"
    for clip in clips:
        validate_clip(clip, character)
        assert bool(torch.isfinite(clip.frames.dof).all()), label
        assert bool(torch.isfinite(clip.terrain.heights).all()), label
    return "read"


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(SEEDS))
def test_a_clip_or_one_line(kind, tmp_path, humanoid, monkeypatch, bounded_memory):
    monkeypatch.chdir(tmp_path)
    seed_file = SEEDS[kind](humanoid)
    outcomes: dict[str, int] = {"read": 0, "refused": 0}
    folder = tmp_path / "case"
    for number, (label, content) in enumerate(corpus(seed_file, COUNT)):
        put(folder, content)
        try:
            outcome = judge(folder / seed_file.name, humanoid, f"{number}: {label}")
        except InputError:
            raise
        except Exception as error:
            raise AssertionError(f"{kind} {number} ({label}): {error!r}") from error
        outcomes[outcome] += 1
        assert os.listdir(tmp_path) == ["case"], f"{number}: {label}"
        assert sorted(os.listdir(folder)) == sorted(content), f"{number}: {label}"
    assert sum(outcomes.values()) >= 200
    assert outcomes["refused"] >= 60
    assert outcomes["read"] >= 3


@pytest.mark.parametrize("kind", list(SEEDS))
def test_the_seed_itself_is_a_clip(kind, tmp_path, humanoid):
    seed_file = SEEDS[kind](humanoid)
    put(tmp_path / "case", {**seed_file.beside, seed_file.name: seed_file.encode(seed_file.tree)})
    assert judge(tmp_path / "case" / seed_file.name, humanoid, "whole") == "read"


@pytest.mark.parametrize("kind", ["csv", "deepmimic", "bvh"])
def test_the_corpus_is_the_same_for_the_same_seed(kind, humanoid):
    """Of formats whose files do not hold times or addresses of their making."""
    first, again, other = (
        [(label, content) for label, content in corpus(SEEDS[kind](humanoid), 80, seed)]
        for seed in (0, 0, 1)
    )
    assert first == again
    assert first != other


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(SEEDS))
def test_nothing_is_written_of_a_directory_with_a_broken_file(kind, tmp_path, humanoid, capsys):
    """``parc import`` over a whole file and a broken one, with a target."""
    seed_file = SEEDS[kind](humanoid)
    stem, suffix = seed_file.name.split(".")
    whole = seed_file.encode(seed_file.tree)
    broken = [data for _, c in corpus(seed_file, 40) for data in [c[seed_file.name]]]
    tried = 0
    for data in broken[::6]:
        folder = tmp_path / "in"
        put(folder, {**seed_file.beside, f"{stem}.{suffix}": whole, f"bad.{suffix}": data})
        if "m.asf" in seed_file.beside:
            (folder / "bad.asf").write_bytes(seed_file.beside["m.asf"])
        try:
            import_data.run([str(folder / f"bad.{suffix}"), "--out", str(tmp_path / "out")])
        except InputError:
            tried += 1
            assert sorted(p.name for p in tmp_path.iterdir()) == ["in"]
        else:
            shutil.rmtree(tmp_path / "out")
    assert tried >= 2
    capsys.readouterr()
