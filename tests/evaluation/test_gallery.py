from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from parc_ray.evaluation.gallery import Exhibit, render_gallery
from parc_ray.evaluation.report import Card
from parc_ray.evaluation.strips import map_svg, strip_svg
from tests.synthesis.helpers import walk_clip


@pytest.fixture(scope="module")
def stepped(humanoid):
    """A walk of 3.6 m along x, lifted onto a step of 0.5 m whose wall stands at x = 1.6."""
    clip = walk_clip(humanoid)
    hf = clip.terrain
    heights = torch.where(hf.cell_centers()[..., 0] > 1.7, 0.5, 0.0)
    frames = clip.frames.clone()
    frames.root_pos[:, 2] += torch.where(frames.root_pos[:, 0] > 1.6, 0.5, 0.0)
    return replace(clip, terrain=replace(hf, heights=heights), frames=frames)


def numbers(text: str) -> np.ndarray:
    return np.array([float(v) for v in re.findall(r"-?\d+", text)]).reshape(-1, 2)


def test_the_profile_is_the_ground_under_the_path(humanoid, stepped):
    svg = strip_svg(humanoid, [(stepped.frames, "#123456")], stepped.terrain, stepped.fps)
    root = ET.fromstring(svg)
    soil = numbers(root.findall("path")[0].attrib["d"])
    ground = soil[1:-1]  # the outer corners lie below the picture
    assert ground[:, 1].tolist() == [0, 0, -50, -50]  # centimetres, y down
    assert ground[1:3, 0] == pytest.approx([160, 160], abs=3)
    left, top, width, height = (float(v) for v in root.attrib["viewBox"].split())
    assert left == pytest.approx(-50, abs=1)
    assert width == pytest.approx(100 * 3.6 + 100, abs=5)
    assert top < -180
    assert top + height > 0


def test_figures_stand_on_the_profile(humanoid, stepped):
    svg = strip_svg(humanoid, [(stepped.frames, "#123456")], stepped.terrain, stepped.fps)
    group = ET.fromstring(svg).findall("g")[0]
    assert group.attrib["stroke"] == "#123456"
    below = []
    for path in group.findall("path"):
        points, half = numbers(path.attrib["d"]), float(path.attrib["stroke-width"]) / 2
        points = points[np.abs(points[:, 0] - 160) > 60]  # legs that straddle the wall
        ground = np.where(points[:, 0] > 160, -50.0, 0.0)
        below.append((points[:, 1] + half - ground).max())
    assert -3 < max(below) < 4  # centimetres; feet are drawn with round ends


def test_resting_motions_are_drawn_again_after_a_pause(humanoid, stepped):
    still = stepped.frames.time(0, 1)
    still = still.map(lambda x: x.expand(91, x.shape[-1]).clone())
    shapes = [
        strip_svg(humanoid, [(still, "#000")], stepped.terrain, 30.0, pause_s=pause).count("M")
        for pause in (9.0, 1.0)
    ]
    assert (shapes[1] - 1) == 4 * (shapes[0] - 1)  # at 0 s, then at 0, 1, 2, 3 s; one M is soil


def test_the_map_shows_where_the_path_begins(stepped):
    root = ET.fromstring(map_svg(stepped.terrain, stepped.frames, "#fff"))
    circle = root.findall("circle")[0]
    cell = (stepped.frames.root_pos[0, :2] - stepped.terrain.origin) / stepped.terrain.cell_size
    assert float(circle.attrib["cx"]) == pytest.approx(float(cell[0]) + 0.5, abs=0.01)
    rows = stepped.terrain.shape[1]
    assert float(circle.attrib["cy"]) == pytest.approx(rows - float(cell[1]) - 0.5, abs=0.01)


def test_the_page_stands_alone_and_escapes(humanoid, stepped):
    table = pd.DataFrame({"variant": [stepped.clip_id, "<b>gone"], "depth (mm)": [0.1, 7.0]})
    exhibit = Exhibit(clip=stepped, before=stepped.frames, facts={"heights": "1 < 2"})
    page = render_gallery("Variants", [Card(label="kept", value="1")], table, [exhibit], humanoid)
    assert not re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?\s*(?:https?:)?//""", page)
    assert f'<a href="#{stepped.clip_id}">' in page
    assert f'id="{stepped.clip_id}"' in page
    assert "&lt;b&gt;gone" in page
    assert "<b>gone" not in page
    assert "1 &lt; 2" in page
    assert page.count('class="strip"') == page.count('class="map"') == 1
