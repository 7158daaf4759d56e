"""glTF 2.0, binary (.glb): every body a node with its shapes, the terrain a mesh, one animation.

The nodes form the kinematic tree, each with translation and rotation relative to its parent, and a
node above all turns z up to glTF's y up. Units are metres; y up follows from that node alone, so
the numbers below it are ours. The file is written without a library.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from parc_ray.character.character import Character
from parc_ray.character.kinematics import dof_to_joint_rot
from parc_ray.data.exporters.meshes import Mesh, flat_shaded, geom_mesh, joined, terrain_mesh
from parc_ray.data.exporters.turns import without_flips
from parc_ray.motion.clip import MotionClip

SUFFIX = ".glb"
_FLOAT, _ARRAY_BUFFER = 5126, 34962
_BODY, _SOIL = (0.0, 0.30, 0.38, 1.0), (0.62, 0.52, 0.33, 1.0)
_TURN = [-0.7071067811865476, 0.0, 0.0, 0.7071067811865476]
"""xyzw: z becomes y, as glTF has it."""


class _Binary:
    """The binary part, with a view and an accessor per array."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.views: list[dict[str, Any]] = []
        self.accessors: list[dict[str, Any]] = []

    def add(self, values: NDArray, kind: str, *, vertex: bool = False) -> int:
        """Index of the accessor of an array (N,) or (N, k), stored as float32."""
        array = np.ascontiguousarray(values, dtype="<f4")
        view = {"buffer": 0, "byteOffset": len(self.data), "byteLength": array.nbytes}
        if vertex:
            view["target"] = _ARRAY_BUFFER
        self.views.append(view)
        self.data += array.tobytes()
        rows = array.reshape(len(array), -1)
        self.accessors.append(
            {
                "bufferView": len(self.views) - 1,
                "componentType": _FLOAT,
                "count": len(array),
                "type": kind,
                "min": rows.min(axis=0).tolist(),
                "max": rows.max(axis=0).tolist(),
            }
        )
        return len(self.accessors) - 1


def encode(clip: MotionClip, character: Character) -> bytes:
    """The file of one clip."""
    skeleton, binary = character.skeleton, _Binary()
    bodies = skeleton.num_bodies
    nodes: list[dict[str, Any]] = [
        {"name": name, "translation": offset, "rotation": rest}
        for name, offset, rest in zip(
            skeleton.body_names, skeleton.offsets.tolist(), skeleton.rest_rot.tolist(), strict=True
        )
    ]
    meshes: list[dict[str, Any]] = []
    for body in range(bodies):
        children = [b for b, parent in enumerate(skeleton.parents) if parent == body]
        if children:
            nodes[body]["children"] = children
        shapes = [geom_mesh(geom) for geom in character.geoms if geom.body == body]
        if shapes:
            nodes[body]["mesh"] = len(meshes)
            meshes.append(_mesh(binary, joined(shapes), 0, skeleton.body_names[body]))
    ground = {"name": "terrain", "mesh": len(meshes)}
    meshes.append(_mesh(binary, terrain_mesh(clip.terrain), 1, "terrain"))
    top = {"name": "world_z_up", "rotation": _TURN, "children": [0, bodies]}
    document = {
        "asset": {"version": "2.0", "generator": "parc-ray"},
        "scene": 0,
        "scenes": [{"nodes": [bodies + 1], "name": clip.clip_id}],
        "nodes": [*nodes, ground, top],
        "meshes": meshes,
        "materials": [_material("body", _BODY), _material("terrain", _SOIL)],
        "animations": [_animation(binary, clip, character)],
        "accessors": binary.accessors,
        "bufferViews": binary.views,
        "buffers": [{"byteLength": len(binary.data)}],
    }
    return _container(document, bytes(binary.data))


def _animation(binary: _Binary, clip: MotionClip, character: Character) -> dict[str, Any]:
    """Translation of the root and rotations of all bodies that turn."""
    skeleton, frames = character.skeleton, clip.frames
    clock = binary.add(np.arange(clip.num_frames) / clip.fps, "SCALAR")
    joints = dof_to_joint_rot(skeleton, frames.dof.double()).numpy()
    rest = Rotation.from_quat(skeleton.rest_rot.double().numpy())
    samplers = [_sampler(clock, binary.add(frames.root_pos.numpy(), "VEC3"))]
    channels = [{"sampler": 0, "target": {"node": 0, "path": "translation"}}]
    for body, kind in enumerate(skeleton.joint_kinds):
        if kind == "fixed":
            continue
        quat = frames.root_rot.double().numpy()
        if body:
            quat = (rest[body] * Rotation.from_quat(joints[:, body - 1])).as_quat()
        samplers.append(_sampler(clock, binary.add(without_flips(quat), "VEC4")))
        target = {"node": body, "path": "rotation"}
        channels.append({"sampler": len(samplers) - 1, "target": target})
    return {"name": clip.clip_id, "samplers": samplers, "channels": channels}


def _sampler(clock: int, values: int) -> dict[str, Any]:
    return {"input": clock, "output": values, "interpolation": "LINEAR"}


def _mesh(binary: _Binary, mesh: Mesh, material: int, name: str) -> dict[str, Any]:
    corners, normals = flat_shaded(mesh)
    attributes = {
        "POSITION": binary.add(corners, "VEC3", vertex=True),
        "NORMAL": binary.add(normals, "VEC3", vertex=True),
    }
    return {"name": name, "primitives": [{"attributes": attributes, "material": material}]}


def _material(name: str, colour: tuple[float, ...]) -> dict[str, Any]:
    look = {"baseColorFactor": list(colour), "metallicFactor": 0.0, "roughnessFactor": 0.8}
    return {"name": name, "pbrMetallicRoughness": look}


def _container(document: dict[str, Any], binary: bytes) -> bytes:
    """A .glb: header, JSON chunk, binary chunk, each padded to four bytes."""
    text = json.dumps(document, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 4)
    binary += b"\0" * (-len(binary) % 4)
    size = 12 + 8 + len(text) + 8 + len(binary)
    return b"".join(
        (
            struct.pack("<4sII", b"glTF", 2, size),
            struct.pack("<I4s", len(text), b"JSON"),
            text,
            struct.pack("<I4s", len(binary), b"BIN\0"),
            binary,
        )
    )
