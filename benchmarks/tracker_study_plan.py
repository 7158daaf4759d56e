"""What the tracker study runs: goals per clip, named variants of a preset, and the runs."""

from __future__ import annotations

from typing import Any

GOALS = {"run30": 0.9, "stairs03": 0.8, "platform17": 0.8, "platform13": 0.8, "mid_climb02": 0.8}
"""Share of the standard test's episodes that must reach the clip's end."""

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "quick": ("quick", {"ppo.bf16": False}),
    "small": ("quick", {"ppo.bf16": False, "ppo.hidden": [256, 128]}),
}
"""Name to preset and changes by dotted key; each changes what its name says. float32 everywhere."""

PLAN = ("run30:quick:0:900",)
"""The runs, in the order in which they start: take:variant:seed:cpu_s."""
