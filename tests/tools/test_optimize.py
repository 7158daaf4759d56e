"""``parc optimize``: clips come out of the ground, and the table says so."""

from __future__ import annotations

import re

import pytest
import torch

from parc_ray import cli
from parc_ray.data.importers import import_path
from parc_ray.data.store import load_dataset, save_dataset
from parc_ray.evaluation.metrics import clip_metrics
from tests.data import files


def sunk(path, character):
    """A walking motion on flat ground, lowered into it by 10 cm; contacts none."""

    def change(parts):
        motion = parts["motion_data"]
        motion["root_pos"][:, 2] -= 0.1
        motion["body_contacts"][:] = 0.0

    files.parc_ms(path, character, frames=20, change=change, hf=torch.zeros(6, 6).numpy())


def test_penetration_goes_down_and_is_printed(tmp_path, humanoid, capsys):
    sunk(tmp_path / "sunk.pkl", humanoid)
    before = import_path(tmp_path / "sunk.pkl", humanoid)
    save_dataset(tmp_path / "in", "D", before, humanoid.digest)
    words = ["--iterations", "120", "--synthesis.optimizer.lr", "0.002"]
    with pytest.raises(SystemExit) as caught:
        cli.main(["optimize", str(tmp_path / "in"), "--out", str(tmp_path / "out"), *words])
    out = capsys.readouterr().out
    assert caught.value.code == 0
    manifest, after = load_dataset(tmp_path / "out")
    assert (manifest.name, [c.clip_id for c in after]) == ("out", ["sunk"])
    old, new = (clip_metrics(c[0], humanoid, "paper")["tpl"] for c in (before, after))
    assert old > 5.0
    assert new < 0.3 * old
    row = next(line for line in out.splitlines() if line.startswith("sunk"))
    pairs = re.findall(r"([\d.e+-]+) > ([\d.e+-]+)", row)
    assert len(pairs) == 5
    loss, tpl = ([float(v) for v in pair] for pair in pairs[:2])
    assert loss[1] < loss[0]
    assert tpl == pytest.approx([old, new], abs=6e-4)
    clip = after[0]
    assert clip.provenance.parents == ("sunk",)
    assert "optimised, 120 steps" in clip.provenance.notes
    assert clip.replay is None
    assert clip.frames.contacts[:, list(humanoid.feet)].mean() > 0.9  # labelled afresh
    assert clip.terrain.upper is not None
    assert torch.equal(clip.terrain.heights, before[0].terrain.heights)


def test_no_iterations_leave_the_motion_alone(tmp_path, humanoid, capsys):
    files.mimickit(tmp_path / "a.pkl", humanoid)
    argv = ["optimize", str(tmp_path / "a.pkl"), "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as caught:
        cli.main([*argv, "--iterations", "0"])
    assert caught.value.code == 0
    assert capsys.readouterr().out
    before = import_path(tmp_path / "a.pkl", humanoid)[0]
    after = load_dataset(tmp_path / "out")[1][0]
    torch.testing.assert_close(after.frames.root_pos, before.frames.root_pos, atol=1e-5, rtol=0)
    torch.testing.assert_close(after.frames.dof, before.frames.dof, atol=1e-4, rtol=0)
