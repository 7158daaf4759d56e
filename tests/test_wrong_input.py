"""Wrong input as a person meets it: one line on stderr, exit code 2, nothing written, no Ray.

The files are made here and go through the real commands, ``parc run``, ``parc import`` and
``run_parc.py``.
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from parc_ray import cli, cluster, loop
from parc_ray.config_io import to_yaml
from parc_ray.data import sample_data
from parc_ray.data.importers import import_path
from parc_ray.data.storage import Storage
from parc_ray.data.store import save_dataset
from parc_ray.lock import RunLock
from parc_ray.recipes import get_recipe
from parc_ray.stages.registry import clear_overrides
from tests.data import files
from tests.fakes import fake_config, install

ROOT = Path(__file__).resolve().parent.parent
LFS_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 132735\n"


class _Hostile:
    """Runs a command when it is unpickled without care."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return os.system, (f"touch {self.target}",)


# ---- files, one of each kind ---------------------------------------------------------------


def hostile(folder, character):
    bad = _Hostile(folder.parent / "it_ran")
    files.mimickit(folder / "bad.pkl", character, change=lambda d: d.update(frames=bad))


def hostile_inside(folder, character):
    bad = {"x": _Hostile(folder.parent / "it_ran")}
    files.parc_ms(folder / "bad.pkl", character, change=lambda d: d.update(misc_data=bad))


def pointer(folder, _):
    (folder / "bad.pkl").write_text(LFS_POINTER)


def text_pointer(folder, _):
    (folder / "bad.txt").write_text(LFS_POINTER)


def with_nan(folder, character):
    def change(data):
        data["frames"][7][2] = float("nan")

    files.mimickit(folder / "bad.pkl", character, change=change)


def too_few_joints(folder, character):
    def change(parts):
        parts["motion_data"]["joint_rot"] = parts["motion_data"]["joint_rot"][:, 1:]

    files.parc_ms(folder / "bad.pkl", character, change=change)


def too_few_columns(folder, character):
    def change(data):
        data["frames"] = [row[:-1] for row in data["frames"]]

    files.mimickit(folder / "bad.pkl", character, change=change)


def long_quaternions(folder, character):
    def change(parts):
        parts["motion_data"]["joint_rot"][3, 2] *= 1.5

    files.parc_ms(folder / "bad.pkl", character, change=change)


def terrain_with_nan(folder, character):
    heights = np.zeros((4, 3), dtype=np.float32)
    heights[2, 1] = np.nan
    files.parc_ms(folder / "bad.pkl", character, hf=heights)


def truncated(folder, character):
    files.parc_ms(folder / "bad.pkl", character)
    data = (folder / "bad.pkl").read_bytes()
    (folder / "bad.pkl").write_bytes(data[:-100])


def in_centimetres(folder, character):
    def change(data):
        data["frames"] = (np.array(data["frames"]) * 1e5).tolist()

    files.mimickit(folder / "bad.pkl", character, change=change)


FILES = {
    hostile: ("bad.pkl", "system", "could run code", "do not use this file"),
    hostile_inside: ("bad.pkl", "misc_data", "could run code", "do not use this file"),
    pointer: ("bad.pkl", "Git LFS pointer", "git lfs pull"),
    text_pointer: ("bad.txt", "Git LFS pointer", "git lfs pull"),
    with_nan: ("bad.pkl", "frames", "NaN", "repair or leave out"),
    too_few_joints: ("bad.pkl", "motion_data.joint_rot", "14 joints", "convert the file"),
    too_few_columns: ("bad.pkl", "frames", "28 joint angles", "convert the file"),
    long_quaternions: ("bad.pkl", "motion_data.joint_rot", "norm 1.5", "normalise or repair"),
    terrain_with_nan: ("bad.pkl", "terrain_data.heights", "NaN", "(2, 1)", "mend or cut"),
    truncated: ("bad.pkl", "not a readable pickle", "fetch or write the file again"),
    in_centimetres: ("bad.pkl", "root_pos", "metres", "convert the file"),
}


