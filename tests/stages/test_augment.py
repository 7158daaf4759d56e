"""The variants of the initial clips: worker, table, gallery, figures and forecast."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

from parc_ray import cli
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.character.surface import place_points, surface_points
from parc_ray.config import D0Config, DataConfig, ParcConfig
from parc_ray.data.storage import Storage
from parc_ray.data.store import load_dataset, read_part, save_dataset
from parc_ray.pool_config import PoolConfig
from parc_ray.stages._variants import all_rows, frame_cost, gallery_page, variant_metrics
from parc_ray.stages.augment import VariantWorker, make_plans
from parc_ray.stages.pool import WorkItem, run_items
from parc_ray.synthesis.assemble import with_bounds
from parc_ray.synthesis.config import AugmentConfig, ClassRecipe, OptimizerConfig, VariantQuality
from parc_ray.synthesis.variant_plan import VariantPlan
from parc_ray.terrain.augment import local_bounds, touched_cells
from parc_ray.terrain.heightfield import HeightfieldBatch
from parc_ray.terrain.local_grid import GridSpec
from tests.synthesis.helpers import walk_clip

LOOSE = VariantQuality(
    max_mean_depth_m=9.0,
    max_depth_m=9.0,
    max_jerk_m_s3=1e9,
    max_contact_gap_m=9.0,
    max_limit_excess_deg=360.0,
    attempts=2,
)
AUGMENT = AugmentConfig(
    variants_per_clip=2,
    recipes={
        "walk": ClassRecipe(kind="boxes", max_length_s=1.5, boxes=(1, 2)),
        "stride": ClassRecipe(kind="none"),
    },
    ik_iterations=2,
    optimizer=OptimizerConfig(iterations=3, w_body_constraint=0.0),
    quality=LOOSE,
)


@pytest.fixture(scope="module")
def data(humanoid, tmp_path_factory) -> Path:
    """Two clips of different class and length as a data set."""
    place = tmp_path_factory.mktemp("augment") / "data"
    long = walk_clip(humanoid, "stride_0", seconds=2.0)
    long = replace(long, provenance=replace(long.provenance, class_name="stride"))
    short = walk_clip(humanoid, "walk_0", seconds=1.8)
    save_dataset(place, "two", [short, long], humanoid.digest)
    return place


@pytest.fixture(scope="module")
def config(data) -> ParcConfig:
    return ParcConfig(data=DataConfig(path=str(data)), augment=AUGMENT, d0=D0Config())


def make(config, humanoid, place):
    originals, plans = make_plans(config, humanoid, 5)
    items = [WorkItem(id=f"v-{k}", payload={"first": k, "last": k + 2}) for k in (0, 2)]
    arguments = {
        "clips": originals,
        "plans": plans,
        "character": humanoid,
        "config": config.augment,
    }
    storage = Storage.from_uri(place)
    done = run_items(storage, items, VariantWorker, arguments, PoolConfig(actors=0), "test")
    clips = [clip for r in done if r.part is not None for clip in read_part(storage, r.part)]
    return originals, plans, done, clips


def test_plans_of_like_length_stand_together(config, humanoid):
    originals, plans = make_plans(config, humanoid, 5)
    lengths = [plan.num_frames for plan in plans]
    assert lengths == sorted(lengths, reverse=True) == [61, 61, 46, 46]
    wanted = {f"{clip.clip_id}_a{k:03d}" for clip in originals for k in range(2)}
    assert {plan.variant_id for plan in plans} == wanted


def test_tries_become_rows_and_a_gallery(config, humanoid, tmp_path):
    originals, plans, done, clips = make(config, humanoid, tmp_path)
    rows = all_rows(done)
    assert [row["variant"] for row in rows] == sorted(plan.variant_id for plan in plans)
    assert all(row["kept"] and row["attempt"] == 0 for row in rows)
    by_id = {plan.variant_id: plan for plan in plans}
    for clip in clips:
        assert VariantPlan.from_json(clip.provenance.notes) == by_id[clip.clip_id]
        assert clip.provenance.parents == (by_id[clip.clip_id].parent_id,)
        assert clip.provenance.seeds["variant"] == by_id[clip.clip_id].seed
        assert clip.terrain.upper is not None  # how far training may move each cell
        root = clip.frames.root_pos
        freest = float(clip.terrain.upper.max())
        assert freest == pytest.approx(float(root[:, 2].max()) + 3.0, abs=1e-4)
    metrics = variant_metrics(rows, 7.2)
    assert metrics["variants"] == metrics["planned"] == 4.0
    assert metrics["cpu_h_for_50_per_clip"] == pytest.approx(7.2 / 4 * 100 / 3600)
    depths = [clip.metrics["depth_mean_m"] for clip in clips]
    assert metrics["depth_mean_mm"] == pytest.approx(1e3 * sum(depths) / 4)
    page = gallery_page(rows, clips, originals, humanoid, 3, metrics)
    assert page.count('class="exhibit"') == 3
    assert all(f"<td>{name}" in page or f">{name}</a>" in page for name in by_id)


@pytest.mark.parametrize("height", [5.0, 9.0])
def test_bounds_are_relative_to_the_character(humanoid, height):
    """Stairs far above the world's origin are varied like those at it."""
    clip = walk_clip(humanoid, "stairs_0", seconds=2.0)
    x = clip.terrain.cell_centers()[..., 0]
    stairs = replace(clip.terrain, heights=(x / 0.8).floor().clamp(0, 3) * 0.2)
    shift = torch.tensor([0.0, 0.0, height])
    lifted = clip.frames.clone()
    lifted.root_pos[:, 2] += stairs.height_at(lifted.root_pos[:, :2])
    limits = []
    for offset in (torch.zeros(3), shift):
        frames = replace(lifted, root_pos=lifted.root_pos + offset)
        up = with_bounds(replace(clip, frames=frames, terrain=stairs.translated(offset)), humanoid)
        batch = HeightfieldBatch.stack([up.terrain])
        pos, quat = fk_from_dof(humanoid.skeleton, frames.root_pos, frames.root_rot, frames.dof)
        points = place_points(surface_points(humanoid, "full"), pos, quat)[None, :15]
        touched = touched_cells(batch, points)
        root = frames.root_pos[:1]
        limits.append(local_bounds(GridSpec(), batch, touched, root, torch.zeros(1)))
    for there, here in zip(*limits, strict=True):
        assert torch.allclose(there, here, atol=1e-4)
    lower, upper = limits[1]
    assert float(upper.max()) == 6.0  # above the root, not above the world's origin
    assert float(lower.min()) == -6.0
    assert bool((lower == upper).any())  # what the feet touch stays


