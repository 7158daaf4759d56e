"""The page: one session drawn by one viser server, a thread that plays, panels that steer."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import viser
from numpy.typing import NDArray

from parc_ray.errors import InputError, find_input_error
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.viewer.canvas import Canvas
from parc_ray.viewer.session import Session

RATE_HZ = 30.0
_GUI_S = 0.1
_LIVE_S = 2.0
_LOG = logging.getLogger(__name__)
_VIEW = np.array([-1.7, -3.2, 1.5])


class Page:
    """What all connected browsers see.

    Attributes:
        session: what is shown.
        server: of viser.
        canvas: its scene.
        lock: held by whoever changes session or scene.
        follow: whether the camera goes along with the first figure.
        ground: a ground shown instead of the figures', while a terrain is edited.
        paths: paths (M, 3) m that are drawn besides those of the figures, by name.
        listeners: called after another clip or comparison is shown.
        clocks: called a few times a second with the lock held; move what shows the time.
        closers: called when the page closes, without the lock; end what works for it.
        tickers: called at every turn with the lock held and the seconds that went by.
    """

    def __init__(self, session: Session, server: viser.ViserServer) -> None:
        """Draw the session's present state; the panels are added by the caller."""
        self.session, self.server = session, server
        self.canvas = Canvas(server)
        self.lock = threading.RLock()
        self.follow = True
        self.ground: Heightfield | None = None
        self.paths: dict[str, NDArray[Any]] = {}
        self.listeners: list[Callable[[], None]] = []
        self.clocks: list[Callable[[], None]] = []
        self.tickers: list[Callable[[float], None]] = []
        self.closers: list[Callable[[], None]] = []
        self._seen: NDArray[np.float64] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        server.on_client_connect(self._greet)

    def start(self) -> None:
        """Begin to play."""
        self._thread.start()

    def close(self) -> None:
        """End what works for the page, stop playing and close the server."""
        for closer in self.closers:
            closer()
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)
        self.server.stop()

    def changed(self) -> None:
        """Draw everything anew and tell the panels."""
        with self.lock:
            self.canvas.rebuild(self.session.scene, self.ground, self.paths)
            self.redraw()
            for listener in self.listeners:
                listener()

    def show_figures(self) -> None:
        """After other clips were chosen: leave the ground that was edited, and look at them."""
        with self.lock:
            self.ground, self.paths = None, {}
            self.canvas.watch_ground(None)
            self.changed()
            self.look_at_figures()

    def redraw(self) -> None:
        """Move the figures to the present time."""
        with self.lock:
            self.canvas.draw(self.session.scene, self.session.clock.time_s)
            self._go_along()

    @contextmanager
    def trying(self, client: viser.ClientHandle | None = None) -> Iterator[None]:
        """Hold the lock; what the user can mend is said on the page instead of raised."""
        try:
            with self.lock:
                yield
        except Exception as error:
            self.complain(error, client)

    @contextmanager
    def working(self, title: str, client: viser.ClientHandle | None = None) -> Iterator[None]:
        """Something long, without the lock: the page stays alive, and says that it is at work.

        What the user can mend is said on the page instead of raised.
        """
        note = None
        if client is not None:
            note = client.add_notification(title, "this takes some seconds", loading=True)
        try:
            yield
        except Exception as error:
            self.complain(error, client)
        finally:
            if note is not None:
                note.remove()

    def complain(self, error: Exception, client: viser.ClientHandle | None = None) -> None:
        """Say an error on the page; what is no mistake of the user's is logged besides."""
        mendable = find_input_error(error)
        if mendable is None:
            _LOG.error("the page could not do what was asked", exc_info=error)
            mendable = InputError(f"{type(error).__name__}: {error}; the log says more")
        self.say("Not possible", str(mendable), client, "red")

    def say(
        self, title: str, text: str, client: viser.ClientHandle | None = None, colour: Any = "green"
    ) -> None:
        """A notice on one page, or on all."""
        clients = [client] if client is not None else list(self.server.get_clients().values())
        for one in clients:
            one.add_notification(title, text, auto_close_seconds=8.0, color=colour)

    def look_at_figures(self) -> None:
        """Put the cameras of all pages to the side of what is shown."""
        for client in self.server.get_clients().values():
            self._place_camera(client)

    def _greet(self, client: viser.ClientHandle) -> None:
        self._place_camera(client)

    def _place_camera(self, client: viser.ClientHandle) -> None:
        with self.lock:
            figures = self.session.scene.figures
            if figures:
                places = np.stack([f.root(self.session.clock.time_s) for f in figures])
                middle, spread = places.mean(0), float(np.ptp(places[:, :2], axis=0).max())
            elif self.ground is not None:
                low, high = self.ground.extent
                middle = np.array([*((low + high) / 2).tolist(), 0.0])
                spread = float((high - low).max())
            else:
                middle, spread = np.zeros(3), 0.0
        client.camera.position = middle + _VIEW * (1.0 + 0.22 * spread)
        client.camera.look_at = middle
        self._seen = None

    def _go_along(self) -> None:
        figures = self.session.scene.figures
        if not figures or not self.follow:
            self._seen = None
            return
        root = figures[0].root(self.session.clock.time_s).astype(float)
        if self._seen is not None and (moved := root - self._seen).any():
            for client in self.server.get_clients().values():
                if client.camera._state.update_timestamp != 0.0:
                    client.camera.position = client.camera.position + moved
        self._seen = root

    def _run(self) -> None:
        """Play until closed."""
        last = shown = asked = time.monotonic()
        while not self._stop.wait(max(0.0, 1.0 / RATE_HZ - (time.monotonic() - last))):
            now = time.monotonic()
            passed, last = now - last, now
            try:
                with self.lock:
                    for ticker in self.tickers:
                        ticker(passed)
                    if self.session.clock.advance(passed):
                        self.redraw()
                    if now - shown > _GUI_S:
                        shown = now
                        for clock in self.clocks:
                            clock()
                if now - asked > _LIVE_S:
                    asked = now
                    self._look_for_new()
            except Exception:
                _LOG.exception("playback")

    def _look_for_new(self) -> None:
        """Parts that a running loop has written since."""
        catalog = self.session.catalog
        if not catalog.is_run:
            return
        try:
            found = catalog.scan()
            with self.lock:
                new = catalog.take(found)
                for listener in self.listeners if new else ():
                    listener()
        except InputError as error:
            _LOG.warning("%s", error)
            return
        if new:
            self.say("New clips", f"{len(new)} new, the last {new[-1]}")
