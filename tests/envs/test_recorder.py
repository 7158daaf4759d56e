from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from envs.recorder import RecordConfig, contact_labels, record, replay_frames
from envs.sims.registry import backend_factory
from envs.sims.replay import replay_clip
from envs.tracking.config import TerminationConfig, TrackingConfig
from parc_ray.errors import InputError
from parc_ray.motion.clip import validate_clip
from parc_ray.terrain.heightfield import Heightfield
from tests.envs.helpers import assert_same, stand_clip, sway_clip

LOOSE = TrackingConfig(termination=TerminationConfig(root_pos_m=0.5, root_rot_rad=3.0, body_m=9.0))


@pytest.fixture
def factory(humanoid):
    return backend_factory("mujoco_cpu", humanoid)


def bumpy() -> Heightfield:
    """Flat around the character at 1 m, steps further out; off centre."""
    heights = torch.full((30, 30), 1.0)
    heights[20:, :] = 1.3
    heights[:, :4] = 0.5
    upper = heights + 1.0
    return Heightfield(
        heights=heights, origin=torch.tensor([-4.0, -2.0]), upper=upper, lower=heights - 1.0
    )


def on_bumps(character, frames=41, clip_id="stand"):
    clip = stand_clip(character, frames, clip_id)
    clip.terrain = bumpy()
    clip.frames.root_pos += torch.tensor([1.03, 2.01, 1.0])
    clip.path_nodes = clip.frames.root_pos[::10].clone()
    return clip


def hopeless_until(character, frame, frames=121, clip_id="late"):
    """Stands, but the reference darts away before ``frame`` and only then stays."""
    clip = stand_clip(character, frames, clip_id)
    t = torch.arange(frames)
    clip.frames.root_pos[:, 0] = (t - frame).clamp(max=0) * 0.3
    return clip


def test_a_whole_clip_is_cut_localised_and_replays_bit_for_bit(humanoid, factory):
    source = on_bumps(humanoid)
    (result,) = record(
        humanoid, factory, [source], None, tracking=LOOSE, hashes={"tracker": "abc"}, iteration=2
    )
    clip = result.clip
    assert clip is not None
    assert (result.whole, result.reaches_end, result.start_fraction) == (True, True, 0.0)
    validate_clip(clip, humanoid)
    assert clip.num_frames == source.num_frames
    assert clip.clip_id != source.clip_id
    assert clip.provenance.maker == "tracker"
    assert clip.provenance.parents == ("stand",)
    assert clip.provenance.iteration == 2
    assert clip.provenance.hashes["tracker"] == "abc"
    first = clip.frames.root_pos[0]
    assert first[:2].tolist() == [0.0, 0.0]
    assert float(clip.terrain.height_at(first[:2])) == 0.0
    assert float(first[2]) == pytest.approx(humanoid.stand_height, abs=0.01)
    moved = source.frames.root_pos[:, :2] + clip.replay.offset[:2]
    grid = moved[:1] + 0.35 * torch.tensor([[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0]])
    torch.testing.assert_close(
        clip.terrain.height_at(grid),
        source.terrain.height_at(grid - clip.replay.offset[:2]) + clip.replay.offset[2],
    )
    assert clip.terrain.upper is not None
    torch.testing.assert_close(clip.path_nodes, source.path_nodes + clip.replay.offset)
    states = replay_clip(humanoid, clip.replay)
    assert_same(replay_frames(states, clip.replay, RecordConfig()), clip.frames)


def test_contacts_come_from_the_simulation_and_frame_zero_has_them(humanoid, factory):
    source = on_bumps(humanoid)
    source.frames.contacts[:] = 1.0  # wrong labels must not survive
    (result,) = record(humanoid, factory, [source], None, tracking=LOOSE)
    contacts = result.clip.frames.contacts
    expected = torch.zeros(humanoid.skeleton.num_bodies)
    expected[list(humanoid.feet)] = 1.0
    assert torch.equal(contacts[0], expected)
    assert torch.equal(contacts[20], expected)


