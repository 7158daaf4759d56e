"""Windows drawn from memory: right content, right distribution, fast."""

from __future__ import annotations

import time

import pytest
import torch

from parc_ray.character import rotations as rot
from parc_ray.data.bank import ClipBank
from parc_ray.data.duplicates import split_by_take
from parc_ray.data.row_buffer import RowBuffer
from parc_ray.data.weights import clip_probabilities
from parc_ray.errors import InputError
from parc_ray.motion.clip import Provenance
from parc_ray.motion.resample import sample_frames

from .clips import random_clip


def clip_of(humanoid, seed, frames=60, **changes):
    skeleton = humanoid.skeleton
    clip = random_clip(
        seed, frames=frames, dofs=skeleton.num_dofs, bodies=skeleton.num_bodies, **changes
    )
    clip.frames.dof.mul_(0.3)
    clip.frames.root_rot = rot.quat_positive(clip.frames.root_rot)
    return clip


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("phases", [1, 4])
@pytest.mark.parametrize("loop", ["clamp", "wrap"])
def test_windows_are_what_interpolation_gives(humanoid, phases, loop):
    clips = [clip_of(humanoid, i, frames=40 + i, loop=loop) for i in range(3)]
    bank = ClipBank(clips, humanoid.skeleton, phases=phases)
    batch = bank.sample_windows(rng(), 50, 15)
    assert batch.frames.root_pos.shape == (50, 15, 3)
    assert torch.equal(batch.terrain_ids, batch.clip_index)
    for n in range(50):
        clip = clips[int(batch.clip_index[n])]
        start = float(batch.start_s[n])
        assert start * 30 * phases == pytest.approx(round(start * 30 * phases), abs=1e-6)
        times = start + torch.arange(15, dtype=torch.float64) / 30
        if loop == "clamp":
            assert times[-1] <= clip.duration_s + 1e-6
        else:
            assert 0 <= start < clip.duration_s
        expected = sample_frames(humanoid.skeleton, clip.frames, 30.0, times, loop)
        for name in ("root_pos", "root_rot", "dof", "contacts"):
            found, want = getattr(batch.frames, name)[n], getattr(expected, name)
            assert torch.allclose(found, want, atol=2e-3), name
        target_s = float(batch.target_s[n])
        ahead = target_s - start
        limit = 1.5 if loop == "wrap" else min(1.5, max(0.4, clip.duration_s - start + 0.4))
        assert ahead <= limit + 0.02
        assert ahead >= 0.4 - 0.02 or target_s == pytest.approx(clip.duration_s)
        there = sample_frames(
            humanoid.skeleton, clip.frames, 30.0, torch.tensor([target_s]).double(), loop
        )
        assert torch.allclose(batch.target_pos[n], there.root_pos[0], atol=2e-3)


def test_stored_frames_come_back_bit_exact(humanoid):
    clip = clip_of(humanoid, 0)
    bank = ClipBank([clip], humanoid.skeleton, phases=1)
    batch = bank.windows_at(torch.tensor([0, 0]), torch.tensor([0.0, 1.0]), 15)
    for name in ("root_pos", "root_rot", "dof", "contacts"):
        value = getattr(clip.frames, name)
        assert torch.equal(getattr(batch.frames, name), torch.stack([value[:15], value[30:45]]))
    assert batch.target_s.tolist() == pytest.approx([0.95, 1.883], abs=0.02)


def test_classes_get_equal_shares_and_clips_by_length(humanoid):
    specs = [("walk", 31, 1.0), ("walk", 61, 1.0), ("walk", 61, 0.0), ("run", 31, 2.0)]
    clips = [
        clip_of(humanoid, i, frames=f, weight=w, provenance=Provenance(class_name=c))
        for i, (c, f, w) in enumerate(specs)
    ]
    p = clip_probabilities(clips)
    assert p.tolist() == pytest.approx([1 / 6, 1 / 3, 0.0, 0.5])
    flat = clip_probabilities(clips, class_balance=False)
    assert flat.tolist() == pytest.approx([1 / 5, 2 / 5, 0.0, 2 / 5])
    bank = ClipBank(clips, humanoid.skeleton, phases=1)
    drawn = bank.sample_windows(rng(1), 60_000, 15)
    share = torch.bincount(drawn.clip_index, minlength=4) / 60_000
    assert share.tolist() == pytest.approx(p.tolist(), abs=0.008)  # 4 standard errors
    starts = (drawn.start_s[drawn.clip_index == 3] * 30).round().long()
    counts = torch.bincount(starts, minlength=17)
    assert len(counts) == 17  # 31 frames have 17 windows of 15
    expected = counts.sum() / 17
    chi2 = float(((counts - expected) ** 2 / expected).sum())
    assert chi2 < 39.3  # 0.1 % quantile with 16 degrees of freedom


