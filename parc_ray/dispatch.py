"""Stages go where they belong, the driver or a process of their own; what was lost is done again.

Only the driver tries again, and only the driver makes damaged inputs again: one at a time, and each
where its stage belongs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from parc_ray import cluster
from parc_ray.config import ParcConfig
from parc_ray.console import format_metrics
from parc_ray.demands import gpu_demands
from parc_ray.errors import find_input_error
from parc_ray.faults import damaged_sources, forget, lost_worker, makers, same_again
from parc_ray.hosting import Hosted, needs_host
from parc_ray.inputs import gather_inputs
from parc_ray.plan import PlannedStage, plan
from parc_ray.stages.base import (
    StageContext,
    StageOutputs,
    StageResult,
    StageRun,
    read_result,
    run_stage,
)
from parc_ray.stages.registry import get_stage

_RETRY_WAIT_S = 5.0

logger = logging.getLogger(__name__)


def finished(context: StageContext, stage: PlannedStage) -> bool:
    """Whether a stage needs no work, unless what it was made from changed."""
    return not context.force and read_result(context, stage.name) is not None


def work(
    context: StageContext, stage: PlannedStage, connect: Callable[[], None] = lambda: None
) -> StageResult:
    """Run one stage once, in this process.

    Args:
        context: of the stage.
        stage: which one.
        connect: connects to Ray; called where the stage needs it and is not finished, so that a
            driver with nothing to do never starts Ray.
    """
    spec = get_stage(stage.name)

    def body(stage_run: StageRun) -> StageOutputs:
        if spec.needs_ray:
            connect()
        return spec.body(stage_run)

    section = spec.section(context.config, stage.iteration)
    return run_stage(context, stage.name, section, gather_inputs(context, stage), body)


@dataclass(frozen=True)
class _Begun:
    """A stage that runs beside the driver."""

    hosted: Hosted
    context: StageContext
    stage: PlannedStage
    mendings: int
    """How often inputs had been made again when it began."""


class Dispatcher:
    """Runs the stages of one driver."""

    def __init__(self, config: ParcConfig, stages: Collection[str] = ()) -> None:
        """Of a run with this config; nothing is started.

        Args:
            config: the run's.
            stages: names of those that have to run; what they ask of GPUs is compared with what
                there is as soon as Ray is there.
        """
        self._config = config
        self._demands = gpu_demands(config, stages)
        self._beside: dict[str, _Begun] = {}
        self._mendings = 0

    def run(self, context: StageContext, stage: PlannedStage) -> StageResult:
        """Run a stage to its end where it belongs.

        Raises:
            InputError: its inputs are damaged and cannot be made again as they were.
        """
        apart = not finished(context, stage) and needs_host(context.config, stage)
        return self._finish(context, stage, self._host(context, stage) if apart else None)

    def begin(self, context: StageContext, stage: PlannedStage) -> None:
        """Start a stage in a process of its own."""
        hosted = self._host(context, stage)
        self._beside[stage.label] = _Begun(hosted, context, stage, self._mendings)

    def begun(self) -> list[str]:
        """Labels of what was begun and not collected."""
        return list(self._beside)

    def ended(self) -> list[str]:
        """Labels of those of them that need not be waited for."""
        return [label for label, begun in self._beside.items() if begun.hosted.finished()]

    def collect(self, labels: Iterable[str]) -> dict[str, StageResult]:
        """Wait for those of ``labels`` that were begun."""
        results = {}
        for label in labels:
            begun = self._beside.get(label)
            if begun is None:
                continue
            known = begun.mendings
            results[label] = self._finish(begun.context, begun.stage, begun.hosted, known)
            del self._beside[label]
        return results

    def cancel(self) -> None:
        """End what was begun; what it has finished stays on storage."""
        for begun in self._beside.values():
            begun.hosted.cancel()

    def _connect(self) -> None:
        cluster.connect(self._config.resources)
        cluster.require_gpus(self._demands)
        self._demands = []  # nodes that die later may come back

    def _host(self, context: StageContext, stage: PlannedStage) -> Hosted:
        self._connect()
        return Hosted(work, context, stage)

    def _finish(
        self,
        context: StageContext,
        stage: PlannedStage,
        hosted: Hosted | None,
        known: int | None = None,
    ) -> StageResult:
        """Wait for a stage, again after lost workers or damaged inputs, and report it.

        Args:
            context: of the stage.
            stage: which one.
            hosted: its process; None: it runs in this one.
            known: mendings when it began; None: now.
        """
        apart = hosted is not None
        known = self._mendings if known is None else known
        attempt, mended = 0, False
        while True:
            try:
                if apart and hosted is None:
                    hosted = self._host(context, stage)
                if hosted is not None:
                    result = hosted.result()
                else:
                    result = work(context, stage, self._connect)
                break
            except Exception as error:
                hosted = None
                if find_input_error(error) is not None and not mended:
                    # Beside the driver it may have read what the driver was making again.
                    mended = self._mend(context, stage) or self._mendings != known
                    if mended:
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

    def _mend(self, context: StageContext, stage: PlannedStage) -> bool:
        """Make inputs of ``stage`` again whose files lost their hash; whether there were any.

        Raises:
            InputError: what was made again differs from what later stages were made from.
        """
        damaged = damaged_sources(context, stage, parts=True)
        planned = {(s.iteration, s.name): s for s in plan(context.config)}
        for maker in makers(damaged, planned):
            for begun in self._beside.values():
                begun.hosted.wait()  # nobody reads or writes what is made again
            home = replace(context, iteration=maker.iteration)
            done = read_result(home, maker.name)
            before = {k: a.sha256 for k, a in done.outputs.items()} if done is not None else {}
            whose = (maker.iteration, maker.name)
            paths = [p for s, p in damaged if (s.iteration, s.stage) == whose]
            logger.warning("[%s] damaged, making it again: %s", maker.label, ", ".join(paths))
            forget(home, maker, paths)
            self._mendings += 1
            self.run(home, maker)
            same_again(home, maker, before)
        return bool(damaged)
