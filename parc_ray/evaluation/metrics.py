"""Quality of a motion on its terrain (PARC, tables 1 and 3).

Paper and published code differ: docs/design/synthesis.md, Metrics.

FWD  distance from the last root to the last path node, horizontally, m.
TPL  total penetration loss: depth summed over surface points and frames, m.
TCL  total contact loss: contact label times the nearest surface point's distance, summed, m.
HJF  share of frames with a joint jerk above the greatest one of PARC's motion capture, percent.

The kernels take batches of N motions; ``clip_metrics`` puts them together for one clip.
Legend: T frames, P surface points, B bodies.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from parc_ray.character.character import Character
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.character.surface import SurfacePoints, place_points, surface_points
from parc_ray.evaluation.compat import upstream_points
from parc_ray.evaluation.support import TOUCH_M, body_centres, contact_scores, floating
from parc_ray.motion.clip import MotionClip
from parc_ray.terrain.distance import OffGrid, outside_distance, penetration_depth
from parc_ray.terrain.heightfield import HeightfieldBatch

JERK_LIMIT = 11666.3906
"""m/s^3, greatest joint jerk of PARC's original motion capture."""

MetricMode = Literal["code", "paper"]
"""Which definition the main figures follow.

code: the published code's, with its surface points; ground outside the grid counts as buried,
contact looks at free points only, HJF counts (frame, joint) pairs. paper: the paper's text on our
own surface points; nothing outside the grid counts, contact distance is absolute, HJF counts
frames.
"""


def final_waypoint_distance(root_pos: Tensor, path_nodes: Tensor) -> Tensor:
    """Horizontal distance (...), m, of the last of (..., T, 3) roots from the last path node."""
    return (root_pos[..., -1, :2] - path_nodes[..., -1, :2]).norm(dim=-1)


def penetration_per_frame(
    points: Tensor, terrain: HeightfieldBatch, off_grid: OffGrid = "free"
) -> Tensor:
    """Depth summed over points (N, T, P, 3): (N, T) metres; its sum over T is the TPL.

    ``off_grid="code"`` counts points outside the grid as buried by their lateral distance, as the
    published figures do; "free" leaves them out.
    """
    return penetration_depth(points, terrain, off_grid=off_grid, exact=True).sum(-1)


def body_distance(
    points: Tensor,
    bodies: SurfacePoints,
    terrain: HeightfieldBatch,
    *,
    absolute: bool = False,
    off_grid: OffGrid = "code",
) -> Tensor:
    """Distance (N, T, B), m, from the nearest surface point of each body to the ground.

    Args:
        points: (N, T, P, 3) placed surface points.
        bodies: the point set they belong to.
        terrain: N terrains.
        absolute: count depth too (paper); otherwise buried points have distance 0 (code).
        off_grid: see ``parc_ray.terrain.distance.OffGrid``.
    """
    distance = outside_distance(points, terrain, off_grid=off_grid, exact=True)
    if absolute:
        distance = distance + penetration_depth(points, terrain, off_grid=off_grid, exact=True)
    return nearest_of_bodies(distance, bodies)


def nearest_of_bodies(distance: Tensor, bodies: SurfacePoints) -> Tensor:
    """Least distance (N, T, B) of each body's points, from those (N, T, P) of all points."""
    shape = (*distance.shape[:-1], bodies.num_bodies)
    index = bodies.body.to(distance.device).expand_as(distance)
    return distance.new_zeros(shape).scatter_reduce(-1, index, distance, "amin", include_self=False)


def contact_loss(distance: Tensor, contacts: Tensor) -> Tensor:
    """TCL (N,), m: distances (N, T, B) weighted by labels (N, T, B) in [0, 1] and summed."""
    return (distance * contacts).sum((-2, -1))


def joint_jerk(body_pos: Tensor, fps: float) -> Tensor:
    """Jerk (..., T - 3, B), m/s^3, of body origins (..., T, B, 3) by third differences."""
    return body_pos.diff(n=3, dim=-3).norm(dim=-1) * fps**3


def high_jerk_percent(jerk: Tensor, limit: float = JERK_LIMIT) -> tuple[Tensor, Tensor]:
    """Percent of (..., F, B) jerks over ``limit``, as the code and as the paper count.

    Returns:
        pairs: (...) high (frame, body) pairs per frame; can exceed 100.
        frames: (...) frames in which any body is over the limit.
    """
    high = jerk > limit
    frames = max(1, jerk.shape[-2])
    return 100.0 * high.sum((-2, -1)) / frames, 100.0 * high.any(-1).sum(-1) / frames


