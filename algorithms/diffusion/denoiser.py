"""The denoising transformer (docs/design/generator.md, Network).

Shapes: N windows, T frames, F features, D width, H heads, K terrain tokens, S = K + T + 3 tokens in
the order time, terrain, target, past indicator, frames.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from algorithms.diffusion.anchor import PastAnchor
from algorithms.diffusion.conditions import Conditions
from algorithms.diffusion.config import DenoiserConfig, DiffusionConfig
from algorithms.diffusion.dropout import Dropout, dropout
from algorithms.diffusion.targets import target_size
from algorithms.diffusion.terrain_encoder import TerrainEncoder


@dataclass(frozen=True)
class ConditionTokens:
    """Embedded terrain and target, the same at every denoising step of a window.

    Attributes:
        tokens: (N, K + 1, D), terrain first; withheld conditions are zero.
        visible: (N, K + 1) bool.
        near: (N, D) embedded heights around the root, zero where the terrain is withheld; None
            where the network has no such input.
    """

    tokens: Tensor
    visible: Tensor
    near: Tensor | None = None

    def repeat(self, times: int) -> ConditionTokens:
        """Stack ``times`` copies along the batch."""
        return ConditionTokens(
            self.tokens.repeat(times, 1, 1),
            self.visible.repeat(times, 1),
            None if self.near is None else self.near.repeat(times, 1),
        )


@dataclass
class Workspace:
    """What the first layer needs of the conditions, kept over the denoising steps of a window.

    The other tokens are written into their places at every step.

    Attributes:
        hidden: (N, S, D) input of the first layer.
        projected: (N, S, 3D) its queries, keys and values.
    """

    hidden: Tensor
    projected: Tensor

    def head(self, n: int) -> Workspace:
        """The first ``n`` windows; the same memory."""
        return Workspace(self.hidden[:n], self.projected[:n])


def sinusoid_table(length: int, width: int, base: float = 10_000.0) -> Tensor:
    """Sinusoidal encoding with sine and cosine interleaved, (length, width) float32."""
    position = torch.arange(length, dtype=torch.float64)[:, None]
    rate = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-math.log(base) / width))
    table = torch.stack([(position * rate).sin(), (position * rate).cos()], dim=-1)
    return table.reshape(length, width).float()


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Linear, SiLU, linear."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.SiLU(), nn.Linear(hidden, outputs))


def attend(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, p: float) -> Tensor:
    """Attention, by whichever way is fastest.

    PyTorch's fused CPU kernel has no dropout (what it falls back to takes thrice as long as the
    products written out), and its bfloat16 gradient takes four times as long as theirs.

    Args:
        q: (N, H, Q, C) queries.
        k: (N, H, S, C) keys.
        v: (N, H, S, C) values.
        visible: (N, 1, 1, S) bool, at least one True each; None for all.
        p: dropout of attention weights, probability.

    Returns:
        (N, H, Q, C).
    """
    slow = q.requires_grad and (p > 0.0 or q.dtype == torch.bfloat16)
    if not slow or q.device.type != "cpu" or torch.compiler.is_compiling():
        return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, dropout_p=p)
    scores = torch.matmul(q * (q.shape[-1] ** -0.5), k.transpose(-1, -2))
    if visible is not None:
        hidden = torch.zeros_like(visible, dtype=scores.dtype).masked_fill_(~visible, -math.inf)
        scores = scores + hidden
    return torch.matmul(dropout(scores.softmax(dim=-1), p, training=True), v)


class EncoderLayer(nn.Module):
    """Post-norm transformer encoder layer with GELU, fused attention and optional fewer queries."""

    def __init__(self, cfg: DenoiserConfig) -> None:
        """Build from the sizes of the denoiser."""
        super().__init__()
        d = cfg.width
        self.heads = cfg.heads
        self.attention_dropout = cfg.attention_dropout
        self.in_proj = nn.Linear(d, 3 * d)
        self.out_proj = nn.Linear(d, d)
        self.linear1 = nn.Linear(d, cfg.feedforward)
        self.linear2 = nn.Linear(cfg.feedforward, d)
        self.norm1 = nn.LayerNorm(d)
        self.norm2 = nn.LayerNorm(d)
        self.dropout = Dropout(cfg.dropout)
        nn.init.xavier_uniform_(self.in_proj.weight)
        nn.init.zeros_(self.in_proj.bias)
        nn.init.zeros_(self.out_proj.bias)

    def forward(
        self,
        x: Tensor,
        visible: Tensor | None,
        last: int | None = None,
        projected: Tensor | None = None,
    ) -> Tensor:
        """Transform tokens.

        Args:
            x: (N, S, D).
            visible: (N, 1, 1, S) bool, which tokens can be read; None for all.
            last: compute only the last so many tokens (all others are still read).
            projected: (N, S, 3D), queries, keys and values of ``x`` where they are known already.

        Returns:
            (N, S or last, D).
        """
        n, s, d = x.shape
        out = s if last is None else last
        if projected is not None:
            q, k, v = projected.chunk(3, dim=-1)
            x, q = x[:, s - out :], q[:, s - out :]
        elif last is None:
            q, k, v = self.in_proj(x).chunk(3, dim=-1)
        else:
            w, b = self.in_proj.weight, self.in_proj.bias
            k, v = F.linear(x, w[d:], b[d:]).chunk(2, dim=-1)
            x = x[:, s - out :]
            q = F.linear(x, w[:d], b[:d])
        split = (n, -1, self.heads, d // self.heads)
        q, k, v = (part.reshape(split).transpose(1, 2) for part in (q, k, v))
        attended = attend(q, k, v, visible, self.attention_dropout if self.training else 0.0)
        attended = attended.transpose(1, 2).reshape(n, out, d)
        x = self.norm1(x + self.dropout(self.out_proj(attended)))
        hidden = self.dropout(F.gelu(self.linear1(x)))
        return self.norm2(x + self.dropout(self.linear2(hidden)))


class Denoiser(nn.Module):
    """Predicts the clean window x0 from a noised one and its conditions."""

    position: Tensor
    time_table: Tensor

    def __init__(self, cfg: DiffusionConfig, num_features: int, grid: tuple[int, int]) -> None:
        """Build the network.

        Args:
            cfg: generator configuration.
            num_features: F, features of a frame.
            grid: points of the height map along x and y.
        """
        super().__init__()
        net, d = cfg.denoiser, cfg.denoiser.width
        self.num_frames, self.num_past = cfg.num_frames, cfg.num_past
        self.terrain = TerrainEncoder(cfg.terrain, grid, d)
        self.near_scale, self.near_window = cfg.terrain.near_scale, _near_window(cfg)
        cells = (2 * cfg.terrain.near_cells + 1) ** 2
        self.near = mlp(cells, d, d) if cfg.terrain.near_cells else None
        self.time = mlp(d, d, d)
        self.target = mlp(target_size(cfg.conditioning), net.target_hidden, d)
        self.indicator = nn.Embedding(2, d)
        self.frames_in = mlp(num_features, net.frame_hidden, d)
        self.frames_out = mlp(d, net.frame_hidden, num_features)
        self.layers = nn.ModuleList(EncoderLayer(net) for _ in range(net.layers))
        self.dropout = Dropout(net.dropout)
        self.anchor = (
            PastAnchor(cfg.num_frames, num_features, cfg.reference) if net.past_anchor else None
        )
        tokens = self.terrain.num_tokens + cfg.num_frames + 3
        self.register_buffer("position", sinusoid_table(tokens, d), persistent=False)
        table = sinusoid_table(cfg.diffusion_steps, d)
        self.register_buffer("time_table", table, persistent=False)

    def encode(self, cond: Conditions) -> ConditionTokens:
        """Embed terrain and target once, for all denoising steps."""
        terrain = self.terrain(cond.heights) * cond.terrain_visible[:, None, None]
        target = (self.target(cond.target) * cond.target_visible[:, None])[:, None]
        visible = torch.cat(
            [
                cond.terrain_visible[:, None].expand(-1, terrain.shape[1]),
                cond.target_visible[:, None],
            ],
            dim=1,
        )
        near = None
        if self.near is not None:
            limit = self.terrain.max_height
            rows, columns = self.near_window
            heights = cond.heights[:, rows, columns].clamp(-limit, limit).flatten(1)
            near = self.near(heights / self.near_scale) * cond.terrain_visible[:, None]
        return ConditionTokens(torch.cat([terrain, target], dim=1), visible, near)

    @torch.no_grad()
    def workspace(self, tokens: ConditionTokens) -> Workspace:
        """Room for ``denoise`` in eval mode, with the share of the conditions worked out."""
        n, k = tokens.visible.shape
        hidden = self.position.expand(n, -1, -1).clone()
        hidden[:, 1 : k + 1] += tokens.tokens
        first = self.layers[0]
        assert isinstance(first, EncoderLayer)
        return Workspace(hidden, first.in_proj(hidden))

    def denoise(
        self,
        x: Tensor,
        t: Tensor,
        tokens: ConditionTokens,
        clean_past: Tensor,
        past_visible: Tensor,
        workspace: Workspace | None = None,
    ) -> Tensor:
        """Predict x0.

        Args:
            x: (N, T, F) noised normalised window; where ``clean_past``, its past frames are clean.
            t: (N,) noise levels.
            tokens: from ``encode``.
            clean_past: (N,) bool.
            past_visible: (N,) bool.
            workspace: from ``workspace``, for these ``tokens``; only without gradients and in eval
                mode. It saves the part of the first layer that no step changes.

        Returns:
            (N, T, F) prediction of the normalised clean window.
        """
        time = self.time(self.time_table[t])[:, None]
        indicator = self.indicator(clean_past.long())[:, None]
        frames = self.frames_in(x)
        if tokens.near is not None:
            frames = frames + tokens.near[:, None]
        if workspace is None:
            h = torch.cat([time, tokens.tokens.to(time.dtype), indicator, frames], dim=1)
            h, projected = self.dropout(h + self.position), None
        else:
            h, projected = self._fill(workspace, torch.cat([time, indicator, frames], dim=1))
        one = torch.ones_like(past_visible)[:, None]
        past = past_visible[:, None].expand(-1, self.num_past)
        future = one.expand(-1, self.num_frames - self.num_past)
        keys = torch.cat([one, tokens.visible, one, past, future], dim=1)
        mask = keys[:, None, None, :]
        for layer in self.layers[:-1]:
            h, projected = layer(h, mask, projected=projected), None
        last = self.layers[-1](h, mask, last=self.num_frames, projected=projected)
        out = self.frames_out(last)
        if self.anchor is None:
            return out
        told = (clean_past & past_visible)[:, None, None]
        return torch.where(told, self.anchor(x.to(out.dtype), out), out)

    def _fill(self, workspace: Workspace, fresh: Tensor) -> tuple[Tensor, Tensor]:
        """Write time, indicator and frame tokens (N, T + 2, D) of this step into their places."""
        after = workspace.hidden.shape[1] - fresh.shape[1] + 1
        fresh = fresh + torch.cat([self.position[:1], self.position[after:]])
        first = self.layers[0]
        assert isinstance(first, EncoderLayer)
        for room, rows in (
            (workspace.hidden, fresh),
            (workspace.projected, first.in_proj(fresh)),
        ):
            room[:, :1] = rows[:, :1]
            room[:, after:] = rows[:, 1:]
        return workspace.hidden, workspace.projected

    def forward(self, x: Tensor, t: Tensor, cond: Conditions) -> Tensor:
        """``encode`` and ``denoise`` in one call, as training needs it."""
        return self.denoise(x, t, self.encode(cond), cond.clean_past, cond.past_visible)


def _near_window(cfg: DiffusionConfig) -> tuple[slice, slice]:
    """Rows and columns of the height map around the root."""
    i, j = cfg.grid.root_cell
    k = cfg.terrain.near_cells
    return slice(i - k, i + k + 1), slice(j - k, j + k + 1)


def insert_past(x: Tensor, past: Tensor, where: Tensor) -> Tensor:
    """Put clean past frames into the windows ``where`` holds; ``x`` itself stays as it is.

    Args:
        x: (N, T, F).
        past: (N, P, F) normalised past frames.
        where: (N,) bool.
    """
    p = past.shape[1]
    head = torch.where(where[:, None, None], past, x[:, :p])
    return torch.cat([head, x[:, p:]], dim=1)
