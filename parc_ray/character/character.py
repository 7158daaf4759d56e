"""A character: skeleton, shapes and control figures, read from an MJCF and a YAML beside it.

The MJCF describes bodies, joints and shapes and loads in MuJoCo as it is; the YAML holds what it
cannot say. Another character is another pair of files and no code.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from parc_ray.character.geometry import Geom, body_masses, lowest_point
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.character.mjcf import MjcfBody, merge_hinges, parse_mjcf
from parc_ray.character.skeleton import Skeleton
from parc_ray.errors import InputError

_ASSETS = Path(__file__).parent / "assets"
_SPHERICAL_ACTION_MARGIN = 1.2
_HINGE_ACTION_SHARE = 0.7
_TOP_KEYS = {"name", "key_bodies", "feet", "hands", "joints", "bodies"}
_JOINT_KEYS = {"kp", "kd", "effort", "armature", "limits_deg"}
_BODY_KEYS = {"reward_weight", "termination_m"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Character:
    """Everything the platform knows about a character. B bodies, J joints, D dofs.

    The humanoid's figures are those of the published code.
    """

    name: str
    """Name of the character."""
    skeleton: Skeleton
    """Kinematic tree."""
    geoms: tuple[Geom, ...]
    """Collision shapes, by body."""
    body_masses: Tensor
    """(B,) kg."""
    mjcf_xml: str
    """The MJCF as text, three hinges of one body merged to a ball joint."""
    key_bodies: tuple[int, ...]
    """Bodies whose positions are tracked (hands and feet of the humanoid)."""
    feet: tuple[int, ...]
    """Bodies that stand."""
    hands: tuple[int, ...]
    """Bodies that grasp ledges."""
    mirror_bodies: tuple[int, ...]
    """For each body the one on the other side: "left" and "right" in the name exchanged."""
    kp: Tensor
    """(D,) N m/rad, proportional gain."""
    kd: Tensor
    """(D,) N m s/rad, derivative gain."""
    effort: Tensor
    """(D,) N m, torque limit."""
    armature: Tensor
    """(D,) kg m^2, rotor inertia."""
    joint_weights: Tensor
    """(J,) weight of each joint in the tracking reward."""
    termination_distance: Tensor
    """(J,) m, root-relative distance from the reference at which tracking has failed."""
    action_scale: Tensor
    """(D,) rad per unit of action: 1.2 max|limit| of a spherical joint, 0.7 range of a hinge."""
    action_offset: Tensor
    """(D,) rad, target at action zero: 0 for spherical joints, mid-range for hinges."""
    stand_height: float
    """m, height of the root above the soles at zero joint rotation."""
    digest: str
    """SHA-256 (hex) of the two files."""


def load_character(name_or_path: str | Path = "humanoid") -> Character:
    """Load a character.

    Args:
        name_or_path: name of a packaged character ("humanoid"), or path of an MJCF file (.xml)
            that has a .yaml of the same stem beside it.

    Returns:
        The character; the same object for the same path within a process.

    Raises:
        InputError: where a file is missing or says something that is not understood.
    """
    return _load(_find(name_or_path))


def character_files(name_or_path: str | Path = "humanoid") -> tuple[bytes, bytes]:
    """Content of a character's MJCF and YAML; arguments and errors as :func:`load_character`."""
    path = _find(name_or_path)
    return path.read_bytes(), path.with_suffix(".yaml").read_bytes()


def _find(name_or_path: str | Path) -> Path:
    path = Path(name_or_path)
    if path.suffix != ".xml":
        path = _ASSETS / f"{name_or_path}.xml"
        if not path.is_file():
            known = ", ".join(sorted(p.stem for p in _ASSETS.glob("*.xml")))
            raise InputError(
                f"character {str(name_or_path)!r} is unknown; allowed are {known} or the path "
                "of an .xml file"
            )
    for file in (path, path.with_suffix(".yaml")):
        if not file.is_file():
            raise InputError(f"{file}: no such file; a character is an .xml and a .yaml beside it")
    return path.resolve()


