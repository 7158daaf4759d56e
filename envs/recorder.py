"""Turn tracked motions into clips: physically simulated, replayable, honest about their origin.

Procedure (PARC, App. F; faults of the published code that it avoids: docs/design/tracker.md,
Recording): every clip from its first frame; clips that fail are tried again from later starts, and
the earliest start that reaches the end is kept. Contacts come from the simulated forces of the
terrain, debounced. Initial state and targets are float32 before they are simulated, so that the
stored clip replays bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from envs.sims.base import BackendFactory
from envs.tracking.config import TrackingConfig
from envs.tracking.rollouts import ERRORS, EpisodeRunner, Episodes
from envs.tracking.task import REASONS, Noise
from parc_ray.errors import InputError
from parc_ray.motion.clip import Maker, MotionClip, Replay
from parc_ray.motion.contacts import debounce
from parc_ray.motion.frames import MotionFrames
from parc_ray.protocols import Policy, SimState
from parc_ray.terrain.heightfield import Heightfield

if TYPE_CHECKING:
    from parc_ray.character.character import Character

_SHORTEST_S = 0.5


@dataclass(frozen=True, kw_only=True)
class RecordConfig:
    """How clips are recorded."""

    fractions: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
    """Starts to try, as shares of the clip, ascending. PARC: 0 to 0.5 in steps of 0.1."""
    min_remaining_s: float = 2.0
    """A later start needs this much of the clip ahead of it, seconds. PARC: 2."""
    attempts: int = 1
    """Runs per start: the first without noise, further ones slightly disturbed; best one kept."""
    attempt_pos_noise: float = 0.01
    """Root position noise of further attempts, metres."""
    attempt_vel_noise: float = 0.05
    """Velocity noise of further attempts, m/s and rad/s."""
    accept_segments: bool = False
    """Keep the longest piece that was tracked where no start reaches the end."""
    segment_min_s: float = 1.5
    """Least length of such a piece, seconds."""
    segment_trim_s: float = 0.3
    """What is cut off before the failure, seconds."""
    num_envs: int = 64
    """Environments that run at once."""
    seed: int = 0
    """Seed of the disturbances."""
    contact_threshold_n: float = 1.0
    """Terrain force above which a body touches, newton."""
    debounce_frames: int = 2
    """Shortest contact and shortest gap, frames."""
    crop_margin_m: float = 0.8
    """Ground kept around the path, metres. PARC: 0.8."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        starts = self.fractions
        if not starts or list(starts) != sorted(starts) or starts[0] < 0 or starts[-1] >= 1:
            raise InputError("record.fractions: ascending shares in [0, 1), one or more")
        for name in ("min_remaining_s", "segment_min_s"):
            if getattr(self, name) < _SHORTEST_S:
                raise InputError(f"record.{name}: must be {_SHORTEST_S} s or more")
        for name in ("attempts", "num_envs", "debounce_frames"):
            if getattr(self, name) < 1:
                raise InputError(f"record.{name}: must be 1 or more")


@dataclass
class Recorded:
    """What became of one clip.

    Attributes:
        source_id: id of the clip that was tracked.
        clip: the recorded clip, or None.
        start_fraction: start of the recording as a share of the source clip.
        start_frame: the same as a frame of the source clip.
        whole: the recording starts at frame 0 and reaches the end.
        reaches_end: the recording reaches the end of the source clip.
        attempts: episodes spent.
        survived: greatest share of the clip survived from frame 0.
        reason: first failure of the longest run from frame 0, "" if it completed.
        failed_frame: frame of the source at which that run failed, None if it completed.
        metrics: tracking errors of the recording.
    """

    source_id: str
    clip: MotionClip | None = None
    start_fraction: float = 0.0
    start_frame: int = 0
    whole: bool = False
    reaches_end: bool = False
    attempts: int = 0
    survived: float = 0.0
    reason: str = ""
    failed_frame: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass
class Simulation:
    """A simulated motion, ready to become a clip.

    Attributes:
        start: (...) initial state exactly as it was handed to the simulator.
        states: (T, ...) the simulator's states, the first right after it was set.
        targets: (T-1, D) PD targets.
        boxes: (K, 6) terrain boxes it was simulated on.
        terrain: the heightfield behind the boxes, in the simulated frame.
        control_dt: seconds between states.
        backend: name of the simulator.
        model_hash: hash of the simulated model.
    """

    start: SimState
    states: SimState
    targets: Tensor
    boxes: NDArray[np.float32]
    terrain: Heightfield
    control_dt: float
    backend: str
    model_hash: str


def contact_labels(contact_force: Tensor, threshold_n: float, min_frames: int) -> Tensor:
    """Labels (T, B), 0 or 1, from terrain forces (T, B, 3) N of a simulated motion.

    The state before the first step carries no force; it takes the label of the first step.
    """
    touching = contact_force.square().sum(-1).sqrt() > threshold_n
    touching = torch.cat((touching[1:2], touching[1:]))
    return debounce(touching, min_frames).float()


