"""Multi-layer perceptrons, shared block encoders and the observation normaliser (pure torch)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from algorithms.ppo.config import Activation, ObsBlock, TrackerConfig
from parc_ray.errors import InputError

_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "elu": nn.ELU,
    "tanh": nn.Tanh,
}


@dataclass(frozen=True, kw_only=True)
class NetSpec:
    """Shape of an actor-critic; JSON-able, stored beside the weights."""

    obs_dim: int
    """Observation size O as the environment gives it, privileged numbers at the end."""
    action_dim: int
    """Action size A."""
    hidden: tuple[int, ...]
    """Hidden layers of actor and critic."""
    activation: Activation
    """Non-linearity."""
    residual: bool = False
    """Skip connections around hidden layers of equal width."""
    blocks: tuple[ObsBlock, ...] = ()
    """Shared encoders."""
    privileged_dims: int = 0
    """Trailing observations that the actor does not see."""
    normaliser_skip: tuple[tuple[int, int], ...] = ()
    """Ranges that the normaliser passes unchanged."""
    normaliser_clip: float = 10.0
    """Clip of normalised observations."""

    def __post_init__(self) -> None:
        """Check that blocks and ranges lie inside the observation the actor sees."""
        for block in self.blocks:
            if block.start + block.width * block.count > self.actor_dim:
                raise InputError(f"ObsBlock: {block} reaches past observation {self.actor_dim}")
        if self.actor_dim < 1 or self.action_dim < 1:
            raise InputError("NetSpec: the actor needs at least one observation and one action")
        if any(stop > self.obs_dim for _, stop in self.normaliser_skip):
            raise InputError(f"normaliser_skip: reaches past observation {self.obs_dim}")

    @property
    def actor_dim(self) -> int:
        """Number of leading observations that the actor sees."""
        return self.obs_dim - self.privileged_dims

    @classmethod
    def from_config(cls, config: TrackerConfig, obs_dim: int, action_dim: int) -> NetSpec:
        """Build the spec for an environment's sizes."""
        return cls(
            obs_dim=obs_dim,
            action_dim=action_dim,
            hidden=config.hidden,
            activation=config.activation,
            residual=config.residual,
            blocks=config.blocks,
            privileged_dims=config.privileged_dims,
            normaliser_skip=config.normaliser_skip,
            normaliser_clip=config.normaliser_clip,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain nested dict of numbers and strings."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> NetSpec:
        """Inverse of :meth:`to_dict`, lists allowed in place of tuples."""
        values = dict(data)
        blocks = [{**b, "hidden": tuple(b["hidden"])} for b in values.pop("blocks", ())]
        values["blocks"] = tuple(ObsBlock(**b) for b in blocks)
        values["hidden"] = tuple(values["hidden"])
        values["normaliser_skip"] = tuple((a, b) for a, b in values.get("normaliser_skip", ()))
        return cls(**values)


class Mlp(nn.Module):
    """Linear layers with a non-linearity after each; optional skips where widths agree."""

    def __init__(
        self, in_dim: int, hidden: Sequence[int], activation: Activation, residual: bool = False
    ) -> None:
        """Create ``len(hidden)`` layers from ``in_dim`` inputs."""
        super().__init__()
        sizes = (in_dim, *hidden)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.activation = _ACTIVATIONS[activation]()
        self.skips = [residual and a == b for a, b in pairwise(sizes)]
        self.out_dim = sizes[-1]

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in_dim) to (..., hidden[-1])."""
        for layer, skip in zip(self.layers, self.skips, strict=True):
            y = self.activation(layer(x))
            x = x + y if skip else y
        return x


class Head(nn.Module):
    """Block encoders, trunk and a float32 output layer."""

    def __init__(self, spec: NetSpec, in_dim: int, out_dim: int) -> None:
        """Create the network from ``in_dim`` observations to ``out_dim`` numbers."""
        super().__init__()
        self.blocks = spec.blocks
        self.encoders = nn.ModuleList(
            Mlp(block.width, block.hidden, spec.activation) for block in spec.blocks
        )
        taken = torch.zeros(in_dim, dtype=torch.bool)
        for block in spec.blocks:
            taken[block.start : block.start + block.width * block.count] = True
        self.register_buffer("rest", torch.nonzero(~taken).flatten(), persistent=False)
        codes = sum(block.count * block.hidden[-1] for block in spec.blocks)
        trunk_in = in_dim - int(taken.sum()) + codes
        self.trunk = Mlp(trunk_in, spec.hidden, spec.activation, spec.residual)
        self.out = nn.Linear(self.trunk.out_dim, out_dim)
        self.in_dim = in_dim

    def forward(self, x: Tensor, bf16: bool = False) -> Tensor:
        """Map normalised observations (..., >= in_dim) to (..., out_dim) in float32.

        Args:
            x: observations; numbers past ``in_dim`` are ignored.
            bf16: run everything but the output layer in bfloat16.
        """
        x = x[..., : self.in_dim]
        with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=bf16):
            features = self.trunk(self._encode(x))
        return self.out(features.float())

    def _encode(self, x: Tensor) -> Tensor:
        if not self.blocks:
            return x
        parts = [x.index_select(-1, self.get_buffer("rest"))]
        for block, encoder in zip(self.blocks, self.encoders, strict=True):
            end = block.start + block.width * block.count
            groups = x[..., block.start : end].unflatten(-1, (block.count, block.width))
            parts.append(encoder(groups).flatten(-2).to(x.dtype))
        return torch.cat(parts, -1)


class ObsNormaliser(nn.Module):
    """Running mean and variance of observations, kept as float64 buffers.

    The statistics are merged batch by batch from sums about the present mean (exact in any
    order, and summable over processes). ``memory`` bounds the weight of the past.
    """

    count: Tensor
    mean: Tensor
    var: Tensor
    keep: Tensor
    shift: Tensor
    scale: Tensor

    def __init__(self, dim: int, skip: Sequence[tuple[int, int]] = (), clip: float = 10.0) -> None:
        """Start with mean 0 and variance 1; ``skip`` ranges always pass unchanged."""
        super().__init__()
        self.clip = clip
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(dim, dtype=torch.float64))
        self.register_buffer("var", torch.ones(dim, dtype=torch.float64))
        keep = torch.ones(dim, dtype=torch.bool)
        for start, stop in skip:
            keep[start:stop] = False
        self.register_buffer("keep", keep, persistent=False)
        self.register_buffer("shift", torch.zeros(dim), persistent=False)
        self.register_buffer("scale", torch.ones(dim), persistent=False)
        self.register_load_state_dict_post_hook(_refresh_after_load)

    def refresh(self) -> None:
        """Recompute the float32 shift and scale from the statistics."""
        self.shift.copy_(torch.where(self.keep, self.mean, 0.0))
        scale = self.var.clamp_min(1e-8).rsqrt()
        self.scale.copy_(torch.where(self.keep, scale, 1.0))

    def forward(self, obs: Tensor) -> Tensor:
        """Normalise (..., O) or its first numbers; clipped to +-clip except where skipped."""
        dim = obs.shape[-1]
        out = (obs - self.shift[:dim]) * self.scale[:dim]
        limit = torch.where(self.keep[:dim], self.clip, torch.inf)
        return torch.clamp(out, -limit, limit)

    def sums(self, obs: Tensor) -> Tensor:
        """Batch sums (1 + 2 O,) float64 for :meth:`merge`: count, sum and square sum of residuals.

        Residuals are about the present mean, so that sums of several processes with the same
        statistics may be added.
        """
        flat = obs.reshape(-1, obs.shape[-1])
        out = self.mean.new_zeros(1 + 2 * flat.shape[-1])
        out[0] = float(flat.shape[0])
        _, first, second = out.split([1, flat.shape[-1], flat.shape[-1]])
        for part in flat.split(4096):  # float64 copies stay small
            residual = part.double() - self.mean
            first += residual.sum(0)
            second += residual.square_().sum(0)
        return out

    def merge(self, sums: Tensor, memory: float = float("inf")) -> None:
        """Merge the (summed) result of :meth:`sums`; ``memory`` caps the old count, in samples."""
        new, (first, second) = sums[0], sums[1:].chunk(2)
        old = self.count.clamp(max=memory)
        total = old + new
        batch_mean = first / new
        batch_var = (second / new - (first / new).square()).clamp_min(0.0)
        mixed = (old * self.var + new * batch_var) / total
        spread = (old * new / total.square()) * batch_mean.square()
        self.mean.add_(batch_mean * new / total)
        self.var.copy_(mixed + spread)
        self.count.copy_(total)
        self.refresh()


def _refresh_after_load(module: nn.Module, _: object) -> None:
    if isinstance(module, ObsNormaliser):
        module.refresh()
