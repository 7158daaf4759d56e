"""The published network's structure put together from PyTorch's own layers: a slow reference.

Nothing is saved anywhere: every call encodes the height map anew, every layer computes every token,
the output MLP runs over all of them, the two branches of blending are two calls. It shares the
weights of a ``Denoiser``, so both must agree; tests compare their values, the benchmark their time.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from algorithms.diffusion.conditions import Conditions
from algorithms.diffusion.config import DiffusionConfig
from algorithms.diffusion.denoiser import Denoiser, EncoderLayer
from algorithms.diffusion.schedule import NoiseSchedule


class ReferenceDenoiser(nn.Module):
    """Predicts x0 like the ``Denoiser`` that its weights are copied from."""

    position: Tensor
    time_table: Tensor

    def __init__(self, fast: Denoiser, config: DiffusionConfig) -> None:
        """Copy the weights of ``fast``, which must have neither anchor nor near heights."""
        super().__init__()
        assert fast.anchor is None
        assert fast.near is None
        net = config.denoiser
        layer = nn.TransformerEncoderLayer(
            net.width,
            net.heads,
            net.feedforward,
            net.dropout,
            activation="gelu",
            batch_first=True,
        )
        self.encoder = nn.TransformerEncoder(layer, net.layers, enable_nested_tensor=False)
        for ours, theirs in zip(fast.layers, self.encoder.layers, strict=True):
            assert isinstance(ours, EncoderLayer)
            theirs.load_state_dict(library_state(ours))
        self.cnn, self.embed = fast.terrain.cnn, fast.terrain.embed
        self.unfold = nn.Unfold(fast.terrain.patch, stride=fast.terrain.patch)
        self.limit = config.terrain.max_height
        self.time, self.target, self.indicator = fast.time, fast.target, fast.indicator
        self.frames_in, self.frames_out = fast.frames_in, fast.frames_out
        self.dropout = nn.Dropout(net.dropout)
        self.frames, self.past = config.num_frames, config.num_past
        self.register_buffer("position", fast.position)
        self.register_buffer("time_table", fast.time_table)

    def forward(self, x: Tensor, t: Tensor, cond: Conditions) -> Tensor:
        """Predict x0 (N, T, F) of noised windows; shapes as in ``Denoiser.forward``."""
        image = (cond.heights.clamp(-self.limit, self.limit) / self.limit)[:, None]
        terrain = self.embed(self.unfold(self.cnn(image)).transpose(1, 2))
        terrain = terrain * cond.terrain_visible[:, None, None]
        target = (self.target(cond.target) * cond.target_visible[:, None])[:, None]
        time = self.time(self.time_table[t])[:, None]
        indicator = self.indicator(cond.clean_past.long())[:, None]
        h = torch.cat([time, terrain, target, indicator, self.frames_in(x)], dim=1)
        h = self.dropout(h + self.position)
        hidden = torch.zeros(h.shape[:2], dtype=torch.bool, device=h.device)
        k = terrain.shape[1]
        hidden[:, 1 : k + 1] = ~cond.terrain_visible[:, None]
        hidden[:, k + 1] = ~cond.target_visible
        hidden[:, k + 3 : k + 3 + self.past] = ~cond.past_visible[:, None]
        h = self.encoder(h, src_key_padding_mask=hidden)
        return self.frames_out(h)[:, -self.frames :]


def library_state(layer: EncoderLayer) -> dict[str, Tensor]:
    """State dict of PyTorch's encoder layer with the weights of ours."""
    attention = {"in_proj_weight": layer.in_proj.weight, "in_proj_bias": layer.in_proj.bias}
    attention |= {f"out_proj.{k}": v for k, v in layer.out_proj.state_dict().items()}
    state = {f"self_attn.{k}": v for k, v in attention.items()}
    for part in ("linear1", "linear2", "norm1", "norm2"):
        state |= {f"{part}.{k}": v for k, v in getattr(layer, part).state_dict().items()}
    return state


@torch.no_grad()
def sample_reference(
    network: Callable[[Tensor, Tensor, Conditions], Tensor],
    schedule: NoiseSchedule,
    cond: Conditions,
    past: Tensor,
    noise: Tensor,
    *,
    stride: int,
    blend: float,
    project: Callable[[Tensor], Tensor],
) -> Tensor:
    """Blended DDIM written out as the paper has it (equations 5 and 13), two calls a step."""
    n, p = past.shape[0], past.shape[1]
    yes = torch.ones(n, dtype=torch.bool)
    levels = schedule.levels(stride)
    x = noise
    for level, after in zip(levels, [*levels[1:], None], strict=True):
        t = torch.full((n,), level)
        given = torch.cat([past, x[:, p:]], dim=1)
        views = (cond.heights, cond.target, cond.terrain_visible, cond.target_visible)
        heights, target, ground, goal = views
        told = network(given, t, Conditions(heights, target, yes, yes, ground, goal))
        x0 = told
        if blend > 0:
            free = network(x, t, Conditions(heights, target, ~yes, ~yes, ground, goal))
            x0 = blend * free + (1 - blend) * told
        x0 = project(x0)
        of_x0, of_xt = schedule.ddim_coefficients(level, after)
        x = of_x0 * x0 + of_xt * x
    return torch.cat([past, x[:, p:]], dim=1)
