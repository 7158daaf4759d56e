"""Knobs of the tracking policy's PPO and four named sets of them.

Everything that is about the task (observations, rewards, terminations, clip-end bootstrapping)
belongs to the environment; here is only what the learner and its networks need. PARC's values are
those of its published code (docs/design/tracker.md, PPO).
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

from parc_ray.errors import InputError

Activation = Literal["relu", "silu", "elu", "tanh"]
Placement = Literal["local", "split", "colocated"]


@dataclass(frozen=True, kw_only=True)
class ObsBlock:
    """A run of equal groups in the observation that share one small encoder."""

    start: int
    """First observation index of the block."""
    width: int
    """Numbers per group."""
    count: int
    """Number of groups; each passes through the same network."""
    hidden: tuple[int, ...]
    """Layer sizes of the shared encoder; the last is the code size per group."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if min((self.width, self.count, *self.hidden), default=0) < 1 or not self.hidden:
            raise InputError("ObsBlock: width, count and every hidden size must be 1 or more")
        if self.start < 0:
            raise InputError(f"ObsBlock.start: {self.start} is negative; allowed are 0 and above")


@dataclass(frozen=True, kw_only=True)
class TrackerConfig:
    """Tensor PPO: sampling, networks, losses, optimiser, placement and budgets."""

    num_envs: int = 256
    """Environments per simulator process. PARC: 2048."""
    horizon: int = 32
    """Control steps per iteration and environment. PARC: 32."""
    gamma: float = 0.97
    """Discount per control step, in (0, 1). PARC: 0.99."""
    lam: float = 0.95
    """TD(lambda) mixing, in [0, 1]. PARC: 0.95."""
    clip: float = 0.2
    """PPO's ratio clip, above 0. PARC: 0.2."""
    epochs: int = 5
    """Passes over a batch. PARC: 5."""
    minibatch: int = 2048
    """Samples per gradient step and learner. PARC: 8192."""
    advantage_clip: float | None = 4.0
    """Clip of the normalised advantages. PARC: 4."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus. PARC: 0."""
    value_coef: float = 1.0
    """Weight of the squared value error. PARC: 10."""
    bound_coef: float = 10.0
    """Weight of sum relu(|mean action| - 1)^2. PARC: 10."""
    value_bounds: tuple[float, float] | None = None
    """Clamp of bootstrap values in units of unscaled return. PARC's code: (0, 1/(1-gamma))."""
    critic_gate: float | None = None
    """Drop the actor's part of a minibatch whose value error exceeds this. PARC's code: 20."""
    scale_rewards: bool = True
    """Multiply rewards by 1 - gamma, so that values have the size of a reward. PARC: false."""

    optimiser: Literal["adam", "sgd"] = "adam"
    """Optimiser of actor and critic. PARC: sgd."""
    lr: float = 5e-4
    """Learning rate at the start. PARC: 5e-5, constant."""
    lr_min: float = 1e-5
    """Lowest learning rate of the KL controller."""
    lr_max: float = 2e-3
    """Highest learning rate of the KL controller."""
    kl_target: float | None = 0.12
    """KL to the sampling policy (nats, summed over actions) that the learning rate is steered to;
    none: constant rate. PARC: none."""
    lr_control: Literal["iteration", "minibatch"] = "minibatch"
    """iteration: one move per iteration from the last epoch's KL, and no further epoch once an
    epoch's KL exceeds twice the target; minibatch: a move after every minibatch."""
    critic_lr: float | None = None
    """A constant learning rate of the critic alone; none: the actor's."""
    momentum: float = 0.9
    """Momentum of SGD. PARC: 0.9."""
    max_grad_norm: float = 1.0
    """Global gradient norm clip. PARC: 1000."""

    hidden: tuple[int, ...] = (512, 256)
    """Hidden layers of the actor and of the critic. PARC: 2048, 1024, 512."""
    activation: Activation = "silu"
    """Non-linearity. PARC: relu."""
    residual: bool = False
    """Skip connections around hidden layers of equal width. PARC: false."""
    blocks: tuple[ObsBlock, ...] = ()
    """Parts of the observation that pass through shared encoders first. PARC: none."""
    encoders: Literal["none", "shared"] = "none"
    """shared: where `blocks` is empty, every target frame passes through one encoder and the
    heights through another, for any observation that says where they are. PARC: none."""
    frame_encoder: tuple[int, ...] = (128, 64)
    """Layers of the target frames' shared encoder."""
    height_encoder: tuple[int, ...] = (128, 64)
    """Layers of the heights' encoder."""
    privileged_dims: int = 0
    """Trailing observations that only the critic sees. PARC: 0."""
    init_std: float = 0.3
    """Exploration deviation at the start, in normalised action units. PARC: 0.05."""
    learn_std: bool = True
    """Learn the deviation (one number per action). PARC: false."""
    std_floor: float = 0.05
    """Lowest learnt deviation."""
    std_ceiling: float = 1.0
    """Highest learnt deviation."""
    noise_memory: float = 0.0
    """Share of a step's exploration noise that is carried into the next, in [0, 1): above 0 the
    noise is correlated in time. PARC: 0."""
    mean_init: float = 0.01
    """Half range of the uniform start weights of the mean layer. PARC: 0.01."""

    normaliser: Literal["running", "frozen"] = "running"
    """Keep updating the observation statistics, or leave them as they were loaded."""
    normaliser_samples: float = 3e8
    """Samples after which a running normaliser stops. PARC: 3e8."""
    normaliser_memory: float = 1e7
    """Largest weight of the past, in samples: later statistics forget older ones. PARC: none."""
    normaliser_skip: tuple[tuple[int, int], ...] = ()
    """Ranges [start, stop) of observations that pass unchanged. PARC: contacts, heights."""
    normaliser_clip: float = 10.0
    """Clip of normalised observations. PARC: 10."""
    normaliser_warmup: int = 1
    """Iterations at the very start that only collect statistics. PARC: 0."""

    critic_only_iterations: int = 0
    """First iterations that train the critic alone (after a warm start). PARC: 0."""
    warm_freeze: bool = True
    """Freeze the observation statistics after a warm start. PARC: true."""
    warm_std: float | None = None
    """Exploration deviation after a warm start; none: as loaded."""

    placement: Placement = "local"
    """local: all in this process; split: runner and learner actors; colocated: every learner actor
    has its own simulator and gradients are averaged."""
    num_runners: int = 0
    """Runner actors (placement split)."""
    num_learners: int = 0
    """Learner actors (placements split and colocated)."""
    cpus_per_actor: float = 1.0
    """Logical CPUs that Ray reserves per runner or learner actor."""
    gpus_per_learner: float = 0.0
    """GPUs per learner; in local placement of the one process."""
    gpus_per_runner: float = 0.0
    """GPUs per runner (placement split)."""
    threads: int = 1
    """Torch threads of each process that samples or learns."""
    bf16: bool = False
    """Hidden layers in bfloat16 during the update (output layers and losses stay float32), on
    devices that multiply it natively; on others it would be slower, and all is float32."""
    sample_timeout_s: float = 300.0
    """Seconds after which a silent runner is left out of an iteration."""

    samples: int = 1_000_000
    """Budget in environment steps, all runners together. PARC: 1e10."""
    wall_s: float | None = None
    """Budget in seconds, earlier sittings included; none: no limit."""
    checkpoint_every: int = 50
    """Iterations between checkpoints. PARC: 200."""
    keep_checkpoints: int = 2
    """Checkpoints kept beside the last."""
    evaluate_every: int = 0
    """Iterations between calls of the evaluation callback; 0: never."""
    max_bad_updates: int = 20
    """Consecutive non-finite updates after which training stops with a dump."""
    restarts: int = 2
    """Times a training goes on from its newest checkpoint after a learner actor or a
    simulator was lost."""
    seed: int = 0
    """Seed of weights, exploration and minibatches; runner i samples with seed + i."""

    def __post_init__(self) -> None:
        """Check every range and say which field is wrong and what is allowed."""
        positive = ("num_envs", "horizon", "epochs", "minibatch", "threads", "samples")
        positive += ("checkpoint_every", "keep_checkpoints", "max_bad_updates")
        for name in positive:
            _require(getattr(self, name) >= 1, name, getattr(self, name), "1 and above")
        for name in ("clip", "lr", "lr_min", "max_grad_norm", "init_std", "std_floor"):
            _require(getattr(self, name) > 0, name, getattr(self, name), "numbers above 0")
        whole = ("num_runners", "num_learners", "evaluate_every", "privileged_dims", "restarts")
        for name in whole:
            _require(getattr(self, name) >= 0, name, getattr(self, name), "0 and above")
        for name in ("kl_target", "critic_lr", "wall_s", "advantage_clip", "warm_std"):
            value = getattr(self, name)
            _require(value is None or value > 0, name, value, "none and numbers above 0")
        _require(0 < self.gamma < 1, "gamma", self.gamma, "numbers in (0, 1)")
        memory = self.noise_memory
        _require(0 <= memory < 1, "noise_memory", memory, "0 to below 1")
        _require(0 <= self.lam <= 1, "lam", self.lam, "numbers in [0, 1]")
        for name in ("hidden", "frame_encoder", "height_encoder"):
            sizes = getattr(self, name)
            _require(bool(sizes) and min(sizes) >= 1, name, sizes, "one or more sizes >= 1")
        _require(self.encoders in ("none", "shared"), "encoders", self.encoders, "none and shared")
        self._check_order()
        self._check_placement()

    def _check_order(self) -> None:
        low, high = self.value_bounds or (0.0, 1.0)
        _require(low < high, "value_bounds", self.value_bounds, "none or (low, high), low < high")
        _require(self.lr_min <= self.lr <= self.lr_max, "lr", self.lr, "lr_min <= lr <= lr_max")
        in_range = self.std_floor <= self.init_std <= self.std_ceiling
        _require(
            in_range or not self.learn_std, "init_std", self.init_std, "std_floor..std_ceiling"
        )
        ordered = all(0 <= a < b for a, b in self.normaliser_skip)
        _require(ordered, "normaliser_skip", self.normaliser_skip, "ranges with 0 <= start < stop")

    def _check_placement(self) -> None:
        wanted = {
            "local": (self.num_runners == 0 and self.num_learners == 0),
            "split": (self.num_runners >= 1),
            "colocated": (self.num_runners == 0 and self.num_learners >= 1),
        }
        allowed = (
            "local without actors, split with num_runners >= 1 (num_learners >= 0), "
            "colocated with num_learners >= 1 and num_runners = 0"
        )
        got = f"{self.placement} with {self.num_runners} runners, {self.num_learners} learners"
        _require(wanted.get(self.placement, False), "placement", got, allowed)
        shares = max(1, self.num_learners) if self.placement == "split" else 1
        divides = self.num_envs % shares == 0
        _require(divides, "num_envs", self.num_envs, f"multiples of num_learners = {shares}")

    @property
    def samples_per_iteration(self) -> int:
        """Environment steps of one iteration with every runner alive."""
        sources = self.num_runners if self.placement == "split" else max(1, self.num_learners)
        return sources * self.num_envs * self.horizon

    @property
    def reward_scale(self) -> float:
        """Factor on rewards inside the learner."""
        return 1.0 - self.gamma if self.scale_rewards else 1.0

    def replace(self, **changes: Any) -> TrackerConfig:
        """Return a copy with some fields changed (and checked)."""
        return dataclasses.replace(self, **changes)


