"""Stages that run in a process of their own, on whatever node has what they ask for.

Most stages hand their work to actors and run in the driver. Two do not: a tracker that learns in
one process may need a GPU that the driver's machine lacks, and an evaluation may go on while the
next iteration is at work. Both become one Ray task that runs the whole stage, markers included.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from parc_ray import cluster
from parc_ray.config import ParcConfig
from parc_ray.console import setup_logging
from parc_ray.plan import PlannedStage
from parc_ray.stages.base import StageContext, StageResult

if TYPE_CHECKING:
    import ray

logger = logging.getLogger(__name__)

StageFunction = Callable[[StageContext, PlannedStage], StageResult]


def needs_host(config: ParcConfig, stage: PlannedStage) -> bool:
    """Whether the driver should not run this stage itself."""
    resources, tracker = config.resources, config.tracker
    if stage.name != "train-tracker" or tracker.placement != "local":
        return False
    if resources.tracker_host != "auto":
        return resources.tracker_host == "cluster"
    if not resources.places.tracker.node and not tracker.gpus_per_learner:
        return False
    cluster.connect(resources)
    return not cluster.driver_has(
        {"GPU": tracker.gpus_per_learner, **resources.places.tracker.custom()}
    )


class Hosted:
    """A stage that runs in a Ray task; a tracker's has the tracker's resources."""

    def __init__(self, function: StageFunction, context: StageContext, stage: PlannedStage) -> None:
        """Start it; this process is connected to Ray.

        Args:
            function: runs the stage once.
            context: of the stage; the node must reach its storage, as for every worker.
            stage: which one.
        """
        logger.info("[%s] runs in a process of its own", stage.label)
        self._reference = _submit(function, context, stage)

    def result(self) -> StageResult:
        """Wait for it; whoever called for it also tries again when it was lost."""
        import ray

        return ray.get(self._reference)

    def wait(self) -> None:
        """Wait for its end, well or not."""
        import ray

        ray.wait([self._reference])

    def finished(self) -> bool:
        """Whether it has ended, well or not."""
        import ray

        return bool(ray.wait([self._reference], timeout=0)[0])

    def cancel(self) -> None:
        """End it; what it has finished stays on storage."""
        import ray

        if ray.is_initialized():
            ray.cancel(self._reference, force=True)


def _submit(function: StageFunction, context: StageContext, stage: PlannedStage) -> ray.ObjectRef:
    import ray

    config: ParcConfig = context.config
    options: dict[str, Any] = {"num_cpus": 0}
    if stage.name == "train-tracker":
        options = {
            "num_cpus": config.tracker.cpus_per_actor,
            "num_gpus": config.tracker.gpus_per_learner,
            "resources": config.resources.places.tracker.custom(),
        }
    task = ray.remote(**options, max_retries=0)(_hosted)
    return task.remote(function, context, stage, os.getcwd())


def _hosted(
    function: StageFunction, context: StageContext, stage: PlannedStage, directory: str
) -> StageResult:
    """The task's body: the driver's directory where this node has it, and its log file."""
    import ray

    if os.path.isdir(directory):
        os.chdir(directory)  # paths in the config may be relative to it
    # An object cannot be appended to: there the lines are on this node's console alone.
    setup_logging(file=context.run.local_path("run.log") if context.run.is_local else None)
    node = ray.get_runtime_context().get_node_id()
    logger.info("[%s] works on node %s", stage.label, node)
    return function(context, stage)
