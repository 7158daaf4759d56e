"""Named generator configurations: ``paper``, ``upstream``, ``base``, ``small`` and ``tiny``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from algorithms.diffusion.config import (
    ConditioningConfig,
    DenoiserConfig,
    DiffusionConfig,
    LossConfig,
    SamplingConfig,
    TerrainEncoderConfig,
    TrainConfig,
)
from parc_ray.errors import InputError


def paper() -> DiffusionConfig:
    """Sizes and penetration loss of the paper-era code; the paper itself prints no sizes."""
    return DiffusionConfig(
        diffusion_steps=1001,
        denoiser=DenoiserConfig(
            width=1024, heads=16, layers=6, feedforward=1024, frame_hidden=1024
        ),
        train=TrainConfig(steps=2_000_000, report_every=10_000),
    )


def upstream() -> DiffusionConfig:
    """The published code as it is now: small network, 21 steps, three devices switched off."""
    return DiffusionConfig(
        conditioning=ConditioningConfig(ood_chance=0.0),
        loss=LossConfig(penetration=0.0, target=0.0),
        train=TrainConfig(steps=2_000_000, report_every=10_000),
    )


def base() -> DiffusionConfig:
    """Our best settings: 25 terrain tokens, better use of samples, a rate schedule.

    What keeps roll-outs on the ground was measured (docs/results/generator_study.md): heights
    around the root on a short way in, windows that return to the data, corrections of a linear
    guess from the past frames, an s that rises over the new frames, and first poses of the data.
    """
    return DiffusionConfig(
        terrain=TerrainEncoderConfig(
            channels=(32, 64, 64), kernels=(5, 3, 3), strides=(2, 1, 1), near_cells=4
        ),
        denoiser=DenoiserConfig(
            dropout=0.05, attention_dropout=0.0, feedforward=512, past_anchor=True
        ),
        conditioning=_returning(_our_conditioning()),
        loss=LossConfig(score_clean_past=False),
        sampling=SamplingConfig(blend_fade=6, start="data"),
        train=TrainConfig(
            steps=100_000,
            learning_rate=1e-3,
            warmup_steps=200,
            final_lr_fraction=0.05,
            ema_decay=0.999,
            ema_start=0,
            ema_ramp=True,
            keep_optimizer=False,
            start_windows=128,
            report_every=2_000,
            precision="auto",
        ),
    )


def small() -> DiffusionConfig:
    """Our settings for minutes on two CPU cores and half a minute of motion.

    A third of ``base`` in width and depth. So little training makes whole frames from nothing
    badly, so much is taken from the past frames instead: the linear guess, windows that return to
    the data, an s that rises over the new frames, and first poses of the data. The heights around
    the root have a short way in, else motions float up within seconds; strong turns to come back
    from teach to steer by the target, which clips that run straight ahead do not.
    """
    return DiffusionConfig(
        terrain=TerrainEncoderConfig(
            channels=(16, 32), kernels=(5, 4), strides=(2, 2), max_height=1.5, near_cells=4
        ),
        denoiser=DenoiserConfig(
            width=128,
            heads=4,
            layers=3,
            feedforward=256,
            frame_hidden=256,
            target_hidden=128,
            dropout=0.0,
            attention_dropout=0.0,
            past_anchor=True,
        ),
        conditioning=_returning(_our_conditioning()),
        loss=LossConfig(score_clean_past=False, penetration_window=2),
        sampling=SamplingConfig(blend_fade=6, start="data"),
        train=TrainConfig(
            steps=1_500,
            batch_size=64,
            learning_rate=1e-3,
            warmup_steps=50,
            final_lr_fraction=0.02,
            ema_decay=0.99,
            ema_start=0,
            ema_ramp=True,
            keep_optimizer=False,
            stat_windows=4_096,
            start_windows=128,
            report_every=250,
        ),
    )


def tiny() -> DiffusionConfig:
    """For tests and the smoke recipe: d 64, two layers, 11 noise levels, 9 terrain tokens."""
    return DiffusionConfig(
        diffusion_steps=11,
        terrain=TerrainEncoderConfig(channels=(8, 16), kernels=(5, 4), strides=(2, 2)),
        denoiser=DenoiserConfig(
            width=64,
            heads=4,
            layers=2,
            feedforward=128,
            frame_hidden=128,
            target_hidden=64,
            dropout=0.0,
            attention_dropout=0.0,
        ),
        conditioning=_our_conditioning(),
        loss=LossConfig(score_clean_past=False, penetration_window=2),
        sampling=SamplingConfig(stride=5),
        train=TrainConfig(
            steps=400,
            batch_size=32,
            learning_rate=2e-3,
            warmup_steps=20,
            final_lr_fraction=0.02,
            ema_decay=0.98,
            ema_start=0,
            ema_ramp=True,
            keep_optimizer=False,
            stat_windows=1_024,
            report_every=100,
            log_every=20,
            pictures=0,
        ),
    )


PROFILES: dict[str, Callable[[], DiffusionConfig]] = {
    "paper": paper,
    "upstream": upstream,
    "base": base,
    "small": small,
    "tiny": tiny,
}


def profile(name: str) -> DiffusionConfig:
    """Configuration of a named profile.

    Raises:
        InputError: for an unknown name.
    """
    if name not in PROFILES:
        names = ", ".join(PROFILES)
        raise InputError(f"generator profile: {name!r} is unknown; allowed are {names}; pick one.")
    return PROFILES[name]()


def _our_conditioning() -> ConditioningConfig:
    """More samples for the branch that blending uses, fewer for the rest; mirrored windows."""
    return ConditioningConfig(
        clean_past_chance=0.7,
        mask_past_chance=0.3,
        noised_when_masked=True,
        mirror_chance=0.5,
    )


def _returning(conditioning: ConditioningConfig) -> ConditioningConfig:
    """With windows that begin beside the data and return to it."""
    return replace(
        conditioning, drift_height=0.06, drift_turn=0.35, drift_tilt=0.03, drift_joint=0.05
    )
