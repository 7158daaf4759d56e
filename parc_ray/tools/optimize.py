"""``parc optimize``: kinematic optimisation of clips alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from parc_ray.arguments import override
from parc_ray.character.character import Character, load_character
from parc_ray.config import DataConfig
from parc_ray.console import setup_logging
from parc_ray.evaluation.metrics import clip_metrics
from parc_ray.motion.clip import MotionClip
from parc_ray.motion.contacts import label_contacts, with_contacts
from parc_ray.recipes import get_recipe, recipe_names
from parc_ray.synthesis.assemble import with_bounds
from parc_ray.synthesis.config import OptimizerConfig
from parc_ray.synthesis.kinopt import MotionReport, optimize_motions
from parc_ray.tools.base import OneLineParser, format_table, name_of, require_target, write_dataset
from parc_ray.tools.import_data import load_source

_FIGURES = (
    ("TPL (m)", "tpl"),
    ("TCL (m)", "tcl"),
    ("%HJF", "hjf_frames_percent"),
    ("slide (m/s)", "foot_slide_mps"),
)
"""Column titles and names in ``clip_metrics`` of what is compared."""


def run(argv: list[str]) -> None:
    """``parc optimize DATASET --out DIR [--iterations N] [--synthesis.optimizer.w_jerk X ...]``.

    Raises:
        InputError: a data set that cannot be used, a target that is not empty, a wrong option.
    """
    parser = arguments()
    options, rest = parser.parse_known_args(argv)
    known = [o for a in parser._actions for o in a.option_strings if o.startswith("--")]
    config = override(get_recipe(options.recipe), rest, known)
    settings = config.synthesis.optimizer
    if options.iterations is not None:
        settings = replace(settings, iterations=options.iterations)
    setup_logging("WARNING")
    character = load_character(options.character)
    target = require_target(options.out)
    data = DataConfig(path=options.source, min_frames=options.min_frames)
    clips, left_out = load_source(data, character)
    clips = [with_contacts(clip, character) for clip in clips]
    finished = optimize_clips(clips, character, settings)
    print(comparison(clips, finished, character))
    for line in left_out:
        print(f"left out: {line}")
    made = [clip for clip, _ in finished]
    manifest = write_dataset(target, name_of(options.out, options.name), made, character)
    print(f"{target}: data set {manifest.name!r}, {manifest.rows} clips")


def arguments() -> OneLineParser:
    """The command's options."""
    parser = OneLineParser(
        prog="parc optimize",
        description="Move the clips of DATASET (or anything that `parc import` reads) out of their "
        "terrain and onto their contacts; a clip without any contact label is labelled by "
        "distance first. Any value of synthesis.optimizer is an option: "
        "--synthesis.optimizer.w_jerk 100, ...",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("source", metavar="DATASET")
    add("--out", metavar="DIR", required=True, help="directory of the new data set")
    add("--iterations", type=int, metavar="N", help="steps of the optimiser (default: recipe's)")
    add("--recipe", default="quick", help=f"settings: {', '.join(recipe_names())} (%(default)s)")
    add("--name", help="name of the data set (default: that of the directory)")
    add("--character", default="humanoid", help="humanoid, or an .xml with its .yaml beside it")
    add("--min-frames", type=int, default=2, help="shortest clip (%(default)s)")
    return parser


def optimize_clips(
    clips: Sequence[MotionClip], character: Character, settings: OptimizerConfig
) -> list[tuple[MotionClip, MotionReport]]:
    """Optimised clips with fresh contact labels and augmentation bounds, and their reports.

    Ids stay; a recorded clip loses its replay, which no longer leads to these frames.
    """
    out = []
    for clip, report in optimize_motions(clips, character, settings):
        labels = label_contacts(character, clip.frames, clip.terrain)
        notes = f"{clip.provenance.notes}; optimised, {report.iterations} steps".strip("; ")
        finished = replace(
            clip,
            frames=replace(clip.frames, contacts=labels),
            provenance=replace(clip.provenance, parents=(clip.clip_id,), notes=notes),
            replay=None,
        )
        out.append((with_bounds(finished, character), report))
    return out


def comparison(
    before: Sequence[MotionClip],
    after: Sequence[tuple[MotionClip, MotionReport]],
    character: Character,
) -> str:
    """A table of every clip's figures before and after, by the paper's definitions.

    Contacts are those of the source on both sides, as they are what the optimiser aims at.
    """
    rows = []
    for old, (new, report) in zip(before, after, strict=True):
        same = replace(new, frames=replace(new.frames, contacts=old.frames.contacts))
        left, right = (clip_metrics(clip, character, "paper") for clip in (old, same))
        pairs = [f"{left[key]:.3f} > {right[key]:.3f}" for _, key in _FIGURES]
        loss = f"{report.loss_before:.3g} > {report.loss_after:.3g}"
        rows.append([old.clip_id, f"{old.duration_s:.2f}", str(report.iterations), loss, *pairs])
    columns = ("clip", "seconds", "steps", "loss", *(title for title, _ in _FIGURES))
    return format_table(columns, rows)
