"""``parc record RUN --backend NAME``: a run's policy in another simulator, and what that costs it.

Prints completion and joint error per clip in both simulators and writes all figures as CSV below
``RUN/sim_to_sim``. With stage options instead of a run directory it is the loop's stage ``record``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from algorithms.ppo.policy import MlpPolicy
from envs.sims.registry import BACKENDS, missing
from parc_ray.character.character import load_character
from parc_ray.config import ParcConfig
from parc_ray.config_io import unknown_name
from parc_ray.console import setup_logging
from parc_ray.data.storage import Storage
from parc_ray.data.store import load_dataset
from parc_ray.errors import InputError
from parc_ray.evaluation.sim_to_sim import gap_rows, gap_table, measure_in
from parc_ray.motion.clip import MotionClip
from parc_ray.plan import PlannedStage, plan
from parc_ray.stages.base import Artifact
from parc_ray.tools.base import OneLineParser, format_table
from parc_ray.tools.runs import finished_output, open_run


def run(argv: list[str]) -> None:
    """``parc record RUN_DIRECTORY --backend NAME [--iteration K] ...``, or the stage.

    Raises:
        InputError: no run directory, no trained tracker, a simulator that is not there.
    """
    if is_stage(argv):
        from parc_ray.cli import stage_command

        stage_command("record", argv)
        return
    options = arguments().parse_args(argv)
    for word, count in (("--starts", options.starts), ("--clips", options.clips)):
        if count is not None and count < 1:
            raise InputError(f"{word}: {count} is out of range; allowed is 1 or more")
    storage, config = open_run(options.run)
    check_backend(options.backend, config)
    stage = trained_stage(storage, config, options.iteration)
    policy, clips = _load(storage, config, stage)
    setup_logging()
    character = load_character(config.character)
    sim = replace(config.sim, num_threads=config.resources.threads_per_worker)
    found = [
        measure_in(
            name,
            character,
            clips[: options.clips],
            policy,
            config.tracking,
            sim,
            starts=options.starts,
            seed=options.seed,
        )
        for name in (config.simulator, options.backend)
    ]
    table = gap_table(*found)
    target = storage.join(f"sim_to_sim/it_{stage.iteration:02d}")
    file = f"{config.simulator}_to_{options.backend}.csv"
    target.write_bytes_atomic(file, table.to_csv(index=False).encode())
    print(f"trained in {config.simulator}, recorded there (left) and in {options.backend}")
    print(format_table(*gap_rows(table)))
    print(f"{target.full_path(file)}: all figures")


def is_stage(argv: Sequence[str]) -> bool:
    """Whether the words are those of the loop's stage: options only, and no other simulator."""
    named = any(word.partition("=")[0] == "--backend" for word in argv)
    return not named and (not argv or argv[0].startswith("-")) and "--help" not in argv


def arguments() -> OneLineParser:
    """The command's options."""
    parser = OneLineParser(prog="parc record", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("run", metavar="RUN_DIRECTORY", help="<storage>/<name>")
    names = ", ".join(BACKENDS)
    add("--backend", required=True, metavar="NAME", help=f"the other simulator: {names}")
    add("--iteration", type=int, metavar="K", help="whose policy; default: the last one")
    add("--clips", type=int, metavar="N", help="only the first N of the clips it was trained on")
    add("--starts", type=int, default=16, metavar="N", help="noisy starts from frame 0 per clip")
    add("--seed", type=int, default=0, help="of the start noise")
    return parser


def check_backend(name: str, config: ParcConfig) -> None:
    """Refuse a simulator that is unknown, the run's own, or cannot run here.

    Raises:
        InputError: which of these it is.
    """
    if name not in BACKENDS:
        raise InputError(unknown_name(f"--backend {name}", name, BACKENDS, "simulator"))
    if name == config.simulator:
        others = ", ".join(other for other in BACKENDS if other != name)
        raise InputError(f"--backend {name}: the run was trained in it; choose one of {others}")
    for needed in (name, config.simulator):
        lacking = missing(needed)
        if lacking:
            raise InputError(f"simulator {needed}: {lacking}")


def trained_stage(storage: Storage, config: ParcConfig, iteration: int | None) -> PlannedStage:
    """The last finished training of a tracker, or that of ``iteration``.

    Raises:
        InputError: there is none.
    """
    planned = [s for s in plan(config) if s.name == "train-tracker"]
    chosen = [s for s in planned if iteration in (None, s.iteration)]
    ready = [s for s in chosen if _tracker(storage, config, s) is not None]
    if not ready:
        have = ", ".join(str(s.iteration) for s in planned) or "none"
        raise InputError(
            f"{storage}: no tracker is trained yet (the run trains one in iterations {have}); "
            "run `parc run` with the same --name first"
        )
    return ready[-1]


def _load(
    storage: Storage, config: ParcConfig, stage: PlannedStage
) -> tuple[MlpPolicy, list[MotionClip]]:
    """The policy and the motions that its training read last."""
    tracker, source = _tracker(storage, config, stage), stage.inputs["motions"]
    motions = finished_output(storage, config, source.iteration, source.stage, source.output)
    if tracker is None or motions is None:
        raise InputError(
            f"{storage}: the motions of {stage.label} are gone; restore them, or train it again"
        )
    with storage.fetched(tracker.path) as file:
        policy = MlpPolicy.load(file)
    return policy, load_dataset(storage.join(motions.path))[1]


def _tracker(storage: Storage, config: ParcConfig, stage: PlannedStage) -> Artifact | None:
    return finished_output(storage, config, stage.iteration, stage.name, "tracker")
