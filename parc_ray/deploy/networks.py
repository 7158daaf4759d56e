"""Policy and denoiser as ONNX files that carry their layout and normaliser."""

from __future__ import annotations

import json
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional

from algorithms.diffusion.conditions import Conditions
from algorithms.diffusion.generator import DiffusionGenerator
from algorithms.diffusion.targets import target_size
from algorithms.ppo.policy import MlpPolicy
from envs.tracking.observations import Layout
from parc_ray.errors import InputError

_OPSET = 18
GENERATOR_INPUTS = (
    "window",
    "level",
    "heights",
    "target",
    "clean_past",
    "past_visible",
    "terrain_visible",
    "target_visible",
)


class _PolicyNetwork(nn.Module):
    """Observations as the simulator gives them to normalised actions."""

    def __init__(self, policy: MlpPolicy) -> None:
        """Take normaliser and actor."""
        super().__init__()
        self.normaliser, self.actor = policy.normaliser, policy.actor

    def forward(self, observation: Tensor) -> Tensor:
        """(N, O) to (N, A)."""
        return self.actor(self.normaliser(observation))


class _DenoiserNetwork(nn.Module):
    """One evaluation of the denoiser, with the clean window also in its natural units."""

    mean: Tensor
    std: Tensor

    def __init__(self, generator: DiffusionGenerator) -> None:
        """Take network and statistics."""
        super().__init__()
        self.denoiser = generator.denoiser
        self.register_buffer("mean", generator.stats.mean)
        self.register_buffer("std", generator.stats.std)

    def forward(
        self,
        window: Tensor,
        level: Tensor,
        heights: Tensor,
        target: Tensor,
        clean_past: Tensor,
        past_visible: Tensor,
        terrain_visible: Tensor,
        target_visible: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Normalised clean window (N, T, F), and the same in metres, 6-D turns and labels."""
        cond = Conditions(
            heights=heights,
            target=target,
            clean_past=clean_past,
            past_visible=past_visible,
            terrain_visible=terrain_visible,
            target_visible=target_visible,
        )
        clean = self.denoiser(window, level, cond)
        return clean, clean * self.std + self.mean


def require_exporter() -> None:
    """Refuse where networks cannot be written as ONNX.

    Raises:
        InputError: onnx or onnxscript, with which torch writes it, is not installed.
    """
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise InputError(
            "parc export RUN: needs onnx and onnxscript, which are not both installed; run "
            "pip install 'parc-ray[export]'"
        ) from error


def policy_onnx(policy: MlpPolicy, layout: Layout, facts: Mapping[str, Any]) -> bytes:
    """The policy: ``observation`` (N, O) to ``action`` (N, A), the normaliser inside.

    Args:
        policy: the tracker.
        layout: of the observation; blocks that only the critic sees are left out.
        facts: more for the file's metadata, JSON-able.

    Raises:
        InputError: the layout is not the policy's, or the exporter is not installed.
    """
    blocks = [block for block in layout.blocks if not block.critic_only]
    size = sum(block.size for block in blocks)
    if size != policy.spec.actor_dim:
        raise InputError(
            f"tracker: sees {policy.spec.actor_dim} numbers, the run's observation has {size}; "
            "export it with the config it was trained with"
        )
    shift, scale = policy.normaliser.shift[:size], policy.normaliser.scale[:size]
    start, rows = 0, []
    for block in blocks:
        rows.append({"name": block.name, "start": start, "shape": list(block.shape)})
        start += block.size
    metadata = {
        "kind": "parc-ray tracker policy",
        "observation": rows,
        "normaliser": {
            "mean": shift.tolist(),
            "scale": scale.tolist(),
            "clip": policy.spec.normaliser_clip,
            "inside": True,
        },
        "digest": policy.digest,
        **facts,
    }
    example = (torch.zeros(2, size),)
    names = (["observation"], ["action"])
    return _export(_PolicyNetwork(policy).eval(), example, *names, metadata)


def generator_onnx(generator: DiffusionGenerator, facts: Mapping[str, Any]) -> bytes:
    """The denoiser: one evaluation, inputs ``GENERATOR_INPUTS``, statistics inside.

    Outputs are ``clean`` (N, T, F), normalised as ``window`` is, and ``features``, the same in
    natural units. The schedule of noise levels is in the metadata.
    """
    config, layout = generator.config, generator.layout
    frames, size = config.num_frames, layout.size
    metadata = {
        "kind": "parc-ray denoiser",
        "frames": frames,
        "past_frames": config.num_past,
        "features": size,
        "fps": config.fps,
        "alpha_bar": generator.schedule.alpha_bar.tolist(),
        "sampling": config.to_dict()["sampling"],
        "normaliser": {
            "mean": generator.stats.mean.tolist(),
            "std": generator.stats.std.tolist(),
            "inside": True,
        },
        **facts,
    }
    target = torch.zeros(2, target_size(config.conditioning))
    example = (
        torch.zeros(2, frames, size),
        torch.zeros(2, dtype=torch.long),
        torch.zeros(2, *config.grid.shape),
        target,
        *(torch.ones(2, dtype=torch.bool) for _ in range(4)),  # one tensor would be one input
    )
    network = _DenoiserNetwork(generator).eval()
    return _export(network, example, GENERATOR_INPUTS, ["clean", "features"], metadata)


def _patches(x: Tensor, kernel_size: int, stride: int) -> Tensor:
    """What ``unfold`` gives of (N, C, H, W) for patches that lie side by side, by reshaping."""
    if kernel_size != stride:
        raise ValueError("patches must lie side by side")
    n, channels, height, width = x.shape
    rows, columns = height // stride, width // stride
    cut = x.reshape(n, channels, rows, stride, columns, stride).permute(0, 1, 3, 5, 2, 4)
    return cut.reshape(n, channels * stride * stride, rows * columns)


def _attention(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0
) -> Tensor:
    """Fused attention, written out."""
    scores = torch.matmul(q * (q.shape[-1] ** -0.5), k.transpose(-1, -2))
    if attn_mask is not None:
        scores = torch.where(attn_mask, scores, torch.full_like(scores, -1e30))
    return torch.matmul(scores.softmax(dim=-1), v)


@contextmanager
def _written_out() -> Iterator[None]:
    """While this lasts, patches and attention are made of products and reshapes.

    ONNX has operators for neither that all runtimes share, and what torch makes of its own
    differs from version to version.
    """
    with (
        mock.patch.object(functional, "unfold", _patches),
        mock.patch.object(functional, "scaled_dot_product_attention", _attention),
    ):
        yield


def _export(
    network: nn.Module,
    example: tuple[Tensor, ...],
    inputs: Sequence[str],
    outputs: Sequence[str],
    metadata: Mapping[str, Any],
) -> bytes:
    """The file's content; the first dimension of all inputs is free."""
    require_exporter()
    import onnx

    batch = torch.export.Dim("batch", min=1)
    for name in ("torch.onnx", "onnxscript", "onnx_ir"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), _written_out():
        warnings.simplefilter("ignore")
        path = Path(folder) / "network.onnx"
        torch.onnx.export(
            network,
            example,
            path,
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_shapes=tuple({0: batch} for _ in example),
            opset_version=_OPSET,
            dynamo=True,
            external_data=False,
            verbose=False,
        )
        model = onnx.load(path)
    onnx.helper.set_model_props(model, {"parc_ray": json.dumps(dict(metadata))})
    onnx.checker.check_model(model)
    return model.SerializeToString()
