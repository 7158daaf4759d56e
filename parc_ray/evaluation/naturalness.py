"""A filter for motions that are odder than the clips one began with.

Every clip has a few figures; each figure has a limit that is calibrated on the initial clips (D0):
the value that a given share of them stays below, times a slack, and wide enough that all limits
together reject no more than a given share of D0. Whatever is beyond one limit is rejected with that
as its reason. The likelihood is that of D0's windows under one Gaussian in their principal
components; for D0 itself it is measured on clips that were left out of the fit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from parc_ray.character.character import Character
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.evaluation.features import FeatureSpace, window_features, windows_of
from parc_ray.evaluation.limits import NaturalnessConfig
from parc_ray.evaluation.metrics import joint_jerk
from parc_ray.evaluation.support import effort_use
from parc_ray.motion.clip import MotionClip
from parc_ray.motion.contacts import foot_slide

UNITS = {
    "tracking_error_m": "m",
    "power_w": "W",
    "torque_use": "",
    "contact_chatter_hz": "Hz",
    "jerk_m_s3": "m/s^3",
    "foot_slide_mps": "m/s",
    "surprise": "",
}
"""Figures that are judged, with their units; a clip is not judged by what it does not have."""
_FOLDS = 10
_WIDEN = 1.05


def clip_figures(clip: MotionClip, character: Character) -> dict[str, float]:
    """The figures of a clip that need no other clips; NaN where it has none.

    tracking_error_m: mean global body error of its recording; power_w, torque_use: of its PD
    targets (``support.effort_use``), recordings only; contact_chatter_hz: changes of a foot's label
    per second, mean over feet; jerk_m_s3: 99th percentile over frames of the largest joint jerk;
    foot_slide_mps: speed of planted feet.
    """
    frames = clip.frames
    body_pos, _ = fk_from_dof(character.skeleton, frames.root_pos, frames.root_rot, frames.dof)
    jerk = joint_jerk(body_pos, clip.fps)
    feet = frames.contacts[:, list(character.feet)] > 0.5
    changes = (feet[1:] != feet[:-1]).double().sum(0).mean()
    speed = foot_slide(character, frames, clip.fps)
    planted = (feet[1:] & feet[:-1]).sum()
    return {
        "tracking_error_m": float(clip.metrics.get("body_global_m", math.nan)),
        **_effort(clip, character),
        "contact_chatter_hz": float(changes) / max(clip.duration_s, 1.0 / clip.fps),
        "jerk_m_s3": float(jerk.amax(-1).quantile(0.99)) if jerk.numel() else 0.0,
        "foot_slide_mps": float(speed.sum() / planted.clamp(min=1)),
    }


def _effort(clip: MotionClip, character: Character) -> dict[str, float]:
    """Power and torque of a recording that was not cut; NaN for others."""
    replay, frames = clip.replay, clip.frames
    if replay is None or len(replay.pd_targets) != clip.num_frames - 1:
        return {"power_w": math.nan, "torque_use": math.nan}
    velocity = frames.dof.diff(dim=0) * clip.fps
    gains = (character.kp, character.kd, character.effort)
    used = effort_use(frames.dof[:-1], velocity, replay.pd_targets, gains)
    return {name: used[name] for name in ("power_w", "torque_use")}


def surprise(clip: MotionClip, space: FeatureSpace, character: Character) -> float:
    """Mean squared distance of a clip's windows from D0's mean, per component: 1 for D0 itself.

    Up to a constant and a factor this is minus the mean log-likelihood under D0's Gaussian.
    """
    points = space.project(window_features(clip, character))
    return float((points**2).mean()) if points.size else 0.0


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What the filter says of a clip.

    Attributes:
        clip_id: the clip.
        figures: what was measured.
        reasons: limits that it exceeds, worst first; empty where it is kept.
    """

    clip_id: str
    figures: Mapping[str, float]
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class NaturalnessFilter:
    """Calibrated limits.

    Attributes:
        limits: greatest value of every figure that D0 has.
        space: D0's feature space.
        rejected_share: share of D0 that these limits reject.
    """

    limits: Mapping[str, float]
    space: FeatureSpace
    rejected_share: float

    @classmethod
    def fit(
        cls, initial: Sequence[MotionClip], character: Character, config: NaturalnessConfig
    ) -> NaturalnessFilter:
        """Calibrate on D0.

        Args:
            initial: clips of D0, at least one of two frames or more.
            character: the character.
            config: quantile, slack and the share of D0 that may be rejected.
        """
        known = [clip for clip in initial if clip.num_frames >= 2]
        table = [clip_figures(clip, character) for clip in known]
        for figures, value in zip(table, _held_out(known, character, config), strict=True):
            figures["surprise"] = value
        limits = {}
        for name in UNITS:
            values = np.array([f[name] for f in table if math.isfinite(f[name])])
            if len(values):
                limits[name] = float(np.quantile(values, config.quantile)) * config.slack
        rejected = _share_beyond(table, limits)
        while rejected > config.max_rejected_share:
            limits = {name: limit * _WIDEN + 1e-9 for name, limit in limits.items()}
            rejected = _share_beyond(table, limits)
        space = FeatureSpace.fit(np.concatenate(windows_of(known, character)), config.components)
        return cls(limits=limits, space=space, rejected_share=rejected)

    def judge(self, clip: MotionClip, character: Character) -> Judgement:
        """Measure a clip and compare it with the limits."""
        figures = clip_figures(clip, character)
        figures["surprise"] = surprise(clip, self.space, character)
        beyond = _beyond(figures, self.limits)
        beyond.sort(key=lambda name: -figures[name] / max(self.limits[name], 1e-9))
        reasons = tuple(
            f"{name} {figures[name]:.3g} {UNITS[name]}".strip() + f" is above {limit:.3g}"
            for name, limit in ((n, self.limits[n]) for n in beyond)
        )
        return Judgement(clip_id=clip.clip_id, figures=figures, reasons=reasons)


def _held_out(
    clips: Sequence[MotionClip], character: Character, config: NaturalnessConfig
) -> list[float]:
    """Surprise of every clip under a model of the clips in other folds; of itself for one clip."""
    windows = windows_of(clips, character)
    folds = min(_FOLDS, len(clips))
    out = [0.0] * len(clips)
    for fold in range(folds):
        others = [w for k, w in enumerate(windows) if k % folds != fold] or windows
        space = FeatureSpace.fit(np.concatenate(others), config.components)
        for k in range(fold, len(clips), folds):
            points = space.project(windows[k])
            out[k] = float((points**2).mean()) if points.size else 0.0
    return out


def _beyond(figures: Mapping[str, float], limits: Mapping[str, float]) -> list[str]:
    """Names of the figures beyond their limits; what is not finite where D0 has it is beyond."""
    return [
        name for name, limit in limits.items() if figures[name] > limit or math.isinf(figures[name])
    ]


def _share_beyond(table: Sequence[Mapping[str, float]], limits: Mapping[str, float]) -> float:
    return sum(bool(_beyond(figures, limits)) for figures in table) / len(table)
