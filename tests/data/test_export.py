"""Exported files: what the published tools find in them, and that nothing is lost on the way."""

from __future__ import annotations

import pickle
import pickletools
from dataclasses import replace

import numpy as np
import pytest
import torch

from parc_ray.character import rotations as rot
from parc_ray.character.kinematics import dof_to_joint_rot, fk_from_dof
from parc_ray.data.exporters import EXPORTERS, file_name
from parc_ray.data.exporters.parc_ms import touched_by_frame
from parc_ray.data.importers import ImportOptions, import_path, load_raw
from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip, Provenance
from parc_ray.motion.contacts import body_ground_distance
from parc_ray.motion.frames import MotionFrames
from parc_ray.terrain.heightfield import Heightfield

ANY_LENGTH = ImportOptions(min_frames=2)
PARC_FILES = ("civilization", "dec2024_teaser_717_1_opt_dm", "sfu")


def made_clip(character, seed=0, *, frames=20, loop="clamp", fps=30.0, bounds=False):
    """Some pose and heading, slowly changing, on uneven ground."""
    rng = np.random.default_rng(seed)
    skeleton = character.skeleton
    limits = skeleton.dof_limits.numpy().astype(np.float64)
    t = np.linspace(0.0, 1.0, frames)[:, None] * (0.0 if loop == "wrap" else 1.0)
    pose = rng.uniform(0.4 * limits[:, 0], 0.4 * limits[:, 1], size=(1, skeleton.num_dofs))
    dof = pose + 0.05 * np.sin(t + rng.uniform(0.0, 6.0, size=(1, skeleton.num_dofs)))
    yaw = rng.uniform(-3.1, 3.1)
    quat = np.array([[0.0, 0.0, np.sin(yaw / 2), np.cos(yaw / 2)]])
    quat = quat + 0.1 * rng.normal(size=(1, 4)) + 0.05 * t * rng.normal(size=(1, 4))
    quat /= np.linalg.norm(quat, axis=-1, keepdims=True)
    quat = np.broadcast_to(quat, (frames, 4))
    root_pos = rng.uniform(-0.4, 0.4, size=(1, 3)) + 0.1 * t * rng.normal(size=(1, 3))
    heights = torch.from_numpy(rng.uniform(-3.1, -3.0, size=(7, 5)).astype(np.float32))
    frames_ = MotionFrames(
        root_pos=torch.from_numpy(root_pos).float().expand(frames, 3).clone(),
        root_rot=rot.quat_positive(torch.from_numpy(quat.copy()).float()),
        dof=torch.from_numpy(dof).float(),
        contacts=torch.from_numpy(rng.random((frames, skeleton.num_bodies))).float(),
    )
    ground = Heightfield(heights=heights, origin=torch.tensor([-1.3, 0.7]), cell_size=0.4)
    gap = body_ground_distance(character, frames_, ground)[:, list(character.feet)].min()
    ground = ground.translated([0.0, 0.0, float(gap)])
    heights = ground.heights
    if bounds:
        ground = replace(ground, upper=heights + 1.5, lower=heights - 0.5)
    return MotionClip(
        clip_id=f"made/clip_{seed}",
        frames=frames_,
        fps=fps,
        terrain=ground,
        loop=loop,
        path_nodes=torch.from_numpy(rng.normal(size=(4, 3))).float(),
        provenance=Provenance(licence="CC0", class_name="made"),
    )


