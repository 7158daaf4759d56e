"""Contact labels on hand-made scenes, debouncing by run lengths, foot sliding."""

from __future__ import annotations

from itertools import groupby

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parc_ray.motion.contacts import body_ground_distance, debounce, foot_slide, label_contacts
from parc_ray.terrain.heightfield import Heightfield
from tests.motion.motions import standing


@pytest.mark.parametrize(("gap", "touches"), [(-0.03, 1), (0.0, 1), (0.019, 1), (0.021, 0)])
def test_only_the_feet_of_a_standing_character_touch(character, gap, touches):
    frames = standing(character, 4, height=0.3 + gap)
    labels = label_contacts(character, frames, Heightfield.flat((8, 8), height=0.3))
    expected = torch.zeros(4, character.skeleton.num_bodies)
    expected[:, list(character.feet)] = touches
    assert torch.equal(labels, expected)


def test_distances_are_heights_over_flat_ground(person):
    frames = standing(person, 2, height=0.25)
    distance = body_ground_distance(person, frames, Heightfield.flat((12, 12)))
    assert torch.allclose(distance[:, list(person.feet)], torch.tensor(0.25), atol=1e-5)
    head = person.skeleton.body_index("head")
    assert float(distance[0, head]) > 1.0


def test_a_wall_counts_as_ground(person):
    """Right hand 1 cm from a wall: x-aligned T-pose arm beside a high column."""
    terrain = Heightfield.flat((15, 15), origin=(-2.8, -2.8))
    frames = standing(person, 3)
    # the hand's surface ends at y = -(0.18311 + 0.274788 + 0.258947 + 0.034)
    reach = 0.183110 + 0.274788 + 0.258947 + 0.04 * (1 + 5**0.5) / (10 + 2 * 5**0.5) ** 0.5
    wall = -1.4  # border between the cells centred at -1.6 and -1.2
    terrain.heights[:, 3] = 3.0
    frames.root_pos[:, 1] = wall + reach + 0.01
    labels = label_contacts(person, frames, terrain)
    assert labels[:, person.skeleton.body_index("right_hand")].tolist() == [1, 1, 1]
    assert labels[:, person.skeleton.body_index("left_hand")].tolist() == [0, 0, 0]
    frames.root_pos[:, 1] += 0.02
    labels = label_contacts(person, frames, terrain)
    assert labels[:, person.skeleton.body_index("right_hand")].tolist() == [0, 0, 0]


def test_debounce_by_hand():
    pattern = torch.tensor([int(c) for c in "0010011011000"]).bool()[:, None]
    assert "".join(str(int(v)) for v in debounce(pattern, 2)[:, 0]) == "0000011111000"
    assert torch.equal(debounce(pattern, 1), pattern)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(2, 4))
def test_debounced_inner_runs_are_long_enough(values, least):
    labels = torch.tensor(values)[:, None]
    out = debounce(labels, least)
    assert out.shape == labels.shape
    runs = [len(list(group)) for _, group in groupby(out[:, 0].tolist())]
    assert all(n >= least for n in runs[1:-1])


def test_sliding_and_planted_feet(person):
    frames = standing(person, 5)
    frames.contacts[:, list(person.feet)] = 1.0
    assert float(foot_slide(person, frames, 30.0).abs().max()) == 0.0
    frames.root_pos[:, 0] = torch.arange(5) * 0.02
    slide = foot_slide(person, frames, 30.0)
    assert slide.shape == (4, len(person.feet))
    assert torch.allclose(slide, torch.tensor(0.6), atol=1e-4)
    frames.contacts[2] = 0.0
    assert foot_slide(person, frames, 30.0)[1:3].abs().max() == 0
