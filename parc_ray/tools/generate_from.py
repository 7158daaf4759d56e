"""``parc generate --from BUNDLE``: motions of an exported generator, without a run and without Ray.

The chain is that of the stage ``generate``: terrains and paths, candidates, selection, kinematic
optimisation, with the run's settings of the iteration that trained the generator.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from parc_ray.arguments import override
from parc_ray.character.character import Character, load_character
from parc_ray.config import ParcConfig
from parc_ray.config_io import from_yaml
from parc_ray.console import setup_logging
from parc_ray.deploy.bundle import CONFIG, GENERATOR_FILE, MJCF, MJCF_YAML
from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip
from parc_ray.runner.bundle import SHEET, read_members, read_sheet, require_members
from parc_ray.stages._operators import OptimizeStep, PlanStep, RollOutStep
from parc_ray.stages.pool import WorkItem
from parc_ray.tools.base import OneLineParser, name_of, require_target, write_dataset

_TERRAINS_PER_MOTION = 10
_TOGETHER = 3


def run(argv: list[str]) -> None:
    """``parc generate --from BUNDLE --out DIR [--motions N] [--seed N] [--a.b VALUE ...]``.

    Raises:
        InputError: no bundle, one without a generator, an option that cannot be used, a target
            that is not empty, or no motion at all.
    """
    parser = arguments()
    options, rest = parser.parse_known_args(argv)
    known = [o for a in parser._actions for o in a.option_strings if o.startswith("--")]
    if options.motions < 1:
        raise InputError(f"--motions: {options.motions}; 1 or more is allowed")
    files = read_members(options.source)
    if GENERATOR_FILE not in files:
        raise InputError(f"{options.source}: holds no generator; export a run that has trained one")
    require_members(files, (CONFIG, MJCF, MJCF_YAML), options.source)
    where = f"{options.source}/{CONFIG}"
    config = from_yaml(ParcConfig, files[CONFIG].decode(), where)
    iteration = _iteration(files, options.source, config)
    config = override(config, rest, known)
    _require_used(rest, iteration)
    target = require_target(options.out)
    setup_logging("WARNING")
    with tempfile.TemporaryDirectory() as folder:
        character = _character(files, Path(folder))
        clips, rejected = _generate(options, config, iteration, files[GENERATOR_FILE], character)
    if not clips:
        said = ", ".join(f"{count} {why}" for why, count in rejected.most_common(4)) or "no path"
        raise InputError(
            f"{options.source}: no motion was kept ({said}); give --candidates a higher number or "
            "another --seed"
        )
    manifest = write_dataset(target, name_of(options.out, options.name), clips, character)
    seconds = sum(clip.duration_s for clip in clips)
    print(f"{options.out}: {manifest.rows} clips, {seconds:.1f} s")


def arguments() -> OneLineParser:
    """The command's options."""
    parser = OneLineParser(
        prog="parc generate --from",
        description="Motions of the generator in a bundle (parc export RUN), as a data set, with "
        "the run's settings of the iteration that trained it. Options too: --synthesis., "
        "--curriculum. and --iterations.N. values of the run's config, where N is that iteration "
        "counted from 0, such as --iterations.0.terrain.kind stairs for iteration 1.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--from", dest="source", metavar="BUNDLE", required=True, help="directory or .zip")
    add("--out", metavar="DIR", required=True, help="new or empty directory")
    add("--motions", type=int, default=8, metavar="N", help="(%(default)s)")
    add("--seed", type=int, default=0, metavar="N", help="of terrains and noise (%(default)s)")
    add("--candidates", type=int, metavar="N", help="per terrain (the run's)")
    add("--s", type=float, metavar="S", help="blend of the generator's two answers (the run's)")
    add("--name", help="name of the data set (default: that of the directory)")
    add("--device", default="cpu", help="of network and optimiser (%(default)s)")
    return parser


def _iteration(files: dict[str, bytes], source: str, config: ParcConfig) -> int:
    """The iteration, from 1, that trained the bundle's generator.

    Raises:
        InputError: the sheet does not tell, or the config has no such iteration.
    """
    found = read_sheet(files, ("iterations.generator",), source)["iterations"]["generator"]
    if not isinstance(found, int) or not 1 <= found <= len(config.iterations):
        raise InputError(
            f"{source}: {SHEET}: iterations.generator: {found}; 1 to {len(config.iterations)} is "
            "allowed; export the run again"
        )
    return found


def _require_used(words: Sequence[str], iteration: int) -> None:
    """Refuse overrides that would change nothing.

    Raises:
        InputError: a value that the chain does not read, or of another iteration.
    """
    used = [f"--iterations.{iteration - 1}.", "--synthesis.", "--curriculum."]
    for word in words:
        if re.match(r"--[A-Za-z]", word) and not word.startswith(tuple(used)):
            raise InputError(
                f"{word.partition('=')[0]}: changes nothing here; the generator is of iteration "
                f"{iteration}, and {', '.join(used[:2])} or {used[2]} options count; drop it"
            )


def _character(files: dict[str, bytes], folder: Path) -> Character:
    """The bundle's own character: its files under its own name, so that digests agree."""
    (folder / MJCF).write_bytes(files[MJCF])
    (folder / MJCF_YAML).write_bytes(files[MJCF_YAML])
    return load_character(folder / MJCF)


def _generate(
    options: argparse.Namespace,
    config: ParcConfig,
    iteration: int,
    generator: bytes,
    character: Character,
) -> tuple[list[MotionClip], Counter[str]]:
    """Terrain by terrain until there are enough motions, and why others were not kept."""
    row, synthesis = config.row(iteration), config.synthesis_for(iteration)
    changes = {
        k: getattr(options, k) for k in ("candidates", "s") if getattr(options, k) is not None
    }
    row = replace(row, **changes)
    plan = PlanStep(row=row, synthesis=synthesis, seed=options.seed)
    roll_out = RollOutStep(
        generator=generator,
        character=character,
        row=row,
        synthesis=synthesis,
        iteration=iteration,
        seed=options.seed,
        device=options.device,
    )
    finish = OptimizeStep(character=character, synthesis=synthesis, device=options.device)
    clips: list[MotionClip] = []
    rejected: Counter[str] = Counter()
    for first in range(0, _TERRAINS_PER_MOTION * options.motions, _TOGETHER):
        payload = {"first": first, "last": first + _TOGETHER}
        item = WorkItem(id=f"terrains-{first:05d}", payload=payload)
        rolled = roll_out(item, plan(item, b"").data)
        rejected.update(rolled.record["rejections"])
        made = finish(item, rolled.data).clips
        clips += [clip for clip in made if not clip.clip_id.endswith("_m")]
        if len(clips) >= options.motions:
            break
    return clips[: options.motions], rejected
