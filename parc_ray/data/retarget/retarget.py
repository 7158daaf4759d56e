"""From a foreign skeleton to a character: rest poses aligned, joints mapped, ends held by IK."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from parc_ray.character.character import Character
from parc_ray.data.importers.raw import RawMotion
from parc_ray.data.retarget.joint_map import JointMap
from parc_ray.data.retarget.source import SourceMotion


@dataclass(frozen=True, kw_only=True, eq=False)
class RetargetedFrames:
    """Frames of the character at the source's rate."""

    root_pos: Tensor
    """(T, 3) float64 m."""
    root_rot: Tensor
    """(T, 4) float64 xyzw, unit."""
    dof: Tensor
    """(T, D) float64 rad."""


@dataclass(frozen=True, kw_only=True)
class RetargetReport:
    """How well a motion fits; what :meth:`metrics` gives is stored with the clip."""

    scale: float
    """Metres of the result per unit of the source."""
    ankle_mean_m: float
    """m, mean distance of the feet's joints from the scaled source."""
    ankle_max_m: float
    """m, greatest such distance."""
    wrist_mean_m: float
    """m, the same for hands; 0 for characters without."""
    wrist_max_m: float
    """m, greatest such distance."""
    limit_share: float
    """Share of degrees of freedom times frames beyond their range (by more than 1e-4 rad)."""

    def metrics(self) -> dict[str, float]:
        """Figures by name, as they stand in the clip's metrics."""
        return {
            "retarget_scale": self.scale,
            "retarget_ankle_mean_m": self.ankle_mean_m,
            "retarget_ankle_max_m": self.ankle_max_m,
            "retarget_wrist_mean_m": self.wrist_mean_m,
            "retarget_wrist_max_m": self.wrist_max_m,
            "retarget_limit_share": self.limit_share,
        }


def retarget(
    source: SourceMotion, joint_map: JointMap, character: Character
) -> tuple[RetargetedFrames, RetargetReport]:
    """Retarget; not there yet."""
    raise RuntimeError("in work")


def retarget_raw(
    source: SourceMotion,
    joint_map: JointMap,
    character: Character,
    *,
    format_name: str,
    licence: str = "unknown",
) -> RawMotion:
    """What an importer returns: the retargeted motion with its report as metrics.

    Args:
        source: motion of the file, in the axes of the file; ``joint_map.up`` tells which is up.
        joint_map: joints to bodies.
        character: the target.
        format_name: for the provenance.
        licence: licence of the data.
    """
    frames, report = retarget(source.converted(joint_map.up), joint_map, character)
    return RawMotion(
        root_pos=frames.root_pos,
        root_rot=frames.root_rot,
        dof=frames.dof,
        fps=source.fps,
        loop="clamp",
        source=format_name,
        licence=licence,
        metrics=report.metrics(),
    )
