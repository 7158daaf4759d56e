"""Checks at the border: what is wrong with a clip, in numbers with limits.

Every check is a small function from the ``ClipFacts`` of one clip to one number. ``measure`` runs
them, ``judge`` holds the numbers against the limits of a ``CheckConfig``. The numbers are stored
with the clip (metrics ``check_<name>``), so that whoever reads a data set can judge it again by
other limits without the frames. Why the limits are what they are: docs/design/data.md, Checks.

Legend: T frames, B bodies, P surface points, D dofs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from parc_ray.character.character import Character
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.character.surface import place_points, sole_points, surface_points
from parc_ray.data.up_axis import sole_indices, y_up_gain
from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip
from parc_ray.motion.contacts import foot_slide
from parc_ray.terrain.distance import outside_distance, penetration_depth
from parc_ray.terrain.heightfield import HeightfieldBatch

Severity = Literal["ok", "warn", "fail"]
SEVERITIES: tuple[Severity, ...] = ("ok", "warn", "fail")
METRIC_PREFIX = "check_"
SOURCE_FPS = "source_fps"
"""Metric with the frame rate of the file that a clip came from."""
JERK_LIMIT = 11666.3906
"""m/s^3, greatest joint jerk of PARC's motion capture (paper, table 1)."""
RANGE_TOLERANCE_RAD = 0.035
"""rad, two degrees: how far a joint may leave its range before it counts."""
_FLOAT_QUANTILE = 0.1
_MOST_NUMBERS = 1e12
_WINDOW_CELLS = 3


@dataclass(frozen=True, kw_only=True)
class Limit:
    """Where a number begins to be doubtful and where a clip is refused."""

    warn: float
    """Greatest value without a remark, in the check's unit."""
    fail: float = float("inf")
    """Greatest value that is let in; infinite: the check never refuses."""
    below: bool = False
    """Whether small values are the bad ones."""

    def __post_init__(self) -> None:
        """The limit that refuses lies beyond the one that remarks."""
        ordered = self.fail <= self.warn if self.below else self.warn <= self.fail
        if not ordered:
            side = "fail <= warn" if self.below else "warn <= fail"
            raise InputError(
                f"check limit: warn {self.warn:g}, fail {self.fail:g}; {side} is needed; swap them"
            )

    def severity(self, value: float) -> Severity:
        """How bad ``value`` is; NaN is as bad as can be."""
        if value != value:
            return "fail"
        sign = -1.0 if self.below else 1.0
        if sign * value > sign * self.fail:
            return "fail"
        return "warn" if sign * value > sign * self.warn else "ok"


@dataclass(frozen=True, kw_only=True)
class CheckConfig:
    """Limits of all checks. Real clips were measured for them, see docs/design/data.md, Checks."""

    not_finite: Limit = Limit(warn=0.0, fail=0.0)
    """Frames with NaN or infinite numbers."""
    wrong_sizes: Limit = Limit(warn=0.0, fail=0.0)
    """Blocks (root, joints, contacts) whose size is not the character's."""
    source_fps: Limit = Limit(warn=23.0, fail=5.0, below=True)
    """1/s, frame rate of the file: under 23, contacts between frames are guessed."""
    quat_norm: Limit = Limit(warn=1e-4, fail=1e-3)
    """Deviation of the root quaternion's norm from 1."""
    foot_float: Limit = Limit(warn=0.03, fail=0.3)
    """m, clearance under the lowest point of the body; nine of ten frames are higher."""
    foot_sink: Limit = Limit(warn=0.03, fail=0.3)
    """m, depth of the deepest point of a sole, median over frames."""
    penetration: Limit = Limit(warn=0.02, fail=0.3)
    """m, depth of the deepest point of the body, mean over frames."""
    penetration_max: Limit = Limit(warn=0.1)
    """m, depth of the deepest point of the body in the worst frame."""
    foot_slide: Limit = Limit(warn=1.0, fail=3.0)
    """m/s, mean speed of soles that are in contact."""
    high_jerk: Limit = Limit(warn=5.0, fail=60.0)
    """%, frames with a body beyond the greatest jerk of PARC's motion capture."""
    joint_range: Limit = Limit(warn=5.0, fail=40.0)
    """%, (frame, dof) pairs more than two degrees outside the range."""
    joint_excess: Limit = Limit(warn=0.5, fail=2.6)
    """rad, furthest that a dof leaves its range."""
    root_speed: Limit = Limit(warn=9.0, fail=20.0)
    """m/s, greatest speed of the root between two frames."""
    y_up: Limit = Limit(warn=5.0, fail=12.0)
    """%, frames in which the body is borne only if y is taken for up."""