def _require(ok: bool, name: str, value: object, allowed: str) -> None:
    if not ok:
        raise InputError(f"TrackerConfig.{name}: {value} is not allowed; allowed: {allowed}")


def upstream() -> TrackerConfig:
    """PARC's published code, number by number (docs/design/tracker.md, PPO)."""
    gamma = 0.99
    return TrackerConfig(
        num_envs=2048,
        gamma=gamma,
        minibatch=8192,
        value_coef=10.0,
        value_bounds=(0.0, 1.0 / (1.0 - gamma)),
        critic_gate=20.0,
        scale_rewards=False,
        optimiser="sgd",
        lr=5e-5,
        lr_min=5e-5,
        kl_target=None,
        max_grad_norm=1000.0,
        hidden=(2048, 1024, 512),
        activation="relu",
        init_std=0.05,
        learn_std=False,
        normaliser_memory=math.inf,
        normaliser_warmup=0,
        samples=10_000_000_000,
        checkpoint_every=200,
    )


def paper() -> TrackerConfig:
    """The paper's text: as its code, without the value clamp and the gate it does not mention."""
    return upstream().replace(value_bounds=None, critic_gate=None)


def base() -> TrackerConfig:
    """Our settings for one GPU: Adam under a KL target, learnt exploration, scaled rewards.

    Target frames and the height grid pass through encoders; the task's `base` adds an asymmetric
    critic's observations.
    """
    return TrackerConfig(
        num_envs=4096,
        gamma=0.99,
        minibatch=16384,
        hidden=(1024, 512),
        encoders="shared",
        bf16=True,
        gpus_per_learner=1.0,
        samples=2_000_000_000,
        wall_s=None,
    )


def quick() -> TrackerConfig:
    """Two CPU cores: measured, see docs/results/tracker_study.md.

    A small network: in float32 the update of 512-256 costs two and a half times as much.
    """
    return TrackerConfig(
        hidden=(256, 128),
        bf16=True,
        samples=4_000_000,
        checkpoint_every=20,
        evaluate_every=25,
        threads=2,
    )


PRESETS = {"paper": paper, "upstream": upstream, "base": base, "quick": quick}
