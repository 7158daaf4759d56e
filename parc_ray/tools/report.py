"""``parc report``: the page about a run, made again from what its stages left so far."""

from __future__ import annotations

from pathlib import Path

from parc_ray.console import setup_logging
from parc_ray.data.storage import Storage
from parc_ray.errors import InputError
from parc_ray.evaluation.summary import summarise
from parc_ray.stages.report import REPORT, build_report
from parc_ray.tools.base import OneLineParser
from parc_ray.tools.runs import open_run


def run(argv: list[str]) -> None:
    """``parc report RUN_DIRECTORY [--out FILE]``: write the report as far as the run has come.

    Raises:
        InputError: no run directory, or nothing in it is finished yet.
    """
    options = arguments().parse_args(argv)
    setup_logging("WARNING")
    storage, config = open_run(options.run)
    done = summarise(storage, config.name).stages
    if not done:
        raise InputError(
            f"{options.run}: no stage is finished yet; one at least is needed; "
            "run `parc run` with the same --name first"
        )
    page = build_report(storage, config).encode()
    if options.out is None:
        storage.write_bytes_atomic(REPORT, page)
        where = storage.full_path(REPORT)
    else:
        where = str(Path(options.out).absolute())
        folder = Storage.from_uri(Path(where).parent)
        folder.write_bytes_atomic(Path(where).name, page)
    print(f"{where}: {len(done)} finished stages, {len(page) / 1024:.0f} KiB")


def arguments() -> OneLineParser:
    """The command's options."""
    parser = OneLineParser(prog="parc report", description=__doc__, allow_abbrev=False)
    parser.add_argument("run", metavar="RUN_DIRECTORY", help="<storage>/<name>")
    parser.add_argument("--out", metavar="FILE", help=f"default: {REPORT} in the run directory")
    return parser
