"""Inverse kinematics of a whole motion: ends at their places, joints within their ranges.

Gauss-Newton over all frames at once: the terms of a frame give dense blocks, smoothness couples
neighbours coordinate by coordinate, so that the normal equations are banded and solved exactly.
Ranges are bounds, not penalties: coordinates that press against one leave the step.
T frames, B bodies, N = 6 + D coordinates (see ``jacobian.py``); float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import solveh_banded
from torch import Tensor

from parc_ray.character import rotations as rot
from parc_ray.data.retarget.jacobian import Kinematics

_HALF_TURN = math.pi - 1e-6
_DAMPING = (1e-6, 1e-3, 1e9)  # least, first, most


@dataclass(frozen=True, kw_only=True, eq=False)
class IkProblem:
    """What is asked of a motion. Weights are inverse squares of what counts as equally bad."""

    reference_rot: Tensor
    """(T, 4) root rotations that the coordinates 3..5 are relative to."""
    start: Tensor
    """(T, N) mapped coordinates, also what the result stays close to."""
    bounds: Tensor
    """(2, N) least and greatest value of each coordinate."""
    balls: Tensor
    """(S, 3) coordinates of ball joints: no longer than half a turn, as longer vectors mean the
    same rotation as shorter ones elsewhere. Their bounds include zero."""
    held: Tensor
    """(K,) bodies held at places."""
    target: Tensor
    """(T, K, 3) m, their places."""
    held_weight: Tensor
    """(K,) 1/m^2."""
    turned: Tensor
    """(M,) bodies whose rotation matters."""
    wanted_rot: Tensor
    """(T, M, 4), world."""
    turned_weight: Tensor
    """(M,) 1/rad^2."""
    stay_weight: Tensor
    """(N,) of the distance from ``start``."""
    smooth_weight: Tensor
    """(N,) of second differences (per frame squared) of the distance from ``start``."""

    def part(self, frames: slice) -> IkProblem:
        """The same for some frames."""
        return IkProblem(
            **{
                **self.__dict__,
                "reference_rot": self.reference_rot[frames],
                "start": self.start[frames],
                "target": self.target[frames],
                "wanted_rot": self.wanted_rot[frames],
            }
        )


def within(problem: IkProblem, x: Tensor) -> Tensor:
    """The nearest coordinates (T, N) within bounds; too long rotation vectors are shortened."""
    x = x.clamp(*problem.bounds)
    vectors = x[:, problem.balls]
    length = vectors.norm(dim=-1, keepdim=True).clamp(min=_HALF_TURN)
    x[:, problem.balls] = vectors * (_HALF_TURN / length)
    return x


def solve(kinematics: Kinematics, problem: IkProblem, iterations: int, tolerance: float) -> Tensor:
    """Coordinates (T, N) within bounds at which the weighted squares are least.

    Args:
        kinematics: of the character.
        problem: targets and weights.
        iterations: most steps.
        tolerance: relative decrease of the cost below which it stops.
    """
    low, high = problem.bounds
    x = within(problem, problem.start)
    damping = _DAMPING[1]
    cost = _cost(kinematics, problem, x)
    for _ in range(iterations):
        blocks, gradient = _normal_equations(kinematics, problem, x)
        fixed = ((x <= low) & (gradient > 0.0)) | ((x >= high) & (gradient < 0.0))
        before = cost
        while damping < _DAMPING[2]:
            try:
                step = _banded_step(blocks, gradient, problem.smooth_weight, fixed, damping)
            except np.linalg.LinAlgError:  # not positive within rounding; damping makes it so
                damping *= 10.0
                continue
            trial = within(problem, x - step)
            trial_cost = _cost(kinematics, problem, trial)
            if trial_cost < cost:
                x, cost, damping = trial, trial_cost, max(damping / 10.0, _DAMPING[0])
                break
            damping *= 10.0
        if before - cost <= tolerance * before:
            break
    return x


def _residuals(
    kinematics: Kinematics, problem: IkProblem, x: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Misses (T, K, 3) and turns (T, M, 3) at ``x``, with positions and rotations of bodies."""
    pos, quat = kinematics.place(x, problem.reference_rot)
    miss = pos[:, problem.held] - problem.target
    off = rot.quat_mul(quat[:, problem.turned], rot.quat_conj(problem.wanted_rot))
    return miss, rot.quat_to_exp(off), pos, quat


