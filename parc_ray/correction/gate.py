"""Which recordings are good enough to join the data set."""

from __future__ import annotations

from parc_ray.character.character import Character
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.character.surface import place_points, surface_points
from parc_ray.correction.config import GateConfig
from parc_ray.evaluation.metrics import clip_metrics
from parc_ray.motion.clip import MotionClip
from parc_ray.terrain.distance import penetration_depth
from parc_ray.terrain.heightfield import HeightfieldBatch


def recording_metrics(clip: MotionClip, character: Character) -> dict[str, float]:
    """Figures of the recorded motion itself: penetration, contacts, jerk, slide."""
    figures = clip_metrics(clip, character, "paper")
    keep = ("tpl", "tpl_per_frame", "tcl", "hjf_frames_percent", "jerk_max", "foot_slide_mps")
    return {**{name: figures[name] for name in keep}, "deepest_m": deepest_point(clip, character)}


def deepest_point(clip: MotionClip, character: Character) -> float:
    """Depth, m, of the deepest surface point below the terrain, mean over frames."""
    frames = clip.frames
    pos, rot = fk_from_dof(character.skeleton, frames.root_pos, frames.root_rot, frames.dof)
    points = place_points(surface_points(character, "full"), pos, rot)[None]
    depth = penetration_depth(points, HeightfieldBatch.stack([clip.terrain]), exact=True)
    return float(depth.amax(-1).mean())


def refusals(metrics: dict[str, float], gate: GateConfig) -> list[str]:
    """Reasons against a recording, empty where there are none.

    Args:
        metrics: tracking errors (``body_global_m``, ``root_max_m``) and ``recording_metrics``.
        gate: the limits.
    """
    checks = (
        ("mean body error", metrics["body_global_m"], gate.max_mean_body_error_m, "m"),
        ("largest root error", metrics["root_max_m"], gate.max_root_error_m, "m"),
        (
            "share of high-jerk frames",
            metrics["hjf_frames_percent"] / 100.0,
            gate.max_high_jerk_share,
            "",
        ),
        ("mean depth of the deepest point", metrics["deepest_m"], gate.max_mean_penetration_m, "m"),
    )
    reasons = [
        f"{name} {value:.3g} {unit}".strip() + f" is above {limit:g}"
        for name, value, limit, unit in checks
        if not value <= limit
    ]
    f1 = metrics.get("contact_f1")
    if gate.min_contact_f1 > 0 and f1 is not None and not f1 >= gate.min_contact_f1:
        reasons.append(f"contact F1 {f1:.3g} is below {gate.min_contact_f1:g}")
    return reasons
