"""A character's MJCF as Isaac Gym's importer wants it.

The importer makes one spherical joint of three orthogonal hinges of a body and knows no ball
joints, so every ball joint becomes three hinges along x, y and z with the limits per axis that a
cone cannot express. Gains, effort limits and armature are not left to the file: the server sets
them as dof properties.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import numpy as np

from parc_ray.errors import InputError

if TYPE_CHECKING:
    from parc_ray.character.character import Character

_AXES = ("1 0 0", "0 1 0", "0 0 1")
_KEPT = {"compiler", "default", "worldbody"}


def isaacgym_mjcf(character: Character) -> str:
    """The MJCF with every spherical joint as three hinges, named like the skeleton's dofs.

    Raises:
        InputError: the MJCF and the skeleton disagree about bodies.
    """
    root = ET.fromstring(character.mjcf_xml)
    for element in list(root):
        if element.tag not in _KEPT:
            root.remove(element)
    compiler = root.find("compiler")
    degree = compiler is None or compiler.get("angle", "degree") == "degree"
    skeleton = character.skeleton
    limits = np.asarray(skeleton.dof_limits, dtype=np.float64)
    limits = np.degrees(limits) if degree else limits
    bodies = {body.get("name"): body for body in root.iter("body")}
    for index, (name, kind) in enumerate(
        zip(skeleton.body_names, skeleton.joint_kinds, strict=True)
    ):
        if name not in bodies:
            raise InputError(f"{character.name}: the MJCF has no body '{name}'")
        body = bodies[name]
        if kind == "root":
            continue
        old = body.findall("joint") + body.findall("freejoint")
        place = list(body).index(old[0]) if old else 0
        for element in old:
            body.remove(element)
        dofs = range(skeleton.num_dofs)[skeleton.dof_slices[index]]
        hinge = np.asarray(skeleton.hinge_axes, dtype=np.float64)[index]
        axes = _AXES if kind == "spherical" else (" ".join(f"{x:.9g}" for x in hinge),)
        for offset, (dof, axis) in enumerate(zip(dofs, axes, strict=False)):
            low, high = (f"{x:.9g}" for x in limits[dof])
            joint = {
                "name": skeleton.dof_names[dof],
                "type": "hinge",
                "axis": axis,
                "limited": "true",
                "range": f"{low} {high}",
            }
            body.insert(place + offset, ET.Element("joint", joint))
    return ET.tostring(root, encoding="unicode")
