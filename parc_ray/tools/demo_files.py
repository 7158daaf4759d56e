"""The directory of a demonstration: a search under way, then its data set, tables and picture."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from parc_ray.character.character import Character
from parc_ray.config_io import to_plain
from parc_ray.data.storage import Storage
from parc_ray.data.store import save_dataset
from parc_ray.errors import InputError
from parc_ray.evaluation.metrics import clip_metrics
from parc_ray.evaluation.pictures import CORRECTED_COLOUR, draw_long_motion, track_of
from parc_ray.evaluation.terrain_pictures import small_png
from parc_ray.motion.clip import MotionClip, Provenance
from parc_ray.synthesis.assemble import finish_long
from parc_ray.synthesis.config import SynthesisConfig
from parc_ray.synthesis.edge_kinds import kinds_between
from parc_ray.synthesis.legs import LongPath
from parc_ray.synthesis.long_demo import DemoConfig, LongMotion, SearchState
from parc_ray.synthesis.waypoints import PathBatch
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.tools.base import format_table, require_target

_WORK = "work"
_REACH_M = 3.0
_FIGURES = (
    ("TPL (m)", "tpl"),
    ("TCL (m)", "tcl"),
    ("%HJF", "hjf_frames_percent"),
    ("slide (m/s)", "foot_slide_mps"),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class DemoRequest:
    """All that decides a demonstration.

    Attributes:
        name: of the data set and the clip.
        generator: hash of the generator file.
        terrain: the map.
        path: what is followed.
        s: blend coefficient of the generator.
        demo: settings of the search.
        synthesis: settings of what follows it.
        seed: of path and search.
        character: digest of the character.
    """

    name: str
    generator: str
    terrain: Heightfield
    path: LongPath
    s: float
    demo: DemoConfig
    synthesis: SynthesisConfig
    seed: int
    character: str

    def to_plain(self) -> dict[str, Any]:
        """Plain values that two requests share only if they ask for the same."""
        ground = self.terrain.heights.numpy().tobytes() + self.terrain.origin.numpy().tobytes()
        return {
            "generator": self.generator,
            "seed": self.seed,
            "map": hashlib.sha256(ground).hexdigest(),
            "cell_size": self.terrain.cell_size,
            "path": hashlib.sha256(self.path.points.numpy().tobytes()).hexdigest(),
            "s": self.s,
            "demo": json.loads(json.dumps(to_plain(self.demo))),
            "correction": json.loads(json.dumps(to_plain(self.synthesis))),
            "character": self.character,
        }


@dataclass(frozen=True)
class FileStore:
    """The state of a search in one file."""

    path: Path

    def load(self) -> SearchState | None:
        """The state that was saved last, if any."""
        if not self.path.exists():
            return None
        return SearchState.from_plain(torch.load(self.path, weights_only=True))

    def save(self, state: SearchState) -> None:
        """Keep a state, whole or not at all."""
        buffer = io.BytesIO()
        torch.save(state.to_plain(), buffer)
        _write(self.path, buffer.getvalue())


@dataclass(frozen=True)
class DemoFolder:
    """Where a demonstration is made."""

    path: Path

    @property
    def store(self) -> FileStore:
        """Of the search."""
        return FileStore(self.path / _WORK / "state.pt")

    @classmethod
    def open(cls, out: str, request: DemoRequest) -> DemoFolder:
        """A new directory, or that of an equal request which was not finished.

        Raises:
            InputError: it holds something else, or the search of another request.
        """
        if out.startswith(("s3://", "gs://")):
            raise InputError(f"--out: {out} is an object store; a local directory is needed")
        folder = cls(Path(Storage.from_uri(out).local_path()))
        held = folder.path / _WORK / "request.json"
        plain = request.to_plain()
        if not held.exists():
            require_target(out)
            held.parent.mkdir(parents=True)
            _write(held, json.dumps(plain, indent=1).encode())
            return folder
        try:
            there = json.loads(held.read_text())
        except ValueError:
            there = {}
        other = [key for key in plain if there.get(key) != plain[key]]
        if other:
            raise InputError(
                f"--out: {out} holds an unfinished demonstration of another {other[0]}; repeat "
                "its words to go on with it, remove it, or choose another directory"
            )
        return folder


def write_demo(
    folder: DemoFolder,
    request: DemoRequest,
    motion: LongMotion,
    character: Character,
    fps: float,
    device: str,
) -> list[str]:
    """Correct the motion, write data set, tables and picture, and say what came of it.

    The manifest comes last, then the state of the search is removed.
    """
    raw = _clip(request, motion, fps)
    finished = finish_long(raw, character, request.synthesis, device=device)
    clip = finished.clip
    before, after = (clip_metrics(c, character, "paper") for c in (raw, clip))
    for _, name in _FIGURES:
        clip.metrics |= {f"{name}_before": before[name], f"{name}_after": after[name]}
    progress = _progress(clip, request.path)
    rows = second_rows(clip, request.path, progress)
    report = _report(request, motion, clip, float(progress[-1]))
    _write(folder.path / "seconds.csv", _csv(rows))
    _write(folder.path / "segments.csv", _csv(segment_rows(motion, fps)))
    _write(folder.path / "demo.json", json.dumps(report, indent=1).encode())
    title = (
        f"{request.name}: {clip.duration_s:.1f} s, {report['progress_m']:.1f} of "
        f"{report['path_m']:.1f} m of the path, {report['ended']}"
    )
    track = track_of(clip, character, "root", CORRECTED_COLOUR)
    nodes = request.path.points.numpy()
    picture = draw_long_motion(request.terrain, track, character, title, nodes, fps=fps)
    _write(folder.path / "demo.png", small_png(picture))
    manifest = save_dataset(folder.path, request.name, [clip], character.digest)
    shutil.rmtree(folder.path / _WORK)
    table = format_table(
        ("", *(title for title, _ in _FIGURES)),
        [
            (word, *(f"{figures[name]:.3f}" for _, name in _FIGURES))
            for word, figures in (("generated", before), ("corrected", after))
        ],
    )
    way = [clip.metrics[f"kin_foot_slide_{when}"] for when in ("before", "after")]
    failed = f"; {len(motion.failures)} segments tried again" if motion.failures else ""
    return [
        f"{title}{failed}",
        table,
        f"soles that the generator plants slide {way[0]:.2f} m in all, corrected {way[1]:.2f} m; "
        "the slide of the corrected motion above is of those that touch",
        f"{folder.path}: data set {manifest.name!r}, "
        "seconds.csv, segments.csv, demo.json, demo.png",
    ]


def _clip(request: DemoRequest, motion: LongMotion, fps: float) -> MotionClip:
    frames = motion.frames
    frames.contacts = frames.contacts.clamp(0.0, 1.0)
    return MotionClip(
        clip_id=request.name,
        frames=frames,
        fps=fps,
        terrain=request.terrain,
        path_nodes=request.path.points.clone(),
        provenance=Provenance(
            source="PARC-Ray motion generator",
            licence="that of the data set it was trained on",
            take=request.name,
            seeds={"demo": request.seed},
            hashes={"generator": request.generator},
            maker="generate",
            class_name="demonstration",
        ),
    )


def _progress(clip: MotionClip, path: LongPath) -> torch.Tensor:
    """(T,) arc length along the nodes covered in every frame, metres."""
    batch = PathBatch.stack([path.nodes])
    here = torch.zeros(1)
    out = []
    for xy in clip.frames.root_pos[:, None, :2]:
        here = batch.advance(xy, here, _REACH_M)
        out.append(here)
    return torch.cat(out)


def second_rows(
    clip: MotionClip, path: LongPath, progress: torch.Tensor
) -> list[dict[str, object]]:
    """What happens in every second: place, speed, and the kinds of the path's steps there.

    Args:
        clip: the motion.
        path: what it followed.
        progress: (T,) arc length covered, metres.
    """
    rows = []
    root = clip.frames.root_pos
    ground = clip.terrain.height_at(root[:, :2])
    per = round(clip.fps)
    for second, a in enumerate(range(0, clip.num_frames - 1, per)):
        b = min(a + per, clip.num_frames - 1)
        way = (root[a + 1 : b + 1, :2] - root[a:b, :2]).norm(dim=-1).sum()
        kinds = kinds_between(path.nodes, path.kinds, float(progress[a]), float(progress[b]))
        rows.append(
            {
                "second": second,
                "x_m": round(float(root[a, 0]), 3),
                "y_m": round(float(root[a, 1]), 3),
                "z_m": round(float(root[a, 2]), 3),
                "ground_m": round(float(ground[a]), 3),
                "speed_mps": round(float(way) * clip.fps / (b - a), 3),
                "progress_m": round(float(progress[a]), 3),
                "steps": "+".join(kinds),
            }
        )
    return rows


def segment_rows(motion: LongMotion, fps: float) -> list[dict[str, object]]:
    """One row per segment of the search: the branch taken and what became of the others."""
    rows, start = [], 0
    for number, (level, k) in enumerate(zip(motion.segments, motion.chosen, strict=True)):
        branch = level.branches[k]
        rows.append(
            {
                "segment": number,
                "start_s": round(start / fps, 3),
                "frames": branch.frames.num_frames,
                "candidates": level.candidates,
                "rank": k,
                "progress_m": round(branch.progress_m, 3),
                **{name: round(value, 4) for name, value in branch.figures.items()},
                "dropped": "; ".join(f"{r} {n}" for r, n in sorted(level.rejections.items())),
            }
        )
        start += branch.frames.num_frames
    return rows


def _report(
    request: DemoRequest, motion: LongMotion, clip: MotionClip, progress_m: float
) -> dict[str, Any]:
    nodes = request.path.nodes
    return {
        "name": request.name,
        "seconds": clip.duration_s,
        "finished": motion.finished,
        "ended": motion.ended,
        "progress_m": progress_m,
        "path_m": float((nodes[1:, :2] - nodes[:-1, :2]).norm(dim=-1).sum()),
        "steps": {kind: request.path.kinds.count(kind) for kind in sorted(set(request.path.kinds))},
        "legs": [nodes[k - 1].tolist() for k in request.path.legs],
        "failures": [{"segment": n, "reasons": reasons} for n, reasons in motion.failures],
        "metrics": clip.metrics,
        "request": request.to_plain(),
    }


def _csv(rows: Sequence[dict[str, object]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    half = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        half.write_bytes(content)
        os.replace(half, path)
    finally:
        half.unlink(missing_ok=True)
