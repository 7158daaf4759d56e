"""Which candidates are kept: score, thresholds and the reason of every rejection.

score = w_pen TPL + w_contact TCL + penalty [unfinished] + w_progress (1 - share covered)
        + w_seam_jerk max(seam jerk - free, 0)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from parc_ray.character.character import Character
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.character.rotations import quat_to_matrix
from parc_ray.motion.frames import stack
from parc_ray.synthesis.config import SelectionConfig
from parc_ray.synthesis.contact_terms import BodyPoints, Ground, contact_sum, penetration_sum
from parc_ray.synthesis.kinopt_problem import pad_frames
from parc_ray.synthesis.rollout import Candidate
from parc_ray.terrain.heightfield import Heightfield, HeightfieldBatch

_BATCH_FRAMES = 8192
_WINDOW = 2


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Judgement of one candidate.

    Attributes:
        path_index: its path.
        index: its number on the path.
        tpl: summed penetration depth, m points.
        tcl: summed contact distance, m.
        seam_jerk: largest jerk of a body over a window seam, m/s^3.
        progress: share of the path covered, 0..1.
        score: lower is better; inf for failed roll-outs.
        kept: whether it is among the best of its path.
        reason: empty where kept, else why not.
    """

    path_index: int
    index: int
    tpl: float
    tcl: float
    seam_jerk: float
    progress: float
    score: float
    kept: bool
    reason: str


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Verdicts of all candidates, in their order, and positions of the kept ones, best first."""

    verdicts: tuple[Verdict, ...]
    kept: tuple[int, ...]

    def rejections(self) -> dict[str, int]:
        """How often each reason was given (numbers in the reasons are left out)."""
        return dict(Counter(v.reason.split(":")[0] for v in self.verdicts if not v.kept))


def seam_jerk(body_pos: Tensor, seams: Sequence[int], fps: float) -> float:
    """Largest jerk of any body over the four frames around each seam.

    Args:
        body_pos: (T, B, 3) metres.
        seams: first frames of new windows.
        fps: frames per second.

    Returns:
        m/s^3; 0 where there is no seam.
    """
    if len(body_pos) < 4 or not seams:
        return 0.0
    third = body_pos[3:] - 3.0 * body_pos[2:-1] + 3.0 * body_pos[1:-2] - body_pos[:-3]
    size = third.norm(dim=-1).amax(-1) * fps**3
    starts = {s - k for s in seams for k in (1, 2, 3) if 0 <= s - k < len(size)}
    return float(size[sorted(starts)].max()) if starts else 0.0


def penetration_and_contact(
    candidates: Sequence[Candidate],
    terrains: Sequence[Heightfield],
    character: Character,
    fps: float,
) -> list[tuple[float, float, float]]:
    """TPL (m points), TCL (m) and seam jerk (m/s^3) of candidates with at least one frame.

    Distances beyond two cells count as two cells or a little more; such candidates are far beyond
    every threshold.
    """
    points = BodyPoints.of(character)
    order = sorted(range(len(candidates)), key=lambda i: -candidates[i].frames.num_frames)
    out: list[tuple[float, float, float]] = [(0.0, 0.0, 0.0)] * len(candidates)
    while order:
        longest = candidates[order[0]].frames.num_frames
        size = max(1, _BATCH_FRAMES // longest)
        ids, order = order[:size], order[size:]
        group = [candidates[i] for i in ids]
        frames = stack([pad_frames(c.frames, longest) for c in group])
        lengths = torch.tensor([c.frames.num_frames for c in group])
        mask = torch.arange(longest)[None] < lengths[:, None]
        batch = HeightfieldBatch.stack([terrains[c.path_index] for c in group])
        ground = Ground.of(batch, float(points.reach.max()), _WINDOW)
        pos, quat = fk_from_dof(character.skeleton, frames.root_pos, frames.root_rot, frames.dof)
        mat = quat_to_matrix(quat)
        tpl = penetration_sum(pos, mat, mask, points, ground)
        tcl = contact_sum(pos, mat, frames.contacts, mask, points, ground)
        for k, i in enumerate(ids):
            jerk = seam_jerk(pos[k, : int(lengths[k])], group[k].seams, fps)
            out[i] = (float(tpl[k]), float(tcl[k]), jerk)
    return out


def score_candidate(
    tpl: float, tcl: float, jerk: float, candidate: Candidate, cfg: SelectionConfig
) -> float:
    """Weighted score of a candidate that did not fail; lower is better."""
    score = cfg.w_penetration * tpl + cfg.w_contact * tcl
    score += cfg.w_progress * (1.0 - candidate.progress)
    score += cfg.w_seam_jerk * max(jerk - cfg.seam_jerk_free_m_s3, 0.0)
    return score + (0.0 if candidate.finished else cfg.unfinished_penalty)


def rejection_reason(
    tpl: float, tcl: float, score: float, candidate: Candidate, cfg: SelectionConfig
) -> str:
    """Why a candidate is not acceptable, empty if it is; the first of the tests that fails."""
    if candidate.failure:
        return f"failed ({candidate.failure})"
    tests = (
        (candidate.frames.num_frames < cfg.min_frames, "too short", "frames",
         candidate.frames.num_frames, cfg.min_frames),
        (cfg.require_finished and not candidate.finished, "unfinished", "of the path",
         round(candidate.progress, 3), 1),
        (candidate.progress < cfg.min_progress, "little progress", "of the path",
         round(candidate.progress, 3), cfg.min_progress),
        (tpl > cfg.max_penetration, "penetration", "m points", round(tpl, 2), cfg.max_penetration),
        (tcl > cfg.max_contact, "contact", "m", round(tcl, 2), cfg.max_contact),
        (score > cfg.max_score, "score", "", round(score, 2), cfg.max_score),
    )  # fmt: skip
    for failed, name, unit, value, limit in tests:
        if failed:
            return f"{name}: {value} {unit} against {limit}".replace("  ", " ")
    return ""


def select_candidates(
    candidates: Sequence[Candidate],
    terrains: Sequence[Heightfield],
    character: Character,
    cfg: SelectionConfig,
    fps: float,
) -> Selection:
    """Judge all candidates and keep the ``top_k`` best acceptable ones of every path.

    Args:
        candidates: of any number of paths.
        terrains: by path index.
        character: the character.
        cfg: weights and thresholds.
        fps: frames per second.

    Returns:
        A verdict per candidate; a path with fewer acceptable ones keeps those it has.
    """
    whole = [i for i, c in enumerate(candidates) if not c.failure and c.frames.num_frames > 0]
    figures = penetration_and_contact([candidates[i] for i in whole], terrains, character, fps)
    known = dict(zip(whole, figures, strict=True))
    rows: list[tuple[float, float, float, float, str]] = []
    for i, c in enumerate(candidates):
        tpl, tcl, jerk = known.get(i, (float("nan"),) * 3)
        score = score_candidate(tpl, tcl, jerk, c, cfg) if i in known else float("inf")
        rows.append((tpl, tcl, jerk, score, rejection_reason(tpl, tcl, score, c, cfg)))
    ranked = sorted((i for i, r in enumerate(rows) if not r[4]), key=lambda i: (rows[i][3], i))
    taken: Counter[int] = Counter()
    kept: list[int] = []
    for i in ranked:
        if taken[candidates[i].path_index] < cfg.top_k:
            taken[candidates[i].path_index] += 1
            kept.append(i)
    chosen = set(kept)
    verdicts = tuple(
        Verdict(
            path_index=c.path_index,
            index=c.index,
            tpl=tpl,
            tcl=tcl,
            seam_jerk=jerk,
            progress=c.progress,
            score=score,
            kept=i in chosen,
            reason=reason or ("" if i in chosen else "not among the best"),
        )
        for i, (c, (tpl, tcl, jerk, score, reason)) in enumerate(zip(candidates, rows, strict=True))
    )
    return Selection(verdicts=verdicts, kept=tuple(kept))
