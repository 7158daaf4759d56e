"""From command-line words to a config: a recipe, the usual options, and dotted overrides."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import tyro

from parc_ray.config import ParcConfig
from parc_ray.config_io import flatten, from_yaml
from parc_ray.errors import InputError
from parc_ray.recipes import get_recipe, recipe_names
from parc_ray.tools.base import OneLineParser

_HELP = """Any value of the config is an option too, by its dotted name:
--generator.train.batch_size 32, --iterations.0.motions 8, ...  `--help-config` lists them all."""


def parse_run(
    prog: str, argv: Sequence[str], *, stage: bool = False
) -> tuple[ParcConfig, argparse.Namespace]:
    """Read the options of ``parc run``, ``run_parc.py`` and the stage commands.

    Args:
        prog: name for messages.
        argv: words after the command.
        stage: whether ``--iteration`` is an option.

    Returns:
        The config, and the options that are not config: ``force``, ``iteration``, ``dry_run``.

    Raises:
        InputError: an unknown option (the nearest is named), recipe or value.
    """
    parser = _parser(prog, stage=stage)
    options, rest = parser.parse_known_args(list(argv))
    config = _base_config(options)
    for name in ("storage", "name"):
        value = getattr(options, name)
        config = config if value is None else replace(config, **{name: value})
    if options.data is not None:
        config = replace(config, data=replace(config.data, path=options.data))
    if options.iterations is not None:
        config = config.with_iterations(options.iterations)
    known = [o for a in parser._actions for o in a.option_strings if o.startswith("--")]
    if options.help_config:
        _print_config_help(prog, config)
    return override(config, rest, known), options


def override(config: ParcConfig, words: Sequence[str], known: Sequence[str] = ()) -> ParcConfig:
    """Apply dotted overrides such as ``--generator.num_frames 15`` to a config.

    Args:
        config: where the values start.
        words: alternating names and values; a tuple takes several values.
        known: options handled elsewhere, for the suggestion in messages.

    Raises:
        InputError: an unknown name, a stray word, or a value that does not fit.
    """
    words = [_underscored(word) for word in words]
    _check_names(config, words, known)
    if not words:
        return config
    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
            return tyro.cli(
                ParcConfig,
                default=config,
                args=words,
                use_underscores=True,
                config=(tyro.conf.FlagConversionOff, tyro.conf.AvoidSubcommands),
            )
    except SystemExit as error:
        raise InputError(_tyro_message(output.getvalue())) from error


def _parser(prog: str, *, stage: bool) -> OneLineParser:
    parser = OneLineParser(
        prog=prog,
        epilog=_HELP,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--recipe", help=f"start from a recipe: {', '.join(recipe_names())} (default: quick)")
    add("--config", help="start from a YAML file, for example a run's config.yaml")
    add("--data", help="'sample', a directory of motions, or a data set manifest")
    add(
        "--storage",
        help="holds runs: a directory that all nodes mount, s3:// or gs:// (default: runs)",
    )
    add("--name", help="name of the run, a directory below the storage")
    add("--iterations", type=int, metavar="N", help="number of PARC iterations")
    add("--force", action="store_true", help="redo stages whose settings or inputs changed")
    add("--help-config", action="store_true", help="list every config value and end")
    if stage:
        add("--iteration", type=int, metavar="K", help="iteration of the stage; 0 is for D0")
        add("--dry-run", action="store_true", help="print what it would do and cost; write nothing")
    return parser


def _base_config(options: argparse.Namespace) -> ParcConfig:
    """The config that overrides start from.

    Raises:
        InputError: unknown recipe, unreadable file, or both given.
    """
    if options.config is None:
        return get_recipe(options.recipe or "quick")
    if options.recipe is not None:
        raise InputError("--recipe, --config: both given; allowed is one of them; drop the other")
    path = Path(options.config)
    if not path.is_file():
        raise InputError(f"--config: {path} is not a file; give a YAML config")
    return from_yaml(ParcConfig, path.read_text(), str(path))


def _check_names(config: ParcConfig, words: Sequence[str], known: Sequence[str]) -> None:
    """Refuse option names that no config value has, with the nearest one that exists."""
    names = [f"--{key}" for key in flatten(config)]
    for index, word in enumerate(words):
        name = word.partition("=")[0]
        if index == 0 and not word.startswith("--"):
            raise InputError(f"{word}: unexpected word; allowed are options, which start with --")
        if not re.match(r"--[A-Za-z]", word) or name in names:
            continue
        near = difflib.get_close_matches(name, [*names, *known], n=1, cutoff=0.5)
        section = [n for n in names if n.startswith(f"{name}.")]
        hint = f"did you mean {near[0]}? " if near else ""
        if section:
            hint = f"it is a section, for example {section[0]}; "
        raise InputError(f"{name}: unknown option; {hint}--help-config lists all config values")


def _underscored(word: str) -> str:
    """Accept ``--batch-size`` for ``--batch_size``; values stay as they are."""
    if not re.match(r"--[A-Za-z]", word):
        return word
    name, equals, value = word.partition("=")
    return "--" + name[2:].replace("-", "_") + equals + value


def _tyro_message(text: str) -> str:
    """The sentence inside the box that tyro prints."""
    lines = [re.sub(r"[^\x20-\x7e]", " ", line).strip(" |") for line in text.splitlines()]
    lines = [line for line in lines if line and not set(line) <= {"-"}]
    body = [line for line in lines[1:] if not line.startswith("For full helptext")]
    for index, line in enumerate(body):
        if line.startswith("Argument helptext"):
            body = body[:index]
            break
    text = re.sub(r"^Error parsing ", "", " ".join(body or lines)).rstrip(".")
    section, _, said = text.partition(": ")
    if said.startswith(section):  # the config's own message names the field in full
        text = said
    return f"{text}; --help-config lists all config values"


def _print_config_help(prog: str, config: ParcConfig) -> None:
    """Print every config value with its documentation, then end the process with code 0."""
    tyro.cli(
        ParcConfig,
        prog=prog,
        default=config,
        args=["--help"],
        use_underscores=True,
        config=(tyro.conf.FlagConversionOff, tyro.conf.AvoidSubcommands),
    )
    sys.exit(0)
