"""Contact labels of the chosen clip, changed by hand and kept as a clip of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from parc_ray.viewer.labels import contact_spans, set_contact
from parc_ray.viewer.page import Page
from parc_ray.viewer.shelf import put


class LabelsPanel:
    """Which body touches from which frame to which."""

    def __init__(self, page: Page, out: str) -> None:
        """Add the controls; edited clips are kept below ``out``."""
        self.page, self.out = page, out
        gui = page.server.gui
        self.spans = gui.add_markdown("")
        self.body = gui.add_dropdown("Body", page.session.catalog.character.skeleton.body_names)
        self.first = gui.add_number("First frame", 0, min=0, step=1)
        self.last = gui.add_number("Last frame", 0, min=0, step=1)
        self.here = gui.add_button_group("Frame shown is", ("First", "Last"))
        self.value = gui.add_button_group("Set label", ("Touches", "Free"))
        self.keep = gui.add_button("Save labels as a new clip")
        self._bind()
        page.listeners.append(self.refresh)
        self.refresh()

    def refresh(self) -> None:
        """List the labels of the chosen clip."""
        if not self.page.session.key:
            self.spans.content = "Choose a clip first."
            return
        clip = self.page.session.chosen()
        spans = contact_spans(clip, self.page.session.catalog.character)
        rows = [
            f"- **{body}**: {', '.join(f'{a} to {b}' for a, b in found[:8])}"
            f"{' and more' if len(found) > 8 else ''}"
            for body, found in spans.items()
        ]
        self.spans.content = "\n".join([f"Touching, of {clip.num_frames} frames:", "", *rows])

    def _bind(self) -> None:
        page = self.page

        @self.here.on_click
        def _(_: Any) -> None:
            with page.trying():
                frame = page.session.chosen_frame()
                (self.first if self.here.value == "First" else self.last).value = frame

        @self.value.on_click
        def _(_: Any) -> None:
            with page.trying():
                self._set(1.0 if self.value.value == "Touches" else 0.0)

        @self.keep.on_click
        def _(event: Any) -> None:
            with page.trying(event.client):
                clip = page.session.chosen()
                place = f"{self.out.rstrip('/')}/clips"
                kept, _ = put(place, clip, page.session.catalog.character)
                page.say("Saved", f"{place}: {kept}", event.client)

    def _set(self, value: float) -> None:
        session, clip = self.page.session, self.page.session.chosen()
        changed = set_contact(
            clip,
            session.catalog.character,
            self.body.value,
            int(self.first.value),
            int(self.last.value),
            value,
        )
        if not clip.clip_id.endswith("_labels"):
            provenance = replace(
                clip.provenance,
                parents=(clip.clip_id,),
                notes=f"{clip.provenance.notes}; contact labels edited".strip("; "),
            )
            name = f"{clip.clip_id}_labels"
            changed = replace(changed, clip_id=name, provenance=provenance, replay=None)
        at = session.clock.time_s
        session.select(session.catalog.add(changed, "edit"))
        session.clock.seek(at)
        session.set_tint("contacts")
        self.page.changed()
