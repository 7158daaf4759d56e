"""The page and its panels on a server without a browser: who may change what at the same time."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from parc_ray.data.storage import Storage
from parc_ray.data.store import save_dataset
from parc_ray.recipes import get_recipe
from parc_ray.viewer.catalog import Catalog, open_catalog
from parc_ray.viewer.session import Session
from tests.viewer.helpers import generated, recorded, step_terrain

viser = pytest.importorskip("viser", reason="extra 'view' is not installed")


@pytest.fixture
def serve():
    """Pages of sessions, on free ports of this machine."""
    from parc_ray.viewer.page import Page

    pages = []

    def make(catalog: Catalog) -> Page:
        server = viser.ViserServer(host="127.0.0.1", port=0, verbose=False)
        pages.append(Page(Session(catalog=catalog), server))
        return pages[-1]

    yield make
    for page in pages:
        page.close()


def test_a_run_is_read_without_the_lock_and_listed_with_it(serve, tmp_path, humanoid, monkeypatch):
    """The editor adds a clip from another thread, with the lock held, while the run is read."""
    Storage.from_uri(tmp_path / "r").write_bytes_atomic("config.yaml", b"{}")
    page = serve(open_catalog(str(tmp_path / "r"), humanoid))
    catalog = page.session.catalog
    replaced = []

    def add():
        with page.lock:
            catalog.add(generated(humanoid, "made"), "edit")

    def slow(*_):
        worker = threading.Thread(target=add)
        worker.start()
        worker.join(timeout=20.0)
        assert not worker.is_alive()
        return []

    true_replace = catalog._replace

    def try_lock():
        free = page.lock.acquire(blocking=False)
        replaced.append(not free)
        if free:
            page.lock.release()

    def watched(entries):
        other = threading.Thread(target=try_lock)
        other.start()
        other.join()
        true_replace(entries)

    monkeypatch.setattr("parc_ray.viewer.catalog._run_entries", slow)
    monkeypatch.setattr(catalog, "_replace", watched)
    page._look_for_new()
    assert replaced == [True, True]
    assert list(catalog.entries) == ["edit/made"]


@pytest.fixture
def compared(serve, tmp_path, humanoid):
    """A page that compares a motion with its recording, of which the recording is chosen."""
    source = generated(humanoid)
    later = replace(recorded(humanoid, source), terrain=step_terrain(0.7))
    save_dataset(tmp_path / "set", "set", [source, later], humanoid.digest)
    page = serve(open_catalog(str(tmp_path / "set"), humanoid))
    page.session.set_compare(True)
    page.session.select("walk_tracked")
    assert [figure.key for figure in page.session.scene.figures] == ["set/walk", "set/walk_tracked"]
    return page


def test_labels_are_those_of_the_chosen_clip_also_in_a_comparison(compared, tmp_path):
    from parc_ray.viewer.panels.labels import LabelsPanel

    session = compared.session
    count = session.chosen().num_frames
    panel = LabelsPanel(compared, str(tmp_path / "out"))
    assert f"of {count} frames" in panel.spans.content
    session.clock.seek(0.5)  # the recording begins 6 frames, 0.2 s, later
    assert session.chosen_frame() == 9
    panel._set(1.0)
    assert session.key == "edit/walk_tracked_labels"
    assert session.chosen().provenance.parents == ("walk_tracked",)


def test_the_terrain_of_the_chosen_clip_is_edited_also_in_a_comparison(compared, tmp_path):
    from parc_ray.viewer.panels.edit import EditPanel
    from parc_ray.viewer.studio import Studio
    from parc_ray.viewer.workbench import Workbench

    session = compared.session
    studio = Studio(character=session.catalog.character, config=get_recipe("quick"))
    panel = EditPanel(compared, Workbench(studio=studio, out=str(tmp_path)))
    panel._begin(panel._clip_terrain)
    assert [figure.key for figure in session.scene.figures] == ["set/walk_tracked"]
    heights = panel.bench.terrain.terrain.heights
    assert torch.equal(heights, session.catalog.clip("set/walk_tracked").terrain.heights)
    assert not torch.equal(heights, session.catalog.clip("set/walk").terrain.heights)


class Drives:
    """Stands for ``LiveDrive``: counts those that were made and closed, and stands still."""

    def __init__(self, clip):
        self.clip, self.made, self.closed = clip, 0, 0
        self.going, self.fault = threading.Event(), None

    def __call__(self, **_):
        self.made += 1
        self.going.wait(timeout=20.0)
        return SimpleNamespace(
            plan=self.clip,
            generator=SimpleNamespace(fps=30.0),
            pose=lambda: self.clip.frames.time(0, 1),
            frame=0,
            step=self.step,
            close=self.close,
        )

    def step(self):
        if self.fault is not None:
            raise self.fault

    def close(self):
        self.closed += 1


@pytest.fixture
def driven(compared, monkeypatch):
    """The drive's panel, its drives and its page."""
    from parc_ray.viewer.panels import drive
    from parc_ray.viewer.studio import Studio

    drives = Drives(compared.session.chosen())
    monkeypatch.setattr(drive, "LiveDrive", drives)
    monkeypatch.setattr(drive.DrivePanel, "_tell", lambda *_: None)
    studio = Studio(character=compared.session.catalog.character, config=get_recipe("quick"))
    return drive.DrivePanel(compared, studio), drives, compared


