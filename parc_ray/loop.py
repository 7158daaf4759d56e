"""The loop: a plain driver that runs the plan stage by stage and may be killed at any point.

All state is on storage. Started again with the same config, the driver finds the finished stages by
their markers and goes on with the first that is not (docs/design/ray.md, Driver).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence

from parc_ray.config import ParcConfig, run_differences
from parc_ray.config_io import to_yaml
from parc_ray.console import format_seconds
from parc_ray.data.storage import Storage
from parc_ray.dispatch import Dispatcher, finished
from parc_ray.errors import InputError
from parc_ray.inputs import check_inputs, run_storage, stage_label
from parc_ray.lock import RunLock
from parc_ray.plan import PlannedStage, plan
from parc_ray.run_log import run_log
from parc_ray.stages.base import StageContext, StageResult

CONFIG_FILE = "config.yaml"
IDENTITY_FILE = "config.identity.json"

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
        with run_log(storage):
            results = _run_all(lock, storage, config, stages, force=force)
            took = format_seconds(time.monotonic() - start)
            logger.info("run %s finished in %s", storage, took)
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

    def context_of(stage: PlannedStage) -> StageContext:
        return StageContext(run=storage, iteration=stage.iteration, config=config, force=force)

    coming = {stage.name for stage in stages if not finished(context_of(stage), stage)}
    dispatcher = Dispatcher(config, coming)
    try:
        for stage in stages:
            context = context_of(stage)
            lock.require_held()
            results |= dispatcher.collect([stage_label(s) for s in stage.inputs.values()])
            if (
                config.resources.overlap
                and stage.name == "evaluate"
                and not finished(context, stage)
            ):
                results[stage.label] = None  # keeps the plan's order
                dispatcher.begin(context, stage)
            else:
                results[stage.label] = dispatcher.run(context, stage)
            results |= dispatcher.collect(dispatcher.ended())
        results |= dispatcher.collect(dispatcher.begun())
    finally:
        dispatcher.cancel()
    return {label: result for label, result in results.items() if result is not None}


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
