from __future__ import annotations

import pytest
import torch

from parc_ray.synthesis.config import SelectionConfig
from parc_ray.synthesis.rollout import Candidate
from parc_ray.synthesis.selection import (
    penetration_and_contact,
    rejection_reason,
    score_candidate,
    seam_jerk,
    select_candidates,
)
from parc_ray.terrain.heightfield import Heightfield
from tests.synthesis.helpers import standing


def candidate(humanoid, *, frames=40, lift=0.0, path=0, index=0, finished=True, failure=""):
    pos = torch.zeros(frames, 3)
    pos[:, 2] = humanoid.stand_height + lift
    return Candidate(
        path_index=path,
        index=index,
        frames=standing(humanoid, pos, torch.zeros(frames)),
        finished=finished,
        failure=failure,
        progress_m=1.0,
        path_length_m=4.0,
        windows=5,
        seams=(9, 16),
    )


def test_worked_figures_of_a_standing_character(humanoid):
    flat = Heightfield.flat((16, 16))
    up, down = candidate(humanoid, lift=0.03), candidate(humanoid, lift=-0.01, frames=10)
    figures = penetration_and_contact([up, down], [flat], humanoid, 30.0)
    # Two feet 3 cm in the air for 40 frames; 36 sole points 1 cm deep for 10 frames.
    assert figures[0][0] == 0.0
    assert figures[0][1] == pytest.approx(2 * 40 * 0.03, rel=1e-3)
    assert figures[1][0] == pytest.approx(36 * 10 * 0.01, rel=1e-3)
    assert figures[1][1] == 0.0


def test_score_worked_by_hand(humanoid):
    cfg = SelectionConfig()
    done, open_ = candidate(humanoid), candidate(humanoid, finished=False)
    assert score_candidate(20.0, 5.0, 0.0, done, cfg) == pytest.approx(2.5)
    # + 0.75 of the path missing, + 100, + 0.001 * 1000 of jerk over the free one
    jerk = cfg.seam_jerk_free_m_s3 + 1000.0
    assert score_candidate(20.0, 5.0, jerk, open_, cfg) == pytest.approx(2.5 + 0.75 + 100 + 1)


@pytest.mark.parametrize(
    ("tpl", "tcl", "score", "kwargs", "word"),
    [
        (0.0, 0.0, 0.0, {}, ""),
        (0.0, 0.0, 0.0, {"failure": "not finite"}, "failed (not finite)"),
        (0.0, 0.0, 0.0, {"finished": False}, "unfinished"),
        (0.0, 0.0, 0.0, {"frames": 20}, "too short"),
        (81.0, 0.0, 8.1, {}, "penetration"),
        (0.0, 31.0, 3.1, {}, "contact"),
        (0.0, 0.0, 31.0, {}, "score"),
    ],
)
def test_every_threshold_has_its_reason(humanoid, tpl, tcl, score, kwargs, word):
    reason = rejection_reason(tpl, tcl, score, candidate(humanoid, **kwargs), SelectionConfig())
    assert reason.split(":")[0] == word


def test_seam_jerk_sees_only_seams():
    pos = torch.zeros(30, 2, 3)
    pos[20:, 1, 0] = 0.1
    assert seam_jerk(pos, (10,), 30.0) == 0.0
    # The third difference of a step of 0.1 is 0.1, -0.2, 0.1: largest 0.2 * 30^3.
    assert seam_jerk(pos, (20,), 30.0) == pytest.approx(0.2 * 27000)
    assert seam_jerk(pos, (), 30.0) == 0.0


def test_best_of_each_path_are_kept_and_every_rejection_has_a_reason(humanoid):
    flat = Heightfield.flat((16, 16))
    lifts = (0.02, 0.0, 0.01, 0.03)
    first = [candidate(humanoid, lift=v, index=i) for i, v in enumerate(lifts)]
    second = [
        candidate(humanoid, path=1, index=0, finished=False),
        candidate(humanoid, path=1, index=1),
        candidate(humanoid, path=1, index=2, failure="not finite"),
    ]
    result = select_candidates(
        first + second, [flat, flat], humanoid, SelectionConfig(top_k=2), 30.0
    )
    assert set(result.kept) == {1, 2, 5}
    assert [v.kept for v in result.verdicts] == [i in result.kept for i in range(7)]
    assert all(bool(v.reason) != v.kept for v in result.verdicts)
    assert result.rejections() == {
        "not among the best": 2,
        "unfinished": 1,
        "failed (not finite)": 1,
    }
    scores = [result.verdicts[i].score for i in result.kept]
    assert scores == sorted(scores)
