"""Which initial clips a run takes, and which piece of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from parc_ray.config import D0Config
from parc_ray.motion.clip import Provenance
from parc_ray.stages._initial import choose_initial, crop_to_change, path_change
from parc_ray.terrain.heightfield import Heightfield
from tests.data.clips import random_clip


def walker(clip_id, step_at=None, step=0.0, *, frames=91, class_name="walk"):
    """Walks along x with 1 m/s at 30 fps; the ground rises by ``step`` at x = ``step_at``."""
    clip = random_clip(0, frames=frames, clip_id=clip_id)
    pos = torch.zeros(frames, 3)
    pos[:, 0] = torch.arange(frames) / 30.0
    heights = torch.zeros(60, 3)
    if step_at is not None:
        heights[round(step_at / 0.1) :] = step
    terrain = Heightfield(heights=heights, origin=torch.tensor([0.0, -0.1]), cell_size=0.1)
    return replace(
        clip,
        frames=replace(clip.frames, root_pos=pos),
        terrain=terrain,
        provenance=Provenance(class_name=class_name, notes="n"),
    )


def ids(clips):
    return [clip.clip_id for clip in clips]


def test_path_change_sees_only_the_ground_under_the_path():
    assert path_change(walker("a")) == 0.0
    assert path_change(walker("a", 1.0, 0.3)) == pytest.approx(0.3)
    assert path_change(walker("a", 4.0, 0.3)) == 0.0  # the path ends at 3 m


def test_the_piece_with_the_step_is_kept_and_noted():
    clip = walker("a", 2.0, 0.3)
    piece = crop_to_change(clip, 1.0)
    assert piece.num_frames == 31
    assert piece.duration_s == pytest.approx(1.0)
    assert path_change(piece) == pytest.approx(0.3)
    # Cells are centred on grid points, so the ground rises at 1.95 m: frame 59 is the first above,
    # and of all windows that hold it and a frame before it the earliest begins at 59 - 30.
    first = round(float(piece.frames.root_pos[0, 0]) * 30)
    assert first == 29
    assert piece.provenance.notes == "n; frames 29 to 59"
    assert torch.equal(piece.frames.dof, clip.frames.dof[29:60])


def test_of_equal_pieces_the_earliest_is_taken():
    assert crop_to_change(walker("a"), 1.0).provenance.notes == "n; frames 0 to 30"


@pytest.mark.parametrize("limit", [None, 3.0, 10.0])
def test_short_clips_stay_as_they_are(limit):
    clip = walker("a", 2.0, 0.3)
    assert crop_to_change(clip, limit) is clip


def test_everything_is_taken_where_there_is_no_limit():
    clips = [walker("b"), walker("a")]
    assert ids(choose_initial(clips, D0Config())) == ["b", "a"]
    assert ids(choose_initial(clips, D0Config(max_clips=2))) == ["b", "a"]


def test_classes_take_turns_and_terrain_comes_first():
    clips = [
        walker("run_flat", class_name="run"),
        walker("walk_flat"),
        walker("walk_low", 1.0, 0.1),
        walker("walk_high", 1.0, -0.4),
        walker("jump_flat", class_name="jump"),
        walker("run_step", 1.0, 0.2, class_name="run"),
    ]
    found = [ids(choose_initial(clips, D0Config(max_clips=n))) for n in range(1, 6)]
    order = ["jump_flat", "run_step", "walk_high", "run_flat", "walk_low"]
    assert found == [order[:n] for n in range(1, 6)]


def test_the_choice_does_not_depend_on_the_order_of_the_files():
    clips = [walker(name, 1.0, 0.1) for name in "abcd"]
    config = D0Config(max_clips=2)
    assert ids(choose_initial(clips[::-1], config)) == ids(choose_initial(clips, config))


def test_clips_are_cut_before_they_are_compared():
    late = walker("late", 2.5, 0.5)
    (piece,) = choose_initial([late], D0Config(max_clip_s=0.5))
    assert piece.num_frames == 16
    assert path_change(piece) == pytest.approx(0.5)
