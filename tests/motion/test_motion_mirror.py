"""Mirroring against reflected positions of all bodies, computed without quaternions' mirror."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from parc_ray.character import rotations as rot
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.errors import InputError
from parc_ray.motion.mirror import mirror_clip, mirror_frames
from parc_ray.terrain.heightfield import Heightfield
from tests.motion.motions import largest_difference, make_clip, smooth_frames

FLIP = torch.diag(torch.tensor([1.0, -1.0, 1.0]))


def test_every_body_is_the_reflection_of_its_counterpart(character):
    frames = smooth_frames(character, 20)
    mirrored = mirror_frames(character, frames)
    pos, quat = fk_from_dof(character.skeleton, frames.root_pos, frames.root_rot, frames.dof)
    mpos, mquat = fk_from_dof(
        character.skeleton, mirrored.root_pos, mirrored.root_rot, mirrored.dof
    )
    swap = list(character.mirror_bodies)
    assert torch.allclose(mpos, pos[:, swap] @ FLIP, atol=1e-5)
    reflected = FLIP @ rot.quat_to_matrix(quat[:, swap]) @ FLIP
    assert torch.allclose(rot.quat_to_matrix(mquat), reflected, atol=1e-5)
    assert torch.equal(mirrored.contacts, frames.contacts[:, swap])


def test_mirroring_twice_changes_nothing(character):
    frames = smooth_frames(character, 20)
    twice = mirror_frames(character, mirror_frames(character, frames))
    assert largest_difference(twice, frames) < 1e-5


def test_mirrored_dofs_stay_within_the_limits(character):
    frames = mirror_frames(character, smooth_frames(character, 50))
    low, high = character.skeleton.dof_limits.T
    assert bool(((frames.dof >= low - 1e-5) & (frames.dof <= high + 1e-5)).all())


def test_terrain_and_path_are_mirrored_with_the_clip(character):
    terrain = Heightfield.flat((10, 14), origin=(-1.0, 0.4))
    terrain.heights[3, 2] = 0.7
    clip = make_clip(
        character, terrain=terrain, path_nodes=torch.tensor([[0.0, 1.0, 0.0], [1.0, -2.0, 0.5]])
    )
    mirrored = mirror_clip(character, clip)
    xy = torch.tensor([0.2, 1.2])
    assert float(terrain.height_at(xy)) == pytest.approx(0.7)
    assert float(mirrored.terrain.height_at(xy * torch.tensor([1.0, -1.0]))) == pytest.approx(0.7)
    assert mirrored.path_nodes.tolist() == [[0.0, -1.0, 0.0], [1.0, 2.0, 0.5]]
    assert mirrored.clip_id == "clip_mirror"
    assert mirrored.provenance.parents == ("clip",)
    assert mirrored.replay is None


def test_lopsided_characters_are_refused(waddler):
    skeleton = waddler.skeleton
    offsets = skeleton.offsets.clone()
    offsets[skeleton.body_index("left_leg"), 1] += 0.01
    lopsided = replace(
        waddler,
        skeleton=type(skeleton)(
            **{
                name: getattr(skeleton, name)
                for name in skeleton.__dataclass_fields__
                if name not in ("levels", "offsets")
            },
            offsets=offsets,
        ),
    )
    with pytest.raises(InputError, match="only symmetric characters"):
        mirror_frames(lopsided, smooth_frames(waddler, 3))