def assert_same(found, clip, character, *, terrain=True):
    """To 1e-6: positions, rotations as rotations, contacts, terrain, path."""
    frames, other = clip.frames, found.frames
    assert (found.num_frames, found.fps, found.loop) == (clip.num_frames, clip.fps, clip.loop)
    torch.testing.assert_close(other.root_pos, frames.root_pos, atol=1e-6, rtol=0)
    torch.testing.assert_close(other.contacts, frames.contacts, atol=1e-6, rtol=0)
    skeleton = character.skeleton
    for a, b in (
        (other.root_rot, frames.root_rot),
        *([dof_to_joint_rot(skeleton, dof.double()) for dof in (other.dof, frames.dof)],),
    ):
        chord = torch.minimum((a - b).norm(dim=-1), (a + b).norm(dim=-1))
        assert float(chord.max()) < 1e-6
    poses = [
        fk_from_dof(skeleton, f.root_pos.double(), f.root_rot.double(), f.dof.double())[0]
        for f in (frames, other)
    ]
    assert float((poses[0] - poses[1]).norm(dim=-1).max()) < 2e-6
    if terrain:
        torch.testing.assert_close(found.terrain.heights, clip.terrain.heights, atol=1e-6, rtol=0)
        torch.testing.assert_close(found.terrain.origin, clip.terrain.origin, atol=1e-6, rtol=0)
        assert found.terrain.cell_size == clip.terrain.cell_size
        torch.testing.assert_close(found.path_nodes, clip.path_nodes, atol=1e-6, rtol=0)


def write(tmp_path, clip, character, kind):
    path = tmp_path / file_name(clip, EXPORTERS[kind].suffix)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(EXPORTERS[kind].encode(clip, character))
    return path


# ---- lossless -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["parc", "npz"])
@pytest.mark.parametrize("loop", ["clamp", "wrap"])
def test_export_and_import_give_the_clip_again(kind, loop, tmp_path, character):
    for seed in range(3):
        clip = made_clip(character, seed, loop=loop)
        path = write(tmp_path, clip, character, kind)
        found = import_path(path, character)[0]
        assert_same(found, clip, character)
        again = write(tmp_path / "again", found, character, kind)
        assert_same(import_path(again, character)[0], clip, character)


@pytest.mark.parametrize("kind", ["parc", "npz", "csv", "mimickit"])  # that are read back
def test_any_rotation_survives(kind, tmp_path, character):
    """Root over the whole sphere, joints over their whole range (no clip that would be let in)."""
    rng = np.random.default_rng(5)
    skeleton, count = character.skeleton, 200
    clip = made_clip(character, frames=count)
    limits = skeleton.dof_limits.numpy().astype(np.float64)
    dof = rng.uniform(limits[:, 0], limits[:, 1], size=(count, skeleton.num_dofs))
    quat = torch.from_numpy(rng.normal(size=(count, 4))).float()
    clip.frames.dof[:] = torch.from_numpy(dof)
    clip.frames.root_rot[:] = rot.quat_positive(quat / quat.norm(dim=-1, keepdim=True))
    raw = load_raw(write(tmp_path, clip, character, kind), character)
    for a, b in (
        (raw.root_rot, clip.frames.root_rot),
        (dof_to_joint_rot(skeleton, raw.dof), dof_to_joint_rot(skeleton, clip.frames.dof.double())),
    ):
        assert float(torch.minimum((a - b).norm(dim=-1), (a + b).norm(dim=-1)).max()) < 1e-6


def test_csv_holds_the_motion_but_no_ground(tmp_path, character):
    clip = made_clip(character)
    path = write(tmp_path, clip, character, "csv")
    found = import_path(path, character)[0]
    lift = clip.frames.root_pos[0, 2] - found.frames.root_pos[0, 2]
    found.frames.root_pos[:, 2] += lift  # put on its inferred floor
    assert_same(found, clip, character, terrain=False)
    assert found.provenance.licence == "CC0"
    assert "terrain inferred" in found.provenance.notes


