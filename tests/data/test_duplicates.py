"""Copies, cuts and mirror images are found; different motions and stillness are not."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from parc_ray.data.duplicates import (
    OverlapConfig,
    find_overlaps,
    split_by_take,
    take_groups,
)
from parc_ray.data.importers import import_path
from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip, Provenance
from parc_ray.motion.frames import MotionFrames
from parc_ray.motion.mirror import mirror_clip, mirror_frames
from parc_ray.synthesis.terrain_inference import TerrainEstimate
from parc_ray.terrain.heightfield import Heightfield


def moving(character, seed, frames=120, amplitude=0.4, clip_id=None, take=""):
    """Every dof a sum of slow sines of its own."""
    rng = np.random.default_rng(seed)
    skeleton = character.skeleton
    t = torch.arange(frames) / 30.0
    speed = torch.from_numpy(rng.uniform(1.0, 3.0, (2, skeleton.num_dofs))).float()
    phase = torch.from_numpy(rng.uniform(0, 2 * math.pi, (2, skeleton.num_dofs))).float()
    dof = amplitude * torch.sin(t[:, None, None] * speed + phase).mean(1)
    return MotionClip(
        clip_id=clip_id or f"m{seed}",
        frames=MotionFrames(
            root_pos=torch.zeros(frames, 3),
            root_rot=torch.tensor([0.0, 0.0, 0.0, 1.0]).repeat(frames, 1),
            dof=dof,
            contacts=torch.zeros(frames, skeleton.num_bodies),
        ),
        fps=30.0,
        terrain=Heightfield.flat((2, 2)),
        provenance=Provenance(take=take or f"t{seed}"),
    )


def cut(clip, start, stop, clip_id):
    return replace(clip, clip_id=clip_id, frames=clip.frames.time(start, stop))


def by_brute_force(clips, character, config, mirrored):
    """Shares by comparing every window with every other."""
    frames = round(config.window_s * 30)

    def windows(dof):
        cuts = dof.unfold(0, frames, 1).transpose(1, 2)
        spread = (cuts - cuts.mean(1, keepdim=True)).square().mean((1, 2)).sqrt()
        return cuts[spread > config.still_rad].flatten(1)

    base = [windows(c.frames.dof) for c in clips]
    looked = [
        windows(mirror_frames(character, c.frames).dof if mirrored else c.frames.dof) for c in clips
    ]
    result = {}
    for a, wa in enumerate(looked):
        for b, wb in enumerate(base):
            if a == b or not len(wa) or not len(wb):
                continue
            rms = (wa[:, None] - wb[None]).square().mean(-1).sqrt()
            result[clips[a].clip_id, clips[b].clip_id] = float(
                (rms.amin(1) < config.rms_rad).float().mean()
            )
    return result


def test_shares_are_those_of_a_comparison_of_all_windows(character):
    whole = moving(character, 1)
    clips = [
        whole,
        cut(whole, 20, 80, "cut"),
        mirror_clip(character, cut(whole, 50, 115, "other")),
        moving(character, 2),
        moving(character, 1, amplitude=0.45, clip_id="near"),
    ]
    config = OverlapConfig(step=1, report_share=1e-6, components=4)
    found = find_overlaps(clips, character, config)
    for mirrored in (False, True):
        wanted = by_brute_force(clips, character, config, mirrored)
        mine = {(o.first, o.second): o.share for o in found if o.mirrored == mirrored}
        wanted = {pair: share for pair, share in wanted.items() if share > 0}
        assert mine == pytest.approx(wanted), mirrored
    assert ("cut", "m1") in {(o.first, o.second) for o in found if o.share == 1.0}


def test_a_cut_lies_wholly_in_its_take_and_the_take_in_part_in_the_cut(humanoid):
    whole = moving(humanoid, 1)
    found = find_overlaps([whole, cut(whole, 20, 80, "cut")], humanoid)
    shares = {(o.first, o.second): o.share for o in found if not o.mirrored}
    assert shares["cut", "m1"] == 1.0
    # 46 of 106 windows, and those that begin a frame or two outside look alike
    assert shares["m1", "cut"] == pytest.approx(46 / 106, abs=0.12)


def test_mirror_images_are_found_as_such(humanoid):
    whole = moving(humanoid, 3)
    found = find_overlaps([whole, mirror_clip(humanoid, whole)], humanoid)
    assert {(o.first, o.second, o.mirrored) for o in found} == {
        ("m3", "m3_mirror", True),
        ("m3_mirror", "m3", True),
    }
    assert all(o.share == 1.0 for o in found)
    assert "100% mirrored in" in found[0].text()


def test_cycles_and_stillness_do_not_count(humanoid):
    """A loop repeats itself, and everyone who stands still looks alike."""
    cycle = moving(humanoid, 4, frames=31)
    again = cycle.frames.map(lambda x: torch.cat((x, x, x)))
    loop = replace(cycle, frames=again)
    still = [moving(humanoid, s, amplitude=0.01, clip_id=f"still{s}") for s in (5, 6)]
    assert find_overlaps([loop, *still], humanoid) == []
    assert find_overlaps([loop], humanoid) == []
    assert (
        find_overlaps([moving(humanoid, 1, frames=10), moving(humanoid, 2, frames=9)], humanoid)
        == []
    )


def test_frame_rates_must_agree(humanoid):
    slow = replace(moving(humanoid, 1), fps=24.0)
    with pytest.raises(InputError, match="24, 30 fps"):
        find_overlaps([slow, moving(humanoid, 2)], humanoid)


@pytest.mark.parametrize("bad", [{"rms_rad": 0.0}, {"report_share": 0.0}, {"report_share": 1.5}])
def test_thresholds_are_checked(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        OverlapConfig(**bad)


def test_overlapping_clips_stay_on_one_side_whatever_their_takes_say(humanoid):
    clips = []
    for seed in range(6):
        whole = moving(humanoid, seed, take=f"a{seed}")
        other = replace(cut(whole, 10, 90, f"cut{seed}"), provenance=Provenance(take=f"b{seed}"))
        mirrored = replace(
            mirror_clip(humanoid, whole), clip_id=f"x{seed}", provenance=Provenance(take=f"c{seed}")
        )
        clips += [whole, other, mirrored]
    train, test = split_by_take(clips, 1 / 3, seed=1, character=humanoid)
    sides = [{c.clip_id[-1] for c in part} for part in (train, test)]
    assert not sides[0] & sides[1]
    assert [len(s) for s in sides] == [4, 2]
    by_name, _ = split_by_take(clips, 1 / 3, seed=1)  # names alone leak
    assert {c.clip_id[-1] for c in by_name} == set("012345")
    with pytest.raises(InputError, match="test_share"):
        split_by_take(clips, 1.5, seed=1)


def test_children_follow_their_parents(humanoid):
    parent = moving(humanoid, 1, take="a")
    child = replace(
        moving(humanoid, 2), clip_id="child", provenance=Provenance(take="b", parents=("m1",))
    )
    far = replace(
        moving(humanoid, 3), clip_id="far", provenance=Provenance(take="c", parents=("gone",))
    )
    assert take_groups([parent, child, far]) == ["a", "a", "c"]


def test_known_overlaps_of_published_clips(humanoid, shared_data):
    """The gap jump was cut from the same run as the strides; no other two of the 23 share."""

    def flat(*_):
        ground = Heightfield.flat((1, 1))
        return TerrainEstimate(terrain=ground, levels=(), foot_levels=(), events=())

    clips = import_path(shared_data / "parc_clips", humanoid, infer=flat)
    pairs = {tuple(sorted((o.first, o.second))) for o in find_overlaps(clips, humanoid)}
    assert pairs == {("humanoid_run_jump_gap00", "humanoid_strides00")}
    twin = import_path(
        shared_data / "formats" / "deepmimic" / "humanoid3d_jump.txt", humanoid, infer=flat
    )
    jump = import_path(shared_data / "parc_clips" / "humanoid_jump.pkl", humanoid, infer=flat)
    assert {o.share for o in find_overlaps([*twin, *jump], humanoid)} == {1.0}
