"""BVH, glTF, USD and MimicKit files, read back by other people's readers: within 1 mm of our FK."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
import trimesh
from scipy.spatial.transform import Rotation

pytest.importorskip("bvhio", reason="reads BVH back: pip install '.[dev]'")
pytest.importorskip("pxr", reason="reads USD back: pip install '.[dev]' or '.[usd]'")
pytest.importorskip("pygltflib", reason="reads glTF back: pip install '.[dev]'")

import bvhio
from pxr import Usd, UsdGeom
from pygltflib import GLTF2

from parc_ray.character.geometry import lowest_point
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.data.exporters import EXPORTERS
from parc_ray.data.exporters.meshes import geom_mesh, terrain_mesh
from parc_ray.data.importers import ImportOptions, import_path
from tests.data.test_export import made_clip

MILLIMETRE = 1e-3
Z_UP = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]])
"""From y up to z up."""


def write(kind, clip, character, folder):
    exporter = EXPORTERS[kind]
    path = folder / f"clip{exporter.suffix}"
    path.write_bytes(exporter.encode(clip, character))
    return path


def bodies(clip, character):
    f = clip.frames
    return fk_from_dof(
        character.skeleton, f.root_pos.double(), f.root_rot.double(), f.dof.double()
    )[0].numpy()


@pytest.fixture
def clip(character):
    return made_clip(character, 4, frames=25)


def test_bvh_as_bvhio_reads_it(clip, character, tmp_path):
    root = bvhio.readAsHierarchy(str(write("bvh", clip, character, tmp_path)))
    raw = bvhio.readAsBvh(str(tmp_path / "clip.bvh"))
    assert raw.FrameCount == clip.num_frames
    assert pytest.approx(1 / clip.fps, abs=1e-6) == raw.FrameTime
    wanted = bodies(clip, character)
    for frame in (0, 7, 24):
        root.loadPose(frame)
        placed = {joint.Name: np.array(joint.PositionWorld) for joint, _, _ in root.layout()}
        for body, name in enumerate(character.skeleton.body_names):
            error = np.linalg.norm(Z_UP @ placed[name] - wanted[frame, body])
            assert error < MILLIMETRE, (frame, name, error)


def accessor(gltf, index):
    """An array of a glTF file, by the specification."""
    a = gltf.accessors[index]
    view = gltf.bufferViews[a.bufferView]
    width = {"SCALAR": 1, "VEC3": 3, "VEC4": 4}[a.type]
    assert a.componentType == 5126
    start = (view.byteOffset or 0) + (a.byteOffset or 0)
    blob = gltf.binary_blob()[start : start + 4 * width * a.count]
    return np.frombuffer(blob, "<f4").reshape(a.count, width).astype(float)


def gltf_places(gltf, frame, names):
    """World positions of named nodes at a frame, by walking the nodes as a player does."""
    animation = gltf.animations[0]
    moved = {}
    for channel in animation.channels:
        sampler = animation.samplers[channel.sampler]
        row = accessor(gltf, sampler.output)[frame]
        moved[channel.target.node, channel.target.path] = row
    placed = {}

    def walk(index, matrix):
        node = gltf.nodes[index]
        here = np.eye(4)
        turn = moved.get((index, "rotation"), node.rotation or [0, 0, 0, 1])
        here[:3, :3] = Rotation.from_quat(turn).as_matrix()
        here[:3, 3] = moved.get((index, "translation"), node.translation or [0, 0, 0])
        matrix = matrix @ here
        placed[node.name] = matrix[:3, 3]
        for child in node.children or []:
            walk(child, matrix)

    for root in gltf.scenes[gltf.scene].nodes:
        walk(root, np.eye(4))
    return {name: placed[name] for name in names}


def test_gltf_as_pygltflib_and_trimesh_read_it(clip, character, tmp_path):
    path = write("gltf", clip, character, tmp_path)
    gltf, names = GLTF2().load(str(path)), character.skeleton.body_names
    wanted = bodies(clip, character)
    times = accessor(gltf, gltf.animations[0].samplers[0].input)[:, 0]
    np.testing.assert_allclose(times, np.arange(25) / clip.fps, atol=1e-6)
    for frame in (0, 13, 24):
        for body, place in enumerate(gltf_places(gltf, frame, names).values()):
            assert np.linalg.norm(Z_UP @ place - wanted[frame, body]) < MILLIMETRE
    scene = trimesh.load(str(path), force="scene")
    transform, name = scene.graph["terrain"]
    ground = scene.geometry[name].copy()
    ground.apply_transform(transform)
    corners = ground.vertices @ Z_UP.T
    low, high = (edge.numpy() for edge in clip.terrain.extent)
    np.testing.assert_allclose(corners[:, :2].min(0), low, atol=MILLIMETRE)
    np.testing.assert_allclose(corners[:, :2].max(0), high, atol=MILLIMETRE)
    hit = corners[:, 2].max()
    assert abs(hit - float(clip.terrain.heights.max())) < MILLIMETRE
    placed, name = scene.graph[names[-1]]  # the file's own pose is that of zero angles
    origin = torch.zeros(3), torch.tensor([0.0, 0.0, 0.0, 1.0])
    rest = fk_from_dof(character.skeleton, *origin, torch.zeros(character.skeleton.num_dofs))
    np.testing.assert_allclose(Z_UP @ placed[:3, 3], rest[0][-1].numpy(), atol=MILLIMETRE)


def test_usd_as_pxr_reads_it(clip, character, tmp_path):
    path = write("usd", clip, character, tmp_path)
    stage = Usd.Stage.Open(str(path))
    assert UsdGeom.GetStageUpAxis(stage) == "Z"
    assert UsdGeom.GetStageMetersPerUnit(stage) == 1.0
    assert (stage.GetTimeCodesPerSecond(), stage.GetEndTimeCode()) == (clip.fps, 24.0)
    wanted = bodies(clip, character)
    for frame in (0, 11, 24):
        cache = UsdGeom.XformCache(frame)
        for body, name in enumerate(character.skeleton.body_names):
            prim = stage.GetPrimAtPath(f"/World/Character/{name}")
            place = cache.GetLocalToWorldTransform(prim).ExtractTranslation()
            assert np.linalg.norm(np.array(place) - wanted[frame, body]) < MILLIMETRE
    boxes = UsdGeom.BBoxCache(0, [UsdGeom.Tokens.default_])
    ground = boxes.ComputeWorldBound(stage.GetPrimAtPath("/World/Terrain")).ComputeAlignedRange()
    assert abs(ground.GetMax()[2] - float(clip.terrain.heights.max())) < MILLIMETRE
    figure = boxes.ComputeWorldBound(stage.GetPrimAtPath("/World/Character")).ComputeAlignedRange()
    f = clip.frames[0]
    pose = fk_from_dof(character.skeleton, f.root_pos, f.root_rot, f.dof)
    low = lowest_point(character.geoms, *pose)
    assert -0.12 < figure.GetMin()[2] - low <= MILLIMETRE  # boxes about turned shapes are larger


def test_mimickit_pickles_hold_what_mimickit_reads(clip, character, tmp_path):
    path = write("mimickit", clip, character, tmp_path)
    data = pickle.loads(path.read_bytes())
    rows = np.array(data["frames"])
    assert (data["loop_mode"], data["fps"], rows.shape[1]) == (0, 30, 6 + clip.frames.dof.shape[1])
    turn = Rotation.from_rotvec(rows[:, 3:6]) * Rotation.from_quat(clip.frames.root_rot).inv()
    assert turn.magnitude().max() < 1e-6
    found = import_path(path, character, ImportOptions(min_frames=2))[0]
    # The importer looks for a ground and puts the first frame on it: all bodies by one move.
    moved = bodies(found, character) - bodies(clip, character)
    assert np.linalg.norm(moved - moved[:1, :1], axis=-1).max() < MILLIMETRE


def test_meshes_are_closed_and_of_the_right_size(character):
    for geom in character.geoms:
        solid = trimesh.Trimesh(*geom_mesh(geom))
        assert solid.is_watertight
        assert 0.9 * geom.volume < solid.volume <= geom.volume * 1.0001
    ground = made_clip(character).terrain
    points, faces = terrain_mesh(ground)
    volume = trimesh.Trimesh(points, faces, process=False).volume
    thick = ground.heights.double() - float(ground.heights.min()) + 0.5
    assert volume == pytest.approx(float(thick.sum()) * ground.cell_size**2, rel=1e-3)
