"""``parc evaluate RUN``: the generators and trackers of a run under a protocol, as tables.

Writes CSV, Parquet, Markdown and LaTeX below ``RUN/evaluation``; with stage options instead of a
run directory it is the loop's own stage ``evaluate``.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from parc_ray import cluster
from parc_ray.config import ParcConfig
from parc_ray.console import setup_logging
from parc_ray.data.storage import Storage
from parc_ray.demands import gpu_demands
from parc_ray.errors import InputError
from parc_ray.evaluation.protocols import OWN, PROTOCOLS, Protocol, get_protocol
from parc_ray.evaluation.run_tests import (
    REFERENCE_TEST,
    TRACKER_TEST,
    TestPlan,
    run_generator_test,
    run_tracker_test,
)
from parc_ray.evaluation.write_results import IterationRows, write_results
from parc_ray.lock import RunLock
from parc_ray.plan import PlannedStage, Source, plan
from parc_ray.stages.base import Artifact, StageContext, StageResult, hash_path, read_result
from parc_ray.tools.base import OneLineParser
from parc_ray.tools.runs import open_run


def run(argv: list[str]) -> None:
    """``parc evaluate RUN_DIRECTORY [--protocol P] [--iteration K ...]``, or the stage.

    Raises:
        InputError: no run directory, an unknown protocol or iteration, no trained generator.
    """
    if is_stage(argv):
        from parc_ray.cli import stage_command

        stage_command("evaluate", argv)
        return
    options = arguments().parse_args(argv)
    storage, config = open_run(options.run)
    protocol = _protocol(options.protocol, config, options.starts, options.random_starts)
    config = _placed(config, options.address)
    tested = stages_to_test(storage, config, options.iteration)
    target = Storage.from_uri(options.out) if options.out else storage.join("evaluation")
    target = target.join(protocol.label)
    setup_logging()
    with RunLock(target):
        found, digest = measure(storage, config, tested, target, protocol, force=options.force)
        write_results(target, config.name, protocol, found, digest)
    print(target.read_bytes("tables.md").decode())
    print(f"{target}: tables.md, tables.tex, and CSV and Parquet of all rows")


def is_stage(argv: Sequence[str]) -> bool:
    """Whether the words are those of the loop's stage: options only, and none of this command's."""
    own = {name for a in arguments()._actions for name in a.option_strings} - {
        "--iteration",
        "--force",
    }
    given = {word.partition("=")[0] for word in argv}
    return bool(argv) and argv[0].startswith("-") and not given & own


def arguments() -> OneLineParser:
    """The command's options."""
    parser = OneLineParser(prog="parc evaluate", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("run", metavar="RUN_DIRECTORY", help="<storage>/<name>")
    names = ", ".join([*PROTOCOLS, OWN])
    add("--protocol", default="small", help=f"{names} (the run's own); default: small")
    add("--iteration", type=int, action="append", metavar="K", help="only this one; repeatable")
    add("--starts", type=int, metavar="N", help="noisy starts from frame 0 per motion")
    add(
        "--random-starts",
        type=int,
        metavar="N",
        help="random starts per motion of the tracker test; the paper's is 2048",
    )
    add("--out", metavar="DIR", help="directory of the results; default: RUN/evaluation")
    add("--address", help="Ray cluster, instead of the run's")
    add("--force", action="store_true", help="do tests again whose models or settings changed")
    return parser


def stages_to_test(
    storage: Storage, config: ParcConfig, wanted: Sequence[int] | None
) -> list[PlannedStage]:
    """The planned evaluations whose generator is trained, one per iteration.

    Raises:
        InputError: an iteration that the run does not have or has no generator of yet.
    """
    planned = [s for s in plan(config) if s.name == "evaluate"]
    known = [s.iteration for s in planned]
    for iteration in wanted or []:
        if iteration not in known:
            raise InputError(
                f"--iteration {iteration}: the run has {known or 'none'}; give one of them"
            )
    chosen = [s for s in planned if not wanted or s.iteration in wanted]
    ready = [s for s in chosen if _output(storage, config, s.inputs["generator"]) is not None]
    if not ready or (wanted and len(ready) < len(chosen)):
        missing = [s.iteration for s in chosen if s not in ready]
        raise InputError(
            f"{storage}: the generator of iteration {missing} is not trained yet; it is what is "
            "tested; run `parc run` with the same --name first"
        )
    return ready


def measure(
    storage: Storage,
    config: ParcConfig,
    tested: Sequence[PlannedStage],
    target: Storage,
    protocol: Protocol,
    *,
    force: bool = False,
    trackers: bool = True,
) -> tuple[list[IterationRows], str]:
    """Run the tests of some iterations, or find them done; rows, and the terrain set's digest.

    Args:
        storage: the run.
        config: its config.
        tested: what ``stages_to_test`` returned.
        target: directory of the protocol's results.
        protocol: the protocol.
        force: do again what was done with other models or settings.
        trackers: whether trackers are tested too.
    """
    plan_ = TestPlan(protocol=protocol, connect=lambda: _connect(config))
    initial = _initial(storage, config)
    found, digest = [], ""
    for stage in tested:
        context = StageContext(run=target, iteration=stage.iteration, config=config, force=force)
        generator = _required(storage, config, stage.inputs["generator"])
        made = run_generator_test(context, plan_, generator, initial)
        digest = target.read_json(f"{context.stage_path('generator-test')}/set.json")["digest"]
        tracker, reference = None, None
        source = stage.inputs.get("tracker") if trackers else None
        policy = _output(storage, config, source) if source is not None else None
        if policy is not None:
            best = _absolute(target, made, "motions")
            tracker = _rows(target, run_tracker_test(context, plan_, TRACKER_TEST, policy, best))
            if initial is not None:
                done = run_tracker_test(context, plan_, REFERENCE_TEST, policy, initial)
                reference = _rows(target, done)
        found.append(
            IterationRows(
                iteration=stage.iteration,
                generator=_rows(target, made),
                terrains=_rows(target, made, "terrains"),
                tracker=tracker,
                reference=reference,
            )
        )
    return found, digest


def _connect(config: ParcConfig) -> None:
    cluster.connect(config.resources)
    cluster.require_gpus(gpu_demands(config, ["evaluate"]))


def _protocol(
    name: str, config: ParcConfig, starts: int | None, random_starts: int | None
) -> Protocol:
    protocol = get_protocol(name, config)
    changes = {"tracker_starts": starts, "tracker_random_starts": random_starts}
    changes = {key: value for key, value in changes.items() if value is not None}
    for key, value in changes.items():
        if value < 1:
            option = key.removeprefix("tracker_").replace("_", "-")
            raise InputError(f"--{option}: {value} is out of range; allowed is 1 or more")
    return replace(protocol, evaluation=replace(protocol.evaluation, **changes))


def _placed(config: ParcConfig, address: str | None) -> ParcConfig:
    if address is None:
        return config
    return replace(config, resources=replace(config.resources, address=address))


def _initial(storage: Storage, config: ParcConfig) -> Artifact | None:
    """D0 of the run, or None before it is made."""
    return _output(storage, config, Source(iteration=0, stage="merge", output="dataset"))


def _output(storage: Storage, config: ParcConfig, source: Source) -> Artifact | None:
    """An output of a finished stage by absolute path, or None."""
    context = StageContext(run=storage, iteration=source.iteration, config=config)
    done = read_result(context, source.stage)
    if done is None or source.output not in done.outputs:
        return None
    return _absolute(storage, done, source.output)


def _required(storage: Storage, config: ParcConfig, source: Source) -> Artifact:
    found = _output(storage, config, source)
    if found is None or hash_path(storage, _relative(storage, found)) != found.sha256:
        raise InputError(
            f"{storage}: {source.output} of iteration {source.iteration} is missing or changed "
            "since it was made; restore it, or train it again"
        )
    return found


def _absolute(storage: Storage, done: StageResult, output: str) -> Artifact:
    artifact = done.outputs[output]
    return replace(artifact, path=str(storage.local_path(artifact.path)))


def _relative(storage: Storage, artifact: Artifact) -> str:
    return str(Path(artifact.path).relative_to(storage.root))


def _rows(target: Storage, done: StageResult, output: str = "rows") -> pd.DataFrame:
    return pd.read_parquet(io.BytesIO(target.read_bytes(done.outputs[output].path)))
