"""Parts of terrain inference on made evidence: levels, walls, blocks, pits, confidence, words."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parc_ray.errors import InputError
from parc_ray.motion.contacts import label_contacts
from parc_ray.synthesis.contact_events import ContactEvent, EventConfig, hand_events
from parc_ray.synthesis.inferred_grid import _smoothed
from parc_ray.synthesis.inferred_levels import find_levels, regular_heights
from parc_ray.synthesis.terrain_inference import (
    InferenceConfig,
    describe,
    figures,
    infer_terrain,
)
from parc_ray.synthesis.wall_fit import WallPoints, fit_walls
from tests.synthesis.test_terrain_inference import hopping

STANDS = [(0, 0, 0), (1.0, 0.4, 0.3), (2.1, 0, 0.75), (3.3, -0.3, 0), (4.5, 0, -0.4)]


def rest(height, xy=(0.0, 0.0), frames=30, **more):
    points = np.array([xy], dtype=np.float64)
    values = {"kind": "foot", "height": height, "xy": points, "start": 0, "stop": frames}
    return ContactEvent(**{**values, **more})


def test_steps_become_regular():
    """A brief height that is 14 mm off goes onto the stairs, one between them stays."""
    heights = np.array([-0.4, 0.001, 0.186, 0.4, 0.599, 0.8, 1.0, 1.09, 1.2])
    seconds = np.array([0.5, 2.0, 0.1, 0.2, 0.3, 0.2, 0.2, 0.1, 0.6])
    found = regular_heights(heights, seconds, 0.015)
    stairs = [-0.4, 0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2]
    np.testing.assert_allclose(np.delete(found, 7), stairs, atol=2e-3)
    assert found[7] == 1.09


@pytest.mark.parametrize("heights", [[0.0, 0.6], [0.0, 0.31, 1.17], [0.0, 0.37, 0.55, 1.31]])
def test_without_evidence_of_steps_heights_stay(heights):
    values = np.array(heights)
    np.testing.assert_array_equal(regular_heights(values, np.ones(len(values)), 0.015), values)


def test_random_heights_seldom_make_stairs():
    rng = np.random.default_rng(7)
    moved = 0
    for _ in range(100):
        heights = np.sort(rng.uniform(-1.0, 3.0, 6))
        moved += not np.array_equal(regular_heights(heights, np.ones(6), 0.015), heights)
    assert moved <= 10


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-3.0, 3.0), min_size=1, max_size=9))
def test_heights_move_little(values):
    heights = np.array(sorted(values))
    moved = regular_heights(heights, np.ones(len(heights)), 0.015)
    assert np.abs(moved - heights).max() <= 0.015 + 1e-9


def test_a_foot_braced_on_a_wall_is_no_level():
    config = InferenceConfig()
    floor, top = rest(0.0), rest(2.6, (1.0, 0.0), 90)
    found = find_levels([floor, rest(1.09, (0.75, 0.0), 4), top], [], config)
    assert [round(v.height, 2) for v in found] == [0.0, 2.6]
    # not beside the wall; not brief; nothing that much higher
    for brace, high in (
        (rest(1.09, (0.5, 0.0), 4), top),
        (rest(1.09, (0.75, 0.0), 8), top),
        (rest(1.09, (0.75, 0.0), 4), rest(1.4, (1.0, 0.0), 90)),
    ):
        assert len(find_levels([floor, brace, high], [], config)) == 3


def test_hands_join_foot_levels_or_must_bear():
    config = InferenceConfig()
    feet = [rest(0.0), rest(1.0, (2.0, 0.0))]
    hand = {"kind": "hand", "frames": 9}
    joined = find_levels(feet, [rest(1.05, (2.0, 0.2), **hand)], config)
    assert [v.kind for v in joined] == ["foot", "foot"]
    assert joined[1].seconds == pytest.approx((30 + 9) / 60)
    own = find_levels(feet, [rest(1.5, **hand)], config)
    assert [(v.height, v.kind) for v in own][2] == (1.5, "hand")
    assert own[2].confidence == pytest.approx(0.5 * (9 / 60) / 0.2)
    assert len(find_levels(feet, [rest(1.5, bears=False, **hand)], config)) == 2


def test_levels_are_as_sure_as_their_contact_is_long():
    brief, long = find_levels([rest(0.0, frames=6), rest(1.0, frames=60)], [], InferenceConfig())
    assert brief.confidence == pytest.approx(0.5)
    assert long.confidence == 1.0


@pytest.mark.parametrize("fall", [0.0, 9.81])
def test_a_hand_bears_only_if_the_body_does_not_fall(humanoid, fall):
    """One hand stays on a ledge while everything else passes, level or in free fall."""
    seconds = torch.arange(30, dtype=torch.float64) / 60.0
    pos = torch.zeros(30, humanoid.skeleton.num_bodies, 3, dtype=torch.float64)
    pos[..., 0] = 2.0 * seconds[:, None]
    pos[..., 2] = 1.0 - 0.5 * fall * seconds[:, None] ** 2
    pos[8:20, humanoid.hands[0]] = torch.tensor([0.4, 0.0, 0.9], dtype=torch.float64)
    rot = torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=torch.float64).expand(*pos.shape[:2], 4)
    free = np.zeros(30, dtype=bool)
    found = hand_events(humanoid, pos, rot, free, 60.0, EventConfig())
    assert len(found) == 1
    assert found[0].bears == (fall == 0.0)
    assert found[0].heading == pytest.approx((1.0, 0.0))


def wall_scene(face, speed=0.0, frames=20):
    """A foot that ends at a wall across x, and a column of cells of 0.4 m whose wall is at 1.0."""
    heights = np.zeros((8, 4))
    heights[3:] = 1.5  # cells centred at 1.2 and more: the wall is at 1.0
    z = np.linspace(0.1, 0.9, frames)
    toe, heel = (
        np.stack([np.full(frames, x), np.full(frames, 0.6), z], -1) for x in (face, face - 0.2)
    )
    pos = np.stack([toe, heel], axis=1).reshape(-1, 3)
    return heights, WallPoints(
        pos=pos,
        speed=np.full((len(pos), 2), speed),
        group=np.repeat(np.arange(frames), 2),
        rest_xy=np.array([[face - 0.3, 0.6], [1.4, 0.6]]),
        rest_height=np.array([0.0, 1.5]),
        rest_weight=np.array([20.0, 20.0]),
    )


@pytest.mark.parametrize("face", [0.85, 0.97, 1.0, 1.06, 1.14])
def test_walls_move_to_where_feet_lean_on_them(face):
    heights, points = wall_scene(face)
    shift = fit_walls(heights, np.zeros(2), 0.4, points)
    assert 1.0 + shift[0] == pytest.approx(face, abs=0.011)
    assert shift[1] == 0.0


def test_walls_stay_where_nothing_leans_or_rests_forbid():
    heights, points = wall_scene(0.9, speed=1.0)  # it passes by
    np.testing.assert_array_equal(fit_walls(heights, np.zeros(2), 0.4, points), 0.0)
    heights, points = wall_scene(0.85)
    held = np.array([[0.95, 0.6]])  # a longer rest on the floor where the wall would stand
    points = WallPoints(
        pos=points.pos,
        speed=points.speed,
        group=points.group,
        rest_xy=held,
        rest_height=np.array([0.0]),
        rest_weight=np.array([60.0]),
    )
    assert fit_walls(heights, np.zeros(2), 0.4, points)[0] >= -0.051
    np.testing.assert_array_equal(
        fit_walls(np.zeros((8, 4)), np.zeros(2), 0.4, points), 0.0
    )  # flat ground has no walls


def test_smoothing_removes_specks_without_evidence():
    levels = np.array([0.0, 1.0])
    data = np.zeros((2, 6, 6))
    data[1] = 0.3
    data[:, 2, 2] = (0.2, 0.0)  # weak evidence
    data[:, 4, 4] = (9.0, 0.0)  # somebody stood here
    label = _smoothed(data, levels, 0.4)
    assert label[2, 2] == 0
    assert label[4, 4] == 1
    assert label.sum() == 1
    assert _smoothed(data, levels, 0.0)[2, 2] == 1


@pytest.mark.parametrize("cell_size", [0.2, 0.4])
def test_ground_and_contacts_under_both_characters(character, cell_size):
    """Hops over known boxes: every stand is on its level, and touch labels are stands."""
    frames = hopping(character, STANDS)
    found = infer_terrain(character, frames, 30.0, config=InferenceConfig(cell_size=cell_size))
    assert found.levels == pytest.approx((-0.4, 0.0, 0.3, 0.75), abs=0.01)
    assert found.gap is None
    for x, y, ground in STANDS:
        at = torch.tensor([float(x), float(y)])
        assert float(found.terrain.height_at(at)) == pytest.approx(ground, abs=0.01)
    labels = label_contacts(character, frames, found.terrain)[:, list(character.feet)] > 0.5
    stands = torch.zeros(len(labels), dtype=torch.bool)
    for start in range(0, len(labels), 29):
        stands[start : start + 15] = True
    agree = (labels & stands[:, None]).sum() * 2 / (labels.sum() + 2 * stands.sum())
    assert float(agree) > 0.95
    other = [b for b in range(character.skeleton.num_bodies) if b not in character.feet]
    assert float(label_contacts(character, frames, found.terrain)[:, other].mean()) < 0.02


def test_a_known_grid_is_kept(humanoid):
    config = InferenceConfig(phase=(0.13, -0.07))
    terrain = infer_terrain(humanoid, hopping(humanoid, STANDS), 30.0, config=config).terrain
    cells = (terrain.origin - torch.tensor([0.13, -0.07])) / 0.4
    assert torch.allclose(cells, cells.round(), atol=1e-4)


def test_a_pit_is_seen_where_a_flying_foot_sinks(character):
    """A hop that passes 20 cm below the ground on both sides, and one that stays above."""
    frames = hopping(character, [(0, 0, 0), (3.0, 0, 0)])
    middle = torch.arange(15, 29)
    u = (middle - 14) / 15
    frames.root_pos[middle, 2] = character.stand_height - 0.8 * u * (1 - u)
    found = infer_terrain(character, frames, 30.0)
    assert found.levels == pytest.approx((0.0,), abs=0.01)
    assert found.gap is not None
    assert found.gap == pytest.approx(-0.2 - 0.5, abs=0.05)
    at = found.terrain.index_of(torch.tensor([[1.5, 0.0], [0.0, 0.0], [3.0, 0.0]]))
    heights = found.terrain.heights[at[:, 0], at[:, 1]]
    assert heights.tolist() == pytest.approx([found.gap, 0.0, 0.0], abs=0.01)
    confidence = found.terrain.confidence
    assert confidence is not None
    assert float(confidence[at[0, 0], at[0, 1]]) <= 0.0501
    assert "pit at -0.7" in describe(found)
    assert figures(found)["inferred_gap"] == 1.0
    flat = infer_terrain(character, frames, 30.0, config=InferenceConfig(gaps="none"))
    assert flat.gap is None
    assert float(flat.terrain.heights.min()) == pytest.approx(0.0, abs=0.01)


def test_pits_under_jumps_are_a_guess_to_ask_for(humanoid):
    frames = hopping(humanoid, [(0, 0, 0), (3.0, 0, 0)])
    assert infer_terrain(humanoid, frames, 30.0).gap is None
    found = infer_terrain(humanoid, frames, 30.0, config=InferenceConfig(gaps="jumped"))
    assert found.gap is not None
    assert float(found.terrain.height_at(torch.tensor([1.5, 0.0]))) == pytest.approx(found.gap)
    assert float(found.terrain.height_at(torch.tensor([3.0, 0.0]))) == pytest.approx(0, abs=0.01)
    with pytest.raises(InputError, match="gaps: 'some'"):
        InferenceConfig(gaps="some")  # type: ignore[arg-type]


def test_what_is_said_of_an_estimate(humanoid):
    found = infer_terrain(humanoid, hopping(humanoid, STANDS), 30.0)
    words = describe(found, base=found.floor)
    assert "\n" not in words
    assert words.startswith("levels -0.40 (foot 0.9 s, 1.00), 0.00 (foot 1.8 s, 1.00), 0.30 (")
    numbers = figures(found)
    assert numbers["inferred_levels"] == 4.0
    assert numbers["inferred_hand_levels"] == 0.0
    assert 0.7 < numbers["inferred_confidence"] <= 1.0
    assert 0.0 < numbers["inferred_known"] < 0.5
    seconds = sum(e.stop - e.start for e in found.events) / 60
    assert numbers["inferred_contact_s"] == pytest.approx(seconds)
    none = infer_terrain(humanoid, hopping(humanoid, [(0, 0, 0), (30.0, 0, 0)], hold_s=0.0), 30.0)
    assert describe(none).startswith("no rest")
    assert figures(none)["inferred_confidence"] == 0.0
