"""The page in headless Chromium, as a first-time user meets it: what is asked for is found by name.

Screenshots go to ``artifacts/viewer/`` (git-ignored), or to ``$PARC_ARTIFACTS/viewer``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from parc_ray.character.character import Character
from parc_ray.data.store import load_dataset, save_dataset
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.tools.runs import open_run
from parc_ray.viewer.catalog import open_catalog
from parc_ray.viewer.server import free_port, open_page
from parc_ray.viewer.session import Session
from parc_ray.viewer.studio import Studio
from tests.viewer.helpers import generated, recorded

if TYPE_CHECKING:
    from parc_ray.viewer.page import Page

pytest.importorskip("viser", reason="extra 'view' is not installed")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")


def _chromium() -> tuple[str | None, str]:
    """A Chromium that starts, or None and why there is none."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        return None, "no chromium here; `apt-get install chromium` brings it"
    try:
        asked = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"{found} cannot start: {error}"
    if asked.returncode != 0:  # such as the stub that asks for a snap
        return None, f"{found} cannot start: {(asked.stderr or asked.stdout).strip()[:200]}"
    return found, ""


CHROMIUM, NO_CHROMIUM = _chromium()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)]
ARTIFACTS = Path(os.environ.get("PARC_ARTIFACTS", Path(__file__).parents[2] / "artifacts"))
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WAIT_MS = 120_000


