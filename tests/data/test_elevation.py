"""Elevation maps and scans of known heights, written here, become maps; wrong files are refused."""

from __future__ import annotations

import numpy as np
import pytest
import tifffile
import trimesh
from PIL import Image

from parc_ray.data import elevation
from parc_ray.data.elevation import MapImport, import_map, parse_reduce
from parc_ray.data.elevation.raster import read_raster
from parc_ray.data.elevation.resample import to_cells
from parc_ray.errors import InputError

RAW = {"keep_altitude": True}


def heights_of(path, **kwargs):
    return import_map(path, MapImport(**{**RAW, **kwargs})).made.terrain.heights.numpy()


def two_boxes(path, scale=1.0, y_up=False):
    """A floor of 4 x 2 m at 0 with boxes of 0.8 x 0.8 m, 0.5 and 1.5 m high; floor from (0, 0)."""
    floor = trimesh.creation.box(bounds=[[0, 0, -1], [4, 2, 0]])
    low = trimesh.creation.box(bounds=[[0.4, 0.4, -1], [1.2, 1.2, 0.5]])
    high = trimesh.creation.box(bounds=[[2.4, 0.8, -1], [3.2, 1.6, 1.5]])
    mesh = trimesh.util.concatenate([floor, low, high])
    mesh.apply_scale(scale)
    if y_up:
        mesh.vertices = np.stack(
            [mesh.vertices[:, 0], mesh.vertices[:, 2], -mesh.vertices[:, 1]], axis=1
        )
    mesh.export(path)
    expected = np.zeros((10, 5))
    expected[1:3, 1:3], expected[6:8, 2:4] = 0.5, 1.5
    return expected


@pytest.mark.parametrize("ending", ["obj", "stl", "ply"])
@pytest.mark.parametrize("reduce", ["mean", "max", "p50"])
def test_scans_of_boxes_have_the_boxes_heights(tmp_path, ending, reduce):
    expected = two_boxes(tmp_path / f"scan.{ending}")
    got = heights_of(tmp_path / f"scan.{ending}", percentile=parse_reduce(reduce))
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_units_axes_and_ceilings_of_scans(tmp_path):
    expected = two_boxes(tmp_path / "mm.stl", scale=1000.0, y_up=True)
    got = heights_of(tmp_path / "mm.stl", unit="mm", up="y")
    np.testing.assert_allclose(got, expected, atol=1e-5)
    two_boxes(tmp_path / "m.ply")
    cut = heights_of(tmp_path / "m.ply", ceiling_m=1.0)
    np.testing.assert_allclose(cut, np.where(expected > 1.0, 0.0, expected), atol=1e-6)
    with pytest.raises(InputError, match="--unit"):
        import_map(tmp_path / "mm.stl", MapImport())


def test_a_tilted_triangle_is_sampled_where_it_lies(tmp_path):
    corners = np.array([[0.0, 0.0, 0.0], [8.0, 0.0, 4.0], [0.0, 8.0, 2.0]])
    trimesh.Trimesh(corners, [[0, 1, 2]], process=False).export(tmp_path / "t.ply")
    made = import_map(tmp_path / "t.ply", MapImport(cell_size=0.5, **RAW))
    heights, known = made.made.terrain.heights.numpy(), made.made.terrain.confidence
    assert known is not None
    x, y = (np.indices((16, 16)) + 0.5) * 0.5
    inner = x + y < 7.0
    np.testing.assert_allclose(heights[inner], (0.5 * x + 0.25 * y)[inner], atol=1e-5)
    assert (known.numpy() == (x + y < 8.25)).all()
    assert made.filled == int((x + y >= 8.25).sum())
    assert made.largest_hole_m > 3.0


def test_point_clouds_take_the_highest_point_of_a_cell(tmp_path):
    rng = np.random.default_rng(0)
    points = rng.uniform([0, 0, 0], [4, 3, 0.2], (4000, 3))
    points[:2, :2] = [[0.0, 0.0], [4.0, 3.0]]
    trimesh.PointCloud(points).export(tmp_path / "cloud.ply")
    got = heights_of(tmp_path / "cloud.ply", cell_size=0.5)
    assert got.shape == (8, 6)
    cell = (points[:, :2] / 0.5).astype(int).clip(max=[7, 5])
    for i in range(8):
        for j in range(6):
            inside = (cell == [i, j]).all(1)
            assert got[i, j] == pytest.approx(points[inside, 2].max(), abs=1e-6)


