"""Joint maps: which joint of a foreign skeleton moves which body, as a small YAML.

::

    name: cmu
    up: y                       # axis of the file that points up
    scale: leg                  # from the lengths of the legs, or metres per unit of the file
    fps: 120                    # only for files that do not tell
    feet: ground                # at rest soles are level; or "shin": square to the shins
    bodies:                     # role or body of the character: joints of the file, the first
      pelvis: root              # that exists is taken; /.../ is a regular expression
      left_foot: [LeftFoot, "/.*:LeftFoot/"]
    optional: [head]            # bodies that may be missing from the file
    end_effectors: [left_foot]  # bodies held at their places; default: all mapped feet and hands
    rest:                       # local rotation vectors in degrees (file axes) of an upright pose,
      LeftUpLeg: [0, 0, 180]    # where zero rotations are not one

Roles are ``pelvis torso head`` and ``left_``/``right_`` with ``thigh shin foot upper_arm lower_arm
hand``; see :mod:`parc_ray.data.retarget.roles`.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from parc_ray.character.character import Character
from parc_ray.data.importers.raw import frame_rate
from parc_ray.data.retarget.roles import ROLES, body_roles
from parc_ray.data.retarget.source import UpAxis
from parc_ray.errors import InputError

MAPS = Path(__file__).parent / "maps"
"""Directory of the maps that come with the package."""
FILE_NAME = "joint_map.yaml"
"""A map of this name beside a motion file is used instead of the packaged one."""

_KEYS = {"name", "up", "scale", "fps", "feet", "bodies", "optional", "end_effectors", "rest"}
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class JointMap:
    """Which joint of a source skeleton moves which body of a character."""

    name: str
    """Name of the map, for messages."""
    bodies: Mapping[str, tuple[str, ...]]
    """Role or body name to alternatives of joint names; /.../ is a regular expression."""
    optional: frozenset[str] = frozenset()
    """Roles or bodies whose joints may be missing."""
    end_effectors: tuple[str, ...] = ()
    """Roles or bodies that inverse kinematics holds; empty: mapped feet and hands."""
    up: UpAxis = "z"
    """Axis of the file that points up."""
    scale: float | None = None
    """Metres per unit of the file; None scales so that the legs are as long as the character's."""
    feet: Literal["ground", "shin"] = "ground"
    """Whether the soles are level in the rest pose, or square to the shins wherever these point."""
    fps: float | None = None
    """Frames per second, for files that do not tell."""
    rest: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    """Joint name to rotation vector (degrees, axes of the file) of an upright pose."""

    def bodies_of(self, character: Character) -> dict[int, tuple[str, ...]]:
        """Alternatives of joint names for each body of ``character`` that the map speaks of.

        Names of bodies go before roles; roles that the character lacks are left out.
        """
        by_role, names = body_roles(character), character.skeleton.body_names
        found = {by_role[key]: alt for key, alt in self.bodies.items() if key in by_role}
        found |= {names.index(key): alt for key, alt in self.bodies.items() if key in names}
        if 0 not in found:
            raise InputError(
                f"joint map {self.name}: bodies has no entry for the root {names[0]!r} (role "
                f"pelvis) of character {character.name!r}; one is needed; add it"
            )
        return dict(sorted(found.items()))

    def resolve(
        self, joint_names: tuple[str, ...], character: Character, where: str
    ) -> dict[int, int]:
        """Joint index for each mapped body of the character.

        Args:
            joint_names: of the source skeleton.
            character: the target.
            where: file, for messages.

        Returns:
            Body index to joint index, by body.

        Raises:
            InputError: a joint is missing (and not optional); the nearest names are told.
        """
        by_role, names = body_roles(character), character.skeleton.body_names
        role_of = {body: role for role, body in by_role.items()}
        found: dict[int, int] = {}
        for body, alternatives in self.bodies_of(character).items():
            joint = _first(alternatives, joint_names)
            if joint is not None:
                found[body] = joint
            elif not {names[body], role_of.get(body)} & self.optional:
                near = difflib.get_close_matches(alternatives[0], joint_names, 3, 0.3)
                near = [name[:40] for name in near or joint_names[:6]]
                raise InputError(
                    f"{where}: no joint {' or '.join(alternatives)} for body {names[body]!r} "
                    f"(joint map {self.name}); near names: {', '.join(near)}; correct the map or "
                    f"put a {FILE_NAME} beside the file"
                )
        return found

    def held(self, character: Character, mapped: Mapping[int, int]) -> tuple[int, ...]:
        """Bodies that inverse kinematics holds, mapped ones only."""
        by_role, names = body_roles(character), character.skeleton.body_names
        chosen = [*character.feet, *character.hands]
        if self.end_effectors:
            chosen = [
                names.index(key) if key in names else by_role[key]
                for key in self.end_effectors
                if key in names or key in by_role
            ]
        return tuple(b for b in dict.fromkeys(chosen) if b in mapped)