@pytest.mark.parametrize("name", PARC_FILES)
@pytest.mark.parametrize("kind", ["parc", "npz"])
def test_published_files_survive(name, kind, tmp_path, shared_data, humanoid):
    clip = import_path(shared_data / f"formats/ms/{name}.pkl", humanoid, ANY_LENGTH)[0]
    path = write(tmp_path, clip, humanoid, kind)
    assert_same_or_none(import_path(path, humanoid, ANY_LENGTH)[0], clip, humanoid)
    if kind == "parc":
        old = pickle.loads((shared_data / f"formats/ms/{name}.pkl").read_bytes())
        new = pickle.loads(path.read_bytes())
        a, b = (pickle.loads(outer["motion_data"]) for outer in (old, new))
        assert a.keys() == b.keys()
        np.testing.assert_allclose(a["root_pos"], b["root_pos"], atol=1e-6)
        np.testing.assert_allclose(a["body_contacts"], b["body_contacts"], atol=1e-6)
        assert (a["fps"], a["loop_mode"]) == (b["fps"], b["loop_mode"])
        chord = np.minimum(
            np.linalg.norm(a["joint_rot"] - b["joint_rot"], axis=-1),
            np.linalg.norm(a["joint_rot"] + b["joint_rot"], axis=-1),
        )
        assert chord.max() < 1e-5  # hinges of the file leave their axes by this much
        ours, theirs = (pickle.loads(outer["terrain_data"]) for outer in (new, old))
        assert ours.keys() == theirs.keys()
        np.testing.assert_array_equal(ours["hf"], theirs["hf"])
        np.testing.assert_array_equal(ours["min_point"], theirs["min_point"])
        assert ours["hf_maxmin"].shape == theirs["hf_maxmin"].shape


def assert_same_or_none(found, clip, character):
    if clip.path_nodes is None:
        assert found.path_nodes is None
        clip.path_nodes = found.path_nodes = torch.zeros(1, 3)
    assert_same(found, clip, character)


# ---- what the published tools read ----------------------------------------------------------


def test_fields_and_types_of_the_published_format(tmp_path, character):
    clip = made_clip(character, frames=16, bounds=True)
    outer = pickle.loads(write(tmp_path, clip, character, "parc").read_bytes())
    assert list(outer) == ["motion_data", "terrain_data", "misc_data"]
    assert all(type(blob) is bytes for blob in outer.values())
    motion, terrain, misc = (pickle.loads(blob) for blob in outer.values())
    joints, bodies = character.skeleton.num_joints, character.skeleton.num_bodies
    shapes = {
        "root_pos": (16, 3),
        "root_rot": (16, 4),
        "joint_rot": (16, joints, 4),
        "body_contacts": (16, bodies),
    }
    assert set(motion) == {*shapes, "fps", "loop_mode"}
    for key, shape in shapes.items():
        assert type(motion[key]) is np.ndarray
        assert (motion[key].shape, motion[key].dtype) == (shape, np.float32)
    assert (motion["fps"], type(motion["fps"]), motion["loop_mode"]) == (30, int, "CLAMP")
    assert set(terrain) == {"hf", "hf_maxmin", "min_point", "dx"}
    assert terrain["hf_maxmin"].shape == (7, 5, 2)
    np.testing.assert_array_equal(terrain["hf_maxmin"][..., 0], clip.terrain.upper)
    np.testing.assert_array_equal(terrain["hf_maxmin"][..., 1], clip.terrain.lower)
    assert type(terrain["dx"]) is float
    for key in ("hf", "hf_maxmin", "min_point"):
        assert terrain[key].dtype == np.float32
    assert set(misc) == {"hf_mask_inds", "path_nodes"}
    assert len(misc["hf_mask_inds"]) == 16
    assert all(m.dtype == np.int64 and m.shape[1] == 2 for m in misc["hf_mask_inds"])


def test_bodies_without_a_joint_are_at_identity(tmp_path, humanoid):
    clip = made_clip(humanoid)
    outer = pickle.loads(write(tmp_path, clip, humanoid, "parc").read_bytes())
    joint_rot = pickle.loads(outer["motion_data"])["joint_rot"]
    for hand in humanoid.hands:
        np.testing.assert_array_equal(joint_rot[:, hand - 1], np.tile([0, 0, 0, 1], (20, 1)))


def test_numpy_1_can_read_the_names(tmp_path, humanoid):
    outer = pickle.loads(write(tmp_path, made_clip(humanoid), humanoid, "parc").read_bytes())
    for blob in outer.values():
        ops = list(pickletools.genops(blob))
        names = {arg for op, arg, _ in ops if op.name == "GLOBAL"}
        assert names == {"numpy.core.multiarray _reconstruct", "numpy ndarray", "numpy dtype"}
        assert max(op.proto for op, _, _ in ops) <= 3  # Python 3.8 and older