def write_tiff(path, rows, **tags):
    keys = tags.pop("keys", [(1024, 1)])
    directory = [1, 1, 0, len(keys)] + [v for k, value in keys for v in (k, 0, 1, value)]
    scale = tags.pop("scale", (0.2, 0.2, 0.0))
    extra = [(33550, "d", 3, scale, True), (34735, "H", len(directory), directory, True)]
    if "nodata" in tags:
        text = str(tags.pop("nodata"))
        extra.append((42113, "s", len(text) + 1, text, True))
    tifffile.imwrite(path, rows, extratags=extra, **tags)


def test_geotiffs_tell_scale_units_and_what_is_missing(tmp_path):
    rows = np.zeros((20, 40), dtype=np.float32)  # 4 m north to south, 8 m west to east
    rows[:4, :8] = 2.0  # the north-west corner
    rows[18:, 38:] = -9999.0  # the south-east one
    write_tiff(tmp_path / "a.tif", rows, nodata=-9999, compression="deflate")
    made = import_map(tmp_path / "a.tif", MapImport(**RAW))
    heights = made.made.terrain.heights.numpy()
    assert heights.shape == (20, 10)
    assert (heights[:4, 8:] == 2.0).all()
    assert heights.sum() == pytest.approx(2.0 * 8)
    assert made.filled == 1
    assert made.made.terrain.confidence is not None
    assert float(made.made.terrain.confidence[19, 0]) == 0.0
    feet = [(1024, 1), (3076, 9002), (4099, 9002)]
    write_tiff(tmp_path / "feet.tif", rows.clip(0), scale=(1.0, 1.0, 0.0), keys=feet)
    got = heights_of(tmp_path / "feet.tif", cell_size=0.3048)
    assert got.shape == (40, 20)
    assert got.max() == pytest.approx(2.0 * 0.3048)
    write_tiff(tmp_path / "degrees.tif", rows.clip(0), keys=[(1024, 2)])
    with pytest.raises(InputError, match="--pixel-size"):
        import_map(tmp_path / "degrees.tif", MapImport())
    assert heights_of(tmp_path / "degrees.tif", pixel_m=(0.4, 0.4)).shape == (40, 20)


def test_pictures_have_north_at_the_top_and_arrays_are_by_x_and_y(tmp_path):
    grey = np.zeros((6, 10), dtype=np.uint16)
    grey[0, 9] = 50_000  # north-east
    Image.fromarray(grey).save(tmp_path / "map.png")
    got = heights_of(tmp_path / "map.png", pixel_m=(0.4, 0.4), height_scale=1e-4)
    assert got.shape == (10, 6)
    assert got[9, 5] == pytest.approx(5.0)
    assert np.count_nonzero(got) == 1
    np.save(tmp_path / "map.npy", got)
    assert (heights_of(tmp_path / "map.npy", pixel_m=(0.4, 0.4)) == got).all()
    cm = heights_of(tmp_path / "map.npy", pixel_m=(0.4, 0.4), unit="cm")
    np.testing.assert_allclose(cm, got / 100)


def test_means_are_by_area_and_percentiles_by_rank():
    rng = np.random.default_rng(0)
    pixels = rng.normal(size=(13, 17)).astype(np.float32)
    pixels[3, 5] = np.nan
    cells = to_cells(pixels, (0.3, 0.25), 0.7, None)
    assert cells.shape == (5, 6)
    # Against a fine grid of points, of which each takes the pixel that it lies in.
    points = (np.arange(700) + 0.5) / 100 * 0.7
    x, y = (points[: n * 100] for n in cells.shape)
    fine = pixels[(x / 0.3).astype(int)][:, (y / 0.25).astype(int)]
    expected = np.nanmean(fine.reshape(5, 100, 6, 100), axis=(1, 3))
    np.testing.assert_allclose(cells, expected, atol=0.02)
    whole = rng.normal(size=(12, 12)).astype(np.float32)
    blocks = whole.reshape(3, 4, 3, 4).transpose(0, 2, 1, 3).reshape(3, 3, 16)
    for q in (0.0, 40.0, 100.0):
        want = np.quantile(blocks, q / 100, axis=-1, method="closest_observation")
        got = to_cells(whole, (0.1, 0.1), 0.4, q)
        assert np.abs(np.sort(blocks, -1) - got[..., None]).min(-1).max() == 0.0
        rank = (np.sort(blocks, -1) <= got[..., None]).sum(-1) - 1
        assert (np.abs(rank - q / 100 * 15) <= 0.5).all(), want
    coarse = to_cells(whole, (1.0, 1.0), 0.5, 100.0)
    assert (coarse == np.repeat(np.repeat(whole, 2, 0), 2, 1)).all()