def _first(alternatives: tuple[str, ...], joint_names: tuple[str, ...]) -> int | None:
    """Index of the joint that the first fitting alternative names; case does not matter."""
    lower = [name.lower() for name in joint_names]
    for wanted in alternatives:
        if len(wanted) > 2 and wanted.startswith("/") and wanted.endswith("/"):
            pattern = re.compile(wanted[1:-1], re.IGNORECASE)
            for index, name in enumerate(joint_names):
                if pattern.fullmatch(name):
                    return index
        elif wanted.lower() in lower:
            return lower.index(wanted.lower())
    return None


def load_joint_map(name_or_path: str | Path, beside: Path | None = None) -> JointMap:
    """Read a joint map.

    Args:
        name_or_path: name of a packaged map ("cmu", "smpl") or path of a YAML file.
        beside: motion file; a ``joint_map.yaml`` in its directory takes the place of a packaged
            map.

    Raises:
        InputError: missing file, not YAML, unknown keys or roles, values of the wrong kind.
    """
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml"):
        own = beside.parent / FILE_NAME if beside is not None else None
        path = own if own is not None and own.is_file() else MAPS / f"{name_or_path}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in MAPS.glob("*.yaml")))
        raise InputError(
            f"{path}: no such joint map; a YAML file or one of {known} is needed; check the path"
        )
    if path.stat().st_size > _MAX_BYTES:
        raise InputError(
            f"{path}: larger than a joint map can be; 1 MiB is allowed; check the path"
        )
    return parse_joint_map(path.read_bytes(), str(path))


def parse_joint_map(text: str | bytes, where: str) -> JointMap:
    """The map that YAML ``text`` describes; ``where`` names it in messages. Errors as ``load``."""
    try:
        data: Any = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{where}: not YAML ({reason}); see docs/data.md; correct it") from error
    if not isinstance(data, dict) or not isinstance(data.get("bodies"), dict):
        raise InputError(f"{where}: a mapping with a table 'bodies' is needed; see docs/data.md")
    for key in data:
        if key not in _KEYS:
            raise _wrong(where, str(key), "unknown key", ", ".join(sorted(_KEYS)))
    up = data.get("up", "z")
    if up not in ("x", "y", "z"):
        raise _wrong(where, "up", repr(up), "x, y or z")
    feet = data.get("feet", "ground")
    if feet not in ("ground", "shin"):
        raise _wrong(where, "feet", repr(feet)[:80], "ground or shin")
    scale, fps = data.get("scale", "leg"), data.get("fps")
    bodies = {str(k): _names(v, where, f"bodies.{k}") for k, v in data["bodies"].items()}
    return JointMap(
        name=str(data.get("name", Path(where).stem)),
        bodies=bodies,
        optional=frozenset(_listed(data, "optional", bodies, where)),
        end_effectors=_listed(data, "end_effectors", bodies, where),
        up=up,
        scale=None if scale == "leg" else _positive(scale, "scale", where),
        feet=feet,
        fps=None if fps is None else frame_rate(fps, f"{where}: fps"),
        rest=_rest(data.get("rest", {}), where),
    )


def _wrong(where: str, field_name: str, problem: str, allowed: str) -> InputError:
    return InputError(f"{where}: {field_name}: {problem}; allowed: {allowed}; correct the map")


def _names(value: Any, where: str, field_name: str) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        raise _wrong(where, field_name, repr(value)[:80], "a joint name or a list of them")
    for name in names:
        if len(name) > 2 and name.startswith("/") and name.endswith("/"):
            try:
                re.compile(name[1:-1])
            except re.error as error:
                raise _wrong(where, field_name, f"{name} ({error})", "a pattern") from error
    return tuple(names)


def _listed(
    data: Mapping[str, Any], key: str, bodies: Mapping[str, Any], where: str
) -> tuple[str, ...]:
    value = data.get(key, [])
    if not isinstance(value, list) or any(entry not in bodies for entry in value):
        raise _wrong(where, key, repr(value)[:80], f"a list of {', '.join(bodies)}")
    return tuple(value)


def _positive(value: Any, field_name: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < 1e6:
        raise _wrong(where, field_name, repr(value)[:80], "leg, or metres per unit > 0")
    return float(value)


def _rest(value: Any, where: str) -> dict[str, tuple[float, float, float]]:
    if not isinstance(value, dict):
        raise _wrong(where, "rest", repr(value)[:80], "joint: [x, y, z] degrees")
    rest: dict[str, tuple[float, float, float]] = {}
    for joint, row in value.items():
        numbers = isinstance(row, list) and all(isinstance(v, int | float) for v in row)
        if not numbers or len(row) != 3 or not all(math.isfinite(v) for v in row):
            raise _wrong(where, f"rest.{joint}", repr(row)[:80], "[x, y, z] degrees")
        rest[str(joint)] = (float(row[0]), float(row[1]), float(row[2]))
    return rest


__all__ = ["FILE_NAME", "MAPS", "ROLES", "JointMap", "load_joint_map", "parse_joint_map"]
