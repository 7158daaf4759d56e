"""``parc distill``: a generator that needs few evaluations per window, from a trained one."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from algorithms.diffusion.checkpoint import load_generator
from algorithms.diffusion.distill import DistillConfig, distill, student_config
from parc_ray.character.character import load_character
from parc_ray.config import DataConfig
from parc_ray.console import setup_logging
from parc_ray.data.bank import ClipBank
from parc_ray.tools.base import OneLineParser
from parc_ray.tools.import_data import load_source

log = logging.getLogger(__name__)


def run(argv: list[str]) -> None:
    """``parc distill GENERATOR DATASET --out DIR [--steps N] [--updates N] ...``.

    Raises:
        InputError: a generator, data set or setting that cannot be used.
    """
    options = arguments().parse_args(argv)
    setup_logging("INFO")
    config = DistillConfig(
        steps=options.steps,
        updates=options.updates,
        batch_size=options.batch_size,
        torch_threads=options.threads,
        seed=options.seed,
    )
    # Whatever is wrong with the generator shows before the data are read.
    teacher = load_generator(Path(options.generator))
    student_config(teacher.config, config.steps)
    character = load_character(options.character)
    data = replace(DataConfig(), path=options.source, min_frames=teacher.config.num_frames + 1)
    clips, left_out = load_source(data, character)
    bank = ClipBank(clips, character.skeleton, fps=teacher.config.fps)
    path = distill(options.generator, bank, character, config, options.out, device=options.device)
    for line in left_out:
        print(f"left out: {line}")
    print(f"{path}: generator of {config.steps} evaluations per window")


def arguments() -> OneLineParser:
    """The command's options."""
    default = DistillConfig()
    parser = OneLineParser(
        prog="parc distill",
        description="Train a few-step generator on the answers of GENERATOR, from windows of "
        "DATASET (or anything that `parc import` reads). DIR/generator.pt is used like any other "
        "generator; started again with the same DIR, the command goes on where it stopped.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("generator", metavar="GENERATOR", help="file that `parc train-generator` wrote")
    add("source", metavar="DATASET")
    add("--out", metavar="DIR", required=True, help="directory of checkpoint and result")
    add("--steps", type=int, default=default.steps, metavar="N", help="evaluations (%(default)s)")
    add("--updates", type=int, default=default.updates, metavar="N", help="(%(default)s)")
    add("--batch-size", type=int, default=default.batch_size, metavar="N", help="(%(default)s)")
    add("--seed", type=int, default=default.seed, metavar="N", help="of all draws (%(default)s)")
    add("--threads", type=int, metavar="N", help="threads of PyTorch")
    add("--device", default="cpu", help="of the networks: cpu, cuda, ... (%(default)s)")
    add("--character", default="humanoid", help="humanoid, or an .xml with its .yaml beside it")
    return parser
