"""What the tracker study runs: goals per clip, named variants of a preset, and the runs."""

from __future__ import annotations

from typing import Any

GOALS = {"run30": 0.9, "stairs03": 0.8, "platform17": 0.8, "platform13": 0.8, "mid_climb02": 0.8}
"""Share of the standard test's episodes that must reach the clip's end."""

_BEFORE: dict[str, Any] = {
    "ppo.kl_target": 0.06,
    "ppo.lr_control": "iteration",
    "task.reward.root": 0.15,
    "task.reward.root_vel": 0.1,
    "task.reward.root_tight": 0.0,
}
_ROOT: dict[str, Any] = {
    "ppo.kl_target": 0.12,
    "ppo.lr_control": "minibatch",
    "task.reward.root": 0.3,
    "task.reward.root_vel": 0.15,
    "task.reward.root_tight": 0.5,
    "task.reward.root_tight_scale": 40.0,
}
_KL: dict[str, Any] = {**_BEFORE, "ppo.kl_target": 0.12, "ppo.lr_control": "minibatch"}
_SIZE: dict[str, Any] = {"ppo.bf16": False, "ppo.hidden": [256, 128]}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "small": ("quick", {**_SIZE, **_BEFORE}),
    "kl": ("quick", {**_SIZE, **_KL}),
    "root": ("quick", {**_SIZE, **_ROOT}),
    "wide": ("quick", {**_SIZE, **_ROOT, "ppo.hidden": [512, 256]}),
    "noise": ("quick", {**_SIZE, **_ROOT, "ppo.noise_memory": 0.5, "ppo.init_std": 0.2}),
    "fine": ("quick", {**_SIZE, **_ROOT, "cell_size": 0.2}),
}
"""Name to preset and changes by dotted key; `small` is `quick` as it was,
with a smaller network; the others change more. All are float32 and say every value that matters,
so that a preset may move on without changing what was measured."""

PLAN = (
    *(f"run30:root:{seed}:900" for seed in range(3)),
    "stairs03:fine:0:2400",
    "platform17:fine:0:3600",
    "mid_climb02:fine:0:3600",
    "platform13:fine:0:3600",
)
"""The runs, in the order in which they start: take:variant:seed:cpu_s."""
