from __future__ import annotations

import math

import pytest
import torch

from parc_ray.errors import InputError
from parc_ray.synthesis.config import RolloutConfig, SelectionConfig
from parc_ray.synthesis.rollout import generate_candidates
from parc_ray.synthesis.selection import select_candidates
from parc_ray.terrain.heightfield import Heightfield
from tests.synthesis.helpers import Glider


def straight(length: float) -> torch.Tensor:
    return torch.tensor([[0.0, 0.0, 0.0], [length, 0.0, 0.0]])


def ground() -> Heightfield:
    return Heightfield.flat((40, 40))


def test_all_finish_at_the_same_check_and_are_counted_as_finished(humanoid):
    glider = Glider(humanoid)
    cfg = RolloutConfig(candidates=4, settle_windows=0)
    out = generate_candidates(glider, [ground()], [straight(2.0)], humanoid, cfg, 0)
    assert [c.finished for c in out] == [True] * 4
    assert [c.progress for c in out] == [1.0] * 4
    assert all(not c.failure for c in out)
    # 9 frames, then 7 per window at 5 cm a frame: within 0.5 m of 2 m from frame 30 on.
    feet_x = out[0].frames.root_pos[:, 0]
    assert len(feet_x) == 9 + 7 * (out[0].windows - 1)
    reached = (feet_x > 1.5 - 0.1).nonzero()[0, 0]
    assert len(feet_x) - int(reached) <= 2 * 7
    assert len(glider.calls) == out[0].windows


def test_frames_are_continuous_over_seams(humanoid):
    cfg = RolloutConfig(candidates=1)
    (c,) = generate_candidates(Glider(humanoid), [ground()], [straight(4.0)], humanoid, cfg, 0)
    step = c.frames.root_pos[:, 0].diff()
    assert torch.allclose(step[: len(step) - 14], torch.tensor(1.5 / 30), atol=1e-4)
    assert c.seams == tuple(9 + 7 * k for k in range(c.windows - 1))


def test_settling_adds_exactly_its_windows(humanoid):
    runs = [
        generate_candidates(
            Glider(humanoid),
            [ground()],
            [straight(2.0)],
            humanoid,
            RolloutConfig(candidates=1, settle_windows=k),
            0,
        )[0]
        for k in (0, 1, 2)
    ]
    assert [r.frames.num_frames - runs[0].frames.num_frames for r in runs] == [0, 7, 14]
    assert all(r.finished for r in runs)


def test_finished_ones_leave_the_batch_and_keep_their_frames(humanoid):
    glider = Glider(humanoid)
    cfg = RolloutConfig(candidates=2, settle_windows=1)
    out = generate_candidates(
        glider, [ground(), ground()], [straight(1.5), straight(5.0)], humanoid, cfg, 0
    )
    assert [c.finished for c in out] == [True] * 4
    assert glider.calls[0] == 4
    assert glider.calls[-1] == 2
    assert sum(glider.calls) == sum(c.windows for c in out)
    assert out[0].frames.num_frames < out[2].frames.num_frames
    assert [(c.path_index, c.index) for c in out] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert out[2].progress_m == pytest.approx(5.0, abs=0.6)


def test_time_cap_marks_unfinished(humanoid):
    cfg = RolloutConfig(candidates=2, max_duration_s=1.0)
    out = generate_candidates(Glider(humanoid), [ground()], [straight(7.0)], humanoid, cfg, 0)
    for c in out:
        assert not c.finished
        assert not c.failure
        assert c.frames.num_frames == 31
        assert 0.1 < c.progress < 0.3


def test_nan_candidate_is_recorded_and_the_rest_goes_on(humanoid):
    glider = Glider(humanoid)
    glider.nan_after = 2
    cfg = RolloutConfig(candidates=3)
    out = generate_candidates(glider, [ground()], [straight(2.5)], humanoid, cfg, 0)
    assert [c.failure for c in out] == ["not finite"] * 3  # the first of the batch, each time
    glider = Glider(humanoid)
    glider.nan_after = 4
    out = generate_candidates(glider, [ground()], [straight(1.2)], humanoid, cfg, 0)
    assert all(c.finished for c in out if not c.failure)
    assert all(torch.isfinite(c.frames.root_pos).all() for c in out)


