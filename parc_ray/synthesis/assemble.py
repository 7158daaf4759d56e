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
from parc_ray.character.surface import place_points, surface_points
from parc_ray.motion.clip import MotionClip, Provenance
from parc_ray.motion.contacts import label_contacts
from parc_ray.motion.mirror import mirror_clip
from parc_ray.synthesis.config import SynthesisConfig
from parc_ray.synthesis.hesitation import remove_hesitation
from parc_ray.synthesis.kinopt import MotionReport, optimize_motions
from parc_ray.synthesis.levels import largest_jerk, level_change
from parc_ray.synthesis.rollout import Candidate
from parc_ray.synthesis.selection import Verdict
from parc_ray.terrain.augment import compute_bounds
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.terrain.slicing import slice_around_motion


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
    out = []
    for source, (clip, report) in zip(
        clips, optimize_motions(clips, character, cfg.optimizer, device), strict=True
    ):
        clip.metrics["jerk_before"] = largest_jerk(source, character)
        short, removed = remove_hesitation(clip, character, cfg.hesitation)
        contacts = label_contacts(character, short.frames, short.terrain)
        short = replace(short, frames=replace(short.frames, contacts=contacts))
        short = with_bounds(short, character)
        short.metrics["jerk_after"] = largest_jerk(short, character)
        short.metrics["level_change"] = level_change(short, character)
        short.metrics["hesitation_frames"] = float(removed)
        out.append(
            FinishedMotion(
                clip=short,
                mirrored=mirror_clip(character, short) if cfg.mirror else None,
                report=report,
                hesitation_frames=removed,
            )
        )
    return out
