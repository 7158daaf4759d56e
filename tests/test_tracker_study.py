from __future__ import annotations

import csv
import json

import pytest
import torch

from benchmarks import _study, tracker_study, tracker_study_parts
from benchmarks.tracker_study import Run
from benchmarks.tracker_study_parts import Training, load_take, setting
from benchmarks.tracker_study_plan import GOALS, PLAN, VARIANTS
from parc_ray.errors import InputError
from tests.envs.helpers import sway_clip

SMALL = {"ppo.hidden": [8], "ppo.num_envs": 4, "ppo.horizon": 4, "ppo.minibatch": 8}
CURVE = (
    "cpu_s,samples,start_completed,start_survived,random_completed\n"
    "75,1e5,0.5,0.7,0.8\n150,2e5,0.25,0.9,0.6\n"
)


def test_every_run_of_the_plan_can_be_made():
    for text in PLAN:
        run = Run.parse(text)
        assert run.take in GOALS
        assert Run.parse(str(run)) == run
    for preset, changes in VARIANTS.values():
        config = setting(preset, 5, changes)
        assert (config.ppo.seed, config.ppo.threads) == (5, 1)


def test_wrong_words_are_refused():
    with pytest.raises(InputError, match="take:variant:seed:cpu_s"):
        Run.parse("run30:quick")
    with pytest.raises(InputError, match="variant 'nonsense' is unknown"):
        Run.parse("run30:nonsense:0:10")
    with pytest.raises(InputError, match=r"task\.nonsense"):
        setting("quick", 0, {"task.nonsense": 1})
    with pytest.raises(InputError, match="preset 'nonsense'"):
        setting("nonsense", 0)


def test_settings_by_dotted_key():
    config = setting(
        "quick", 3, {"ppo.gamma": 0.9, "task.reward.root_tight": 0.5, "cell_size": 0.2}
    )
    assert (config.ppo.gamma, config.task.reward.root_tight, config.cell_size) == (0.9, 0.5, 0.2)


def test_page_and_tables_from_what_is_there(tmp_path):
    """The best test decides, the last random one is told; a run without an end is `stopped`."""
    variant = next(iter(VARIANTS))
    for seed in (0, 1):
        (tmp_path / f"run30__{variant}__{seed}").mkdir()
        (tmp_path / f"run30__{variant}__{seed}" / "curve.csv").write_text(CURVE)
    done = {
        "reached_cpu_s": 150.0,
        "fresh_start_completed": 0.95,
        "fresh_start_body_global_m": 0.1,
    }
    (tmp_path / f"run30__{variant}__1.json").write_text(json.dumps(done))
    out = tmp_path / "out"
    (out / "tracker_study").mkdir(parents=True)
    (out / "tracker_study" / "notes.md").write_text("By hand.\n")
    tracker_study.main(["--work", str(tmp_path), "--out", str(out), "--report"])
    page = (out / "tracker_study.md").read_text()
    assert "By hand." in page
    with (out / "tracker_study" / "runs.csv").open() as file:
        first, second = csv.DictReader(file)
    assert (first["best_start_completed"], first["best_cpu_s"]) == ("0.5", "75")
    assert (first["best_start_survived"], first["last_random_completed"]) == ("0.9", "0.6")
    assert (first["reached_cpu_s"], first["ended"]) == ("", "stopped")
    assert (second["reached_cpu_s"], second["ended"]) == ("150", "goal reached")
    assert (out / "tracker_study" / f"run30__{variant}__0.csv").read_text() == CURVE
    assert (out / "tracker_study" / "curves.png").stat().st_size > 5_000


def test_what_is_done_is_not_done_again(tmp_path, monkeypatch):
    started = []
    names = [f"run30:{next(iter(VARIANTS))}:{seed}:10" for seed in range(3)]
    runs = [Run.parse(text) for text in names]

    class Process:
        pid = 1

        def __init__(self, name: str) -> None:
            self.name = name

        def poll(self) -> int:
            if self.name == runs[2].name:
                return 3
            (tmp_path / f"{self.name}.json").write_text("{}")
            return 0

    def start(script, work, job):
        started.append(job.name)
        return Process(job.name)

    monkeypatch.setattr(_study, "start", start)
    monkeypatch.setattr(tracker_study, "write_report", lambda work, out: None)
    monkeypatch.setattr(_study, "POLL_S", 0.0)
    (tmp_path / f"{runs[1].name}.json").write_text("{}")
    with pytest.raises(SystemExit, match=runs[2].name):
        tracker_study.main(["--work", str(tmp_path), "--jobs", "1", "--runs", *names])
    assert started == [runs[0].name, runs[2].name]


def test_a_training_goes_on_bit_for_bit(tmp_path, humanoid, monkeypatch):
    """Three iterations and a test in one piece, and with a break: same weights, same rows."""
    monkeypatch.setattr(tracker_study_parts, "EPISODES", 2)
    monkeypatch.setattr(tracker_study_parts, "RETEST_SEEDS", 2)
    config = setting("quick", 1, {**SMALL, "ppo.noise_memory": 0.5, "ppo.bf16": False})
    clips = [sway_clip(humanoid)]

    def training(name):
        return Training(humanoid, clips, config, tmp_path / name)

    whole = training("whole")
    whole.iterate()
    whole.test()
    whole.iterate()
    whole.iterate()
    broken = training("broken")
    broken.iterate()
    broken.test()
    broken.save()
    broken.close()
    again = training("broken")
    assert again.samples == 16
    again.iterate()
    again.iterate()
    for name, tensor in whole.module.state_dict().items():
        assert torch.equal(tensor, again.module.state_dict()[name]), name
    timed = {"cpu_s", "test_cpu_s"}
    one, two = whole.test(), again.test()
    assert {k: v for k, v in one.items() if k not in timed} == {
        k: v for k, v in two.items() if k not in timed
    }
    assert one["samples"] == 48
    assert {"start_completed", "random_survived", "start_end/root_pos", "lr"} <= one.keys()
    found = again.retest()
    assert found["start_completed_least"] <= found["start_completed"]
    whole.close()
    again.close()


@pytest.mark.slow
def test_takes_are_whole_and_have_their_ground(shared_data, humanoid):
    """stairs03 is 4.3 s long and climbs; a take that is not there is refused."""
    data = str(shared_data / "parc_clips")
    clip = load_take(data, "stairs03", humanoid, 0.4)
    assert clip.num_frames == pytest.approx(4.3 * 30, abs=2)
    ground = clip.terrain.height_at(clip.frames.root_pos[:, :2])
    assert float(ground.max() - ground.min()) > 0.3
    with pytest.raises(InputError, match="humanoid_nonsense"):
        load_take(data, "nonsense", humanoid, 0.4)