class User:
    """Looks for things by what is written on them."""

    def __init__(self, tab, page: Page) -> None:
        self.tab, self.page = tab, page

    def press(self, name: str) -> None:
        self.tab.get_by_role("button", name=name, exact=True).first.click()

    def open(self, name: str) -> None:
        self.tab.get_by_role("tab", name=name).click()

    def tick(self, label: str) -> None:
        self.tab.get_by_label(label, exact=True).first.click()

    def choose(self, label: str, option: str) -> None:
        self.tab.get_by_label(label, exact=True).first.click()
        self.tab.get_by_role("option", name=option, exact=True).first.click()

    def until(self, true: Callable[[], object], what: str) -> None:
        """Give the page time; tests say what shall come, not when."""
        for _ in range(WAIT_MS // 50):
            if true():
                return
            self.tab.wait_for_timeout(50)
        self.picture("failed")
        pytest.fail(f"it did not come: {what}")

    def press_until(
        self, what, keys: tuple[str, ...], true: Callable[[], object], said: str
    ) -> None:
        """Press keys, again where the page's own last change came in between."""
        for _ in range(WAIT_MS // 10_000):
            for key in keys:
                what.press(key)
            for _ in range(200):
                if true():
                    return
                self.tab.wait_for_timeout(50)
        self.picture("failed")
        pytest.fail(f"it did not come: {said}")

    def click_until(self, x: int, y: int, true: Callable[[], object], what: str) -> None:
        """Click into the picture, again every few seconds: one that is not drawn takes no click."""
        for _ in range(WAIT_MS // 10_000):
            self.tab.mouse.click(x, y)
            for _ in range(200):
                if true():
                    return
                self.tab.wait_for_timeout(50)
        self.picture("failed")
        pytest.fail(f"it did not come: {what}")

    def picture(self, name: str) -> None:
        self.tab.wait_for_timeout(300)
        path = ARTIFACTS / "viewer" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        self.tab.screenshot(path=str(path), timeout=WAIT_MS)
        assert path.stat().st_size > 5000


@pytest.fixture(scope="module")
def user(
    tmp_path_factory: pytest.TempPathFactory, tiny_run: Path, humanoid: Character
) -> Iterator[User]:
    """A page on a data set of a motion with its recording, with the models of the tiny run."""
    home = tmp_path_factory.mktemp("browser")
    source = generated(humanoid)
    flat = generated(humanoid, "flat", terrain=Heightfield.flat((16, 16)))
    clips = [source, recorded(humanoid, source), replace(flat, metrics={"tpl": 0.1})]
    save_dataset(home / "set", "set", clips, humanoid.digest)
    session = Session(catalog=open_catalog(str(home / "set"), humanoid))
    session.select("walk")
    studio = Studio(
        character=humanoid,
        config=open_run(str(tiny_run))[1],
        generator_path=tiny_run / "it_01/train-generator/generator.pt",
        tracker_path=tiny_run / "it_01/train-tracker/policy.pt",
    )
    port = free_port("127.0.0.1", 0)
    page = open_page(session, "127.0.0.1", port, studio, str(home / "out"))
    with playwright.sync_playwright() as play:
        context = play.chromium.launch_persistent_context(
            str(home / "profile"),
            executable_path=CHROMIUM,
            headless=True,
            timeout=WAIT_MS,
            args=list(FLAGS),
            viewport={"width": 1000, "height": 700},
        )
        context.set_default_timeout(WAIT_MS)
        tab = context.pages[0]
        # Half the resolution: Chromium draws in software here.
        tab.goto(f"http://127.0.0.1:{port}/?fixedDpr=0.5")
        with contextlib.suppress(playwright.TimeoutError):  # that WebGL is done in software
            tab.locator(".mantine-Notification-closeButton").first.click(timeout=20_000)
        yield User(tab, page)
        context.close()
    page.close()


def test_a_data_set_is_opened_played_and_scrubbed(user):
    clock = user.page.session.clock
    user.press("Play")
    user.until(lambda: clock.time_s > 0.2, "time goes on")
    user.press("Pause")
    user.until(lambda: not clock.playing, "a halt")
    slider = user.tab.get_by_role("slider").first
    user.press_until(slider, ("Home",), lambda: clock.time_s < 0.05, "the beginning")
    user.press_until(slider, ("ArrowRight",) * 20, lambda: clock.time_s > 0.1, "a later place")
    user.picture("1_clip")


def test_versions_are_compared(user):
    session = user.page.session
    user.open("Compare")
    user.tick("Compare versions")
    user.until(lambda: len(session.scene.figures) == 2, "both versions")
    user.picture("2_overlay")
    user.choose("Arrange", "side by side")
    user.until(lambda: session.scene.figures[1].terrain_shown, "side by side")
    user.choose("Colours show", "contacts")
    user.until(lambda: session.scene.tint == "contacts", "contact colours")
    user.picture("3_side_by_side")


def test_lineage_is_followed(user):
    session = user.page.session
    user.open("Clips")
    user.press("Became: set/walk_tracked")
    user.until(lambda: session.key == "set/walk_tracked", "the recording")
    user.press("Made from: set/walk")
    user.until(lambda: session.key == "set/walk", "its source")


def test_clips_are_chosen_and_filtered(user):
    session = user.page.session
    user.choose("Clip", "set/flat")
    user.until(lambda: session.key == "set/flat", "the chosen clip")
    user.tab.get_by_text("Filter and sort").first.click()
    user.choose("Made by", "tracker")
    user.until(lambda: session.filter.maker == "tracker", "the filter")
    assert [entry.clip_id for entry in session.listed()] == ["walk_tracked"]
    user.tab.get_by_text("1 of 3 clips").first.wait_for()
    user.choose("Made by", "any")
    user.until(lambda: len(session.listed()) == 3, "all clips")
    assert session.key == "set/flat"


def test_a_terrain_is_edited_a_motion_generated_and_saved(user, humanoid):
    """Clicks go through the browser's own ray to the ground; what lies there is changed."""
    user.open("Edit")
    user.press("Edit a new flat terrain")
    user.until(lambda: user.page.ground is not None, "the ground")
    user.click_until(330, 400, lambda: bool(user.page.ground.heights.any()), "a raised cell")
    assert int((user.page.ground.heights > 0).sum()) == 1
    user.press("Undo")
    user.until(lambda: not user.page.ground.heights.any(), "flat again")
    user.choose("Tool", "box")
    user.click_until(360, 300, lambda: bool(user.page.ground.heights.any()), "a box")
    user.choose("Tool", "way-point")
    for number, x in enumerate((220, 460)):
        user.click_until(
            x, 420, lambda n=number: len(user.page.paths["way-points"]) > n, "a way-point"
        )
    user.press("Generate")
    user.until(lambda: "planned" in user.page.paths, "a path")
    user.until(lambda: user.page.session.key.startswith("edit/"), "a motion")
    user.picture("4_generated")
    user.press("Save as clip")
    user.until(lambda: list(_out(user).glob("clips/manifest.json")), "a saved clip")
    manifest, clips = load_dataset(_out(user) / "clips")
    assert manifest.rows == 1
    assert bool(clips[0].terrain.heights.any())
    assert clips[0].path_nodes is not None


def test_a_failure_is_explained(user):
    session = user.page.session
    session.select("flat")
    user.page.changed()
    user.open("Why")
    user.press("Track it again now")
    user.until(lambda: any(k.startswith("tried/") for k in session.catalog.entries), "a try")
    user.tab.get_by_text("Tracked again").first.wait_for()
    user.picture("5_why")


def test_a_character_is_steered_by_keys(user):
    user.page.session.select("flat")
    user.page.show_figures()
    user.open("Drive")
    user.press("Drive on this ground")
    user.tab.get_by_text("steps a second").first.wait_for()
    figures = user.page.session.scene.figures
    assert [figure.key for figure in figures] == ["drive", "drive"]
    user.tab.mouse.click(300, 400)
    user.tab.keyboard.press("ArrowDown")
    user.tab.get_by_text("speed 75 %").first.wait_for()
    user.picture("6_drive")
    user.press("Stop driving")
    user.until(lambda: user.tab.get_by_role("button", name="Stop driving").count() == 0, "its end")


def _out(user: User) -> Path:
    return Path(user.page.session.catalog.where).parent / "out"
