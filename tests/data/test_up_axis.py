"""Motions with y up, however they were written, are refused by name or turned; others are not."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from parc_ray.character.kinematics import fk_from_dof
from parc_ray.data.checks import judge
from parc_ray.data.importers import ImportOptions, import_path
from parc_ray.data.importers.mimickit import load
from parc_ray.data.importers.raw import RawMotion
from parc_ray.data.repair import RepairConfig, turn_up
from parc_ray.data.up_axis import DOUBTFUL, borne_share, sole_indices, standing_share
from parc_ray.errors import InputError
from tests.data import files

REPAIR = ImportOptions(repair=RepairConfig())
TO_Y = Rotation.from_matrix([[1, 0, 0], [0, 0, 1], [0, -1, 0]])  # (x, y, z) to (x, z, -y)
CYCLE = Rotation.from_matrix([[0, 1, 0], [0, 0, 1], [1, 0, 0]])  # (x, y, z) to (y, z, x)


def written(way: str, pos: np.ndarray, turn: Rotation) -> tuple[np.ndarray, Rotation]:
    """A root with z up as a program with y up would write it."""
    axes = CYCLE if way.endswith("cycle") else TO_Y
    if way == "swapped":
        return pos[:, [0, 2, 1]], turn
    if way.startswith("path"):
        return axes.apply(pos), turn
    return axes.apply(pos), axes * turn if way.startswith("world") else axes * turn * axes.inv()


def strides(humanoid, steps: int = 6, frames: int = 15) -> tuple[np.ndarray, torch.Tensor]:
    """Root positions (T, 3) and dofs (T, D) of a walk along x on straight stance legs.

    The stance foot stays flat where it is while the hip goes over it, as a pendulum upside down.
    """
    skeleton = humanoid.skeleton
    rest = torch.zeros(1, skeleton.num_dofs)
    identity = torch.tensor([[0.0, 0.0, 0.0, 1.0]])
    height = fk_from_dof(skeleton, torch.zeros(1, 3), identity, rest)[0][0, :, 2]
    body = skeleton.body_index
    leg = float(height[body("right_thigh")] - height[body("right_foot")])
    way = np.linspace(-0.2, 0.2, frames, endpoint=False)  # of the hip over the stance foot, m
    lean = torch.from_numpy(np.arcsin(way / leg)).float()
    dof = torch.zeros(steps, frames, skeleton.num_dofs)
    pos = np.zeros((steps, frames, 3))
    for step in range(steps):
        sides = ("right", "left") if step % 2 else ("left", "right")
        bend = torch.sin(torch.linspace(0.0, math.pi, frames))
        swing = -lean - 0.4 * bend
        for side, angle, knee in ((sides[0], lean, 0 * bend), (sides[1], swing, bend)):
            thigh, shin, foot = (
                skeleton.dof_slices[body(f"{side}_{part}")] for part in ("thigh", "shin", "foot")
            )
            dof[step, :, thigh.start + 1] = angle
            dof[step, :, shin.start] = knee
            dof[step, :, foot.start + 1] = -angle - knee
        pos[step, :, 0] = 0.4 * step + way
        pos[step, :, 2] = humanoid.stand_height - leg * (1.0 - torch.cos(lean).numpy())
    return pos.reshape(-1, 3), dof.reshape(-1, skeleton.num_dofs)


def walk(path: Path, humanoid, way: str = "") -> None:
    """A MimicKit file of a walk at 45 degrees to the axes, a metre off the origin."""

    def change(data):
        pos, dof = strides(humanoid)
        yaw = Rotation.from_rotvec([0.0, 0.0, math.pi / 4])
        pos = yaw.apply(pos) + np.array([1.0, -0.5, 0.0])
        turn = Rotation.concatenate([yaw] * len(pos))
        if way:
            pos, turn = written(way, pos, turn)
        data["frames"] = np.hstack([pos, turn.as_rotvec(), dof.numpy()])

    files.mimickit(path, humanoid, change=change)


WAYS = ("world", "world cycle", "frames", "frames cycle", "path", "path cycle", "swapped")


@pytest.mark.parametrize("way", ["world", "frames", "path cycle", "swapped"])
def test_a_walk_with_y_up_is_refused_by_name_and_turned_by_repair(tmp_path, humanoid, way):
    walk(tmp_path / "right.pkl", humanoid)
    right = import_path(tmp_path / "right.pkl", humanoid)[0]
    assert right.metrics["check_y_up"] == 0.0
    walk(tmp_path / "wrong.pkl", humanoid, way)
    with pytest.raises(
        InputError, match=r"wrong\.pkl: clip 'wrong': fails .*y_up .*z should: turn .*--repair"
    ):
        import_path(tmp_path / "wrong.pkl", humanoid)
    turned = import_path(tmp_path / "wrong.pkl", humanoid, REPAIR)[0]
    assert "repaired: y was up, z is now: " in turned.provenance.notes
    assert torch.equal(turned.frames.dof, right.frames.dof)
    a, b = turned.frames, right.frames
    assert torch.allclose(a.root_pos[:, 2], b.root_pos[:, 2], atol=1e-4)
    first = [Rotation.from_quat(f.root_rot.double().numpy())[0].inv() for f in (a, b)]
    for frame, same in zip(
        *(
            f.apply((x.root_pos - x.root_pos[:1]).double().numpy())
            for f, x in zip(first, (a, b), strict=True)
        ),
        strict=True,
    ):
        assert frame == pytest.approx(same, abs=1e-4)  # seen from the first frame, the same way


def test_a_motion_with_z_up_stays_as_it_is(tmp_path, character):
    files.mimickit(tmp_path / "a.pkl", character)
    raw = load(tmp_path / "a.pkl", character)
    assert turn_up(raw, character, 0.0) == (raw, [])
    own = replace(raw, root_pos=raw.root_pos[:, [0, 2, 1]])
    assert turn_up(replace(own, dof=raw.dof[:1]), character, 0.0)[1] == []


def standing(character, axis: tuple[float, float, float], degrees: float) -> RawMotion:
    """Nothing moves; the trunk points where the turn takes it."""
    turn = Rotation.from_rotvec(np.array(axis) * degrees, degrees=True).as_quat()
    return RawMotion(
        root_pos=torch.zeros(40, 3, dtype=torch.float64),
        root_rot=torch.from_numpy(np.tile(turn, (40, 1))),
        dof=torch.zeros(40, character.skeleton.num_dofs, dtype=torch.float64),
        fps=30.0,
        loop="clamp",
        source="test",
    )


def test_who_stands_still_along_y_was_written_with_y_up(character):
    stands = standing(character, (1.0, 0.0, 0.0), -90.0)  # z goes to y
    turned, said = turn_up(stands, character, 12.0)
    assert said == ["y was up, z is now: positions and root rotations turned"]
    up = Rotation.from_quat(turned.root_rot.numpy()).apply([0.0, 0.0, 1.0])
    assert up == pytest.approx(np.tile([0.0, 0.0, 1.0], (40, 1)), abs=1e-12)
    for axis, degrees in (((1, 0, 0), 90.0), ((0, 1, 0), 90.0), ((0, 1, 0), -90.0)):
        lies = standing(character, axis, degrees)  # along -y, x and -x: lying is no fault
        assert turn_up(lies, character, 12.0) == (lies, [])


def test_borne_share_counts_frames_in_which_a_low_point_rests():
    points = torch.zeros(11, 2, 3)
    points[:, 1, 2] = 0.5
    points[:, 1, 0] = torch.arange(11.0)  # high and fast
    assert borne_share(points, 30.0) == 1.0
    points[5:, 0, 0] = torch.arange(6.0)  # the low one sets off at frame 5
    assert borne_share(points, 30.0) == 0.5
    points[:, 1] = torch.tensor([0.0, 0.0, 0.02])  # another that rests, 2 cm up
    assert borne_share(points, 30.0) == 1.0
    assert borne_share(points[:1], 30.0) == 0.0


def test_who_wriggles_on_the_spot_is_not_turned_onto_the_side(tmp_path, character):
    """Feet that never rest, over a trunk that does: lying sideways, more would rest than here."""

    def on_the_spot(data):
        block = np.array(data["frames"])
        block[:, 0] = 0.0
        data["frames"] = block

    files.mimickit(tmp_path / "a.pkl", character, change=on_the_spot)
    raw = load(tmp_path / "a.pkl", character)
    assert float(raw.root_pos[:, 0].abs().max()) == 0.0
    assert turn_up(raw, character, 0.0) == (raw, [])


def test_who_glides_is_no_more_than_doubtful(tmp_path, humanoid):
    """Feet that never rest may by chance do so in another reading."""

    def skate(data):
        block = np.array(data["frames"])
        t = np.arange(len(block))[:, None] / 30.0
        block[:, 6:] = 0.3 * np.sin(3 * t + np.arange(block.shape[1] - 6))
        data["frames"] = block

    files.mimickit(tmp_path / "a.pkl", humanoid, change=skate)
    clip = import_path(tmp_path / "a.pkl", humanoid)[0]
    assert 0.0 < clip.metrics["check_y_up"] <= DOUBTFUL
    found = {finding.name: finding.severity for finding in judge(clip.metrics)}
    assert found["y_up"] != "fail"


def test_standing_takes_half_of_a_sole(humanoid):
    soles = sole_indices(humanoid)
    assert len(soles) == 2
    points = torch.ones(11, max(int(sole.max()) for sole in soles) + 1, 3)
    first = soles[0]
    points[:, first[: len(first) // 3], 2] = 0.0
    assert borne_share(points, 30.0) == 1.0
    assert standing_share(points, soles, 30.0) == 0.0  # an edge of the foot
    points[:, first, 2] = 0.0
    assert standing_share(points, soles, 30.0) == 1.0
    points[:, :, 1] = torch.arange(11.0)[:, None]
    assert standing_share(points, soles, 30.0) == 0.0  # it slides


def test_real_motions_are_told_apart(humanoid, shared_data):
    for name in ("reverse_vault01", "run05", "platform17"):
        path = shared_data / "parc_clips" / f"humanoid_{name}.pkl"
        raw = load(path, humanoid)
        assert turn_up(raw, humanoid, 0.0)[1] == []
        turn = Rotation.from_quat(raw.root_rot.numpy())
        for way in WAYS:
            pos, wrong = written(way, raw.root_pos.numpy(), turn)
            quat = torch.from_numpy(wrong.as_quat())
            file = replace(raw, root_pos=torch.from_numpy(pos), root_rot=quat)
            turned, said = turn_up(file, humanoid, 12.0)
            assert len(said) == 1, (name, way)
            off = turned.root_pos[:, 2] - raw.root_pos[:, 2]
            assert float(off.abs().max()) < 1e-9, (name, way)


def test_the_check_is_no_remark_on_what_is_right(humanoid, shared_data):
    clip = import_path(shared_data / "formats/ms/civilization.pkl", humanoid)[0]
    found = {finding.name: finding for finding in judge(clip.metrics)}
    assert found["y_up"].value == 0.0
    assert found["y_up"].severity == "ok"
