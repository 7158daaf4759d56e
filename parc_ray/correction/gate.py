"""Which recordings are good enough to join the data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from parc_ray.character.character import Character
from parc_ray.correction.config import GateConfig
from parc_ray.correction.measures import FrameMeasures
from parc_ray.evaluation.metrics import clip_metrics
from parc_ray.motion.clip import MotionClip


def recording_metrics(clip: MotionClip, character: Character) -> dict[str, float]:
    """Figures of the recorded motion itself under the names of the evaluation."""
    figures = clip_metrics(clip, character, "paper")
    keep = ("tpl", "tpl_per_frame", "tcl", "hjf_frames_percent", "jerk_max", "foot_slide_mps")
    return {name: figures[name] for name in keep}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One limit of the gate.

    Attributes:
        name: name of the limit, as failures are counted by it.
        text: what is said of it.
        figure: name of the recording's figure.
        limit: name of the field of `GateConfig`.
        unit: of both.
        worst: number (T,) per frame of which the greatest is at fault.
        least: whether the figure must not fall below the limit, instead of not exceed it.
    """

    name: str
    text: str
    figure: str
    limit: str
    unit: str
    worst: Callable[[FrameMeasures], Tensor]
    least: bool = False

    def broken(self, value: float, limit: float) -> bool:
        """Whether a figure is refused; one that is not a number always is."""
        return not (value >= limit if self.least else value <= limit)


RULES = (
    Rule(
        name="body_error",
        text="mean body error",
        figure="body_global_m",
        limit="max_mean_body_error_m",
        unit="m",
        worst=lambda m: m.body_m,
    ),
    Rule(
        name="root_error",
        text="largest root error",
        figure="root_max_m",
        limit="max_root_error_m",
        unit="m",
        worst=lambda m: m.root_m,
    ),
    Rule(
        name="contacts",
        text="contact F1",
        figure="contact_f1",
        limit="min_contact_f1",
        unit="",
        worst=lambda m: m.misses,
        least=True,
    ),
    Rule(
        name="penetration",
        text="mean depth of the deepest point",
        figure="deepest_m",
        limit="max_mean_penetration_m",
        unit="m",
        worst=lambda m: m.depth_m,
    ),
    Rule(
        name="jerk",
        text="share of high-jerk frames",
        figure="high_jerk_share",
        limit="max_high_jerk_share",
        unit="",
        worst=lambda m: m.jerk,
    ),
    Rule(
        name="torque",
        text="share of saturated actuators",
        figure="torque_saturation",
        limit="max_torque_saturation",
        unit="",
        worst=lambda m: m.saturation,
    ),
    Rule(
        name="slide",
        text="speed of planted feet",
        figure="slide_mps",
        limit="max_slide_mps",
        unit="m/s",
        worst=lambda m: m.slide_mps.nan_to_num(nan=-1.0),
    ),
)
"""All limits, in the order in which they are checked."""


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """One limit that a recording broke.

    Attributes:
        rule: name of the limit.
        frame: frame of the recording where it was worst, or None where that is not known.
        text: the figure, the limit and the frame.
    """

    rule: str
    frame: int | None
    text: str


def refusals(
    figures: Mapping[str, float], gate: GateConfig, frames: FrameMeasures | None = None
) -> list[Refusal]:
    """Reasons against a recording, empty where there are none.

    Args:
        figures: those of `FrameMeasures.figures`.
        gate: the limits.
        frames: the figures frame by frame, to say where.
    """
    found = []
    for rule in RULES:
        value, limit = figures[rule.figure], getattr(gate, rule.limit)
        if not rule.broken(value, limit):
            continue
        side = "below" if rule.least else "above"
        unit = f" {rule.unit}" if rule.unit else ""
        text = f"{rule.text} {value:.3g}{unit} is {side} {limit:g}"
        frame = None if frames is None else int(rule.worst(frames).argmax())
        where = "" if frame is None else f" (worst at frame {frame})"
        found.append(Refusal(rule=rule.name, frame=frame, text=text + where))
    return found
