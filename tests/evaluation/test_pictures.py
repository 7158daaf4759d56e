"""Pictures are drawn without a display and show what they are told."""

from __future__ import annotations

import base64
import subprocess
import sys
from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest
import torch

from parc_ray.evaluation.pictures import (
    CORRECTED_COLOUR,
    GENERATED_COLOUR,
    data_uri,
    draw_curves,
    draw_motion,
    png_bytes,
    track_of,
)
from parc_ray.terrain.heightfield import Heightfield
from tests.envs.helpers import sway_clip


@pytest.fixture(scope="module")
def clip(humanoid):
    heights = torch.zeros(20, 10)
    heights[10:] = 0.3
    terrain = Heightfield(heights=heights, origin=torch.tensor([-1.0, -2.0]), cell_size=0.4)
    return sway_clip(humanoid, 46, speed=1.0, terrain=terrain)


def test_a_motion_is_drawn_from_above_and_from_the_side(clip, humanoid):
    shift = np.array([0.0, 0.5, 0.0])
    tracks = [
        track_of(clip, humanoid, "kinematic", GENERATED_COLOUR),
        track_of(clip, humanoid, "corrected", CORRECTED_COLOUR, shift),
    ]
    figure = draw_motion(clip.terrain, tracks, humanoid, "a title", np.zeros((3, 3)))
    above, side = figure.axes[:2]
    assert figure.get_suptitle() == "a title"
    left, right, low, high = above.images[0].get_extent()
    assert (left, right, low, high) == pytest.approx((-1.2, 6.8, -2.2, 1.8))
    assert np.allclose(above.images[0].get_array(), clip.terrain.heights.T)
    roots = [line.get_xydata() for line in above.lines if len(line.get_xydata()) == 46]
    assert np.allclose(roots[1] - roots[0], [0.0, 0.5], atol=1e-6)
    labels = [text.get_text() for text in side.get_legend().get_texts()]
    assert labels == ["kinematic", "corrected"]


def test_the_side_view_has_a_figure_every_few_frames(clip, humanoid):
    tracks = [track_of(clip, humanoid, "k", GENERATED_COLOUR)]
    figure = draw_motion(clip.terrain, tracks, humanoid, "t", figures_per_second=2.0)
    bones = humanoid.skeleton.num_bodies - 1
    figures = -(-46 // 15)  # every 15th frame of 46
    assert len(figure.axes[1].lines) == figures * bones + 1  # and the root's path


def test_a_segment_is_drawn_where_it_begins(clip, humanoid):
    whole = track_of(clip, humanoid, "k", GENERATED_COLOUR)
    later = replace(whole, label="segment", body_pos=whole.body_pos[15:])
    side = draw_motion(clip.terrain, [whole, later], humanoid, "t").axes[1]
    paths = {len(x): x for x in (line.get_xydata() for line in side.lines) if len(x) > 2}
    np.testing.assert_allclose(paths[31], paths[46][15:], atol=1e-4)


def test_a_motion_that_stands_still_is_drawn_too(humanoid):
    clip = sway_clip(humanoid, 2)
    tracks = [track_of(clip, humanoid, "k", GENERATED_COLOUR)]
    assert png_bytes(draw_motion(clip.terrain, tracks, humanoid, "t")).startswith(b"\x89PNG")


def test_curves_are_drawn_with_their_names():
    curves = {name: (np.arange(3), np.arange(3) * k) for k, name in enumerate("ab")}
    axes = draw_curves(curves, "Loss", "step", "loss").axes[0]
    assert [line.get_label() for line in axes.lines] == ["a", "b"]
    assert list(axes.lines[1].get_ydata()) == [0, 1, 2]
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("Loss", "step", "loss")


def test_a_picture_in_a_page_is_the_picture():
    figure = draw_curves({"a": (np.arange(2), np.arange(2))}, "t", "x", "y")
    uri = data_uri(figure)
    head, _, content = uri.partition(",")
    assert head == "data:image/png;base64"
    assert base64.b64decode(content).startswith(b"\x89PNG")


def test_drawing_leaves_the_users_matplotlib_alone(clip, humanoid):
    before = (mpl.get_backend(), dict(mpl.rcParams))
    png_bytes(draw_motion(clip.terrain, [track_of(clip, humanoid, "k", "red")], humanoid, "t"))
    assert (mpl.get_backend(), dict(mpl.rcParams)) == before


def test_no_window_system_is_touched():
    code = "import sys, parc_ray.evaluation.pictures; print('matplotlib.pyplot' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
