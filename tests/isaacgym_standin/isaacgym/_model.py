"""MuJoCo models from what the engine is given: an MJCF with hinges, drives, a triangle mesh."""

import math
import os
import xml.etree.ElementTree as ET

import mujoco
import numpy as np

AXES = ["1 0 0", "0 1 0", "0 0 1"]


class Asset:
    """A character file; three orthogonal hinges of a body are one spherical joint."""

    def __init__(self, root, filename, options):
        with open(os.path.join(root, filename), encoding="utf-8") as file:
            self.text = file.read()
        self.options = options
        tree = ET.fromstring(self.text)
        self.bodies = [body.get("name") for body in tree.find("worldbody").iter("body")]
        compiler = tree.find("compiler")
        degree = compiler is None or compiler.get("angle", "degree") == "degree"
        unit = math.pi / 180.0 if degree else 1.0
        self.dofs, self.ranges = [], []
        for body in tree.find("worldbody").iter("body"):
            for joint in body.findall("joint"):
                if joint.get("type", "hinge") != "hinge":
                    raise ValueError("the importer knows no {} joint".format(joint.get("type")))
                self.dofs.append(joint.get("name"))
                self.ranges.append([unit * float(x) for x in joint.get("range").split()])
        self.friction = 1.0
        self.num_shapes = len(list(tree.find("worldbody").iter("geom")))


def boxes_of(vertices, triangles):
    """Boxes (K, 6), centre and half sizes, below the horizontal rectangles that face up.

    Two triangles with one bounding rectangle are a column's top. What faces down is open from
    above, so a mesh that is wound the wrong way holds nothing.
    """
    corners = vertices[triangles.astype(np.int64)]
    normal = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    area = np.linalg.norm(normal, axis=-1)
    up = (area > 0) & (normal[:, 2] > 0.999 * area)
    bottom = float(vertices[:, 2].min()) - 2.0
    count, half = {}, {}
    for triangle, size in zip(corners[up], area[up]):
        key = tuple(np.round(np.concatenate((triangle.min(0), triangle.max(0))), 5))
        count[key] = count.get(key, 0) + 1
        half[key] = half.get(key, 0.0) + 0.5 * size
    out = []
    for (x0, y0, z, x1, y1, _), number in count.items():
        key = (x0, y0, z, x1, y1, z)
        whole = (x1 - x0) * (y1 - y0)
        if number != 2 or abs(half[key] - whole) > 0.01 * whole:
            raise ValueError(f"a top is not the two halves of a rectangle: {key}")
        out.append(
            (
                *((x0 + x1) / 2, (y0 + y1) / 2, (z + bottom) / 2),
                *((x1 - x0) / 2, (y1 - y0) / 2, (z - bottom) / 2),
            )
        )
    return np.array(out).reshape(-1, 6)


def build(asset, drives, boxes, mesh_friction, params, self_collision):
    """The MuJoCo model of one character on the boxes."""
    tree = ET.fromstring(asset.text)
    world = tree.find("worldbody")
    root = world.find("body")
    if root.find("freejoint") is None:
        root.insert(0, ET.Element("freejoint", {"name": "root"}))
    actuator = ET.SubElement(tree, "actuator")
    dof = 0
    for body in world.iter("body"):
        joints = body.findall("joint")
        if not joints:
            continue
        kind, gear = "hinge", AXES[:1]
        if len(joints) == 3:
            if [j.get("axis") for j in joints] != AXES:
                raise ValueError("hinges of {} are not along x, y, z".format(body.get("name")))
            kind, gear = "ball", AXES
        elif len(joints) != 1:
            raise ValueError("{} has {} hinges".format(body.get("name"), len(joints)))
        joint = joints[0]
        name = body.get("name") + "_joint"
        for other in joints[1:]:
            body.remove(other)
        joint.attrib.update({"name": name, "type": kind, "stiffness": "0", "damping": "0"})
        joint.set("armature", repr(float(drives["armature"][dof])))
        if kind == "ball":
            joint.attrib.pop("range")
            joint.attrib.pop("axis")
            joint.set("limited", "false")
        for axis in gear:
            _drive(actuator, name, axis, drives[dof])
            dof += 1
    sliding = repr(0.5 * (mesh_friction + asset.friction))  # PhysX averages
    for geom in world.iter("geom"):
        geom.attrib.update(_contact(sliding, ("1", "1") if self_collision else ("0", "2")))
    for box in boxes:
        place = {"pos": _text(box[:3]), "size": _text(box[3:]), "type": "box"}
        ET.SubElement(world, "geom", dict(place, **_contact(sliding, ("2", "1"))))
    option = ET.SubElement(tree, "option")
    option.attrib.update(
        {
            "timestep": repr(params.dt / params.substeps),
            "integrator": "implicitfast",
            "gravity": _text([params.gravity.x, params.gravity.y, params.gravity.z]),
            "iterations": "10",
            "ls_iterations": "10",
        }
    )
    ET.SubElement(option, "flag", {"autoreset": "disable"})
    return mujoco.MjModel.from_xml_string(ET.tostring(tree, encoding="unicode"))


def _drive(actuator, joint, axis, drive):
    """One servo; without a drive mode it does nothing."""
    on = float(drive["driveMode"] == 1)
    kp, kd = on * float(drive["stiffness"]), on * float(drive["damping"])
    effort = max(float(drive["effort"]), 1e-9)
    ET.SubElement(
        actuator,
        "general",
        {
            "joint": joint,
            "gear": axis,
            "gainprm": repr(kp),
            "biastype": "affine",
            "biasprm": f"0 {-kp!r} {-kd!r}",
            "ctrllimited": "false",
            "forcelimited": "true",
            "forcerange": f"{-effort!r} {effort!r}",
        },
    )


def _contact(sliding, masks):
    """One contact law for everything that can touch."""
    return {
        "condim": "3",
        "friction": sliding + " 0.005 0.0001",
        "solref": "0.02 1",
        "solimp": "0.9 0.95 0.001",
        "contype": masks[0],
        "conaffinity": masks[1],
    }


def _text(values):
    return " ".join(repr(float(v)) for v in values)
