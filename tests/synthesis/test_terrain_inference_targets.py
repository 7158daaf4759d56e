"""Targets of terrain inference and of touch labels on the development data.

A contact cell is a cell of the true terrain on whose top a surface point of a foot or hand that is
labelled in contact lies within 2 cm. It is right where the inferred ground under the median of
these points is within 5 cm of it; its points are also counted one by one.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch

from parc_ray.character.kinematics import fk_from_dof
from parc_ray.character.surface import place_points, surface_points
from parc_ray.data.importers import import_path, load_raw
from parc_ray.motion.contacts import label_contacts
from parc_ray.motion.frames import MotionFrames
from parc_ray.synthesis.terrain_inference import InferenceConfig, infer_terrain

SHIFTS = ((0.0, 0.0), (0.13, 0.27), (-0.08, 0.19))
"""m, the motion is moved by these, so that the true grid has another phase."""

CIVILIZATION, TEASER = "civilization", "dec2024_teaser_717_1_opt_dm"

# what the takes' names and the catalogue's notes say is there, m
NAMED = {
    "platform": {0.0, 0.6},
    "stairs05": {0.0, 0.2, 0.4, 0.6, 0.8, 1.0},
    "stairs03": {0.0, 0.265, 0.53, 0.795, 1.06},  # four steps of 0.27 m
    "mid_climb": {0.0, 1.1},
    "climb00": {0.0, 2.0},
    "dash_vault": {0.0, 1.1},
    "speed_vault": {0.0, 0.9},
    "dive_kong": {0.0, 0.6},
    "reverse_vault": {0.0, 0.6},
}


def expected_levels(name):
    for key, levels in NAMED.items():
        if key in name:
            return levels
    return {0.0}  # the flat takes


def published(shared_data, humanoid, name, shift=(0.0, 0.0)):
    clip = import_path(shared_data / f"formats/ms/{name}.pkl", humanoid)[0]
    move = torch.tensor([*shift, 0.0])
    frames = replace(clip.frames, root_pos=clip.frames.root_pos + move)
    return replace(clip, frames=frames, terrain=clip.terrain.translated(move))


def contact_errors(humanoid, clip, terrain):
    """Errors in m of the inferred ground at contact points, by contact cell."""
    points = surface_points(humanoid, "full")
    frames, truth = clip.frames, clip.terrain
    placed = place_points(
        points, *fk_from_dof(humanoid.skeleton, frames.root_pos, frames.root_rot, frames.dof)
    )
    cells = defaultdict(list)
    for body in (*humanoid.feet, *humanoid.hands):
        part = placed[:, points.point_ranges[body]][frames.contacts[:, body] > 0.5].reshape(-1, 3)
        top = truth.height_at(part[:, :2])
        part = part[(part[:, 2] - top).abs() < 0.02]
        error = (terrain.height_at(part[:, :2]) - truth.height_at(part[:, :2])).abs()
        for cell, value in zip(truth.index_of(part[:, :2]).tolist(), error.tolist(), strict=True):
            cells[tuple(cell)].append(value)
    return cells


def f1(predicted, true):
    hits = float((predicted & true).sum())
    return 2.0 * hits / float(predicted.sum() + true.sum())


def touch_f1(character, clip, terrain, bodies):
    labels = label_contacts(character, clip.frames, terrain) > 0.5
    return f1(labels[:, list(bodies)], clip.frames.contacts[:, list(bodies)] > 0.5)


@pytest.mark.parametrize("cell_size", [0.4, 0.2])
@pytest.mark.parametrize("name", [CIVILIZATION, TEASER])
def test_contact_cells_of_published_terrains(shared_data, humanoid, name, cell_size):
    """The true grid is not told; still 97 % of cells and points in contact are right."""
    config = InferenceConfig(cell_size=cell_size)
    for shift in SHIFTS:
        clip = published(shared_data, humanoid, name, shift)
        found = infer_terrain(humanoid, clip.frames, 30.0, config=config).terrain
        cells = contact_errors(humanoid, clip, found)
        assert len(cells) > 20
        assert np.mean([np.median(v) < 0.05 for v in cells.values()]) >= 0.97
        assert np.mean(np.concatenate([np.array(v) for v in cells.values()]) < 0.05) >= 0.97


@pytest.mark.parametrize(("cell_size", "share"), [(0.4, 0.97), (0.2, 0.95)])
@pytest.mark.parametrize("name", [CIVILIZATION, TEASER])
def test_certain_cells_are_right(shared_data, humanoid, name, cell_size, share):
    """Cells of full confidence have the true height even at their centres, at any phase."""
    for shift in SHIFTS:
        clip = published(shared_data, humanoid, name, shift)
        config = InferenceConfig(cell_size=cell_size)
        found = infer_terrain(humanoid, clip.frames, 30.0, config=config).terrain
        assert found.confidence is not None
        certain = found.confidence > 0.999
        true = clip.terrain.height_at(found.cell_centers()[certain])
        right = (true - found.heights[certain]).abs() < 0.05
        assert float(right.float().mean()) >= share
        assert int(certain.sum()) >= 5


def test_confidence_does_not_overstate(shared_data, humanoid):
    """Over both rough terrains, at the centres of cells: the surer, the oftener right."""
    right, sure = [], []
    for name in (CIVILIZATION, TEASER):
        clip = published(shared_data, humanoid, name)
        found = infer_terrain(humanoid, clip.frames, 30.0).terrain
        centres = found.cell_centers()
        inside = clip.terrain.contains(centres)
        assert found.confidence is not None
        right.append(((clip.terrain.height_at(centres) - found.heights).abs() < 0.05)[inside])
        sure.append(found.confidence[inside])
    hit, said = torch.cat(right).double(), torch.cat(sure).double()
    before = 0.0
    for low, high in ((0.0, 0.1), (0.1, 0.5), (0.5, 0.8), (0.8, 1.01)):
        part = (said >= low) & (said < high)
        assert int(part.sum()) > 30
        share = float(hit[part].mean())
        assert share > float(said[part].mean()) - 0.1
        assert share > before
        before = share


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("given", [False, True])
def test_touch_labels_against_simulators(shared_data, humanoid, given, shift):
    """F1 of touch labels on inferred and on the true terrain (0.4 m cells)."""
    for name, feet, hands in ((TEASER, 0.9, 0.8), (CIVILIZATION, 0.8, None)):
        clip = published(shared_data, humanoid, name, shift)
        terrain = clip.terrain if given else infer_terrain(humanoid, clip.frames, 30.0).terrain
        assert touch_f1(humanoid, clip, terrain, humanoid.feet) >= feet, name
        if hands is not None:
            assert touch_f1(humanoid, clip, terrain, humanoid.hands) >= hands, name


def test_levels_are_what_the_takes_are_called(shared_data, humanoid):
    """No level is missing in any take, none is spurious in at least 22 of 23."""
    with (shared_data / "manifest.csv").open() as file:
        names = [r["file"] for r in csv.DictReader(file) if r["inferred_levels"]]
    assert len(names) == 23
    clean = 0
    for name in names:
        raw = load_raw(shared_data / name, humanoid)
        none = torch.zeros(len(raw.dof), humanoid.skeleton.num_bodies)
        frames = MotionFrames(raw.root_pos, raw.root_rot, raw.dof, none).to(torch.float32)
        found = infer_terrain(humanoid, frames, raw.fps, raw.loop)
        assert found.gap is None, name
        if "stairs02" in name:  # compound, -0.4 to 2.6 m; its blocks are multiples of 0.2 m
            assert (found.levels[0], found.levels[-1]) == pytest.approx((-0.4, 2.6), abs=0.02)
            off = [abs(v - 0.2 * round(v / 0.2)) for v in found.levels]
            clean += max(off) < 0.02
            continue
        expected = expected_levels(name)
        for level in expected:
            assert min(abs(level - v) for v in found.levels) < 0.02, (name, level)
        clean += len(found.levels) == len(expected)
    assert clean >= 22
