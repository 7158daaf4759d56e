"""``parc demo``: a long motion over a map, by way-points."""

from __future__ import annotations

import argparse
import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from algorithms.diffusion.generator import DiffusionGenerator
from parc_ray.arguments import override
from parc_ray.character.character import load_character
from parc_ray.console import setup_logging
from parc_ray.errors import InputError
from parc_ray.recipes import get_recipe
from parc_ray.synthesis.config import PlannerConfig
from parc_ray.synthesis.demo_maps import PRESETS, DemoMap, Waypoints, random_waypoints
from parc_ray.synthesis.legs import LongPath, plan_legs
from parc_ray.synthesis.long_demo import DemoConfig, generate_long
from parc_ray.terrain.files import load_map
from parc_ray.terrain.generators import TERRAINS, make_terrain
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.terrain.mending import reachable_cells
from parc_ray.terrain.simplify import simplified
from parc_ray.terrain.spec import TerrainSpec
from parc_ray.tools.base import OneLineParser
from parc_ray.tools.demo_files import DemoFolder, DemoRequest, write_demo

_RANDOM_TRIES = 20
_RANDOM_DISTANCE_M = 8.0
_SMOOTH_M = DemoConfig().rollout.smooth_m


def run(argv: list[str]) -> None:
    """``parc demo GENERATOR --out DIR [--preset NAME | --map MAP --waypoints W | --random N] ...``.

    Raises:
        InputError: a generator, map, way-point or option that cannot be used, two way-points that
            no path connects, a target that holds something else, or no motion at all.
    """
    parser = arguments()
    options, rest = parser.parse_known_args(argv)
    known = [o for a in parser._actions for o in a.option_strings if o.startswith("--")]
    synthesis = override(get_recipe(options.recipe), rest, known).synthesis
    setup_logging("INFO")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    character = load_character(options.character)
    content = _read(Path(options.generator))
    made = _map(options)
    terrain = simplified(made.terrain) if options.simplify else made.terrain
    path = _path(options, replace(made, terrain=terrain), synthesis.planner)
    optimizer = synthesis.optimizer
    if options.iterations is not None:
        optimizer = replace(optimizer, iterations=options.iterations)
    demo = DemoConfig(
        seconds=options.seconds,
        segment_s=options.segment,
        candidates=options.candidates,
        beam=min(options.beam, options.candidates),
        retries=options.retries,
        rollout=replace(synthesis.rollout, smooth_m=synthesis.rollout.smooth_m or _SMOOTH_M),
        selection=synthesis.selection,
    )
    request = DemoRequest(
        name=options.name or Path(options.out).absolute().name,
        generator=hashlib.sha256(content).hexdigest(),
        terrain=terrain,
        path=path,
        s=options.s,
        demo=demo,
        synthesis=replace(synthesis, optimizer=optimizer, mirror=False),
        seed=options.seed,
        character=character.digest,
    )
    generator = DiffusionGenerator.load(
        options.generator, character, blend=options.s, device=options.device
    )
    folder = DemoFolder.open(options.out, request)
    print(describe_path(path))
    motion = generate_long(
        generator, terrain, path.points, character, demo, options.seed, folder.store
    )
    if motion is None:
        raise InputError(
            f"{options.generator}: no candidate came through the first segment in "
            f"{options.retries + 1} tries; give --candidates a higher number, another --seed, or "
            "a generator that has learnt more"
        )
    for line in write_demo(folder, request, motion, character, generator.fps, options.device):
        print(line)


