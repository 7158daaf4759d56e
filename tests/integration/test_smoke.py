"""The recipe ``smoke``, run once as a user would, and everything it left behind."""

from __future__ import annotations

import hashlib
import io
import math
import re

import pandas as pd
import pytest
import torch

from envs.recorder import RecordConfig, replay_frames
from envs.sims.replay import replay_clip
from parc_ray.character.character import Character
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.data.sample_data import WHEEL_SHA256
from parc_ray.evaluation.metrics import clip_metrics
from parc_ray.motion.clip import MotionClip
from parc_ray.plan import plan
from parc_ray.recipes import get_recipe
from parc_ray.scalars import read_scalars
from tests.integration.runs import RunFiles, drive

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

WORDS = ("--recipe", "smoke", "--resources.address", "local", "--storage")
CONFIG = get_recipe("smoke")
PLAN = plan(CONFIG)
LABELS = [stage.label for stage in PLAN]
ITERATIONS = range(1, len(CONFIG.iterations) + 1)
RECORDS = [stage.label for stage in PLAN if stage.name == "record"]
SOURCES = {label: "it_00/augment" for label in RECORDS if label.startswith("it_00")} | {
    f"it_{i:02d}/record": f"it_{i:02d}/generate" for i in ITERATIONS
}


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> RunFiles:
    """The finished run."""
    storage = tmp_path_factory.mktemp("smoke")
    done = drive(*WORDS, str(storage))
    assert done.returncode == 0, done.stderr[-8000:]
    assert "NaN or Inf" not in done.stdout + done.stderr
    return RunFiles(storage / "smoke")


def csv(run: RunFiles, path: str) -> pd.DataFrame:
    content = (run.path / path).read_bytes()
    return pd.read_csv(io.BytesIO(content))


def close(reported: float | None, found: float, tolerance: float = 1e-6) -> bool:
    """Whether a figure of a marker equals a recomputed one; not-a-number is stored as null."""
    if reported is None:
        return math.isnan(found)
    return math.isclose(reported, found, rel_tol=tolerance, abs_tol=1e-9)


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def test_every_stage_of_the_plan_has_its_marker(smoke: RunFiles):
    assert len(CONFIG.iterations) == 2
    assert smoke.labels() == sorted(LABELS)
    for label in LABELS:
        marker = smoke.marker(label)
        assert marker["outputs"], label
        for artifact in marker["outputs"].values():
            content = (smoke.path / artifact["path"]).read_bytes()
            assert hashlib.sha256(content).hexdigest() == artifact["sha256"]
        assert marker["seconds"] > 0
        assert marker["cpu_seconds"] > (1.0 if label.endswith("train-generator") else 0.0)
    assert not (smoke.path / "driver.json").exists()
    assert not list(smoke.path.rglob("*.tmp*"))


def test_stages_read_what_the_plan_says(smoke: RunFiles):
    for stage in PLAN:
        inputs = smoke.marker(stage.label)["inputs"]
        for name, source in stage.inputs.items():
            made = smoke.marker(f"it_{source.iteration:02d}/{source.stage}")["outputs"]
            assert inputs[name] == made[source.output]
        assert set(inputs) == {*stage.inputs, *({"data"} if stage.reads_data else ())}


def test_trainings_of_the_second_iteration_start_from_the_first_ones_weights(smoke: RunFiles):
    for name, output in (("train-generator", "generator"), ("train-tracker", "tracker")):
        before = smoke.marker(f"it_01/{name}")["outputs"][output]
        assert smoke.marker(f"it_02/{name}")["inputs"]["warm_start"] == before


def test_data_sets_hold_the_earlier_ones_parts_by_reference(smoke: RunFiles):
    for i in ITERATIONS:
        old, new = smoke.manifest(f"it_{i - 1:02d}/merge"), smoke.manifest(f"it_{i:02d}/merge")
        fresh = smoke.manifest(f"it_{i:02d}/record").parts
        assert new.parts == (*old.parts, *fresh)
        assert new.parents == tuple(f"D{k}" for k in range(i))
        assert (new.name, new.iteration) == (f"D{i}", i)
        assert not list((smoke.path / f"it_{i:02d}/merge").glob("*.parquet"))
    for part in smoke.manifest(f"it_{max(ITERATIONS):02d}/merge").parts:
        content = (smoke.path / part.path).read_bytes()
        assert hashlib.sha256(content).hexdigest() == part.sha256


