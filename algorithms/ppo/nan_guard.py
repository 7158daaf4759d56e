"""What a diverged training leaves behind, and how to look at it."""

from __future__ import annotations

from pathlib import Path

import torch

from algorithms.ppo.module import ActorCritic
from algorithms.ppo.policy import read_safe, write_atomic
from algorithms.ppo.rollout import Rollout

FORMAT = "parc-ray/nan-dump"


def dump_rollout(path: Path, rollout: Rollout, module: ActorCritic) -> Path:
    """Write the fragment and the weights at the moment of failure; returns ``path``."""
    payload = {
        "format": FORMAT,
        "version": 1,
        "rollout": {k: v.detach().cpu().clone() for k, v in rollout.to_dict().items()},
        "module": {k: v.detach().cpu().clone() for k, v in module.state_dict().items()},
    }
    write_atomic(path, payload)
    return path


def describe_dump(path: str | Path) -> list[str]:
    """Say what is not finite in a dump.

    Args:
        path: file written by :func:`dump_rollout`.

    Returns:
        One line per tensor that holds NaN or infinity: its name, how many numbers, and for
        fragments the first control step and environment; empty if everything is finite.
    """
    payload = read_safe(Path(path), FORMAT, 1)
    lines = []
    for group in ("rollout", "module"):
        for name, tensor in payload[group].items():
            if not tensor.is_floating_point():
                continue
            bad = torch.nonzero(~torch.isfinite(tensor))
            if len(bad):
                where = ", ".join(str(int(i)) for i in bad[0])
                lines.append(f"{group}.{name}: {len(bad)} not finite, first at [{where}]")
    return lines
