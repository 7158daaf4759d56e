"""Steer a character with the keyboard."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any

import viser

from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip
from parc_ray.motion.frames import MotionFrames
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.viewer.live import Key, LiveDrive
from parc_ray.viewer.page import Page
from parc_ray.viewer.poses import ClipPoses
from parc_ray.viewer.scene import Figure
from parc_ray.viewer.studio import Studio
from parc_ray.viewer.tint import PALETTE

_LOG = logging.getLogger(__name__)
_SLOWEST_S = 0.05
_CATCH_UP_S = 0.3
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


@dataclass(kw_only=True, eq=False)
class _Ride:
    """One drive with what belongs to it alone.

    Attributes:
        drive: the character in simulation.
        figures: the character and its plan.
        before: keys of the clips that were shown.
        stop: set to end it.
        thread: makes its steps, and closes it at the end.
    """

    drive: LiveDrive
    figures: list[Figure]
    before: list[str]
    stop: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None


class DrivePanel:
    """Controls of a live drive, and the thread that makes its steps."""

    def __init__(self, page: Page, studio: Studio) -> None:
        """Add the controls."""
        self.page, self.studio = page, studio
        self._ride: _Ride | None = None
        self._busy = threading.Lock()
        gui = page.server.gui
        self.help = gui.add_markdown(_HELP)
        self.s = gui.add_slider("s", min=0.0, max=1.0, step=0.05, initial_value=0.5)
        self.begin = gui.add_button("Drive on this ground", icon=viser.Icon.STEERING_WHEEL)
        self.end = gui.add_button("Stop driving", visible=False)
        self.keys = gui.add_button_group("Steer", ("Faster", "Slower", "Left", "Right", "Stop"))
        self.state = gui.add_markdown("")
        self._bind()
        page.closers.append(self._end)

    def press(self, key: Key) -> None:
        """One press of a key."""
        ride = self._ride
        if ride is not None:
            ride.drive.steering.press(key)

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
        if not self._busy.acquire(blocking=False):  # clicks come in threads of their own
            self.page.say("Still at work", "wait until it is done", event.client, "yellow")
            return
        try:
            self._finish()
            with self.page.working("Preparing the drive", event.client):
                with self.page.lock:
                    ground, start = self._place()
                drive = LiveDrive(
                    studio=self.studio, terrain=ground, start=start, s=float(self.s.value)
                )
                try:
                    with self.page.lock:
                        self._start(drive)
                except BaseException:
                    drive.close()
                    raise
        finally:
            self._busy.release()

    def _end(self) -> None:
        with self._busy:
            self._finish()

    def _finish(self) -> None:
        """End the present drive, if there is one; its thread closes it."""
        ride = self._ride
        if ride is not None and ride.thread is not None:
            ride.stop.set()
            ride.thread.join(timeout=10.0)

    def _place(self) -> tuple[Heightfield, tuple[float, float]]:
        """The ground that is shown, and where on it (x, y) m the drive begins."""
        figures = self.page.session.scene.figures
        if self.page.ground is not None:
            ground = self.page.ground
            low, high = ground.extent
            at = ((low + high) / 2).tolist()
        elif figures:
            ground, at = figures[0].terrain, figures[0].poses.bodies[0][0, 0, :2].tolist()
        else:
            raise InputError("drive: there is no ground; choose a clip, or edit a flat terrain")
        return ground, (at[0], at[1])

    def _start(self, drive: LiveDrive) -> None:
        """Show the character and its plan, and let it go."""
        session = self.page.session
        poses = _poses(drive.pose(), drive, self.studio)
        now = Figure(key="drive", title="", poses=poses, colour=PALETTE[0])
        poses = ClipPoses(drive.plan, self.studio.character)
        later = Figure(key="drive", title="", poses=poses, colour=PALETTE[1])
        later.opacity, later.terrain_shown = 0.3, False
        before = [figure.key for figure in session.scene.figures]
        ride = _Ride(drive=drive, figures=[now, later], before=before)
        session.clock.playing = False
        session.show([])
        session.scene.figures = ride.figures
        self.page.changed()
        self.page.look_at_figures()
        self.end.visible = True
        ride.thread = threading.Thread(target=self._run, args=(ride,), daemon=True)
        self._ride = ride
        ride.thread.start()

    def _run(self, ride: _Ride) -> None:
        """Make steps until it shall end, then close the drive and show the clips from before."""
        try:
            self._go(ride)
        except Exception as error:
            _LOG.exception("drive")
            self.state.content = f"**The drive has ended**: {error}"
            self.page.say("The drive has ended", str(error), None, "red")
        finally:
            ride.drive.close()
            with self.page.trying():
                if self._ride is ride:
                    self._ride = None
                    self.end.visible = False
                if self.page.session.scene.figures is ride.figures:
                    self.page.session.show([])
                    self.page.session.show(ride.before)
                    self.page.changed()
                    self.page.look_at_figures()

    def _go(self, ride: _Ride) -> None:
        """Steps at the control rate, or as fast as it goes."""
        drive = ride.drive
        period = 1.0 / drive.generator.fps
        due = began = shown = time.monotonic()
        made = 0
        while not ride.stop.is_set():
            drive.step()
            made += 1
            now = time.monotonic()
            if now < due + period or now - shown > _SLOWEST_S:  # late: fewer pictures, not steps
                self._show(ride)
                shown = now = time.monotonic()
            due = max(due + period, now - _CATCH_UP_S)  # what a plan took is made up for
            if now - began > 0.5:
                self._tell(drive, made / (now - began))
                began, made = now, 0
            time.sleep(max(0.0, due - now))

    def _show(self, ride: _Ride) -> None:
        drive = ride.drive
        with self.page.lock:
            if self.page.session.scene.figures is ride.figures:
                now, plan = ride.figures
                now.poses = _poses(drive.pose(), drive, self.studio)
                now.forget_colours()
                if plan.poses.clip is not drive.plan:
                    plan.poses = ClipPoses(drive.plan, self.studio.character)
                    plan.forget_colours()
                plan.start_s = self.page.session.clock.time_s - drive.frame / drive.plan.fps
                self.page.redraw()
            else:  # other clips were chosen meanwhile
                ride.stop.set()

    def _tell(self, drive: LiveDrive, rate: float) -> None:
        fps, rates = drive.generator.fps, drive.rates
        self.state.content = (
            f"**{rate:.0f} steps a second**, real time is {fps:.0f} ({100 * rate / fps:.0f} %)  \n"
            f"step {1000 * rates.step_s:.0f} ms, plan {1000 * rates.plan_s:.0f} ms every "
            f"{rates.steps_per_plan} steps; it could make {rates.hz:.0f}  \n"
            f"speed {100 * drive.steering.speed:.0f} %, set back onto the plan {drive.falls} times"
        )


def _poses(frames: MotionFrames, drive: LiveDrive, studio: Studio) -> ClipPoses:
    clip: MotionClip = replace(drive.plan, frames=frames.time(0, 1))
    return ClipPoses(clip, studio.character)