def test_draws_repeat_with_the_seed(humanoid):
    bank = ClipBank([clip_of(humanoid, i) for i in range(3)], humanoid.skeleton)
    a, b = (bank.sample_windows(rng(7), 20, 15) for _ in range(2))
    assert torch.equal(a.frames.dof, b.frames.dof)
    assert torch.equal(a.target_pos, b.target_pos)
    assert not torch.equal(a.start_s, bank.sample_windows(rng(8), 20, 15).start_s)


def test_terrains_go_with_their_clips(humanoid):
    clips = [clip_of(humanoid, i) for i in range(3)]
    bank = ClipBank(clips, humanoid.skeleton)
    batch = bank.sample_windows(rng(), 10, 15)
    terrains = bank.terrains.index_select(batch.terrain_ids)
    for n, index in enumerate(batch.clip_index.tolist()):
        assert torch.equal(terrains.get(n).heights, clips[index].terrain.heights)


def test_refusals(humanoid):
    skeleton = humanoid.skeleton
    with pytest.raises(InputError, match="at least one"):
        ClipBank([], skeleton)
    with pytest.raises(InputError, match="24 fps"):
        ClipBank([clip_of(humanoid, 0, fps=24.0)], skeleton)
    short = ClipBank([clip_of(humanoid, 0, frames=14)], skeleton)
    with pytest.raises(InputError, match="14 frames; windows of 15"):
        short.sample_windows(rng(), 1, 15)
    with pytest.raises(InputError, match="weight"):
        ClipBank([clip_of(humanoid, 0, weight=0.0)], skeleton)
    bank = ClipBank([clip_of(humanoid, 0)], skeleton)
    with pytest.raises(InputError, match=r"0 to 1\.5 s is allowed"):
        bank.windows_at(torch.tensor([0]), torch.tensor([1.6]), 15)
    loop = ClipBank([clip_of(humanoid, 0, loop="wrap")], skeleton)
    with pytest.raises(InputError, match="unroll"):
        loop.sample_windows(rng(), 1, 120)


@pytest.mark.parametrize(("megabytes", "phases"), [(1.0, 4), (0.1, 2), (0.05, 1), (0.0, 1)])
def test_fewer_phases_where_memory_is_short(humanoid, megabytes, phases):
    """Three clips of 60 frames of 50 numbers take 36 kB per phase."""
    clips = [clip_of(humanoid, i) for i in range(3)]
    bank = ClipBank(iter(clips), humanoid.skeleton, memory_mb=megabytes)
    assert bank.phases == phases
    batch = bank.windows_at(torch.tensor([1]), torch.tensor([0.5]), 15)
    assert torch.allclose(batch.frames.dof[0], clips[1].frames.dof[15:30], atol=2e-3)


def test_rows_grow_in_place_and_keep_their_order():
    rows, parts = RowBuffer(3), [torch.randn(n, 3) for n in (5, 0, 2000, 1, 700)]
    for part in parts:
        rows.append(part)
    taken = rows.take()
    assert torch.equal(taken, torch.cat(parts))
    rows.append(parts[0])
    assert torch.equal(rows.take(), parts[0])
    assert torch.equal(taken, torch.cat(parts))


def test_fast_enough(humanoid):
    bank = ClipBank([clip_of(humanoid, i, frames=200) for i in range(30)], humanoid.skeleton)
    generator = rng()
    bank.sample_windows(generator, 2048, 15)
    began = time.process_time()
    for _ in range(5):
        bank.sample_windows(generator, 2048, 15)
    assert 5 * 2048 / (time.process_time() - began) > 50_000


def test_takes_stay_together():
    clips = [random_clip(i, provenance=Provenance(take=f"take{i % 5}")) for i in range(20)]
    train, test = split_by_take(clips, 0.4, seed=3)
    takes = [{c.provenance.take for c in part} for part in (train, test)]
    assert not takes[0] & takes[1]
    assert [len(t) for t in takes] == [3, 2]
    assert len(train) + len(test) == 20
    again = split_by_take(reversed(clips), 0.4, seed=3)
    assert {c.provenance.take for c in again[1]} == takes[1]
