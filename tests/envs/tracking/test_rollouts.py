from __future__ import annotations

import pytest
import torch

from envs.sims.registry import backend_factory
from envs.tracking import config as presets
from envs.tracking.observations import Observed
from envs.tracking.rollouts import ERRORS, EpisodeRunner, tracking_errors
from envs.tracking.task import REASONS, Noise
from parc_ray.character.rotations import quat_from_exp, quat_mul
from tests.envs.helpers import assert_same, stand_clip, sway_clip


class Collapse:
    """Lets every joint go wild."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.seen = 0

    def act(self, obs: torch.Tensor) -> torch.Tensor:
        self.seen = obs.shape[1]
        return torch.full((len(obs), self.size), 3.0)


@pytest.fixture(scope="module")
def runner(humanoid):
    clips = [stand_clip(humanoid, 21), sway_clip(humanoid, 46)]
    out = EpisodeRunner(humanoid, clips, presets.base(), backend_factory("mujoco_cpu", humanoid), 4)
    yield out
    out.close()


def test_playback_of_a_standing_clip_completes(runner):
    clip = torch.zeros(2, dtype=torch.long)
    out = runner.run(None, clip, torch.tensor([0, 12]))
    assert out.completed.tolist() == [True, True]
    assert out.steps.tolist() == out.remaining.tolist() == [20, 8]
    assert out.survived.tolist() == [1.0, 1.0]
    assert out.reason.tolist() == [-1, -1]
    assert float(out.errors.max()) < 0.1
    summary = out.summary()
    assert summary["completed"] == 1.0
    assert summary["contact_agreement"] > 0.9


def test_a_policy_is_asked_and_its_failure_counted(runner, humanoid):
    policy = Collapse(humanoid.skeleton.num_dofs)
    out = runner.run(policy, torch.tensor([1]), torch.tensor([0]))
    assert policy.seen == runner.task.builder.layout.size
    assert out.completed.tolist() == [False]
    assert 0 < int(out.steps) < int(out.remaining)
    assert REASONS[int(out.reason)] in {"body", "root_pos", "root_rot"}
    assert out.summary()["survived"] == pytest.approx(float(out.steps) / 45)


def test_results_do_not_depend_on_how_many_run_at_once(runner, humanoid):
    clip = torch.tensor([0, 1, 0, 1, 1])
    start = torch.tensor([0, 0, 3, 7, 20])
    together = runner.run(None, clip, start, Noise(pos=0.02, vel=0.05), seed=4, keep=True)
    assert together.states is not None
    assert together.states.root_pos.shape[1] == 5
    assert together.states.root_pos.shape[0] > int(together.steps.max())
    again = runner.run(None, clip, start, Noise(pos=0.02, vel=0.05), seed=4, keep=True)
    assert_same(together.states, again.states)
    factory = backend_factory("mujoco_cpu", humanoid)
    alone = EpisodeRunner(humanoid, runner.bank.clips, presets.base(), factory, 1)
    single = alone.run(None, clip, start, Noise(pos=0.02, vel=0.05), seed=4)
    assert torch.equal(single.steps, together.steps)
    torch.testing.assert_close(single.errors, together.errors, equal_nan=True)


def test_standard_tests_cover_every_clip(runner):
    from_start = runner.run_from_start(None, 3)
    assert from_start.clip.tolist() == [0, 0, 0, 1, 1, 1]
    assert from_start.start.tolist() == [0] * 6
    anywhere = runner.run_random(None, 3)
    assert bool((anywhere.start <= runner.bank.length[anywhere.clip] - 16).all())
    assert anywhere.summary(anywhere.clip == 1)["episodes"] == 3.0


def test_errors_by_hand(runner, humanoid):
    """Everything moved by (0.3, 0, 0.4), one foot by another 0.15, the root turned by 0.2."""
    clip, frame = torch.tensor([0]), torch.tensor([0])
    state = runner.task.start_state(clip, frame, Noise(), None)
    refs = runner.task.references(clip, frame)
    seen: Observed = runner.task.observe(state, refs, clip, frame)
    seen.body_pos = seen.current.body_pos + torch.tensor([0.3, 0.0, 0.4])
    seen.body_pos[:, humanoid.feet[0], 1] += 0.15
    state.root_rot[:] = quat_mul(seen.current.root_rot, quat_from_exp(torch.tensor([[0.2, 0, 0]])))
    seen.joint_rot = seen.current.joint_rot
    got = dict(zip(ERRORS, tracking_errors(seen)[0].tolist(), strict=True))
    bodies = humanoid.skeleton.num_bodies
    assert got["body_local_m"] == pytest.approx(0.15 / bodies, abs=1e-5)
    moved = (0.25 + 0.15**2) ** 0.5
    assert got["body_global_m"] == pytest.approx(((bodies - 1) * 0.5 + moved) / bodies, abs=1e-5)
    assert got["root_pos_m"] == pytest.approx(0.5, abs=1e-5)
    assert got["root_rot_rad"] == pytest.approx(0.2, abs=1e-4)
    assert got["joint_rad"] == 0.0