def mistake(capsys, *argv: str) -> str:
    """The only line that a command writes before it ends with code 2."""
    with pytest.raises(SystemExit) as caught:
        cli.main(list(argv))
    output = capsys.readouterr()
    assert caught.value.code == 2, output.err
    assert output.out == ""
    lines = [x for x in output.err.splitlines() if "fetching pybullet" not in x]
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    assert "Traceback" not in lines[0]
    return lines[0]


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch):
    def refuse(resources):
        raise AssertionError("Ray was started before the input was checked")

    monkeypatch.setattr(cluster, "connect", refuse)
    yield
    clear_overrides()


@pytest.fixture
def folder(tmp_path):
    """A directory of motions; runs and data sets go elsewhere."""
    path = tmp_path / "motions"
    path.mkdir()
    return path


def run_words(tmp_path, data) -> list[str]:
    return ["run", "--recipe", "smoke", "--storage", str(tmp_path / "runs"), "--data", str(data)]


@pytest.mark.parametrize("make", FILES, ids=lambda f: f.__name__)
def test_files_that_cannot_be_used(make, tmp_path, folder, humanoid, capsys):
    """Among good files as well as alone, for the loop and for the import."""
    files.mimickit(folder / "aaa_good.pkl", humanoid)
    make(folder, humanoid)
    bad = next(folder.glob("bad.*"))
    commands = [
        run_words(tmp_path, folder),
        ["import", str(folder), "--out", str(tmp_path / "set")],
        ["import", str(bad), "--check"],
        ["optimize", str(folder), "--out", str(tmp_path / "set")],
    ]
    for argv in commands:
        line = mistake(capsys, *argv)
        for word in FILES[make]:
            assert word in line, (word, line)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["motions"]


def test_a_motion_that_is_too_short_to_train_on(tmp_path, folder, humanoid, capsys):
    files.mimickit(folder / "short.pkl", humanoid, frames=15)
    for data in (folder, folder / "short.pkl"):
        line = mistake(capsys, *run_words(tmp_path, data))
        assert all(w in line for w in ("short.pkl", "15 frames", "at least 16", "longer motion"))
    files.mimickit(folder / "short2.pkl", humanoid, frames=9)
    line = mistake(capsys, *run_words(tmp_path, folder))
    assert all(w in line for w in ("motions holds no clip of 16 frames", "of 2:", "short.pkl"))
    line = mistake(capsys, "import", str(folder), "--out", str(tmp_path / "set"))
    assert "holds no clip of 16 frames" in line
    assert sorted(p.name for p in tmp_path.iterdir()) == ["motions"]


def test_short_motions_beside_a_good_one_are_left_out(tmp_path, folder, humanoid, capsys):
    files.mimickit(folder / "short.pkl", humanoid, frames=15)
    files.mimickit(folder / "good.pkl", humanoid, frames=16)
    with pytest.raises(SystemExit) as caught:
        cli.main(["import", str(folder), "--check"])
    out = capsys.readouterr().out
    assert caught.value.code == 0
    assert "left out:" in out
    assert "short.pkl" in out
    assert "1 clips, 0.5 s" in out


@pytest.mark.parametrize("command", ["run", "import", "optimize"])
def test_missing_and_empty_directories(command, tmp_path, folder, capsys):
    out = ["--out", str(tmp_path / "set")]
    words = [] if command == "run" else out
    for path, said in ((tmp_path / "nowhere", "does not exist"), (folder, "")):
        argv = run_words(tmp_path, path) if command == "run" else [command, str(path), *words]
        line = mistake(capsys, *argv)
        assert str(path) in line
        assert said in line
    (folder / "notes.md").write_text("no motion")
    argv = run_words(tmp_path, folder) if command == "run" else [command, str(folder), *words]
    assert "no motion files" in mistake(capsys, *argv)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["motions"]


