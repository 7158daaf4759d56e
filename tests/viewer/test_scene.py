"""What is drawn: colours, batches, comparison, height samples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from parc_ray.data.store import save_dataset
from parc_ray.evaluation.metrics import JERK_LIMIT, clip_metrics
from parc_ray.terrain.local_grid import GridSpec
from parc_ray.viewer.catalog import open_catalog
from parc_ray.viewer.poses import ClipPoses, PoseCache
from parc_ray.viewer.scene import height_samples
from parc_ray.viewer.session import Session
from parc_ray.viewer.tint import CONTACT, DEEP, PALETTE, TINTS, body_colours, pale
from tests.viewer.helpers import generated, recorded


@pytest.fixture
def session(tmp_path, humanoid):
    source = generated(humanoid)
    clips = [source, recorded(humanoid, source)]
    save_dataset(tmp_path / "set", "set", clips, humanoid.digest)
    return Session(catalog=open_catalog(str(tmp_path / "set"), humanoid))


def test_contacts_are_red_where_they_are_labelled(humanoid):
    clip = generated(humanoid)
    colours = body_colours(ClipPoses(clip, humanoid), "contacts", (0, 0, 0))
    touching = clip.frames.contacts.numpy() > 0.5
    assert touching.any()
    assert (colours[touching] == CONTACT).all()
    assert (colours[~touching] == pale((0, 0, 0))).all()
    assert pale(PALETTE[0]) != pale(PALETTE[1])  # versions can be told apart


def test_depth_and_jerk_are_those_of_the_metrics(humanoid):
    clip = generated(humanoid)
    deep = replace(clip, frames=replace(clip.frames, root_pos=clip.frames.root_pos - 0.1))
    poses = ClipPoses(deep, humanoid)
    feet = list(humanoid.feet)
    assert poses.penetration[:, feet].max() > 0.05
    assert (body_colours(poses, "penetration", (0, 0, 0))[5, feet[0]] == DEEP).all()
    figures = clip_metrics(deep, humanoid, "paper")
    assert poses.jerk.max() == pytest.approx(figures["jerk_max"], rel=1e-4)
    assert poses.jerk.shape == poses.penetration.shape
    assert poses.jerk.max() < JERK_LIMIT


def test_batches_hold_all_shapes_of_all_figures(session, humanoid):
    session.set_compare(True)
    session.select("walk")
    scene = session.scene
    counts = scene.counts()
    for tint in TINTS:
        session.set_tint(tint)
        for kind, batch in scene.batches(0.7).items():
            assert batch.position.shape == (counts[kind], 3)
            assert batch.wxyz.shape == (counts[kind], 4)
            assert batch.colour.shape == (counts[kind], 3)
            assert batch.colour.dtype == np.uint8
            assert scene.scales(kind).shape == (counts[kind], 3)
            assert scene.opacities(kind).shape == (counts[kind],)
            np.testing.assert_allclose(np.linalg.norm(batch.wxyz, axis=-1), 1.0, atol=1e-5)


def test_an_overlay_fades_all_but_the_last_and_shows_one_ground(session):
    session.set_compare(True)
    session.select("walk")
    first, last = session.scene.figures
    assert first.opacity < 1.0 == last.opacity
    assert (first.terrain_shown, last.terrain_shown) == (True, False)
    session.set_arrangement("side by side")
    assert first.opacity == last.opacity == 1.0
    assert last.terrain_shown
    assert np.abs(first.place - last.place).max() > 3.0


def test_stepping_goes_round_the_list(session):
    session.step_clip(1)
    keys = list(session.catalog.entries)
    assert session.key == keys[0]
    session.step_clip(1)
    assert session.key == keys[1]
    session.step_clip(1)
    assert session.key == keys[0]
    session.step_clip(-1)
    assert session.key == keys[1]


def test_height_samples_lie_on_the_ground_around_the_root(session):
    session.select("walk")
    figure = session.scene.figures[0]
    grid = GridSpec(x_cells_back=2, x_cells_front=4, y_cells_side=3)
    points = height_samples(figure, 0.5, grid)
    assert points.shape == (7 * 7, 3)
    ground = figure.terrain.height_at(torch.from_numpy(points[:, :2]))
    np.testing.assert_allclose(points[:, 2], ground.numpy() + 0.02, atol=1e-6)
    root = figure.root(0.5)
    assert np.abs(points[:, :2] - root[:2]).max() <= 0.8 * 2**0.5 + 1e-5


def test_poses_are_kept_and_given_up(humanoid):
    cache = PoseCache(humanoid, kept=2)
    clips = [generated(humanoid, f"c{n}") for n in range(3)]
    first = cache.get("0", clips[0])
    assert cache.get("0", clips[0]) is first
    cache.get("1", clips[1])
    cache.get("2", clips[2])
    assert cache.get("0", clips[0]) is not first
    changed = generated(humanoid, "c0")
    assert cache.get("0", changed).clip is changed
