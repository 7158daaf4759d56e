"""Editing by hand: cells, way-points, undo; labels; data sets that grow."""

from __future__ import annotations

import pytest
import torch

from parc_ray.data.store import load_dataset
from parc_ray.errors import InputError
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.viewer.labels import contact_spans, set_contact
from parc_ray.viewer.shelf import put
from parc_ray.viewer.terrain_edit import TerrainEditor
from tests.viewer.helpers import generated


@pytest.fixture
def editor():
    """20 x 20 cells of 0.4 m, the centre of cell (0, 0) at the origin."""
    return TerrainEditor(terrain=Heightfield.flat((20, 20), origin=(0.0, 0.0)))


def test_one_cell_is_raised_and_lowered(editor):
    assert editor.raise_by((0.81, 1.19), 0.3) == 1
    assert editor.terrain.heights[2, 3] == pytest.approx(0.3)
    assert editor.terrain.heights.sum() == pytest.approx(0.3)
    editor.raise_by((0.81, 1.19), -0.5)
    assert editor.terrain.heights[2, 3] == pytest.approx(-0.2)


def test_a_radius_takes_the_cells_within_it(editor):
    assert editor.level((4.0, 4.0), 1.0, 0.45) == 5
    assert {tuple(c) for c in editor.terrain.heights.nonzero().tolist()} == {
        (10, 10), (9, 10), (11, 10), (10, 9), (10, 11),
    }  # fmt: skip


def test_a_box_stands_on_the_ground_under_its_centre(editor):
    editor.level((4.0, 4.0), 0.5)
    assert editor.stamp_box((4.0, 4.0), (1.2, 0.4), 0.25) == 3
    assert editor.terrain.heights[9:12, 10].tolist() == pytest.approx([0.75] * 3)


def test_stairs_go_up_step_by_step(editor):
    count = editor.stamp_stairs(
        (1.8, 4.0), steps=3, rise_m=0.2, run_m=0.8, width_m=1.2, heading_deg=0.0
    )
    assert count == 3 * 2 * 3
    row = editor.terrain.heights[:, 10].tolist()
    assert row[5:11] == pytest.approx([0.2, 0.2, 0.4, 0.4, 0.6, 0.6])
    assert row[:5] + row[11:] == [0.0] * 14
    editor.undo()
    editor.stamp_stairs((4.0, 1.8), steps=3, rise_m=-0.2, run_m=0.8, width_m=0.1, heading_deg=90)
    column = editor.terrain.heights[10].tolist()
    assert column[5:11] == pytest.approx([-0.2, -0.2, -0.4, -0.4, -0.6, -0.6])


def test_everything_can_be_undone_and_redone(editor):
    flat = editor.terrain.heights.clone()
    editor.raise_by((2.0, 2.0), 0.4)
    editor.add_waypoint((1.0, 1.0))
    editor.add_waypoint((3.0, 1.0))
    editor.remove_waypoint()
    assert editor.waypoints == ((1.0, 1.0),)
    for _ in range(4):
        assert editor.undo()
    assert not editor.undo()
    assert torch.equal(editor.terrain.heights, flat)
    assert editor.waypoints == ()
    for _ in range(4):
        assert editor.redo()
    assert editor.waypoints == ((1.0, 1.0),)
    assert editor.terrain.heights.sum() == pytest.approx(0.4)
    editor.clear_waypoints()
    assert not editor.redo()


def test_waypoints_lie_on_the_ground(editor):
    editor.level((2.0, 2.0), 0.7)
    editor.add_waypoint((2.0, 2.0))
    assert editor.waypoints_w()[0].tolist() == pytest.approx([2.0, 2.0, 0.7])


def test_the_given_terrain_is_left_alone():
    given = Heightfield.flat((10, 10))
    TerrainEditor(terrain=given).raise_by((0.0, 0.0), 1.0)
    assert not given.heights.any()


def test_bounds_of_a_changed_terrain_are_gone():
    flat = Heightfield.flat((4, 4))
    given = Heightfield(
        heights=flat.heights,
        origin=flat.origin,
        upper=torch.ones(4, 4),
        confidence=torch.ones(4, 4),
    )
    editor = TerrainEditor(terrain=given)
    editor.raise_by((0.0, 0.0), 0.1)
    assert editor.terrain.upper is None
    assert editor.terrain.confidence is None


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda e: e.raise_by((99.0, 0.0), 1.0), "is off the terrain"),
        (lambda e: e.add_waypoint((-5.0, 0.0)), "is off the terrain"),
        (lambda e: e.raise_by((0.0, 0.0), 50.0), "up to 20 m"),
        (lambda e: e.raise_by((0.0, 0.0), float("nan")), "finite"),
        (lambda e: e.stamp_box((0.0, 0.0), (0.0, 1.0), 1.0), "above 0"),
        (
            lambda e: e.stamp_stairs((0.0, 0.0), steps=0, rise_m=1, run_m=1, width_m=1),
            "steps: 0",
        ),
    ],
)
def test_wrong_values_are_told_and_change_nothing(editor, action, message):
    with pytest.raises(InputError, match=message):
        action(editor)
    assert not editor.terrain.heights.any()
    assert not editor.undo()


def test_a_label_is_set_for_a_stretch(humanoid):
    clip = generated(humanoid)
    hand = humanoid.skeleton.body_names[humanoid.hands[0]]
    changed = set_contact(clip, humanoid, hand, 3, 7, 1.0)
    assert contact_spans(changed, humanoid)[hand] == [(3, 7)]
    assert hand not in contact_spans(clip, humanoid)
    again = set_contact(changed, humanoid, hand, 5, 5, 0.0)
    assert contact_spans(again, humanoid)[hand] == [(3, 4), (6, 7)]
    with pytest.raises(InputError, match="body 'tail'"):
        set_contact(clip, humanoid, "tail", 0, 1, 1.0)
    with pytest.raises(InputError, match=f"allowed is 0 to {clip.num_frames - 1}"):
        set_contact(clip, humanoid, hand, 0, clip.num_frames, 1.0)


def test_a_shelf_grows_into_a_data_set(tmp_path, humanoid):
    place = str(tmp_path / "kept")
    assert put(place, generated(humanoid), humanoid)[0] == "walk"
    name, manifest = put(place, generated(humanoid), humanoid)
    assert (name, manifest.rows) == ("walk_2", 2)
    _, clips = load_dataset(place)
    assert [c.clip_id for c in clips] == ["walk", "walk_2"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("x")
    with pytest.raises(InputError, match="holds something that is no data set"):
        put(str(tmp_path / "other"), generated(humanoid), humanoid)
