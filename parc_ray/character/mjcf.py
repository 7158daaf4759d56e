"""Read a character from MJCF text with the standard library's XML parser.

Understood: one tree of named bodies under ``worldbody`` with a free root; per body no joint, one
ball, one hinge, or three hinges about x, y and z (merged to a ball, as PARC and MimicKit do);
sphere, capsule and box geoms with density; default classes. Everything else that would change the
kinematics is refused with a message that names it.
"""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from parc_ray.character.geometry import Geom, GeomKind, Quat, Vec3
from parc_ray.character.skeleton import JointKind
from parc_ray.errors import InputError

_ORIENTATIONS = ("euler", "axisangle", "xyaxes", "zaxis")
_REFUSED_TAGS = ("inertial", "frame", "replicate", "attach", "composite", "flexcomp", "include")
_MERGED_HINGES = 3
_MUJOCO_DENSITY = 1000.0
_IDENTITY: Quat = (0.0, 0.0, 0.0, 1.0)
Defaults = dict[str, dict[str, dict[str, str]]]


@dataclass
class MjcfBody:
    """One body as the file describes it.

    Attributes:
        name: name of the body.
        parent: index of the parent in the list, -1 for the root.
        pos: m, in the parent frame.
        quat: xyzw, in the parent frame.
        kind: kind of joint.
        joint_name: name of the joint ("" where there is none).
        axis: unit hinge axis.
        limits: (lower, upper) rad per degree of freedom the file gives limits for.
        geoms: shapes.
    """

    name: str
    parent: int
    pos: Vec3
    quat: Quat
    kind: JointKind
    joint_name: str = ""
    axis: Vec3 = (0.0, 0.0, 0.0)
    limits: list[tuple[float, float]] = field(default_factory=list)
    geoms: list[Geom] = field(default_factory=list)


def parse_mjcf(text: str, source: str) -> list[MjcfBody]:
    """Bodies of the MJCF ``text`` in depth-first order.

    Args:
        text: the XML.
        source: name of the file, for messages.

    Raises:
        InputError: where the file is not MJCF or uses something that is not understood.
    """
    try:
        root = ET.fromstring(text)
    except ET.ParseError as err:
        raise InputError(f"{source}: not XML ({err}); give an MJCF file") from err
    world = root.find("worldbody")
    tops = [] if world is None else world.findall("body")
    if root.tag != "mujoco" or len(tops) != 1:
        raise InputError(
            f"{source}: {len(tops)} bodies under worldbody; exactly one is allowed, the root"
        )
    compiler = root.find("compiler")
    angle = "degree" if compiler is None else compiler.get("angle", "degree")
    reader = _Reader(source, _defaults(root), math.pi / 180 if angle == "degree" else 1.0)
    reader.body(tops[0], parent=-1, childclass="main")
    return reader.bodies


def merge_hinges(text: str) -> str:
    """The MJCF with every three hinges of a body replaced by one ball joint.

    So that a simulator moves the same joints as the skeleton; text without such bodies is
    returned as it is. The limits are kept by the character.
    """
    root = ET.fromstring(text)
    changed = False
    for body in root.iter("body"):
        joints = body.findall("joint")
        if len(joints) != _MERGED_HINGES:
            continue
        changed = True
        name = _common_name([j.attrib for j in joints], body.get("name", ""))
        position = list(body).index(joints[0])
        for joint in joints:
            body.remove(joint)
        ball = ET.Element("joint", {"name": name, "type": "ball", "limited": "false"})
        ball.tail = "\n"
        body.insert(position, ball)
    return ET.tostring(root, encoding="unicode") if changed else text


