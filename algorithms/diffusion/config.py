"""Configuration of the motion generator: one frozen tree, and its profiles.

Every number the paper or the published code fixes stands here once. "PARC" in the field notes
means the published code (whose values the paper shares unless a note says otherwise).
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from parc_ray.errors import InputError
from parc_ray.motion.rotation_features import RotationForm
from parc_ray.precision import PRECISIONS, Precision
from parc_ray.terrain.local_grid import GridSpec


def _require(ok: bool, name: str, value: object, allowed: str) -> None:
    if not ok:
        raise InputError(f"{name}: {value!r} is not allowed; allowed is {allowed}; change it.")


@dataclass(frozen=True, kw_only=True)
class TerrainEncoderConfig:
    """Convolutions over the local height map, then one linear layer per patch."""

    channels: tuple[int, ...] = (32, 32, 32, 64)
    """Output channels of each convolution. PARC: 32, 32, 32, 64."""
    kernels: tuple[int, ...] = (5, 5, 5, 4)
    """Square kernel sizes, no padding. PARC: 5, 5, 5, 4."""
    strides: tuple[int, ...] = (1, 1, 1, 1)
    """Strides. PARC: all 1; a stride of 2 in front makes fewer tokens and cheaper layers."""
    patch: int = 2
    """Side of the square patches that become tokens, in pixels of the last layer. PARC: 2."""
    max_height: float = 3.0
    """Heights relative to the root are clamped to +-this and divided by it, m. PARC: 3."""
    near_cells: int = 0
    """If above 0, the heights up to this many grid points around the root also go through an MLP
    whose output is added to every frame token: a short way from the ground under the feet to the
    height of the body. PARC: 0 (patch tokens only)."""
    near_scale: float = 0.3
    """The near heights are divided by this, m."""

    def __post_init__(self) -> None:
        """Check that the three tuples describe the same layers."""
        _require(self.near_cells >= 0, "terrain.near_cells", self.near_cells, "0 or more points")
        _require(self.near_scale > 0, "terrain.near_scale", self.near_scale, "more than 0 m")
        n = len(self.channels)
        same = n > 0 and len(self.kernels) == n and len(self.strides) == n
        _require(same, "terrain.kernels", self.kernels, "one kernel and stride per channel entry")
        _require(self.patch >= 1, "terrain.patch", self.patch, "1 or more pixels")
        _require(self.max_height > 0, "terrain.max_height", self.max_height, "more than 0 m")


@dataclass(frozen=True, kw_only=True)
class DenoiserConfig:
    """Sizes of the transformer encoder; the paper prints none."""

    width: int = 256
    """Model width d. PARC: 256; paper-era code: 1024."""
    heads: int = 8
    """Attention heads. PARC: 8; paper-era code: 16."""
    layers: int = 4
    """Encoder layers, post-norm, GELU. PARC: 4; paper-era code: 6."""
    feedforward: int = 256
    """Hidden width of the feed-forward blocks. PARC: 256; paper-era code: 1024."""
    frame_hidden: int = 256
    """Hidden width of the MLPs into and out of motion frames. PARC: 256; paper-era code: 1024."""
    target_hidden: int = 512
    """Hidden width of the MLP of the target direction. PARC: 512."""
    dropout: float = 0.1
    """Dropout after embeddings and inside layers, probability. PARC: 0.1."""
    attention_dropout: float = 0.1
    """Dropout of attention weights, probability. PARC: 0.1. It costs a fifth of a CPU step."""
    past_anchor: bool = False
    """Predict windows with clean past frames as corrections of a linear guess from these frames,
    in units of the guess's own error (``anchor.PastAnchor``). PARC: false (whole frames)."""

    def __post_init__(self) -> None:
        """Check divisibility and ranges."""
        _require(self.width % 2 == 0, "denoiser.width", self.width, "an even number")
        ok = self.heads > 0 and self.width % self.heads == 0
        _require(ok, "denoiser.heads", self.heads, f"a divisor of width {self.width}")
        _require(self.layers >= 1, "denoiser.layers", self.layers, "1 or more")
        for name in ("dropout", "attention_dropout"):
            value = getattr(self, name)
            _require(0.0 <= value < 1.0, f"denoiser.{name}", value, "0 up to, not including, 1")


