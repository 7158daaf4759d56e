"""The terrain and path editor: shape the ground, set way-points, generate, keep."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import viser
from numpy.typing import NDArray

from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip
from parc_ray.viewer.ground import hit
from parc_ray.viewer.page import Page
from parc_ray.viewer.panels.widgets import dropdown
from parc_ray.viewer.workbench import TOOLS, Brush, Workbench, score_table

_LABEL = "edit"
_HELP = (
    "Take a terrain, choose a tool and **click on the ground**; set two or more way-points; "
    "then generate."
)


class EditPanel:
    """Controls of a workbench."""

    def __init__(self, page: Page, bench: Workbench) -> None:
        """Add the controls."""
        self.page, self.bench = page, bench
        gui = page.server.gui
        self.help = gui.add_markdown(_HELP)
        self.take = gui.add_button("Edit this clip's terrain", icon=viser.Icon.PENCIL)
        self.flat = gui.add_button("Edit a new flat terrain", icon=viser.Icon.SQUARE_PLUS)
        self.cells = gui.add_slider("Cells", min=8, max=100, step=1, initial_value=24)
        self.done = gui.add_button("Stop editing", visible=False)
        self._add_brush()
        self._add_generate()
        self._busy = threading.Lock()
        self._names: dict[str, MotionClip] = {}
        self._bind()
        self.fit_to_tool()

    def _add_brush(self) -> None:
        gui = self.page.server.gui
        with gui.add_folder("Ground and path"):
            self.tool = gui.add_dropdown("Tool", TOOLS)
            self.height = gui.add_slider(
                "Height (m)", min=0.05, max=3.0, step=0.05, initial_value=0.3
            )
            self.radius = gui.add_slider(
                "Radius (m)", min=0.0, max=4.0, step=0.1, initial_value=0.0
            )
            self.size_x = gui.add_slider(
                "Box x, step (m)", min=0.2, max=8.0, step=0.2, initial_value=1.2
            )
            self.size_y = gui.add_slider(
                "Box y, width (m)", min=0.2, max=8.0, step=0.2, initial_value=1.2
            )
            self.stair_steps = gui.add_slider("Steps", min=1, max=20, step=1, initial_value=4)
            self.heading = gui.add_slider(
                "Stairs towards (deg)", min=-180, max=180, step=5, initial_value=0
            )
            self.changes = gui.add_button_group("Change", ("Undo", "Redo"))
            self.points = gui.add_button_group("Way-points", ("Remove last", "Clear"))
            self.state = gui.add_markdown("")

    def _add_generate(self) -> None:
        gui = self.page.server.gui
        with gui.add_folder("Generate on it"):
            self.s = gui.add_slider(
                "s", min=0.0, max=1.0, step=0.05, initial_value=0.5, hint="Blend of the answers"
            )
            self.seed = gui.add_number("Seed", 0, min=0, step=1)
            self.candidates = gui.add_slider("Candidates", min=1, max=64, step=1, initial_value=4)
            self.seconds = gui.add_slider(
                "Longest (s)", min=1.0, max=30.0, step=0.5, initial_value=6.0
            )
            self.go = gui.add_button("Generate", icon=viser.Icon.WAND, color="green")
            self.scores = gui.add_markdown("")
            self.chosen = dropdown(gui, "Motion", ("(none)",))
            self.optimise = gui.add_button("Optimise it")
            self.track = gui.add_button("Track it now", hint="Follow it in physics")
            self.save = gui.add_button("Save as clip", icon=viser.Icon.DEVICE_FLOPPY)
            self.queue = gui.add_button(
                "Queue for tracking", hint="Into a data set that parc run --data takes"
            )

    def fit_to_tool(self) -> None:
        """Show what the tool needs, and nothing else."""
        tool = self.tool.value
        self.height.visible = tool != "way-point"
        self.radius.visible = tool in ("raise", "lower", "level")
        for handle in (self.size_x, self.size_y):
            handle.visible = tool in ("box", "stairs")
        for handle in (self.stair_steps, self.heading):
            handle.visible = tool == "stairs"

    def refresh(self) -> None:
        """Draw the ground and say what there is."""
        editor = self.bench.editor
        self.done.visible = editor is not None
        if editor is None:
            self.state.content = ""
            return
        count = len(editor.waypoints)
        length = ""
        if self.bench.path is not None:
            steps = self.bench.path.points[1:, :2] - self.bench.path.points[:-1, :2]
            length = f", path of {float(steps.norm(dim=-1).sum()):.1f} m"
        x, y = editor.terrain.shape
        self.state.content = f"{x} x {y} cells, {count} way-points{length}"
        self.page.canvas.watch_ground(self.click)
        self.page.ground = editor.terrain
        self.page.paths = dict(self.bench.paths())
        self.page.changed()

    def brush(self) -> Brush:
        """What the controls say."""
        return Brush(
            tool=self.tool.value,
            height_m=self.height.value,
            radius_m=self.radius.value,
            size_m=(self.size_x.value, self.size_y.value),
            steps=int(self.stair_steps.value),
            heading_deg=float(self.heading.value),
        )

    def click(self, origin: NDArray[np.float64], direction: NDArray[np.float64]) -> None:
        """A click on the ground."""
        with self.page.trying():
            place = hit(self.bench.terrain.terrain, origin, direction)
            if place is None:
                raise InputError("the click is beside the ground; click on it")
            said = self.bench.click((float(place[0]), float(place[1])), self.brush())
            self.refresh()
            self.state.content += f"  \n{said}"

    def _bind(self) -> None:
        self.take.on_click(lambda _: self._begin(self._clip_terrain))
        self.flat.on_click(lambda _: self._begin(self._flat_terrain))
        self.done.on_click(lambda _: self._end())
        self.tool.on_update(lambda _: self.fit_to_tool())
        self.go.on_click(self._generate)
        self.optimise.on_click(self._optimise)
        self.track.on_click(self._track)
        self.save.on_click(lambda e: self._keep(e, self.bench.save, "Saved"))
        self.queue.on_click(lambda e: self._keep(e, self.bench.queue, "Queued"))

        @self.changes.on_click
        def _(_: Any) -> None:
            with self.page.trying():
                editor = self.bench.terrain
                editor.undo() if self.changes.value == "Undo" else editor.redo()
                self.bench.path = None
                self.refresh()

        @self.points.on_click
        def _(_: Any) -> None:
            with self.page.trying():
                editor = self.bench.terrain
                last = self.points.value == "Remove last"
                editor.remove_waypoint() if last else editor.clear_waypoints()
                self.bench.path = None
                self.refresh()

        @self.chosen.on_update
        def _(event: Any) -> None:
            if event.client is not None and self.chosen.value in self._names:
                with self.page.trying():
                    self._show(self._names[self.chosen.value])

    def _clip_terrain(self) -> None:
        session = self.page.session
        if not session.key:
            raise InputError("there is no clip; choose one, or take a flat terrain")
        session.show([session.key])
        self.bench.begin(session.chosen().terrain)

    def _flat_terrain(self) -> None:
        self.page.session.show([])
        self.bench.begin_flat(int(self.cells.value))

    def _begin(self, make: Callable[[], None]) -> None:
        with self.page.trying():
            make()
            self.page.session.clock.playing = False
            self._names = {}
            self.chosen.options = ("(none)",)
            self.scores.content = ""
            self.refresh()
            self.page.look_at_figures()

    def _end(self) -> None:
        with self.page.trying():
            self.bench.editor, self.page.ground, self.page.paths = None, None, {}
            self.page.canvas.watch_ground(None)
            self.refresh()
            self.page.changed()

    def _work(self, event: Any, title: str, work: Callable[[], None]) -> None:
        """Do something long without holding the page, one at a time."""
        if not self._busy.acquire(blocking=False):
            self.page.say("Still at work", "wait until it is done", event.client, "yellow")
            return
        try:
            with self.page.working(title, event.client):
                work()
        finally:
            self._busy.release()

    def _generate(self, event: Any) -> None:
        def work() -> None:
            made = self.bench.generate(
                s=float(self.s.value),
                seed=int(self.seed.value),
                candidates=int(self.candidates.value),
                seconds=float(self.seconds.value),
            )
            with self.page.lock:
                self.scores.content = score_table(made)
                self._names = {m.clip.clip_id: m.clip for m in made}
                self.chosen.options = tuple(self._names)
                self._show(made[0].clip)
                self.page.session.clock.playing = True

        self._work(event, "Generating", work)

    def _optimise(self, event: Any) -> None:
        def work() -> None:
            self._add(self.bench.optimise(self._current()))

        self._work(event, "Optimising", work)

    def _track(self, event: Any) -> None:
        def work() -> None:
            tried = self.bench.track(self._current())
            self._add(tried.clip)
            end = f"ended by {tried.reason}" if tried.reason else "completed"
            self.page.say("Tracked", f"{tried.steps} of {tried.wanted} steps, {end}", event.client)

        self._work(event, "Tracking", work)

    def _keep(self, event: Any, keep: Callable[[MotionClip], str], title: str) -> None:
        with self.page.trying(event.client):
            self.page.say(title, keep(self._current()), event.client)

    def _current(self) -> MotionClip:
        if self.chosen.value not in self._names:
            raise InputError("there is no motion yet; generate one")
        return self._names[self.chosen.value]

    def _add(self, clip: MotionClip) -> None:
        with self.page.lock:
            self._names[clip.clip_id] = clip
            self.chosen.options = tuple(self._names)
            self._show(clip)

    def _show(self, clip: MotionClip) -> None:
        session = self.page.session
        for other in self._names.values():
            session.catalog.add(other, _LABEL)
        session.select(f"{_LABEL}/{clip.clip_id}")
        if self.chosen.value != clip.clip_id:
            self.chosen.value = clip.clip_id
        self.refresh()
