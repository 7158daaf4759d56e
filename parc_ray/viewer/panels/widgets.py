"""Controls with the types that the panels need."""

from __future__ import annotations

from collections.abc import Sequence

import viser


def dropdown(
    gui: viser.GuiApi, label: str, options: Sequence[str], hint: str | None = None
) -> viser.GuiDropdownHandle[str]:
    """A choice among texts that may change later."""
    texts: list[str] = list(options)
    return gui.add_dropdown(label, texts, hint=hint)
