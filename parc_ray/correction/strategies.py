"""Who corrects what: the tracker, MPC, or MPC where the tracker fails; the gate decides at the end.

The tracker goes over many clips at once (`correct_by_tracker`), MPC over one at a time
(`by_mpc.correct_by_mpc`), so the stage calls them on different pools; `needs_mpc` and `judge` are
the rules between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from envs.recorder import RecordConfig, Recorded, record
from envs.sims.base import BackendFactory
from envs.tracking.config import TrackingConfig
from parc_ray.character.kinematics import dof_to_joint_rot, forward_kinematics
from parc_ray.character.rotations import quat_angle
from parc_ray.correction.config import CorrectionConfig
from parc_ray.correction.gate import recording_metrics, refusals
from parc_ray.correction.outcome import Attempt, Outcome
from parc_ray.motion.clip import MotionClip
from parc_ray.protocols import Policy

if TYPE_CHECKING:
    from parc_ray.character.character import Character


def record_config(config: CorrectionConfig, seed: int) -> RecordConfig:
    """The recorder's settings."""
    return RecordConfig(
        fractions=config.start_fractions,
        min_remaining_s=config.min_segment_s,
        segment_min_s=config.min_segment_s,
        accept_segments=config.keep_segments,
        seed=seed,
    )


def correct_by_tracker(
    character: Character,
    factory: BackendFactory,
    clips: Sequence[MotionClip],
    policy: Policy,
    config: CorrectionConfig,
    tracking: TrackingConfig,
    seed: int,
    hashes: dict[str, str],
    iteration: int | None = None,
) -> list[Outcome]:
    """Record clips with the deterministic policy; one outcome per clip, judged by the gate.

    Clips that it does not record whole go to MPC next where the strategy says so (`needs_mpc`);
    the longer recording of the two is kept (`better`).
    """
    settings = record_config(config, seed)
    recorded = record(
        character,
        factory,
        clips,
        policy,
        settings,
        tracking=tracking,
        hashes=hashes,
        iteration=iteration,
    )
    outcomes = []
    for clip, result in zip(clips, recorded, strict=True):
        outcome = _outcome(clip, result)
        judge(outcome, clip, character, config)
        outcomes.append(outcome)
    return outcomes


def _outcome(clip: MotionClip, result: Recorded) -> Outcome:
    """The recorder's result in this package's terms."""
    last = clip.num_frames - 1
    start = round(last * result.start_fraction)
    kept = result.clip.num_frames - 1 if result.clip is not None else 0
    attempt = Attempt(
        corrector="tracker",
        start_frame=0,
        frames=round(result.survived * last),
        wanted=last,
        reason=result.reason,
    )
    return Outcome(
        source_id=clip.clip_id,
        clip=result.clip,
        corrector="tracker" if result.clip is not None else None,
        whole=result.whole,
        start_frame=start,
        end_frame=start + kept,
        attempts=[attempt],
        reasons=[] if result.clip is not None else [f"tracker failed: {result.reason}"],
        metrics=dict(result.metrics),
    )


def judge(
    outcome: Outcome, source: MotionClip, character: Character, config: CorrectionConfig
) -> None:
    """Measure the recording and drop it, with reasons, where the gate refuses it."""
    if outcome.clip is None:
        return
    clip = outcome.clip
    outcome.metrics |= recording_metrics(clip, character)
    outcome.metrics |= following_metrics(clip, source, outcome.start_frame, character)
    refused = refusals(outcome.metrics, config.gate)
    if refused:
        outcome.reasons += [f"{outcome.corrector} recording refused: {r}" for r in refused]
        outcome.clip, outcome.corrector, outcome.whole = None, None, False
        return
    numbers = {k: v for k, v in outcome.metrics.items() if v == v}
    outcome.clip = replace(clip, metrics={**clip.metrics, **numbers})


def following_metrics(
    clip: MotionClip, source: MotionClip, start: int, character: Character
) -> dict[str, float]:
    """How closely a recording follows its source, from the two clips alone.

    Means over bodies or joints and over the frames after the first, under the recorder's names;
    ``root_max_m`` is the largest root distance; ``contact_agreement`` the share of equal labels;
    ``contact_f1`` the F1 of contacts over all bodies and frames, 1 where neither touches.

    Args:
        clip: a recording.
        source: the kinematic motion.
        start: frame of the source that the recording starts at.
        character: the character.
    """
    if clip.replay is None:
        raise ValueError("only recordings follow a source")
    mine, theirs = clip.frames, source.frames.time(start, start + clip.num_frames)
    turns = [dof_to_joint_rot(character.skeleton, f.dof) for f in (mine, theirs)]
    bodies = [
        forward_kinematics(character.skeleton, f.root_pos, f.root_rot, joint_rot)[0]
        for f, joint_rot in zip((mine, theirs), turns, strict=True)
    ]
    offset = bodies[0] - clip.replay.offset - bodies[1]
    root = offset[:, 0].norm(dim=-1)
    a, b = mine.contacts > 0.5, theirs.contacts > 0.5
    both, total = float((a & b).sum()), float(a.sum() + b.sum())
    return {
        "body_local_m": float((offset - offset[:, :1])[1:].norm(dim=-1).mean()),
        "body_global_m": float(offset[1:].norm(dim=-1).mean()),
        "root_pos_m": float(root[1:].mean()),
        "root_rot_rad": float(quat_angle(mine.root_rot, theirs.root_rot)[1:].mean()),
        "joint_rad": float(quat_angle(*turns)[1:].mean()),
        "root_max_m": float(root.max()),
        "contact_agreement": float((a == b).float().mean()),
        "contact_f1": 2.0 * both / total if total else 1.0,
    }


def needs_mpc(outcome: Outcome, config: CorrectionConfig) -> bool:
    """Whether MPC is to try after the tracker: everything that is not recorded whole."""
    return config.strategy != "tracker" and not outcome.whole


def better(first: Outcome, second: Outcome) -> Outcome:
    """The outcome that covers more of the source; attempts and reasons of both are kept."""
    long = max((first, second), key=lambda o: o.clip.duration_s if o.clip else -1.0)
    return replace(
        long,
        attempts=first.attempts + second.attempts,
        reasons=first.reasons + second.reasons if long.clip is None else [],
    )


def source_seed(base: int, source_id: str) -> int:
    """Seed of one motion's correction: decided by stage seed and id, not by its place in a list."""
    digest = torch.tensor(list(source_id.encode()), dtype=torch.long)
    weights = torch.arange(1, len(digest) + 1)
    return int((base + 1_000_003 * int((digest * weights).sum())) % (1 << 31))
