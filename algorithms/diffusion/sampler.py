"""Drawing windows: DDIM with blended denoising (PARC, eq. 5 and 13).

Blending: x0 = s G(x | terrain, target) + (1 - s) G(x | terrain, target, past), in normalised
feature space. s = 0 follows the past only, s = 1 ignores it.

A distilled network (``distill``) needs one branch and few steps: ``sample_few_step``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from algorithms.diffusion.conditions import Conditions
from algorithms.diffusion.denoiser import ConditionTokens, Denoiser, Workspace, insert_past
from algorithms.diffusion.schedule import NoiseSchedule
from parc_ray.precision import Precision, low_precision


def _arithmetic(like: Tensor, precision: Precision) -> torch.autocast:
    """Context in which the network computes in ``precision`` on the device of ``like``."""
    low = low_precision(precision, like.device)
    return torch.autocast(like.device.type, dtype=torch.bfloat16, enabled=low)


def blend_weights(start: float, end: float | None, count: int) -> list[float]:
    """Blend coefficient of each denoising step, noisiest first; constant where ``end`` is None."""
    if end is None or count == 1:
        return [start] * count
    return [start + (end - start) * i / (count - 1) for i in range(count)]


def frame_weights(num_frames: int, num_past: int, fade: int) -> Tensor:
    """Share of s per frame, (T, 1): 0 for past frames, then rising linearly to 1 after ``fade``."""
    new = torch.arange(num_frames) - num_past + 1
    return (new / (fade + 1)).clamp(0.0, 1.0)[:, None]


def predict_blended(
    denoiser: Denoiser,
    x: Tensor,
    t: Tensor,
    tokens: ConditionTokens,
    past: Tensor,
    s: float,
    fade: int = 0,
    workspace: Workspace | None = None,
) -> Tensor:
    """Blend the prediction without past frames (weight s) and the one with them (1 - s).

    Both branches run in one batch of 2N; at s = 0 or 1 only the branch that counts is run.

    Args:
        denoiser: the network.
        x: (N, T, F) noised window.
        t: (N,) noise levels.
        tokens: condition tokens of the N windows.
        past: (N, P, F) clean normalised past frames.
        s: blend coefficient.
        fade: new frames over which it rises to ``s``; 0 gives ``s`` to all of them.
        workspace: of ``tokens.repeat(2)``, see ``Denoiser.workspace``; None works without.

    Returns:
        (N, T, F) predicted x0.
    """
    n = x.shape[0]
    yes = torch.ones(n, dtype=torch.bool, device=x.device)
    single = None if workspace is None else workspace.head(n)
    if s >= 1.0 and not fade:
        return denoiser.denoise(x, t, tokens, ~yes, ~yes, single)
    with_past = insert_past(x, past, yes)
    if s <= 0.0:
        return denoiser.denoise(with_past, t, tokens, yes, yes, single)
    seen = torch.cat([yes, ~yes])
    both = denoiser.denoise(
        torch.cat([with_past, x]), t.repeat(2), tokens.repeat(2), seen, seen, workspace
    )
    conditional, free = both[:n].float(), both[n:].float()
    weight = s * frame_weights(x.shape[1], past.shape[1], fade).to(x) if fade else s
    return conditional + weight * (free - conditional)


def sample_windows(
    denoiser: Denoiser,
    schedule: NoiseSchedule,
    cond: Conditions,
    past: Tensor | None,
    noise: Tensor,
    *,
    stride: int,
    blend: float,
    blend_end: float | None,
    blend_fade: int = 0,
    precision: Precision = "float32",
    project: Callable[[Tensor], Tensor],
) -> Tensor:
    """Draw windows by DDIM (eta = 0).

    Args:
        denoiser: the network, in eval mode.
        schedule: noise levels.
        cond: conditions of N windows; the clean-past and visibility fields of the past are ignored.
        past: (N, P, F) clean normalised past frames, or None for a first window, which is drawn
            in one branch with noised, readable past frames.
        noise: (N, T, F) standard normal.
        stride: levels per step.
        blend: s at the noisiest step.
        blend_end: s at the last step, or None for a constant.
        blend_fade: new frames over which s rises to its value.
        precision: arithmetic of the network; all else is in float32.
        project: maps a predicted x0 to the nearest consistent window (positions by kinematics).

    Returns:
        (N, T, F) normalised windows; frames 0..P-1 equal ``past`` where given.
    """
    n = noise.shape[0]
    yes = torch.ones(n, dtype=torch.bool, device=noise.device)
    levels = schedule.levels(stride)
    weights = blend_weights(blend, blend_end, len(levels))
    x = noise
    with torch.no_grad():
        with _arithmetic(noise, precision):
            tokens = denoiser.encode(cond)
            room = denoiser.workspace(tokens if past is None else tokens.repeat(2))
        for i, (level, s) in enumerate(zip(levels, weights, strict=True)):
            t = torch.full((n,), level, dtype=torch.long, device=noise.device)
            with _arithmetic(noise, precision):
                if past is None:
                    x0 = denoiser.denoise(x, t, tokens, ~yes, yes, room)
                else:
                    x0 = predict_blended(denoiser, x, t, tokens, past, s, blend_fade, room)
            x0 = project(x0.float())
            after = levels[i + 1] if i + 1 < len(levels) else None
            of_x0, of_xt = schedule.ddim_coefficients(level, after)
            x = of_x0 * x0 + of_xt * x
    return x if past is None else insert_past(x, past, yes)


def few_step_levels(last: int, steps: int) -> list[int]:
    """Noise levels of a few-step sampler: from ``last`` in equal strides towards 0, without 0."""
    return [round(last * (1 - i / steps)) for i in range(steps)]


def sample_few_step(
    denoiser: Denoiser,
    schedule: NoiseSchedule,
    cond: Conditions,
    past: Tensor | None,
    noise: Tensor,
    *,
    steps: int,
    precision: Precision = "float32",
    project: Callable[[Tensor], Tensor],
) -> Tensor:
    """Draw windows from a distilled network, in one branch and ``steps`` evaluations.

    The network answers every noise level with the window where its teacher's DDIM path ends;
    between evaluations x moves along the straight DDIM step towards that answer.

    Args:
        denoiser: the distilled network, in eval mode.
        schedule: noise levels.
        cond: conditions of N windows; the clean-past and visibility fields of the past are ignored.
        past: (N, P, F) clean normalised past frames, or None for a first window.
        noise: (N, T, F) standard normal.
        steps: evaluations, 1 to the number of noise levels minus 1.
        precision: arithmetic of the network.
        project: as in :func:`sample_windows`.

    Returns:
        (N, T, F) normalised windows; frames 0..P-1 equal ``past`` where given.
    """
    n = noise.shape[0]
    yes = torch.ones(n, dtype=torch.bool, device=noise.device)
    levels = few_step_levels(schedule.steps - 1, steps)
    x = noise
    with torch.no_grad():
        with _arithmetic(noise, precision):
            tokens = denoiser.encode(cond)
            room = denoiser.workspace(tokens) if steps > 1 else None
        for level, after in zip(levels, [*levels[1:], None], strict=True):
            t = torch.full((n,), level, dtype=torch.long, device=noise.device)
            given = x if past is None else insert_past(x, past, yes)
            clean = ~yes if past is None else yes
            with _arithmetic(noise, precision):
                x0 = denoiser.denoise(given, t, tokens, clean, yes, room)
            x0 = project(x0.float())
            of_x0, of_xt = schedule.ddim_coefficients(level, after)
            x = of_x0 * x0 + of_xt * x
    return x if past is None else insert_past(x, past, yes)