def until(true):
    for _ in range(2000):
        if true():
            return
        time.sleep(0.01)
    pytest.fail("it did not come")


def test_a_double_click_makes_one_drive_and_closing_ends_it(driven):
    panel, drives, page = driven
    shown = [figure.key for figure in page.session.scene.figures]
    click = SimpleNamespace(client=None)
    first = threading.Thread(target=panel._begin, args=(click,))
    first.start()
    until(lambda: drives.made == 1)
    panel._begin(click)  # the second click, while the first is at work
    drives.going.set()
    first.join(timeout=20.0)
    assert drives.made == 1
    assert [figure.key for figure in page.session.scene.figures] == ["drive", "drive"]
    panel._begin(click)  # a new one ends the old one
    assert (drives.made, drives.closed) == (2, 1)
    thread = panel._ride.thread
    page.close()
    assert not thread.is_alive()
    assert drives.closed == 2
    assert [figure.key for figure in page.session.scene.figures] == shown


def test_a_drive_that_fails_ends_visibly(driven, monkeypatch):
    panel, drives, page = driven
    shown = [figure.key for figure in page.session.scene.figures]
    drives.going.set()
    monkeypatch.setattr(panel, "_show", lambda _: 1 / 0)
    panel._begin(SimpleNamespace(client=None))
    until(lambda: drives.closed == 1 and panel._ride is None)
    with page.lock:
        assert "The drive has ended" in panel.state.content
        assert not panel.end.visible
        assert [figure.key for figure in page.session.scene.figures] == shown


def test_the_page_stays_alive_while_a_drive_is_prepared_and_a_motion_tracked(driven, monkeypatch):
    """Long work holds no lock: who looks, plays and scrubs needs it."""
    from parc_ray.viewer.panels import why
    from parc_ray.viewer.studio import Tried

    panel, drives, page = driven
    free = []

    def try_lock():
        if page.lock.acquire(blocking=False):
            page.lock.release()
            free.append(True)

    def look():
        other = threading.Thread(target=try_lock)
        other.start()
        other.join()

    drives.going.set()
    true_call = Drives.__call__
    monkeypatch.setattr(Drives, "__call__", lambda self, **words: (look(), true_call(self))[1])
    panel._begin(SimpleNamespace(client=None))
    assert len(free) == 1
    panel._end()
    source = page.session.catalog.clip("set/walk")
    page.session.select("set/walk")
    tried = Tried(
        clip=replace(source, clip_id="again"), reason="", failed_frame=None, steps=45, wanted=45
    )

    def track(clip):
        assert clip is source
        look()
        return tried

    reasons = why.WhyPanel(page, panel.studio)
    monkeypatch.setattr(panel.studio, "track", track)
    reasons._again(SimpleNamespace(client=None))
    assert len(free) == 2
    assert "45 of 45 steps, completed" in reasons.text.content
    assert [figure.key for figure in page.session.scene.figures] == ["set/walk", "tried/again"]