class ClipFacts:
    """What several checks need of one clip, each computed once."""

    def __init__(self, clip: MotionClip, character: Character) -> None:
        """Nothing is computed yet."""
        self.clip, self.character = clip, character

    @cached_property
    def bodies(self) -> tuple[Tensor, Tensor]:
        """Body positions (T, B, 3) m and rotations (T, B, 4), world."""
        frames = self.clip.frames
        return fk_from_dof(self.character.skeleton, frames.root_pos, frames.root_rot, frames.dof)

    @cached_property
    def terrain(self) -> HeightfieldBatch:
        """The clip's terrain as a batch of one."""
        return HeightfieldBatch.stack([self.clip.terrain])

    @cached_property
    def points(self) -> Tensor:
        """Surface points (T, P, 3) m, world."""
        return place_points(surface_points(self.character, "full"), *self.bodies)

    @cached_property
    def depth(self) -> Tensor:
        """Depth (T,) m of the deepest surface point."""
        return self._depth(self.points)

    @cached_property
    def sole_depth(self) -> Tensor:
        """Depth (T,) m of the deepest point of a sole."""
        return self._depth(place_points(sole_points(self.character), *self.bodies))

    @cached_property
    def clearance(self) -> Tensor:
        """Distance (T,) m of the nearest surface point from the ground, 0 where one is buried."""
        flat = self.points.reshape(1, -1, 3)
        distance = outside_distance(flat, self.terrain, _WINDOW_CELLS, off_grid="extend")
        return distance.reshape(self.points.shape[:-1]).amin(-1)

    @cached_property
    def excess(self) -> Tensor:
        """How far (T, D) rad each dof lies outside its range, 0 within."""
        low, high = self.character.skeleton.dof_limits.to(self.clip.frames.dof).unbind(-1)
        dof = self.clip.frames.dof
        return torch.maximum(low - dof, dof - high).clamp(min=0.0)

    def _depth(self, points: Tensor) -> Tensor:
        flat = points.reshape(1, -1, 3)
        depth = penetration_depth(flat, self.terrain, _WINDOW_CELLS, off_grid="extend")
        return depth.reshape(points.shape[:-1]).amax(-1)


def not_finite(facts: ClipFacts) -> float:
    """Frames with NaN or infinite numbers."""
    frames = facts.clip.frames
    parts = (frames.root_pos, frames.root_rot, frames.dof, frames.contacts)
    good = torch.stack([(x.abs() < _MOST_NUMBERS).all(-1) for x in parts]).all(0)
    return float((~good).sum())


def wrong_sizes(facts: ClipFacts) -> float:
    """Blocks of the clip whose width is not the character's."""
    frames, skeleton = facts.clip.frames, facts.character.skeleton
    widths = ((frames.root_pos, 3), (frames.root_rot, 4), (frames.dof, skeleton.num_dofs))
    wanted = (*widths, (frames.contacts, skeleton.num_bodies))
    return float(sum(block.shape[-1] != width for block, width in wanted))


def source_fps(facts: ClipFacts) -> float:
    """Frame rate of the file, else of the clip, 1/s."""
    return float(facts.clip.metrics.get(SOURCE_FPS, facts.clip.fps))


def quat_norm(facts: ClipFacts) -> float:
    """Largest deviation of the root quaternion's norm from 1."""
    return float((facts.clip.frames.root_rot.norm(dim=-1) - 1.0).abs().max())


def foot_float(facts: ClipFacts) -> float:
    """Clearance in m that nine of ten frames exceed."""
    return float(torch.quantile(facts.clearance, _FLOAT_QUANTILE))