def _cost(kinematics: Kinematics, problem: IkProblem, x: Tensor) -> float:
    miss, turn, _, _ = _residuals(kinematics, problem, x)
    away = x - problem.start
    total = (miss.square().sum(-1) * problem.held_weight).sum()
    total = total + (turn.square().sum(-1) * problem.turned_weight).sum()
    total = total + (away.square() * problem.stay_weight).sum()
    bends = away[2:] - 2.0 * away[1:-1] + away[:-2]
    return float(total + (bends.square() * problem.smooth_weight).sum())


def _normal_equations(
    kinematics: Kinematics, problem: IkProblem, x: Tensor
) -> tuple[Tensor, Tensor]:
    """Blocks (T, N, N) of the frames' own terms and the whole gradient (T, N), both halved."""
    miss, turn, pos, quat = _residuals(kinematics, problem, x)
    axes = kinematics.axes(x, quat)
    shift, _ = kinematics.jacobians(axes, pos, problem.held)
    _, spin = kinematics.jacobians(axes, pos, problem.turned)
    rows = torch.cat(
        (
            (shift * problem.held_weight.sqrt()[:, None, None]).flatten(1, 2),
            (spin * problem.turned_weight.sqrt()[:, None, None]).flatten(1, 2),
        ),
        dim=1,
    )
    errors = torch.cat(
        (
            (miss * problem.held_weight.sqrt()[:, None]).flatten(1),
            (turn * problem.turned_weight.sqrt()[:, None]).flatten(1),
        ),
        dim=1,
    )
    away = x - problem.start
    blocks = rows.transpose(1, 2) @ rows + torch.diag(problem.stay_weight)
    gradient = (rows.transpose(1, 2) @ errors[..., None])[..., 0] + away * problem.stay_weight
    bends = (away[2:] - 2.0 * away[1:-1] + away[:-2]) * problem.smooth_weight
    gradient[2:] += bends
    gradient[1:-1] -= 2.0 * bends
    gradient[:-2] += bends
    return blocks, gradient


def _smooth_bands(frames: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Diagonals 0, 1 and 2 of the squared second difference over ``frames``."""
    main, one, two = np.zeros(frames), np.zeros(frames), np.zeros(frames)
    if frames > 2:
        for offset, factor in ((0, 1.0), (1, 4.0), (2, 1.0)):
            main[offset : frames - 2 + offset] += factor
        one[: frames - 2] -= 2.0
        one[1 : frames - 1] -= 2.0
        two[: frames - 2] += 1.0
    return main, one, two


def _banded_step(
    blocks: Tensor, gradient: Tensor, smooth: Tensor, fixed: Tensor, damping: float
) -> Tensor:
    """Solution (T, N) of the damped normal equations; 0 for the coordinates that are fixed."""
    frames, size = gradient.shape
    free = (~fixed).double().numpy()
    weight = smooth.numpy()
    main, one, two = _smooth_bands(frames)
    dense = blocks.numpy() * free[:, :, None] * free[:, None, :]
    diagonal = np.einsum("tnn->tn", dense)
    diagonal += main[:, None] * weight * free
    diagonal *= 1.0 + damping
    diagonal += fixed.double().numpy()
    bands = np.zeros((2 * size + 1, frames, size))
    for k in range(size):
        bands[k, :, : size - k] = np.diagonal(dense, k, axis1=1, axis2=2)
    bands[size, :-1] = one[:-1, None] * weight * free[:-1] * free[1:]
    bands[2 * size, :-2] = two[:-2, None] * weight * free[:-2] * free[2:]
    right = (gradient.numpy() * free).reshape(-1)
    step = solveh_banded(bands.reshape(2 * size + 1, -1), right, lower=True, check_finite=False)
    return torch.from_numpy(step.reshape(frames, size))
