"""Settings of the tracking task and the presets `paper`, `upstream`, `base` and `quick`.

Figures marked PARC are those of the paper or of the published code (docs/design/tracker.md says
which).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from parc_ray.errors import InputError


def _require(ok: bool, message: str) -> None:
    if not ok:
        raise InputError(message)


@dataclass(frozen=True, kw_only=True)
class ControlConfig:
    """How actions become PD targets."""

    mode: Literal["residual", "absolute"] = "residual"
    """`residual`: reference pose one step ahead, turned by the action; `absolute`: PARC's fixed
    offset and scale per joint."""
    residual_scale_rad: float = 0.3
    """Turn of a joint per unit action, rad (residual mode)."""
    max_action: float = 4.0
    """Actions are clamped to +- this in residual mode; to +-1 in absolute mode, as PARC does."""

    def __post_init__(self) -> None:
        """Check modes and ranges."""
        _require(
            self.mode in ("residual", "absolute"),
            f"control.mode: '{self.mode}' is unknown; use residual or absolute",
        )
        _require(self.residual_scale_rad > 0, "control.residual_scale_rad: must be above 0")
        _require(self.max_action > 0, "control.max_action: must be above 0")


@dataclass(frozen=True, kw_only=True)
class ObservationConfig:
    """What the policy sees."""

    layout: Literal["base", "upstream"] = "base"
    """`upstream`: PARC's blocks number by number; `base`: heading-frame grid and compact poses."""
    target_steps: tuple[int, ...] = (1, 2, 3, 10, 20, 30)
    """Reference frames ahead that are shown, in control steps. PARC: 1, 2, 3, 10, 20, 30."""
    grid_back: int = 3
    """Cells of the height grid behind the root (base layout)."""
    grid_front: int = 7
    """Cells in front of the root (base layout)."""
    grid_side: int = 5
    """Cells to each side (base layout)."""
    grid_spacing_m: float = 0.2
    """Distance between the grid's points, metres (base layout)."""
    height_clip_m: float = 3.0
    """Heights relative to the root are clamped to this, metres. PARC: 3."""
    contact_threshold_n: float = 1e-5
    """Terrain force above which a body counts as touching, newton. PARC: 1e-5."""
    privileged: bool = False
    """Append a block for an asymmetric critic that the actor must not see. PARC: no."""

    def __post_init__(self) -> None:
        """Check modes and ranges."""
        _require(
            self.layout in ("base", "upstream"),
            f"observation.layout: '{self.layout}' is unknown; use base or upstream",
        )
        _require(
            len(self.target_steps) > 0 and min(self.target_steps) >= 1,
            "observation.target_steps: one or more steps, each 1 or more",
        )
        _require(
            min(self.grid_back, self.grid_front, self.grid_side) >= 0,
            "observation.grid_*: must be 0 or more",
        )
        _require(self.grid_spacing_m > 0, "observation.grid_spacing_m: must be above 0")


@dataclass(frozen=True, kw_only=True)
class RewardConfig:
    """Weights and scales of the reward (PARC, App. F). The first five weights are normalised."""

    pose: float = 0.5
    """Weight of joint rotations. PARC: 0.5."""
    vel: float = 0.1
    """Weight of joint velocities. PARC: 0.1."""
    root: float = 0.15
    """Weight of the root's pose. PARC: 0.15."""
    root_vel: float = 0.1
    """Weight of the root's velocity. PARC: 0.1."""
    key: float = 0.15
    """Weight of hand and foot positions. PARC: 0.15."""
    pose_scale: float = 0.25
    """1/rad^2. PARC: 0.25."""
    vel_scale: float = 0.01
    """s^2/rad^2. PARC: 0.01."""
    root_scale: float = 5.0
    """1/m^2. PARC: 5."""
    root_vel_scale: float = 1.0
    """s^2/m^2. PARC: 1."""
    key_scale: float = 10.0
    """1/m^2. PARC: 10."""
    root_tight: float = 0.0
    """Share of the root term that uses the tight scale below (two-scale root term). PARC: 0."""
    root_tight_scale: float = 50.0
    """1/m^2, scale of the tight root term."""
    contact: float = 1.0
    """Weight of contact matching. Paper: 1; published code: 5."""
    contact_mode: Literal["binary", "ramp"] = "binary"
    """`binary`: touching or not (paper); `ramp`: force clamped to 1 N (published code)."""
    contact_threshold_n: float = 1.0
    """Force that counts as touching in binary mode, newton."""
    contact_tolerance: int = 0
    """A body may touch this many frames before or after a labelled contact. PARC: 0."""
    action_rate: float = 0.0
    """Cost per squared change of the normalised action, mean over dofs. PARC: 0."""
    power: float = 0.0
    """Cost per watt of mean absolute joint power. PARC: 0."""

    def __post_init__(self) -> None:
        """Check modes and ranges."""
        weights = (self.pose, self.vel, self.root, self.root_vel, self.key)
        _require(min(weights) >= 0 and sum(weights) > 0, "reward: weights must be 0 or more")
        _require(0 <= self.root_tight <= 1, "reward.root_tight: must lie in [0, 1]")
        _require(
            self.contact_mode in ("binary", "ramp"),
            f"reward.contact_mode: '{self.contact_mode}' is unknown; use binary or ramp",
        )
        _require(
            min(self.contact, self.contact_tolerance, self.action_rate, self.power) >= 0,
            "reward: contact, contact_tolerance, action_rate and power must be 0 or more",
        )