def foot_sink(facts: ClipFacts) -> float:
    """Median over frames of the soles' depth, m."""
    return float(facts.sole_depth.median())


def penetration(facts: ClipFacts) -> float:
    """Mean over frames of the deepest point's depth, m."""
    return float(facts.depth.mean())


def penetration_max(facts: ClipFacts) -> float:
    """Depth of the deepest point in the worst frame, m."""
    return float(facts.depth.max())


def mean_foot_slide(facts: ClipFacts) -> float:
    """Mean speed of soles in contact, m/s; 0 where no foot stays in contact."""
    clip = facts.clip
    speed = foot_slide(facts.character, clip.frames, clip.fps)
    label = clip.frames.contacts[..., list(facts.character.feet)] > 0.5
    both = label[1:] & label[:-1]
    return float(speed[both].mean()) if bool(both.any()) else 0.0


def high_jerk(facts: ClipFacts) -> float:
    """Percent of the frames in which a body exceeds the jerk limit."""
    body_pos = facts.bodies[0]
    if len(body_pos) <= 3:
        return 0.0
    jerk = body_pos.diff(n=3, dim=0).norm(dim=-1) * facts.clip.fps**3
    return 100.0 * float((jerk > JERK_LIMIT).any(-1).float().mean())


def joint_range(facts: ClipFacts) -> float:
    """Percent of (frame, dof) pairs more than two degrees outside the range."""
    return 100.0 * float((facts.excess > RANGE_TOLERANCE_RAD).float().mean())


def joint_excess(facts: ClipFacts) -> float:
    """Furthest that any dof leaves its range, rad."""
    return float(facts.excess.max()) if facts.excess.numel() else 0.0


def root_speed(facts: ClipFacts) -> float:
    """Greatest speed of the root, m/s."""
    steps = facts.clip.frames.root_pos.diff(dim=0).norm(dim=-1)
    return float(steps.max()) * facts.clip.fps if len(steps) else 0.0


def y_up(facts: ClipFacts) -> float:
    """Percent of the frames that gain a standing foot if y is taken for up."""
    frames = facts.clip.frames
    soles = sole_indices(facts.character)
    return y_up_gain(facts.points, soles, frames.root_pos, frames.root_rot, facts.clip.fps)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check."""

    name: str
    """Its field in ``CheckConfig``, and after ``check_`` in the metrics."""
    unit: str
    """Unit of the value."""
    measure: Callable[[ClipFacts], float]
    """From a clip to its value."""
    remedy: str
    """What to do about it."""
    needs: Literal["form", "frames", "ground"] = "frames"
    """What must be sound before it can be measured: nothing, the numbers, or the terrain too."""


CHECKS: tuple[Check, ...] = (
    Check(
        name="not_finite",
        unit="frames",
        measure=not_finite,
        remedy="repair the file, or try --repair",
        needs="form",
    ),
    Check(
        name="wrong_sizes",
        unit="blocks",
        measure=wrong_sizes,
        remedy="convert the file for this character",
        needs="form",
    ),
    Check(
        name="source_fps",
        unit="fps",
        measure=source_fps,
        remedy="use a recording of a higher rate",
    ),
    Check(
        name="quat_norm",
        unit="",
        measure=quat_norm,
        remedy="normalise the rotations, or try --repair",
    ),
    Check(
        name="foot_float",
        unit="m",
        measure=foot_float,
        remedy="lower the motion onto its terrain, or try --repair",
        needs="ground",
    ),
    Check(
        name="foot_sink",
        unit="m",
        measure=foot_sink,
        remedy="raise the motion onto its terrain, or try --repair",
        needs="ground",
    ),
    Check(
        name="penetration",
        unit="m",
        measure=penetration,
        remedy="move motion and terrain apart (--repair, parc optimize)",
        needs="ground",
    ),
    Check(
        name="penetration_max",
        unit="m",
        measure=penetration_max,
        remedy="look at the worst frame; parc optimize moves bodies out of the ground",
        needs="ground",
    ),
    Check(
        name="foot_slide",
        unit="m/s",
        measure=mean_foot_slide,
        remedy="check the scale of the motion and its floor; parc optimize lessens it",
        needs="ground",
    ),
    Check(
        name="high_jerk",
        unit="%",
        measure=high_jerk,
        remedy="smooth the motion, or try --repair",
    ),
    Check(
        name="joint_range",
        unit="%",
        measure=joint_range,
        remedy="check the joint map and its signs",
    ),
    Check(
        name="joint_excess",
        unit="rad",
        measure=joint_excess,
        remedy="check the joint map and its signs, or try --repair",
    ),
    Check(
        name="root_speed",
        unit="m/s",
        measure=root_speed,
        remedy="positions are metres: check unit and frame rate, or try --repair",
    ),
    Check(
        name="y_up",
        unit="%",
        measure=y_up,
        remedy="y points up in it and z should: turn (x, y, z) to (x, -z, y), or try --repair",
    ),
)
"""All checks, in the order in which they are reported. A new one is an entry and a limit."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one check says of one clip."""

    name: str
    """Name of the check."""
    value: float
    """The measured value."""
    unit: str
    """Its unit."""
    limit: float
    """The limit that decides: the one that refuses for ``fail``, else the one that remarks."""
    severity: Severity
    """ok, warn or fail."""
    remedy: str
    """What to do about it."""

    def text(self) -> str:
        """Value and limit in words."""
        unit = f" {self.unit}" if self.unit else ""
        return f"{self.name} {self.value:.3g}{unit} (limit {self.limit:g})"


