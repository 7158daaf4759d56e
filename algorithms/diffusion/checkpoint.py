"""Generator files: tensors and JSON only, read back without unpickling anything else.

One file holds the averaged weights (sampled from), the raw ones (trained on), the feature
statistics, the configuration and, if wanted, the optimiser state.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from algorithms.diffusion.config import DiffusionConfig, config_from_dict
from algorithms.diffusion.starts import Starts
from parc_ray.data.patience import write_whole
from parc_ray.errors import InputError
from parc_ray.motion.features import FeatureStats

FORMAT = "parc-ray-generator"
VERSION = 1


@dataclass(frozen=True)
class GeneratorFile:
    """Contents of a generator file.

    Attributes:
        config: generator configuration.
        character: name and digest of the character it was trained for.
        stats: feature statistics.
        ema: averaged weights of the denoiser.
        model: raw weights of the denoiser.
        step: optimiser steps behind them, in this PARC iteration.
        optimizer: AdamW state, or None.
        starts: past frames of the data to start from, or None.
    """

    config: DiffusionConfig
    character: dict[str, str]
    stats: FeatureStats
    ema: dict[str, Tensor]
    model: dict[str, Tensor]
    step: int
    optimizer: dict[str, Any] | None = None
    starts: Starts | None = None


def write_atomically(content: dict[str, Any], path: Path) -> None:
    """``torch.save`` to a temporary name in the same directory, then rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    torch.save(content, buffer)
    write_whole(path, buffer.getbuffer())


def read_tensors(path: Path, what: str) -> dict[str, Any]:
    """Read a file of tensors and plain values; nothing in it can run code.

    Raises:
        InputError: where the file is missing or is anything else.
    """
    if not path.is_file():
        raise InputError(f"{path}: there is no such {what}; give the path of an existing one.")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file may fail in any way at all
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"{path}: is no {what} ({reason[:120]}); only files written by this program are read."
        ) from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: is no {what}; only files written by this program are read.")
    return content


def save_generator(file: GeneratorFile, path: Path) -> None:
    """Write a generator file."""
    header = {
        "format": FORMAT,
        "version": VERSION,
        "config": file.config.to_dict(),
        "character": file.character,
        "step": file.step,
    }
    write_atomically(
        {
            "header": json.dumps(header, sort_keys=True),
            "mean": file.stats.mean,
            "std": file.stats.std,
            "ema": file.ema,
            "model": file.model,
            "optimizer": file.optimizer,
            "starts": None if file.starts is None else vars(file.starts),
        },
        path,
    )


def load_generator(path: Path) -> GeneratorFile:
    """Read a generator file.

    Raises:
        InputError: where it is missing, of another kind, or of a newer version.
    """
    content = read_tensors(path, "generator file")
    try:
        header = json.loads(content["header"])
        known = header["format"] == FORMAT
        version = int(header["version"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: is no generator file; give one that this program wrote."
        ) from error
    if not known or version > VERSION:
        raise InputError(
            f"{path}: has format {header['format']} version {version}; allowed is {FORMAT} up to "
            f"{VERSION}; use a newer program."
        )
    return GeneratorFile(
        config=config_from_dict(header["config"]),
        character=header["character"],
        stats=FeatureStats(mean=content["mean"], std=content["std"]),
        ema=content["ema"],
        model=content["model"],
        step=int(header["step"]),
        optimizer=content["optimizer"],
        starts=Starts(**content["starts"]) if content.get("starts") else None,
    )
