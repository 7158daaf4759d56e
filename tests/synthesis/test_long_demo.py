"""Long motions: paths through way-points, the search over segments, and its state."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from parc_ray.errors import InputError
from parc_ray.motion.frames import cat_time
from parc_ray.synthesis.config import PlannerConfig, RolloutConfig
from parc_ray.synthesis.demo_maps import PRESETS, fall_catch, jump_catch, random_waypoints, snapped
from parc_ray.synthesis.legs import plan_legs
from parc_ray.synthesis.long_demo import DemoConfig, SearchState, generate_long
from parc_ray.synthesis.rollout import RolloutStart, generate_candidates
from parc_ray.synthesis.waypoints import arc_lengths
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.terrain.mending import reachable_cells
from tests.synthesis.helpers import Glider

FLAT = Heightfield.flat((60, 60))
QUIET = PlannerConfig(noise=(0.0, 0.0), max_jump_xy_m=0.0)
SMALL = DemoConfig(seconds=6.0, segment_s=1.0, candidates=4, beam=2, retries=3)


class Mixed(Glider):
    """Glides at a speed that is drawn per candidate and window; some walk off where told so."""

    bad_windows: tuple[int, ...] = ()

    def sample(self, request, rng):
        window = len(self.calls)
        speeds = 0.6 + 1.2 * torch.rand(len(request.anchor_pos), generator=rng)
        parts = []
        for k, speed in enumerate(speeds.tolist()):
            self.speed = speed
            one = replace(
                request,
                past=None if request.past is None else request.past[k : k + 1],
                anchor_pos=request.anchor_pos[k : k + 1],
                anchor_heading=request.anchor_heading[k : k + 1],
                terrain=request.terrain.index_select(torch.tensor([k])),
                target_w=request.target_w[k : k + 1],
            )
            parts.append(super().sample(one, rng))
        self.calls = [*self.calls[:window], len(speeds)]
        out = parts[0].map(lambda x: x)
        for name in vars(out):
            setattr(out, name, torch.cat([getattr(p, name) for p in parts]))
        if window in self.bad_windows:
            out.root_pos[:, -1] = torch.nan
            out.root_pos[:, 7] = torch.nan
        return out


class Memory:
    """A store that keeps plain values, and can forget what was done after a step."""

    def __init__(self) -> None:
        self.states: list[dict] = []

    def load(self):
        return SearchState.from_plain(self.states[-1]) if self.states else None

    def save(self, state) -> None:
        self.states.append(state.to_plain())


@pytest.fixture
def straight():
    return plan_legs(FLAT, [(-8.0, 0.2), (0.0, 0.2), (8.0, 0.2)], QUIET, 0)


def test_legs_are_joined_without_a_gap_or_a_repetition():
    stops = [(-6.0, -6.0), (6.0, -5.8), (5.8, 6.0)]
    path = plan_legs(FLAT, stops, PlannerConfig(), 3)
    step = path.points[1:, :2] - path.points[:-1, :2]
    assert (step.norm(dim=-1) > 0).all()
    assert (step.norm(dim=-1) < 0.6).all()
    assert len(path.kinds) == len(path.nodes) - 1
    assert arc_lengths(path.points)[-1] == pytest.approx(float(arc_lengths(path.nodes)[-1]))
    for stop, end in zip(stops[1:], path.legs, strict=True):
        assert (path.nodes[end - 1, :2] - torch.tensor(stop)).norm() < 0.3
    # The fixed noise of one graph: a leg costs what it costs alone.
    alone = [plan_legs(FLAT, stops[k : k + 2], PlannerConfig(), 3).cost for k in (0, 1)]
    assert path.cost == pytest.approx(sum(alone))


def test_a_leg_that_cannot_be_is_named():
    heights = torch.zeros(30, 30)
    heights[20:22] = 9.0
    wall = Heightfield(heights=heights, origin=torch.zeros(2))
    with pytest.raises(InputError, match=r"way-points 1 and 2: no way from"):
        plan_legs(wall, [(1.0, 1.0), (1.0, 8.0), (11.0, 8.0)], PlannerConfig(), 0)
    with pytest.raises(InputError, match=r"way-point 1: .* off the map"):
        plan_legs(wall, [(1.0, 1.0), (1.0, 80.0)], PlannerConfig(), 0)
    with pytest.raises(InputError, match="one cell"):
        plan_legs(wall, [(1.2, 1.2), (1.3, 1.2)], PlannerConfig(), 0)
    with pytest.raises(InputError, match="at least two"):
        plan_legs(wall, [(1.0, 1.0)], PlannerConfig(), 0)


@pytest.mark.parametrize(
    ("preset", "order"),
    [(jump_catch, ["jump", "climb", "drop"]), (fall_catch, ["jump", "drop", "climb"])],
)
def test_presets_chain_the_skills_in_order(preset, order):
    made = preset()
    for seed in range(3):
        path = plan_legs(made.terrain, made.waypoints, PlannerConfig(), seed)
        assert [k for k in path.kinds if k != "walk"] == order
    # No way round: without jumps there is no path.
    with pytest.raises(InputError, match="no way"):
        plan_legs(made.terrain, made.waypoints, PlannerConfig(max_jump_xy_m=0.0), 0)


def test_the_tour_crosses_a_map_of_100_by_100_cells():
    made = PRESETS["tour"](0)
    assert made.terrain.shape == (100, 100)
    reachable = reachable_cells(made.terrain.heights.double().numpy(), 2.1)
    stops, moved = snapped(made.terrain, made.waypoints, reachable)
    assert moved < 1e-4
    low, high = made.terrain.extent
    from_centre = (torch.tensor(stops) - (low + high) / 2).norm(dim=-1)
    assert (from_centre - 14.4).abs().max() < 2.0
    cells = made.terrain.index_of(torch.tensor(stops)).numpy()
    assert reachable[cells[:, 0], cells[:, 1]].all()
    path = plan_legs(made.terrain, stops, PlannerConfig(), 0)
    assert float(arc_lengths(path.points)[-1]) > 60.0
    assert len(set(path.kinds)) >= 3


def test_random_waypoints_keep_their_distance_and_stand_on_reachable_cells():
    reachable = np.zeros((40, 40), dtype=bool)
    reachable[::3] = True
    terrain = Heightfield.flat((40, 40))
    stops = random_waypoints(terrain, 6, 5.0, reachable, np.random.default_rng(0))
    gaps = np.linalg.norm(np.diff(np.array(stops), axis=0), axis=1)
    assert gaps.min() >= 5.0 - 1e-5
    cells = terrain.index_of(torch.tensor(stops)).numpy()
    assert reachable[cells[:, 0], cells[:, 1]].all()
    with pytest.raises(InputError, match="no cell is 50 m"):
        random_waypoints(terrain, 3, 50.0, reachable, np.random.default_rng(0))


def test_going_on_equals_not_having_stopped(humanoid):
    """Two roll-outs of some windows, the second from the end of the first, are one of all."""
    path = torch.tensor([[0.0, 0.0, 0.0], [9.0, 0.0, 0.0]])
    whole, first = RolloutConfig(candidates=1, max_duration_s=3.0), 9 + 7 * 4
    (one,) = generate_candidates(Glider(humanoid), [FLAT], [path], humanoid, whole, 0)
    part = replace(whole, max_duration_s=(first - 1 + 0.5) / 30)
    (a,) = generate_candidates(Glider(humanoid), [FLAT], [path], humanoid, part, 0)
    start = RolloutStart(past=a.frames, progress_m=a.progress_m)
    rest = replace(whole, max_duration_s=(one.frames.num_frames - first + 0.5) / 30)
    (b,) = generate_candidates(Glider(humanoid), [FLAT], [path], humanoid, rest, 0, [start])
    assert a.frames.num_frames == first
    joined = cat_time([a.frames, b.frames])
    for name in ("root_pos", "root_rot", "dof"):
        torch.testing.assert_close(getattr(joined, name), getattr(one.frames, name))
    assert b.progress_m == pytest.approx(one.progress_m)
    assert [*a.seams, first, *(s + first for s in b.seams)] == list(one.seams)
    with pytest.raises(InputError, match="starts: 2 for 1"):
        generate_candidates(Glider(humanoid), [FLAT], [path], humanoid, rest, 0, [start] * 2)


def test_a_long_motion_arrives_and_has_no_gap(humanoid, straight):
    cfg = replace(SMALL, seconds=30.0)
    motion = generate_long(Mixed(humanoid), FLAT, straight.points, humanoid, cfg, 0)
    assert motion is not None
    assert (motion.finished, motion.ended) == (True, "arrived")
    # 16 m less the half that counts as there, at 1.8 m/s at most: no motion of 2.5 s.
    assert motion.frames.num_frames / 30 > 15.0 / 1.8
    step = motion.frames.root_pos[1:, :2] - motion.frames.root_pos[:-1, :2]
    assert float(step.norm(dim=-1).max()) < 1.85 / 30
    assert motion.frames.root_pos[-1, 0] == pytest.approx(8.0, abs=0.7)
    # Windows begin every 7 frames after the first 9, over the borders of segments as well.
    assert motion.seams == tuple(range(9, motion.frames.num_frames, 7))


def test_the_end_of_the_time_is_the_end(humanoid, straight):
    motion = generate_long(Mixed(humanoid), FLAT, straight.points, humanoid, SMALL, 0)
    assert motion is not None
    assert (motion.finished, motion.ended) == (False, "time")
    assert motion.frames.num_frames == 6 * 30 + 1
    assert motion.seams[-1] < 181


def test_choosing_among_candidates_gets_further_than_taking_one(humanoid, straight):
    def covered(candidates: int, beam: int) -> float:
        cfg = replace(SMALL, seconds=4.0, candidates=candidates, beam=beam)
        total = 0.0
        for seed in range(2):
            motion = generate_long(Mixed(humanoid), FLAT, straight.points, humanoid, cfg, seed)
            assert motion is not None
            total += motion.progress_m
        return total

    assert covered(8, 2) > 1.1 * covered(1, 1)


def test_what_was_chosen_and_dropped_adds_up(humanoid, straight):
    motion = generate_long(Mixed(humanoid), FLAT, straight.points, humanoid, SMALL, 1)
    assert motion is not None
    assert motion.segments[0].branches[0].parent == -1
    for level in motion.segments:
        assert level.candidates == len(level.branches) + sum(level.rejections.values())
        scores = [b.score for b in level.branches if not b.finished]
        assert scores == sorted(scores)
    total = 0.0
    for level, k in zip(motion.segments, motion.chosen, strict=True):
        total += level.branches[k].figures["score"]
    assert total == pytest.approx(motion.segments[-1].branches[0].score)
    gains = sum(
        level.branches[k].figures["gain_m"]
        for level, k in zip(motion.segments, motion.chosen, strict=True)
    )
    assert gains == pytest.approx(motion.progress_m, abs=1e-4)


def test_a_failed_segment_goes_back_by_one_and_is_told(humanoid, straight):
    glider = Mixed(humanoid)
    # All of the third segment of four windows, then all of the second one tried again.
    glider.bad_windows = (8, 9)
    motion = generate_long(glider, FLAT, straight.points, humanoid, SMALL, 0)
    assert motion is not None
    assert motion.ended == "time"
    assert motion.failures == ((2, {"not finite": 4}), (1, {"not finite": 4}))
    assert torch.isfinite(motion.frames.root_pos).all()
    assert motion.frames.num_frames == 181


def test_giving_up_keeps_the_longest_motion_and_says_why(humanoid, straight):
    glider = Mixed(humanoid)
    glider.bad_windows = tuple(range(8, 400))
    motion = generate_long(glider, FLAT, straight.points, humanoid, SMALL, 0)
    assert motion is not None
    assert motion.ended.startswith("gave up at segment")
    assert "not finite 4" in motion.ended
    assert len(motion.failures) == SMALL.retries + 1
    assert motion.frames.num_frames == 9 + 7 * 7
    glider = Mixed(humanoid)
    glider.bad_windows = tuple(range(400))
    assert generate_long(glider, FLAT, straight.points, humanoid, SMALL, 0) is None


def test_standing_still_is_no_use(humanoid, straight):
    still = Glider(humanoid, speed=0.0)
    cfg = replace(SMALL, retries=1)
    assert generate_long(still, FLAT, straight.points, humanoid, cfg, 0) is None


@pytest.mark.parametrize("after", [1, 3, 4])
def test_a_search_that_was_stopped_ends_as_if_it_had_not_been(humanoid, straight, after):
    def glider(done: int) -> Mixed:
        made = Mixed(humanoid)
        made.calls = [4] * done
        made.bad_windows = (8,)
        return made

    class Bounded(Memory):
        def save(self, state) -> None:
            super().save(state)
            if len(self.states) == after:
                raise KeyboardInterrupt

    cfg = replace(SMALL, seconds=4.0)
    whole = generate_long(glider(0), FLAT, straight.points, humanoid, cfg, 7)
    store, first = Bounded(), glider(0)
    with pytest.raises(KeyboardInterrupt):
        generate_long(first, FLAT, straight.points, humanoid, cfg, 7, store)
    kept = Memory()
    kept.states = store.states
    rest = glider(len(first.calls))
    again = generate_long(rest, FLAT, straight.points, humanoid, cfg, 7, kept)
    assert whole is not None
    assert again is not None
    assert torch.equal(whole.frames.root_pos, again.frames.root_pos)
    assert whole.seams == again.seams
    assert whole.failures == again.failures


def test_wrong_settings_are_named():
    with pytest.raises(InputError, match=r"DemoConfig\.beam"):
        DemoConfig(candidates=2, beam=3)
    with pytest.raises(InputError, match=r"DemoConfig\.seconds"):
        DemoConfig(seconds=math.nan)
