"""Headless pictures: against formulas worked by hand, and against MuJoCo's own renderer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from parc_ray import cli
from parc_ray.config_io import to_yaml
from parc_ray.data.store import save_dataset
from parc_ray.errors import InputError
from parc_ray.motion.clip import Provenance, Replay
from parc_ray.recipes import get_recipe
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.tools import render
from parc_ray.viewer.offscreen.bodies import shape_hit
from parc_ray.viewer.offscreen.camera import FIELD_OF_VIEW_DEG, View, choose_view
from parc_ray.viewer.offscreen.film import pictures
from parc_ray.viewer.offscreen.opengl import find_library
from parc_ray.viewer.offscreen.scene import PALETTE, make_actor
from parc_ray.viewer.offscreen.software import SoftwareRenderer
from parc_ray.viewer.offscreen.versions import Related, Version, actors_of, film_of
from parc_ray.viewer.offscreen.video import write_gif
from tests.data.test_export import made_clip
from tests.envs.helpers import WADDLER
from tests.evaluation.test_summary import mark
from tests.stages.helpers import put_clips

SIZE = (160, 120)


def clip_of(character, seed=0, **changes):
    return replace(made_clip(character, seed), **changes)


@pytest.mark.parametrize("kind", ["sphere", "capsule", "box"])
def test_rays_meet_shapes_where_the_surface_is(kind):
    """The point hit lies on the surface, no point before it is inside, misses are misses."""
    rng = np.random.default_rng(3)
    size = np.array([0.3, 0.5, 0.2], np.float32)
    mat = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    mat = (mat * np.linalg.det(mat)).astype(np.float32)
    centre, eye = rng.normal(size=3).astype(np.float32), np.zeros(3, np.float32)
    eye = centre + np.array([-3.0, 0.4, 0.2], np.float32)
    rays = rng.normal(size=(400, 3)).astype(np.float32) * 0.1 + np.array([1, 0, 0], np.float32)

    def distance(points):
        """Signed distance from the surface, in the shape's own frame."""
        local = (points - centre) @ mat
        if kind == "box":
            return (np.abs(local) - size).max(-1)
        half = size[1] if kind == "capsule" else 0.0
        local = local - np.clip(local * [0, 0, 1], -half, half)
        return np.linalg.norm(local, axis=-1) - size[0]

    t, normal = shape_hit(kind, size, centre, mat, eye, rays[None])
    t, normal = t[0], normal[0]
    hit = np.isfinite(t)
    assert 40 < hit.sum() < 360
    at = eye + t[hit, None] * rays[hit]
    assert np.abs(distance(at)).max() < 1e-3
    assert (distance(at + 0.01 * normal[hit]) > 0).all()
    steps = np.linspace(0.0, 6.0, 600)[:, None, None]
    path = distance(eye + steps * rays[~hit])
    assert path.min() > -1e-3


