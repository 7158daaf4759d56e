"""Draws a scene into a viser server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import viser
from numpy.typing import NDArray

from parc_ray.terrain.heightfield import Heightfield
from parc_ray.terrain.local_grid import GridSpec
from parc_ray.viewer.ground import cell_lines, ground_mesh
from parc_ray.viewer.scene import Scene, height_samples
from parc_ray.viewer.shapes import unit_mesh

GroundClick = Callable[[NDArray[np.float64], NDArray[np.float64]], None]
"""Called with origin (3,) and direction (3,) of the ray of a click on the ground."""
_GROUND = (178, 168, 142)
_LINES = (150, 140, 115)
_MOST_LINED = 3000
_PATH = (25, 120, 60)
_WAYPOINTS = (225, 120, 20)
_TITLE_M = 0.75


class Canvas:
    """Scene nodes of one server.

    Attributes:
        show_path: whether path nodes are drawn.
        show_samples: whether the points of the height map around the root are drawn.
    """

    def __init__(self, server: viser.ViserServer) -> None:
        """Prepare the world: z up, light, no axes."""
        self.server = server
        self.show_path, self.show_samples = True, False
        self.grid = GridSpec()
        self.on_ground: GroundClick | None = None
        self._fixed: list[Any] = []
        self._batches: dict[str, Any] = {}
        self._titles: dict[int, Any] = {}
        self._samples: Any = None
        server.scene.set_up_direction("+z")
        server.scene.world_axes.visible = False
        # Lights alone: preparing an environment map takes 20 s where a browser draws in software.
        server.scene.configure_environment_map(hdri=None)
        server.scene.add_light_ambient("/light/ambient", intensity=1.1)

    def rebuild(
        self,
        scene: Scene,
        ground: Heightfield | None = None,
        paths: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        """Draw figures and grounds anew, after figures or their places changed.

        Args:
            scene: what is shown.
            ground: a ground instead of those of the figures.
            paths: further paths (M, 3) m by name.
        """
        self._clear()
        api = self.server.scene
        apart = sum(figure.terrain_shown for figure in scene.figures) > 1
        if ground is not None:
            self._add_ground("edited", ground, np.zeros(3))
        for number, figure in enumerate(scene.figures):
            if figure.terrain_shown and ground is None:
                self._add_ground(f"{number}", figure.terrain, figure.offset)
            nodes = figure.poses.clip.path_nodes
            if self.show_path and nodes is not None and (figure.terrain_shown or number == 0):
                self.draw_path(f"{number}", nodes.numpy() + figure.offset, self._fixed)
            if apart and figure.title:
                self._titles[number] = api.add_label(f"/title/{number}", figure.title)
        for name, points in (paths or {}).items():
            if len(points):
                colour = _WAYPOINTS if name == "way-points" else _PATH
                self.draw_path(name, points, self._fixed, colour)
        if scene.figures:
            self._add_batches(scene)

    def draw(self, scene: Scene, time_s: float) -> None:
        """Move everything that moves to where it is at a time."""
        if not scene.figures or not self._batches:
            return
        with self.server.atomic():
            for kind, batch in scene.batches(time_s).items():
                handle = self._batches.get(kind)
                if handle is not None:
                    handle.batched_positions = batch.position
                    handle.batched_wxyzs = batch.wxyz
                    handle.batched_colors = batch.colour
            for number, title in self._titles.items():
                root = scene.figures[number].root(time_s)
                title.position = root + np.array([0.0, 0.0, _TITLE_M])
            self._draw_samples(scene, time_s)

    def draw_path(
        self,
        name: str,
        points: NDArray[Any],
        kept: list[Any],
        colour: tuple[int, int, int] = _PATH,
    ) -> None:
        """A line with a ball at every node, (M, 3) m; handles are added to ``kept``."""
        api = self.server.scene
        lifted = np.asarray(points, np.float32) + np.array([0.0, 0.0, 0.06], np.float32)
        kept.append(
            api.add_point_cloud(
                f"/path/{name}/nodes", lifted, colour, point_size=0.07, point_shape="circle"
            )
        )
        if len(lifted) > 1:
            pairs = np.stack([lifted[:-1], lifted[1:]], axis=1)
            kept.append(api.add_line_segments(f"/path/{name}/line", pairs, colour, thickness=0.03))

    def watch_ground(self, handler: GroundClick | None) -> None:
        """Hand clicks on the ground to ``handler``, from the next ``rebuild`` on."""
        self.on_ground = handler

    def _add_ground(self, name: str, terrain: Heightfield, offset: NDArray[Any]) -> None:
        mesh = ground_mesh(terrain)
        place = np.array([*terrain.origin.tolist(), 0.0]) + offset
        node = self.server.scene.add_mesh_simple(
            f"/ground/{name}",
            mesh.vertices,
            mesh.faces,
            color=_GROUND,
            flat_shading=True,
            side="double",
            position=place,
            cast_shadow=False,
        )
        if self.on_ground is not None:
            handler = self.on_ground

            @node.on_click
            def _(event: viser.SceneNodePointerEvent[Any]) -> None:
                handler(np.array(event.ray_origin), np.array(event.ray_direction))

        self._fixed.append(node)
        if terrain.heights.numel() <= _MOST_LINED:
            lines = self.server.scene.add_line_segments(
                f"/cells/{name}",
                cell_lines(terrain),
                _LINES,
                thickness=1.0,
                thickness_units="screen",
                position=place,
            )
            self._fixed.append(lines)

    def _add_batches(self, scene: Scene) -> None:
        for kind, batch in scene.batches(0.0).items():
            if len(batch.position) == 0:
                continue
            mesh = unit_mesh(kind)
            self._batches[kind] = self.server.scene.add_batched_meshes_simple(
                f"/figures/{kind}",
                mesh.vertices,
                mesh.faces,
                batch.wxyz,
                batch.position,
                batched_scales=scene.scales(kind),
                batched_colors=batch.colour,
                batched_opacities=scene.opacities(kind),
                lod="off",
            )

    def _draw_samples(self, scene: Scene, time_s: float) -> None:
        if not self.show_samples:
            if self._samples is not None:
                self._samples.remove()
                self._samples = None
            return
        points = height_samples(scene.figures[0], time_s, self.grid)
        if self._samples is None:
            self._samples = self.server.scene.add_point_cloud(
                "/samples", points, (30, 90, 200), point_size=0.03, point_shape="circle"
            )
        else:
            self._samples.points = points

    def _clear(self) -> None:
        handles = [*self._fixed, *self._titles.values(), *self._batches.values()]
        if self._samples is not None:
            handles.append(self._samples)
        for handle in handles:
            handle.remove()
        self._fixed, self._titles, self._batches, self._samples = [], {}, {}, None