def test_data_sets_that_cannot_be_used(tmp_path, folder, humanoid, capsys):
    files.mimickit(folder / "a.pkl", humanoid)
    clips = import_path(folder, humanoid)
    save_dataset(tmp_path / "other", "D", clips, "0123456789abcdef")
    line = mistake(capsys, *run_words(tmp_path, tmp_path / "other"))
    assert "made for character 0123456789ab" in line
    save_dataset(tmp_path / "set", "D", clips, humanoid.digest)
    part = tmp_path / "set" / "part-00000.parquet"
    part.write_bytes(part.read_bytes()[:-7] + b"garbage")
    line = mistake(capsys, *run_words(tmp_path, tmp_path / "set" / "manifest.json"))
    assert all(w in line for w in ("part-00000.parquet", "sha256", "restore the file"))
    part.write_text(LFS_POINTER)
    assert "part-00000.parquet" in mistake(capsys, *run_words(tmp_path, tmp_path / "set"))
    part.unlink()
    assert "does not exist" in mistake(capsys, *run_words(tmp_path, tmp_path / "set"))
    (tmp_path / "set" / "manifest.json").write_text("{")
    assert "manifest.json: not JSON" in mistake(capsys, *run_words(tmp_path, tmp_path / "set"))
    assert not (tmp_path / "runs").exists()


def test_the_sample_without_cache_and_network(tmp_path, monkeypatch, capsys):
    def no_pip(command, **_):
        return subprocess.CompletedProcess(command, 1, "", "ERROR: no route to host")

    monkeypatch.setenv("PARC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sample_data.subprocess, "run", no_pip)
    for argv in (run_words(tmp_path, "sample"), ["import", "sample", "--check"]):
        line = mistake(capsys, *argv)
        assert all(w in line for w in ("pybullet", "no route to host", "--data DIR"))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--recipe", "smok"], ("smok", "did you mean 'smoke'?", "allowed:")),
        (["--generator.train.batch_sise", "4"], ("did you mean --generator.train.batch_size?",)),
        (["--recipee", "smoke"], ("--recipee", "did you mean --recipe?")),
        (["--d0.max_clips", "0"], ("d0.max_clips: 0", "1 or more")),
        (["--iterations.0.s", "1.5"], ("iterations.0", "s: 1.5", "0 to 1")),
        (["--iterations", "-1"], ("--iterations: -1", "0 or more")),
        (["--iterations", "two"], ("--iterations", "'two'")),
        (["--generator.train.batch_size", "big"], ("--generator.train.batch_size", "'big'")),
        (["--d0.correction", "magic"], ("d0.correction", "'magic'", "tracker_then_mpc")),
        (["--tracker.gamma", "2"], ("gamma: 2", "(0, 1)")),
        (["--evaluation.terrains"], ("--evaluation.terrains",)),
        (["--data.path", ""], ("data.path", "sample")),
        (["--name", "a/b"], ("name: 'a/b'", "without slashes")),
        (["--character", "human"], ("'human' is unknown", "humanoid")),
        (["--character", "nowhere.xml"], ("nowhere.xml", "no such file")),
        (["--simulator", "mujoco_cpus"], ("mujoco_cpus", "did you mean 'mujoco_cpu'?")),
        (
            ["--simulator", "isaacgym", "--resources.address", "local"],
            ("--simulator isaacgym: PARC_ISAACGYM_PYTHON is not set", "docs/isaacgym.md"),
        ),
        (["--config", "nowhere.yaml"], ("--config", "nowhere.yaml", "YAML")),
        (["stray"], ("stray", "unexpected word")),
    ],
)
def test_words_that_do_not_fit(words, expected, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sample_data, "fetch_wheel", lambda cache=None: Path("unused"))
    monkeypatch.delenv("PARC_ISAACGYM_PYTHON", raising=False)
    line = mistake(capsys, "run", *words, "--storage", str(tmp_path / "runs"))
    for word in expected:
        assert word in line, (word, line)
    assert list(tmp_path.iterdir()) == []


