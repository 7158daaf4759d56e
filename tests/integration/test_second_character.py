"""The whole loop on a character of which the code knows nothing: MJCF, YAML and a data set."""

from __future__ import annotations

import math
import shlex
from pathlib import Path

import pandas as pd
import pytest
import torch

from parc_ray.character.character import Character, load_character
from parc_ray.data.store import save_dataset
from parc_ray.motion.clip import validate_clip
from tests.integration.runs import RunFiles, drive
from tests.waddler import WADDLER, waddle

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

WORDS = shlex.split(
    "--recipe smoke --iterations 1 --name waddler --resources.address local "
    "--augment.variants_per_clip 1 --augment.optimizer.iterations 60 "
    "--augment.flat_recipe.box_height_m 0.06 --d0.max_clips 2 --d0.max_clip_s 1.5 "
    "--iterations.0.terrain.box_height_m -0.06 0.06 "
    "--iterations.0.motions 2 --iterations.0.max_terrains 3 --iterations.0.candidates 2 "
    "--iterations.0.generator.steps 30 --iterations.0.tracker.samples 2048 "
    "--synthesis.rollout.max_duration_s 1.3 --synthesis.optimizer.iterations 10 "
    "--synthesis.rollout.start_height_m 0.45 0.5 "
    "--correction.mpc.samples 12 --correction.mpc_max_s 1.0 "
    "--correction.mpc_stronger_retry False "
    "--evaluation.terrains 2 --evaluation.motions_per_terrain 2 "
    "--evaluation.max_duration_s 1.0 --evaluation.tracker_starts 1 "
    "--evaluation.tracker_random_starts 2"
)


@pytest.fixture(scope="module")
def waddler() -> Character:
    return load_character(WADDLER)


@pytest.fixture(scope="module")
def finished(waddler: Character, tmp_path_factory: pytest.TempPathFactory) -> RunFiles:
    """The loop, run as a user would."""
    place: Path = tmp_path_factory.mktemp("waddler")
    clips = [waddle(waddler, f"waddle_{k}", speed=speed) for k, speed in enumerate((0.3, 0.4))]
    save_dataset(place / "data", "waddles", clips, waddler.digest)
    words = ("--character", str(WADDLER), "--data", str(place / "data"), "--storage", str(place))
    done = drive(*WORDS, *words)
    assert done.returncode == 0, done.stderr[-8000:]
    return RunFiles(place / "waddler")


def test_every_stage_runs_on_it(finished: RunFiles, waddler: Character):
    stages = {label.split("/")[1] for label in finished.labels()}
    assert stages == {
        "augment",
        "record",
        "merge",
        "train-generator",
        "generate",
        "train-tracker",
        "evaluate",
        "report",
    }
    for label in ("it_00/augment", "it_00/merge", "it_01/generate", "it_01/merge"):
        clips = finished.clips(label)
        assert clips, label
        assert finished.manifest(label).character_digest == waddler.digest
        for clip in clips:
            validate_clip(clip, waddler)


def test_its_variants_are_told_and_shown(finished: RunFiles):
    table = pd.read_csv(finished.path / "it_00/augment/variants.csv")
    kept = set(table[table["kept"]]["variant"])
    clips = {c.clip_id for c in finished.clips("it_00/augment") if c.provenance.maker == "augment"}
    assert clips == kept
    assert kept
    page = (finished.path / "it_00/augment/gallery.html").read_text()
    assert page.count('class="strip"') == len(kept)
    assert all(f'id="{name}"' in page for name in kept)


def test_variants_are_made_physical_and_enter_d0(finished: RunFiles, waddler: Character):
    variants = {
        c.clip_id for c in finished.clips("it_00/augment") if c.provenance.maker == "augment"
    }
    tried = {record["source_id"] for record in finished.json("it_00/record/records.json")}
    assert variants <= tried
    d0 = finished.clips("it_00/merge")
    parents = {p for clip in d0 for p in clip.provenance.parents} | {c.clip_id for c in d0}
    assert variants <= parents
    for clip in finished.clips("it_00/record"):
        assert clip.replay is not None
        assert clip.replay.dof_pos.shape == (waddler.skeleton.num_dofs,)


def test_figures_are_finite(finished: RunFiles):
    metrics = finished.json("it_01/evaluate/metrics.json")
    for name in ("gen_tpl", "gen_fwd", "tracker_survived_from_start"):
        assert math.isfinite(metrics[name])
    for clip in finished.clips("it_01/generate"):
        assert bool(torch.isfinite(clip.frames.dof).all())
