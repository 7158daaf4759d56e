"""Shapes, ground and rays: against MuJoCo, against volumes, against the heightfield itself."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
import torch

from parc_ray.motion.frames import MotionFrames
from parc_ray.viewer.ground import cell_lines, ground_mesh, hit
from parc_ray.viewer.poses import ClipPoses
from parc_ray.viewer.shapes import KINDS, shape_sets, unit_mesh
from tests.viewer.helpers import generated, step_terrain


def volume(vertices: np.ndarray, faces: np.ndarray) -> float:
    """Signed volume of a closed surface, positive where its triangles face outwards."""
    a, b, c = (vertices[faces[:, k].astype(int)].astype(float) for k in range(3))
    return float((np.cross(a, b) * c).sum() / 6.0)


@pytest.mark.parametrize(("kind", "full"), [("box", 8.0), ("ball", 4 / 3 * np.pi)])
def test_unit_meshes_enclose_their_volume(kind, full):
    mesh = unit_mesh(kind)
    assert volume(mesh.vertices, mesh.faces) == pytest.approx(full, rel=0.06)
    assert np.abs(mesh.vertices).max() == pytest.approx(1.0)


def test_the_shapes_lie_where_mujoco_puts_the_geoms(character):
    """Every geom of the compiled model has its shape: same centre, axes and sizes, at any pose."""
    rng = torch.Generator().manual_seed(1)
    clip = generated(character)
    dof = 0.3 * torch.randn(clip.frames.dof.shape, generator=rng)
    clip.frames = MotionFrames(
        root_pos=clip.frames.root_pos,
        root_rot=clip.frames.root_rot,
        dof=dof,
        contacts=clip.frames.contacts,
    )
    poses, sets, at = ClipPoses(clip, character), shape_sets(character), 17
    model = mujoco.MjModel.from_xml_string(character.mjcf_xml)
    data = mujoco.MjData(model)
    body_pos, body_rot = poses.bodies
    names = character.skeleton.body_names
    expected: dict[str, list[np.ndarray]] = {kind: [] for kind in KINDS}
    for g in range(model.ngeom):
        body = mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_BODY, model.geom_bodyid[g])
        if body not in names:
            continue
        b = names.index(body)
        quat = body_rot[at, b][[3, 0, 1, 2]].astype(float)
        mat, turn = np.zeros(9), np.zeros(9)
        mujoco.mju_quat2Mat(mat, quat)
        mujoco.mju_quat2Mat(turn, model.geom_quat[g])
        mat, turn = mat.reshape(3, 3), turn.reshape(3, 3)
        centre = body_pos[at, b] + mat @ model.geom_pos[g]
        axis, size = mat @ turn[:, 2], model.geom_size[g]
        if model.geom_type[g] == mujoco.mjtGeom.mjGEOM_BOX:
            expected["box"].append(np.concatenate([centre, size]))
        elif model.geom_type[g] == mujoco.mjtGeom.mjGEOM_SPHERE:
            expected["ball"].append(np.concatenate([centre, size[[0, 0, 0]]]))
        else:
            expected["tube"].append(np.concatenate([centre, size[[0, 0, 1]]]))
            for sign in (-1, 1):
                end = centre + sign * size[1] * axis
                expected["ball"].append(np.concatenate([end, size[[0, 0, 0]]]))
    assert data is not None
    for kind in KINDS:
        found = np.concatenate([poses.placed[kind][0][at], sets[kind].scale], -1)
        assert len(found) == len(expected[kind])
        for row in expected[kind]:
            assert np.abs(found - row).max(-1).min() < 2e-4, kind


def test_the_ground_is_closed_above_and_has_the_heights():
    terrain = step_terrain()
    mesh = ground_mesh(terrain)
    tops = mesh.vertices[: 4 * terrain.heights.numel()].reshape(12, 10, 4, 3)
    np.testing.assert_allclose(tops[..., 2], terrain.heights[..., None].expand(-1, -1, 4))
    # Tops and walls over a plane at the lowest level enclose the volume of the columns.
    floor = -0.3
    quads = mesh.vertices.reshape(-1, 4, 3).astype(float)
    area = 0.4 * 0.4
    above = float((terrain.heights.double() - floor).sum()) * area
    flow = 0.0
    for a, b, c, d in quads:
        for p, q, r in ((a, b, c), (a, c, d)):
            lifted = [x - np.array([0, 0, floor]) for x in (p, q, r)]
            flow += float(np.cross(lifted[0], lifted[1]) @ lifted[2]) / 6.0
    assert flow == pytest.approx(above, rel=1e-5)
    assert cell_lines(terrain).shape == (2 * 120, 2, 3)


def test_a_ray_meets_the_top_and_the_wall():
    terrain = step_terrain(0.4)
    down = hit(terrain, np.array([1.5, 0.0, 5.0]), np.array([0.0, 0.0, -2.0]))
    assert down == pytest.approx([1.5, 0.0, 0.4], abs=0.03)
    wall = hit(terrain, np.array([-1.5, 0.0, 0.2]), np.array([1.0, 0.0, 0.0]))
    assert wall == pytest.approx([0.2, 0.0, 0.2], abs=0.03)
    assert hit(terrain, np.array([0.0, 0.0, 5.0]), np.array([0.0, 0.0, 1.0])) is None
    assert hit(terrain, np.array([30.0, 0.0, 5.0]), np.array([0.0, 0.0, -1.0])) is None
