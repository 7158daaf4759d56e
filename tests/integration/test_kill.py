"""Kill -9 of the driver in every stage, then the same command: as if nothing had happened.

One run is left in peace; another is killed in each of its stages in turn and started again each
time; a third one lives on an object store and is killed in its trainings. All must end with the
same bytes.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]

from algorithms.diffusion.checkpoint import load_generator
from algorithms.ppo.policy import MlpPolicy
from parc_ray.character.character import load_character
from parc_ray.data.manifest import FILE_NAME, Manifest
from parc_ray.data.sample_data import load_sample_clips
from parc_ray.data.storage import Storage
from parc_ray.data.store import write_part
from parc_ray.motion.clip import MotionClip
from tests.integration.processes import descendants, end, start_time, survivors
from tests.integration.runs import ROOT, RunFiles, command, drive, environment
from tests.object_store import object_store

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc"),
]

WORDS = shlex.split(
    "--recipe smoke --iterations 1 --name r --resources.address local "
    "--augment.variants_per_clip 1 --augment.optimizer.iterations 10 "
    "--d0.max_clips 2 --d0.max_clip_s 1.0 --d0.min_tracked_s 0.5 "
    "--d0.correction tracker_then_mpc --d0.tracker.samples 2048 "
    "--iterations.0.motions 4 --iterations.0.max_terrains 4 --iterations.0.candidates 2 "
    "--iterations.0.generator.steps 40 --iterations.0.tracker.samples 8192 "
    "--generator.train.report_every 10 --generator.train.log_every 5 "
    "--synthesis.rollout.max_duration_s 1.3 --synthesis.optimizer.iterations 10 "
    "--correction.mpc.samples 12 --correction.mpc_max_s 1.0 "
    "--correction.mpc_stronger_retry False "
    "--evaluation.terrains 3 --evaluation.motions_per_terrain 2 "
    "--evaluation.max_duration_s 1.0 "
    "--evaluation.tracker_starts 1 --evaluation.tracker_random_starts 2"
)

KILLS = [
    ("it_00/augment", "_STARTED.json", "outside"),
    ("it_00/train-tracker", "curve.csv", "within"),
    ("it_00/record", "items/*.json", "outside"),
    ("it_00/merge", "_STARTED.json", "within"),
    ("it_01/train-generator", "train/checkpoint_*", "outside"),
    ("it_01/train-generator", "curve.csv", "within"),
    ("it_01/generate", "items/*.json", "outside"),
    ("it_01/train-tracker", "LATEST", "outside"),
    ("it_01/record", "items/tracker-00000.json", "outside"),
    ("it_01/merge", "manifest.json", "within"),
    ("it_01/evaluate", "items/*.json", "outside"),
    ("it_01/report", "_STARTED.json", "within"),
]
"""Stage, the file after whose appearance the driver dies, and whether it is killed from outside
while it works, or kills itself at that very moment."""

LIMIT_S = 300.0


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of two second-long pieces of motion capture on flat ground."""
    character = load_character("humanoid")
    storage = Storage.from_uri(tmp_path_factory.mktemp("kill") / "data")
    flat = {clip.provenance.take: clip for clip in load_sample_clips(character)}
    clips = [_piece(flat[take]) for take in ("walk", "run")]
    part = write_part(storage, "clips.parquet", clips)
    Manifest(name="pieces", parts=(part,), character_digest=character.digest).save(
        storage, FILE_NAME
    )
    return storage.local_path()


def _piece(clip: MotionClip) -> MotionClip:
    return replace(clip, frames=clip.frames.time(0, 31), loop="clamp")


@pytest.fixture(scope="module")
def calm(data: Path) -> RunFiles:
    """The undisturbed run."""
    done = drive(*WORDS, "--data", str(data), "--storage", str(data.parent / "calm"))
    assert done.returncode == 0, done.stderr[-6000:]
    return RunFiles(data.parent / "calm" / "r")


