"""Settings of the physical correction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from algorithms.mpc.config import MpcConfig
from parc_ray.errors import InputError

Strategy = Literal["tracker", "mpc", "tracker_then_mpc", "mpc_teacher"]


@dataclass(frozen=True, kw_only=True)
class GateConfig:
    """Limits that a recording must keep to join the data set; 0 does not check where so said.

    Where the figures come from: docs/results/correction.md.
    """

    max_mean_body_error_m: float = 0.35
    """Mean world distance of the bodies to the reference (m). PARC checks none, and a run 0.59 m
    off became training data; above this a motion no longer steps where the terrain asks for it."""

    max_root_error_m: float = 0.6
    """Largest root distance to the reference (m); PARC's termination limit."""

    min_contact_f1: float = 0.3
    """Least agreement of simulated with reference contacts over all bodies and frames, 0 to 1; 0
    does not check. Runs touch for a frame or two, and inferred labels are a frame off at either
    end, so good recordings reach 0.6 to 0.9; below this the character is carried by other bodies
    than in the reference."""

    max_mean_penetration_m: float = 0.03
    """Depth of the deepest surface point below the terrain, mean over frames (m): soft contacts
    give 1 cm or less; more means a body inside a wall."""

    max_high_jerk_share: float = 0.1
    """Largest share of frames with a body above PARC's jerk threshold (11 666 m/s^3), the greatest
    of its motion capture. Paper: 2 to 10 % in generated motions, which correction is to cure."""

    max_torque_saturation: float = 0.1
    """Largest share of actuators whose target asks for more than their greatest torque when a
    control step ends: a controller that pulls at its limits all the time is no controller."""

    max_slide_mps: float = 0.8
    """Mean speed of planted feet (m/s): friction of 1 lets feet slip in hard turns and landings,
    not glide."""

    def __post_init__(self) -> None:
        """Check ranges."""
        for name, value in vars(self).items():
            if value < 0:
                raise InputError(f"correction.gate.{name}: {value} is negative; allowed is >= 0")
        if self.min_contact_f1 > 1:
            raise InputError("correction.gate.min_contact_f1: above 1; allowed is 0 to 1")


@dataclass(frozen=True, kw_only=True)
class TeacherConfig:
    """Demonstrations by MPC, cloned by the policy, which PPO then goes on from.

    Cloning alone completes no clip, and PPO destroys what was cloned unless the observation
    statistics stay as they are, the learning rate is low and the critic learns first
    (docs/design/physics.md).
    """

    noisy_copies: int = 3
    """Demonstrations are simulated again this often from disturbed starts; the targets lead back to
    the recorded motion (states beside the trajectory, without asking MPC again)."""

    pos_noise: float = 0.02
    """Root position noise of those starts (m)."""

    vel_noise: float = 0.1
    """Velocity noise of those starts (m/s, rad/s)."""

    epochs: int = 60
    """Passes over the demonstrations."""

    batch: int = 512
    """Samples per gradient step."""

    lr: float = 1e-3
    """Learning rate of cloning."""

    ppo_lr: float = 1.5e-4
    """Learning rate at the start of PPO."""

    ppo_std: float = 0.2
    """Exploration deviation at the start of PPO (normalised actions)."""

    critic_only_iterations: int = 8
    """First iterations of PPO, which train the critic alone."""

    def __post_init__(self) -> None:
        """Check ranges."""
        whole = ("epochs", "batch")
        for name in whole:
            if getattr(self, name) < 1:
                raise InputError(f"correction.teacher.{name}: {getattr(self, name)}; 1 or more")
        for name in ("noisy_copies", "pos_noise", "vel_noise", "critic_only_iterations"):
            if getattr(self, name) < 0:
                raise InputError(f"correction.teacher.{name}: {getattr(self, name)}; 0 or more")
        for name in ("lr", "ppo_lr", "ppo_std"):
            if not getattr(self, name) > 0:
                raise InputError(f"correction.teacher.{name}: {getattr(self, name)}; above 0")


@dataclass(frozen=True, kw_only=True)
class CorrectionConfig:
    """How kinematic motions become physical ones."""

    strategy: Strategy = "tracker_then_mpc"
    """``tracker``: the policy records (the paper); ``mpc``: sampling control, no policy;
    ``tracker_then_mpc``: MPC for what the policy cannot do; ``mpc_teacher``: as before, and the
    first policy starts from MPC's trajectories (see ``teacher``)."""

    min_segment_s: float = 1.5
    """Shortest recording that is kept (s); PARC drops remainders below 2 s."""

    keep_segments: bool = True
    """Whether the longest recorded piece is kept where no start reaches the end. PARC: no."""

    start_fractions: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
    """Where the tracker starts, in turn, as shares of the clip, as in the published code."""

    mpc: MpcConfig = field(default_factory=MpcConfig)
    """The sampling controller."""

    mpc_retries: int = 1
    """Further attempts with another seed after a failed one."""

    mpc_stronger_retry: bool = True
    """Whether the last attempt uses more look-ahead and re-plans at every step."""

    mpc_backoff_s: float = 0.3
    """How much is cut before the failure when a leading segment is kept (s)."""

    mpc_max_s: float = 10.0
    """Only the first seconds of longer clips are attempted by MPC (s)."""

    perturbed_starts: int = 2
    """Further tries of the policy per start, slightly disturbed; the best one is kept."""

    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    """How MPC's trajectories start a policy (``mpc_teacher``)."""

    gate: GateConfig = field(default_factory=GateConfig)
    """What a recording must satisfy."""

    def __post_init__(self) -> None:
        """Check ranges."""
        if self.min_segment_s < 0.5:
            raise InputError(f"correction.min_segment_s: {self.min_segment_s}; allowed is >= 0.5 s")
        starts = self.start_fractions
        in_range = bool(starts) and all(0 <= f < 1 for f in starts)
        if not in_range or list(starts) != sorted(starts):
            raise InputError(
                f"correction.start_fractions: {starts}; "
                "allowed are one or more shares from 0 up to 1, ascending"
            )
        for name in ("mpc_retries", "perturbed_starts"):
            if getattr(self, name) < 0:
                raise InputError(f"correction.{name}: {getattr(self, name)}; allowed is >= 0")
