"""Dotted keys on a config: checked against what there is before anything starts."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from parc_ray.config import ParcConfig
from parc_ray.config_io import flatten, from_plain, to_plain
from parc_ray.errors import InputError

ANY = "*"
"""Stands for every entry of a list: ``iterations.*.s``."""


def apply_overrides(config: ParcConfig, values: Mapping[str, Any], where: str) -> ParcConfig:
    """A config with some values replaced.

    Args:
        config: where the values start.
        values: dotted key to value; ``*`` in a key stands for every entry of a list.
        where: the file or section the keys come from, for messages.

    Raises:
        InputError: a key that the config does not have (the nearest is named), a section instead
            of a value, or a value that does not fit.
    """
    plain = to_plain(config)
    for key, value in values.items():
        for path in expand(plain, key, where):
            _put(plain, path, value)
    return from_plain(ParcConfig, plain, where)


def expand(plain: Any, key: str, where: str) -> list[list[str]]:
    """Paths of the values that ``key`` stands for.

    Raises:
        InputError: there is none.
    """
    paths = [[]]
    for part in key.split("."):
        paths = [[*path, name] for path in paths for name in _names(_get(plain, path), part)]
        if not paths:
            raise InputError(_unknown(plain, key, where))
    sections = [path for path in paths if isinstance(_get(plain, path), dict)]
    if sections and _get(plain, sections[0]):
        leaves = list(flatten(_get(plain, sections[0])))
        raise InputError(
            f"{where}.{key}: is a section, a single value is needed; for example {key}.{leaves[0]}"
        )
    return paths


def _names(node: Any, part: str) -> list[str]:
    """Names below a node that one part of a key stands for."""
    if isinstance(node, dict):
        return [part] if part in node else []
    if isinstance(node, list):
        names = [str(k) for k in range(len(node))]
        return names if part == ANY else [part] if part in names else []
    return []


def _get(node: Any, path: list[str]) -> Any:
    for name in path:
        node = node[int(name)] if isinstance(node, list) else node[name]
    return node


def _put(node: Any, path: list[str], value: Any) -> None:
    parent = _get(node, path[:-1])
    if isinstance(parent, list):
        parent[int(path[-1])] = value
    else:
        parent[path[-1]] = value


def _unknown(plain: Any, key: str, where: str) -> str:
    """One line that names the nearest key there is."""
    known = list(flatten(plain))
    known += [_starred(name) for name in known if _starred(name) != name]
    near = difflib.get_close_matches(key, dict.fromkeys(known), n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return (
        f"{where}.{key}: the config has no such value; {hint}`parc run --help-config` lists all "
        "of them"
    )


def _starred(key: str) -> str:
    return ".".join(ANY if part.isdigit() else part for part in key.split("."))
