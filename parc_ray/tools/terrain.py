"""``parc terrain``: a random terrain, or a map made of an elevation map or a scan."""

from __future__ import annotations

import argparse
import os
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from parc_ray.config_io import from_plain, to_plain
from parc_ray.data.elevation import FORMATS, MapImport, import_map, parse_reduce
from parc_ray.errors import InputError
from parc_ray.evaluation.terrain_pictures import draw_terrain, small_png
from parc_ray.synthesis.config import PlannerConfig
from parc_ray.terrain.difficulty import terrain_difficulty
from parc_ray.terrain.files import TerrainMap, load_map, save_map
from parc_ray.terrain.generators import TERRAINS, make_terrain
from parc_ray.terrain.mending import reachable_cells
from parc_ray.terrain.spec import TerrainSpec
from parc_ray.tools.base import OneLineParser

_MAX_STEP_M = PlannerConfig().max_step_z_m
_FILE_OPTIONS = (
    "reduce",
    "fill",
    "max_step",
    "pixel_size",
    "height_scale",
    "unit",
    "nodata",
    "up",
    "ceiling",
    "keep_altitude",
)
_FAMILY_OPTIONS = ("cells", "seed", "difficulty", "set")


def run(argv: list[str]) -> None:
    """``parc terrain FAMILY|FILE [--out MAP.npz] [--picture MAP.png] [...]``.

    Raises:
        InputError: an unknown family, a file that cannot be used, an option that does not belong
            to the source, or a target that exists or cannot be written.
    """
    options = arguments().parse_args(argv)
    _check_target(options.out, options.source)
    made, notes = _made(options)
    # The picture first: it may be refused, and a map is never written over.
    if options.picture:
        picture = draw_terrain(made.terrain, options.source, made.reachable)
        _write(Path(options.picture), small_png(picture))
    if options.out:
        notes.append(f"sha256 {save_map(options.out, made)}")
    print(_summary(options.source, made))
    for line in notes:
        print(line)


def arguments() -> OneLineParser:
    """The command's options."""
    parser = OneLineParser(
        prog="parc terrain",
        description="Make a terrain of a family, or a map of a file that 'generate' and 'evaluate' "
        "cut terrains from (kind file).",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "source",
        metavar="FAMILY|FILE",
        help=f"{', '.join(sorted(TERRAINS))}; or a file: {', '.join(FORMATS)}, or a map (.npz)",
    )
    add("--out", metavar="MAP.npz", help="where to write the map; never written over")
    add("--picture", metavar="MAP.png", help="where to draw it")
    add("--cell-size", type=float, metavar="M", help="metres per cell (0.4; a map's own)")
    family = parser.add_argument_group("of families")
    family.add_argument("--cells", type=int, nargs=2, metavar="N", help="along x and y (32 32)")
    family.add_argument("--seed", type=int, metavar="N", help="(0)")
    family.add_argument("--difficulty", type=float, metavar="D", help="0 is level (1)")
    family.add_argument(
        "--set", nargs="+", metavar="FIELD=VALUE", help="of the spec, e.g. gaps.width_m=[0.4,0.8]"
    )
    _add_file_options(parser.add_argument_group("of elevation maps and scans"))
    return parser


def _add_file_options(group: Any) -> None:
    add = group.add_argument
    add("--pixel-size", type=float, nargs="+", metavar="M", help="metres per pixel: one, or x y")
    add("--height-scale", type=float, metavar="S", help="units of height per number in the file")
    add("--unit", metavar="U", help="m, cm, mm, ft, us-ft or in: of heights; of scans, all lengths")
    add("--nodata", type=float, metavar="V", help="number that stands for no height")
    add("--reduce", metavar="HOW", help="heights in a cell become mean, max, or p0 to p100 (mean)")
    add("--fill", choices=("nearest", "laplace"), help="how holes are filled (nearest)")
    add("--max-step", type=float, metavar="M", help=f"what can be reached ({_MAX_STEP_M:g} m)")
    add("--up", choices=("z", "y"), help="axis of a scan that points up (z)")
    add("--ceiling", type=float, metavar="M", help="leave out what of a scan is higher")
    add("--keep-altitude", action="store_true", default=None, help="the median does not become 0")


