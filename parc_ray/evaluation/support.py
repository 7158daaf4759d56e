"""What PARC's tables miss: floating, and whether contact labels say what the geometry shows.

Legend: T frames, B bodies, P surface points.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from parc_ray.character.surface import SurfacePoints

GRAVITY = 9.81
"""m/s^2."""
TOUCH_M = 0.02
"""A body touches the ground where a surface point of it is nearer than this, metres."""
FLOAT_GAP_M = 0.05
"""A frame is unsupported where every surface point is further from the ground, metres."""


@dataclass(frozen=True, kw_only=True)
class ContactScores:
    """Agreement of contact labels with the truth, each in [0, 1].

    Attributes:
        precision: share of labelled contacts that are true; 1 where nothing is labelled.
        recall: share of true contacts that are labelled; 1 where nothing touches.
        f1: 2 hits / (labelled + true); 1 where both are empty.
    """

    precision: float
    recall: float
    f1: float


def contact_scores(labels: Tensor, truth: Tensor) -> ContactScores:
    """Compare two sets of contacts of equal shape, bool, over all their entries."""
    hits = float((labels & truth).sum())
    labelled, true = float(labels.sum()), float(truth.sum())
    return ContactScores(
        precision=hits / labelled if labelled else 1.0,
        recall=hits / true if true else 1.0,
        f1=2.0 * hits / (labelled + true) if labelled + true else 1.0,
    )


def body_centres(points: Tensor, bodies: SurfacePoints, masses: Tensor) -> Tensor:
    """Centre of mass (T, 3), m: each body's mass (B,) at the mean of its surface points.

    Bodies without points carry no weight.
    """
    total = points.new_zeros(points.shape[0], 3)
    weight = 0.0
    for span, mass in zip(bodies.point_ranges, masses.tolist(), strict=True):
        if span.stop > span.start:
            total = total + mass * points[:, span].mean(1)
            weight += mass
    return total / weight if weight > 0 else points.mean(1)


def floating(gap: Tensor, centre: Tensor, fps: float) -> tuple[float, float]:
    """How far and how often a body hangs in the air without falling.

    A body that nothing supports falls: its centre accelerates by -9.81 m/s^2. A frame floats where
    the nearest surface point is more than 5 cm above the ground while the centre's vertical
    acceleration (second difference) is above half of that. Flight phases of jumps and runs so do
    not count.

    Args:
        gap: (T,) m, distance of the nearest surface point from the ground.
        centre: (T, 3) m, centre of mass.
        fps: frames per second.

    Returns:
        Mean gap in metres over all frames, flight included, and percent of floating frames among
        those with two neighbours (0 below three frames).
    """
    mean = float(gap.mean()) if len(gap) else 0.0
    if len(gap) < 3:
        return mean, 0.0
    height = centre[:, 2].double()
    acceleration = (height[2:] - 2.0 * height[1:-1] + height[:-2]) * fps**2
    floats = (gap[1:-1] > FLOAT_GAP_M) & (acceleration > -0.5 * GRAVITY)
    return mean, 100.0 * float(floats.double().mean())


def effort_use(
    dof_pos: Tensor,
    dof_vel: Tensor,
    targets: Tensor,
    gains: tuple[Tensor, Tensor, Tensor],
    at_limit: float = 0.99,
) -> dict[str, float]:
    """Power and use of torque limits of a simulated motion, from its PD law at control steps.

    Torque of a step is kp (target - q) - kd q', clipped to the effort limit, with the state at the
    step's start; between control steps it changes, so these are estimates.

    Args:
        dof_pos: (T, D) rad, states at the starts of T control steps.
        dof_vel: (T, D) rad/s.
        targets: (T, D) rad.
        gains: stiffness, damping and effort limit, (D,) each.
        at_limit: share of the limit from which a joint counts as saturated.

    Returns:
        power_w: sum over joints of |torque x velocity|, mean over steps, watt;
        torque_use: |torque| / limit, mean over joints and steps, 0 to 1;
        torque_limit_percent: percent of (step, joint) pairs at the limit.
    """
    kp, kd, effort = gains
    wanted = kp * (targets - dof_pos) - kd * dof_vel
    torque = torch.minimum(torch.maximum(wanted, -effort), effort)
    share = torque.abs() / effort
    if not len(torque):
        return {"power_w": 0.0, "torque_use": 0.0, "torque_limit_percent": 0.0}
    return {
        "power_w": float((torque * dof_vel).abs().sum(-1).mean()),
        "torque_use": float(share.mean()),
        "torque_limit_percent": 100.0 * float((share >= at_limit).double().mean()),
    }