def _defaults(root: ET.Element) -> Defaults:
    """Attributes per default class and tag, inherited from the enclosing classes."""
    classes: Defaults = {"main": {}}

    def visit(element: ET.Element, inherited: dict[str, dict[str, str]], name: str) -> None:
        mine = {tag: dict(attrs) for tag, attrs in inherited.items()}
        for child in element:
            if child.tag != "default":
                mine.setdefault(child.tag, {}).update(child.attrib)
        classes[name] = mine
        for child in element.findall("default"):
            visit(child, mine, child.get("class", ""))

    for element in root.findall("default"):
        visit(element, {}, element.get("class", "main"))
    return classes


class _Reader:
    """Walks the body tree and collects :class:`MjcfBody`."""

    def __init__(self, source: str, defaults: Defaults, angle_unit: float) -> None:
        self.source = source
        self.defaults = defaults
        self.angle_unit = angle_unit
        self.bodies: list[MjcfBody] = []

    def body(self, element: ET.Element, parent: int, childclass: str) -> None:
        """Append ``element`` and then its children, depth first."""
        name = element.get("name")
        if not name:
            raise InputError(f"{self.source}: a body has no name; every body needs one")
        where = f"{self.source}: body {name}"
        for tag in _REFUSED_TAGS:
            if element.find(tag) is not None:
                raise InputError(
                    f"{where}: <{tag}> is not read; write plain bodies and geoms with density"
                )
        childclass = element.get("childclass", childclass)
        body = MjcfBody(
            name=name,
            parent=parent,
            pos=_vec3(element.attrib, "pos", where),
            quat=_quat(element.attrib, where),
            kind="root" if parent < 0 else "fixed",
        )
        self._joints(body, element, childclass, where)
        index = len(self.bodies)
        for attrs in self._resolved(element, "geom", childclass):
            body.geoms.append(_geom(index, attrs, where))
        self.bodies.append(body)
        for child in element.findall("body"):
            self.body(child, index, childclass)

    def _resolved(self, element: ET.Element, tag: str, childclass: str) -> Iterator[dict[str, str]]:
        for child in element.findall(tag):
            name = child.get("class", childclass)
            if name not in self.defaults:
                raise InputError(f"{self.source}: default class {name!r} is not defined")
            yield {**self.defaults[name].get(tag, {}), **child.attrib}

    def _joints(self, body: MjcfBody, element: ET.Element, childclass: str, where: str) -> None:
        joints = list(self._resolved(element, "joint", childclass))
        kinds = [j.get("type", "hinge") for j in joints]
        if body.kind == "root":
            if (element.find("freejoint") is None) == (kinds != ["free"]):
                raise InputError(f"{where}: the root needs exactly one freejoint and nothing else")
            return
        for joint in joints:
            if any(_floats(joint, "pos", where) or ()):
                raise InputError(f"{where}: joint pos must be 0 0 0; move the body instead")
            if any(_floats(joint, "ref", where) or ()):
                raise InputError(f"{where}: joint ref must be 0; turn the body instead")
        if kinds == ["ball"]:
            body.kind, body.joint_name = "spherical", joints[0].get("name", body.name)
        elif kinds == ["hinge"]:
            body.kind, body.joint_name = "hinge", joints[0].get("name", body.name)
            axis = _vec3(joints[0], "axis", where, (0.0, 0.0, 1.0))
            norm = math.sqrt(sum(a * a for a in axis))
            body.axis = (axis[0] / norm, axis[1] / norm, axis[2] / norm)
            body.limits = self._limits(joints, where)
        elif kinds == ["hinge"] * _MERGED_HINGES:
            body.kind, body.joint_name = "spherical", _common_name(joints, body.name)
            axes = [_vec3(j, "axis", where, (0.0, 0.0, 1.0)) for j in joints]
            if axes != [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)]:
                raise InputError(f"{where}: three hinges must be about x, y, z in this order")
            body.limits = self._limits(joints, where)
        elif kinds:
            raise InputError(
                f"{where}: joints {' '.join(kinds)}; allowed are none, ball, hinge, three hinges"
            )

    def _limits(self, joints: list[dict[str, str]], where: str) -> list[tuple[float, float]]:
        limits = []
        for joint in joints:
            pair = _floats(joint, "range", where)
            if pair is None or len(pair) != 2 or pair[0] >= pair[1]:
                raise InputError(f"{where}: hinge needs range='lower upper' with lower < upper")
            limits.append((pair[0] * self.angle_unit, pair[1] * self.angle_unit))
        return limits


