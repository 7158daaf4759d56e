"""The loop: a plain driver that runs the plan stage by stage and may be killed at any point.

All state is on storage. Started again with the same config, the driver finds the finished stages by
their markers and goes on with the first that is not (docs/design/ray.md, Driver).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from parc_ray import cluster
from parc_ray.config import ParcConfig, run_differences
from parc_ray.config_io import to_yaml
from parc_ray.console import format_metrics, format_seconds, setup_logging
from parc_ray.data.storage import Storage
from parc_ray.errors import InputError, find_input_error
from parc_ray.faults import damaged_sources, forget, lost_worker, makers, same_again
from parc_ray.hosting import Hosted, needs_host
from parc_ray.inputs import check_inputs, gather_inputs, run_storage, stage_label
from parc_ray.lock import RunLock
from parc_ray.plan import PlannedStage, plan
from parc_ray.stages.base import (
    StageBody,
    StageContext,
    StageOutputs,
    StageResult,
    StageRun,
    read_result,
    run_stage,
)
from parc_ray.stages.registry import StageSpec, get_stage

CONFIG_FILE = "config.yaml"
IDENTITY_FILE = "config.identity.json"
_RETRY_WAIT_S = 5.0

logger = logging.getLogger(__name__)


def run(config: ParcConfig, *, force: bool = False) -> dict[str, StageResult]:
    """Run or continue the whole loop.

    Args:
        config: the run; its directory is ``<storage>/<name>``.
        force: redo stages whose settings or inputs changed.

    Returns:
        Results by label (``it_01/generate``), in the order of the plan.

    Raises:
        InputError: wrong input, a run directory of another config, or a second driver on it.
    """
    return run_stages(config, plan(config), force=force)


def run_stages(
    config: ParcConfig, stages: Iterable[PlannedStage], *, force: bool = False
) -> dict[str, StageResult]:
    """Run some stages of the plan; those they read from must be done or among them.

    Args:
        config: the run.
        stages: in the order of the plan.
        force: redo stages whose settings or inputs changed.

    Raises:
        InputError: see ``run``; also when a stage that must come first is not finished.
    """
    storage = run_storage(config)
    start = time.monotonic()
    stages = list(stages)
    lock = RunLock(storage)
    lock.require_free()
    if not force:
        refuse_other_config(storage, config)
    check_inputs(storage, config, stages, force=force)
    with lock:
        claim(storage, config, force=force)
        if storage.is_local:
            setup_logging(file=storage.local_path("run.log"))
        results = _run_all(lock, storage, config, stages, force=force)
    logger.info("run %s finished in %s", storage, format_seconds(time.monotonic() - start))
    return results


def _run_all(
    lock: RunLock,
    storage: Storage,
    config: ParcConfig,
    stages: Sequence[PlannedStage],
    *,
    force: bool,
) -> dict[str, StageResult]:
    """Run stages in their order; with ``resources.overlap`` evaluations run beside what follows."""
    results: dict[str, StageResult | None] = {}
    beside: dict[str, Hosted] = {}
    try:
        for stage in stages:
            context = StageContext(
                run=storage, iteration=stage.iteration, config=config, force=force
            )
            lock.require_held()
            _collect(beside, results, [stage_label(s) for s in stage.inputs.values()])
            done = not force and read_result(context, stage.name) is not None
            if config.resources.overlap and stage.name == "evaluate" and not done:
                results[stage.label] = None  # keeps the plan's order
                beside[stage.label] = Hosted(_run_one, context, stage)
            elif not done and needs_host(config, stage):
                results[stage.label] = Hosted(_run_one, context, stage).result()
            else:
                results[stage.label] = _run_one(context, stage)
            _collect(beside, results, [k for k, hosted in beside.items() if hosted.finished()])
        _collect(beside, results, list(beside))
    finally:
        for hosted in beside.values():
            hosted.cancel()
    return {label: result for label, result in results.items() if result is not None}


def _collect(
    beside: dict[str, Hosted], results: dict[str, StageResult | None], labels: Sequence[str]
) -> None:
    """Wait for those of ``labels`` that run beside the driver."""
    for label in labels:
        if label in beside:
            results[label] = beside[label].result()
            del beside[label]


def claim(storage: Storage, config: ParcConfig, *, force: bool) -> None:
    """Write the config into a new run directory, or check that the present one continues it.

    Raises:
        InputError: the directory was made by another config and ``force`` is off.
    """
    if not force:
        refuse_other_config(storage, config)
    storage.write_bytes_atomic(CONFIG_FILE, to_yaml(config).encode())
    storage.write_json_atomic(IDENTITY_FILE, config.identity())


def refuse_other_config(storage: Storage, config: ParcConfig) -> None:
    """Check that ``config`` continues the run in ``storage``, if there is one.

    A directory in which no stage has begun (after a mistake in the first call, say) is new.

    Raises:
        InputError: the directory was made by another config.
    """
    begun = any(name.startswith("it_") for name in storage.list_dirs())
    if not begun or not storage.exists(IDENTITY_FILE):
        return
    changes = run_differences(storage.read_json(IDENTITY_FILE), config)
    if changes:
        shown = "; ".join(changes[:5])
        more = f" and {len(changes) - 5} more" if len(changes) > 5 else ""
        raise InputError(
            f"{storage}: this run directory was made by another config ({shown}{more}); "
            "use the same config, choose another --name, or redo what changed with --force"
        )


def _run_one(context: StageContext, stage: PlannedStage) -> StageResult:
    """Run one stage, again after lost workers or damaged inputs, and report it on the console."""
    spec = get_stage(stage.name)
    section = spec.section(context.config, stage.iteration)
    attempt, mended = 0, False
    while True:
        try:
            inputs = gather_inputs(context, stage)
            result = run_stage(context, stage.name, section, inputs, _with_ray(spec))
            break
        except Exception as error:
            if find_input_error(error) is not None and not mended and _mend(context, stage):
                mended = True
                continue
            if attempt == context.config.resources.stage_retries or not lost_worker(error):
                raise
            logger.warning("[%s] lost a worker, trying again: %s", stage.label, error)
            time.sleep(_RETRY_WAIT_S * (attempt + 1))
            attempt += 1
    if result.skipped:
        logger.info("[%s] already done", stage.label)
    elif result.metrics:
        logger.info("[%s] %s", stage.label, format_metrics(result.metrics))
    return result


def _mend(context: StageContext, stage: PlannedStage) -> bool:
    """Make inputs of ``stage`` again whose files no longer have their hash; whether there were any.

    Raises:
        InputError: what was made again differs from what later stages were made from.
    """
    damaged = damaged_sources(context, stage, parts=True)
    planned = {(s.iteration, s.name): s for s in plan(context.config)}
    for maker in makers(damaged, planned):
        home = replace(context, iteration=maker.iteration)
        done = read_result(home, maker.name)
        before = {k: a.sha256 for k, a in done.outputs.items()} if done is not None else {}
        paths = [p for s, p in damaged if (s.iteration, s.stage) == (maker.iteration, maker.name)]
        logger.warning("[%s] damaged, making it again: %s", maker.label, ", ".join(paths))
        forget(home, maker, paths)
        _run_one(home, maker)
        same_again(home, maker, before)
    return bool(damaged)


def _with_ray(spec: StageSpec) -> StageBody:
    """The stage's body, preceded by a connection to Ray where it needs one.

    Finished stages never get here, so that a driver with nothing to do never starts Ray.
    """

    def body(stage_run: StageRun) -> StageOutputs:
        if spec.needs_ray:
            cluster.connect(stage_run.ctx.config.resources)
        return spec.body(stage_run)

    return body
