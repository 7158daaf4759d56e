"""``parc import-model``: a published generator or tracker becomes a file of this project."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from algorithms.diffusion.checkpoint import GeneratorFile, read_tensors, save_generator
from algorithms.diffusion.profiles import profile
from algorithms.diffusion.published import networks, rename, statistics
from parc_ray.character.character import load_character
from parc_ray.console import setup_logging
from parc_ray.errors import InputError
from parc_ray.motion.features import FeatureLayout, FeatureStats
from parc_ray.tools.base import OneLineParser
from parc_ray.tools.import_tracker import import_tracker


def run(argv: list[str]) -> None:
    """``parc import-model FILE --out CHECKPOINT``.

    Raises:
        InputError: a file that is no published model of the kind, profile or character.
    """
    options = arguments().parse_args(argv)
    setup_logging("WARNING")
    out = Path(options.out)
    if out.exists():
        raise InputError(f"--out: {out} exists; models are never written over; name another.")
    if options.kind == "tracker":
        names = _read_map(options.map)
        print(import_tracker(Path(options.file), out, options.character, names))
        print(
            "unverified: no tracker that PARC's authors published has been read with this yet; "
            "compare its motion with theirs before you trust it"
        )
        return
    character = load_character(options.character)
    config = profile(options.profile)
    size = FeatureLayout(character.skeleton, config.rotations).size
    source = Path(options.file)
    content = read_tensors(source, "published generator")
    names = _read_map(options.map)
    plain, average = networks(content)
    model = rename(plain, config, size, names)
    ema = model if average is None else rename(average, config, size, names)
    stats = _stats(options.stats, content, config.num_frames, size)
    save_generator(
        GeneratorFile(
            config=config,
            character={"name": character.name, "digest": character.digest},
            stats=stats,
            ema=ema,
            model=model,
            step=0,
        ),
        out,
    )
    count = sum(value.numel() for value in model.values())
    print(
        f"{out}: {len(model)} tensors, {count} parameters of {source.name}, profile "
        f"{options.profile!r}; averaged weights: {'no' if average is None else 'yes'}"
    )
    print(
        "unverified: no generator that PARC's authors published has been read with this yet; "
        "compare its samples with theirs before you trust it"
    )


def arguments() -> OneLineParser:
    """The command's options."""
    parser = OneLineParser(
        prog="parc import-model",
        description="Turn a generator or a tracker that PARC's authors published (mxucg/PARC on "
        "Hugging Face) into a file of ours. Only tensors are read. Unverified on their files.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("file", metavar="FILE", help="the published checkpoint")
    add("--out", metavar="CHECKPOINT", required=True, help="file to write; must not exist")
    add("--kind", default="generator", choices=("generator", "tracker"), help="what FILE is")
    add("--profile", default="upstream", choices=("upstream", "paper"), help="generator: its sizes")
    add("--stats", metavar="YAML", help="generator: the file of feature statistics, if not in FILE")
    add("--map", metavar="JSON", help="their tensor names by ours, where none is recognised")
    add("--character", default="humanoid", help="humanoid, or an .xml with its .yaml beside it")
    return parser


def _read_map(path: str | None) -> dict[str, str]:
    if path is None:
        return {}
    content = _read(path, "--map", json.loads)
    if not isinstance(content, dict) or not all(isinstance(v, str) for v in content.values()):
        raise InputError(f"--map {path}: a JSON object of names is needed; correct the file.")
    return content


def _stats(path: str | None, content: dict[str, Any], num_frames: int, size: int) -> FeatureStats:
    where = "the checkpoint" if path is None else f"--stats {path}"
    source = content if path is None else _read(path, "--stats", yaml.safe_load)
    found = statistics(source, num_frames, size) if isinstance(source, dict) else None
    if found is None:
        raise InputError(
            f"statistics: {where} holds no mean and std of {num_frames} x {size} numbers; give "
            "the authors' file of statistics as --stats."
        )
    if not bool((found.std > 0).all()):
        raise InputError(f"statistics: {where} has a std that is not above 0; give another file.")
    return found


def _read(path: str, option: str, parse: Any) -> Any:
    try:
        return parse(Path(path).read_text())
    except (OSError, UnicodeDecodeError, ValueError, yaml.YAMLError) as error:
        reason = str(error).splitlines()[0][:120]
        raise InputError(
            f"{option} {path}: cannot be read ({reason}); give another file."
        ) from error