def test_dropped_variants_are_told_with_their_reasons(config, humanoid, tmp_path):
    strict = replace(LOOSE, max_contact_gap_m=1e-9)
    harder = replace(config, augment=replace(AUGMENT, quality=strict))
    originals, _, done, clips = make(harder, humanoid, tmp_path)
    rows = all_rows(done)
    assert len(clips) < 4
    kept = {clip.clip_id for clip in clips}
    for name in {row["variant"] for row in rows}:
        mine = [row for row in rows if row["variant"] == name]
        assert (mine[-1]["kept"]) == (name in kept)
        assert all("contacts" in row["faults"] for row in mine if not row["kept"])
        assert name in kept or len(mine) == 2
        assert len({row["seed"] for row in mine}) == len(mine)
    metrics = variant_metrics(rows, 1.0)
    assert metrics["dropped"] == 4 - len(clips) > 0
    table = pd.DataFrame(rows)
    assert table["faults"].str.len().gt(0).sum() == metrics["tries"] - metrics["variants"]
    page = gallery_page(rows, clips, originals, humanoid, 9, metrics)
    assert page.count("mm &gt;") == metrics["dropped"]


def test_no_variants_at_all_make_a_page_too(humanoid):
    metrics = variant_metrics([], 0.0)
    assert metrics["variants"] == 0.0
    assert "All variants" in gallery_page([], [], [], humanoid, 5, metrics)
    json.dumps(metrics)


def test_the_forecast_is_the_trial_scaled(config, humanoid):
    originals, plans = make_plans(config, humanoid, 5)
    torch.set_num_threads(1)
    small = frame_cost(originals, plans, humanoid, config.augment, 4)
    more = replace(AUGMENT, optimizer=replace(AUGMENT.optimizer, iterations=3000))
    large = frame_cost(originals, plans, humanoid, more, 4)
    assert 0 < 50 * small < large


def test_dry_run_prints_the_plan_and_writes_nothing(data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["augment", "--dry-run", "--data", str(data), "--augment.variants_per_clip", "2"]
    words += ["--augment.optimizer.iterations", "5", "--augment.ik_iterations", "2"]
    before = sorted(data.iterdir())
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert re.search(r"^stride_0 +stride +flat_recipe +boxes +2 +\d\.\d\d  boxes", out, re.M)
    assert "4 variants of 2 clips" in out
    assert re.search(r"projected: [\d.]+ CPU-ms a frame here, [\d.]+ CPU-hours", out)
    assert not list(tmp_path.iterdir())
    assert sorted(data.iterdir()) == before
    assert load_dataset(data)[0].rows == 2


def test_dry_run_of_a_stage_that_has_none_is_refused(capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["merge", "--iteration", "0", "--dry-run"])
    assert caught.value.code == 2
    assert "allowed for augment" in capsys.readouterr().err
