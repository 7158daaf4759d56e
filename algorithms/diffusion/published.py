"""Weights of the published generators under our names.

The published network has the layers of ours, so its weights carry over one by one. Its encoder is
PyTorch's own (``....layers.0.self_attn.in_proj_weight``); the other parts are recognised by what
they are: convolutions by their order, MLPs by the sizes of their two layers, the indicator by its
two rows. Names need not be known for that, and a file whose parts are not unmistakable is refused;
then a map from our names to theirs decides. Unverified on the authors' files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from algorithms.diffusion.config import DiffusionConfig
from algorithms.diffusion.denoiser import Denoiser
from parc_ray.errors import InputError
from parc_ray.motion.features import FeatureStats

_ENCODER = re.compile(
    r"(?:.*\.)?layers\.(\d+)\.(?:self_attn\.)?"
    r"((?:in_proj_|out_proj\.|linear1\.|linear2\.|norm1\.|norm2\.)(?:weight|bias))"
)
_OPTIMIZER = frozenset({"exp_avg", "exp_avg_sq", "step", "max_exp_avg_sq"})


def tensors_of(content: Any, path: str = "") -> dict[str, Tensor]:
    """All tensors in nested dictionaries and lists by dotted path, in the order of the file."""
    if isinstance(content, Tensor):
        return {path: content}
    if isinstance(content, Mapping):
        items = [(str(k), v) for k, v in content.items()]
    elif isinstance(content, list | tuple):
        items = [(str(k), v) for k, v in enumerate(content)]
    else:
        return {}
    found: dict[str, Tensor] = {}
    for key, value in items:
        found |= tensors_of(value, f"{path}.{key}" if path else key)
    return found


def networks(content: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
    """The network's tensors in a file, and those of its running average if it has one.

    They are the groups of tensors that hold an encoder; names with ``ema`` are the average.

    Raises:
        InputError: there is none, or more than one of either.
    """
    everything = {
        name: value
        for name, value in tensors_of(content).items()
        if name.rsplit(".", 1)[-1] not in _OPTIMIZER
    }
    roots: dict[str, None] = {}
    for name in everything:
        match = re.match(r"(.*?)[^.]*\.?layers\.0\.self_attn\.in_proj_weight$", name)
        if match:
            roots[match.group(1)] = None
    if len(roots) == 1:
        return everything, None
    averages = [r for r in roots if "ema" in r.lower()]
    plain = [r for r in roots if r not in averages]
    if len(plain) != 1 or len(averages) > 1:
        raise InputError(
            f"weights: {len(roots)} groups of tensors hold a transformer encoder; one network is "
            "needed, and at most one average with 'ema' in its name; give a file of one generator."
        )

    def below(root: str) -> dict[str, Tensor]:
        others = [r for r in roots if r != root and len(r) > len(root)]
        return {
            name[len(root) :]: value
            for name, value in everything.items()
            if name.startswith(root) and not any(name.startswith(r) for r in others)
        }

    return below(plain[0]), below(averages[0])


def rename(
    theirs: Mapping[str, Tensor],
    config: DiffusionConfig,
    num_features: int,
    names: Mapping[str, str] | None = None,
) -> dict[str, Tensor]:
    """The state dictionary of our denoiser from the published network's.

    Args:
        theirs: tensors by their names.
        config: a profile without any of our devices.
        num_features: F, features of a frame.
        names: their name by ours, for what is not to be recognised.

    Raises:
        InputError: a tensor is missing, has another shape, or is not known; the first is named.
    """
    wanted = Denoiser(config, num_features, config.grid.shape).state_dict()
    given = dict(names or {})
    unknown = sorted(set(given) - set(wanted))
    if unknown:
        raise InputError(
            f"map: {unknown[0]!r} is no weight of the generator; names are like "
            f"{next(iter(wanted))!r}; correct the map."
        )
    taken = set(given.values())
    rest = {name: value for name, value in theirs.items() if name not in taken}
    found = _recognise(rest, config, num_features)
    source = {**found, **given}
    for ours in wanted:
        if ours not in source:
            raise InputError(
                f"weights: none is recognised as {ours!r} {tuple(wanted[ours].shape)}; name it "
                f"in a map, or choose the profile of the file."
            )
        if source[ours] not in theirs:
            raise InputError(f"map: the file has no {source[ours]!r}; correct the map.")
        shape, needed = tuple(theirs[source[ours]].shape), tuple(wanted[ours].shape)
        if shape != needed:
            raise InputError(
                f"weights: {source[ours]} has shape {shape}; {needed} is needed for {ours}; "
                "choose the profile of the file."
            )
    extra = [name for name in theirs if name not in source.values() and not _is_table(name)]
    if extra:
        raise InputError(
            f"weights: {extra[0]} {tuple(theirs[extra[0]].shape)} has no place in the generator "
            f"({len(extra)} such); choose the profile of the file."
        )
    return {ours: theirs[source[ours]].detach().float().clone() for ours in wanted}


def _is_table(name: str) -> bool:
    """Whether a tensor is no weight: tables of sines are made anew."""
    return name.rsplit(".", 1)[-1] not in {"weight", "bias", "in_proj_weight", "in_proj_bias"}


def _recognise(
    theirs: Mapping[str, Tensor], config: DiffusionConfig, num_features: int
) -> dict[str, str]:
    """Their name by our name, for every part that is unmistakable."""
    found: dict[str, str] = {}
    modules: dict[str, tuple[int, ...]] = {}
    for name, value in theirs.items():
        match = _ENCODER.fullmatch(name)
        if match:
            part = match.group(2).replace("in_proj_", "in_proj.")
            found[f"layers.{match.group(1)}.{part}"] = name
        elif name.endswith(".weight"):
            modules[name.removesuffix(".weight")] = tuple(value.shape)
    chosen: dict[str, str] = {}
    convolutions = [m for m, shape in modules.items() if len(shape) == 4]
    chosen |= {f"terrain.cnn.{2 * i}": m for i, m in enumerate(convolutions)}
    flat = {m: shape for m, shape in modules.items() if len(shape) == 2}
    for module in flat:
        if f"{module}.bias" not in theirs:
            chosen["indicator"] = module
    groups: dict[str, list[str]] = {}
    for module in flat:
        if module != chosen.get("indicator"):
            groups.setdefault(module.rpartition(".")[0], []).append(module)
    chosen |= _linear_parts(groups, flat, config.denoiser.width, num_features)
    for ours, module in chosen.items():
        for kind in ("weight", "bias"):
            if f"{module}.{kind}" in theirs:
                found[f"{ours}.{kind}"] = f"{module}.{kind}"
    return found


def _linear_parts(
    groups: Mapping[str, list[str]],
    shapes: Mapping[str, tuple[int, ...]],
    width: int,
    num_features: int,
) -> dict[str, str]:
    """MLPs by where they begin and end, the patch layer as the only single one."""
    ends = {
        (width, width): "time",
        (2, width): "target",
        (num_features, width): "frames_in",
        (width, num_features): "frames_out",
    }
    chosen: dict[str, str] = {}
    single = [m for members in groups.values() if len(members) == 1 for m in members]
    if len(single) == 1:
        chosen["terrain.embed"] = single[0]
    for members in groups.values():
        if len(members) != 2:
            continue
        first, last = members
        part = ends.get((shapes[first][1], shapes[last][0]))
        if part is not None:
            chosen |= {f"{part}.0": first, f"{part}.2": last}
    return chosen


def statistics(
    content: Mapping[str, Any], num_frames: int, num_features: int
) -> FeatureStats | None:
    """Mean and deviation (T, F) found in a file by name and shape, or None.

    Args:
        content: tensors or nested lists; their names end in something with ``mean`` or ``std``.
        num_frames: T.
        num_features: F.
    """
    found: dict[str, Tensor] = {}
    for name, value in _arrays(content).items():
        for kind in ("mean", "std"):
            if kind in name.lower() and tuple(value.shape) == (num_frames, num_features):
                found[kind] = value
    if set(found) != {"mean", "std"}:
        return None
    return FeatureStats(mean=found["mean"], std=found["std"])


def _arrays(content: Any, path: str = "") -> dict[str, Tensor]:
    """Tensors and nested lists of numbers by dotted path."""
    if isinstance(content, Tensor):
        return {path: content.float()}
    if isinstance(content, Mapping):
        found: dict[str, Tensor] = {}
        for key, value in content.items():
            found |= _arrays(value, f"{path}.{key}")
        return found
    if isinstance(content, list):
        try:
            return {path: torch.tensor(content, dtype=torch.float32)}
        except (TypeError, ValueError):
            return {}
    return {}