@dataclass(frozen=True, kw_only=True)
class TerminationConfig:
    """When an episode ends (PARC, App. F; docs/design/tracker.md, Terminations)."""

    root_pos_m: float = 0.6
    """Distance of the root from its reference that fails, metres. Code: 0.6; paper: none."""
    root_rot_rad: float = 1.309
    """Angle of the root from its reference that fails, rad. Code: 1.309; paper: none."""
    body_m: float | None = None
    """One root-relative distance for every body except feet, metres; None takes the character's
    list. Paper: 0.7."""
    body_scale: float = 1.0
    """Factor on the root-relative distances."""
    episode_s: float = 10.0
    """Longest episode, seconds; reaching it is a truncation. PARC: 10."""
    clip_end: Literal["bootstrap", "zero"] = "bootstrap"
    """Whether the value of the future survives the end of a clip. Code: zero."""

    def __post_init__(self) -> None:
        """Check modes and ranges."""
        for name in ("root_pos_m", "root_rot_rad", "body_scale", "episode_s"):
            _require(getattr(self, name) > 0, f"termination.{name}: must be above 0")
        _require(self.body_m is None or self.body_m > 0, "termination.body_m: must be above 0")
        _require(
            self.clip_end in ("bootstrap", "zero"),
            f"termination.clip_end: '{self.clip_end}' is unknown; use bootstrap or zero",
        )


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """Where episodes start (docs/design/tracker.md, Starts and sampling)."""

    mode: Literal["segment", "clip"] = "segment"
    """`clip`: PARC, clips by failure rate, uniform start times; `segment`: short segments of clips
    by the failures that lie in and just behind them."""
    segment_s: float = 0.5
    """Length of a segment, seconds."""
    ema: float = 0.01
    """Weight of one new outcome in a failure rate. PARC: 0.01."""
    warm_up: bool = True
    """Average the first outcomes plainly instead of decaying from 1. PARC: no."""
    min_weight: float = 0.01
    """Least failure rate a clip or segment is weighted with. PARC: 0.01."""
    look_ahead: tuple[float, ...] = (1.0, 0.7, 0.4)
    """Weights of a segment's own hazard and of those after it (segment mode)."""
    focus: float = 0.0
    """Preference for clips that are close to being completed (segment mode): a clip's share is
    multiplied by its estimated probability of completion to this power, and falls again once it is
    mastered. 0 prefers none. Finishes some clips early where the budget cannot finish all."""
    start_share: float = 0.25
    """Share of episodes that start at frame 0, clips weighted by what they fail there."""
    uniform_share: float = 0.1
    """Share of episodes that start anywhere, uniformly over weighted seconds."""
    class_balance: bool = False
    """Make every class of clips equally likely before failure rates count. PARC: yes."""
    initial_share: float = 0.3
    """Least share of the initial clips (D0) before failure rates count, however many later clips
    join. 0: no floor, as in PARC."""
    end_margin_s: float = 0.5
    """No start closer to the end of a clip than this, seconds. PARC: 0."""
    start_on_frames: bool = True
    """Start on stored frames only (faster look-ups). PARC: no."""
    shift_m: float = 0.0
    """Horizontal shift of the root at reset, uniform in +- this, metres. PARC: 0.075."""
    pos_noise: float = 0.05
    """Noise of the root's position at reset, uniform in +- this per axis, metres. PARC: 0."""
    vel_noise: float = 0.05
    """Noise of root (m/s, rad/s) and joint velocities (rad/s) at reset, uniform in +- this."""
    max_lift_m: float = 0.1
    """Raise the root by up to this at reset so that nothing starts inside the ground, metres."""

    def __post_init__(self) -> None:
        """Check modes and ranges."""
        _require(
            self.mode in ("segment", "clip"),
            f"sampling.mode: '{self.mode}' is unknown; use segment or clip",
        )
        _require(0 < self.ema <= 1, "sampling.ema: must lie in (0, 1]")
        _require(self.segment_s > 0, "sampling.segment_s: must be above 0")
        shares = self.start_share + self.uniform_share
        _require(
            min(self.start_share, self.uniform_share) >= 0 and shares <= 1,
            "sampling: start_share and uniform_share must be 0 or more and sum to 1 at most",
        )
        _require(0 < self.min_weight <= 1, "sampling.min_weight: must lie in (0, 1]")
        _require(0 <= self.initial_share < 1, "sampling.initial_share: must lie in [0, 1)")
        _require(self.focus >= 0, "sampling.focus: must be 0 or more")
        _require(len(self.look_ahead) > 0, "sampling.look_ahead: give one weight or more")