def foot_slide(
    points: Tensor,
    bodies: SurfacePoints,
    contacts: Tensor,
    feet: tuple[int, ...],
    fps: float,
    threshold: float = 0.5,
) -> Tensor:
    """Mean speed (N,), m/s, of planted feet; 0 where no foot is ever planted.

    A foot is planted between two frames when its label exceeds ``threshold`` in both. Its speed
    is that of its slowest surface point, so that rolling over the heel or toe is no slide.

    Args:
        points: (N, T, P, 3) placed surface points.
        bodies: the point set they belong to.
        contacts: (N, T, B).
        feet: body indices.
        fps: frames per second.
        threshold: least contact label.
    """
    ranges = bodies.point_ranges
    moved = [points[..., ranges[f], :].diff(dim=-3).norm(dim=-1).amin(-1) for f in feet]
    planted = contacts[..., list(feet)] > threshold
    both = planted[..., 1:, :] & planted[..., :-1, :]
    total = (torch.stack(moved, dim=-1) * both).sum((-2, -1)) * fps
    return total / both.sum((-2, -1)).clamp(min=1)


@torch.no_grad()
def clip_metrics(
    clip: MotionClip, character: Character, mode: MetricMode = "code"
) -> dict[str, float]:
    """All figures of one clip, on its whole terrain, at the clip's own frame rate (PARC: 30).

    Returns:
        fwd_m (absent without path nodes); tpl, tcl, hjf_percent by ``mode``; tpl_code (off-grid
        counted), tpl_in_grid, tpl_per_frame (in grid), tcl_firm (labels over 0.5 as 1, others as
        0), hjf_pairs_percent, hjf_frames_percent, jerk_mean and jerk_max (m/s^3),
        foot_slide_mps, float_m and floating_percent (``support.floating``), contact_precision,
        contact_recall and contact_f1 (labels over 0.5 against bodies nearer than 2 cm to the
        ground), off_grid_percent (of points), length_s.
    """
    frames, fps = clip.frames, clip.fps
    paper = mode == "paper"
    body_pos, body_rot = fk_from_dof(
        character.skeleton, frames.root_pos, frames.root_rot, frames.dof
    )
    bodies = surface_points(character, "full") if paper else upstream_points(character)
    points = place_points(bodies, body_pos, body_rot)[None]
    contacts = frames.contacts[None]
    terrain = HeightfieldBatch.stack([clip.terrain])
    inside = terrain.contains(points[..., :2])
    depth = penetration_depth(points, terrain, off_grid="code", exact=True)
    tpl_code, tpl_grid = float(depth.sum()), float((depth * inside).sum())
    off_grid: OffGrid = "free" if paper else "code"
    outside = outside_distance(points, terrain, off_grid=off_grid, exact=True)
    free = distance = nearest_of_bodies(outside, bodies)
    if paper:
        buried = penetration_depth(points, terrain, off_grid=off_grid, exact=True)
        distance = nearest_of_bodies(outside + buried, bodies)
    jerk = joint_jerk(body_pos, fps)
    pairs, share = (float(v) for v in high_jerk_percent(jerk))
    centre = body_centres(points[0], bodies, character.body_masses)
    float_m, floats = floating(free[0].amin(-1), centre, fps)
    touch = contact_scores(contacts > 0.5, free <= TOUCH_M)
    result = {
        "tpl": tpl_grid if paper else tpl_code,
        "tcl": float(contact_loss(distance, contacts)),
        "hjf_percent": share if paper else pairs,
        "tpl_code": tpl_code,
        "tpl_in_grid": tpl_grid,
        "tpl_per_frame": tpl_grid / clip.num_frames,
        "tcl_firm": float(contact_loss(distance, (contacts > 0.5).to(distance.dtype))),
        "hjf_pairs_percent": pairs,
        "hjf_frames_percent": share,
        "jerk_mean": float(jerk.mean()) if jerk.numel() else 0.0,
        "jerk_max": float(jerk.max()) if jerk.numel() else 0.0,
        "foot_slide_mps": float(foot_slide(points, bodies, contacts, character.feet, fps)),
        "float_m": float_m,
        "floating_percent": floats,
        "contact_precision": touch.precision,
        "contact_recall": touch.recall,
        "contact_f1": touch.f1,
        "off_grid_percent": 100.0 * (1.0 - float(inside.float().mean())),
        "length_s": clip.duration_s,
    }
    if clip.path_nodes is not None:
        result["fwd_m"] = float(final_waypoint_distance(frames.root_pos, clip.path_nodes))
    return result