@lru_cache(maxsize=16)
def _load(path: Path) -> Character:
    mjcf_xml = path.read_text(encoding="utf-8")
    yaml_text = path.with_suffix(".yaml").read_text(encoding="utf-8")
    digest = hashlib.sha256((mjcf_xml + "\0" + yaml_text).encode()).hexdigest()
    return build_character(mjcf_xml, yaml_text, source=path.stem, digest=digest)


def build_character(mjcf_xml: str, yaml_text: str, source: str, digest: str) -> Character:
    """Assemble a character from the text of its two files; see :func:`load_character`."""
    bodies = parse_mjcf(mjcf_xml, f"{source}.xml")
    settings = _Settings(yaml_text, f"{source}.yaml", bodies)
    skeleton = _skeleton(bodies, settings)
    geoms = tuple(geom for body in bodies for geom in body.geoms)
    scale, offset = _action_range(skeleton)
    origin = torch.zeros(3), torch.tensor([0.0, 0.0, 0.0, 1.0])
    rest = fk_from_dof(skeleton, *origin, torch.zeros(skeleton.num_dofs))
    return Character(
        name=str(settings.data.get("name", source)),
        skeleton=skeleton,
        geoms=geoms,
        body_masses=body_masses(geoms, skeleton.num_bodies),
        mjcf_xml=merge_hinges(mjcf_xml),
        key_bodies=settings.body_list("key_bodies"),
        feet=settings.body_list("feet"),
        hands=settings.body_list("hands"),
        mirror_bodies=_mirror_bodies(skeleton.body_names),
        kp=settings.per_dof("kp"),
        kd=settings.per_dof("kd"),
        effort=settings.per_dof("effort"),
        armature=settings.per_dof("armature"),
        joint_weights=settings.per_joint("reward_weight"),
        termination_distance=settings.per_joint("termination_m"),
        action_scale=scale,
        action_offset=offset,
        stand_height=-lowest_point(geoms, *rest),
        digest=digest,
    )


