"""What public files got wrong (docs/design/data.md, Traps), each as a file that does it.

NaN necks, shifted terrains and leaking takes are in ``test_repair`` and ``test_duplicates``.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from parc_ray.character import rotations as rot
from parc_ray.data.importers import ImportOptions, import_path
from parc_ray.data.importers.pipeline import TRAINING_MIN_FRAMES, TooShortError
from parc_ray.motion.contacts import body_ground_distance

from . import files


def change_frames(change):
    def apply(data):
        data["frames"] = change(np.array(data["frames"]))

    return apply


@pytest.mark.parametrize("fps", [16, 24, 30, 30.0012, 30.35, 60, 120])
def test_every_rate_becomes_thirty_at_the_same_speed(fps, tmp_path, humanoid):
    """A root that turns at 2 rad/s and walks at 1 m/s still does."""
    turn = 2.0

    def spin(block):
        block[:, 5] = turn * np.arange(len(block)) / fps
        return block

    frames = round(2 * fps) + 1
    path = tmp_path / "a.pkl"
    files.mimickit(path, humanoid, frames=frames, fps=fps, change=change_frames(spin))
    clip = import_path(path, humanoid)[0]
    assert clip.fps == 30.0
    assert clip.metrics["source_fps"] == pytest.approx(fps)
    assert clip.duration_s == pytest.approx((frames - 1) / fps, abs=1 / 30)
    t = torch.arange(clip.num_frames) / 30.0
    wanted = rot.yaw_quat(turn * t)
    assert float(rot.quat_angle(clip.frames.root_rot, wanted).max()) < 2e-3
    assert torch.allclose(clip.frames.root_pos[:, 0], t, atol=2e-3)


def test_a_loop_lasts_from_its_first_to_its_last_frame(tmp_path, humanoid):
    """Its last frame is no copy of the first, so the period is (n - 1) / fps."""
    files.mimickit(tmp_path / "a.pkl", humanoid, frames=31, loop=1)
    clip = import_path(tmp_path / "a.pkl", humanoid, ImportOptions(unroll_s=2.5))[0]
    x = clip.frames.root_pos[:, 0]
    assert torch.allclose(x, torch.arange(clip.num_frames) / 30.0, atol=1e-4)
    assert clip.duration_s == pytest.approx(3.0)


@pytest.mark.parametrize("offset", [0.1, 0.08, -0.07, -0.09, -0.13, 5.0, 9.6])
def test_the_floor_is_where_the_feet_are(offset, tmp_path, humanoid):
    """Clips float by 0.10 m, sink by 0.13 m, or begin on another floor altogether."""

    def lift(block):
        block[:, 2] += offset
        block[:, 0] = 0.0
        return block

    files.mimickit(tmp_path / "a.pkl", humanoid, change=change_frames(lift))
    clip = import_path(tmp_path / "a.pkl", humanoid)[0]
    feet = list(humanoid.feet)
    gap = body_ground_distance(humanoid, clip.frames, clip.terrain)[:, feet].amin(-1)
    assert float(gap.median()) < 0.02
    assert abs(float(clip.terrain.height_at(clip.frames.root_pos[0, :2]))) < 1e-3
    assert clip.metrics["check_foot_float"] < 0.03
    assert clip.metrics["check_foot_sink"] < 0.03


def test_a_terrain_of_its_own_keeps_its_height(tmp_path, humanoid):
    """Some clips run at z = 5: a given terrain and its motion stay where they are."""
    files.parc_ms(tmp_path / "a.pkl", humanoid, hf=np.full((4, 3), 5.0, np.float32))
    clip = import_path(tmp_path / "a.pkl", humanoid)[0]
    assert float(clip.terrain.heights.min()) == 5.0
    assert float(clip.frames.root_pos[0, 2]) == pytest.approx(5.0 + humanoid.stand_height)
    assert clip.metrics["check_foot_float"] < 0.01


def test_a_window_is_no_training_clip(tmp_path, humanoid):
    files.mimickit(tmp_path / "a.pkl", humanoid, frames=TRAINING_MIN_FRAMES - 1)
    with pytest.raises(TooShortError, match="at least 16"):
        import_path(tmp_path / "a.pkl", humanoid)
    files.mimickit(tmp_path / "a.pkl", humanoid, frames=TRAINING_MIN_FRAMES)
    assert import_path(tmp_path / "a.pkl", humanoid)[0].num_frames == TRAINING_MIN_FRAMES
