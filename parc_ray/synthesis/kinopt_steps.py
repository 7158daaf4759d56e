"""Adam over a batch of motions that converge, or fail, one by one.

Beside the variables of every frame, Adam can move coarser ones: knots every few frames,
interpolated linearly and added. A correction that many frames share (a step that is higher than
thought) is then one move of few variables instead of many small ones that the jerk term holds
together.

Penetration pulls with the same force until a point is out, then not at all, and the pull back to
the source is a thousand times weaker. Plain Adam overshoots by its momentum and comes back slowly,
as its step sizes remember the strong pull. So momentum against the gradient can be dropped,
variable by variable, and both moments can be forgotten part of the way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from parc_ray.synthesis.config import OptimizerConfig
from parc_ray.synthesis.kinopt_problem import Body, Problem, evaluate_terms, total_loss

_BETA_1, _EPS = 0.9, 1e-8


@dataclass(kw_only=True)
class Best:
    """Best variables so far, per motion, in the order of the whole batch.

    Attributes:
        x: (N, T, 6 + D) variables.
        loss: (N,) their loss; inf before the first look.
        steps: (N,) long, steps taken.
        converged: (N,) bool, stopped early because the loss hardly fell.
        nonfinite: (N,) long, values of loss and gradient that were not finite and ended the
            optimisation of the motion; 0 in the others.
    """

    x: Tensor
    loss: Tensor
    steps: Tensor
    converged: Tensor
    nonfinite: Tensor


class _Level:
    """Adam's moments for knots every ``every`` frames; 1 means the frames themselves."""

    def __init__(self, every: int, x: Tensor) -> None:
        self.every = every
        knots = x.shape[1] if every == 1 else self._knots(x.shape[1])
        self.m = x.new_zeros(x.shape[0], knots, x.shape[2])
        self.v = torch.zeros_like(self.m)

    def _knots(self, frames: int) -> int:
        return (frames - 1) // self.every + 2

    def _weights(self, frames: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Left knot (T,) of every frame and the weight (T, 1) of the right one."""
        t = torch.arange(frames, device=device)
        left = t // self.every
        return left, ((t - left * self.every) / self.every)[:, None]

    def gather(self, grad: Tensor) -> Tensor:
        """Gradient (N, K, C) of the knots, of the frames' (N, T, C)."""
        if self.every == 1:
            return grad
        left, w = self._weights(grad.shape[1], grad.device)
        out = grad.new_zeros(self.m.shape)
        return out.index_add_(1, left, grad * (1 - w)).index_add_(1, left + 1, grad * w)

    def spread(self, move: Tensor, frames: int) -> Tensor:
        """Move (N, T, C) of the frames, of the knots' (N, K, C)."""
        if self.every == 1:
            return move
        left, w = self._weights(frames, move.device)
        return move.index_select(1, left) * (1 - w) + move.index_select(1, left + 1) * w

    def move(self, grad: Tensor, step: int, lr: float, cfg: OptimizerConfig) -> Tensor:
        """Adam's move (N, T, C) for the frames' gradient (N, T, C)."""
        frames, grad = grad.shape[1], self.gather(grad)
        begin = int(cfg.iterations * cfg.restart_share)
        if step == begin:
            self.m.zero_()
            self.v.zero_()
        if step >= begin:
            step -= begin
        if cfg.drop_momentum:
            self.m.mul_(self.m * grad >= 0)
        self.m.mul_(_BETA_1).add_(grad, alpha=1 - _BETA_1)
        self.v.mul_(cfg.beta_2).addcmul_(grad, grad, value=1 - cfg.beta_2)
        scale = math.sqrt(1 - cfg.beta_2 ** (step + 1))
        move = self.m / self.v.sqrt().div_(scale).add_(_EPS)
        return self.spread(move, frames).mul_(-lr / (1 - _BETA_1 ** (step + 1)))

    def keep(self, ids: Tensor, frames: int) -> None:
        """Forget the other motions and the frames that none of ``ids`` has."""
        knots = frames if self.every == 1 else self._knots(frames)
        self.m, self.v = (a[ids, :knots].contiguous() for a in (self.m, self.v))


class Descent:
    """Adam over a shrinking batch: motions that have converged or failed leave it."""

    def __init__(self, problem: Problem, body: Body, x: Tensor, cfg: OptimizerConfig) -> None:
        """Begin at variables ``x`` (N, T, 6 + D) of ``problem``."""
        self.body, self.cfg = body, cfg
        self.problem, self.x = problem, x.clone()
        self.levels = [_Level(1, x)]
        if cfg.knot_frames > 1:
            self.levels.append(_Level(cfg.knot_frames, x))
        n, device = len(x), x.device
        self.ids = torch.arange(n, device=device)
        self.reference = torch.full((n,), torch.inf, device=device)
        self.good = self.x.clone()
        self.good_loss = torch.full((n,), torch.inf, device=device)
        self.best = Best(
            x=x.clone(),
            loss=torch.full((n,), torch.inf, device=device),
            steps=torch.zeros(n, dtype=torch.long, device=device),
            converged=torch.zeros(n, dtype=torch.bool, device=device),
            nonfinite=torch.zeros(n, dtype=torch.long, device=device),
        )

    def run(self) -> Best:
        """Iterate until every motion has left or the iterations are used up."""
        cfg = self.cfg
        for step in range(cfg.iterations):
            loss, grad = self._loss_and_grad()
            stay = self._finite(loss, grad)
            if step % cfg.patience == 0:
                stay &= self._judge(loss, first=step == 0)
            if not bool(stay.all()):
                keep = stay.nonzero()[:, 0]
                if len(keep) == 0:
                    return self.best
                loss, grad = loss[keep], self._keep(keep, grad)
            self.good.copy_(self.x)
            self.good_loss = loss
            self._update(grad, step)
            self.best.steps[self.ids] = step + 1
        with torch.no_grad():
            values = evaluate_terms(self.problem, self.body, self.x, cfg)
            loss = total_loss(values, cfg)
            self._remember(self.x, loss)
            self._remember(self.good, self.good_loss)
        return self.best

    def _loss_and_grad(self) -> tuple[Tensor, Tensor]:
        """Loss (N,) and gradient (N, T, 6 + D) at the present variables."""
        x = self.x.detach().requires_grad_()
        loss = total_loss(evaluate_terms(self.problem, self.body, x, self.cfg), self.cfg)
        (grad,) = torch.autograd.grad(loss.sum(), x)
        return loss.detach(), grad

    def _update(self, grad: Tensor, step: int) -> None:
        """One step with the cosine step size."""
        cfg = self.cfg
        share = step / max(1, cfg.iterations - 1)
        lr = cfg.lr_final + 0.5 * (cfg.lr - cfg.lr_final) * (1.0 + math.cos(math.pi * share))
        for level in self.levels:
            self.x += level.move(grad, step, lr, cfg)

    def _finite(self, loss: Tensor, grad: Tensor) -> Tensor:
        """Which motions (N,) may go on; the others end with the last good variables."""
        bad = (~torch.isfinite(grad)).flatten(1).sum(1) + (~torch.isfinite(loss)).long()
        if bool(bad.any()):
            self.best.nonfinite[self.ids] = bad
            self._remember(self.good, self.good_loss, bad > 0)
        return bad == 0

    def _remember(self, x: Tensor, loss: Tensor, among: Tensor | None = None) -> None:
        """Keep the variables of the motions (``among`` them) that have never been better."""
        better = loss < self.best.loss[self.ids]
        if among is not None:
            better &= among
        ids = self.ids[better]
        self.best.loss[ids] = loss[better]
        self.best.x[ids, : x.shape[1]] = x[better]

    def _judge(self, loss: Tensor, first: bool) -> Tensor:
        """Remember the best variables; which motions (N,) have not converged."""
        self._remember(self.x, loss)
        stay = torch.ones_like(self.ids, dtype=torch.bool)
        if self.cfg.tolerance > 0 and not first:
            before = self.reference[self.ids]
            stay = self.best.loss[self.ids] < before * (1.0 - self.cfg.tolerance)
            self.best.converged[self.ids[~stay]] = True
        self.reference[self.ids] = self.best.loss[self.ids]
        return stay

    def _keep(self, keep: Tensor, grad: Tensor) -> Tensor:
        """Go on with the motions ``keep`` alone; their gradient."""
        self.ids = self.ids[keep]
        self.problem = self.problem.index_select(keep)
        frames = int(self.problem.lengths.max())
        self.x, self.good, grad = (a[keep, :frames].contiguous() for a in (self.x, self.good, grad))
        for level in self.levels:
            level.keep(keep, frames)
        return grad
