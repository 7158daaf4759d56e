"""Who corrects what: the tracker, MPC, or MPC where the tracker fails; the gate decides at the end.

The tracker goes over many clips at once (`correct_by_tracker`), MPC over one at a time
(`by_mpc.correct_by_mpc`), so the stage calls them on different pools; `needs_mpc` and `judge` are
the rules between them.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from envs.recorder import RecordConfig, Recorded, record
from envs.sims.base import BackendFactory
from envs.tracking.config import TrackingConfig
from parc_ray.correction.config import CorrectionConfig
from parc_ray.correction.gate import recording_metrics, refusals
from parc_ray.correction.measures import measure
from parc_ray.correction.outcome import Attempt, Failure, Outcome
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
        attempts=1 + config.perturbed_starts,
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
    began = time.process_time()
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
    share = (time.process_time() - began) / max(1, len(clips))
    outcomes = []
    for clip, result in zip(clips, recorded, strict=True):
        outcome = _outcome(clip, result, share, seed)
        judge(outcome, clip, character, config)
        outcomes.append(outcome)
    return outcomes


def _outcome(clip: MotionClip, result: Recorded, cpu_s: float, seed: int) -> Outcome:
    """The recorder's result in this package's terms."""
    last = clip.num_frames - 1
    kept = result.clip.num_frames - 1 if result.clip is not None else 0
    attempt = Attempt(
        corrector="tracker",
        start_frame=0,
        frames=round(result.survived * last),
        wanted=last,
        cpu_s=cpu_s,
        seed=seed,
        reason=result.reason,
        failed_frame=result.failed_frame,
    )
    outcome = Outcome(
        source_id=clip.clip_id,
        clip=result.clip,
        corrector="tracker" if result.clip is not None else None,
        whole=result.whole,
        start_frame=result.start_frame,
        end_frame=result.start_frame + kept,
        attempts=[attempt],
        metrics=dict(result.metrics),
    )
    if result.clip is None:
        at = result.failed_frame
        reason = f"the tracker fell at frame {at}: {result.reason}"
        outcome.failures.append(Failure(corrector="tracker", rule="ended", frame=at, reason=reason))
    return outcome


def judge(
    outcome: Outcome, source: MotionClip, character: Character, config: CorrectionConfig
) -> None:
    """Measure the recording and drop it, with reasons, where the gate refuses it."""
    if outcome.clip is None:
        return
    clip, corrector = outcome.clip, outcome.corrector
    if corrector is None:
        raise ValueError(f"{clip.clip_id}: nobody made this recording")
    frames = measure(clip, source, outcome.start_frame, character)
    outcome.metrics |= recording_metrics(clip, character) | frames.figures()
    numbers = {k: v for k, v in outcome.metrics.items() if v == v}
    judged = replace(clip, metrics={**clip.metrics, **numbers})
    refused = refusals(outcome.metrics, config.gate, frames)
    if not refused:
        outcome.clip = judged
        return
    outcome.failures += [
        Failure(
            corrector=corrector,
            rule=r.rule,
            frame=None if r.frame is None else outcome.start_frame + r.frame,
            reason=f"{corrector} recording refused: {r.text}",
        )
        for r in refused
    ]
    outcome.refused = replace(judged, clip_id=f"{clip.clip_id}_refused")
    outcome.clip, outcome.corrector, outcome.whole = None, None, False


def needs_mpc(outcome: Outcome, config: CorrectionConfig) -> bool:
    """Whether MPC is to try after the tracker: everything that is not recorded whole."""
    return config.strategy != "tracker" and not outcome.whole


def better(first: Outcome, second: Outcome) -> Outcome:
    """The outcome that covers more of the source; attempts and reasons of both are kept.

    Of two without a recording the one with a refused one, so that figures and frames are its own.
    """

    def rank(outcome: Outcome) -> float:
        if outcome.clip is not None:
            return outcome.clip.duration_s
        return -1.0 if outcome.refused is not None else -2.0

    long = max((first, second), key=rank)
    return replace(
        long,
        attempts=first.attempts + second.attempts,
        failures=first.failures + second.failures if long.clip is None else [],
    )


def source_seed(base: int, source_id: str) -> int:
    """Seed of one motion's correction: decided by stage seed and id, not by its place in a list."""
    digest = hashlib.sha256(f"{base}/{source_id}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
