"""Kinematic optimisation of many motions at once (PARC, eq. 15).

Motions are sorted by length into batches of bounded size, padded and optimised together by Adam;
each motion is judged alone and leaves the batch when it has converged.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from parc_ray.character import rotations as rot
from parc_ray.character.character import Character
from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip
from parc_ray.motion.frames import MotionFrames
from parc_ray.synthesis.config import OptimizerConfig
from parc_ray.synthesis.kinopt_problem import Body, Problem, evaluate_terms, total_loss

_LOG = logging.getLogger(__name__)
_BETA_1, _BETA_2, _EPS = 0.9, 0.999, 1e-8


@dataclass(frozen=True, kw_only=True)
class MotionReport:
    """What the optimisation did to one motion.

    Attributes:
        clip_id: the clip.
        iterations: Adam steps taken.
        converged: whether it stopped early.
        loss_before: weighted loss of the source motion.
        loss_after: weighted loss of the result, never above ``loss_before``.
        before: unweighted value of every term on the source; ``penetration`` is TPL (m points),
            ``contact`` TCL (m), with edge cells extended.
        after: the same on the result.
    """

    clip_id: str
    iterations: int
    converged: bool
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
    best = _Adam(problem, body, start, cfg).run()
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
            loss_before=float(loss_before[n]),
            loss_after=float(loss_after[n]),
            before={k: float(v[n]) for k, v in before.items()},
            after={k: float(v[n]) for k, v in after.items()},
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
    return {**clip.metrics, **new, "kin_iterations": float(report.iterations)}


@dataclass(kw_only=True)
class _Best:
    """Best variables so far, per motion, in the order of the whole batch."""

    x: Tensor
    loss: Tensor
    steps: Tensor
    converged: Tensor


class _Adam:
    """Adam over a shrinking batch: motions that have converged leave it."""

    def __init__(self, problem: Problem, body: Body, x: Tensor, cfg: OptimizerConfig) -> None:
        self.body, self.cfg = body, cfg
        self.problem, self.x = problem, x.clone()
        self.m, self.v = torch.zeros_like(x), torch.zeros_like(x)
        n, device = len(x), x.device
        self.ids = torch.arange(n, device=device)
        self.reference = torch.full((n,), torch.inf, device=device)
        self.best = _Best(
            x=x.clone(),
            loss=torch.full((n,), torch.inf, device=device),
            steps=torch.zeros(n, dtype=torch.long, device=device),
            converged=torch.zeros(n, dtype=torch.bool, device=device),
        )

    def run(self) -> _Best:
        """Iterate until every motion has converged or the iterations are used up."""
        cfg = self.cfg
        for step in range(cfg.iterations):
            loss, grad = self._loss_and_grad()
            if step % cfg.patience == 0:
                self._judge(loss, first=step == 0)
                if len(self.ids) == 0:
                    return self.best
                if len(self.ids) != len(grad):
                    loss, grad = self._loss_and_grad()
            self._update(grad, step)
            self.best.steps[self.ids] = step + 1
        with torch.no_grad():
            values = evaluate_terms(self.problem, self.body, self.x, cfg)
            self._remember(total_loss(values, cfg))
        return self.best

    def _loss_and_grad(self) -> tuple[Tensor, Tensor]:
        """Loss (N,) and gradient (N, T, 6 + D) at the present variables."""
        x = self.x.detach().requires_grad_()
        loss = total_loss(evaluate_terms(self.problem, self.body, x, self.cfg), self.cfg)
        (grad,) = torch.autograd.grad(loss.sum(), x)
        return loss.detach(), torch.nan_to_num(grad, nan=0.0, posinf=0.0, neginf=0.0)

    def _update(self, grad: Tensor, step: int) -> None:
        """One Adam step with the cosine step size."""
        cfg = self.cfg
        share = step / max(1, cfg.iterations - 1)
        lr = cfg.lr_final + 0.5 * (cfg.lr - cfg.lr_final) * (1.0 + math.cos(math.pi * share))
        self.m.mul_(_BETA_1).add_(grad, alpha=1 - _BETA_1)
        self.v.mul_(_BETA_2).addcmul_(grad, grad, value=1 - _BETA_2)
        scale = math.sqrt(1 - _BETA_2 ** (step + 1))
        denominator = self.v.sqrt().div_(scale).add_(_EPS)
        self.x.addcdiv_(self.m, denominator, value=-lr / (1 - _BETA_1 ** (step + 1)))

    def _remember(self, loss: Tensor) -> None:
        """Keep the variables of the motions that have never been better."""
        better = loss < self.best.loss[self.ids]
        ids, frames = self.ids[better], self.x.shape[1]
        self.best.loss[ids] = loss[better]
        self.best.x[ids, :frames] = self.x[better]

    def _judge(self, loss: Tensor, first: bool) -> None:
        """Remember the best variables and let converged motions go."""
        self._remember(loss)
        if self.cfg.tolerance > 0 and not first:
            before = self.reference[self.ids]
            stay = self.best.loss[self.ids] < before * (1.0 - self.cfg.tolerance)
            self.best.converged[self.ids[~stay]] = True
            if not bool(stay.all()):
                keep = stay.nonzero()[:, 0]
                self.ids = self.ids[keep]
                if len(keep) > 0:
                    self.problem = self.problem.index_select(keep)
                    frames = int(self.problem.lengths.max())
                    self.x, self.m, self.v = (
                        a[keep, :frames].contiguous() for a in (self.x, self.m, self.v)
                    )
        self.reference[self.ids] = self.best.loss[self.ids]
