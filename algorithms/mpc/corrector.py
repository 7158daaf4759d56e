"""Follow one kinematic clip in simulation by sampling MPC.

The corrector owns no simulator: it is handed two back ends of the same character, one with a
single environment that lives through the motion and one with an environment per candidate plan.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from algorithms.mpc.cem import elite_statistics, knot_weights, sample_knots, shift_knots
from algorithms.mpc.config import MpcConfig
from algorithms.mpc.cost import exceeded, plan_cost, tracking_error
from algorithms.mpc.reference import ReferenceTrack
from parc_ray.character.character import Character
from parc_ray.character.targets import compose_residual
from parc_ray.protocols import SimBackend, SimState

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class MpcResult:
    """What one attempt produced.

    Attributes:
        initial: state (leading dimension 1) from which the targets were executed.
        pd_targets: (K, D) rad, executed targets, rounded to float32.
        start_frame: reference frame of ``initial``.
        completed: whether the reference's last frame was reached without termination.
        frames: number of control steps survived, at most K.
        body_error: (frames,) m, mean world body error after each survived step.
        cpu_s: process CPU time spent.
        seed: seed of the attempt.
    """

    initial: SimState
    pd_targets: Tensor
    start_frame: int
    completed: bool
    frames: int
    body_error: Tensor
    cpu_s: float
    seed: int


class MpcCorrector:
    """Cross-entropy MPC on residual PD targets around a reference."""

    def __init__(
        self, character: Character, main: SimBackend, planner: SimBackend, config: MpcConfig
    ) -> None:
        """Take the back ends: ``main`` with one environment, ``planner`` with one per sample."""
        if main.num_envs != 1 or planner.num_envs != config.samples:
            raise ValueError(
                f"main needs 1 and planner {config.samples} environments, "
                f"got {main.num_envs} and {planner.num_envs}"
            )
        self.character = character
        self.main = main
        self.planner = planner
        self.config = config
        self._weights = knot_weights(config.knots, config.horizon)
        self._all = torch.arange(config.samples)

    @torch.no_grad()
    def follow(
        self,
        ref: ReferenceTrack,
        terrain_id: int,
        *,
        seed: int,
        start_frame: int = 0,
        end_frame: int | None = None,
        initial: SimState | None = None,
    ) -> MpcResult:
        """Track frames ``start_frame`` to ``end_frame`` of ``ref`` on terrain ``terrain_id``.

        Args:
            ref: reference at control steps.
            terrain_id: index into the terrains loaded in both back ends.
            seed: seed of the candidate noise.
            start_frame: frame at which the character is placed.
            end_frame: last frame to reach; the reference's last one by default.
            initial: (1, ...) state to start from; the reference's by default.
        """
        began = time.process_time()
        last = ref.num_frames - 1 if end_frame is None else min(end_frame, ref.num_frames - 1)
        rng = torch.Generator().manual_seed(seed)
        if initial is None:
            initial = ref.state.index(slice(start_frame, start_frame + 1))
        initial = initial.clone()
        self.main.set_state(torch.tensor([0]), torch.tensor([terrain_id]), initial)
        knots = torch.zeros(self.config.knots, self.character.skeleton.num_dofs)
        residual = torch.zeros(self.character.skeleton.num_dofs)
        targets: list[Tensor] = []
        errors: list[Tensor] = []
        frame, alive = start_frame, True
        while frame < last and alive:
            knots = self._plan(ref, terrain_id, frame, knots, residual, rng)
            plan = self._weights @ knots
            for step in range(min(self.config.execute, last - frame)):
                residual = plan[step]
                alive, error = self._execute(ref, frame + 1, residual, targets)
                if not alive:
                    break
                frame += 1
                errors.append(error)
            knots = shift_knots(knots, self.config.horizon, self.config.execute)
        return MpcResult(
            initial=initial,
            pd_targets=torch.stack(targets) if targets else torch.zeros(0, residual.shape[0]),
            start_frame=start_frame,
            completed=alive and frame == last,
            frames=frame - start_frame,
            body_error=torch.stack(errors) if errors else torch.zeros(0),
            cpu_s=time.process_time() - began,
            seed=seed,
        )

    def _execute(
        self, ref: ReferenceTrack, frame: int, residual: Tensor, targets: list[Tensor]
    ) -> tuple[bool, Tensor]:
        """Advance the real character to ``frame``; whether it survived, and its mean error."""
        at = ref.at(torch.tensor([frame]))
        target = compose_residual(self.character.skeleton, at.state.dof_pos, residual[None])
        target = target.float()
        self.main.step(target)
        targets.append(target[0])
        error = tracking_error(self.character, self.main.state(), at)
        failed = bool(exceeded(self.character, error, self.config)[0])
        return not failed, error.absolute.mean()

    def _plan(
        self,
        ref: ReferenceTrack,
        terrain_id: int,
        frame: int,
        mean: Tensor,
        last_residual: Tensor,
        rng: torch.Generator,
    ) -> Tensor:
        """Return the elite mean (K, D) after the configured cross-entropy iterations."""
        config = self.config
        window = ref.at(frame + 1 + torch.arange(config.horizon))
        start = self.main.state()
        terrain = torch.full((config.samples,), terrain_id, dtype=torch.long)
        starts = start.index(torch.zeros(config.samples, dtype=torch.long))
        std: Tensor | float = config.sigma
        for _ in range(config.iterations):
            spread = torch.as_tensor(std).expand_as(mean)
            knots = sample_knots(mean, spread, config.samples, config.residual_limit, rng)
            residuals = self._weights @ knots
            targets = compose_residual(self.character.skeleton, window.state.dof_pos, residuals)
            self.planner.set_state(self._all, terrain, starts)
            states = self.planner.rollout(targets)
            cost = plan_cost(self.character, states, window, residuals, last_residual, config)
            mean, std = elite_statistics(knots, cost, config.num_elites)
            std = std.clamp(min=config.sigma_floor)
        return mean
