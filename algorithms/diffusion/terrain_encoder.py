"""From a local height map to patch tokens."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from algorithms.diffusion.config import TerrainEncoderConfig
from parc_ray.errors import InputError


class TerrainEncoder(nn.Module):
    """Convolutions without padding, then square patches through one linear layer."""

    def __init__(self, cfg: TerrainEncoderConfig, grid_shape: tuple[int, int], width: int) -> None:
        """Build the encoder.

        Args:
            cfg: layer sizes.
            grid_shape: points of the height map along x and y.
            width: size of a token.

        Raises:
            InputError: if kernels and strides do not fit the grid, or patches the pixels.
        """
        super().__init__()
        self.patch = cfg.patch
        self.max_height = cfg.max_height
        layers: list[nn.Module] = []
        size, channels = list(grid_shape), 1
        for out, kernel, stride in zip(cfg.channels, cfg.kernels, cfg.strides, strict=True):
            layers += [nn.Conv2d(channels, out, kernel, stride), nn.LeakyReLU(0.01)]
            if any((s - kernel) % stride for s in size):
                raise InputError(
                    f"terrain.strides: {stride} leaves cells of a {size[0]} x {size[1]} input "
                    f"unread at kernel {kernel}; choose another kernel or stride."
                )
            size = [(s - kernel) // stride + 1 for s in size]
            channels = out
        if min(size) < cfg.patch or any(s % cfg.patch for s in size):
            raise InputError(
                f"terrain.patch: {cfg.patch} does not divide the {size[0]} x {size[1]} pixels that "
                f"the kernels leave of a {grid_shape[0]} x {grid_shape[1]} grid; "
                "choose another patch, kernel or stride."
            )
        self.cnn = nn.Sequential(*layers)
        self.embed = nn.Linear(channels * cfg.patch**2, width)
        self.num_tokens = (size[0] // cfg.patch) * (size[1] // cfg.patch)

    def forward(self, heights: Tensor) -> Tensor:
        """Tokens of a height map.

        Args:
            heights: (N, GX, GY) terrain height minus root height, m.

        Returns:
            (N, tokens, width), patches row-major over x then y.
        """
        limit = self.max_height
        image = (heights.clamp(-limit, limit) / limit).unsqueeze(1)
        pixels = self.cnn(image)
        patches = F.unfold(pixels, kernel_size=self.patch, stride=self.patch)
        return self.embed(patches.transpose(1, 2))