def test_unknown_keys_in_a_config_file(tmp_path, capsys):
    path = tmp_path / "mine.yaml"
    text = to_yaml(get_recipe("smoke"))
    path.write_text(text.replace("max_clips:", "max_klips:"))
    line = mistake(capsys, "run", "--config", str(path), "--storage", str(tmp_path / "runs"))
    assert all(w in line for w in ("mine.yaml", "max_klips", "did you mean 'max_clips'?"))
    path.write_text("d0: [")
    line = mistake(capsys, "run", "--config", str(path), "--storage", str(tmp_path / "runs"))
    assert "mine.yaml: not a YAML file" in line
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine.yaml"]


def test_storage_that_cannot_be_written(tmp_path, folder, humanoid, capsys):
    files.mimickit(folder / "a.pkl", humanoid)
    (tmp_path / "file").write_text("mine")
    words = run_words(tmp_path, folder)
    for storage, said in (
        (str(tmp_path / "file"), "cannot be written"),
        (str(tmp_path / "file" / "x"), "cannot be written"),
        ("tape://runs", "allowed are a directory that all nodes mount (local disk, NFS), s3://"),
    ):
        words[words.index("--storage") + 1] = storage
        line = mistake(capsys, *words)
        assert said in line
        assert storage in line
    assert (tmp_path / "file").read_text() == "mine"


def test_a_run_in_the_copy_that_a_job_gets(tmp_path, folder, humanoid, capsys, monkeypatch):
    """It would be removed with the job."""
    files.mimickit(folder / "a.pkl", humanoid)
    copy = tmp_path / "session_1/runtime_resources/working_dir_files/_ray_pkg_0123"
    copy.mkdir(parents=True)
    monkeypatch.chdir(copy)
    words = run_words(tmp_path, folder)
    words[words.index("--storage") + 1] = "runs"
    line = mistake(capsys, *words)
    assert "--storage runs: lies in the copy of the working directory" in line
    assert "PARC_STORAGE" in line
    assert list(copy.iterdir()) == []


@pytest.fixture
def begun(tmp_path):
    """Storage with a finished run of fake stages, named ``smoke``."""
    install()
    loop.run(fake_config(str(tmp_path / "runs")))
    return tmp_path / "runs"


def begun_words(storage: Path, *more: str) -> list[str]:
    words = ["--recipe", "smoke", "--iterations", "1", "--d0.correction", "tracker"]
    return [*words, "--storage", str(storage), *more]


def test_a_run_directory_of_another_config(begun, capsys):
    before = (begun / "smoke/config.yaml").read_text()
    for command in (["run"], ["generate", "--iteration", "1"]):
        line = mistake(capsys, *command, *begun_words(begun, "--seed", "5"))
        assert all(w in line for w in ("smoke", "seed: 0 -> 5", "--name", "--force"))
    assert (begun / "smoke/config.yaml").read_text() == before


def test_a_second_driver(begun, capsys):
    with RunLock(Storage.from_uri(begun / "smoke")):
        line = mistake(capsys, "run", *begun_words(begun))
        assert all(w in line for w in (str(os.getpid()), "another driver", "--name"))


def test_outputs_that_changed_after_their_stage(begun, capsys):
    """Made again before the next stage starts; a marker that nobody can read is a mistake."""
    run = begun / "smoke"
    made = run / "it_01/train-generator/out"
    whole = {p.name: p.read_bytes() for p in made.iterdir()}
    for damage in (
        lambda: (made / "part-0.txt").write_text("tampered"),
        lambda: shutil.rmtree(made),
    ):
        shutil.rmtree(run / "it_01/generate")
        damage()
        with pytest.raises(SystemExit) as caught:
            cli.main(["generate", "--iteration", "1", *begun_words(begun)])
        assert caught.value.code == 0
        assert "[it_01/train-generator] damaged, making it again" in capsys.readouterr().err
        assert {p.name: p.read_bytes() for p in made.iterdir()} == whole
    shutil.rmtree(run / "it_01/generate")
    marker = run / "it_01/train-generator/_DONE.json"
    marker.write_text("{")
    for argv in (["generate", "--iteration", "1", *begun_words(begun)], ["info", str(run)]):
        assert f"{marker}: not JSON" in mistake(capsys, *argv)


