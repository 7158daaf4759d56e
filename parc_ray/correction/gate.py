"""Which recordings are good enough to join the data set."""

from __future__ import annotations

from parc_ray.character.character import Character
from parc_ray.correction.config import GateConfig
from parc_ray.evaluation.metrics import clip_metrics
from parc_ray.motion.clip import MotionClip


def recording_metrics(clip: MotionClip, character: Character) -> dict[str, float]:
    """Figures of the recorded motion itself: penetration, contacts, jerk, slide."""
    figures = clip_metrics(clip, character, "paper")
    keep = ("tpl", "tpl_per_frame", "tcl", "hjf_frames_percent", "jerk_max", "foot_slide_mps")
    return {name: figures[name] for name in keep}


def refusals(metrics: dict[str, float], num_points: int, gate: GateConfig) -> list[str]:
    """Reasons against a recording, empty where there are none.

    Args:
        metrics: tracking errors (``body_global_m``, ``root_max_m``) and ``recording_metrics``.
        num_points: surface points behind ``tpl_per_frame``.
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
        (
            "mean penetration",
            metrics["tpl_per_frame"] / num_points,
            gate.max_mean_penetration_m,
            "m",
        ),
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
