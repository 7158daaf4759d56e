"""MuJoCo's own renderer without a window, by EGL or OSMesa.

The scene is filled shape by shape, so no model of the character is compiled and any number of
versions can stand in one picture.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from parc_ray.errors import InputError
from parc_ray.terrain.boxes import boxes_to_world
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.viewer.offscreen.camera import FIELD_OF_VIEW_DEG, View
from parc_ray.viewer.offscreen.scene import Colour, Shapes

LIBRARIES = ("egl", "osmesa")
_VARIABLE = "MUJOCO_GL"
_CONTEXT = "mujoco.rendering.classic.gl_context"
_MAX_SHAPES = 20_000
_SKIRT_M = 0.6
_SOIL = (0.80, 0.73, 0.58, 1.0)
_MODEL = """<mujoco>
<visual>
<global fovy="{fovy}" offwidth="{width}" offheight="{height}"/>
<headlight ambient="0.45 0.45 0.45" diffuse="0.25 0.25 0.25" specular="0 0 0"/>
<quality shadowsize="2048"/>
</visual>
<asset><texture type="skybox" builtin="gradient" rgb1=".84 .88 .93" rgb2=".97 .97 .97" width="64"
 height="384"/></asset>
<worldbody><light directional="true" dir=".35 .45 -.82" diffuse=".5 .5 .5" specular=".2 .2 .2"/>
</worldbody></mujoco>"""
_PROBE = """
import mujoco
model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><light pos='0 0 9'/><geom size='1'/>"
                                       "</worldbody></mujoco>")
renderer, data = mujoco.Renderer(model, 32, 32), mujoco.MjData(model)
mujoco.mj_forward(model, data)
renderer.update_scene(data)
assert renderer.render().any()
from OpenGL import GL
print("works", GL.glGetString(GL.GL_RENDERER).decode())
"""
_ON_CPU = ("llvmpipe", "softpipe", "swrast", "swr")


@dataclass(frozen=True)
class Library:
    """A graphics library that works here.

    Attributes:
        name: "egl" or "osmesa".
        device: what draws, as the library calls it.
    """

    name: str
    device: str

    @property
    def is_fast(self) -> bool:
        """Whether something other than the CPU draws."""
        return not any(word in self.device.lower() for word in _ON_CPU)


def find_library(timeout_s: float = 60.0) -> Library | None:
    """The library with which MuJoCo draws here, tried in a process of its own, or None."""
    wanted = os.environ.get(_VARIABLE)
    for name in (wanted,) if wanted in LIBRARIES else LIBRARIES:
        try:
            probe = subprocess.run(
                [sys.executable, "-c", _PROBE],
                env={**os.environ, _VARIABLE: name},
                capture_output=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            continue
        answer = probe.stdout.decode(errors="replace").strip()
        if probe.returncode == 0 and answer.startswith("works"):
            return Library(name, answer.removeprefix("works").strip())
    return None


def use_library(name: str) -> None:
    """Choose the graphics library of this process, also where MuJoCo is loaded already."""
    if os.environ.get(_VARIABLE) == name:
        return
    os.environ[_VARIABLE] = name
    loaded = sys.modules.get(_CONTEXT)
    if loaded is not None:  # it looks at the environment once, when it is imported
        importlib.reload(loaded)


class OpenGLRenderer:
    """Pictures of characters on one terrain by MuJoCo.

    Args:
        terrain: the ground.
        view: direction and distance of the camera.
        size: W, H of a picture in pixels.
        supersample: pixels per pixel and axis that are drawn and averaged.
    """

    name = "opengl"

    def __init__(
        self, terrain: Heightfield, view: View, size: tuple[int, int], supersample: int = 1
    ) -> None:
        """Open a context; see the class."""
        import mujoco

        self.view, self.supersample = view, supersample
        width, height = size[0] * supersample, size[1] * supersample
        text = _MODEL.format(fovy=FIELD_OF_VIEW_DEG, width=width, height=height)
        model = mujoco.MjModel.from_xml_string(text)
        self._mujoco = mujoco
        self._data = mujoco.MjData(model)
        mujoco.mj_forward(model, self._data)
        self._renderer = mujoco.Renderer(model, height, width, max_geom=_MAX_SHAPES)
        bottom = float(terrain.heights.min()) - _SKIRT_M
        self._boxes = boxes_to_world(terrain, bottom).numpy().astype(np.float64)
        self._kinds = {
            "sphere": mujoco.mjtGeom.mjGEOM_SPHERE,
            "capsule": mujoco.mjtGeom.mjGEOM_CAPSULE,
            "box": mujoco.mjtGeom.mjGEOM_BOX,
        }

    def draw(
        self, versions: Sequence[Sequence[tuple[Shapes, Colour]]], target: NDArray
    ) -> list[NDArray[np.uint8]]:
        """Pictures (H, W, 3), the camera looking at ``target`` (3,) m.

        Args:
            versions: bodies in their colours, of each picture.
            target: (3,) m.
        """
        return [self._picture(bodies, target) for bodies in versions]

    def close(self) -> None:
        """Release the context."""
        self._renderer.close()

    def _picture(
        self, bodies: Sequence[tuple[Shapes, Colour]], target: NDArray
    ) -> NDArray[np.uint8]:
        camera = self._mujoco.MjvCamera()
        camera.type = self._mujoco.mjtCamera.mjCAMERA_FREE
        camera.lookat[:] = target
        camera.azimuth, camera.elevation = self.view.azimuth_deg, self.view.elevation_deg
        camera.distance = self.view.distance_m
        self._renderer.update_scene(self._data, camera)
        unturned = np.eye(3)
        for box in self._boxes:
            self._add("box", box[3:], box[:3], unturned, _SOIL)
        for shapes, colour in bodies:
            tint = (*(c / 255 for c in colour), 1.0)
            for kind, size, pos, mat in shapes.parts():
                self._add(kind, size, pos, mat, tint)
        picture = self._renderer.render().copy()
        if self.supersample > 1:
            picture = np.asarray(Image.fromarray(picture).reduce(self.supersample))
        return picture

    def _add(
        self, kind: str, size: NDArray, pos: NDArray, mat: NDArray, rgba: tuple[float, ...]
    ) -> None:
        scene = self._renderer.scene
        if scene.ngeom >= scene.maxgeom:
            raise InputError(
                f"--renderer: opengl holds {scene.maxgeom} shapes, this terrain needs more; take "
                "--renderer software"
            )
        self._mujoco.mjv_initGeom(
            scene.geoms[scene.ngeom],
            self._kinds[kind],
            np.asarray(size, dtype=np.float64),
            np.asarray(pos, dtype=np.float64),
            np.asarray(mat, dtype=np.float64).reshape(9),
            np.array(rgba, dtype=np.float32),
        )
        scene.ngeom += 1