def simulation_to_clip(
    simulation: Simulation,
    source: MotionClip,
    *,
    clip_id: str,
    maker: Maker,
    config: RecordConfig,
    hashes: dict[str, str] | None = None,
    iteration: int | None = None,
    notes: str = "",
    metrics: dict[str, float] | None = None,
) -> MotionClip:
    """Cut, localise and label a simulated motion (from a tracker or from MPC).

    The clip's frame has the first root at xy = (0, 0) on ground of height 0. Frames are the
    simulated float32 states plus one translation, which `Replay.offset` keeps.

    Args:
        simulation: the motion and what it was simulated on.
        source: the clip it follows; gives provenance and path nodes.
        clip_id: id of the new clip.
        maker: what controlled the character.
        config: contact, debounce and crop figures.
        hashes: hashes of controller and settings, added to the source's.
        iteration: PARC iteration; None takes the source's.
        notes: for instance which part of the source was kept.
        metrics: figures to store with the clip.
    """
    states = simulation.states
    xy = states.root_pos[:, :2]
    ground = simulation.terrain.height_at(xy[0])
    offset = -torch.stack((xy[0, 0], xy[0, 1], ground)).float()
    low, high = xy.amin(0), xy.amax(0)
    terrain = simulation.terrain.cropped(low, high, config.crop_margin_m).translated(offset)
    contacts = contact_labels(
        states.contact_force, config.contact_threshold_n, config.debounce_frames
    )
    parent = source.provenance
    provenance = replace(
        parent,
        parents=(source.clip_id,),
        maker=maker,
        iteration=parent.iteration if iteration is None else iteration,
        hashes={**parent.hashes, **(hashes or {})},
        notes=notes,
    )
    return MotionClip(
        clip_id=clip_id,
        frames=MotionFrames(
            root_pos=states.root_pos + offset,
            root_rot=states.root_rot,
            dof=states.dof_pos,
            contacts=contacts,
        ),
        fps=1.0 / simulation.control_dt,
        terrain=terrain,
        path_nodes=None if source.path_nodes is None else source.path_nodes + offset,
        provenance=provenance,
        replay=_replay(simulation, offset),
        metrics=dict(metrics or {}),
        weight=source.weight,
    )


def _replay(simulation: Simulation, offset: Tensor) -> Replay:
    first = simulation.start
    return Replay(
        root_pos=first.root_pos.clone(),
        root_rot=first.root_rot.clone(),
        root_lin_vel=first.root_lin_vel.clone(),
        root_ang_vel=first.root_ang_vel.clone(),
        dof_pos=first.dof_pos.clone(),
        dof_vel=first.dof_vel.clone(),
        pd_targets=simulation.targets.clone(),
        boxes=torch.from_numpy(simulation.boxes.copy()),
        offset=offset,
        backend=simulation.backend,
        model_hash=simulation.model_hash,
    )


