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
from parc_ray.faults import lost_worker
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
        """Start it.

        Args:
            function: runs one stage to its end, its own retries included.
            context: of the stage; its storage must be mounted on the node, as for every worker.
            stage: which one.
        """
        self._work = (function, context, stage)
        self._retries = int(context.config.resources.stage_retries)
        cluster.connect(context.config.resources)
        logger.info("[%s] runs in a process of its own", stage.label)
        self._reference = self._submit()

    def result(self) -> StageResult:
        """Wait for it; it begins again, from what it had finished, when its node is lost."""
        import ray

        while True:
            try:
                return ray.get(self._reference)
            except Exception as error:
                if self._retries == 0 or not lost_worker(error):
                    raise
                self._retries -= 1
                logger.warning("[%s] lost its process, trying again", self._work[2].label)
                self._reference = self._submit()

    def finished(self) -> bool:
        """Whether it has ended, well or not."""
        import ray

        return bool(ray.wait([self._reference], timeout=0)[0])

    def cancel(self) -> None:
        """End it; what it has finished stays on storage."""
        import ray

        if ray.is_initialized():
            ray.cancel(self._reference, force=True)

    def _submit(self) -> ray.ObjectRef:
        import ray

        _, context, stage = self._work
        config: ParcConfig = context.config
        options: dict[str, Any] = {"num_cpus": 0, "max_retries": 0}
        if stage.name == "train-tracker":
            options = {
                "num_cpus": config.tracker.cpus_per_actor,
                "num_gpus": config.tracker.gpus_per_learner,
                "resources": config.resources.places.tracker.custom(),
                "max_retries": 0,
            }
        return ray.remote(**options)(_hosted).remote(*self._work, os.getcwd())


def _hosted(
    function: StageFunction, context: StageContext, stage: PlannedStage, directory: str
) -> StageResult:
    """The task's body: the driver's directory where this node has it, and its log file."""
    import ray

    if os.path.isdir(directory):
        os.chdir(directory)  # paths in the config may be relative to it
    if context.run.is_local:
        setup_logging(file=context.run.local_path("run.log"))
    node = ray.get_runtime_context().get_node_id()
    logger.info("[%s] works on node %s", stage.label, node)
    return function(context, stage)
