"""Steer a character with the keyboard."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import Any

import viser

from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip
from parc_ray.motion.frames import MotionFrames
from parc_ray.viewer.live import Key, LiveDrive
from parc_ray.viewer.page import Page
from parc_ray.viewer.poses import ClipPoses
from parc_ray.viewer.scene import Figure
from parc_ray.viewer.studio import Studio
from parc_ray.viewer.tint import PALETTE

_LOG = logging.getLogger(__name__)
_HELP = (
    "Click into the picture, then: **arrow up** faster, **down** slower, **left** and **right** "
    "turn, **end** stop. The faint figure is the plan."
)
_HOTKEYS: tuple[tuple[Key, str, Any], ...] = (
    ("forward", "Faster", "arrowup"),
    ("back", "Slower", "arrowdown"),
    ("left", "Turn left", "arrowleft"),
    ("right", "Turn right", "arrowright"),
    ("stop", "Stop", "end"),
)


class DrivePanel:
    """Controls of a live drive, and the thread that makes its steps."""

    def __init__(self, page: Page, studio: Studio) -> None:
        """Add the controls."""
        self.page, self.studio = page, studio
        self.drive: LiveDrive | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        gui = page.server.gui
        self.help = gui.add_markdown(_HELP)
        self.s = gui.add_slider("s", min=0.0, max=1.0, step=0.05, initial_value=0.5)
        self.begin = gui.add_button("Drive on this ground", icon=viser.Icon.STEERING_WHEEL)
        self.end = gui.add_button("Stop driving", visible=False)
        self.keys = gui.add_button_group("Steer", ("Faster", "Slower", "Left", "Right", "Stop"))
        self.state = gui.add_markdown("")
        self._bind()

    def press(self, key: Key) -> None:
        """One press of a key."""
        if self.drive is not None:
            self.drive.steering.press(key)

    def _bind(self) -> None:
        self.begin.on_click(self._begin)
        self.end.on_click(lambda _: self._end())
        for key, label, hotkey in _HOTKEYS:
            command = self.page.server.gui.add_command(f"Drive: {label}", hotkey=hotkey)
            command.on_trigger(lambda _, key=key: self.press(key))

        @self.keys.on_click
        def _(_: Any) -> None:
            names: dict[str, Key] = {
                "Faster": "forward",
                "Slower": "back",
                "Left": "left",
                "Right": "right",
                "Stop": "stop",
            }
            self.press(names[self.keys.value])

    def _begin(self, event: Any) -> None:
        self._end()
        with self.page.trying(event.client):
            session = self.page.session
            figures = session.scene.figures
            if self.page.ground is not None:
                ground = self.page.ground
                low, high = ground.extent
                at = ((low + high) / 2).tolist()
            elif figures:
                ground, at = figures[0].terrain, figures[0].poses.bodies[0][0, 0, :2].tolist()
            else:
                raise InputError("drive: there is no ground; choose a clip, or edit a flat terrain")
            self.drive = LiveDrive(
                studio=self.studio, terrain=ground, start=(at[0], at[1]), s=float(self.s.value)
            )
            session.clock.playing = False
            session.show([])
            now = _figure(self.drive.pose(), self.drive, "", self.studio)
            later = _figure(self.drive.planned(), self.drive, "", self.studio)
            later.opacity, later.terrain_shown = 0.3, False
            later.colour = PALETTE[1]
            session.scene.figures = [now, later]
            self.page.changed()
            self.page.look_at_figures()
            self.end.visible = True
            self._stop.clear()
            self._thread = threading.Thread(target=self._run, args=(self.drive,), daemon=True)
            self._thread.start()

    def _end(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=10.0)
            self._thread = None
        if self.drive is not None:
            self.drive.close()
            self.drive = None
        self.end.visible = False

    def _run(self, drive: LiveDrive) -> None:
        """Steps at the control rate, or as fast as it goes."""
        period = 1.0 / drive.generator.fps
        due = began = time.monotonic()
        made = 0
        while not self._stop.is_set():
            try:
                drive.step()
            except Exception as error:
                _LOG.exception("drive")
                self.page.say("The drive has ended", str(error), None, "red")
                return
            made += 1
            self._show(drive)
            now = time.monotonic()
            due = max(due + period, now - period)
            if now - began > 0.5:
                self._tell(drive, made / (now - began))
                began, made = now, 0
            time.sleep(max(0.0, due - now))

    def _show(self, drive: LiveDrive) -> None:
        with self.page.lock:
            figures = self.page.session.scene.figures
            if len(figures) == 2 and figures[0].key == "drive":
                for figure, frames in zip(figures, (drive.pose(), drive.planned()), strict=True):
                    figure.poses = _poses(frames, drive, self.studio)
                    figure._colours.clear()
                self.page.redraw()
            else:  # other clips were chosen meanwhile
                self._stop.set()

    def _tell(self, drive: LiveDrive, rate: float) -> None:
        fps, rates = drive.generator.fps, drive.rates
        self.state.content = (
            f"**{rate:.0f} steps a second**, real time is {fps:.0f} ({100 * rate / fps:.0f} %)  \n"
            f"step {1000 * rates.step_s:.0f} ms, plan {1000 * rates.plan_s:.0f} ms every "
            f"{rates.steps_per_plan} steps; it could make {rates.hz:.0f}  \n"
            f"speed {100 * drive.steering.speed:.0f} %, set back onto the plan {drive.falls} times"
        )


def _figure(frames: MotionFrames, drive: LiveDrive, title: str, studio: Studio) -> Figure:
    return Figure(key="drive", title=title, poses=_poses(frames, drive, studio), colour=PALETTE[0])


def _poses(frames: MotionFrames, drive: LiveDrive, studio: Studio) -> ClipPoses:
    clip: MotionClip = replace(drive.plan, frames=frames.time(0, 1))
    return ClipPoses(clip, studio.character)