def test_leaving_the_terrain_is_a_failure(humanoid):
    glider = Glider(humanoid)
    glider.drift = torch.tensor([0.0, 1.0])
    small = Heightfield.flat((6, 6))
    cfg = RolloutConfig(candidates=1, lost_margin_m=0.5)
    (c,) = generate_candidates(glider, [small], [straight(1.0)], humanoid, cfg, 0)
    assert c.failure == "left the terrain"
    assert not c.finished
    assert float(c.frames.root_pos[:, 1].max()) < 1.2 + 0.5


def test_stalling_is_given_up(humanoid):
    glider = Glider(humanoid, speed=0.0)
    cfg = RolloutConfig(candidates=1, stall_s=1.0)
    (c,) = generate_candidates(glider, [ground()], [straight(4.0)], humanoid, cfg, 0)
    assert c.failure == "no progress"
    assert c.frames.num_frames < 60


def test_start_heights_do_not_depend_on_the_batch(humanoid):
    class Recorder(Glider):
        def sample(self, request, rng):
            if request.past is None:
                self.start = request.anchor_pos.clone()
                self.heading = request.anchor_heading.clone()
            return super().sample(request, rng)

    few, many = Recorder(humanoid), Recorder(humanoid)
    path = torch.tensor([[0.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    generate_candidates(few, [ground()], [path], humanoid, RolloutConfig(candidates=2), 5)
    generate_candidates(many, [ground()] * 2, [path] * 2, humanoid, RolloutConfig(candidates=3), 5)
    assert torch.equal(few.start, many.start[:2])
    assert few.heading.tolist() == pytest.approx([math.pi / 2] * 2)
    assert ((many.start[:, 2] >= 0.7) & (many.start[:, 2] <= 0.9)).all()
    assert len(set(many.start[:, 2].tolist())) == 6


def test_candidates_that_finish_in_the_last_check_are_not_charged_as_unfinished(humanoid):
    """The published code adds 100 where all candidates arrive at the same check."""
    cfg = RolloutConfig(candidates=3, settle_windows=0)
    flat = ground()
    out = generate_candidates(Glider(humanoid), [flat], [straight(2.0)], humanoid, cfg, 0)
    assert len({c.windows for c in out}) == 1
    chosen = select_candidates(out, [flat], humanoid, SelectionConfig(min_frames=1), 30.0)
    assert len(chosen.kept) == 2
    assert max(v.score for v in chosen.verdicts) < 100.0
    assert {v.reason for v in chosen.verdicts if not v.kept} == {"not among the best"}


def test_going_back_does_not_undo_progress(humanoid):
    class Returning(Glider):
        def sample(self, request, rng):
            if len(self.calls) == 5:
                self.drift = torch.tensor([-1.0, 0.0])
            return super().sample(request, rng)

    cfg = RolloutConfig(candidates=1, max_duration_s=2.5)
    (c,) = generate_candidates(Returning(humanoid), [ground()], [straight(7.0)], humanoid, cfg, 0)
    x = c.frames.root_pos[:, 0]
    assert float(x.max()) - float(x[-1]) > 0.5
    assert c.progress_m == pytest.approx(float(x.max()), abs=1e-3)


def test_a_rounded_path_is_followed_where_asked_for(humanoid):
    corner = torch.tensor([[0.0, 0.0, 0.0], [3.0, 0.0, 0.0], [3.0, 3.0, 0.0]])
    lengths = []
    for smooth_m in (0.0, 1.6):
        cfg = RolloutConfig(candidates=1, smooth_m=smooth_m)
        (c,) = generate_candidates(Glider(humanoid), [ground()], [corner], humanoid, cfg, 0)
        assert c.finished
        lengths.append(c.path_length_m)
    assert lengths[0] == pytest.approx(6.0)
    assert 5.0 < lengths[1] < 5.9


def test_rewind_that_leaves_nothing_is_refused(humanoid):
    with pytest.raises(InputError, match="rewind"):
        generate_candidates(
            Glider(humanoid), [ground()], [straight(1.0)], humanoid, RolloutConfig(rewind=12), 0
        )