@pytest.fixture(scope="module")
def killed(data: Path) -> RunFiles:
    """The same run, killed in every stage and started again; by one actor instead of two."""
    storage = data.parent / "killed"
    words = [*WORDS, "--data", str(data), "--storage", str(storage)]
    words += ["--resources.generate_actors", "1", "--resources.record_actors", "1"]
    run = RunFiles(storage / "r")
    seen: dict[str, tuple[int, bytes]] = {}
    family: dict[int, str] = {}
    for label, file, how in KILLS:
        if how == "within":
            _kill_from_within(words, f"r/{label}/{file}")
        else:
            family |= _kill_from_outside(words, run.path / label, file)
        assert not (run.path / label / "_DONE.json").exists()
        assert (run.path / label / "_STARTED.json").exists()
        seen = _unchanged(run, seen)
    done = drive(*words)
    assert done.returncode == 0, done.stderr[-6000:]
    _unchanged(run, seen)
    _tidy(family)
    return run


@pytest.fixture(scope="module")
def stored(data: Path) -> RunFiles:
    """The same run on an object store, killed after a checkpoint of each training: a copy of it."""
    copy = data.parent / "stored" / "r"
    with object_store("bucket") as store:
        words = [*WORDS, "--data", str(data), "--storage", store.uri("bucket/runs")]
        run = Storage.from_uri(store.uri("bucket/runs")).join("r")
        family: dict[int, str] = {}
        for label, begins in (("train-generator", "train/checkpoint_"), ("train-tracker", "ckpt_")):
            stage = run.join(f"it_01/{label}")
            log = copy.parent / f"{label}.log"
            family |= _kill_once(words, log, lambda s=stage, b=begins: _folders(s, b))
            assert not stage.exists("_DONE.json")
        done = drive(*words)
        assert done.returncode == 0, done.stderr[-6000:]
        assert "continuing from iteration" in run.read_bytes("run.log").decode()
        for name in run.list(recursive=True):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes(run.read_bytes(name))
    _tidy(family)
    return RunFiles(copy)


def _folders(stage: Storage, begins: str) -> set[str]:
    """Whole folders of checkpoints."""
    above = begins.rpartition("/")[0]
    found = {name for name in stage.list_dirs(above) if name.startswith(begins)}
    if above:  # Ray Train's: named in its state once they are whole
        state = f"{above}/checkpoint_manager_snapshot.json"
        told = stage.read_bytes(state).decode() if stage.exists(state) else ""
        return {name for name in found if name.rpartition("/")[2] in told}
    return {name for name in found if stage.exists(f"{name}/_WHOLE.json")}


def _unchanged(run: RunFiles, seen: dict[str, tuple[int, bytes]]) -> dict[str, tuple[int, bytes]]:
    """Check that no finished stage was done again; the markers there are now."""
    markers = run.markers()
    for label, marker in seen.items():
        assert markers[label] == marker, f"{label} was done again"
    return markers


def _kill_from_within(words: list[str], path: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.self_kill", path, *words],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL


def _kill_from_outside(words: list[str], stage: Path, file: str) -> dict[int, str]:
    """Start the driver and kill it once ``file`` appeared in ``stage``; the processes it had."""
    log = stage.parents[2] / f"{stage.parent.name}-{stage.name}.log"
    return _kill_once(words, log, lambda: {str(path) for path in stage.glob(file)})


def _kill_once(words: list[str], log: Path, look: Callable[[], set[str]]) -> dict[int, str]:
    """Start the driver and kill it once ``look`` finds more than before; the processes it had."""
    log.parent.mkdir(parents=True, exist_ok=True)
    present = look()
    with log.open("wb") as output:
        driver = subprocess.Popen(
            command(*words),
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        limit = time.monotonic() + LIMIT_S
        while not look() - present:
            assert driver.poll() is None, log.read_text()[-6000:]
            assert time.monotonic() < limit, f"{log.stem}: what was looked for did not appear"
            time.sleep(0.05)
        return descendants(driver.pid)
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()


def _tidy(family: dict[int, str]) -> None:
    """Ray's servers and workers end with their driver; its agents may take a minute to notice."""
    left = survivors(family, 20.0)
    names = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in left if start_time(pid)]
    end(left)
    assert not [n for n in names if n in ("raylet", "gcs_server")]


def test_every_stage_was_killed_and_finished(calm: RunFiles, killed: RunFiles):
    assert killed.labels() == calm.labels()
    assert {label for label, _, _ in KILLS} == set(calm.labels())


def test_data_sets_and_parts_are_equal_to_the_byte(calm: RunFiles, killed: RunFiles):
    for label in ("it_00/augment", "it_00/record", "it_00/merge", "it_01/generate"):
        assert killed.manifest(label) == calm.manifest(label), label
    for label in ("it_01/record", "it_01/merge"):
        assert killed.manifest(label) == calm.manifest(label), label
    for part in calm.manifest("it_01/merge").parts:
        a, b = ((run.path / part.path).read_bytes() for run in (calm, killed))
        assert a == b, part.path
    assert calm.manifest("it_00/record").rows + calm.manifest("it_01/record").rows >= 1
    assert calm.manifest("it_01/generate").rows >= 1


def test_generators_are_equal_to_the_bit(calm: RunFiles, killed: RunFiles):
    a, b = (
        load_generator(run.path / "it_01/train-generator/generator.pt") for run in (calm, killed)
    )
    for name in ("ema", "model"):
        mine, theirs = getattr(a, name), getattr(b, name)
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[key], theirs[key]) for key in mine), name
    assert torch.equal(a.stats.mean, b.stats.mean)