@dataclass(frozen=True, kw_only=True)
class ConditioningConfig:
    """What the network is told in training, and how often it is not told."""

    clean_past_chance: float = 0.5
    """Probability that the past frames are given clean rather than noised. PARC: 0.5."""
    mask_past_chance: float = 0.15
    """Probability that the past-frame tokens cannot be read by others. PARC: 0.15."""
    noised_when_masked: bool = False
    """Draw noised past frames whenever they are masked, so that all masked samples train the very
    branch that blending uses. PARC: false (half of them)."""
    drop_terrain_chance: float = 0.025
    """Probability that the height map is withheld. PARC: 0.025."""
    drop_target_chance: float = 0.025
    """Probability that the target direction is withheld. PARC: 0.025."""
    target_noise: float = 0.05
    """Standard deviation of noise on the future root position, m. PARC: 0.05."""
    stand_distance: float = 0.1
    """Below this distance the target means "stand" or "turn in place", m. PARC: 0.1."""
    turn_angle: float = 0.5
    """From this absolute heading change on, "turn in place", rad. PARC: 0.5 (of the signed angle,
    by mistake)."""
    target_distance: bool = False
    """Tell the distance to the target as well as the direction. PARC: false."""
    second_target: bool = False
    """Tell a second point, later on the way (0.5 s in training, the roll-out's
    ``second_lookahead_m`` when sampling). PARC: false."""
    target_speed: bool = False
    """Tell the mean speed to the target; ``sampling.speed`` when sampling. PARC: false."""
    augment_terrain: bool = True
    """Vary the terrain that the motion does not touch. PARC: true."""
    min_confidence: float = 0.1
    """Cells of inferred terrain that are less sure than this count as not seen: augmentation may
    lower them where the motion passes over them, and the penetration loss leaves them out where
    it has not rewritten them. 0: all count. PARC: 0 (its terrains are given)."""
    ood_chance: float = 0.1
    """Probability of a random terrain and target with only the penetration and target losses.
    Paper: 0.1; published code now: 0."""
    mirror_chance: float = 0.0
    """Probability of mirroring a training window left to right. PARC: 0 (mirrored copies of
    generated motions are stored instead)."""
    drift_height: float = 0.0
    """Standard deviation of a lift of the past frames that fades along the window (``drift``), m.
    PARC: 0."""
    drift_turn: float = 0.0
    """The same for the root's heading, rad. PARC: 0."""
    drift_tilt: float = 0.0
    """The same for the root's pitch and roll (about world axes), rad. PARC: 0."""
    drift_joint: float = 0.0
    """The same for every joint coordinate, rad. PARC: 0."""

    def __post_init__(self) -> None:
        """Check that probabilities are probabilities."""
        for f in dataclasses.fields(self):
            if f.name.endswith("_chance"):
                value = getattr(self, f.name)
                _require(0.0 <= value <= 1.0, f"conditioning.{f.name}", value, "0 to 1")
        sure = self.min_confidence
        _require(0.0 <= sure <= 1.0, "conditioning.min_confidence", sure, "0 to 1")
        for name in ("target_noise", "drift_height", "drift_turn", "drift_tilt", "drift_joint"):
            value = getattr(self, name)
            _require(value >= 0, f"conditioning.{name}", value, "0 or more")


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """Weights of the loss terms (PARC, eq. 4, 7, 10 to 12); 0 switches a term off, at no cost."""

    root_pos: float = 1.0
    """Squared error of the root position, 1/m^2. PARC: 1."""
    root_rot: float = 1.0
    """Squared angle of the root rotation, 1/rad^2. PARC: 1."""
    joint_rot: float = 0.5
    """Squared angles of the joints, 1/rad^2. PARC: 0.5."""
    contacts: float = 1.0
    """Squared error of contact labels. PARC: 1."""
    body_pos: float = 0.5
    """Predicted joint positions against the true ones, 1/m^2. PARC: 0.5."""
    consistency: float = 1.0
    """Predicted joint positions against forward kinematics of the prediction. PARC: 1."""
    fk_pos: float = 0.5
    """Forward kinematics of prediction and truth, positions. PARC code: 0.5; paper: absent."""
    fk_rot: float = 0.1
    """Forward kinematics, squared angles. PARC code: 0.1; paper: absent."""
    root_vel: float = 0.5
    """Squared error of root velocity. PARC: 0.5."""
    root_ang_vel: float = 0.02
    """Squared error of root angular velocity. PARC: 0.02."""
    joint_vel: float = 0.01
    """Squared error of joint angular velocity. PARC: 0.01."""
    body_vel: float = 0.03
    """Squared error of body velocity by forward kinematics. PARC code: 0.03; paper: absent."""
    penetration: float = 15.0
    """Weight of terrain penetration. Paper-era code: 15 on half squares; published code now: 0."""
    penetration_form: Literal["half_squared", "absolute"] = "half_squared"
    """Sum of half squared depths (code) or of depths (paper equation 7)."""
    penetration_window: int = 3
    """Half width of the cell window of the distance, cells of the local grid: depths are exact
    below this many cells."""
    target: float = 0.02
    """Weight of moving along the target direction. Paper-era code: 0.02; published code now: 0."""
    target_reach: float = 0.1
    """Progress beyond this is not rewarded further, m. PARC: 0.1."""
    score_clean_past: bool = True
    """Whether past frames that were given clean are scored. PARC: true. False puts the given
    frames in the place of their prediction, so that velocities across the seam stay scored."""
    min_snr_gamma: float = 0.0
    """Weight samples by min(SNR, gamma) / gamma of their noise level; 0: equal weights. PARC: 0."""

    def __post_init__(self) -> None:
        """Check that weights are not negative."""
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if isinstance(value, float):
                _require(value >= 0, f"loss.{f.name}", value, "0 or more")
        window = self.penetration_window
        _require(window >= 1, "loss.penetration_window", window, "1 or more cells")


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How windows are drawn from the trained network (PARC, eq. 5 and 13)."""

    stride: int = 5
    """DDIM stride; divides the number of diffusion steps minus 1. PARC: 5."""
    blend: float = 0.65
    """s: weight of the prediction made without past frames. PARC: 0.65, long demos 0.5."""
    blend_end: float | None = None
    """If set, s goes linearly from ``blend`` at the noisiest step to this at the last. PARC:
    none."""
    blend_fade: int = 0
    """New frames over which s rises from 0 to its value, so that the seam to the past frames
    follows them. PARC: 0 (the same s in all frames)."""
    speed: float = 2.0
    """Speed asked for where the network is told one (``conditioning.target_speed``), m/s. PARC:
    none."""
    start: Literal["noise", "data"] = "noise"
    """First windows: drawn from noise, or continued from past frames of the data, which the
    training must have kept (``train.start_windows``). PARC: noise."""
    sampler: Literal["ddim", "few_step"] = "ddim"
    """``ddim`` blends two predictions at every step. ``few_step`` is for distilled generators
    (``distill``), which have stride, s and both branches of their teacher inside. PARC: ddim."""
    steps: int = 2
    """Evaluations of the network per window by the few-step sampler. PARC: none."""
    precision: Precision = "float32"
    """Arithmetic of the network when sampling; `auto`: bfloat16 where the processor has it, which
    pays for batches. PARC: float32."""

    def __post_init__(self) -> None:
        """Check ranges."""
        for name, known in (
            ("sampler", ("ddim", "few_step")),
            ("precision", PRECISIONS),
        ):
            value = getattr(self, name)
            _require(value in known, f"sampling.{name}", value, " or ".join(known))
        _require(self.steps >= 1, "sampling.steps", self.steps, "1 or more")
        _require(self.stride >= 1, "sampling.stride", self.stride, "1 or more")
        for name in ("blend", "blend_end"):
            value = getattr(self, name)
            _require(value is None or 0 <= value <= 1, f"sampling.{name}", value, "0 to 1")
        _require(self.speed >= 0, "sampling.speed", self.speed, "0 m/s or more")
        _require(self.blend_fade >= 0, "sampling.blend_fade", self.blend_fade, "0 or more frames")
        known = self.start in ("noise", "data")
        _require(known, "sampling.start", self.start, "'noise' or 'data'")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Optimisation; PARC's values are the published code's."""

    steps: int = 20_000
    """Optimiser steps of one training, in total. PARC: up to 5 000 000."""
    max_seconds: float | None = None
    """Stop after this wall time, s, if the steps are not done by then; the learning-rate schedule
    then follows whichever budget is further spent. None: no limit. PARC: none."""
    max_cpu_s: float | None = None
    """The same for the CPU time of the process, s; fair where other programs share the cores.
    None: no limit. PARC: none."""
    batch_size: int = 64
    """Windows per step over all workers. PARC: 64."""
    learning_rate: float = 1e-5
    """AdamW peak rate. PARC: 1e-5."""
    weight_decay: float = 0.01
    """AdamW decay. PARC: 0.01."""
    warmup_steps: int = 0
    """Steps of linear warm-up. PARC: 0."""
    final_lr_fraction: float = 1.0
    """The rate falls to this fraction along a half cosine. PARC: 1 (constant)."""
    clip_norm: float = 1.0
    """Limit of the gradient norm. PARC: 1."""
    ema_decay: float = 0.99
    """Decay of the averaged weights, which are the ones sampled from. PARC: 0.99."""
    ema_start: int = 200
    """Until this step the average is a plain copy. PARC: 200."""
    ema_ramp: bool = False
    """Let the decay grow as (1 + n) / (10 + n) up to ``ema_decay``. PARC: false."""
    keep_optimizer: bool = True
    """Carry the optimiser state over to the next PARC iteration. PARC: true."""
    stat_windows: int = 50_000
    """Most windows used for mean and standard deviation of features. PARC: all."""
    start_windows: int = 0
    """Past windows of the data kept in the generator file for ``sampling.start = "data"``. PARC:
    0."""
    report_every: int = 500
    """Steps between reports and checkpoints. PARC: 125 000 for checkpoints."""
    log_every: int = 50
    """Steps between rows of metrics (means over the steps in between)."""
    pictures: int = 4
    """Samples drawn into TensorBoard at every report. PARC: none."""
    min_energy_ratio: float = 0.05
    """Least motion energy of samples over that of the data; 0: no guard. PARC: none."""
    frozen_reports: int = 5
    """A training stops after so many reports in a row below that."""
    frozen_after: int = 20_000
    """Steps from which such reports count even if the samples have never moved more."""
    precision: Precision = "float32"
    """Arithmetic of the network; losses stay in float32. `auto`: bfloat16 where the processor has
    it. PARC: float32."""
    compile: bool = False
    """Compile the network with torch.compile. PARC: false."""
    torch_threads: int | None = None
    """Threads of PyTorch operators; None: the CPUs that the worker was given."""
    seed: int = 0
    """Seed of all draws."""

    def __post_init__(self) -> None:
        """Check ranges."""
        _require(self.steps >= 0, "train.steps", self.steps, "0 or more")
        _require(
            self.precision in PRECISIONS, "train.precision", self.precision, " or ".join(PRECISIONS)
        )
        starts = self.start_windows
        _require(starts >= 0, "train.start_windows", starts, "0 or more")
        _require(self.pictures >= 0, "train.pictures", self.pictures, "0 or more")
        ratio = self.min_energy_ratio
        _require(0 <= ratio < 1, "train.min_energy_ratio", ratio, "0 to below 1")
        for name in (
            "batch_size",
            "stat_windows",
            "report_every",
            "log_every",
            "frozen_reports",
        ):
            _require(getattr(self, name) >= 1, f"train.{name}", getattr(self, name), "1 or more")
        _require(self.frozen_after >= 0, "train.frozen_after", self.frozen_after, "0 or more")
        for name in ("max_seconds", "max_cpu_s"):
            value = getattr(self, name)
            _require(value is None or value > 0, f"train.{name}", value, "more than 0 s, or none")
        for name in ("learning_rate", "clip_norm"):
            _require(getattr(self, name) > 0, f"train.{name}", getattr(self, name), "more than 0")
        _require(0 <= self.ema_decay < 1, "train.ema_decay", self.ema_decay, "0 to below 1")
        fraction = self.final_lr_fraction
        _require(0 <= fraction <= 1, "train.final_lr_fraction", fraction, "0 to 1")


