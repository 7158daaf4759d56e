"""From selected candidates to finished kinematic clips.

Order as published: optimisation, hesitation removal, augmentation bounds, mirrored copy; contact
labels are taken from the distances at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from parc_ray.character.character import Character
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.character.rotations import slerp
from parc_ray.character.surface import place_points, surface_points
from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip, Provenance
from parc_ray.motion.contacts import label_contacts
from parc_ray.motion.frames import MotionFrames, cat_time
from parc_ray.motion.mirror import mirror_clip
from parc_ray.synthesis.config import OptimizerConfig, SynthesisConfig
from parc_ray.synthesis.hesitation import remove_hesitation
from parc_ray.synthesis.kinopt import MotionReport, optimize_motions
from parc_ray.synthesis.levels import largest_jerk, level_change
from parc_ray.synthesis.rollout import Candidate
from parc_ray.synthesis.selection import Verdict
from parc_ray.terrain.augment import compute_bounds
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.terrain.slicing import slice_around_motion

_MARGIN_M = 2.0
"""Terrain kept around a chunk of a long motion."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FinishedMotion:
    """A corrected clip, its mirrored copy where wanted, and what was done to it.

    Attributes:
        clip: the clip.
        mirrored: its mirror image, or None.
        report: of the kinematic optimisation.
        hesitation_frames: frames removed.
    """

    clip: MotionClip
    mirrored: MotionClip | None
    report: MotionReport
    hesitation_frames: int


def candidate_clip(
    candidate: Candidate,
    verdict: Verdict,
    terrain: Heightfield,
    path: Tensor,
    clip_id: str,
    fps: float,
    provenance: Provenance,
    padding_m: float | None,
) -> MotionClip:
    """The clip of a selected candidate, with its figures as metrics.

    Args:
        candidate: the roll-out.
        verdict: its judgement.
        terrain: the terrain it was made on.
        path: (M, 3) nodes it followed, metres.
        clip_id: id of the clip.
        fps: frames per second of the generator.
        provenance: seeds, hashes and iteration; the maker is set to "generate".
        padding_m: terrain kept around the motion, metres; None keeps all of it.
    """
    ground = terrain
    if padding_m is not None:
        ground = slice_around_motion(terrain, candidate.frames.root_pos[:, :2], padding_m)
    frames = candidate.frames
    frames = replace(frames, contacts=frames.contacts.clamp(0.0, 1.0))
    last = candidate.frames.root_pos[-1, :2]
    return MotionClip(
        clip_id=clip_id,
        frames=frames,
        fps=fps,
        terrain=ground,
        path_nodes=path.clone(),
        provenance=replace(provenance, maker="generate"),
        metrics={
            "sel_tpl": verdict.tpl,
            "sel_tcl": verdict.tcl,
            "sel_seam_jerk": verdict.seam_jerk,
            "sel_progress": verdict.progress,
            "sel_score": verdict.score,
            "sel_fwd": float((last - path[-1, :2]).norm()),
        },
    )


def with_bounds(clip: MotionClip, character: Character) -> MotionClip:
    """The clip with the augmentation bounds of its terrain computed."""
    f = clip.frames
    pos, quat = fk_from_dof(character.skeleton, f.root_pos, f.root_rot, f.dof)
    points = place_points(surface_points(character, "full"), pos, quat)
    return replace(clip, terrain=compute_bounds(clip.terrain, points, f.root_pos[:, 2]))


def finish_clips(
    clips: Sequence[MotionClip],
    character: Character,
    cfg: SynthesisConfig,
    device: torch.device | str = "cpu",
) -> list[FinishedMotion]:
    """Optimise, remove hesitations, label contacts, add bounds and mirror.

    Args:
        clips: selected candidates (or any clips with terrain and contacts).
        character: the character.
        cfg: settings of optimiser, hesitation and mirroring.
        device: where to optimise.

    Returns:
        One entry per clip, in order; metrics say what changed.
    """
    return [
        _finished(source, clip, report, character, cfg)
        for source, (clip, report) in zip(
            clips, optimize_motions(clips, character, cfg.optimizer, device), strict=True
        )
    ]


def finish_long(
    clip: MotionClip,
    character: Character,
    cfg: SynthesisConfig,
    chunk_frames: int = 240,
    overlap_frames: int = 48,
    device: torch.device | str = "cpu",
) -> FinishedMotion:
    """The same for one long clip, which is optimised in overlapping chunks."""
    chunks = optimize_chunks(clip, character, cfg.optimizer, chunk_frames, overlap_frames, device)
    return _finished(clip, *chunks, character, cfg)


