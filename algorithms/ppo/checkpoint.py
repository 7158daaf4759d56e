"""Complete training states as one safe file.

A state is a tree of dicts, lists and tuples with tensors, NumPy arrays, strings and plain numbers
at the leaves. NumPy arrays are stored as tensors under a marker key, so that the file loads with
``weights_only`` and nothing in it can run code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from algorithms.ppo.policy import read_safe, write_atomic

STATE_FILE = "state.pt"
FORMAT = "parc-ray/tracker-checkpoint"
VERSION = 1

_ARRAY = "__numpy__"
_PLAIN = (str, int, float, bool, bytes, type(None))


def encode(tree: Any, path: str = "state") -> Any:
    """Turn a state into tensors and plain values.

    Args:
        tree: the state.
        path: where in the state we are, for messages.

    Raises:
        TypeError: a leaf of another type; the message says where.
    """
    if isinstance(tree, torch.Tensor):
        return tree.detach().cpu()
    if isinstance(tree, np.ndarray):
        if tree.dtype.kind not in "biuf":
            raise TypeError(f"{path}: array of dtype {tree.dtype} cannot be stored safely")
        return {_ARRAY: torch.from_numpy(np.ascontiguousarray(tree)), "shape": list(tree.shape)}
    if isinstance(tree, np.generic):
        return tree.item()
    if isinstance(tree, dict):
        return {encode(k): encode(v, f"{path}.{k}") for k, v in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(encode(v, f"{path}[{i}]") for i, v in enumerate(tree))
    if type(tree) in _PLAIN:
        return tree
    raise TypeError(
        f"{path}: {type(tree).__name__} cannot be stored; allowed are tensors, arrays,"
        " numbers, strings, dicts, lists and tuples"
    )


def decode(tree: Any) -> Any:
    """Inverse of :func:`encode`."""
    if isinstance(tree, dict):
        if _ARRAY in tree:
            return tree[_ARRAY].numpy().reshape(tree["shape"])
        return {k: decode(v) for k, v in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(decode(v) for v in tree)
    return tree


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Write ``state`` atomically to ``path``."""
    write_atomic(path, {"format": FORMAT, "version": VERSION, "state": encode(state)})


def load_state(path: Path) -> dict[str, Any]:
    """Read a file of :func:`save_state`.

    Raises:
        InputError: missing, unsafe, of another kind, or newer than this program.
    """
    return decode(read_safe(path, FORMAT, VERSION)["state"])
