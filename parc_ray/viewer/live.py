"""Steering a character: the generator plans a little ahead, the tracker follows in simulation.

Closed loop: every plan begins with the last simulated frames, so that what the physics made of the
plan before is where the next one starts.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from envs.tracking.motion_bank import MotionBank, crop_to_path
from envs.tracking.observations import Observed
from envs.tracking.task import Ahead, Noise, TrackingTask
from parc_ray.character.rotations import heading_angle
from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip
from parc_ray.motion.frames import MotionFrames, cat_time
from parc_ray.protocols import SampleRequest, SimState
from parc_ray.stages._trackers import make_factory
from parc_ray.terrain.heightfield import Heightfield, HeightfieldBatch
from parc_ray.viewer.studio import Studio

Key = Literal["forward", "back", "left", "right", "stop"]
TURN_RAD = math.radians(20.0)
_STEP = 0.25
_CONTACT_N = 1.0
_SMOOTH = 0.1


@dataclass(kw_only=True)
class Steering:
    """Where the character shall go.

    Attributes:
        heading: rad, 0 along x.
        speed: share of the look-ahead, 0 (stand) to 1.
    """

    heading: float = 0.0
    speed: float = 1.0

    def press(self, key: Key) -> None:
        """One press of a key."""
        if key == "left":
            self.heading += TURN_RAD
        elif key == "right":
            self.heading -= TURN_RAD
        elif key == "forward":
            self.speed = min(1.0, self.speed + _STEP)
        elif key == "back":
            self.speed = max(0.0, self.speed - _STEP)
        else:
            self.speed = 0.0

    def target(self, root_xy: Tensor, reach_m: float) -> Tensor:
        """(2,) m: the point to move towards."""
        ahead = torch.tensor([math.cos(self.heading), math.sin(self.heading)])
        return root_xy + ahead * reach_m * self.speed


@dataclass(kw_only=True)
class Rates:
    """How fast it goes, smoothed.

    Attributes:
        step_s: computing time of a control step, plans apart.
        plan_s: computing time of a plan.
        steps_per_plan: control steps between plans.
    """

    step_s: float = 0.0
    plan_s: float = 0.0
    steps_per_plan: int = 1

    @property
    def hz(self) -> float:
        """Control steps that could be made per second."""
        cost = self.step_s + self.plan_s / max(self.steps_per_plan, 1)
        return 1.0 / cost if cost > 0 else 0.0

    def add(self, name: Literal["step_s", "plan_s"], seconds: float) -> None:
        """Count a measurement."""
        old = getattr(self, name)
        setattr(self, name, seconds if old == 0.0 else old + _SMOOTH * (seconds - old))


@dataclass(kw_only=True, eq=False)
class LiveDrive:
    """A character in simulation that follows what is planned for it.

    Attributes:
        studio: generator and tracker.
        terrain: the ground.
        start: (x, y) m.
        s: blend coefficient of the generator.
        windows: windows of the generator in a plan.
        seed: of the generator's noise.
        steering: where to.
        rates: how fast it goes.
        falls: how often the tracker failed and was set back onto the plan.
        steps: control steps made.
    """

    studio: Studio
    terrain: Heightfield
    start: tuple[float, float] = (0.0, 0.0)
    s: float = 0.5
    windows: int = 2
    seed: int = 0
    steering: Steering = field(default_factory=Steering)
    rates: Rates = field(default_factory=Rates)
    falls: int = 0
    steps: int = 0

    def __post_init__(self) -> None:
        """Make the simulator, plan from the start and put the character there.

        Raises:
            InputError: no generator or tracker, or a start beside the ground.
        """
        if not bool(self.terrain.contains(torch.tensor(self.start))):
            raise InputError(f"start {self.start}: is off the terrain; click on the ground")
        self.generator, self.policy = self.studio.generator(self.s), self.studio.policy()
        config, character = self.studio.config, self.studio.character
        self._rng = torch.Generator().manual_seed(self.seed)
        self._zero = torch.zeros(1, dtype=torch.long)
        factory = make_factory(character, config.sim, config.simulator)
        self.backend = factory(1, [self.terrain])
        self._history: list[MotionFrames] = []
        self._seen: tuple[Ahead, Observed] | None = None
        self._plan(None)
        self._set_back()

    def step(self) -> None:
        """One control step, after a new plan where the old one is used up."""
        if self._frame >= self._first + self.rates.steps_per_plan:
            self._plan(cat_time(self._history[-self.generator.num_past :]))
        began = time.perf_counter()
        refs, seen = self._seen or self._look()
        action = self.policy.act(self.task.builder(seen))
        self.backend.step(self.task.targets(action, refs))
        self._frame += 1
        self.steps += 1
        self._seen = self._look()
        if bool(self.task.failures(self._seen[1], self.backend.bad).any()):
            self.falls += 1
            self._set_back()
        else:
            self._remember(self._seen[1].state)
        self.rates.add("step_s", time.perf_counter() - began)

    def pose(self) -> MotionFrames:
        """The character now, one frame."""
        return self._history[-1]

    @property
    def frame(self) -> int:
        """Frame of the plan at which the character shall be now."""
        return min(self._frame, self.plan.num_frames - 1)

    def close(self) -> None:
        """Release the simulator."""
        self.backend.close()

    def _look(self) -> tuple[Ahead, Observed]:
        """The references of the present frame, and what is observed."""
        frame = torch.tensor([self._frame])
        refs = self.task.references(self._zero, frame)
        return refs, self.task.observe(self.backend.state(), refs, self._zero, frame)

    def _plan(self, past: MotionFrames | None) -> None:
        """Generate some windows from ``past``, or from the start, and make them the reference."""
        began = time.perf_counter()
        generator = self.generator
        if past is None:
            ground = self.terrain.height_at(torch.tensor(self.start))
            height = float(ground) + self.studio.character.stand_height
            pos = torch.tensor([[*self.start, height]])
            heading = torch.tensor([self.steering.heading])
        else:
            pos, heading = past.root_pos[-1:], heading_angle(past.root_rot[-1:])
        batch = past.map(lambda x: x[None]) if past is not None else None
        parts = [batch] if batch is not None else []
        for _ in range(self.windows):
            window = self._window(batch, pos, heading)
            begin = generator.num_past if batch is not None else 0
            parts.append(window.time(begin))
            batch = window.time(window.num_frames - generator.num_past)
            pos, heading = batch.root_pos[:, -1], heading_angle(batch.root_rot[:, -1])
        frames = MotionFrames(**vars(cat_time(parts)))[0]
        if not bool(torch.isfinite(frames.root_pos).all()):
            raise InputError("drive: the generator's plan is not finite; start again, or lower s")
        self.plan = MotionClip(
            clip_id="plan", frames=frames, fps=generator.fps, terrain=self.terrain
        )
        near = replace(self.plan, terrain=crop_to_path(self.plan, 3.0))
        bank = MotionBank(self.studio.character, [near], generator.fps)
        self.task = TrackingTask(self.studio.character, bank, self.studio.config.tracking)
        self._first = self._frame = generator.num_past - 1
        self._seen = None
        self.rates.steps_per_plan = generator.num_frames - generator.num_past - 1
        self.rates.add("plan_s", time.perf_counter() - began)

    def _window(self, past: MotionFrames | None, pos: Tensor, heading: Tensor) -> MotionFrames:
        reach = self.studio.config.synthesis.rollout.lookahead_m
        target = self.steering.target(pos[0, :2], reach)
        request = SampleRequest(
            past=past,
            anchor_pos=pos,
            anchor_heading=heading,
            terrain=HeightfieldBatch.stack([self.terrain]),
            target_w=target[None],
            second_w=self.steering.target(pos[0, :2], 2.0 * reach)[None],
        )
        return self.generator.sample(request, self._rng)

    def _set_back(self) -> None:
        """Put the character onto the plan."""
        frame = torch.tensor([self._frame])
        state = self.task.start_state(self._zero, frame, Noise(), None)
        self.backend.set_state(self._zero, self._zero, state)
        self._seen = None
        past = self.plan.frames.time(
            max(0, self._frame + 1 - self.generator.num_past), self._frame + 1
        )
        self._history = [past.time(k, k + 1) for k in range(past.num_frames)]

    def _remember(self, state: SimState) -> None:
        force = state.contact_force[0].norm(dim=-1)
        self._history.append(
            MotionFrames(
                root_pos=state.root_pos.clone(),
                root_rot=state.root_rot.clone(),
                dof=state.dof_pos.clone(),
                contacts=(force > _CONTACT_N).float()[None],
            )
        )
        self._history = self._history[-self.generator.num_past :]