def test_depth_of_the_ground_is_that_of_its_faces():
    """A step seen from the front: pixels above and below its edges, by similar triangles."""
    heights = torch.zeros(21, 21)
    heights[10:] = 0.5
    terrain = Heightfield(heights=heights, origin=torch.tensor([-4.0, -4.0]), cell_size=0.4)
    view = View(0.0, -10.0, 4.0)
    target = np.array([0.0, 0.0, 0.5])
    renderer = SoftwareRenderer(terrain, view, SIZE)
    eye = view.eye(target)
    _, depth = renderer._draw_ground(eye, target)
    points = eye + depth[..., None] * renderer.rays
    seen = points[np.isfinite(depth)]
    wall = np.abs(seen[:, 0] - (10 * 0.4 - 4.0 - 0.2)) < 1e-4
    floor = np.abs(seen[:, 2]) < 1e-4
    top = np.abs(seen[:, 2] - 0.5) < 1e-4
    assert (wall | floor | top).mean() > 0.99
    assert min(wall.sum(), floor.sum(), top.sum()) > 300
    focal = SIZE[1] / 2 / np.tan(np.radians(FIELD_OF_VIEW_DEG / 2))
    rise = (np.array([-0.2, 0.0, 0.5]) - eye) @ view.axes.T
    row = SIZE[1] / 2 - focal * rise[1] / rise[2]
    column = points[:, SIZE[0] // 2]
    first = np.flatnonzero(np.abs(column[:, 0] + 0.2) < 1e-4)[0]
    assert abs(first - row) <= 1.5


def test_a_wall_hides_who_stands_behind_it(humanoid):
    """Nothing of the body's colour is seen through a wall; without the wall it is."""
    heights = torch.zeros(21, 21)
    terrain = Heightfield(heights=heights, origin=torch.tensor([-4.0, -4.0]), cell_size=0.4)
    heights[4:7] = 3.0
    clip = clip_of(humanoid)
    clip.frames.root_pos[:] = torch.tensor([0.5, 0.0, 0.9])
    actor = make_actor(clip, humanoid, "a", (255, 0, 0))
    view, bodies = View(0.0, -10.0, 5.0), [[(actor.shapes(0), actor.colour)]]
    for ground, least, most in ((terrain, 0, 0), (Heightfield.flat((21, 21)), 200, 9999)):
        picture = SoftwareRenderer(ground, view, SIZE).draw(bodies, actor.root[0])[0]
        red = (picture[..., 0] > 90) & (picture[..., 1] < 70)
        assert least <= red.sum() <= most
    chosen = choose_view(actor, terrain, humanoid.stand_height)
    picture = SoftwareRenderer(terrain, chosen, SIZE).draw(bodies, actor.root[0])[0]
    assert ((picture[..., 0] > 90) & (picture[..., 1] < 70)).sum() > 200


_GL = """
import sys, mujoco, numpy as np
from parc_ray.viewer.offscreen.opengl import OpenGLRenderer, use_library
use_library(sys.argv[1])
from tests.viewer.test_offscreen import scene
terrain, view, size, bodies, target = scene()
np.save(sys.argv[2], OpenGLRenderer(terrain, view, size).draw([bodies], target)[0])
"""


def scene():
    from parc_ray.character.character import load_character

    humanoid = load_character("humanoid")
    clip = made_clip(humanoid, 2)
    actor = make_actor(clip, humanoid, "a", (255, 0, 0))
    view = View(130.0, -25.0, 4.0)
    return clip.terrain, view, (320, 240), [(actor.shapes(3), actor.colour)], actor.root[3]


def test_the_same_pixels_as_mujoco(tmp_path):
    """Outlines of body and ground agree with those of MuJoCo's renderer."""
    library = find_library()
    if library is None:
        pytest.skip("neither EGL nor OSMesa draws here")
    path = tmp_path / "gl.npy"
    words = [sys.executable, "-c", _GL, library.name, str(path)]
    subprocess.run(words, check=True, env={k: v for k, v in os.environ.items() if k != "MUJOCO_GL"})
    other = np.load(path).astype(int)
    terrain, view, size, bodies, target = scene()
    ours = SoftwareRenderer(terrain, view, size).draw([bodies], target)[0].astype(int)
    masks = [(p[..., 0] > 2 * p[..., 1]) & (p[..., 0] > 60) for p in (ours, other)]
    assert (masks[0] & masks[1]).sum() / (masks[0] | masks[1]).sum() > 0.95
    sand = [(p[..., 0] > p[..., 2] + 15) for p in (ours, other)]
    assert (sand[0] & sand[1]).sum() / (sand[0] | sand[1]).sum() > 0.97


def test_versions_share_clock_and_ground(humanoid):
    """A recording that starts at frame 6 of its source, moved by its offset, lies over it."""
    source = clip_of(humanoid)
    offset = torch.tensor([1.0, -2.0, 0.5])
    piece = source.frames.time(6, 20).clone()
    piece.root_pos = piece.root_pos + offset
    dofs = humanoid.skeleton.num_dofs
    replay = Replay(
        root_pos=torch.zeros(3),
        root_rot=torch.zeros(4),
        root_lin_vel=torch.zeros(3),
        root_ang_vel=torch.zeros(3),
        dof_pos=torch.zeros(dofs),
        dof_vel=torch.zeros(dofs),
        pd_targets=torch.zeros(13, dofs),
        boxes=torch.zeros(1, 6),
        offset=offset,
        backend="mujoco_cpu",
        model_hash="x",
    )
    notes = f"frames 6 to 19 of 20 of {source.clip_id}"
    recorded = replace(
        source,
        clip_id="made/clip_0_tracked",
        frames=piece,
        replay=replay,
        provenance=Provenance(parents=(source.clip_id,), notes=notes),
    )
    assert Related([recorded]).to(source.clip_id) is recorded
    versions = [Version(label="a", clip=source), Version(label="b", clip=recorded)]
    one, two = actors_of(versions, humanoid)
    assert two.start_s == pytest.approx(6 / 30)
    for time_s in (0.2, 0.4, 0.6):
        frames = one.frame_at(time_s), two.frame_at(time_s)
        np.testing.assert_allclose(one.pos[frames[0]], two.pos[frames[1]], atol=1e-5)
    assert two.frame_at(0.1) is None
    film = film_of(versions, humanoid, size=(200, 80), fps=30.0)
    assert len(film.times) == 20
    first = next(pictures(film, SoftwareRenderer, film.times))
    assert first.shape == (80, 200, 3)
    left, right = (
        np.abs(h.astype(int) - PALETTE[k]).sum(-1).min()
        for k, h in enumerate(np.split(first[:60], 2, axis=1))
    )
    assert left < 60 < right  # the second has not begun, its colour stands in the caption only


@pytest.fixture
def data_sets(tmp_path, humanoid):
    for name in ("a", "b"):
        clips = [made_clip(humanoid, seed) for seed in range(2)]
        save_dataset(tmp_path / name, name, clips, humanoid.digest)
    return tmp_path


def run(*words):
    render.run([*map(str, words), "--renderer", "software", "--size", "160", "96"])


def test_films_have_the_pictures_they_should(data_sets, capsys):
    imageio_ffmpeg = pytest.importorskip(
        "imageio_ffmpeg", reason="films are written and read by it: pip install '.[video]'"
    )
    clip = ("--clip", "made/clip_1")
    a, b, film = data_sets / "a", data_sets / "b", data_sets / "films" / "one.mp4"
    run(a, b, "--out", film, *clip)
    frames = imageio_ffmpeg.read_frames(str(film))
    meta = next(frames)
    images = [np.frombuffer(f, np.uint8).reshape(96, 160, 3) for f in frames]
    assert (meta["size"], meta["fps"], len(images)) == ((160, 96), 30.0, 20)
    assert "20 pictures, 2 versions" in capsys.readouterr().out
    assert np.abs(images[0].astype(int) - images[-1]).max() > 40
    run(a, "--out", data_sets / "one.gif", "--fps", "10", *clip)
    with Image.open(data_sets / "one.gif") as gif:
        assert (gif.n_frames, gif.size) == (7, (160, 96))
    run(a, b, "--out", data_sets / "strips", "--format", "png", "--moments", "3")
    names = sorted(p.name for p in (data_sets / "strips").iterdir())
    assert names == ["made__clip_0.png", "made__clip_1.png"]
    with Image.open(data_sets / "strips" / names[0]) as image:
        assert image.size == (3 * 80, 2 * 96)
    run(a, b, "--out", data_sets / "over.png", "--moments", "1", "--layout", "overlaid", *clip)
    with Image.open(data_sets / "over.png") as image:
        assert image.size == (160, 96)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "x.avi"], "--out: x.avi; .mp4, .gif, .png or a directory"),
        (["--out", "x.mp4"], "there are 2 motions"),
        (["--out", "x.mp4", "--format", "gif"], "does not fit"),
        (["--out", "x", "--clip", "none"], "--clip: none not among the 2 motions"),
        (["--out", "x", "--size", "8", "8"], "--size"),
        (["--out", "x", "--fps", "0"], "--fps: 0; 1 to 120"),
        (
            ["--out", "x.GIF", "--fps", "120", "--clip", "made/clip_1"],
            "--fps: 120; a .gif shows 50",
        ),
        (["--out", "x", "--format", "gif", "--fps", "51"], "--fps: 51; a .gif shows 50"),
        (["--out", "x", "--labels", "p", "q"], "--labels: 2 for 1"),
        (["--out", "x", "--start", "99"], "the motion ends at"),
    ],
)
def test_what_cannot_be_rendered_is_refused(data_sets, words, message, monkeypatch):
    monkeypatch.chdir(data_sets)
    with pytest.raises(InputError, match=message):
        render.run(["a", *words, "--renderer", "software"])
    assert sorted(p.name for p in data_sets.iterdir()) == ["a", "b"]