def _common_name(joints: list[dict[str, str]], fallback: str) -> str:
    name = joints[0].get("name", "")
    return name.removesuffix("_x") if name.endswith("_x") else fallback


def _floats(attrs: dict[str, str], key: str, where: str) -> tuple[float, ...] | None:
    if key not in attrs:
        return None
    try:
        return tuple(float(x) for x in attrs[key].split())
    except ValueError as err:
        raise InputError(f"{where}: {key}={attrs[key]!r} is not a list of numbers") from err


def _vec3(attrs: dict[str, str], key: str, where: str, default: Vec3 = (0.0, 0.0, 0.0)) -> Vec3:
    values = _floats(attrs, key, where)
    if values is None:
        return default
    if len(values) != 3:
        raise InputError(f"{where}: {key}={attrs[key]!r}; three numbers are needed")
    return values[0], values[1], values[2]


def _quat(attrs: dict[str, str], where: str) -> Quat:
    """The orientation as xyzw; MJCF stores wxyz."""
    for key in _ORIENTATIONS:
        if key in attrs:
            raise InputError(f"{where}: orientation by {key} is not read; write it as quat")
    values = _floats(attrs, "quat", where)
    if values is None:
        return _IDENTITY
    norm = math.sqrt(sum(v * v for v in values))
    if len(values) != 4 or norm == 0:
        raise InputError(f"{where}: quat={attrs['quat']!r}; four numbers w x y z are needed")
    w, x, y, z = (v / norm for v in values)
    return x, y, z, w


def _geom(body: int, attrs: dict[str, str], where: str) -> Geom:
    kind = attrs.get("type", "sphere")
    if kind not in ("sphere", "capsule", "box"):
        raise InputError(f"{where}: geom type {kind}; allowed are sphere, capsule, box")
    if "mass" in attrs:
        raise InputError(f"{where}: geom mass is not read; give density in kg/m^3")
    size = _floats(attrs, "size", where) or ()
    density = (_floats(attrs, "density", where) or (_MUJOCO_DENSITY,))[0]
    pos, quat = _vec3(attrs, "pos", where), _quat(attrs, where)
    ends = _floats(attrs, "fromto", where)
    if ends is not None:
        if kind != "capsule" or len(ends) != 6:
            raise InputError(f"{where}: fromto takes six numbers and belongs to a capsule")
        pos, quat, half = _from_ends(ends)
        size = (*size[:1], half)
    needed = {"sphere": 1, "capsule": 2, "box": 3}[kind]
    if len(size) < needed or min(size[:needed]) <= 0:
        raise InputError(f"{where}: {kind} needs {needed} positive size numbers")
    a, b, c = (*size[:needed], 0.0, 0.0)[:3]
    shape: GeomKind = kind
    return Geom(body=body, kind=shape, pos=pos, quat=quat, size=(a, b, c), density=density)


def _from_ends(ends: tuple[float, ...]) -> tuple[Vec3, Quat, float]:
    """Centre, rotation (the shortest that turns z into the segment) and half length."""
    start, end = torch.tensor(ends, dtype=torch.float64).view(2, 3)
    centre, axis = 0.5 * (start + end), end - start
    length = float(axis.norm())
    x, y, z = (axis / length).tolist()
    if z < 0:  # a capsule has no front: the other end gives the smaller rotation
        x, y, z = -x, -y, -z
    w = math.sqrt(0.5 * (1.0 + z))
    quat = (-y / (2.0 * w), x / (2.0 * w), 0.0, w)
    cx, cy, cz = centre.tolist()
    return (cx, cy, cz), quat, 0.5 * length