def arguments() -> OneLineParser:
    """The command's options."""
    demo = DemoConfig()
    parser = OneLineParser(
        prog="parc demo",
        description="Make one long motion over a map from way-point to way-point: segment by "
        "segment the best of several candidates are gone on from, then the whole is optimised. "
        "Started again with the same words, it goes on where it stopped. Any value of "
        "synthesis.planner, .rollout, .selection, .optimizer and .hesitation is an option too.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("generator", metavar="GENERATOR", help="file that `parc train-generator` wrote")
    add("--out", metavar="DIR", required=True, help="directory of the data set and its pictures")
    add("--preset", choices=sorted(PRESETS), help="a map with way-points")
    add("--map", metavar="FAMILY|FILE", help=f"{', '.join(sorted(TERRAINS))}; or a map (.npz)")
    add("--cells", type=int, nargs=2, metavar="N", help="of a family, along x and y (100 100)")
    add("--map-seed", type=int, default=0, metavar="N", help="of family or preset (%(default)s)")
    add("--waypoints", metavar="X,Y;X,Y;...", help="metres; with a negative first: --waypoints=...")
    add("--random", type=int, metavar="N", help="so many way-points, drawn")
    add("--simplify", action="store_true", help="raise 2 x 2 blocks of cells to their highest")
    add("--s", type=float, default=0.5, help="blend of the generator's two answers (%(default)s)")
    add("--seconds", type=float, default=demo.seconds, help="longest motion (%(default)s)")
    add("--candidates", type=int, default=demo.candidates, metavar="N", help="(%(default)s)")
    add("--beam", type=int, default=demo.beam, metavar="N", help="of them go on (%(default)s)")
    add("--segment", type=float, default=demo.segment_s, metavar="S", help="s (%(default)s)")
    add("--retries", type=int, default=demo.retries, metavar="N", help="(%(default)s)")
    add("--iterations", type=int, metavar="N", help="steps of the optimiser; 0: none (recipe's)")
    add("--seed", type=int, default=0, metavar="N", help="of all draws (%(default)s)")
    add("--recipe", default="base", help="settings of the rest (%(default)s)")
    add("--name", help="name of the data set (default: that of the directory)")
    add("--character", default="humanoid", help="humanoid, or an .xml with its .yaml beside it")
    add("--device", default="cpu", help="of network and optimiser (%(default)s)")
    add("--threads", type=int, metavar="N", help="threads of PyTorch")
    return parser


def parse_waypoints(text: str) -> Waypoints:
    """Way-points of ``x,y;x,y;...``, metres.

    Raises:
        InputError: the first one that is no pair of finite numbers.
    """
    found: list[tuple[float, float]] = []
    for number, word in enumerate(text.split(";")):
        try:
            x, y = (float(v) for v in word.split(","))
        except ValueError:
            x = y = float("nan")
        if not np.isfinite([x, y]).all():
            raise InputError(
                f"--waypoints: number {number}, {word.strip()!r}, is not X,Y in metres; "
                "separate way-points by ';'"
            )
        found.append((x, y))
    return tuple(found)


def describe_path(path: LongPath) -> str:
    """One line on a path."""
    step = (path.points[1:, :2] - path.points[:-1, :2]).norm(dim=-1).sum()
    counts = ", ".join(f"{path.kinds.count(kind)} {kind}" for kind in dict.fromkeys(path.kinds))
    return f"path of {float(step):.1f} m in {len(path.legs)} legs; steps: {counts}"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror or error}); give a generator file"
        ) from error


def _map(options: argparse.Namespace) -> DemoMap:
    """The map, with the way-points of a preset or those given."""
    if options.preset is not None:
        for name in ("map", "cells", "waypoints", "random"):
            if getattr(options, name) is not None:
                raise InputError(f"--{name}: does not apply to --preset; drop one of them")
        return PRESETS[options.preset](options.map_seed)
    if (options.waypoints is None) == (options.random is None):
        raise InputError("--waypoints, --random: give one of them, or a --preset")
    source = options.map or "slice"
    waypoints = parse_waypoints(options.waypoints) if options.waypoints is not None else ()
    return DemoMap(terrain=_terrain(options, source), waypoints=waypoints)


def _terrain(options: argparse.Namespace, source: str) -> Heightfield:
    if source not in TERRAINS:
        if options.cells is not None:
            raise InputError("--cells: does not apply to a file; drop it")
        if Path(source).suffix.lower() != ".npz":
            raise InputError(
                f"--map: {source} is neither a family ({', '.join(sorted(TERRAINS))}) nor a map "
                "(.npz); `parc terrain` makes maps"
            )
        return load_map(source).terrain
    x, y = options.cells or (100, 100)
    cells = (int(x), int(y))
    if min(cells) < 5:
        raise InputError(f"--cells: {cells}; at least 5 along x and y are needed")
    spec = TerrainSpec(kind=source, cells=cells, map_seed=options.map_seed)
    if source == "slice":
        large = (max(cells[0], spec.map_cells[0]), max(cells[1], spec.map_cells[1]))
        spec = replace(spec, map_cells=large)
    return make_terrain(spec, np.random.default_rng(options.map_seed))


def _path(options: argparse.Namespace, made: DemoMap, planner: PlannerConfig) -> LongPath:
    """The path through the way-points; random ones are drawn again where no path connects them."""
    terrain = made.terrain
    if made.waypoints:
        return plan_legs(terrain, made.waypoints, planner, options.seed)
    if options.random < 2:
        raise InputError(f"--random: {options.random}; at least 2 way-points are needed")
    reachable = reachable_cells(terrain.heights.double().numpy(), planner.max_step_z_m)
    rng = np.random.default_rng([options.seed, 1])
    last = ""
    for _ in range(_RANDOM_TRIES):
        drawn = random_waypoints(terrain, options.random, _RANDOM_DISTANCE_M, reachable, rng)
        try:
            return plan_legs(terrain, drawn, planner, options.seed)
        except InputError as error:
            last = str(error)
    raise InputError(f"--random: no path in {_RANDOM_TRIES} draws; the last: {last}")
