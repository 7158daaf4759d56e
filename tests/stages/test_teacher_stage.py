"""``train-tracker`` with ``mpc_teacher``: MPC shows, the policy imitates, PPO starts from there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from algorithms.mpc.config import MpcConfig, PolishConfig
from algorithms.ppo.policy import MlpPolicy
from parc_ray.correction.config import CorrectionConfig, TeacherConfig
from parc_ray.plan import plan
from parc_ray.recipes import get_recipe
from parc_ray.stages import _teacher as module
from parc_ray.stages.train_tracker import STAGE
from tests.envs.helpers import stand_clip, sway_clip
from tests.stages.helpers import put_clips, run_body

SMOKE = get_recipe("smoke")
CONFIG = replace(
    SMOKE,
    d0=replace(SMOKE.d0, correction="mpc_teacher", tracker=replace(SMOKE.d0.tracker, samples=2048)),
    correction=CorrectionConfig(
        mpc=MpcConfig(
            samples=8, horizon=4, knots=2, iterations=1, rewinds=0, polish=PolishConfig(passes=0)
        ),
        mpc_retries=0,
        mpc_stronger_retry=False,
        mpc_backoff_s=0.1,
        min_segment_s=0.5,
        teacher=TeacherConfig(epochs=5, critic_only_iterations=1000),
    ),
)


@pytest.fixture
def here(monkeypatch):
    """Work items run in this process, without Ray."""
    original = module.run_items

    def inline(directory, items, make_worker, arguments, pool, label):
        return original(directory, items, make_worker, arguments, replace(pool, actors=0), label)

    monkeypatch.setattr(module, "run_items", inline)


def test_iteration_0_trains_a_tracker_and_later_ones_start_from_it():
    stages = {(s.iteration, s.name): s for s in plan(CONFIG)}
    assert "tracker" in stages[0, "record"].inputs
    assert (0, "train-tracker") in stages
    assert CONFIG.teaches(0)
    assert not CONFIG.teaches(1)
    section = STAGE.section(CONFIG, 0)
    assert section["correction"].strategy == "mpc_teacher"
    assert "correction" not in STAGE.section(SMOKE, 1)


@pytest.mark.slow
def test_ppo_starts_from_what_mpc_showed(tmp_path, humanoid, here, ray_session):
    """While the critic alone is trained, the policy stays what was cloned, to the last digit."""
    clips = [
        stand_clip(humanoid, 31),
        sway_clip(humanoid, 31, amplitude=0.05),
        sway_clip(humanoid, 31, "flee", speed=8.0),
    ]
    motions = put_clips(tmp_path, "it_00/augment", clips, humanoid)
    result = run_body(tmp_path, "train-tracker", STAGE.body, {"motions": motions}, CONFIG, 0)
    metrics = result.metrics
    assert (metrics["teacher/clips"], metrics["teacher/shown"]) == (3, 2)
    assert metrics["teacher/pairs"] > 60
    assert metrics["teacher/mpc_cpu_s"] > 0
    home = tmp_path / "it_00/train-tracker"
    taught = MlpPolicy.load(home / "teacher.pt")
    assert taught.notes["demonstrations"] == 2
    assert MlpPolicy.load(home / "policy.pt").digest == taught.digest
    assert (home / "clips.csv").exists() == bool(CONFIG.tracker.evaluate_every)
