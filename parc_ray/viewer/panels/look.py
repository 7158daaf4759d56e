"""Comparison of versions, colours, path and height samples."""

from __future__ import annotations

from typing import Any

from parc_ray.viewer.page import Page
from parc_ray.viewer.scene import ARRANGEMENTS
from parc_ray.viewer.tint import LEGENDS, TINTS
from parc_ray.viewer.versions import version_name


class LookPanel:
    """How the chosen clip is shown."""

    def __init__(self, page: Page) -> None:
        """Add the controls."""
        self.page = page
        gui = page.server.gui
        self.compare = gui.add_checkbox(
            "Compare versions",
            page.session.compare,
            hint="Original, generated and recorded versions of the clip together",
        )
        self.arrangement = gui.add_dropdown(
            "Arrange", ARRANGEMENTS, initial_value=page.session.arrangement
        )
        self.versions = gui.add_markdown("")
        self.tint = gui.add_dropdown("Colours show", TINTS, initial_value=page.session.scene.tint)
        self.legend = gui.add_markdown(LEGENDS[page.session.scene.tint])
        self.path = gui.add_checkbox("Path nodes", page.canvas.show_path)
        self.samples = gui.add_checkbox(
            "Height-map samples", page.canvas.show_samples, hint="What the generator sees"
        )
        self._bind()
        page.listeners.append(self.refresh)
        self.refresh()

    def refresh(self) -> None:
        """Name the figures that are shown."""
        figures = self.page.session.scene.figures
        catalog = self.page.session.catalog
        lines = []
        for figure in figures[:8]:
            red, green, blue = figure.colour
            name = figure.title
            if figure.key in catalog.entries:
                name = f"{version_name(catalog.entries[figure.key])}: {figure.key}"
            lines.append(f'- <span style="color:rgb({red},{green},{blue})">■</span> {name}')
        alone = len(figures) == 1 and self.page.session.compare
        if alone:
            lines.append("\nThis clip has no other versions here.")
        self.versions.content = "\n".join(lines)
        if self.compare.value != self.page.session.compare:
            self.compare.value = self.page.session.compare

    def _bind(self) -> None:
        page = self.page

        @self.compare.on_update
        def _(event: Any) -> None:
            if event.client is not None:
                with page.trying():
                    page.session.set_compare(self.compare.value)
                    page.show_figures()

        @self.arrangement.on_update
        def _(_: Any) -> None:
            with page.trying():
                page.session.set_arrangement(self.arrangement.value)
                page.show_figures()

        @self.tint.on_update
        def _(_: Any) -> None:
            with page.trying():
                page.session.set_tint(self.tint.value)
                self.legend.content = LEGENDS[self.tint.value]
                page.redraw()

        @self.path.on_update
        def _(_: Any) -> None:
            with page.trying():
                page.canvas.show_path = self.path.value
                page.changed()

        @self.samples.on_update
        def _(_: Any) -> None:
            with page.trying():
                page.canvas.show_samples = self.samples.value
                page.redraw()
