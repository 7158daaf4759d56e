"""Bytes changed at random: a motion without NaN, or one refusal, never anything else."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from parc_ray.data.importers import load_raw
from parc_ray.errors import InputError

from . import files


@pytest.mark.parametrize("kind", ["mimickit", "parc_ms", "deepmimic"])
def test_random_damage_never_escapes(kind, tmp_path, humanoid):
    path = tmp_path / "d.pkl"
    if kind == "deepmimic":
        files.deepmimic(path, files.deepmimic_rows(frames=4))
    else:
        getattr(files, kind)(path, humanoid, frames=4)
    whole = np.frombuffer(path.read_bytes(), dtype=np.uint8)
    rng = np.random.default_rng(1)
    outcomes = set()
    for _ in range(250):
        damaged = whole.copy()
        damaged[rng.integers(0, len(whole), size=2)] = rng.integers(0, 256, size=2)
        path.write_bytes(damaged.tobytes())
        try:
            raw = load_raw(path, humanoid)
            assert bool(torch.isfinite(raw.root_pos).all())
            outcomes.add("read")
        except InputError:
            outcomes.add("refused")
    assert "refused" in outcomes