class _Recorder:
    """Runs the retries of `record`."""

    def __init__(
        self,
        runner: EpisodeRunner,
        clips: Sequence[MotionClip],
        policy: Policy | None,
        config: RecordConfig,
        hashes: dict[str, str],
        iteration: int | None,
    ) -> None:
        self.runner, self.clips, self.policy = runner, clips, policy
        self.config, self.hashes, self.iteration = config, hashes, iteration
        self.results = [Recorded(source_id=clip.clip_id) for clip in clips]
        self.longest: dict[int, tuple[int, float, Simulation, dict[str, float], int]] = {}

    def attempt(self, fraction: float) -> None:
        """Try all clips that are still open from one start."""
        bank, config = self.runner.bank, self.config
        start = (bank.length - 1).double().mul(fraction).round().long()
        remaining = bank.length - 1 - start
        open_clips = [
            c
            for c in range(bank.num_clips)
            if self.results[c].clip is None
            and (fraction == 0 or remaining[c] >= config.min_remaining_s * bank.fps - 1e-6)
        ]
        if not open_clips:
            return
        first = torch.tensor(open_clips)
        runs = [self._run(first, start[first], None, 0)]
        for k in range(1, config.attempts):
            noise = Noise(pos=config.attempt_pos_noise, vel=config.attempt_vel_noise)
            runs.append(self._run(first, start[first], noise, k))
        for row, clip in enumerate(open_clips):
            self._judge(clip, row, runs, fraction)

    def finish(self) -> list[Recorded]:
        """Fall back on the longest pieces where that is wanted."""
        for clip, (steps, fraction, simulation, metrics, start) in self.longest.items():
            result = self.results[clip]
            if result.clip is not None or not self.config.accept_segments:
                continue
            self._keep(clip, simulation, fraction, metrics, start, start + steps)
        return self.results

    def _run(self, clip: Tensor, start: Tensor, noise: Noise | None, attempt: int) -> Episodes:
        seed = self.config.seed + 7919 * attempt
        return self.runner.run(self.policy, clip, start, noise, seed, keep=True)

    def _judge(self, clip: int, row: int, runs: Sequence[Episodes], fraction: float) -> None:
        result = self.results[clip]
        result.attempts += len(runs)
        if fraction == 0:
            longest = max(runs, key=lambda r: int(r.steps[row]))
            result.survived = float(longest.survived[row])
            code = int(longest.reason[row])
            result.reason = REASONS[code] if code >= 0 else ""
            result.failed_frame = int(longest.steps[row]) + 1 if code >= 0 else None
        done = [run for run in runs if bool(run.completed[row])]
        if done:
            run = min(done, key=lambda r: float(r.errors[row, ERRORS.index("body_global_m")]))
            start, steps = int(run.start[row]), int(run.steps[row])
            simulation = self._simulation(clip, row, run, steps)
            self._keep(clip, simulation, fraction, _metrics(run, row), start, start + steps)
            result.reaches_end = True
            result.whole = start == 0
            return
        run = max(runs, key=lambda r: int(r.steps[row]))
        steps = int(run.steps[row]) - round(self.config.segment_trim_s * self.runner.bank.fps)
        best = self.longest[clip][0] if clip in self.longest else 0
        if steps > best and steps >= self.config.segment_min_s * self.runner.bank.fps - 1e-6:
            simulation = self._simulation(clip, row, run, steps)
            start = int(run.start[row])
            self.longest[clip] = (steps, fraction, simulation, _metrics(run, row), start)

    def _simulation(self, clip: int, row: int, run: Episodes, steps: int) -> Simulation:
        if run.states is None or run.targets is None:
            raise ValueError("trajectories were not kept")
        backend = self.runner.backend
        return Simulation(
            start=run.start_state.index(row),
            states=run.states.index((slice(steps + 1), row)),
            targets=run.targets[:steps, row],
            boxes=backend.boxes[clip],
            terrain=self.runner.bank.clips[clip].terrain,
            control_dt=backend.control_dt,
            backend=backend.name,
            model_hash=backend.model_hash,
        )

    def _keep(
        self,
        clip: int,
        simulation: Simulation,
        fraction: float,
        metrics: dict[str, float],
        first: int,
        last: int,
    ) -> None:
        source = self.clips[clip]
        count = int(self.runner.bank.length[clip])
        result = self.results[clip]
        result.start_fraction, result.start_frame = fraction, first
        result.metrics = metrics
        result.clip = simulation_to_clip(
            simulation,
            source,
            clip_id=f"{source.clip_id}_tracked",
            maker="tracker",
            config=self.config,
            hashes=self.hashes,
            iteration=self.iteration,
            notes=f"frames {first} to {last} of {count} of {source.clip_id}",
            metrics={**metrics, "start_fraction": fraction},
        )


def record(
    character: Character,
    factory: BackendFactory,
    clips: Sequence[MotionClip],
    policy: Policy | None,
    config: RecordConfig | None = None,
    *,
    tracking: TrackingConfig | None = None,
    hashes: dict[str, str] | None = None,
    iteration: int | None = None,
) -> list[Recorded]:
    """Record clips with a deterministic policy; one result per clip, in order.

    Args:
        character: the character.
        factory: makes the simulator.
        clips: reference motions at the control rate.
        policy: the tracker; None plays the reference back without feedback.
        config: starts, attempts and cutting.
        tracking: the rules the policy was trained with.
        hashes: of the policy and settings, for provenance.
        iteration: PARC iteration of the recordings; None keeps each source's.
    """
    config = config or RecordConfig()
    size = min(config.num_envs, len(clips))
    runner = EpisodeRunner(character, clips, tracking or TrackingConfig(), factory, size)
    try:
        recorder = _Recorder(runner, clips, policy, config, hashes or {}, iteration)
        for fraction in config.fractions:
            recorder.attempt(fraction)
        return recorder.finish()
    finally:
        runner.close()


def _metrics(run: Episodes, row: int) -> dict[str, float]:
    values = dict(zip(ERRORS, run.errors[row].tolist(), strict=True))
    return {**values, "contact_agreement": float(run.contact_agreement[row])}


def replay_frames(states: SimState, replay: Replay, config: RecordConfig) -> MotionFrames:
    """Frames in the clip's frame of a replayed trajectory (T, ...): what the recorder stored."""
    return MotionFrames(
        root_pos=states.root_pos + replay.offset,
        root_rot=states.root_rot,
        dof=states.dof_pos,
        contacts=contact_labels(
            states.contact_force, config.contact_threshold_n, config.debounce_frames
        ),
    )


__all__ = [
    "RecordConfig",
    "Recorded",
    "Simulation",
    "contact_labels",
    "record",
    "replay_frames",
    "simulation_to_clip",
]