@dataclass(frozen=True, kw_only=True)
class DiffusionConfig:
    """The whole motion generator."""

    num_frames: int = 15
    """Frames of a window. PARC: 15 (0.5 s)."""
    num_past: int = 2
    """Leading frames that are history; the last of them is the reference of the canonical frame.
    PARC: 2."""
    fps: float = 30.0
    """Frames per second. PARC: 30."""
    rotations: RotationForm = "exp"
    """Form of rotations in the features: ``exp`` maps, or ``6d``, which never jumps. PARC: exp."""
    diffusion_steps: int = 21
    """Noise levels T. Published code now: 21; paper-era code: 1001."""
    grid: GridSpec = field(default_factory=GridSpec)
    """Local height map, aligned with the heading. PARC: 31 x 31 points, 0.2 m apart."""
    terrain: TerrainEncoderConfig = TerrainEncoderConfig()
    """Height-map encoder."""
    denoiser: DenoiserConfig = DenoiserConfig()
    """Transformer."""
    conditioning: ConditioningConfig = ConditioningConfig()
    """Conditions in training."""
    loss: LossConfig = LossConfig()
    """Loss terms."""
    sampling: SamplingConfig = SamplingConfig()
    """Drawing of windows."""
    train: TrainConfig = TrainConfig()
    """Optimisation."""

    def __post_init__(self) -> None:
        """Check what spans several parts."""
        past = self.num_past
        _require(1 <= past < self.num_frames, "num_past", past, f"1 to {self.num_frames - 1}")
        _require(self.fps > 0, "fps", self.fps, "more than 0")
        _require(self.diffusion_steps >= 2, "diffusion_steps", self.diffusion_steps, "2 or more")
        _require(self.rotations in ("exp", "6d"), "rotations", self.rotations, "'exp' or '6d'")
        stride, last = self.sampling.stride, self.diffusion_steps - 1
        _require(last % stride == 0, "sampling.stride", stride, f"a divisor of {last}")
        steps = self.sampling.steps
        fits = self.sampling.sampler == "ddim" or steps <= last
        _require(fits, "sampling.steps", steps, f"1 to {last}, one per noise level above 0")
        self._check_near()
        kept = self.sampling.start == "noise" or self.train.start_windows > 0
        _require(kept, "sampling.start", "data", "'noise' where train.start_windows is 0")

    def _check_near(self) -> None:
        near, grid = self.terrain.near_cells, self.grid
        most = min(grid.x_cells_back, grid.x_cells_front, grid.y_cells_side)
        _require(near <= most, "terrain.near_cells", near, f"at most {most}, the grid's margin")

    @property
    def reference(self) -> int:
        """Index of the frame whose root defines the canonical frame (the last past frame)."""
        return self.num_past - 1

    def to_dict(self) -> dict[str, Any]:
        """Nested plain dictionary, fit for JSON."""
        return dataclasses.asdict(self)


def config_from_dict(data: Mapping[str, Any]) -> DiffusionConfig:
    """Rebuild a configuration from ``DiffusionConfig.to_dict`` (possibly through JSON).

    Raises:
        InputError: for an unknown key, or a value that is not allowed.
    """
    return _from_dict(DiffusionConfig, data, "diffusion")


def _from_dict(cls: type[Any], data: Mapping[str, Any], path: str) -> Any:
    hints = typing.get_type_hints(cls)
    unknown = sorted(set(data) - set(hints))
    if unknown:
        allowed = ", ".join(sorted(hints))
        raise InputError(f"{path}.{unknown[0]}: unknown key; allowed are {allowed}; remove it.")
    values: dict[str, Any] = {}
    for name, value in data.items():
        if dataclasses.is_dataclass(hints[name]):
            values[name] = _from_dict(hints[name], value, f"{path}.{name}")  # type: ignore[arg-type]
        else:
            values[name] = tuple(value) if isinstance(value, list) else value
    return cls(**values)
