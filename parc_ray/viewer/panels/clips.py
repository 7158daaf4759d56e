"""List, filter and sort clips; figures and lineage of the chosen one."""

from __future__ import annotations

from typing import Any

import viser

from parc_ray.errors import InputError
from parc_ray.viewer.filters import ANY, SORT_FIELDS, ClipFilter, choices
from parc_ray.viewer.page import Page
from parc_ray.viewer.panels.widgets import dropdown
from parc_ray.viewer.session import MOST_FIGURES
from parc_ray.viewer.versions import version_name

_LINKS = 4
_MOST_LISTED = 2000
_NONE = "(none)"


class ClipsPanel:
    """Which clip is looked at."""

    def __init__(self, page: Page) -> None:
        """Add the controls and list the catalogue."""
        self.page = page
        gui = page.server.gui
        self.count = gui.add_markdown("")
        self.clip = dropdown(gui, "Clip", (_NONE,), hint="Type to search")
        self.walk = gui.add_button_group("Go to", ("Previous", "Next"))
        self.many = gui.add_button(
            f"Show up to {MOST_FIGURES} of the list", icon=viser.Icon.GRID_DOTS
        )
        with gui.add_folder("Filter and sort", expand_by_default=False):
            self.text = gui.add_text("Name has", "")
            self.iteration = dropdown(gui, "Iteration", (ANY,))
            self.class_name = dropdown(gui, "Class", (ANY,))
            self.maker = dropdown(gui, "Made by", (ANY,))
            self.metric = dropdown(gui, "Figure", (_NONE,))
            self.low = gui.add_text("at least", "")
            self.high = gui.add_text("at most", "")
            self.sort = dropdown(gui, "Sort by", SORT_FIELDS)
            self.descending = gui.add_checkbox("Greatest first", False)
        with gui.add_folder("This clip"):
            self.facts = gui.add_markdown("")
            self.parents = [gui.add_button("", visible=False) for _ in range(_LINKS)]
            self.children = [gui.add_button("", visible=False) for _ in range(_LINKS)]
            with gui.add_folder("Figures", expand_by_default=False):
                self.figures = gui.add_markdown("")
        self._keys: dict[str, str] = {}
        self._links: dict[int, str] = {}
        self._bind()
        page.listeners.append(self.refresh)
        self.refresh()

    def refresh(self) -> None:
        """Show the session's list and clip."""
        self._refresh_choices()
        listed = self.page.session.listed()
        entries = listed[:_MOST_LISTED]
        self._keys = {entry.key: entry.key for entry in entries}
        key = self.page.session.key
        options = tuple(self._keys) or (_NONE,)
        if key and key not in self._keys:
            options = (key, *options)
        if tuple(self.clip.options) != options:
            self.clip.options = options
        if key and self.clip.value != key:
            self.clip.value = key
        total = len(self.page.session.catalog.entries)
        more = f", the first {_MOST_LISTED} listed" if len(listed) > _MOST_LISTED else ""
        self.count.content = f"**{len(listed)}** of {total} clips{more}"
        self._refresh_facts()

    def _refresh_choices(self) -> None:
        known = choices(self.page.session.catalog.entries.values())
        for handle, values in (
            (self.iteration, known["iteration"]),
            (self.class_name, known["class"]),
            (self.maker, known["maker"]),
            (self.metric, [_NONE, *known["metric"]]),
            (self.sort, [*SORT_FIELDS, *known["metric"]]),
        ):
            if tuple(handle.options) != tuple(values):
                handle.options = tuple(values)

    def _refresh_facts(self) -> None:
        session = self.page.session
        buttons = [*self.parents, *self.children]
        for button in buttons:
            button.visible = False
        if not session.key:
            self.facts.content, self.figures.content = "Choose a clip above.", ""
            return
        catalog, entry = session.catalog, session.catalog.entry(session.key)
        made = entry.provenance
        lines = [
            f"**{entry.clip_id}**  ",
            f"{version_name(entry)}, {entry.seconds:.2f} s, iteration {made.iteration}"
            + (f", class {made.class_name}" if made.class_name else "")
            + "  ",
        ]
        if made.source:
            lines.append(f"source {made.source}" + (f" ({made.licence})" if made.licence else ""))
        self.facts.content = "\n".join(lines)
        rows = [f"| {k} | {v:.4g} |" for k, v in sorted(entry.metrics.items())]
        table = ["| figure | value |", "|---|---|", *rows]
        self.figures.content = "\n".join(table) if rows else "None are stored with this clip."
        self._links = {}
        for slots, keys, word in (
            (self.parents, catalog.parents(entry.key), "Made from"),
            (self.children, catalog.children(entry.key), "Became"),
        ):
            for button, key in zip(slots, keys, strict=False):
                button.label, button.visible = f"{word}: {key}", True
                self._links[id(button)] = key

    def _bind(self) -> None:
        page = self.page

        @self.clip.on_update
        def _(event: Any) -> None:
            if event.client is not None and self.clip.value in self._keys:
                self._select(self.clip.value)

        @self.walk.on_click
        def _(_: Any) -> None:
            with page.trying():
                page.session.step_clip(1 if self.walk.value == "Next" else -1)
                page.show_figures()

        @self.many.on_click
        def _(_: Any) -> None:
            with page.trying():
                keys = [entry.key for entry in page.session.listed()[:MOST_FIGURES]]
                page.session.show(keys, "side by side")
                page.show_figures()

        for button in (*self.parents, *self.children):

            @button.on_click
            def _(event: viser.GuiEvent[Any]) -> None:
                self._select(self._links[id(event.target)])

        for handle in (
            self.text,
            self.iteration,
            self.class_name,
            self.maker,
            self.metric,
            self.low,
            self.high,
            self.sort,
            self.descending,
        ):
            handle.on_update(self._filter)

    def _select(self, key: str) -> None:
        with self.page.trying():
            self.page.session.select(key)
            self.page.show_figures()

    def _filter(self, event: Any) -> None:
        if event.client is None:  # options that changed, not the user
            return
        with self.page.trying():
            self.page.session.filter = ClipFilter(
                text=self.text.value,
                iteration=self.iteration.value,
                class_name=self.class_name.value,
                maker=self.maker.value,
                metric="" if self.metric.value == _NONE else self.metric.value,
                low=_number("at least", self.low.value, -float("inf")),
                high=_number("at most", self.high.value, float("inf")),
                sort=self.sort.value,
                descending=self.descending.value,
            )
            self.refresh()


def _number(name: str, text: str, otherwise: float) -> float:
    if not text.strip():
        return otherwise
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{name}: {text!r} is no number; give one or leave it empty") from None