@torch.no_grad()
def measure(clip: MotionClip, character: Character, *, ground: bool = True) -> dict[str, float]:
    """The values of all checks on one clip, by name.

    Args:
        clip: any clip; nothing about it is taken for granted.
        character: whose motion it should be.
        ground: whether its terrain belongs to it; the checks that need one are left out otherwise.
    """
    facts = ClipFacts(clip, character)
    values = {c.name: c.measure(facts) for c in CHECKS if c.needs == "form"}
    if any(values.values()):
        return values
    wanted = ("frames", "ground") if ground else ("frames",)
    return values | {c.name: c.measure(facts) for c in CHECKS if c.needs in wanted}


def judge(values: Mapping[str, float], config: CheckConfig | None = None) -> tuple[Finding, ...]:
    """Findings for measured values; checks without a value are left out.

    Args:
        values: by name of the check, or by ``check_<name>`` as metrics have them.
        config: the limits.
    """
    config = config or CheckConfig()
    found: list[Finding] = []
    for check in CHECKS:
        value = values.get(check.name, values.get(METRIC_PREFIX + check.name))
        if value is None:
            continue
        limit: Limit = getattr(config, check.name)
        severity = limit.severity(value)
        found.append(
            Finding(
                name=check.name,
                value=float(value),
                unit=check.unit,
                limit=limit.fail if severity == "fail" else limit.warn,
                severity=severity,
                remedy=check.remedy,
            )
        )
    return tuple(found)


def as_metrics(values: Mapping[str, float]) -> dict[str, float]:
    """The values under the names that clips store them by."""
    return {METRIC_PREFIX + name: float(value) for name, value in values.items()}


def verdict(findings: Sequence[Finding]) -> Severity:
    """The worst severity among them, ``ok`` where there are none."""
    return SEVERITIES[max((SEVERITIES.index(f.severity) for f in findings), default=0)]


def require_usable(clip_id: str, findings: Sequence[Finding]) -> None:
    """Refuse a clip by its worst finding.

    Raises:
        InputError: one of the findings fails; all failing ones are named.
    """
    failed = [f for f in findings if f.severity == "fail"]
    if failed:
        found = ", ".join(f.text() for f in failed)
        # wrong units or joints also make bodies float and slide: the causes come last in the table
        on_ground = {check.name for check in CHECKS if check.needs == "ground"}
        causes = [f for f in failed if f.name not in on_ground]
        remedy = (causes[-1] if causes else failed[0]).remedy
        raise InputError(f"clip {clip_id!r}: fails its checks: {found}; {remedy}")
