"""Checks of config fields: one line that names field, value and what is allowed."""

from __future__ import annotations

from parc_ray.errors import InputError


def check_field(ok: bool, owner: object, name: str, allowed: str) -> None:
    """Raise a one-line ``InputError`` naming the field of ``owner`` unless ``ok``."""
    if not ok:
        value = getattr(owner, name)
        raise InputError(
            f"{type(owner).__name__}.{name}: {value!r} is out of range; allowed: {allowed}; "
            "change this config key"
        )


def check_range(owner: object, name: str) -> None:
    """Check that a (low, high) field is ordered."""
    low, high = getattr(owner, name)
    check_field(low <= high, owner, name, "(low, high) with low <= high")
