from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parc_ray.synthesis.config import HesitationConfig
from parc_ray.synthesis.hesitation import frames_to_keep, remove_hesitation, repeated_frames
from tests.synthesis.helpers import walk_clip

BODIES = 15


def slide(speed: float, frames: int = 150) -> torch.Tensor:
    pos = torch.zeros(frames, BODIES, 3)
    pos[..., 0] = (torch.arange(frames) * speed / 30.0)[:, None]
    return pos


def test_flags_equal_the_definition():
    generator = torch.Generator().manual_seed(0)
    pos = torch.randn(40, 3, 3, generator=generator).mul(0.03).cumsum(0)
    flagged = [False] * 40
    for i in range(40):
        if not flagged[i]:
            for j in range(i + 1, 40):
                if float((pos[j] - pos[i]).norm()) < 0.15:
                    flagged[j] = True
    assert repeated_frames(pos, 0.15).tolist() == flagged
    assert 0 < sum(flagged) < 39


@pytest.mark.parametrize(("speed", "kept"), [(0.10, 13), (0.20, 25), (0.28, 30)])
def test_without_cap_slow_motion_is_sped_up_as_published(speed, kept):
    keep = frames_to_keep(slide(speed), HesitationConfig(speedup_cap=math.inf))
    assert abs(len(keep) - kept) <= 1


@pytest.mark.parametrize("speed", [0.1, 0.2, 0.28, 1.0])
def test_cap_leaves_slow_motion_alone(speed):
    keep = frames_to_keep(slide(speed), HesitationConfig())
    assert len(keep) >= 140
    assert keep.diff().max() == 1


def test_a_real_pause_is_cut_to_its_ends():
    pos = torch.cat([slide(1.0, 60), slide(1.0, 60)[-1:].expand(50, BODIES, 3)])
    pos = torch.cat([pos, pos[-1:] + slide(1.0, 61)[1:]])
    keep = frames_to_keep(pos, HesitationConfig())
    assert len(keep) < 170 - 40


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), cap=st.floats(1.0, 3.0))
def test_no_body_is_sped_up_beyond_the_cap(seed, cap):
    generator = torch.Generator().manual_seed(seed)
    pos = torch.randn(80, 4, 3, generator=generator).mul(0.02).cumsum(0)
    pos[30:60] = pos[30] + 0.01 * torch.randn(30, 4, 3, generator=generator)
    keep = frames_to_keep(pos, HesitationConfig(speedup_cap=cap))
    step = (pos[1:] - pos[:-1]).norm(dim=-1).amax(-1)
    new = (pos[keep][1:] - pos[keep][:-1]).norm(dim=-1).amax(-1)
    assert keep[0] == 0
    assert (keep.diff() > 0).all()
    assert float(new.max()) <= cap * float(step.max()) + 1e-6


def test_the_cap_looks_at_the_speed_nearby_not_at_the_fastest_of_the_motion():
    slow = slide(0.1, 151)[1:] + slide(2.0, 60)[-1:]
    keep = frames_to_keep(torch.cat([slide(2.0, 60), slow]), HesitationConfig())
    # The first run of repeated frames borders on the fast part and may go; the others stay.
    assert int((keep >= 60).sum()) >= 150 - 2 * 12


def test_a_paused_clip_loses_its_pause_and_nothing_else(humanoid):
    clip = walk_clip(humanoid)
    index = torch.cat([torch.arange(40), torch.full((30,), 40), torch.arange(40, clip.num_frames)])
    paused = replace(clip, frames=clip.frames[index])
    short, removed = remove_hesitation(paused, humanoid, HesitationConfig())
    assert 28 <= removed <= 31
    assert short.num_frames == paused.num_frames - removed
    for name in ("root_pos", "root_rot", "dof", "contacts"):
        kept = getattr(short.frames, name)
        assert (kept[:40] == getattr(clip.frames, name)[:40]).all()
        assert (kept[-20:] == getattr(clip.frames, name)[-20:]).all()
    same, none = remove_hesitation(paused, humanoid, HesitationConfig(enabled=False))
    assert same is paused
    assert none == 0


def test_clip_without_pause_is_returned_as_it_is(humanoid):
    clip = walk_clip(humanoid)
    same, removed = remove_hesitation(clip, humanoid, HesitationConfig())
    assert removed == 0
    assert same is clip
