"""Motions with y up, however they were written, are refused by name or turned; others are not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from parc_ray.data.checks import judge
from parc_ray.data.importers import ImportOptions, import_path
from parc_ray.data.importers.mimickit import load
from parc_ray.data.importers.raw import RawMotion
from parc_ray.data.repair import RepairConfig, turn_up
from parc_ray.data.up_axis import borne_share, sole_indices, standing_share
from parc_ray.errors import InputError
from tests.data import files
from tests.synthesis.helpers import walk_frames

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


def walk_in_a_curve(path: Path, humanoid, way: str = "") -> None:
    """A MimicKit file of a walk that turns by a right angle, bobs, and ends half a metre up."""

    def change(data):
        walk = walk_frames(humanoid, seconds=3.0, speed=1.0)
        count = walk.num_frames
        yaw = Rotation.from_rotvec(np.linspace(0.3, 1.9, count)[:, None] * [0.0, 0.0, 1.0])
        step = np.array([1.0, 0.0, 0.0]) / 30.0
        pos = np.cumsum(yaw.apply(np.tile(step, (count, 1))), axis=0)
        pos[:, 2] = walk.root_pos[:, 2].numpy()
        if way:
            pos, yaw = written(way, pos, yaw)
        data["frames"] = np.hstack([pos, yaw.as_rotvec(), walk.dof.numpy()])

    files.mimickit(path, humanoid, change=change)


WAYS = ("world", "world cycle", "frames", "frames cycle", "path", "path cycle", "swapped")


@pytest.mark.parametrize("way", ["world", "frames", "path cycle", "swapped"])
def test_a_walk_with_y_up_is_refused_by_name_and_turned_by_repair(tmp_path, humanoid, way):
    walk_in_a_curve(tmp_path / "right.pkl", humanoid)
    right = import_path(tmp_path / "right.pkl", humanoid)[0]
    assert right.metrics["check_y_up"] == 0.0
    walk_in_a_curve(tmp_path / "wrong.pkl", humanoid, way)
    with pytest.raises(InputError, match=r"wrong\.pkl: clip 'wrong': fails .*y_up .*--repair"):
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
