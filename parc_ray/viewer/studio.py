"""Models at hand: plan a path, generate motions along it, optimise them, track them in physics."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from algorithms.diffusion.generator import DiffusionGenerator
from algorithms.ppo.policy import MlpPolicy
from envs.recorder import RecordConfig, Simulation, simulation_to_clip
from envs.tracking.rollouts import EpisodeRunner, Episodes
from envs.tracking.task import REASONS, Noise
from parc_ray.character.character import Character
from parc_ray.config import ParcConfig
from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip, Provenance
from parc_ray.stages._trackers import make_factory
from parc_ray.synthesis.assemble import candidate_clip, finish_clips
from parc_ray.synthesis.legs import LongPath, plan_legs
from parc_ray.synthesis.rollout import Candidate, generate_candidates
from parc_ray.synthesis.selection import Verdict, select_candidates
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.viewer.terrain_edit import Point

MOST_CANDIDATES = 64
_MOST_S = 30.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Made:
    """A generated motion and its judgement."""

    clip: MotionClip
    verdict: Verdict


@dataclass(frozen=True, kw_only=True, eq=False)
class Tried:
    """A motion that a tracker followed in simulation.

    Attributes:
        clip: what was simulated, up to and with the failing step, in the source's frame.
        reason: rule that ended it, "" if it was completed.
        failed_frame: frame of the source at which it ended, or None.
        steps: control steps survived of ``wanted``.
        wanted: control steps to the end.
    """

    clip: MotionClip
    reason: str
    failed_frame: int | None
    steps: int
    wanted: int


@dataclass(kw_only=True, eq=False)
class Studio:
    """Generator and tracker, loaded when they are first used.

    Attributes:
        character: whose motions are made.
        config: settings of planner, roll-outs, selection, optimiser, task and simulator.
        generator_path: file of the generator, None if there is none.
        tracker_path: file of the policy, None if there is none.
    """

    character: Character
    config: ParcConfig
    generator_path: Path | None = None
    tracker_path: Path | None = None
    _generators: dict[float, DiffusionGenerator] = field(default_factory=dict)
    _policy: MlpPolicy | None = None

    def generator(self, s: float) -> DiffusionGenerator:
        """The generator at blend coefficient ``s``.

        Raises:
            InputError: none was given, or its file cannot be used with this s.
        """
        if self.generator_path is None:
            raise InputError(
                "generator: none is loaded; start `parc view` with --generator FILE, or on a run "
                "whose train-generator is done"
            )
        if not 0.0 <= s <= 1.0:
            raise InputError(f"s: {s:g}; allowed is 0 to 1")
        found = self._generators.get(s)
        if found is None:
            found = DiffusionGenerator.load(self.generator_path, self.character, blend=s)
            self._generators = {s: found}
        return found

    def policy(self) -> MlpPolicy:
        """The tracker.

        Raises:
            InputError: none was given, or its file cannot be used.
        """
        if self.tracker_path is None:
            raise InputError(
                "tracker: none is loaded; start `parc view` with --tracker FILE, or on a run whose "
                "train-tracker is done"
            )
        if self._policy is None:
            self._policy = MlpPolicy.load(self.tracker_path)
        return self._policy

    def plan(self, terrain: Heightfield, waypoints: Sequence[Point], seed: int = 0) -> LongPath:
        """The cheapest path through way-points.

        Raises:
            InputError: too few way-points, one off the terrain, or no path.
        """
        return plan_legs(terrain, waypoints, self.config.synthesis.planner, seed)

    def generate(
        self,
        terrain: Heightfield,
        path: LongPath,
        *,
        s: float,
        seed: int,
        candidates: int,
        seconds: float,
    ) -> list[Made]:
        """Candidates along a path, best first; those without frames are left out.

        Raises:
            InputError: no generator, or numbers out of range.
        """
        if not 1 <= candidates <= MOST_CANDIDATES:
            raise InputError(f"candidates: {candidates}; allowed is 1 to {MOST_CANDIDATES}")
        if not 0.5 <= seconds <= _MOST_S:
            raise InputError(f"seconds: {seconds:g}; allowed is 0.5 to {_MOST_S:g}")
        generator = self.generator(s)
        synthesis = self.config.synthesis
        rolling = replace(synthesis.rollout, candidates=candidates, max_duration_s=seconds)
        made = generate_candidates(
            generator, [terrain], [path.points], self.character, rolling, seed
        )
        chosen = select_candidates(
            made, [terrain], self.character, synthesis.selection, generator.fps
        )
        pairs = [
            (c, v) for c, v in zip(made, chosen.verdicts, strict=True) if c.frames.num_frames > 3
        ]
        pairs.sort(key=lambda pair: (not pair[1].kept, pair[1].score, pair[1].index))
        return [self._made(c, v, terrain, path, s, seed, generator.fps) for c, v in pairs]

    def _made(
        self,
        candidate: Candidate,
        verdict: Verdict,
        terrain: Heightfield,
        path: LongPath,
        s: float,
        seed: int,
        fps: float,
    ) -> Made:
        assert self.generator_path is not None
        digest = hashlib.sha256(self.generator_path.read_bytes()).hexdigest()
        provenance = Provenance(
            source="PARC-Ray motion generator",
            licence="that of the data set it was trained on",
            seeds={"generate": seed, "candidate": candidate.index},
            hashes={"generator": digest},
            maker="generate",
            class_name="generated_by_hand",
            notes=f"s {s:g}, on a terrain edited in the viewer",
        )
        name = f"edit_s{s:g}_seed{seed}_c{candidate.index:03d}"
        clip = candidate_clip(
            candidate, verdict, terrain, path.points, name, fps, provenance, padding_m=None
        )
        return Made(clip=clip, verdict=verdict)

    def optimise(self, clip: MotionClip, iterations: int | None = None) -> MotionClip:
        """The clip moved out of its ground and onto its contacts; its parent is ``clip``.

        Args:
            clip: a motion with contact labels.
            iterations: steps; None takes the config's.
        """
        synthesis = replace(self.config.synthesis, mirror=False)
        if iterations is not None:
            optimizer = replace(synthesis.optimizer, iterations=iterations)
            synthesis = replace(synthesis, optimizer=optimizer)
        done = finish_clips([clip], self.character, synthesis)[0].clip
        notes = f"{clip.provenance.notes}; optimised".strip("; ")
        provenance = replace(clip.provenance, parents=(clip.clip_id,), notes=notes)
        return replace(done, clip_id=f"{clip.clip_id}_opt", provenance=provenance, replay=None)

    def track(self, clip: MotionClip) -> Tried:
        """Follow a clip with the tracker from its first frame, in simulation.

        Raises:
            InputError: no tracker, or one for another task.
        """
        policy, config = self.policy(), self.config
        factory = make_factory(self.character, config.sim, config.simulator)
        runner = EpisodeRunner(self.character, [clip], config.tracking, factory, 1)
        try:
            zero = torch.zeros(1, dtype=torch.long)
            run = _run(runner, policy, zero, self.tracker_path)
            assert run.states is not None
            assert run.targets is not None
            steps, wanted = int(run.steps[0]), int(run.remaining[0])
            code = int(run.reason[0])
            last = min(steps + (code >= 0), len(run.targets))
            backend = runner.backend
            simulation = Simulation(
                start=run.start_state.index(0),
                states=run.states.index((slice(last + 1), 0)),
                targets=run.targets[:last, 0],
                boxes=backend.boxes[0],
                terrain=runner.bank.clips[0].terrain,
                control_dt=backend.control_dt,
                backend=backend.name,
                model_hash=backend.model_hash,
            )
        finally:
            runner.close()
        made = simulation_to_clip(
            simulation,
            clip,
            clip_id=f"{clip.clip_id}_tried",
            maker="tracker",
            config=RecordConfig(),
            hashes={"tracker": policy.digest},
            notes=f"frames 0 to {last} of {wanted + 1} of {clip.clip_id}, tried in the viewer",
        )
        assert made.replay is not None
        offset = made.replay.offset
        # In the frame of the source, which is the simulated one, so that both lie on one ground.
        made = replace(
            made,
            frames=replace(made.frames, root_pos=simulation.states.root_pos.clone()),
            terrain=made.terrain.translated(-offset),
            path_nodes=None if clip.path_nodes is None else clip.path_nodes.clone(),
            replay=replace(made.replay, offset=torch.zeros_like(offset)),
        )
        return Tried(
            clip=made,
            reason=REASONS[code] if code >= 0 else "",
            failed_frame=steps + 1 if code >= 0 else None,
            steps=steps,
            wanted=wanted,
        )


def _run(
    runner: EpisodeRunner, policy: MlpPolicy, zero: torch.Tensor, path: Path | None
) -> Episodes:
    try:
        return runner.run(policy, zero, zero, Noise(), keep=True)
    except RuntimeError as error:
        raise InputError(
            f"{path}: does not fit the tracking task ({error}); give the tracker of this run, or "
            "--recipe as it was trained with"
        ) from error
