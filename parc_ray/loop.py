"""The loop: a plain driver that runs the plan stage by stage and may be killed at any point.

All state is on storage. Started again with the same config, the driver finds the finished stages by
their markers and goes on with the first that is not (docs/design/ray.md, Driver).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from parc_ray import cluster
from parc_ray.config import ParcConfig, run_differences
from parc_ray.config_io import to_yaml
from parc_ray.console import format_metrics, format_seconds, setup_logging
from parc_ray.data.storage import Storage
from parc_ray.errors import InputError, find_input_error
from parc_ray.inputs import check_inputs, gather_inputs, run_storage
from parc_ray.lock import RunLock
from parc_ray.plan import PlannedStage, plan
from parc_ray.stages.base import (
    StageBody,
    StageContext,
    StageOutputs,
    StageResult,
    StageRun,
    run_stage,
)
from parc_ray.stages.registry import StageSpec, get_stage

CONFIG_FILE = "config.yaml"
IDENTITY_FILE = "config.identity.json"
_RETRY_WAIT_S = 5.0
_WORKER_ERRORS = {  # of ray.exceptions, by name: finished runs never import Ray
    "ActorDiedError",
    "ActorUnavailableError",
    "LocalRayletDiedError",
    "NodeDiedError",
    "ObjectLostError",
    "OwnerDiedError",
    "RayActorError",
    "WorkerCrashedError",
    "WorkerGroupError",
}

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
    results: dict[str, StageResult] = {}
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
        for stage in stages:
            context = StageContext(
                run=storage, iteration=stage.iteration, config=config, force=force
            )
            results[stage.label] = _run_one(context, stage)
    logger.info("run %s finished in %s", storage, format_seconds(time.monotonic() - start))
    return results


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
    """Run one stage with retries after lost workers, and report it on the console."""
    spec = get_stage(stage.name)
    inputs = gather_inputs(context, stage)
    section = spec.section(context.config, stage.iteration)
    attempt = 0
    while True:
        try:
            result = run_stage(context, stage.name, section, inputs, _with_ray(spec))
            break
        except Exception as error:
            if attempt == context.config.resources.stage_retries or not _lost_worker(error):
                raise
            logger.warning("[%s] lost a worker, trying again: %s", stage.label, error)
            time.sleep(_RETRY_WAIT_S * (attempt + 1))
            attempt += 1
    if result.skipped:
        logger.info("[%s] already done", stage.label)
    elif result.metrics:
        logger.info("[%s] %s", stage.label, format_metrics(result.metrics))
    return result


def _with_ray(spec: StageSpec) -> StageBody:
    """The stage's body, preceded by a connection to Ray where it needs one.

    Finished stages never get here, so that a driver with nothing to do never starts Ray.
    """

    def body(stage_run: StageRun) -> StageOutputs:
        if spec.needs_ray:
            cluster.connect(stage_run.ctx.config.resources)
        return spec.body(stage_run)

    return body


def _lost_worker(error: BaseException) -> bool:
    """Whether an error means that an actor, worker or node died, not that the work is wrong."""
    if find_input_error(error) is not None:  # an actor that refuses its input dies as well
        return False
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & _WORKER_ERRORS)
