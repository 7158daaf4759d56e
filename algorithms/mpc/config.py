"""Settings of the sampling model-predictive controller."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from parc_ray.errors import InputError


@dataclass(frozen=True, kw_only=True)
class MpcCostConfig:
    """Weights of the tracking cost, per control step."""

    root_pos: float = 80.0
    """Weight of the squared root position error (m^2)."""

    root_rot: float = 5.0
    """Weight of the squared geodesic root rotation error (rad^2)."""

    joint: float = 0.5
    """Weight of the joint rotation error, the character's reward weights inside (rad^2)."""

    key_body: float = 10.0
    """Weight of the squared key-body position errors, relative to the root (m^2)."""

    root_vel: float = 0.15
    """Weight of the squared root velocity error (m^2/s^2)."""

    root_ang_vel: float = 0.03
    """Weight of the squared root angular velocity error (rad^2/s^2)."""

    dof_vel: float = 0.002
    """Weight of the squared joint velocity error (rad^2/s^2)."""

    action_rate: float = 0.3
    """Weight of the squared change of the residual between control steps (rad^2)."""

    failure: float = 30.0
    """Cost of every control step at or after a termination."""

    terminal: float = 3.0
    """Factor on the root terms in the last step of the horizon."""

    def __post_init__(self) -> None:
        """Reject negative weights."""
        for name, value in vars(self).items():
            if value < 0:
                raise InputError(f"mpc.cost.{name}: {value} is negative; allowed is >= 0")


@dataclass(frozen=True, kw_only=True)
class PolishConfig:
    """The final pass: a finished motion is followed again with little noise, for smoothness."""

    passes: int = 1
    """Passes over the motion; 0 leaves it as it was found."""

    filters: int = 1
    """Passes of a (1, 2, 1) / 4 filter over the residuals that the pass starts from."""

    sigma: float = 0.02
    """Standard deviation of the noise (rad)."""

    iterations: int = 1
    """Cross-entropy iterations per plan."""

    elite_share: float = 0.25
    """Share of the candidates that form the next mean: more than in the search, for less noise."""

    action_rate: float = 1.0
    """Weight of the squared change of the residual, instead of the first pass's (rad^2)."""

    max_error_growth: float = 1.1
    """A pass is kept only if the mean body errors, in the world and relative to the root, stay
    below this times what they were, and what it gains in smoothness outweighs what they grow."""

    def __post_init__(self) -> None:
        """Check ranges."""
        checks = (
            ("passes", self.passes, 0, 20),
            ("filters", self.filters, 0, 100),
            ("sigma", self.sigma, 1e-6, 3.0),
            ("iterations", self.iterations, 1, 50),
            ("elite_share", self.elite_share, 1e-3, 1.0),
            ("action_rate", self.action_rate, 0.0, 1e6),
            ("max_error_growth", self.max_error_growth, 0.1, 100.0),
        )
        _check("mpc.polish", checks)


@dataclass(frozen=True, kw_only=True)
class MpcConfig:
    """Cross-entropy sampling MPC on residual PD targets (docs/design/physics.md, Sampling MPC)."""

    samples: int = 192
    """Candidate plans per iteration."""

    horizon: int = 15
    """Control steps looked ahead (15 at 30 Hz are 0.5 s)."""

    execute: int = 2
    """Control steps executed before planning again."""

    iterations: int = 2
    """Cross-entropy iterations per plan."""

    elite_share: float = 0.1
    """Share of the candidates that form the next mean."""

    knots: int = 5
    """Linear-interpolation knots of the noise over the horizon."""

    prune_at: int = 0
    """Control steps after which only the better candidates are simulated on; 0, or a number not
    below the horizon: all to the end."""

    prune_share: float = 0.4
    """Share of the candidates that is simulated on; the elites' share at least."""

    sigma: float = 0.12
    """Standard deviation of the residual at the first iteration (rad)."""

    sigma_floor: float = 0.04
    """Lower bound of the standard deviation in later iterations (rad)."""

    residual_limit: float = 0.8
    """Bound on every residual component (rad)."""

    rewinds: int = 4
    """Times that one place may fail before the attempt ends: each time the motion goes on from a
    moment before it, with other noise."""

    rewinds_total: int = 12
    """Rewinds of one attempt."""

    rewind: int = 8
    """Control steps that the first rewind goes back; each further one at that place doubles it, up
    to two horizons."""

    rewind_iterations: int = 2
    """Factor on the iterations from a rewind until the place is passed."""

    cost: MpcCostConfig = field(default_factory=MpcCostConfig)
    """Weights of the tracking cost."""

    polish: PolishConfig = field(default_factory=PolishConfig)
    """The final pass."""

    root_pos_limit: float = 0.6
    """Root position error that ends a track (m); PARC's code: 0.6."""

    root_rot_limit: float = 1.309
    """Root rotation error that ends a track (rad); PARC's code: 75 degrees."""

    safety: float = 0.9
    """Plans count as failed at this share of every termination limit, for a margin."""

    def __post_init__(self) -> None:
        """Check ranges."""
        checks = (
            ("samples", self.samples, 8, 100_000),
            ("horizon", self.horizon, 2, 300),
            ("execute", self.execute, 1, self.horizon),
            ("iterations", self.iterations, 1, 50),
            ("knots", self.knots, 2, self.horizon),
            ("elite_share", self.elite_share, 1e-3, 1.0),
            ("prune_at", self.prune_at, 0, 300),
            ("prune_share", self.prune_share, 1e-3, 1.0),
            ("sigma", self.sigma, 1e-6, 3.0),
            ("sigma_floor", self.sigma_floor, 0.0, self.sigma),
            ("residual_limit", self.residual_limit, 1e-3, 3.2),
            ("rewinds", self.rewinds, 0, 1000),
            ("rewinds_total", self.rewinds_total, 0, 10_000),
            ("rewind", self.rewind, 1, 1000),
            ("rewind_iterations", self.rewind_iterations, 1, 50),
            ("root_pos_limit", self.root_pos_limit, 1e-3, 100.0),
            ("root_rot_limit", self.root_rot_limit, 1e-3, 3.2),
            ("safety", self.safety, 0.1, 1.0),
        )
        _check("mpc", checks)

    @property
    def num_elites(self) -> int:
        """Number of elite candidates, at least two."""
        return max(2, round(self.samples * self.elite_share))

    @property
    def prunes(self) -> bool:
        """Whether candidates are dropped before the end of the horizon."""
        return 0 < self.prune_at < self.horizon

    @property
    def num_survivors(self) -> int:
        """Number of candidates that are simulated to the end of the horizon."""
        if not self.prunes:
            return self.samples
        return max(self.num_elites, round(self.samples * self.prune_share))

    def stronger(self) -> MpcConfig:
        """The setting tried after a failure: more candidates and look-ahead, planned each step."""
        return replace(
            self,
            samples=min(100_000, round(self.samples * 1.5)),
            horizon=min(300, round(self.horizon * 1.2)),
            execute=1,
        )


def _check(owner: str, checks: tuple[tuple[str, float, float, float], ...]) -> None:
    for name, value, low, high in checks:
        if not low <= value <= high:
            raise InputError(f"{owner}.{name}: {value} is out of range; allowed is {low} to {high}")