def test_a_stage_whose_inputs_are_missing(tmp_path, capsys):
    words = begun_words(tmp_path / "runs")
    for name, needs in (
        ("train-generator", "it_00/merge"),
        ("generate", "it_01/train-generator"),
        ("train-tracker", "it_00/merge"),
        ("record", "it_01/generate"),
        ("merge", "it_00/merge"),
        ("evaluate", "it_01/train-generator"),
    ):
        line = mistake(capsys, name, "--iteration", "1", *words)
        missing = needs.split("/")[1]
        for word in (f"it_01/{name}", needs, f"`parc {missing} --iteration {int(needs[3:5])}`"):
            assert word in line, (word, line)
    assert not (tmp_path / "runs").exists()


def test_tools_without_what_they_need(tmp_path, folder, humanoid, capsys):
    files.mimickit(folder / "a.pkl", humanoid)
    full = tmp_path / "full"
    full.mkdir()
    (full / "kept.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    config = replace(get_recipe("smoke"), name="new")
    new = tmp_path / "runs" / "new"
    new.mkdir(parents=True)
    (new / "config.yaml").write_text(to_yaml(config))
    for argv, expected in (
        (["import", str(folder)], ("--out DIR is needed", "--check")),
        (["import", str(folder), "--out", str(full)], ("full is not empty", "another directory")),
        (["import", str(folder), "--out", str(tmp_path / "file")], ("is a file",)),
        (["import", str(folder), "--out", str(tmp_path / "file/x")], ("cannot be written",)),
        (["import", str(folder), "--check", "--cell-size", "0"], ("cell_size", "metres")),
        (["import", str(folder), "--check", "--min-frames", "1"], ("min_frames: 1", "2 or more")),
        (["import", str(folder), "--check", "--character", "x"], ("'x' is unknown",)),
        (["import"], ("SOURCE",)),
        (["optimize", str(folder)], ("--out",)),
        (["optimize", str(folder), "--out", str(full)], ("full is not empty",)),
        (["optimize", str(folder), "--out", "x", "--iterations", "-1"], ("iterations", ">= 0")),
        (["optimize", str(folder), "--out", "x", "--iteratons", "5"], ("did you mean",)),
        (["report", str(full)], ("no run directory", "config.yaml")),
        (["report", str(new)], ("no stage is finished yet",)),
        (["report"], ("RUN_DIRECTORY",)),
        (["imprt"], ("did you mean 'import'?",)),
    ):
        line = mistake(capsys, *argv)
        for word in expected:
            assert word in line, (word, line)
    assert [p.name for p in full.iterdir()] == ["kept.txt"]
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["file", "full", "motions", "runs"]


@pytest.mark.parametrize("program", [["run_parc.py"], ["-m", "parc_ray.cli", "run"]])
@pytest.mark.parametrize("make", [hostile, terrain_with_nan], ids=lambda f: f.__name__)
def test_as_processes(program, make, tmp_path, folder, humanoid):
    """The same from outside, with everything that imports and Ray might print."""
    make(folder, humanoid)
    words = run_words(tmp_path, folder)[1:]
    done = subprocess.run(
        [sys.executable, *program, *words],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    for word in FILES[make]:
        assert word in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["motions"]


def test_the_hostile_file_would_have_run(tmp_path):
    """The check above means something: read without care, this file acts."""
    pickle.loads(pickle.dumps(_Hostile(tmp_path / "it_ran")))
    assert (tmp_path / "it_ran").exists()
