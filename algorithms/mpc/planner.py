"""One plan: candidates around a nominal plan are simulated, the cheapest decide the next mean."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from algorithms.mpc.cem import best, sample_plans, shift, spread
from algorithms.mpc.config import MpcConfig
from algorithms.mpc.cost import PartialCost, add_cost
from algorithms.mpc.reference import ReferenceTrack
from parc_ray.character.character import Character
from parc_ray.character.targets import compose_residual
from parc_ray.protocols import SimBackend, SimState


@dataclass(frozen=True)
class Plan:
    """What a search ends with.

    Attributes:
        mean: (H, D) rad, residuals to execute.
        elites: (E, H, D) rad, the cheapest candidates.
    """

    mean: Tensor
    elites: Tensor

    @classmethod
    def idle(cls, horizon: int, num_dofs: int) -> Plan:
        """No residual and no candidates yet."""
        return cls(torch.zeros(horizon, num_dofs), torch.zeros(0, horizon, num_dofs))

    def shifted(self, steps: int) -> Plan:
        """The plan ``steps`` control steps later."""
        return Plan(shift(self.mean, steps), shift(self.elites, steps))


@dataclass(frozen=True)
class Problem:
    """What is planned for.

    Attributes:
        start: (1, ...) present state.
        terrain_id: terrain that the character is on.
        window: reference at the next H control steps.
        last_residual: (D,) rad, executed before.
    """

    start: SimState
    terrain_id: int
    window: ReferenceTrack
    last_residual: Tensor


class Planner:
    """Cross-entropy search on back ends of its own.

    After ``prune_at`` control steps only the cheapest candidates are simulated on, on the smaller
    back end; candidates whose cost is known are never simulated again.

    Args:
        character: the character.
        many: one environment per candidate.
        few: one environment per survivor; None where nothing is pruned.
        config: sizes, noise and cost.
    """

    def __init__(
        self,
        character: Character,
        many: SimBackend,
        few: SimBackend | None,
        config: MpcConfig,
    ) -> None:
        """Check the sizes of the back ends."""
        wanted = (config.samples, config.num_survivors if config.prunes else None)
        found = (many.num_envs, None if few is None else few.num_envs)
        if wanted != found:
            raise ValueError(f"back ends of {wanted} environments are needed, got {found}")
        self.character, self.many, self.few, self.config = character, many, few, config

    def plan(
        self, problem: Problem, prior: Plan, rng: torch.Generator, iterations: int | None = None
    ) -> Plan:
        """Improve ``prior``, the plan of the moment before moved on to this one."""
        config = self.config
        std = torch.full((config.knots, prior.mean.shape[1]), config.sigma)
        mean, elites = prior.mean, prior.elites
        known: Tensor | None = None
        for _ in range(iterations or config.iterations):
            fresh = sample_plans(mean, std, config.samples, config.residual_limit, rng)
            if known is None:  # elites of the moment before take the places of the last candidates
                count = min(len(elites), config.samples - 1)
                fresh[len(fresh) - count :] = elites[:count]
                plans, cost = fresh, self._simulate(fresh, problem)
            else:
                plans = torch.cat((elites, fresh))
                cost = torch.cat((known, self._simulate(fresh, problem)))
            chosen = best(cost, config.num_elites)
            elites, known = plans[chosen], cost[chosen]
            mean = elites.mean(dim=0)
            std = spread(elites, config.knots).clamp(min=config.sigma_floor)
        return Plan(mean, elites)

    def _simulate(self, plans: Tensor, problem: Problem) -> Tensor:
        """Costs (M,) of candidates (M, H, D); infinite where one was pruned."""
        config = self.config
        start = problem.start.index(torch.zeros(len(plans), dtype=torch.long))
        if self.few is None:
            cost, _ = self._part(self.many, plans, 0, start, problem, None)
            return cost.total + cost.terminal
        first = plans[:, : config.prune_at]
        early, states = self._part(self.many, first, 0, start, problem, None)
        rows = best(early.total, config.num_survivors)
        rest, begin = plans[rows, config.prune_at :], states.index((rows, -1))
        late, _ = self._part(
            self.few, rest, config.prune_at, begin, problem, early.index(rows), first[rows, -1]
        )
        cost = torch.full((len(plans),), torch.inf)
        cost[rows] = late.total + late.terminal
        return cost

    def _part(
        self,
        backend: SimBackend,
        residuals: Tensor,
        first: int,
        start: SimState,
        problem: Problem,
        earlier: PartialCost | None,
        before: Tensor | None = None,
    ) -> tuple[PartialCost, SimState]:
        """Simulate h steps of the horizon from step ``first`` on; cost and states (M, h, ...)."""
        window = problem.window.at(first + torch.arange(residuals.shape[1]))
        targets = compose_residual(self.character.skeleton, window.state.dof_pos, residuals)
        ids = torch.arange(len(residuals))
        backend.set_state(ids, torch.full_like(ids, problem.terrain_id), start)
        states = backend.rollout(targets)
        last = problem.last_residual if before is None else before
        cost = add_cost(self.character, states, window, residuals, last, self.config, earlier)
        return cost, states
