"""Kinematic optimisation of many motions at once (PARC, eq. 15).

Motions are sorted by length into batches of bounded size, padded and optimised together by Adam;
each motion is judged alone and leaves the batch when it has converged.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from parc_ray.character import rotations as rot
from parc_ray.character.character import Character
from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip
from parc_ray.motion.frames import MotionFrames
from parc_ray.synthesis.config import OptimizerConfig
from parc_ray.synthesis.kinopt_problem import Body, Problem, evaluate_terms, total_loss
from parc_ray.synthesis.kinopt_steps import Descent

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class MotionReport:
    """What the optimisation did to one motion.

    Attributes:
        clip_id: the clip.
        iterations: Adam steps taken.
        converged: whether it stopped early.
        nonfinite: values of loss and gradient that were not finite; where there are any, the
            motion stopped there and keeps its last good state.
        loss_before: weighted loss of the source motion.
        loss_after: weighted loss of the result, never above ``loss_before``.
        before: unweighted value of every term on the source; ``penetration`` is TPL (m points),
            ``contact`` TCL (m), with edge cells extended.
        after: the same on the result.
    """

    clip_id: str
    iterations: int
    converged: bool
    nonfinite: int
    loss_before: float
    loss_after: float
    before: dict[str, float]
    after: dict[str, float]


def optimize_motions(
    clips: Sequence[MotionClip],
    character: Character,
    cfg: OptimizerConfig,
    device: torch.device | str = "cpu",
) -> list[tuple[MotionClip, MotionReport]]:
    """Move motions out of their terrain and onto their contacts, staying near the source.

    Args:
        clips: motions with terrain and contact labels; contacts stay fixed. Lengths may differ,
            cell sizes and frame rates of one batch may not (they are grouped here).
        character: the character of all clips.
        cfg: weights and schedule.
        device: where to compute.

    Returns:
        For each clip, in order, the adapted clip (``kin_*`` metrics before and after added) and
        its report.
    """
    device = torch.device(device)
    body = Body.of(character, device)
    for clip in clips:
        if clip.num_frames < 2:
            raise InputError(
                f"{clip.clip_id}: {clip.num_frames} frames cannot be optimised; "
                "give 2 frames or more"
            )
    results: dict[int, tuple[MotionClip, MotionReport]] = {}
    for ids in _batches(clips, cfg.batch_frames):
        group = [clips[i] for i in ids]
        results.update(zip(ids, _optimize_batch(group, body, cfg, device), strict=True))
    return [results[i] for i in range(len(clips))]


def _batches(clips: Sequence[MotionClip], max_frames: int) -> list[list[int]]:
    """Group clips of equal rate and cell size, similar length and at most ``max_frames``."""

    def kind(i: int) -> tuple[float, float]:
        return (round(clips[i].fps, 6), round(clips[i].terrain.cell_size, 6))

    order = sorted(range(len(clips)), key=lambda i: (kind(i), -clips[i].num_frames, i))
    groups: list[list[int]] = []
    for i in order:
        last = groups[-1] if groups else []
        fits = last and (len(last) + 1) * clips[last[0]].num_frames <= max_frames
        if last and fits and kind(last[0]) == kind(i):
            last.append(i)
        else:
            groups.append([i])
    return groups


def _optimize_batch(
    clips: Sequence[MotionClip], body: Body, cfg: OptimizerConfig, device: torch.device
) -> list[tuple[MotionClip, MotionReport]]:
    """Optimise one padded batch and unpack it."""
    problem = Problem.build(clips, body, cfg, device)
    start = problem.start()
    with torch.no_grad():
        before = evaluate_terms(problem, body, start, cfg, everything=True)
    best = Descent(problem, body, start, cfg).run()
    with torch.no_grad():
        after = evaluate_terms(problem, body, best.x, cfg, everything=True)
        loss_before, loss_after = total_loss(before, cfg), total_loss(after, cfg)
        pos, quat, dof = problem.poses(best.x)
        quat = rot.quat_positive(rot.quat_normalize(quat))
    out = []
    for n, clip in enumerate(clips):
        report = MotionReport(
            clip_id=clip.clip_id,
            iterations=int(best.steps[n]),
            converged=bool(best.converged[n]),
            nonfinite=int(best.nonfinite[n]),
            loss_before=float(loss_before[n]),
            loss_after=float(loss_after[n]),
            before={k: float(v[n]) for k, v in before.items()},
            after={k: float(v[n]) for k, v in after.items()},
        )
        if report.nonfinite:
            _LOG.warning(
                "%s: %d values of loss and gradient are not finite; stopped after %d steps",
                clip.clip_id,
                report.nonfinite,
                report.iterations,
            )
        t = clip.num_frames
        frames = MotionFrames(
            root_pos=pos[n, :t].cpu().clone(),
            root_rot=quat[n, :t].cpu().clone(),
            dof=dof[n, :t].cpu().clone(),
            contacts=clip.frames.contacts.clone(),
        )
        out.append((replace(clip, frames=frames, metrics=_metrics(clip, report)), report))
        _LOG.debug("%s: loss %.4g to %.4g", clip.clip_id, report.loss_before, report.loss_after)
    return out


def _metrics(clip: MotionClip, report: MotionReport) -> dict[str, float]:
    """Metrics of the clip with the figures of the report."""
    new = {f"kin_{k}_before": v for k, v in report.before.items()}
    new |= {f"kin_{k}_after": v for k, v in report.after.items()}
    new |= {"kin_loss_before": report.loss_before, "kin_loss_after": report.loss_after}
    new |= {"kin_iterations": float(report.iterations), "kin_nonfinite": float(report.nonfinite)}
    return {**clip.metrics, **new}
