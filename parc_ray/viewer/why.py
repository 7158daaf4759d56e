"""Why a motion was not corrected: who tried, what ended it, where, and how the error grew."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.tracking.config import TrackingConfig
from parc_ray.character.character import Character
from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip
from parc_ray.viewer.catalog import Catalog, ClipEntry
from parc_ray.viewer.poses import ClipPoses
from parc_ray.viewer.versions import step

_CANDIDATE = re.compile(r"it(\d+)_t(\d+)_c(\d+)")
_RULES = {
    "body": "a body was too far from the motion",
    "root_pos": "the root was too far from the motion",
    "root_rot": "the root was turned too far from the motion",
    "diverged": "the simulation diverged",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class ErrorCurve:
    """How far a simulated motion is from the one that it follows.

    Attributes:
        times_s: (T,) on the time line of the followed motion.
        bodies: (T, B) m, root-relative distance of every body.
        root: (T,) m, distance of the root.
        limits: (B,) m at which tracking counts as failed; infinite for the root.
        names: of the bodies.
    """

    times_s: NDArray[np.float64]
    bodies: NDArray[np.float64]
    root: NDArray[np.float64]
    limits: NDArray[np.float64]
    names: tuple[str, ...]

    def worst(self, row: int = -1) -> tuple[str, float, float]:
        """The body nearest to (or most beyond) its limit at a row: name, distance, limit."""
        body = int(np.argmax(self.bodies[row] / self.limits))
        return self.names[body], float(self.bodies[row, body]), float(self.limits[body])

    def text(self) -> str:
        """One line on the last moment."""
        name, distance, limit = self.worst()
        return (
            f"at {self.times_s[-1]:.2f} s: root {100 * self.root[-1]:.0f} cm away, worst body "
            f"{name} {100 * distance:.0f} cm (limit {100 * limit:.0f} cm)"
        )


@dataclass(kw_only=True, eq=False)
class Explanation:
    """What is known of a clip's correction.

    Attributes:
        clip_id: the kinematic motion.
        lines: said to the user, in order.
        curve: error over time, where a simulated motion is there.
        shown: keys of the clips to look at.
        at_s: where to look on the time line, s.
    """

    clip_id: str
    lines: list[str] = field(default_factory=list)
    curve: ErrorCurve | None = None
    shown: list[str] = field(default_factory=list)
    at_s: float = 0.0


def explain(catalog: Catalog, name: str, tracking: TrackingConfig | None = None) -> Explanation:
    """Everything that a run kept about the correction of a motion.

    Args:
        catalog: of a run.
        name: id or key of the motion, of a recording of it, or of a rejected candidate.
        tracking: rules that a tracker is judged by; by default the published ones.

    Raises:
        InputError: neither a clip nor a candidate of that name.
    """
    dropped = _dropped_candidate(catalog, name)
    if dropped is not None:
        return dropped
    entry = catalog.entry(name)
    if (entry.provenance.maker in ("tracker", "mpc")) and catalog.parents(entry.key):
        entry = catalog.entry(catalog.parents(entry.key)[0])
    made = Explanation(clip_id=entry.clip_id, shown=[entry.key])
    records = _records(catalog, entry.clip_id)
    for label, record in records:
        made.lines += _tell(label, record)
        frames = [f["frame"] for f in record["failures"] if f["frame"] is not None]
        frames += [a["failed_frame"] for a in record["attempts"] if a["failed_frame"] is not None]
        if frames:
            made.at_s = frames[-1] / catalog.clip(entry.key).fps
    if not records:
        made.lines.append("No stage has tried to correct this clip yet.")
    recordings = [catalog.entry(k) for k in catalog.children(entry.key)]
    recordings = [e for e in recordings if e.provenance.maker in ("tracker", "mpc")]
    recordings.sort(key=lambda e: not e.refused)
    if recordings:
        _compare(catalog, made, entry, recordings[0], tracking or TrackingConfig())
    return made


def error_curve(
    source: MotionClip, simulated: MotionClip, character: Character, config: TrackingConfig
) -> ErrorCurve:
    """Distances between a simulated clip and its source, frame by frame."""
    shift, start_s = step(simulated)
    mine = ClipPoses(simulated, character).bodies[0] + shift
    theirs = ClipPoses(source, character).bodies[0]
    first = round(start_s * source.fps)
    count = min(len(mine), len(theirs) - first)
    offset = (mine[:count] - theirs[first : first + count]).astype(float)
    local = np.linalg.norm(offset - offset[:, :1], axis=-1)
    limits = character.termination_distance.double().numpy().copy()
    uniform = config.termination.body_m
    if uniform is not None:
        feet = {body - 1 for body in character.feet}
        limits = np.array([x if j in feet else uniform for j, x in enumerate(limits)])
    limits = np.concatenate([[np.inf], limits * config.termination.body_scale])
    return ErrorCurve(
        times_s=(first + np.arange(count)) / source.fps,
        bodies=local,
        root=np.linalg.norm(offset[:, 0], axis=-1),
        limits=limits,
        names=character.skeleton.body_names,
    )


def _compare(
    catalog: Catalog,
    made: Explanation,
    source: ClipEntry,
    recording: ClipEntry,
    tracking: TrackingConfig,
) -> None:
    curve = error_curve(
        catalog.clip(source.key),
        catalog.clip(recording.key),
        catalog.character,
        tracking,
    )
    made.curve = curve
    made.shown.append(recording.key)
    made.lines.append(f"Recording {recording.key}: {curve.text()}")


def _records(catalog: Catalog, clip_id: str) -> list[tuple[str, dict[str, Any]]]:
    """What stages ``record`` say of a motion: label of the stage, its record."""
    run = catalog.storage
    if run is None or not catalog.is_run:
        return []
    out = []
    for name in sorted(n.rsplit("/", 1)[-1] for n in run.list_dirs()):
        path = f"{name}/record/records.json"
        if name.startswith("it_") and run.exists(path):
            found = [r for r in run.read_json(path) if r["source_id"] == clip_id]
            out += [(f"{name}/record", record) for record in found]
    return out


def _tell(label: str, record: dict[str, Any]) -> list[str]:
    """A record in words."""
    if record["clip_id"]:
        part = "whole" if record["whole"] else "in part"
        head = (
            f"{label}: corrected {part} by {record['corrector']}, frames "
            f"{record['start_frame']} to {record['end_frame']}"
        )
    else:
        head = f"{label}: not corrected"
    lines = [head]
    for a in record["attempts"]:
        line = f"- {a['corrector']} from frame {a['start_frame']}: "
        line += f"{a['frames']} of {a['wanted']} steps"
        if a["reason"]:
            line += f", ended by {_RULES.get(a['reason'], a['reason'])}"
        if a["failed_frame"] is not None:
            line += f" at frame {a['failed_frame']}"
        lines.append(line)
    for f in record["failures"]:
        at = "" if f["frame"] is None else f" at frame {f['frame']}"
        lines.append(f"- refused ({f['rule']}){at}: {f['reason']}")
    return lines


def _dropped_candidate(catalog: Catalog, name: str) -> Explanation | None:
    """Why a candidate was not even selected, for ids that are in no data set."""
    if name in catalog.entries or any(e.clip_id == name for e in catalog.entries.values()):
        return None
    found, run = _CANDIDATE.fullmatch(name), catalog.storage
    if found is None or run is None or not catalog.is_run:
        return None
    path = f"it_{found[1]}/generate/rejections.csv"
    if not run.exists(path):
        return None
    wanted = (str(int(found[2])), str(int(found[3])))
    for row in csv.DictReader(io.StringIO(run.read_bytes(path).decode())):
        if (row["terrain"], row["candidate"]) == wanted:
            said = f"{name}: dropped when it was generated: {row['reason']}"
            figures = [f"{k} {float(row[k]):.3g}" for k in ("tpl", "tcl", "progress") if row[k]]
            return Explanation(clip_id=name, lines=[said, ", ".join(figures)])
    raise InputError(f"{name}: neither a clip nor a rejected candidate of {catalog.where}")