@pytest.mark.parametrize("fps", [7.0, 15.0, 30.0, 50.0])
def test_pictures_of_a_gif_begin_when_they_should(tmp_path, fps):
    """Pillow's reading of the file: every beginning is within half a hundredth of a second."""
    shades = [np.full((8, 8, 3), 5 * k, np.uint8) for k in range(40)]
    assert write_gif(tmp_path / "x.gif", iter(shades), fps) == 40
    at = [0]
    with Image.open(tmp_path / "x.gif") as gif:
        assert gif.n_frames == 40
        for number in range(40):
            gif.seek(number)
            at.append(at[-1] + gif.info["duration"])
    np.testing.assert_allclose(at, 1000 * np.arange(41) / fps, atol=5.001)


def test_upper_case_endings_are_the_same(data_sets):
    run(data_sets / "a", "--out", data_sets / "x.GIF", "--clip", "made/clip_1")
    with Image.open(data_sets / "x.GIF") as gif:
        assert (gif.format, gif.n_frames) == ("GIF", 10)  # 19 / 30 s at 15 pictures per second


def test_two_motions_never_go_to_one_file(tmp_path, humanoid):
    clips = [replace(made_clip(humanoid), clip_id=name) for name in ("a/b", "a__b")]
    save_dataset(tmp_path / "set", "set", clips, humanoid.digest)
    with pytest.raises(InputError, match=r"a/b and a__b would both be written to a__b\.mp4"):
        run(tmp_path / "set", "--out", tmp_path / "films")
    assert not (tmp_path / "films").exists()


def test_a_run_is_drawn_as_its_own_character(tmp_path, waddler, humanoid):
    """The config's, not the humanoid; another one is refused by its digest."""
    root = tmp_path / "run"
    config = replace(get_recipe("smoke"), character=str(WADDLER), name="run")
    clip = replace(made_clip(waddler), clip_id="w")
    for name in ("generate", "record"):
        put_clips(root, f"it_01/{name}", [clip], waddler)
        record = {"source_id": "w", "clip_id": None}
        (root / f"it_01/{name}/records.json").write_text(json.dumps([record]))
        mark(root, f"it_01/{name}", 1.0, 1.0)
    (root / "config.yaml").write_text(to_yaml(config))
    run(root, "--out", tmp_path / "x.png", "--moments", "1")
    with pytest.raises(InputError, match="made for character"):
        run(root, "--out", tmp_path / "y.png", "--character", "humanoid")
    assert (tmp_path / "x.png").exists()
    assert not (tmp_path / "y.png").exists()


def test_a_missing_data_set_is_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["render", str(tmp_path / "none"), "--out", str(tmp_path / "x")])
    assert caught.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
