"""USD as text (.usda): a prim per body with time samples, its shapes, and the terrain as a mesh.

Bodies lie beside each other below one prim, placed in the world (z up, metres); a time code is a
frame. Spheres, capsules and boxes stay what they are. The text is written without a library; any
program that reads USD opens it.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from parc_ray.character.character import Character
from parc_ray.character.geometry import Geom
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.data.exporters.meshes import terrain_mesh
from parc_ray.data.exporters.turns import without_flips
from parc_ray.motion.clip import MotionClip
from parc_ray.terrain.heightfield import Heightfield

SUFFIX = ".usda"
_BODY, _SOIL = "(0.0, 0.47, 0.55)", "(0.78, 0.71, 0.56)"


def encode(clip: MotionClip, character: Character) -> bytes:
    """The file of one clip."""
    frames = clip.frames
    pos, quat = fk_from_dof(
        character.skeleton, frames.root_pos.double(), frames.root_rot.double(), frames.dof.double()
    )
    last = clip.num_frames - 1
    lines = [
        "#usda 1.0",
        "(",
        '    defaultPrim = "World"',
        "    metersPerUnit = 1",
        '    upAxis = "Z"',
        "    startTimeCode = 0",
        f"    endTimeCode = {last}",
        f"    timeCodesPerSecond = {clip.fps:.12g}",
        f"    framesPerSecond = {clip.fps:.12g}",
        ")",
        "",
        'def Xform "World"',
        "{",
        f'    custom string clip_id = "{_text(clip.clip_id)}"',
        '    def Xform "Character"',
        "    {",
    ]
    for body, name in enumerate(character.skeleton.body_names):
        shapes = [geom for geom in character.geoms if geom.body == body]
        lines += _body(name, pos[:, body].numpy(), quat[:, body].numpy(), shapes)
    lines += ["    }", *_terrain(clip.terrain), "}", ""]
    return "\n".join(lines).encode()


def _text(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")


def _name(value: str) -> str:
    """A word that may name a prim."""
    word = re.sub(r"\W", "_", value, flags=re.ASCII)
    return word if word and not word[0].isdigit() else f"_{word}"


def _body(name: str, pos: NDArray, quat: NDArray, shapes: list[Geom]) -> list[str]:
    """A prim with its place and turn per frame; pos (T, 3), quat (T, 4) xyzw."""
    quat = without_flips(quat)
    pad = " " * 8
    lines = [f'{pad}def Xform "{_name(name)}"', f"{pad}{{"]
    lines.append(f"{pad}    double3 xformOp:translate.timeSamples = {{")
    lines += [f"{pad}        {t}: {_tuple(p)}," for t, p in enumerate(pos)]
    lines += [f"{pad}    }}", f"{pad}    quatd xformOp:orient.timeSamples = {{"]
    lines += [f"{pad}        {t}: {_tuple(q[[3, 0, 1, 2]])}," for t, q in enumerate(quat)]
    lines.append(f"{pad}    }}")
    order = '["xformOp:translate", "xformOp:orient"]'
    lines.append(f"{pad}    uniform token[] xformOpOrder = {order}")
    for number, geom in enumerate(shapes):
        lines += _shape(f"shape_{number}", geom)
    lines.append(f"{pad}}}")
    return lines


def _shape(name: str, geom: Geom) -> list[str]:
    """A shape in the frame of its body."""
    pad, scale = " " * 12, ""
    ops = ["xformOp:translate", "xformOp:orient"]
    if geom.kind == "sphere":
        kind, sizes = "Sphere", [f"double radius = {geom.radius:.9g}"]
    elif geom.kind == "capsule":
        kind = "Capsule"
        sizes = [f"double radius = {geom.radius:.9g}", f"double height = {2 * geom.size[1]:.9g}"]
        sizes.append('uniform token axis = "Z"')
    else:
        kind, sizes = "Cube", ["double size = 2"]
        scale = f"double3 xformOp:scale = {_tuple(np.array(geom.size))}"
        ops.append("xformOp:scale")
    x, y, z, w = geom.quat
    rows = [
        *sizes,
        f"double3 xformOp:translate = {_tuple(np.array(geom.pos))}",
        f"quatd xformOp:orient = {_tuple(np.array([w, x, y, z]))}",
        *([scale] if scale else []),
        "uniform token[] xformOpOrder = [" + ", ".join(f'"{op}"' for op in ops) + "]",
        f"color3f[] primvars:displayColor = [{_BODY}]",
    ]
    head = [f'{pad}def {kind} "{name}"', f"{pad}{{"]
    return [*head, *(f"{pad}    {row}" for row in rows), f"{pad}}}"]


def _terrain(terrain: Heightfield) -> list[str]:
    points, faces = terrain_mesh(terrain)
    pad = " " * 8
    rows = [
        f"int[] faceVertexCounts = [{', '.join(['3'] * len(faces))}]",
        f"int[] faceVertexIndices = [{', '.join(map(str, faces.ravel().tolist()))}]",
        f"point3f[] points = [{', '.join(_tuple(p) for p in points)}]",
        'uniform token subdivisionScheme = "none"',
        f"color3f[] primvars:displayColor = [{_SOIL}]",
    ]
    return ['    def Mesh "Terrain"', "    {", *(pad + row for row in rows), "    }"]


def _tuple(values: NDArray) -> str:
    return "(" + ", ".join(f"{float(value):.9g}" for value in values) + ")"