def test_data_set_figures_are_those_of_its_clips(smoke: RunFiles):
    for i in (0, *ITERATIONS):
        clips = smoke.clips(f"it_{i:02d}/merge")
        metrics = smoke.marker(f"it_{i:02d}/merge")["metrics"]
        assert metrics["clips"] == len(clips) > 0
        assert close(metrics["seconds"], sum(c.duration_s for c in clips))
        assert len({c.clip_id for c in clips}) == len(clips)


def test_motions_are_generated_and_corrected(smoke: RunFiles):
    for i in ITERATIONS:
        motions = smoke.clips(f"it_{i:02d}/generate")
        assert motions
        assert all(c.provenance.maker == "generate" and c.replay is None for c in motions)
        assert all(torch.isfinite(c.frames.root_pos).all() for c in motions)
        assert all(c.terrain.heights.std() > 0 for c in motions)
    recorded = [clip for label in RECORDS for clip in smoke.clips(label)]
    assert len(recorded) >= 3


@pytest.mark.parametrize("label", RECORDS)
def test_recorded_clips_simulate_to_what_was_stored(
    smoke: RunFiles, humanoid: Character, label: str
):
    for clip in smoke.clips(label):
        assert clip.replay is not None
        states = replay_clip(humanoid, clip.replay, CONFIG.sim)
        again = replay_frames(states, clip.replay, RecordConfig())
        pos, _ = _bodies(humanoid, clip)
        new, _ = fk_from_dof(humanoid.skeleton, again.root_pos, again.root_rot, again.dof)
        assert (pos - new).norm(dim=-1).max() < 1e-3  # metres: what is promised
        for name in ("root_pos", "root_rot", "dof", "contacts"):  # what is kept
            assert torch.equal(getattr(again, name), getattr(clip.frames, name)), clip.clip_id


def _bodies(character: Character, clip: MotionClip) -> tuple[torch.Tensor, torch.Tensor]:
    frames = clip.frames
    return fk_from_dof(character.skeleton, frames.root_pos, frames.root_rot, frames.dof)


@pytest.mark.parametrize("label", RECORDS)
def test_recording_figures_follow_from_the_stored_clips(
    smoke: RunFiles, humanoid: Character, label: str
):
    clips = {clip.clip_id: clip for clip in smoke.clips(label)}
    sources = {clip.clip_id: clip for clip in smoke.clips(SOURCES[label])}
    records = smoke.json(f"{label}/records.json")
    kept = [r for r in records if r["clip_id"] is not None]
    assert {r["source_id"] for r in records} == set(sources)
    assert {r["clip_id"] for r in kept} == set(clips)
    for record in kept:
        clip, source = clips[record["clip_id"]], sources[record["source_id"]]
        found = clip_metrics(clip, humanoid, "paper")
        found |= _distances(humanoid, clip, source, record["start_frame"])
        names = ("tpl", "tpl_per_frame", "tcl", "hjf_frames_percent", "jerk_max", "foot_slide_mps")
        names += ("body_global_m", "body_local_m", "root_max_m", "contact_f1")
        for name in names:
            assert close(record["metrics"][name], found[name], 1e-4), (clip.clip_id, name)
            assert close(clip.metrics[name], found[name], 1e-4), (clip.clip_id, name)
        assert clip.num_frames == record["end_frame"] - record["start_frame"] + 1
        covers = (record["start_frame"], record["end_frame"]) == (0, source.num_frames - 1)
        assert record["whole"] == covers
    _check_summary(smoke.marker(label)["metrics"], records)


def _distances(
    character: Character, clip: MotionClip, source: MotionClip, start: int
) -> dict[str, float]:
    """Tracking errors of a recording from nothing but the two clips."""
    assert clip.replay is not None
    pos, theirs = _bodies(character, clip)[0], _bodies(character, source)[0]
    off = pos - clip.replay.offset - theirs[start : start + clip.num_frames]
    a, b = clip.frames.contacts > 0.5, source.frames.contacts > 0.5
    b = b[start : start + clip.num_frames]
    total = float(a.sum() + b.sum())
    return {
        "body_global_m": float(off[1:].norm(dim=-1).mean()),
        "body_local_m": float((off - off[:, :1])[1:].norm(dim=-1).mean()),
        "root_max_m": float(off[:, 0].norm(dim=-1).max()),
        "contact_f1": 2 * float((a & b).sum()) / total if total else 1.0,
    }