def optimize_chunks(
    clip: MotionClip,
    character: Character,
    cfg: OptimizerConfig,
    chunk_frames: int,
    overlap_frames: int,
    device: torch.device | str = "cpu",
) -> tuple[MotionClip, MotionReport]:
    """Optimise a long clip in chunks, each on the terrain around it, and blend them.

    Within an overlap the pose goes over smoothly from one chunk to the next, at the ends of which
    neither knows what comes.

    Args:
        clip: the motion.
        character: the character.
        cfg: weights and steps, for every chunk.
        chunk_frames: frames of a chunk.
        overlap_frames: frames that two neighbours share, fewer than half a chunk.
        device: where to optimise.

    Returns:
        The clip, and a report whose values are those of the chunks added up (overlaps count
        twice) and whose steps are the most that a chunk took.
    """
    if not 2 <= overlap_frames <= chunk_frames // 2:
        raise InputError(
            f"overlap_frames: {overlap_frames}; allowed: 2..{chunk_frames // 2}, half of a chunk"
        )
    spans = _spans(clip.num_frames, chunk_frames, overlap_frames)
    pieces = [
        replace(
            clip,
            clip_id=f"{clip.clip_id}_{a}",
            frames=clip.frames.time(a, b),
            terrain=slice_around_motion(clip.terrain, clip.frames.root_pos[a:b, :2], _MARGIN_M),
            metrics={},
        )
        for a, b in spans
    ]
    results = optimize_motions(pieces, character, cfg, device)
    joined = results[0][0].frames
    for (start, _), (piece, _) in zip(spans[1:], results[1:], strict=True):
        joined = _blended(joined, piece.frames, start)
    reports = [report for _, report in results]
    report = MotionReport(
        clip_id=clip.clip_id,
        iterations=max(r.iterations for r in reports),
        converged=all(r.converged for r in reports),
        nonfinite=sum(r.nonfinite for r in reports),
        loss_before=sum(r.loss_before for r in reports),
        loss_after=sum(r.loss_after for r in reports),
        before={name: sum(r.before[name] for r in reports) for name in reports[0].before},
        after={name: sum(r.after[name] for r in reports) for name in reports[0].after},
    )
    names = results[0][0].metrics
    metrics = {name: sum(piece.metrics[name] for piece, _ in results) for name in names}
    metrics["kin_iterations"] = float(report.iterations)
    return replace(clip, frames=joined, metrics={**clip.metrics, **metrics}), report


def _spans(frames: int, chunk: int, overlap: int) -> list[tuple[int, int]]:
    """First and last (exclusive) frame of the chunks; the last one may be longer, never shorter."""
    starts = list(range(0, max(1, frames - chunk + 1), chunk - overlap))
    ends = [start + chunk for start in starts[:-1]]
    return list(zip(starts, [*ends, frames], strict=True))


def _blended(before: MotionFrames, after: MotionFrames, start: int) -> MotionFrames:
    """Frames of ``before``, going over into ``after``, whose frame 0 is frame ``start`` of both."""
    count = before.num_frames - start
    t = torch.linspace(0.0, 1.0, count + 2)[1:-1, None].to(before.root_pos)
    t = t * t * (3.0 - 2.0 * t)
    a, b = before.time(start), after.time(0, count)
    middle = MotionFrames(
        root_pos=torch.lerp(a.root_pos, b.root_pos, t),
        root_rot=slerp(a.root_rot, b.root_rot, t[:, 0]),
        # Both come from one source by small steps, so their exponential maps are of one turn.
        dof=torch.lerp(a.dof, b.dof, t),
        contacts=torch.lerp(a.contacts, b.contacts, t),
    )
    return cat_time([before.time(0, start), middle, after.time(count)])


def _finished(
    source: MotionClip,
    clip: MotionClip,
    report: MotionReport,
    character: Character,
    cfg: SynthesisConfig,
) -> FinishedMotion:
    """What follows the optimisation of a clip."""
    clip.metrics["jerk_before"] = largest_jerk(source, character)
    short, removed = remove_hesitation(clip, character, cfg.hesitation)
    contacts = label_contacts(character, short.frames, short.terrain)
    short = replace(short, frames=replace(short.frames, contacts=contacts))
    short = with_bounds(short, character)
    short.metrics["jerk_after"] = largest_jerk(short, character)
    short.metrics["level_change"] = level_change(short, character)
    short.metrics["hesitation_frames"] = float(removed)
    return FinishedMotion(
        clip=short,
        mirrored=mirror_clip(character, short) if cfg.mirror else None,
        report=report,
        hesitation_frames=removed,
    )
