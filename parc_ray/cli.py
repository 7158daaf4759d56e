"""The command line: ``parc <command>``, also ``python -m parc_ray.cli``.

Exit codes: 0 done; 2 wrong arguments or input, with one line on stderr that names the file, field
or value and the remedy; 1 anything else.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

from parc_ray.data.patience import StorageError, full, is_full
from parc_ray.errors import InputError, find_cause, find_input_error

if TYPE_CHECKING:
    from parc_ray.config import ParcConfig

Command = Callable[[list[str]], None]
_USAGE = """usage: parc COMMAND [options]

commands:
{commands}

`parc COMMAND --help` says more. Exit codes: 0 done, 2 wrong arguments or input, 1 anything else."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One subcommand."""

    help: str
    """One line for the overview."""
    run: Command
    """Called with the arguments after the command's name."""


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the console script; ends the process with the exit code."""
    sys.exit(guarded(lambda: dispatch(list(sys.argv[1:] if argv is None else argv))))


def guarded(work: Callable[[], None]) -> int:
    """Run ``work`` and turn what it raises into an exit code and at most one line.

    A batch system's TERM ends it like Ctrl-C, so that the run's lock is released.
    """
    before = None
    if threading.current_thread() is threading.main_thread():
        before = signal.signal(signal.SIGTERM, _interrupt)  # Ray, once started, has its own
    try:
        work()
    except KeyboardInterrupt:
        print("interrupted; the same command continues", file=sys.stderr)
        return 1
    except Exception as error:
        stopped = find_cause(error, StorageError) or _full_disk(error)
        if stopped is not None:
            print(f"error: {stopped}", file=sys.stderr)
            return 1
        mendable = find_input_error(error)
        if mendable is None:
            raise
        print(f"error: {mendable}", file=sys.stderr)
        return 2
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _full_disk(error: BaseException) -> StorageError | None:
    """Of files that libraries write, or that are appended to: a full disk among the causes."""
    found = find_cause(error, OSError)
    if not isinstance(found, OSError) or not is_full(found):
        return None
    return full(str(found.filename or "storage"), found)


def dispatch(argv: list[str]) -> None:
    """Run the command that ``argv`` names.

    Raises:
        InputError: no such command (the nearest is named), or what the command raises.
    """
    from parc_ray.config_io import unknown_name

    table = commands()
    if not argv or argv[0] in ("-h", "--help", "help"):
        width = max(len(name) for name in table)
        lines = [f"  {name:<{width}}  {entry.help}" for name, entry in table.items()]
        print(_USAGE.format(commands="\n".join(lines)))
        return
    if argv[0] in ("-V", "--version"):
        import parc_ray

        print(parc_ray.__version__)
        return
    if argv[0] not in table:
        raise InputError(unknown_name(argv[0], argv[0], table, "command"))
    table[argv[0]].run(argv[1:])


def commands() -> dict[str, Entry]:
    """All commands: the driver, every stage there is, and the tools."""
    from parc_ray.commands import TOOLS
    from parc_ray.stages.registry import stage_names

    table = {"run": Entry(help="run or continue the whole loop", run=run_command)}
    for name in stage_names():
        table[name] = Entry(
            help=f"run stage {name} of a run alone", run=lambda argv, n=name: stage_command(n, argv)
        )
    table |= {name: Entry(help=tool.help, run=tool.run) for name, tool in TOOLS.items()}
    return table


def run_command(argv: list[str], prog: str = "parc run") -> None:
    """``parc run [--recipe R] [--data D] [--storage S] [--name N] [--iterations K] [--a.b V]``."""
    from parc_ray.arguments import parse_run
    from parc_ray.console import setup_logging
    from parc_ray.loop import run

    config, options = parse_run(prog, argv)
    setup_logging()
    run(config, force=options.force)


def stage_command(name: str, argv: list[str]) -> None:
    """``parc <stage> --iteration K`` and the options of ``parc run``: one stage of the plan.

    Raises:
        InputError: the run has no such stage in that iteration.
    """
    if name == "generate" and any(word.split("=")[0] == "--from" for word in argv):
        from parc_ray.tools.generate_from import run as generate_from

        generate_from(argv)
        return
    from parc_ray.arguments import parse_run
    from parc_ray.console import setup_logging
    from parc_ray.loop import run_stages
    from parc_ray.plan import plan

    config, options = parse_run(f"parc {name}", argv, stage=True)
    planned = [s for s in plan(config) if s.name == name]
    chosen = [s for s in planned if options.iteration in (None, s.iteration)]
    if len(chosen) != 1:
        have = ", ".join(str(s.iteration) for s in planned) or "none"
        got = "not given" if options.iteration is None else str(options.iteration)
        raise InputError(
            f"--iteration: {got}; stage {name} of this run exists in iterations {have}; give one"
        )
    setup_logging()
    if options.dry_run:
        print(stage_preview(name, config))
        return
    run_stages(config, chosen, force=options.force)


def stage_preview(name: str, config: ParcConfig) -> str:
    """What stage ``name`` would do with this config.

    Raises:
        InputError: the stage has no preview.
    """
    from parc_ray.stages.registry import get_stage, stage_names

    preview = get_stage(name).preview
    if preview is None:
        able = [n for n in stage_names() if get_stage(n).preview is not None]
        raise InputError(
            f"--dry-run: stage {name} has none; allowed for {', '.join(able)}; drop the option"
        )
    return preview(config)


if __name__ == "__main__":
    main()