def _check_summary(metrics: dict[str, float | None], records: list[dict]) -> None:
    kept = [r for r in records if r["clip_id"] is not None]
    assert metrics["attempted"] == len(records)
    assert metrics["corrected"] == len(kept)
    for name in ("tracker", "mpc"):
        assert metrics[f"corrected_{name}"] == sum(r["corrector"] == name for r in kept)
    assert metrics["corrected_whole"] == sum(r["whole"] for r in kept)
    assert metrics["corrected_segment"] == sum(not r["whole"] for r in kept)
    for name in ("tpl", "body_global_m", "hjf_frames_percent", "contact_f1"):
        assert close(metrics[name], mean([r["metrics"][name] for r in kept]))


@pytest.mark.parametrize("label", RECORDS)
def test_recordings_keep_the_gate_and_the_least_length(
    smoke: RunFiles, humanoid: Character, label: str
):
    gate, shortest = CONFIG.correction.gate, CONFIG.correction.min_segment_s
    for record in smoke.json(f"{label}/records.json"):
        if record["clip_id"] is None:
            assert record["reasons"]
            continue
        m = record["metrics"]
        assert m["body_global_m"] <= gate.max_mean_body_error_m
        assert m["root_max_m"] <= gate.max_root_error_m
        assert m["hjf_frames_percent"] / 100 <= gate.max_high_jerk_share
        assert record["whole"] or record["seconds"] >= shortest - 1e-6


@pytest.mark.parametrize("i", ITERATIONS)
def test_generation_figures_follow_from_the_stored_clips(
    smoke: RunFiles, humanoid: Character, i: int
):
    clips = smoke.clips(f"it_{i:02d}/generate")
    metrics = smoke.marker(f"it_{i:02d}/generate")["metrics"]
    found = [clip_metrics(clip, humanoid, "paper") for clip in clips]
    for name in ("tpl", "tcl", "hjf_percent", "foot_slide_mps"):
        assert close(metrics[f"{name}_after"], mean([f[name] for f in found]), 1e-4)
    assert metrics["clips"] == len(clips)
    assert close(metrics["seconds"], sum(clip.duration_s for clip in clips))


@pytest.mark.parametrize("i", ITERATIONS)
def test_evaluation_figures_are_the_means_of_its_tables(smoke: RunFiles, i: int):
    home = f"it_{i:02d}/evaluate"
    metrics = smoke.json(f"{home}/metrics.json")
    marker = smoke.marker(home)["metrics"]
    assert metrics == marker
    table = csv(smoke, f"{home}/generator.csv")
    assert metrics["gen_motions"] == len(table) > 0
    names = {"fwd_m": "fwd", **{n: n for n in ("tpl", "tcl", "hjf_percent", "tpl_in_grid")}}
    for column, name in names.items():
        assert close(metrics[f"gen_{name}"], mean(list(table[column])))
    assert close(metrics["gen_finished_share"], mean([float(v) for v in table["finished"]]))
    for name in ("tracker", "baseline"):
        table = csv(smoke, f"{home}/{name}_clips.csv")
        assert list(table["starts"]) == [CONFIG.evaluation.tracker_starts] * len(table)
        share = table["completed"] / table["starts"]
        assert metrics[f"{name}_clips"] == len(table)
        assert metrics[f"{name}_clips_completed"] == (share >= 0.75).sum()
        assert close(metrics[f"{name}_survived_from_start"], mean(list(table["survived"])))
        assert close(metrics[f"{name}_completed_from_start"], mean(list(share)))
        errors = [v for v in table["body_error_relative_m"] if not math.isnan(v)]
        assert close(metrics[f"{name}_body_error_relative_m"], mean(errors))


@pytest.mark.parametrize("i", ITERATIONS)
def test_stored_test_motions_have_the_figures_of_their_rows(
    smoke: RunFiles, humanoid: Character, i: int
):
    table = csv(smoke, f"it_{i:02d}/evaluate/generator.csv").set_index(["terrain", "candidate"])
    best = smoke.clips(f"it_{i:02d}/evaluate")
    assert best
    for clip in best:
        found = re.fullmatch(r"it\d+_test(\d+)_(\d+)", clip.clip_id)
        assert found is not None
        row = table.loc[(int(found[1]), int(found[2]))]
        figures = clip_metrics(clip, humanoid, CONFIG.evaluation.form)
        for name, value in figures.items():
            assert close(row[name], value, 1e-5), (clip.clip_id, name)


