"""Generate, optimise, track and explain with the models of a run that learnt nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from envs.tracking.config import TrackingConfig
from envs.tracking.terminations import body_distance
from parc_ray.data.store import load_dataset
from parc_ray.errors import InputError
from parc_ray.motion.frames import cat_time
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.tools import view
from parc_ray.tools.runs import open_run
from parc_ray.viewer.catalog import open_catalog
from parc_ray.viewer.live import LiveDrive, Steering
from parc_ray.viewer.studio import Studio
from parc_ray.viewer.why import error_curve, explain
from parc_ray.viewer.workbench import Brush, Workbench, score_table
from tests.envs.helpers import stand_clip
from tests.viewer.helpers import generated, recorded


@pytest.fixture(scope="module")
def studio(tiny_run, humanoid):
    catalog = open_catalog(str(tiny_run), humanoid)
    config = open_run(str(tiny_run))[1]
    return Studio(
        character=humanoid,
        config=config,
        generator_path=view._model(None, catalog, config, "generator"),
        tracker_path=view._model(None, catalog, config, "tracker"),
    )


@pytest.fixture
def bench(studio, tmp_path):
    bench = Workbench(studio=studio, out=str(tmp_path / "out"))
    bench.begin(Heightfield.flat((16, 16)))
    bench.click((1.0, 1.0), Brush(tool="box", height_m=0.3))
    bench.click((-2.0, 0.0), Brush(tool="way-point"))
    bench.click((2.0, 0.0), Brush(tool="way-point"))
    return bench


def test_the_models_of_the_run_are_found(studio):
    assert studio.generator_path.name == "generator.pt"
    assert studio.tracker_path.name == "policy.pt"


def test_a_motion_is_made_optimised_and_kept(bench, humanoid):
    made = bench.generate(s=0.5, seed=3, candidates=3, seconds=1.0)
    assert bench.path is not None
    assert 1 <= len(made) <= 3
    first = made[0].clip
    assert torch.equal(first.terrain.heights, bench.terrain.terrain.heights)
    assert torch.equal(first.path_nodes, bench.path.points)
    assert first.provenance.seeds["generate"] == 3
    again = bench.generate(s=0.5, seed=3, candidates=3, seconds=1.0)
    assert torch.equal(again[0].clip.frames.root_pos, first.frames.root_pos)
    table = score_table(made).splitlines()
    assert len(table) == 2 + len(made)
    better = bench.optimise(first, iterations=2)
    assert better.provenance.parents == (first.clip_id,)
    assert "1 clips now" in bench.save(first)
    assert "2 clips now" in bench.save(better)
    assert "3 clips now" in bench.save(better)
    manifest, clips = load_dataset(f"{bench.out}/clips")
    assert manifest.character_digest == humanoid.digest
    names = [first.clip_id, better.clip_id, f"{better.clip_id}_2"]
    assert [c.clip_id for c in clips] == names


def test_what_was_queued_is_taken_as_initial_data(bench, humanoid):
    """By the same door as ``parc run --data``."""
    from parc_ray.config import DataConfig
    from parc_ray.inputs import require_data
    from parc_ray.tools.import_data import load_source

    place = f"{bench.out}/queue"
    with pytest.raises(InputError, match=r"queue: clip 'walk'.*optimise the motion"):
        bench.queue(generated(humanoid))  # glides through a step of 0.4 m
    assert "1 clips now" in bench.queue(stand_clip(humanoid, 31))
    require_data(place)
    clips, short = load_source(DataConfig(path=place), humanoid)
    assert [c.clip_id for c in clips] == ["stand"]
    assert not short


def test_a_motion_is_tracked_until_it_fails(studio, humanoid):
    clip = generated(humanoid)
    tried = studio.track(clip)
    assert tried.wanted == clip.num_frames - 1
    assert tried.clip.provenance.parents == ("walk",)
    assert tried.reason in ("body", "root_pos", "root_rot")
    assert tried.failed_frame == tried.steps + 1
    assert tried.clip.num_frames == tried.steps + 2  # the start, the steps, and the failing one
    start = (tried.clip.frames.root_pos[0] - clip.frames.root_pos[0]).norm()
    assert start < 0.01 + studio.config.tracking.sampling.max_lift_m
    xy = tried.clip.frames.root_pos[:, :2]
    assert torch.equal(tried.clip.terrain.height_at(xy), clip.terrain.height_at(xy))
    curve = error_curve(clip, tried.clip, humanoid, studio.config.tracking)
    rules = studio.config.tracking.termination
    beyond = (curve.bodies > curve.limits).any(-1)
    far = curve.root > rules.root_pos_m
    if tried.reason == "body":
        assert beyond[-1]
    assert not beyond[:-1].any()
    assert not far[:-1].any()


def test_errors_are_those_that_end_episodes(humanoid):
    """Against ``envs.tracking.terminations`` on a recording that drifts."""
    source = generated(humanoid)
    copy = recorded(humanoid, source, 4)
    bent = copy.frames.dof.clone()
    bent[20:] += 0.4
    copy = replace(copy, frames=replace(copy.frames, dof=bent))
    curve = error_curve(source, copy, humanoid, TrackingConfig())
    assert curve.times_s[0] == pytest.approx(4 / 30)
    assert np.abs(curve.bodies[:20]).max() < 1e-5
    assert np.abs(curve.root).max() < 1e-5
    from parc_ray.viewer.poses import ClipPoses

    mine = torch.from_numpy(ClipPoses(copy, humanoid).bodies[0])
    theirs = torch.from_numpy(ClipPoses(source, humanoid).bodies[0])[4:]
    shift = theirs[0, 0] - mine[0, 0]
    expected = body_distance(mine + shift, theirs).numpy()
    np.testing.assert_allclose(curve.bodies[:, 1:], expected, atol=1e-4)
    name, distance, limit = curve.worst()
    body = humanoid.skeleton.body_names.index(name)
    assert distance == pytest.approx(expected[-1, body - 1], abs=1e-4)
    assert limit == pytest.approx(float(humanoid.termination_distance[body - 1]))


def test_a_run_tells_why(tiny_run, humanoid, capsys):
    """Records as stage ``record`` writes them (``Outcome.record``)."""
    from parc_ray.correction.outcome import Attempt, Failure, Outcome
    from parc_ray.data.storage import Storage

    outcome = Outcome(
        source_id="sway",
        attempts=[
            Attempt(
                corrector="tracker",
                start_frame=0,
                frames=11,
                wanted=30,
                reason="body",
                failed_frame=12,
            )
        ],
        failures=[Failure(corrector="tracker", rule="ended", frame=12, reason="11 steps only")],
    )
    storage = Storage.from_uri(tiny_run)
    storage.write_json_atomic("it_01/record/records.json", [outcome.record()])
    told = explain(open_catalog(str(tiny_run), humanoid), "sway")
    assert told.at_s == pytest.approx(12 / 30)
    text = "\n".join(told.lines)
    assert "it_01/record: not corrected" in text
    assert "11 of 30 steps, ended by a body was too far from the motion at frame 12" in text
    assert "refused (ended) at frame 12: 11 steps only" in text
    view.run([str(tiny_run), "--why", "sway", "--text"])
    assert "not corrected" in capsys.readouterr().out


def test_a_candidate_that_was_dropped_tells_why(tiny_run, humanoid):
    from parc_ray.data.storage import Storage

    table = (
        "terrain,candidate,reason,tpl,tcl,progress,seam_jerk\n"
        "3,12,penetration: 99.1 m points against 80.0,99.1,2.0,0.5,100.0\n"
    )
    Storage.from_uri(tiny_run).write_bytes_atomic("it_01/generate/rejections.csv", table.encode())
    catalog = open_catalog(str(tiny_run), humanoid)
    told = explain(catalog, "it01_t00003_c012")
    assert "penetration: 99.1 m points against 80.0" in told.lines[0]
    assert told.shown == []
    with pytest.raises(InputError, match="neither a clip nor a rejected candidate"):
        explain(catalog, "it01_t00003_c013")


def test_what_is_missing_is_told(studio, tmp_path):
    bare = Workbench(studio=replace(studio, generator_path=None, tracker_path=None), out="x")
    with pytest.raises(InputError, match="there is no terrain yet"):
        bare.click((0.0, 0.0), Brush())
    bare.begin_flat(16)
    with pytest.raises(InputError, match="at least two are needed"):
        bare.plan(0)
    bare.click((-2.0, 0.0), Brush(tool="way-point"))
    bare.click((2.0, 0.0), Brush(tool="way-point"))
    with pytest.raises(InputError, match="--generator FILE"):
        bare.generate(s=0.5, seed=0, candidates=1, seconds=1.0)
    with pytest.raises(InputError, match="candidates: 900"):
        bare.generate(s=0.5, seed=0, candidates=900, seconds=1.0)
    with pytest.raises(InputError, match="cells: 3"):
        bare.begin_flat(3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere"),
        (["RUN", "--clip", "nobody"], "clip 'nobody'"),
        (["RUN", "--text"], "--text: belongs to --why"),
        (["RUN", "--why", "nosuch", "--port", "99999"], "clip 'nosuch'"),
        (["RUN", "--generator", "missing.pt"], "missing.pt does not exist"),
        (["RUN", "--port", "99999"], "--port 99999"),
        (["RUN", "--recipe", "none"], "--recipe"),
    ],
)
def test_wrong_words_are_told(tiny_run, words, message):
    with pytest.raises(InputError, match=message):
        view.run([str(tiny_run) if w == "RUN" else w for w in words])


def test_a_character_is_steered(studio):
    """The plan follows the keys, the simulated character the plan; falls set it back."""
    drive = LiveDrive(studio=studio, terrain=Heightfield.flat((24, 24)), windows=1)
    try:
        assert drive.steering.target(torch.zeros(2), 2.0).tolist() == pytest.approx([2.0, 0.0])
        first = drive.pose().root_pos[0, :2]
        for _ in range(2 * drive.rates.steps_per_plan + 1):
            drive.step()
        assert drive.steps == 2 * drive.rates.steps_per_plan + 1
        assert torch.isfinite(drive.pose().root_pos).all()
        assert (drive.pose().root_pos[0, :2] - first).norm() < 3.0
        assert drive.rates.hz > 0
        again = LiveDrive(studio=studio, terrain=Heightfield.flat((24, 24)), windows=1)
        for _ in range(drive.steps):
            again.step()
        assert torch.equal(again.pose().root_pos, drive.pose().root_pos)
        again.close()
    finally:
        drive.close()


def test_plans_begin_with_what_was_simulated(studio):
    drive = LiveDrive(studio=studio, terrain=Heightfield.flat((24, 24)), windows=1)
    try:
        drive._set_back = lambda: pytest.fail("it fell")  # type: ignore[method-assign]
        drive.task.failures = lambda seen, bad: torch.zeros(1, 4, dtype=torch.bool)
        for _ in range(drive.rates.steps_per_plan):
            drive.step()
        before = [frames.root_pos for frames in drive._history]
        past = torch.cat(before)
        drive._plan(cat_time(drive._history))
        assert torch.equal(drive.plan.frames.root_pos[: len(past)], past)
    finally:
        drive.close()


def test_keys_steer():
    steering = Steering(speed=0.5)
    steering.press("left")
    steering.press("left")
    steering.press("right")
    assert steering.heading == pytest.approx(np.deg2rad(20))
    steering.press("forward")
    assert steering.speed == 0.75
    ahead = steering.target(torch.tensor([1.0, 2.0]), 2.0)
    assert ahead.tolist() == pytest.approx([1 + 1.5 * np.cos(0.349066), 2 + 1.5 * np.sin(0.349066)])
    steering.press("stop")
    assert steering.target(torch.zeros(2), 2.0).tolist() == [0.0, 0.0]
