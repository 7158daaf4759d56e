"""Commands of ``parc`` that are not stages of the loop. One entry in ``TOOLS`` adds one."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from parc_ray.tools.base import Tool


def _module(name: str) -> Callable[[list[str]], None]:
    """``run`` of ``parc_ray.tools.<name>``, imported when it is called."""

    def run(argv: list[str]) -> None:
        importlib.import_module(f"parc_ray.tools.{name}").run(argv)

    return run


TOOLS: dict[str, Tool] = {
    "demo": Tool(help="one long motion over a map, by way-points", run=_module("demo")),
    "distill": Tool(help="a generator becomes a few-step one", run=_module("distill")),
    "evaluate": Tool(
        help="generators and trackers of a run under a protocol, as tables", run=_module("evaluate")
    ),
    "info": Tool(help="versions, machine, progress of a run", run=_module("info")),
    "export": Tool(help="clips become files of other programs", run=_module("export")),
    "import": Tool(help="motion files become a data set", run=_module("import_data")),
    "import-model": Tool(
        help="published models become ours (unverified)", run=_module("import_model")
    ),
    "optimize": Tool(help="kinematic optimisation of a data set", run=_module("optimize")),
    "record": Tool(
        help="the loop's stage; or a run's policy in another simulator", run=_module("record")
    ),
    "render": Tool(help="films and film strips, without a display", run=_module("render")),
    "report": Tool(help="write report.html of a run as far as it is", run=_module("report")),
    "sweep": Tool(help="many runs that differ in some values, on Ray Tune", run=_module("sweep")),
    "terrain": Tool(help="a random terrain, or a map of real ground", run=_module("terrain")),
    "view": Tool(
        help="motions, comparisons and a terrain editor in a browser", run=_module("view")
    ),
}