@dataclass(frozen=True, kw_only=True)
class AssistConfig:
    """A force that helps the root along while training, and goes away (`envs.tracking.assist`)."""

    strength: float = 0.0
    """Share of the full spring at the start; 0 is none, as in PARC."""
    steps: int = 6000
    """Control steps of an environment over which it falls to zero, linearly, from the start of
    every training; a warm-started one is helped anew."""
    frequency_rad_s: float = 6.0
    """Natural frequency of the spring on the character's whole mass; damping is critical."""

    def __post_init__(self) -> None:
        """Check ranges."""
        _require(0 <= self.strength <= 1, "assist.strength: must lie in [0, 1]")
        _require(self.steps >= 1, "assist.steps: must be 1 or more")
        _require(
            0 < self.frequency_rad_s <= 12,
            "assist.frequency_rad_s: must lie in (0, 12], as the force is constant over a step",
        )


@dataclass(frozen=True, kw_only=True)
class TrackingConfig:
    """The whole tracking task."""

    control: ControlConfig = field(default_factory=ControlConfig)
    """Actions to PD targets."""
    observation: ObservationConfig = field(default_factory=ObservationConfig)
    """What the policy sees."""
    reward: RewardConfig = field(default_factory=RewardConfig)
    """What it is paid for."""
    termination: TerminationConfig = field(default_factory=TerminationConfig)
    """When it fails."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    """Where it starts."""
    assist: AssistConfig = field(default_factory=AssistConfig)
    """What helps it while it learns."""


def paper() -> TrackingConfig:
    """The paper's task: contact weight 1, 0.7 m pose termination, no root limits."""
    config = upstream()
    return replace(
        config,
        reward=replace(config.reward, contact=1.0, contact_mode="binary"),
        termination=replace(
            config.termination, body_m=0.7, root_pos_m=1e6, root_rot_rad=1e6, clip_end="zero"
        ),
    )


def upstream() -> TrackingConfig:
    """The published code's task, number by number."""
    return TrackingConfig(
        control=ControlConfig(mode="absolute"),
        observation=ObservationConfig(layout="upstream"),
        reward=RewardConfig(contact=5.0, contact_mode="ramp"),
        termination=TerminationConfig(clip_end="zero"),
        sampling=SamplingConfig(
            mode="clip",
            warm_up=False,
            class_balance=True,
            initial_share=0.0,
            start_share=0.0,
            uniform_share=0.0,
            end_margin_s=0.0,
            start_on_frames=False,
            shift_m=0.075,
            pos_noise=0.0,
            vel_noise=0.0,
        ),
    )


def firm_root(**changes: float) -> RewardConfig:
    """Our reward: the root weighs twice as much, half of its term with a tight scale.

    With PARC's weights the root drifts out of its limit while everything else is well
    (docs/results/tracker_study.md).
    """
    firm = RewardConfig(root=0.3, root_vel=0.15, root_tight=0.5, root_tight_scale=40.0)
    return replace(firm, **changes)


def base() -> TrackingConfig:
    """Our settings (reasons: docs/design/tracker.md).

    Residual targets, height grid, segment sampling, bootstrap at clip ends, a firm root term,
    smoothness and power costs, asymmetric critic.
    """
    return TrackingConfig(
        observation=ObservationConfig(privileged=True),
        reward=firm_root(action_rate=0.02, power=1e-5),
    )


def quick() -> TrackingConfig:
    """`base` for the small runs of two cores.

    A smaller observation, no power cost, and clips within reach come first.
    """
    return TrackingConfig(reward=firm_root(action_rate=0.01), sampling=SamplingConfig(focus=2.0))


PRESETS = {"paper": paper, "upstream": upstream, "base": base, "quick": quick}


def preset(name: str) -> TrackingConfig:
    """Tracking settings by name; InputError lists the names there are."""
    if name not in PRESETS:
        raise InputError(f"tracking preset '{name}' is unknown; use one of {', '.join(PRESETS)}")
    return PRESETS[name]()
