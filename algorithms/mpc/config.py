"""Settings of the sampling model-predictive controller."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from parc_ray.errors import InputError


@dataclass(frozen=True, kw_only=True)
class MpcCostConfig:
    """Weights of the tracking cost, per control step."""

    root_pos: float = 40.0
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
    """Linear-interpolation knots of the residual over the horizon."""

    sigma: float = 0.12
    """Standard deviation of the residual at the first iteration (rad)."""

    sigma_floor: float = 0.04
    """Lower bound of the standard deviation in later iterations (rad)."""

    residual_limit: float = 0.8
    """Bound on every residual component (rad)."""

    cost: MpcCostConfig = field(default_factory=MpcCostConfig)
    """Weights of the tracking cost."""

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
            ("sigma", self.sigma, 1e-6, 3.0),
            ("sigma_floor", self.sigma_floor, 0.0, self.sigma),
            ("residual_limit", self.residual_limit, 1e-3, 3.2),
            ("root_pos_limit", self.root_pos_limit, 1e-3, 100.0),
            ("root_rot_limit", self.root_rot_limit, 1e-3, 3.2),
            ("safety", self.safety, 0.1, 1.0),
        )
        for name, value, low, high in checks:
            if not low <= value <= high:
                raise InputError(f"mpc.{name}: {value} is out of range; allowed is {low} to {high}")

    @property
    def num_elites(self) -> int:
        """Number of elite candidates, at least two."""
        return max(2, round(self.samples * self.elite_share))

    def stronger(self) -> MpcConfig:
        """The setting tried after a failure: more look-ahead, re-planned every step."""
        return replace(self, horizon=min(300, round(self.horizon * 1.2)), execute=1)
