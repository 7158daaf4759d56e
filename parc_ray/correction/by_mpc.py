"""Correct one motion by sampling MPC: retries, a stronger setting, then the longest piece."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import torch

from algorithms.mpc.config import MpcConfig
from algorithms.mpc.corrector import MpcCorrector, MpcResult
from algorithms.mpc.cost import TrackingError, tracking_error
from algorithms.mpc.reference import ReferenceTrack, reference_track
from envs.recorder import RecordConfig, Simulation, simulation_to_clip
from envs.sims.base import BackendFactory
from envs.sims.replay import simulate
from envs.tracking.config import TrackingConfig
from envs.tracking.motion_bank import MotionBank
from envs.tracking.task import Noise, TrackingTask
from parc_ray.config_io import config_hash
from parc_ray.correction.config import CorrectionConfig
from parc_ray.correction.outcome import Attempt, Failure, Outcome
from parc_ray.motion.clip import MotionClip

if TYPE_CHECKING:
    from parc_ray.character.character import Character


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """A tracked stretch of the reference: its result, setting, and how many steps are kept."""

    result: MpcResult
    config: MpcConfig
    steps: int


def settings(config: CorrectionConfig) -> Iterator[tuple[MpcConfig, int]]:
    """Settings to try in turn, each with the number of its seed."""
    for attempt in range(1 + config.mpc_retries):
        yield config.mpc, attempt
    if config.mpc_stronger_retry:
        yield config.mpc.stronger(), 1 + config.mpc_retries


def correct_by_mpc(
    character: Character,
    factory: BackendFactory,
    clip: MotionClip,
    config: CorrectionConfig,
    tracking: TrackingConfig,
    record: RecordConfig,
    seed: int,
    iteration: int | None = None,
) -> Outcome:
    """Follow ``clip`` in simulation and record it.

    The whole motion is tried first with every setting; where none completes it, the longest
    tracked stretch is kept if it is long enough, without its last moments before the failure.

    Args:
        character: the character.
        factory: makes the two simulators.
        clip: kinematic motion at the control rate.
        config: settings, retries and least length.
        tracking: termination rules (root limits and clip-end rules).
        record: how a simulated motion becomes a clip.
        seed: seed of all attempts.
        iteration: PARC iteration of the recording.
    """
    outcome = Outcome(source_id=clip.clip_id)
    bank = MotionBank(character, [clip], clip.fps)
    task = TrackingTask(character, bank, tracking)
    ref = reference_track(character, clip)
    last = min(ref.num_frames - 1, round(config.mpc_max_s * clip.fps))
    limits = tracking.termination
    pieces: list[_Piece] = []
    for base, number in settings(config):
        mpc = replace(
            base,
            root_pos_limit=min(limits.root_pos_m, 100.0),
            root_rot_limit=min(limits.root_rot_rad, 3.2),
        )
        piece = _attempt(character, factory, bank, task, ref, mpc, seed + 7919 * number, last)
        pieces.append(piece)
        outcome.attempts.append(_note(piece.result, last))
        if piece.result.completed:
            break
    best = max(pieces, key=lambda p: (p.result.completed, p.result.frames))
    best = _cut(best, config, clip.fps)
    if best is None:
        outcome.failures.append(_too_short(pieces, config, clip.fps))
        return outcome
    _record(outcome, character, factory, clip, bank, ref, best, record, iteration)
    return outcome


def _attempt(
    character: Character,
    factory: BackendFactory,
    bank: MotionBank,
    task: TrackingTask,
    ref: ReferenceTrack,
    mpc: MpcConfig,
    seed: int,
    last: int,
) -> _Piece:
    began = time.process_time()
    terrains = bank.terrains()
    main, many = factory(1, terrains), factory(mpc.samples, terrains)
    few = factory(mpc.num_survivors, terrains) if mpc.prunes else None
    try:
        zero = torch.zeros(1, dtype=torch.long)
        start = task.start_state(zero, zero, Noise(), None)
        ruled = replace(character, termination_distance=task.body_limits)
        corrector = MpcCorrector(ruled, main, many, mpc, few)
        result = corrector.follow(ref, 0, seed=seed, end_frame=last, initial=start)
    finally:
        for backend in (main, many, few):
            if backend is not None:
                backend.close()
    result = replace(result, cpu_s=time.process_time() - began)
    return _Piece(result=result, config=mpc, steps=result.frames)


def _note(result: MpcResult, last: int) -> Attempt:
    return Attempt(
        corrector="mpc",
        start_frame=result.start_frame,
        frames=result.frames,
        wanted=last - result.start_frame,
        cpu_s=result.cpu_s,
        seed=result.seed,
        reason=result.reason,
        failed_frame=None if result.completed else result.start_frame + result.frames + 1,
        rewinds=result.rewinds,
    )


def _too_short(pieces: list[_Piece], config: CorrectionConfig, fps: float) -> Failure:
    """Why nothing is kept: where and how the longest attempt ended."""
    longest = max(pieces, key=lambda p: p.result.frames).result
    frame = longest.start_frame + longest.frames + 1
    return Failure(
        corrector="mpc",
        rule="ended",
        frame=frame,
        reason=(
            f"MPC fell at frame {frame} in the longest of {len(pieces)} attempts: "
            f"{longest.reason}; {longest.frames / fps:.2f} s were tracked, "
            f"{config.min_segment_s:g} s are needed before the {config.mpc_backoff_s:g} s that are "
            "cut ahead of a failure"
        ),
    )


def _cut(piece: _Piece, config: CorrectionConfig, fps: float) -> _Piece | None:
    """The piece without its last moments, or None where too little is left."""
    if piece.result.completed:
        return piece
    steps = piece.result.frames - round(config.mpc_backoff_s * fps)
    if steps < config.min_segment_s * fps - 1e-6:
        return None
    return replace(piece, steps=steps)


def _record(
    outcome: Outcome,
    character: Character,
    factory: BackendFactory,
    clip: MotionClip,
    bank: MotionBank,
    ref: ReferenceTrack,
    piece: _Piece,
    record: RecordConfig,
    iteration: int | None,
) -> None:
    """Simulate the chosen targets again and turn the result into a clip."""
    backend = factory(1, bank.terrains())
    try:
        targets = piece.result.pd_targets[: piece.steps]
        states = simulate(backend, piece.result.initial, targets)
        simulation = Simulation(
            start=piece.result.initial.index(0),
            states=states,
            targets=targets,
            boxes=backend.boxes[0],
            terrain=bank.clips[0].terrain,
            control_dt=backend.control_dt,
            backend=backend.name,
            model_hash=backend.model_hash,
        )
    finally:
        backend.close()
    first = piece.result.start_frame
    window = ref.at(first + torch.arange(piece.steps + 1))
    error = tracking_error(character, states, window)
    outcome.metrics = _error_metrics(error)
    outcome.corrector = "mpc"
    outcome.start_frame, outcome.end_frame = first, first + piece.steps
    outcome.whole = first == 0 and outcome.end_frame == ref.num_frames - 1
    made = simulation_to_clip(
        simulation,
        clip,
        clip_id=f"{clip.clip_id}_mpc",
        maker="mpc",
        config=record,
        hashes={"mpc": config_hash(asdict(piece.config))},
        iteration=iteration,
        notes=f"frames {first} to {outcome.end_frame} of {ref.num_frames} of {clip.clip_id}",
        metrics=outcome.metrics,
    )
    seeds = {**made.provenance.seeds, "mpc": piece.result.seed}
    outcome.clip = replace(made, provenance=replace(made.provenance, seeds=seeds))


def _error_metrics(error: TrackingError) -> dict[str, float]:
    """Means over the frames after the start, under the recorder's names."""
    return {
        "body_local_m": float(error.relative[1:].mean()),
        "body_global_m": float(error.absolute[1:].mean()),
        "root_pos_m": float(error.root_pos[1:].mean()),
        "root_rot_rad": float(error.root_rot[1:].mean()),
        "joint_rad": float(error.joint[1:].mean()),
        "root_max_m": float(error.root_pos.max()),
    }
