"""``parc view``: motions, terrains and comparisons in a browser."""

from __future__ import annotations

import argparse
import threading
from pathlib import Path

from parc_ray.character.character import load_character
from parc_ray.config import ParcConfig
from parc_ray.console import setup_logging
from parc_ray.errors import InputError
from parc_ray.inputs import SAMPLE
from parc_ray.plan import plan
from parc_ray.recipes import get_recipe, recipe_names
from parc_ray.stages.base import StageContext, read_result
from parc_ray.tools.base import OneLineParser
from parc_ray.tools.runs import is_run, open_run
from parc_ray.viewer.catalog import Catalog, open_catalog
from parc_ray.viewer.server import free_port, open_page, require_viser, ssh_line
from parc_ray.viewer.session import Session
from parc_ray.viewer.studio import Studio
from parc_ray.viewer.why import explain


def run(argv: list[str]) -> None:
    """``parc view SOURCE [--clip ID | --why ID [--text]] [--host H] [--port P] ...``.

    Serves until it is interrupted.

    Raises:
        InputError: nothing to be looked at there, an unknown clip (also of ``--why``), an address
            that is taken, or a viewer that is not installed.
    """
    options = arguments().parse_args(argv)
    setup_logging("WARNING")
    config = _config(options)
    character = load_character(options.character or config.character)
    catalog = open_catalog(options.source, character)
    session = Session(catalog=catalog)
    if options.why is not None:
        told = explain(catalog, options.why, config.tracking)
        if options.text:
            print("\n".join([told.clip_id, *told.lines]))
            return
    elif options.text:
        raise InputError("--text: belongs to --why; give --why CLIP too")
    first = options.clip or options.why
    if first is None:
        first = next(iter(catalog.entries), None)
    if first is not None and (options.why is None or options.clip is not None):
        session.select(first)
    require_viser()
    studio = Studio(
        character=character,
        config=config,
        generator_path=_model(options.generator, catalog, config, "generator"),
        tracker_path=_model(options.tracker, catalog, config, "tracker"),
    )
    port = free_port(options.host, options.port)
    page = open_page(session, options.host, port, studio, options.out, why=options.why)
    port = page.server.get_port()  # another one where it was taken meanwhile
    print(f"{options.source}: {len(catalog.entries)} clips, at http://localhost:{port}")
    print(f"from another machine: {ssh_line(port)}, then open the same address there")
    print("Ctrl-C ends", flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        print("closed")
    finally:
        page.close()


def arguments() -> OneLineParser:
    """The command's options."""
    parser = OneLineParser(
        prog="parc view",
        description="Look at the motions of a run (also while it works), a data set or motion "
        "files in a browser; compare versions, edit terrains, generate and track on them. "
        "Needs extra 'view'.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("source", metavar="RUN|DATASET|FILE", help="or 'sample', or a directory of motion files")
    add("--clip", metavar="ID", help="the clip to begin with (default: the first)")
    add("--why", metavar="ID", help="why this motion of the run was not corrected")
    add("--text", action="store_true", help="with --why: print it and stop")
    add("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    add("--port", type=int, default=8080, help="0 takes any free one (%(default)s)")
    add("--generator", metavar="FILE", help="to generate with (default: the run's newest)")
    add("--tracker", metavar="FILE", help="to track with (default: the run's newest)")
    add("--out", metavar="DIR", default="viewer", help="where edited clips go (%(default)s)")
    add("--recipe", choices=recipe_names(), help="settings (default: the run's, else quick)")
    add("--character", help="humanoid, or an .xml (default: the run's, else humanoid)")
    return parser


def _config(options: argparse.Namespace) -> ParcConfig:
    """The run's config, or a recipe's."""
    if options.recipe is None and options.source != SAMPLE and is_run(options.source):
        return open_run(options.source)[1]
    return get_recipe(options.recipe or "quick")


def _model(given: str | None, catalog: Catalog, config: ParcConfig, output: str) -> Path | None:
    """A file that was given, else the run's newest finished model, else None."""
    if given is not None:
        if not Path(given).is_file():
            raise InputError(f"--{output}: {given} does not exist; give the file of a {output}")
        return Path(given)
    if not catalog.is_run or catalog.storage is None or not catalog.storage.is_local:
        return None
    found = None
    for stage in plan(config):
        context = StageContext(run=catalog.storage, iteration=stage.iteration, config=config)
        done = read_result(context, stage.name)
        if done is not None and output in done.outputs:
            found = catalog.storage.local_path(done.outputs[output].path)
    return found