def test_policies_are_equal_to_the_bit(calm: RunFiles, killed: RunFiles):
    names = {
        run.marker("it_01/train-tracker")["outputs"]["tracker"]["path"] for run in (calm, killed)
    }
    assert len(names) == 1
    a, b = (MlpPolicy.load(run.path / next(iter(names))) for run in (calm, killed))
    assert a.digest == b.digest


def test_all_outputs_but_the_report_are_equal(calm: RunFiles, killed: RunFiles):
    for label in calm.labels():
        if label.endswith("report"):
            continue
        a, b = calm.marker(label)["outputs"], killed.marker(label)["outputs"]
        assert a == b, label


def test_figures_of_the_stages_are_equal_but_for_times(calm: RunFiles, killed: RunFiles):
    timed = re.compile(r"wall|cpu|per_s|bytes|mbps")
    for label in calm.labels():
        a, b = (run.marker(label)["metrics"] for run in (calm, killed))
        assert a.keys() == b.keys(), label
        for key in a:
            if timed.search(key) or (label.endswith("train-generator") and key == "seconds"):
                continue
            assert a[key] == b[key], (label, key)


def test_curves_have_every_step_once(calm: RunFiles, killed: RunFiles):
    for name, column in (("train-generator", "loss"), ("train-tracker", "reward_per_step")):
        step = "step" if name == "train-generator" else "iteration"
        a, b = (
            pd.read_csv(io.BytesIO((run.path / f"it_01/{name}/curve.csv").read_bytes()))
            for run in (calm, killed)
        )
        assert list(a[step]) == list(b[step])
        assert list(a[column]) == pytest.approx(list(b[column]), nan_ok=True)


def _steps(events: Path) -> list[int]:
    """Steps of the scalars in an event file."""
    data, at, steps = events.read_bytes(), 0, []
    while at < len(data):
        size = struct.unpack_from("<Q", data, at)[0]  # then a checksum, the event, a checksum
        event = Event.FromString(data[at + 12 : at + 12 + size])
        steps += [event.step] if event.HasField("summary") else []
        at += size + 16
    return steps


def test_a_run_on_an_object_store_is_equal_to_the_bit(calm: RunFiles, stored: RunFiles):
    assert stored.labels() == calm.labels()
    test_data_sets_and_parts_are_equal_to_the_byte(calm, stored)
    test_generators_are_equal_to_the_bit(calm, stored)
    test_policies_are_equal_to_the_bit(calm, stored)
    test_all_outputs_but_the_report_are_equal(calm, stored)
    test_curves_have_every_step_once(calm, stored)
    first, second = sorted((stored.path / "it_01/train-generator/tb").iterdir())
    rows = (stored.path / "it_01/train-generator/metrics.jsonl").read_text().splitlines()
    logged = {json.loads(row)["step"] for row in rows}
    assert set(_steps(first) + _steps(second)) == logged  # what was sent has all that was written
    assert min(_steps(first)) < min(_steps(second))  # it went on, it did not begin again
    assert not (stored.path / "driver.json").exists()


def test_no_half_written_file_is_left(killed: RunFiles):
    left = [p for p in killed.path.rglob("*") if ".tmp" in p.name]
    assert not left
    assert not (killed.path / "driver.json").exists()
