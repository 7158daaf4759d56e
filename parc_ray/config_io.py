"""Configuration dataclasses to plain data and back: YAML files, fingerprints, differences.

Works on any tree of frozen dataclasses whose leaves are numbers, strings, booleans, ``None``,
``Literal`` values, and tuples or string-keyed dictionaries of those.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import math
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from parc_ray.errors import InputError

T = TypeVar("T")
_SCALARS = (bool, int, float, str)


def to_plain(value: Any) -> Any:
    """Turn a config value into dictionaries, lists and scalars, ready for YAML or JSON.

    Raises:
        TypeError: a leaf that is no configuration value (a programming error).
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no infinity; ``from_plain`` reads it back
    if value is None or isinstance(value, _SCALARS):
        return value
    raise TypeError(f"{type(value).__name__} is not a configuration value")


def from_plain(cls: type[T], data: Any, where: str = "config") -> T:
    """Build dataclass ``cls`` from plain data; missing keys keep their defaults.

    Args:
        cls: dataclass to build.
        data: mapping of field names to plain values.
        where: dotted path of ``data``, for messages.

    Raises:
        InputError: an unknown key (the nearest valid name is given), a value of a wrong type, or
            a value that the dataclass rejects.
    """
    if not isinstance(data, Mapping):
        raise InputError(f"{where}: {data!r} is not a section; allowed are keys with values")
    hints = typing.get_type_hints(cls)
    names = [f.name for f in dataclasses.fields(typing.cast(Any, cls)) if f.init]
    for key in data:
        if key not in names:
            raise InputError(unknown_name(f"{where}.{key}", str(key), names, "key"))
    values = {key: _build(hints[key], item, f"{where}.{key}") for key, item in data.items()}
    try:
        return cls(**values)
    except InputError:
        raise
    except (ValueError, TypeError) as error:
        raise InputError(f"{where}: {error}") from error


def unknown_name(where: str, name: str, allowed: Iterable[str], what: str) -> str:
    """One line that says a name is unknown, which is nearest, and what is allowed."""
    options = sorted(allowed)
    near = difflib.get_close_matches(name, options, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    shown = ", ".join(options[:20]) + (", ..." if len(options) > 20 else "")
    return f"{where}: unknown {what}; {hint}allowed: {shown}"


def _build(kind: Any, value: Any, where: str) -> Any:
    """Check and convert one value to the annotated type ``kind``."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin is typing.Annotated:
        return _build(args[0], value, where)
    if origin in (typing.Union, types.UnionType):
        return _build_union(args, value, where)
    if origin is typing.Literal:
        if value not in args:
            allowed = ", ".join(str(a) for a in args)
            raise InputError(f"{where}: {value!r} is not a choice; allowed: {allowed}")
        return value
    if origin is tuple:
        return _build_tuple(args, value, where)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise InputError(f"{where}: {value!r} is not a table; allowed are names with values")
        return {str(k): _build(args[1], v, f"{where}.{k}") for k, v in value.items()}
    if dataclasses.is_dataclass(kind):
        return from_plain(typing.cast(Any, kind), value, where)
    return _build_scalar(kind, value, where)


def _build_union(args: tuple[Any, ...], value: Any, where: str) -> Any:
    """First member of a union that accepts ``value``; ``None`` is matched exactly."""
    if value is None and type(None) in args:
        return None
    members = [a for a in args if a is not type(None)]
    for member in members[:-1]:
        try:
            return _build(member, value, where)
        except InputError:
            continue
    return _build(members[-1], value, where)


def _build_tuple(args: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise InputError(f"{where}: {value!r} is not a list; allowed is a list of values")
    if len(args) == 2 and args[1] is Ellipsis:
        kinds: tuple[Any, ...] = (args[0],) * len(value)
    else:
        kinds = args
    if len(kinds) != len(value):
        raise InputError(f"{where}: {len(value)} values given; allowed is exactly {len(kinds)}")
    pairs = zip(kinds, value, strict=True)
    return tuple(_build(k, v, f"{where}.{i}") for i, (k, v) in enumerate(pairs))


def _build_scalar(kind: Any, value: Any, where: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is float and isinstance(value, str):  # YAML reads 1e-4 (no dot) as a string
        try:
            return float(value)
        except ValueError:
            pass
    if kind is Path and isinstance(value, str):
        return Path(value)
    if isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool):
        return value
    raise InputError(f"{where}: {value!r} is not of type {kind.__name__}; correct the value")


def to_yaml(config: Any) -> str:
    """Text of a config in field order; ``from_yaml`` gives an equal config back."""
    return yaml.safe_dump(to_plain(config), sort_keys=False, allow_unicode=True, width=100)


def from_yaml(cls: type[T], text: str, where: str = "config") -> T:
    """Read a config from YAML text.

    Raises:
        InputError: text that is not YAML, or what ``from_plain`` raises.
    """
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"{where}: not a YAML file ({error}); correct the syntax") from error
    return from_plain(cls, {} if data is None else data, where)


def canonical_json(value: Any) -> str:
    """Compact JSON with sorted keys: equal values give equal text."""
    return json.dumps(to_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def config_hash(value: Any) -> str:
    """SHA-256 (hex) of the canonical JSON of a config, a section or plain data."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Leaves of a plain tree by dotted path, for example ``{"generator.steps": 100}``."""
    plain = to_plain(value)
    if isinstance(plain, dict) and plain:
        items: Iterable[tuple[str, Any]] = plain.items()
    elif isinstance(plain, list) and any(isinstance(item, (dict, list)) for item in plain):
        items = ((str(index), item) for index, item in enumerate(plain))
    else:
        return {prefix: plain}
    leaves: dict[str, Any] = {}
    for key, item in items:
        leaves.update(flatten(item, f"{prefix}.{key}" if prefix else key))
    return leaves


def differences(old: Any, new: Any) -> list[str]:
    """What changed between two trees, one ``"path: old -> new"`` per leaf."""
    before, after = flatten(old), flatten(new)
    lines = []
    for key in [*before, *(k for k in after if k not in before)]:
        if key not in after:
            lines.append(f"{key}: {before[key]!r} -> (absent)")
        elif key not in before:
            lines.append(f"{key}: (absent) -> {after[key]!r}")
        elif before[key] != after[key]:
            lines.append(f"{key}: {before[key]!r} -> {after[key]!r}")
    return lines
