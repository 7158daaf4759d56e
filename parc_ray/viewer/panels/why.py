"""Why a clip was not corrected: what the run kept, error over time, and a new try."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from viser import uplot

from parc_ray.viewer.page import Page
from parc_ray.viewer.studio import Studio
from parc_ray.viewer.why import ErrorCurve, Explanation, error_curve, explain


class WhyPanel:
    """Words and a curve about the chosen clip."""

    def __init__(self, page: Page, studio: Studio) -> None:
        """Add the controls."""
        self.page, self.studio = page, studio
        self._busy = threading.Lock()
        gui = page.server.gui
        self.ask = gui.add_button("Why did it fail?", hint="Of the chosen clip")
        self.again = gui.add_button(
            "Track it again now", hint="Follow it with the run's tracker and see where it ends"
        )
        self.text = gui.add_markdown("Choose a clip, then ask.")
        empty = (np.array([0.0, 1.0]), np.zeros(2), np.zeros(2), np.zeros(2))
        self.plot = gui.add_uplot(
            empty,
            (
                uplot.Series(label="s"),
                uplot.Series(label="root (m)", stroke="#2d69a0", width=2),
                uplot.Series(label="worst body (m)", stroke="#d6191e", width=2),
                uplot.Series(label="its limit (m)", stroke="#999999", width=1),
            ),
            title="error over time",
            scales={"x": uplot.Scale(time=False)},
            aspect=1.8,
            visible=False,
        )
        self.ask.on_click(lambda _: self.show(self.page.session.key))
        self.again.on_click(self._again)

    def show(self, name: str) -> None:
        """Explain a clip, and show the motions that belong to it at the moment of the failure."""
        with self.page.trying():
            session = self.page.session
            told = explain(session.catalog, name, self.studio.config.tracking)
            self.say(told)
            if told.shown:
                session.key = told.shown[0]
                session.show(told.shown, "overlay")
                session.clock.playing = False
                session.clock.seek(told.at_s)
                self.page.show_figures()

    def say(self, told: Explanation) -> None:
        """Put an explanation into the panel."""
        self.text.content = "\n".join([f"**{told.clip_id}**", "", *_spaced(told.lines)])
        self.draw(told.curve)

    def draw(self, curve: ErrorCurve | None) -> None:
        """Draw error over time, or nothing."""
        self.plot.visible = curve is not None
        if curve is not None:
            body = int(np.argmax(curve.bodies[-1] / curve.limits))
            self.plot.title = f"error over time, worst body: {curve.names[body]}"
            limit = np.full_like(curve.times_s, curve.limits[body])
            self.plot.data = (curve.times_s, curve.root, curve.bodies[:, body], limit)

    def _again(self, event: Any) -> None:
        if not self._busy.acquire(blocking=False):
            self.page.say("Still at work", "wait until it is done", event.client, "yellow")
            return
        try:
            with self.page.working("Tracking", event.client):
                self._track()
        finally:
            self._busy.release()

    def _track(self) -> None:
        """A new try of the chosen clip; only what is shown is changed with the lock held."""
        session, catalog = self.page.session, self.page.session.catalog
        with self.page.lock:
            clip = session.chosen()
            chosen = session.key
            entry = catalog.entry(chosen)
        tried = self.studio.track(clip)
        curve = error_curve(clip, tried.clip, catalog.character, self.studio.config.tracking)
        end = f"ended by rule **{tried.reason}** at frame {tried.failed_frame}"
        told = Explanation(
            clip_id=entry.clip_id,
            lines=[
                f"Tracked again: {tried.steps} of {tried.wanted} steps, "
                + (end if tried.reason else "completed"),
                curve.text(),
            ],
            curve=curve,
        )
        with self.page.lock:
            key = catalog.add(tried.clip, "tried")
            if session.key != chosen:  # somebody went on to another clip meanwhile
                return
            self.say(told)
            session.show([entry.key, key], "overlay")
            session.clock.playing = False
            session.clock.seek(float(curve.times_s[-1]))
            self.page.show_figures()


def _spaced(lines: list[str]) -> list[str]:
    """Lines of Markdown: a blank one before each that begins no list item."""
    out: list[str] = []
    for line in lines:
        out += [line] if line.startswith("- ") else ["", line, ""]
    return out
