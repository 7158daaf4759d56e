"""Follow one kinematic clip in simulation by sampling MPC.

The corrector owns no simulator: it is handed back ends of the same character, one with a single
environment that lives through the motion and those of its planner. Where the character falls, the
motion goes back to a moment before and on from there with other noise; once it is finished, a last
pass with little noise makes it smoother.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from algorithms.mpc.config import MpcConfig
from algorithms.mpc.cost import broken_rules, tracking_error, why_ended
from algorithms.mpc.planner import Plan, Planner, Problem
from algorithms.mpc.reference import ReferenceTrack
from parc_ray.character.character import Character
from parc_ray.character.targets import compose_residual
from parc_ray.protocols import SimBackend, SimState


@dataclass(frozen=True)
class MpcResult:
    """What one attempt produced.

    Attributes:
        initial: state (leading dimension 1) from which the targets were executed.
        pd_targets: (K, D) rad, executed targets, rounded to float32.
        residuals: (K, D) rad, what they turn the reference pose by.
        start_frame: reference frame of ``initial``.
        completed: whether the reference's last frame was reached without termination.
        frames: number of control steps survived, at most K.
        body_error: (frames,) m, mean world body error after each survived step.
        local_error: (frames,) m, the same relative to the root.
        cpu_s: process CPU time spent.
        seed: seed of the attempt.
        reason: which rule ended it, with its figures; "" if completed.
        rewinds: how often it went back.
        polished: passes with little noise that were kept.
    """

    initial: SimState
    pd_targets: Tensor
    residuals: Tensor
    start_frame: int
    completed: bool
    frames: int
    body_error: Tensor
    local_error: Tensor
    cpu_s: float
    seed: int
    reason: str = ""
    rewinds: int = 0
    polished: int = 0


@dataclass
class _Track:
    """The motion so far."""

    frame: int
    plan: Plan
    targets: list[Tensor]
    residuals: list[Tensor]
    errors: list[Tensor]

    def last_residual(self) -> Tensor:
        """(D,) residual executed last, zero before the first."""
        return self.residuals[-1] if self.residuals else torch.zeros(self.plan.mean.shape[1])


@dataclass(frozen=True)
class _Moment:
    """Where a motion can go back to: the simulator and the plan right before planning."""

    frame: int
    plan: Plan
    simulator: Mapping[str, Any]


@dataclass(frozen=True)
class _Task:
    """What is followed."""

    ref: ReferenceTrack
    terrain_id: int
    start_frame: int
    last: int
    initial: SimState
    seed: int


class MpcCorrector:
    """Cross-entropy MPC on residual PD targets around a reference."""

    def __init__(
        self,
        character: Character,
        main: SimBackend,
        many: SimBackend,
        config: MpcConfig,
        few: SimBackend | None = None,
    ) -> None:
        """Take the back ends: ``main`` with one environment, the planner's two (see `Planner`)."""
        if main.num_envs != 1:
            raise ValueError(f"main needs 1 environment, got {main.num_envs}")
        self.character, self.main, self.config = character, main, config
        self.planner = Planner(character, many, few, config)

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
            terrain_id: index into the terrains loaded in all back ends.
            seed: seed of the candidate noise.
            start_frame: frame at which the character is placed.
            end_frame: last frame to reach; the reference's last one by default.
            initial: (1, ...) state to start from; the reference's by default.
        """
        began = time.process_time()
        last = ref.num_frames - 1 if end_frame is None else min(end_frame, ref.num_frames - 1)
        if initial is None:
            initial = ref.state.index(slice(start_frame, start_frame + 1))
        task = _Task(ref, terrain_id, start_frame, last, initial.clone(), seed)
        rng = torch.Generator().manual_seed(seed)
        result = self._search(task, rng)
        for _ in range(self.config.polish.passes if result.completed else 0):
            result = self._polish(task, result, rng)
        return replace(result, cpu_s=time.process_time() - began)

    def _begin(self, task: _Task) -> _Track:
        zero = torch.tensor([0])
        self.main.set_state(zero, zero + task.terrain_id, task.initial)
        dofs = self.character.skeleton.num_dofs
        idle = Plan.idle(self.config.horizon, dofs)
        return _Track(task.start_frame, idle, [], [], [])

    def _search(self, task: _Task, rng: torch.Generator) -> MpcResult:
        """Follow the reference; go back and try again where it fails."""
        config = self.config
        track = self._begin(task)
        moments: list[_Moment] = []
        farthest, tries, rewinds, reason = task.start_frame, 0, 0, ""
        best: MpcResult | None = None
        while track.frame < task.last:
            moments.append(_Moment(track.frame, track.plan, self.main.state_dict()))
            again = tries > 0 and track.frame <= farthest
            iterations = config.iterations * (config.rewind_iterations if again else 1)
            track.plan = self._plan(self.planner, task, track, rng, iterations)
            reason = self._execute(task, track)
            if not reason:
                continue
            if best is None or track.frame > farthest:
                best = self._result(task, track, reason)
                tries = 0 if track.frame > farthest + config.horizon // 2 else tries
                farthest = track.frame
            if tries == config.rewinds or rewinds == config.rewinds_total:
                return replace(best, rewinds=rewinds)
            back = min(config.rewind << tries, 2 * config.horizon)
            tries, rewinds = tries + 1, rewinds + 1
            self._rewind(task, track, moments, back)
        return replace(self._result(task, track, ""), rewinds=rewinds)

    def _rewind(self, task: _Task, track: _Track, moments: list[_Moment], back: int) -> None:
        """Return to the latest moment at least ``back`` control steps ago, or to the start."""
        wanted = max(task.start_frame, track.frame - back)
        while len(moments) > 1 and moments[-1].frame > wanted:
            moments.pop()
        moment = moments.pop()
        self.main.load_state_dict(moment.simulator)
        track.frame, track.plan = moment.frame, moment.plan
        count = moment.frame - task.start_frame
        for values in (track.targets, track.residuals, track.errors):
            del values[count:]

    def _plan(
        self,
        planner: Planner,
        task: _Task,
        track: _Track,
        rng: torch.Generator,
        iterations: int | None = None,
    ) -> Plan:
        window = task.ref.at(track.frame + 1 + torch.arange(self.config.horizon))
        problem = Problem(self.main.state(), task.terrain_id, window, track.last_residual())
        return planner.plan(problem, track.plan, rng, iterations)

    def _execute(self, task: _Task, track: _Track) -> str:
        """Execute the beginning of the plan and move it on; why the track ended, or ""."""
        steps = min(self.config.execute, task.last - track.frame)
        for residual in track.plan.mean[:steps]:
            at = task.ref.at(torch.tensor([track.frame + 1]))
            target = compose_residual(
                self.character.skeleton, at.state.dof_pos, residual[None]
            ).float()
            self.main.step(target)
            track.targets.append(target[0])
            track.residuals.append(residual)
            error = tracking_error(self.character, self.main.state(), at)
            if bool(broken_rules(self.character, error, self.config).any()):
                return why_ended(self.character, error, self.config)
            track.frame += 1
            track.errors.append(torch.stack((error.absolute.mean(), error.relative.mean())))
        track.plan = track.plan.shifted(steps)
        return ""

    def _result(self, task: _Task, track: _Track, reason: str) -> MpcResult:
        none = torch.zeros(0, self.character.skeleton.num_dofs)
        errors = torch.stack(track.errors) if track.errors else torch.zeros(0, 2)
        return MpcResult(
            initial=task.initial,
            pd_targets=torch.stack(track.targets) if track.targets else none,
            residuals=torch.stack(track.residuals) if track.residuals else none,
            start_frame=task.start_frame,
            completed=not reason,
            frames=track.frame - task.start_frame,
            body_error=errors[:, 0],
            local_error=errors[:, 1],
            cpu_s=0.0,
            seed=task.seed,
            reason=reason,
        )

    def _polish(self, task: _Task, found: MpcResult, rng: torch.Generator) -> MpcResult:
        """Follow again with little noise around what was found; the smoother of the two."""
        config = self.config
        polish = config.polish
        backend = self.planner.few or self.planner.many
        quiet = replace(
            config,
            samples=backend.num_envs,
            prune_at=0,
            elite_share=polish.elite_share,
            sigma=polish.sigma,
            sigma_floor=min(config.sigma_floor, polish.sigma),
            iterations=polish.iterations,
            cost=replace(config.cost, action_rate=polish.action_rate),
        )
        planner = Planner(self.character, backend, None, quiet)
        calm = smoothed(found.residuals, polish.filters)
        track = self._begin(task)
        while track.frame < task.last:
            track.plan = self._with_tail(track.plan, calm, track.frame - task.start_frame)
            track.plan = self._plan(planner, task, track, rng)
            if self._execute(task, track):
                return found
        result = self._result(task, track, "")
        growth = max(
            float(result.body_error.mean() / found.body_error.mean()),
            float(result.local_error.mean() / found.local_error.mean()),
        )
        rougher = roughness(result.residuals) / max(roughness(found.residuals), 1e-12)
        if not (growth <= polish.max_error_growth and rougher <= 1.1 and growth * rougher < 1.0):
            return found
        return replace(result, rewinds=found.rewinds, polished=found.polished + 1)

    def _with_tail(self, plan: Plan, known_residuals: Tensor, first: int) -> Plan:
        """The plan at step ``first``, continued by known residuals where it held its last value."""
        horizon = self.config.horizon
        index = (first + torch.arange(horizon)).clamp(max=len(known_residuals) - 1)
        known = 0 if first == 0 else horizon - self.config.execute
        mean = torch.cat((plan.mean[:known], known_residuals[index[known:]]))
        return Plan(mean, plan.elites[:0])


def smoothed(residuals: Tensor, passes: int) -> Tensor:
    """Residuals (K, D) after some passes of the filter (1, 2, 1) / 4 over time; the ends stay."""
    for _ in range(passes):
        inner = 0.25 * (residuals[:-2] + 2.0 * residuals[1:-1] + residuals[2:])
        residuals = torch.cat((residuals[:1], inner, residuals[-1:]))[: len(residuals)]
    return residuals


def roughness(residuals: Tensor) -> float:
    """Mean squared change of residuals (K, D) between control steps, rad^2."""
    return float(residuals.diff(dim=0).square().sum(-1).mean()) if len(residuals) > 1 else 0.0
