"""Play, scrub, speed, loop, camera: always on top of the page."""

from __future__ import annotations

from typing import Any

import viser

from parc_ray.viewer.page import Page

SPEEDS = ("0.1x", "0.25x", "0.5x", "1x", "2x", "4x")


class TimelinePanel:
    """Controls of the playback."""

    def __init__(self, page: Page) -> None:
        """Add the controls."""
        self.page = page
        gui, clock = page.server.gui, page.session.clock
        self.play = gui.add_button("Play", icon=viser.Icon.PLAYER_PLAY, color="green")
        self.time = gui.add_slider(
            "Time (s)", min=0.0, max=1.0, step=0.01, initial_value=0.0, hint="Drag to scrub"
        )
        self.speed = gui.add_dropdown("Speed", SPEEDS, initial_value="1x")
        self.loop = gui.add_checkbox("Loop", clock.loop)
        self.follow = gui.add_checkbox(
            "Camera follows", page.follow, hint="The camera goes along with the character"
        )
        self.steps = gui.add_button_group("Frame", ("|<", "<", ">", ">|"))
        self.view = gui.add_button("Reset camera", icon=viser.Icon.CAMERA)
        gui.add_command("Play or pause", hotkey="space", icon=viser.Icon.PLAYER_PLAY).on_trigger(
            lambda _: self._toggle()
        )
        self._bind()
        page.clocks.append(self.refresh)
        page.listeners.append(self.refresh_length)
        self.refresh_length()

    def refresh(self) -> None:
        """Show the clock's state."""
        clock = self.page.session.clock
        place = round(min(max(clock.time_s, self.time.min), self.time.max), 2)
        if abs(self.time.value - place) > 1e-3:
            self.time.value = place
        self._label()

    def refresh_length(self) -> None:
        """Fit the slider to what is shown."""
        self.time.max = max(round(self.page.session.clock.length_s, 3), 0.01)
        self.refresh()

    def _bind(self) -> None:
        page, clock = self.page, self.page.session.clock
        self.play.on_click(lambda _: self._toggle())
        self.view.on_click(lambda _: page.look_at_figures())

        @self.time.on_update
        def _(event: viser.GuiEvent[Any]) -> None:
            if event.client is not None:  # moved by hand, not by the playback
                with page.lock:
                    clock.seek(self.time.value)
                    page.redraw()

        @self.speed.on_update
        def _(_: Any) -> None:
            with page.lock:
                clock.set_speed(float(self.speed.value.rstrip("x")))

        @self.loop.on_update
        def _(_: Any) -> None:
            clock.loop = self.loop.value

        @self.follow.on_update
        def _(_: Any) -> None:
            page.follow = self.follow.value

        @self.steps.on_click
        def _(_: Any) -> None:
            figures = page.session.scene.figures
            step = 1.0 / figures[0].poses.clip.fps if figures else 0.0
            places = {"|<": 0.0, "<": clock.time_s - step, ">": clock.time_s + step}
            with page.lock:
                clock.playing = False
                clock.seek(places.get(self.steps.value, clock.length_s))
                page.redraw()
                self.refresh()

    def _toggle(self) -> None:
        with self.page.lock:
            self.page.session.clock.toggle()
            self._label()

    def _label(self) -> None:
        playing = self.page.session.clock.playing
        label = "Pause" if playing else "Play"
        if self.play.label != label:
            self.play.label = label
            self.play.icon = viser.Icon.PLAYER_PAUSE if playing else viser.Icon.PLAYER_PLAY