def test_labels_are_debounced_and_start_with_the_first_step():
    force = torch.zeros(8, 2, 3)
    force[1:4, 0, 2] = 50.0
    force[5, 0, 2] = 50.0  # one frame: a flicker
    force[1:, 1, 2] = 50.0
    force[4, 1] = 0.0  # a gap of one frame
    labels = contact_labels(force, 1.0, 2)
    assert labels[:, 0].tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
    assert labels[:, 1].tolist() == [1] * 8


def test_the_earliest_start_that_reaches_the_end_is_kept(humanoid, factory):
    clips = [hopeless_until(humanoid, 30), stand_clip(humanoid, 31, "easy")]
    late, easy = record(humanoid, factory, clips, None, tracking=LOOSE)
    assert easy.whole
    assert easy.attempts == 1
    assert late.clip is not None
    assert (late.whole, late.reaches_end) == (False, True)
    # starts at frames 0, 12, 24, 36, 48, 60: the fourth is the first that can work
    assert late.start_fraction == 0.3
    assert late.attempts == 4
    assert late.clip.num_frames == 121 - 36
    assert 0 < late.survived < 1
    assert late.reason == "root_pos"
    assert "frames 36 to 120" in late.clip.provenance.notes
    assert late.clip.metrics["start_fraction"] == 0.3
    assert late.clip.frames.root_pos[0, :2].tolist() == [0.0, 0.0]
    assert_same(
        replay_frames(replay_clip(humanoid, late.clip.replay), late.clip.replay, RecordConfig()),
        late.clip.frames,
    )


def test_too_little_of_a_clip_is_not_kept(humanoid, factory):
    """Of 90 frames the starts at 0.4 and 0.5 leave less than 2 s; at 1.5 s they count."""
    source = hopeless_until(humanoid, 32, frames=90)
    (none,) = record(humanoid, factory, [source], None, tracking=LOOSE)
    assert none.clip is None
    (some,) = record(
        humanoid, factory, [source], None, RecordConfig(min_remaining_s=1.6), tracking=LOOSE
    )
    assert some.start_fraction == 0.4


def test_segments_are_a_choice(humanoid, factory):
    """A reference that darts away after 2 s: no start reaches the end, the piece before does."""
    source = stand_clip(humanoid, 91, "dart")
    t = torch.arange(91)
    source.frames.root_pos[:, 0] = (t - 60).clamp(min=0) * 0.3
    (none,) = record(humanoid, factory, [source], None, tracking=LOOSE)
    assert none.clip is None
    config = RecordConfig(accept_segments=True, segment_min_s=1.5, segment_trim_s=0.3)
    (piece,) = record(humanoid, factory, [source], None, config, tracking=LOOSE)
    assert piece.clip is not None
    assert (piece.whole, piece.reaches_end) == (False, False)
    assert 50 <= piece.clip.num_frames <= 60
    assert piece.clip.replay.pd_targets.shape[0] == piece.clip.num_frames - 1
    assert_same(
        replay_frames(replay_clip(humanoid, piece.clip.replay), piece.clip.replay, config),
        piece.clip.frames,
    )


def test_best_of_several_attempts_is_kept(humanoid, factory):
    source = sway_clip(humanoid, 31, amplitude=0.03)
    (one,) = record(humanoid, factory, [source], None, tracking=LOOSE)
    (best,) = record(humanoid, factory, [source], None, RecordConfig(attempts=4), tracking=LOOSE)
    assert best.attempts == 4
    assert best.metrics["body_global_m"] <= one.metrics["body_global_m"]
    (again,) = record(humanoid, factory, [source], None, RecordConfig(attempts=4), tracking=LOOSE)
    assert_same(again.clip.frames, best.clip.frames)


def test_wrong_settings_are_named():
    for wrong in ({"fractions": (0.5, 0.1)}, {"min_remaining_s": 0.1}, {"attempts": 0}):
        with pytest.raises(InputError, match=f"record.{next(iter(wrong))}"):
            replace(RecordConfig(), **wrong)