def test_maps_are_levelled_and_parts_out_of_reach_marked(tmp_path):
    heights = np.full((30, 20), 312.0)
    heights[:, 15:] = 320.0  # a cliff
    np.save(tmp_path / "high.npy", heights)
    made = import_map(tmp_path / "high.npy", MapImport(pixel_m=(0.4, 0.4)))
    assert made.lowered_m == 312.0
    assert made.made.terrain.heights[0, 0] == 0.0
    assert made.made.terrain.confidence is None
    assert (made.made.reachable == (heights == 312.0)).all()


def test_wrong_files_are_refused_in_one_line(tmp_path, monkeypatch):
    def put(name, content):
        (tmp_path / name).write_bytes(content)

    put("broken.png", b"\x89PNG\r\n\x1a\nnothing")
    put("broken.tif", b"II*\x00\xff\xff\xff\xff")
    put("broken.npy", b"\x93NUMPY\x01\x00")
    put("broken.stl", b"solid x")
    put("broken.ply", b"ply\nformat ascii 1.0\nelement vertex 9\n")
    put("empty.obj", b"# nothing\n")
    put("notes.txt", b"")
    Image.new("RGB", (4, 4)).save(tmp_path / "colour.png")
    Image.new("L", (4, 4)).save(tmp_path / "scaleless.png")
    np.save(tmp_path / "pickle.npy", np.array([{}]))
    np.save(tmp_path / "cube.npy", np.zeros((2, 2, 2)))
    np.save(tmp_path / "words.npy", np.array([["a"]]))
    np.save(tmp_path / "nan.npy", np.full((4, 4), np.nan))
    np.save(tmp_path / "void.npy", np.full((4, 4), -3.4e38))
    np.save(tmp_path / "tiny.npy", np.zeros((2, 2)))
    tifffile.imwrite(tmp_path / "bands.tif", np.zeros((8, 8, 3), np.uint8), photometric="rgb")
    cfg = MapImport(pixel_m=(0.1, 0.1))
    names = [p.name for p in tmp_path.iterdir()]
    assert len(names) == 16
    for name in [*names, "missing.png"]:
        with pytest.raises(InputError) as caught:
            import_map(tmp_path / name, cfg)
        message = str(caught.value)
        assert "\n" not in message
        assert name in message or "--cell-size" in message
    np.save(tmp_path / "wide.npy", np.zeros((50, 50)))
    monkeypatch.setattr(elevation.raster, "MAX_PIXELS", 1000)
    with pytest.raises(InputError, match="2500 pixels"):
        read_raster(tmp_path / "wide.npy")
    monkeypatch.setattr(elevation.resample, "MAX_CELLS", 1000)
    with pytest.raises(InputError, match="larger cells"):
        to_cells(np.zeros((50, 50), np.float32), (0.4, 0.4), 0.4, None)
    monkeypatch.setattr(elevation.mesh, "MAX_FILE_MB", 1e-6)
    with pytest.raises(InputError, match="thin the scan"):
        import_map(tmp_path / "broken.stl", cfg)


def test_wrong_options_are_named():
    for values, name in (
        ({"cell_size": 0.0}, "--cell-size"),
        ({"cell_size": -1.0}, "--cell-size"),
        ({"pixel_m": (0.0, 1.0)}, "--pixel-size"),
        ({"unit": "yard"}, "--unit"),
        ({"percentile": 101.0}, "--reduce"),
        ({"height_scale": 0.0}, "--height-scale"),
        ({"max_step_m": float("nan")}, "--max-step"),
    ):
        with pytest.raises(InputError, match=name):
            MapImport(**values)
    for text in ("median", "pp", "p"):
        with pytest.raises(InputError, match="--reduce"):
            parse_reduce(text)