def test_provenance_leads_from_a_recording_back_to_a_take_of_the_sample(smoke: RunFiles):
    initial = {clip.clip_id: clip for clip in smoke.clips("it_00/augment")}
    assert smoke.marker("it_00/augment")["inputs"]["data"]["sha256"] == WHEEL_SHA256
    for clip in smoke.clips("it_00/record"):
        assert clip.provenance.maker in ("mpc", "tracker")
        (parent,) = clip.provenance.parents
        ancestor = initial[parent]
        while ancestor.provenance.parents and ancestor.provenance.parents[0] in initial:
            ancestor = initial[ancestor.provenance.parents[0]]
        assert ancestor.provenance.take == clip.provenance.take != ""
        assert ancestor.provenance.source == clip.provenance.source
        assert "DeepMimic" in clip.provenance.source
        assert clip.provenance.licence
        assert clip.provenance.hashes["file"] == ancestor.provenance.hashes["file"]


def test_provenance_leads_from_a_generated_recording_back_to_d0(smoke: RunFiles):
    for i in ITERATIONS:
        generator = smoke.marker(f"it_{i:02d}/train-generator")
        motions = {c.clip_id: c for c in smoke.clips(f"it_{i:02d}/generate")}
        made = generator["outputs"]["generator"]["sha256"]
        assert all(c.provenance.hashes["generator"] == made for c in motions.values())
        for clip in smoke.clips(f"it_{i:02d}/record"):
            (parent,) = clip.provenance.parents
            assert clip.provenance.hashes["generator"] == made
            assert clip.provenance.hashes[clip.provenance.maker]
            assert clip.provenance.iteration == i
            assert motions[parent].provenance.seeds["terrain"] >= 0
        before = smoke.marker(f"it_{i - 1:02d}/merge")["outputs"]["dataset"]
        assert generator["inputs"]["dataset"] == before


def test_report_stands_alone_and_tells_the_run(smoke: RunFiles):
    page = (smoke.path / "report.html").read_text()
    assert page == (smoke.path / "it_02/report/report.html").read_text()
    assert not re.findall(r"""(?:src|href|url|data)\s*[=(]\s*["']?\s*(?:https?:)?//""", page)
    assert not re.search(r"<(script|link|iframe|object|embed)\b", page)
    assert all(uri.startswith("data:image/png;base64,") for uri in re.findall(r'src="(.*?)"', page))
    sections = re.split(r"<h2>(.*?)</h2>", page)
    by_title = dict(zip(sections[1::2], sections[2::2], strict=True))
    rows = re.findall(r"<tr><td>(\d+)</td>", by_title["Iterations"])
    assert rows == ["0", "1", "2"]
    for i in (0, *ITERATIONS):
        clips = int(smoke.marker(f"it_{i:02d}/merge")["metrics"]["clips"])
        assert f"<tr><td>{i}</td><td>{clips}</td>" in by_title["Iterations"]
    assert by_title["Learning curves"].count("<img") >= 2
    for i in (0, *ITERATIONS):
        (title,) = [t for t in by_title if t.startswith(f"Iteration {i}: ")]
        assert by_title[title].count("<img") >= 1
    times = by_title["Where the time went"]
    assert all(f"<td>{name}</td>" in times for name in {s.name for s in PLAN} - {"report"})
    assert "seed:" in by_title["How to make it again"]


def test_scalars_of_every_stage_are_in_one_tree(smoke: RunFiles):
    rows = read_scalars(smoke.storage)
    assert all(math.isfinite(row.value) for row in rows)
    last = {(row.group, row.tag): row.value for row in rows}
    for label in LABELS:
        home = smoke.path / "logs" / label
        assert list(home.glob("events.*")), label
        assert (home / "scalars.csv").exists()
        iteration, name = int(label[3:5]), label.split("/")[1]
        own = [r.step for r in rows if r.group == label and not r.tag.startswith("curve/")]
        assert set(own) == {iteration}
        for key, value in smoke.marker(label)["metrics"].items():
            if value is None:
                assert (label, f"{name}/{key}") not in last
            else:
                assert last[label, f"{name}/{key}"] == value
    for name, tag in (("train-generator", "loss"), ("train-tracker", "reward_per_step")):
        curve = [r for r in rows if (r.group, r.tag) == (f"it_01/{name}", f"curve/{tag}")]
        assert len({r.step for r in curve}) >= 3


def test_the_same_command_again_does_nothing(smoke: RunFiles):
    before = smoke.markers()
    report = (smoke.path / "report.html").stat().st_mtime_ns
    done = drive(*WORDS, str(smoke.path.parent), timeout_s=60)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stderr.count("already done") == len(LABELS)
    assert "Ray" not in done.stderr  # nothing to do starts no cluster
    assert smoke.markers() == before
    assert (smoke.path / "report.html").stat().st_mtime_ns == report