def _made(options: argparse.Namespace) -> tuple[TerrainMap, list[str]]:
    """The map of the source, and lines on how it was made."""
    source = options.source
    if source in TERRAINS:
        _refuse_options(options, _FILE_OPTIONS, f"{source} is a family")
        spec = _spec(options)
        terrain = make_terrain(spec, np.random.default_rng(options.seed or 0))
        heights = terrain.heights.double().numpy()
        return TerrainMap(terrain=terrain, reachable=reachable_cells(heights, _MAX_STEP_M)), []
    if not Path(source).suffix:
        raise InputError(
            f"{source}: is neither a family nor a file; families are {', '.join(sorted(TERRAINS))}"
        )
    _refuse_options(options, _FAMILY_OPTIONS, f"{source} is a file")
    if Path(source).suffix.lower() == ".npz":
        _refuse_options(options, _FILE_OPTIONS, f"{source} is a map already")
        held = load_map(source)
        return held.resampled(options.cell_size or held.terrain.cell_size), []
    made = import_map(source, _import_config(options))
    notes = [
        f"{made.filled} cells filled, the largest hole about {made.largest_hole_m:.1f} m wide",
        f"heights lowered by {made.lowered_m:.3f} m",
    ]
    return made.made, notes


def _spec(options: argparse.Namespace) -> TerrainSpec:
    """The spec that the options describe."""
    plain: dict[str, Any] = {"kind": options.source, "cells": options.cells or (32, 32)}
    for name in ("difficulty", "cell_size"):
        if getattr(options, name) is not None:
            plain[name] = getattr(options, name)
    tree: dict[str, Any] = {**to_plain(TerrainSpec()), **plain}
    for word in options.set or ():
        field, equals, value = word.partition("=")
        if not equals:
            raise InputError(f"--set: {word!r} has no '='; give FIELD=VALUE")
        try:
            value = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise InputError(f"--set: {word!r} has no YAML value; give FIELD=VALUE") from error
        *sections, leaf = field.split(".")
        place = tree
        for name in sections:
            if not isinstance(place.get(name), dict):
                raise InputError(f"--set: {field}: {name!r} is no section; see docs/terrains.md")
            place = place[name]
        place[leaf] = value
    return from_plain(TerrainSpec, tree, "terrain")


def _import_config(options: argparse.Namespace) -> MapImport:
    pixel = options.pixel_size
    if pixel is not None and len(pixel) > 2:
        raise InputError(f"--pixel-size: {len(pixel)} numbers; give one, or one for x and for y")
    given: dict[str, Any] = {
        "cell_size": options.cell_size,
        "percentile": parse_reduce(options.reduce) if options.reduce else None,
        "fill": options.fill,
        "max_step_m": _MAX_STEP_M if options.max_step is None else options.max_step,
        "pixel_m": None if pixel is None else (pixel[0], pixel[-1]),
        "height_scale": options.height_scale,
        "unit": options.unit,
        "nodata": options.nodata,
        "up": options.up,
        "ceiling_m": options.ceiling,
        "keep_altitude": options.keep_altitude,
    }
    return MapImport(**{k: v for k, v in given.items() if v is not None})


def _refuse_options(options: argparse.Namespace, names: tuple[str, ...], why: str) -> None:
    for name in names:
        if getattr(options, name) is not None:
            raise InputError(f"--{name.replace('_', '-')}: does not apply, as {why}; drop it")


def _check_target(out: str | None, source: str) -> None:
    """Refuse a target that is there already or is no map, before the work."""
    if out is None:
        return
    path = Path(out).expanduser()
    if path.suffix.lower() != ".npz":
        raise InputError(f"--out: {out} of {source} must end in .npz; correct the name")
    if path.exists():
        raise InputError(f"--out: {out} exists; maps are never written over; choose another name")
    if not path.absolute().parent.is_dir():
        raise InputError(f"--out: {path.parent} is no directory; make it or choose another")


def _write(path: Path, content: bytes) -> None:
    """Write a picture, whole or not at all."""
    half = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        half.write_bytes(content)
        os.replace(half, path)
    except OSError as error:
        raise InputError(
            f"--picture: {path} cannot be written ({error.strerror or error}); choose another place"
        ) from error
    finally:
        half.unlink(missing_ok=True)


def _summary(source: str, made: TerrainMap) -> str:
    terrain = made.terrain
    x, y = terrain.shape
    low, high = float(terrain.heights.min()), float(terrain.heights.max())
    return (
        f"{source}: {x} x {y} cells of {terrain.cell_size:g} m, {low:.2f} to {high:.2f} m, "
        f"difficulty {terrain_difficulty(terrain):.3f}, "
        f"{100 * made.reachable.mean():.1f} % reachable"
    )
