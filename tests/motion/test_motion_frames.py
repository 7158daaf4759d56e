from __future__ import annotations

import pytest
import torch

from parc_ray.motion.frames import MotionFrames, cat, cat_time, stack
from tests.motion.motions import smooth_frames


@pytest.fixture
def frames(character) -> MotionFrames:
    return stack([smooth_frames(character, 9, seed) for seed in range(4)])


def test_shapes_and_indexing(frames, character):
    assert frames.num_frames == 9
    assert frames.batch_shape == (4,)
    assert frames[2].dof.shape == (9, character.skeleton.num_dofs)
    assert frames[torch.tensor([3, 0])].contacts.shape == (2, 9, character.skeleton.num_bodies)
    assert torch.equal(frames[torch.tensor([3, 0])].root_pos[1], frames[0].root_pos)


def test_time_slices_join_to_the_whole(frames):
    whole = cat_time([frames.time(0, 2), frames.time(2, -1), frames.time(-1)])
    for name in ("root_pos", "root_rot", "dof", "contacts"):
        assert torch.equal(getattr(whole, name), getattr(frames, name))
    assert torch.equal(cat([frames[:1], frames[1:]]).dof, frames.dof)


def test_clone_is_independent_and_detach_has_no_history(frames):
    copy = frames.clone()
    copy.dof += 1.0
    assert not torch.equal(copy.dof, frames.dof)
    graph = frames.map(lambda x: x.clone().requires_grad_())
    assert graph.dof.requires_grad
    assert not graph.detach().dof.requires_grad
    assert frames.to(torch.float64).root_rot.dtype == torch.float64