class _Settings:
    """The YAML, checked against the bodies and joints of the MJCF."""

    def __init__(self, text: str, source: str, bodies: list[MjcfBody]) -> None:
        self.source = source
        self.bodies = bodies
        try:
            data = yaml.safe_load(text)
        except yaml.YAMLError as err:
            raise InputError(f"{source}: not YAML ({err})") from err
        if not isinstance(data, dict):
            raise InputError(f"{source}: a mapping with {', '.join(sorted(_TOP_KEYS))} is needed")
        self.data: dict[str, Any] = data
        self._check_keys(data, _TOP_KEYS, "top level")
        joints = {b.joint_name for b in bodies if b.joint_name}
        self._check_table("joints", joints, _JOINT_KEYS)
        self._check_table("bodies", {b.name for b in bodies[1:]}, _BODY_KEYS)

    def _check_keys(self, table: dict[str, Any], allowed: set[str], where: str) -> None:
        for key in table:
            if key not in allowed:
                raise InputError(
                    f"{self.source}: {where} has unknown key {key!r}; allowed are "
                    f"{', '.join(sorted(allowed))}"
                )

    def _check_table(self, name: str, rows: set[str], keys: set[str]) -> None:
        table = self.data.get(name)
        if not isinstance(table, dict):
            raise InputError(f"{self.source}: table {name!r} is missing")
        self._check_keys(table, rows, name)
        for row in sorted(rows):
            if not isinstance(table.get(row), dict):
                raise InputError(f"{self.source}: {name} has no entry {row!r}; add one")
            self._check_keys(table[row], keys, f"{name}.{row}")

    def value(self, table: str, row: str, key: str) -> Any:
        """One entry of a table; InputError where it is missing."""
        if key not in self.data[table][row]:
            raise InputError(f"{self.source}: {table}.{row}.{key} is missing; add it")
        return self.data[table][row][key]

    def number(self, table: str, row: str, key: str) -> float:
        """One entry as a finite number >= 0."""
        value = self.value(table, row, key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
            raise InputError(f"{self.source}: {table}.{row}.{key}={value!r}; a number >= 0 needed")
        return float(value)

    def per_dof(self, key: str) -> Tensor:
        """(D,) values of the joints table, the same for the three axes of a spherical joint."""
        values: list[float] = []
        for body in self.bodies:
            if body.joint_name:
                count = 3 if body.kind == "spherical" else 1
                values += [self.number("joints", body.joint_name, key)] * count
        return torch.tensor(values)

    def per_joint(self, key: str) -> Tensor:
        """(J,) values of the bodies table."""
        return torch.tensor([self.number("bodies", b.name, key) for b in self.bodies[1:]])

    def body_list(self, key: str) -> tuple[int, ...]:
        """Body indices of a list of names."""
        names = [b.name for b in self.bodies]
        listed = self.data.get(key)
        if not isinstance(listed, list) or any(n not in names for n in listed):
            raise InputError(
                f"{self.source}: {key} must be a list of body names: {', '.join(names)}"
            )
        return tuple(names.index(n) for n in listed)

    def limits(self, body: MjcfBody) -> list[tuple[float, float]]:
        """(lower, upper) rad per dof: the MJCF's where it has them, else limits_deg."""
        if body.limits:
            return body.limits
        table = self.value("joints", body.joint_name, "limits_deg")
        rows = torch.as_tensor(table, dtype=torch.float64)
        if rows.shape != (3, 2) or not bool((rows[:, 0] < rows[:, 1]).all()):
            raise InputError(
                f"{self.source}: joints.{body.joint_name}.limits_deg must be three pairs "
                "[lower, upper] with lower < upper"
            )
        return [(math.radians(lo), math.radians(hi)) for lo, hi in rows.tolist()]


def _skeleton(bodies: list[MjcfBody], settings: _Settings) -> Skeleton:
    slices: list[slice] = []
    names: list[str] = []
    limits: list[tuple[float, float]] = []
    for body in bodies:
        start = len(names)
        if body.kind == "spherical":
            names += [f"{body.joint_name}_{axis}" for axis in "xyz"]
            limits += settings.limits(body)
        elif body.kind == "hinge":
            names.append(body.joint_name)
            limits += body.limits
        slices.append(slice(start, len(names)))
    offsets = torch.tensor([b.pos for b in bodies])
    offsets[0] = 0.0
    rest_rot = torch.tensor([b.quat for b in bodies])
    rest_rot[0] = torch.tensor([0.0, 0.0, 0.0, 1.0])
    return Skeleton(
        body_names=tuple(b.name for b in bodies),
        parents=tuple(b.parent for b in bodies),
        offsets=offsets,
        rest_rot=rest_rot,
        joint_kinds=tuple(b.kind for b in bodies),
        dof_slices=tuple(slices),
        hinge_axes=torch.tensor([b.axis for b in bodies]),
        dof_limits=torch.tensor(limits).reshape(-1, 2),
        dof_names=tuple(names),
    )


def _action_range(skeleton: Skeleton) -> tuple[Tensor, Tensor]:
    """Scale and offset (D,) of normalised actions from the joint limits (published code)."""
    scale = torch.zeros(skeleton.num_dofs)
    offset = torch.zeros(skeleton.num_dofs)
    for kind, dofs in zip(skeleton.joint_kinds, skeleton.dof_slices, strict=True):
        limits = skeleton.dof_limits[dofs]
        if kind == "spherical":
            scale[dofs] = _SPHERICAL_ACTION_MARGIN * limits.abs().max()
        elif kind == "hinge":
            scale[dofs] = _HINGE_ACTION_SHARE * (limits[:, 1] - limits[:, 0])
            offset[dofs] = limits.mean(-1)
    return scale, offset


def _mirror_bodies(names: tuple[str, ...]) -> tuple[int, ...]:
    """Index of each body's counterpart, itself where there is none."""

    def other(name: str) -> str:
        swapped = name.replace("left", "\0").replace("right", "left").replace("\0", "right")
        return swapped if swapped in names else name

    return tuple(names.index(other(name)) for name in names)
