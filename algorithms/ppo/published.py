"""Weights of the published trackers under our names.

The published file holds an actor and a critic (linear layers, 2048-1024-512 for PARC's humanoid)
and the running mean and deviation of the observations; what the files call them is not known here
for certain. So linear layers are recognised by their sizes and by the word ``actor`` or ``critic``
in their names (the output layers by their sizes alone), and statistics by their length and by
``mean`` and ``std`` or ``var``. What is not unmistakable is refused, and a map from our names to
theirs decides. Unverified on the authors' files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from algorithms.ppo.networks import NetSpec
from algorithms.ppo.policy import MlpPolicy
from parc_ray.errors import InputError

PUBLISHED_STD = 0.05
"""Exploration deviation of the published policies, which a file need not hold."""
PUBLISHED_SAMPLES = 3e8
"""Samples after which the published statistics stop changing."""
_MEAN, _STD, _VAR = "normaliser.mean", "normaliser.std", "normaliser.var"


def wanted_names(spec: NetSpec) -> dict[str, tuple[int, ...]]:
    """Our names of everything that a published file must hold, with shapes."""
    out: dict[str, tuple[int, ...]] = {}
    for head, inputs, outputs in (
        ("actor", spec.actor_dim, spec.action_dim),
        ("critic", spec.obs_dim, 1),
    ):
        sizes = (inputs, *spec.hidden)
        for k in range(len(spec.hidden)):
            out[f"{head}.trunk.layers.{k}.weight"] = (sizes[k + 1], sizes[k])
            out[f"{head}.trunk.layers.{k}.bias"] = (sizes[k + 1],)
        out[f"{head}.out.weight"] = (outputs, sizes[-1])
        out[f"{head}.out.bias"] = (outputs,)
    return out | {_MEAN: (spec.obs_dim,), _STD: (spec.obs_dim,)}


def rename(
    theirs: Mapping[str, Tensor], spec: NetSpec, names: Mapping[str, str] | None = None
) -> MlpPolicy:
    """A policy of ours with the published weights, the critic's included.

    Args:
        theirs: tensors by their names.
        spec: sizes of the networks.
        names: their name by ours, for what is not to be recognised.

    Raises:
        InputError: a tensor is missing or has another shape; the first is named.
    """
    wanted, given = wanted_names(spec), dict(names or {})
    allowed = {*wanted, _VAR, "log_std"}
    unknown = sorted(set(given) - allowed)
    if unknown:
        raise InputError(
            f"map: {unknown[0]!r} is no tensor of the tracker; names are like "
            f"{next(iter(wanted))!r}; correct the map."
        )
    source = _recognise(theirs, spec) | given
    if _VAR in given or (_VAR in source and _STD not in source):
        wanted[_VAR] = wanted.pop(_STD)
    found: dict[str, Tensor] = {}
    for ours, shape in wanted.items():
        if ours not in source:
            raise InputError(
                f"weights: none is recognised as {ours!r} {shape}; name it in a map, or choose "
                "the character of the file."
            )
        found[ours] = _tensor(theirs, source[ours], ours, shape)
    std = found.pop(_STD, None)
    variance = found.pop(_VAR) if std is None else std.square()
    log_std = torch.full((spec.action_dim,), math.log(PUBLISHED_STD))
    if "log_std" in source:
        log_std = _tensor(theirs, source["log_std"], "log_std", (spec.action_dim,))
    return MlpPolicy.from_state(
        spec,
        {
            **{k: v for k, v in found.items() if k != _MEAN},
            _MEAN: found[_MEAN].double(),
            _VAR: variance.double(),
            "normaliser.count": torch.tensor(PUBLISHED_SAMPLES, dtype=torch.float64),
            "log_std": log_std,
        },
    )


def _tensor(theirs: Mapping[str, Tensor], name: str, ours: str, shape: tuple[int, ...]) -> Tensor:
    if name not in theirs:
        raise InputError(f"map: the file has no {name!r}; correct the map.")
    value = theirs[name]
    if tuple(value.shape) != shape:
        raise InputError(
            f"weights: {name} has shape {tuple(value.shape)}; {shape} is needed for {ours}; choose "
            "the character of the file."
        )
    if not bool(torch.isfinite(value).all()):
        raise InputError(f"weights: {name} holds numbers that are not finite; give another file.")
    return value.detach().float().clone()


def _recognise(theirs: Mapping[str, Tensor], spec: NetSpec) -> dict[str, str]:
    """Their name by ours, for every part of which there is exactly one candidate."""
    found: dict[str, str] = {}
    for ours, shape in wanted_names(spec).items():
        head, _, rest = ours.partition(".")
        if head == "normaliser" or rest.endswith("bias"):
            continue
        names = [n for n, v in theirs.items() if tuple(v.shape) == shape and n.endswith("weight")]
        if rest.startswith("trunk") or len(names) > 1:
            names = [n for n in names if head in n.lower()]
        bias = [n.removesuffix("weight") + "bias" for n in names]
        if len(names) == 1 and bias[0] in theirs:
            found[ours] = names[0]
            found[ours.removesuffix("weight") + "bias"] = bias[0]
    vectors = [n for n, v in theirs.items() if tuple(v.shape) == (spec.obs_dim,)]
    for ours, word in ((_MEAN, "mean"), (_STD, "std"), (_VAR, "var")):
        names = [n for n in vectors if word in n.rsplit(".", 1)[-1].lower()]
        if len(names) == 1 and not (ours == _VAR and _STD in found):
            found[ours] = names[0]
    spread = [
        n
        for n, v in theirs.items()
        if tuple(v.shape) == (spec.action_dim,) and "logstd" in n.lower().replace("_", "")
    ]
    if len(spread) == 1:
        found["log_std"] = spread[0]
    return found
