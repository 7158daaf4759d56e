"""What is kept of the motions ahead equals what is looked up anew; starts prepared in advance."""

from __future__ import annotations

import pytest
import torch

from envs.tracking import config as presets
from envs.tracking.config import SamplingConfig
from envs.tracking.env import VectorTrackingEnv
from envs.tracking.lookahead import make_lookahead
from envs.tracking.motion_bank import MotionBank
from envs.tracking.sampling import StartSampler
from envs.tracking.start_queue import StartQueue
from envs.tracking.task import TrackingTask
from tests.envs.helpers import assert_same, stand_clip, sway_clip


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("preset", ["base", "upstream"])
def test_ahead_equals_a_fresh_look(humanoid, preset, whole):
    clips = [sway_clip(humanoid, 50, speed=0.5), stand_clip(humanoid, 12)]
    task = TrackingTask(humanoid, MotionBank(humanoid, clips), presets.preset(preset))
    ahead = make_lookahead(task, whole)
    clip = torch.tensor([0, 1, 0])
    start = torch.tensor([0.0, 3.25, 20.5]) if not whole else torch.tensor([0, 3, 20])
    ahead.fill(clip, start)
    assert_same(ahead.now, task.references(clip, start))
    for step in range(1, 45):
        place = start + step
        assert_same(ahead.advance(clip, place), task.references(clip, place))
        if step == 7:
            ids, other = torch.tensor([2, 0]), torch.tensor([1, 0])
            moved = torch.tensor([1.5, 9.75]) if not whole else torch.tensor([1, 9])
            ahead.replace(ids, ahead.see(other, moved)[1])
            clip[ids], start[ids] = other, moved - step
            following = task.bank.query(clip, start + step + 1)
            assert_same(ahead.now.next, following)


def test_starts_between_frames_are_multiples_of_a_fine_step():
    config = SamplingConfig(mode="clip", start_on_frames=False, start_share=0.0)
    sampler = StartSampler(config, torch.tensor([300]), torch.ones(1), 30.0)
    frame = sampler.sample(200, torch.Generator().manual_seed(0)).frame
    assert torch.equal(frame * 1024, (frame * 1024).round())
    assert float((frame - frame.round()).abs().max()) > 0.3


def queue_of(env: VectorTrackingEnv, size: int) -> StartQueue:
    return StartQueue(env.sampler, env._prepare, env._see, size)


def test_outcomes_are_learnt_from_when_new_starts_are_made(humanoid):
    env = VectorTrackingEnv(humanoid, [stand_clip(humanoid)], 2, seed=1)
    queue, rng = queue_of(env, 4), torch.Generator().manual_seed(0)
    first = queue.take(3, rng)
    assert first.clip.tolist() == [0, 0, 0]
    place = torch.zeros(2)
    queue.ended(torch.tensor([0, 0]), place, place + 5, torch.tensor([False, False]))
    queue.take(1, rng)
    assert float(env.sampler.clip_seen[0]) == 0.0  # the queue still held a start
    queue.take(1, rng)
    assert float(env.sampler.clip_seen[0]) == 2.0
    assert float(env.sampler.clip_fail[0]) == 0.0


@pytest.mark.parametrize("preset", ["quick", "upstream"])
def test_queue_state_continues(humanoid, preset):
    config = presets.preset(preset)
    env = VectorTrackingEnv(humanoid, [sway_clip(humanoid)], 2, config, seed=1)
    one, rng = queue_of(env, 8), torch.Generator().manual_seed(0)
    one.take(3, rng)
    one.ended(torch.tensor([0]), torch.zeros(1), torch.ones(1), torch.tensor([True]))
    other = queue_of(env, 8)
    other.load_state_dict(one.state_dict())
    assert_same(one.state_dict(), other.state_dict())
    assert_same(one.take(5, rng), other.take(5, rng))
    other.load_state_dict({})
    assert other.state_dict() == {"ready": {}, "ended": {}}