def test_numbers_that_look_like_a_name_stay(tmp_path, humanoid):
    """Only names are rewritten, not data that happen to spell one."""
    clip = made_clip(humanoid, frames=16)
    spelled = np.frombuffer(b"numpy._core.", dtype="<f4")
    clip.path_nodes = torch.from_numpy(spelled.copy()).reshape(1, 3)
    path = write(tmp_path, clip, humanoid, "parc")
    assert torch.equal(import_path(path, humanoid)[0].path_nodes, clip.path_nodes)


def test_bounds_and_masks_are_made_where_the_clip_has_none(tmp_path, humanoid):
    """A standing body: the cells under its feet are frozen, those far off may move by 3 m."""
    skeleton = humanoid.skeleton
    clip = made_clip(humanoid, frames=16)
    clip.frames = MotionFrames(
        root_pos=torch.tensor([[0.0, 0.0, humanoid.stand_height]]).repeat(16, 1),
        root_rot=torch.tensor([[0.0, 0.0, 0.0, 1.0]]).repeat(16, 1),
        dof=torch.zeros(16, skeleton.num_dofs),
        contacts=torch.zeros(16, skeleton.num_bodies),
    )
    clip.terrain = Heightfield.flat((16, 16))
    outer = pickle.loads(write(tmp_path, clip, humanoid, "parc").read_bytes())
    terrain, misc = (pickle.loads(outer[key]) for key in ("terrain_data", "misc_data"))
    upper, lower = terrain["hf_maxmin"][..., 0], terrain["hf_maxmin"][..., 1]
    cells = {tuple(ij) for ij in misc["hf_mask_inds"][0]}
    assert all((m == misc["hf_mask_inds"][0]).all() for m in misc["hf_mask_inds"])
    pos = fk_from_dof(
        skeleton, clip.frames.root_pos[0], clip.frames.root_rot[0], clip.frames.dof[0]
    )[0]
    for body in range(skeleton.num_bodies):
        i, j = (round(float((pos[body, k] + 3.0) / 0.4)) for k in range(2))
        assert (i, j) in cells, skeleton.body_names[body]
    assert upper[0, 0] == pytest.approx(humanoid.stand_height + 3.0, abs=1e-5)
    assert lower[0, 0] == pytest.approx(-3.0)
    foot = humanoid.feet[0]
    i, j = (round(float((pos[foot, k] + 3.0) / 0.4)) for k in range(2))
    assert upper[i, j] == lower[i, j] == 0.0


def test_touched_cells_of_known_points():
    terrain = Heightfield.flat((3, 4), cell_size=1.0, origin=(0.0, 0.0))
    points = torch.tensor([[[0.1, 0.2, 5.0], [2.2, 2.9, 0.0]], [[1.0, 1.0, 0.0], [9.0, 0.0, 0.0]]])
    found = touched_by_frame(terrain, points)
    np.testing.assert_array_equal(found[0], [[0, 0], [2, 3]])
    np.testing.assert_array_equal(found[1], [[1, 1]])  # the other is off the ground


def test_uneven_rates_stay_numbers(tmp_path, humanoid):
    clip = made_clip(humanoid, fps=29.97)
    outer = pickle.loads(EXPORTERS["parc"].encode(clip, humanoid))
    assert pickle.loads(outer["motion_data"])["fps"] == pytest.approx(29.97)


@pytest.mark.parametrize("bad", ["../up", "/abs", "a//b", "a/..", "", "a\\b", "x" * 250, "a\0b"])
def test_ids_that_lead_elsewhere_are_refused(bad, humanoid):
    clip = made_clip(humanoid)
    clip.clip_id = bad
    with pytest.raises(InputError, match="no path below a directory"):
        file_name(clip, ".pkl")
