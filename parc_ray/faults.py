"""What went wrong: a worker that died, or a file that is no longer as its stage left it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from parc_ray.data.manifest import FILE_NAME, Manifest
from parc_ray.data.storage import Storage
from parc_ray.errors import InputError, causes, find_input_error
from parc_ray.plan import PlannedStage, Source
from parc_ray.stages.base import DONE, StageContext, hash_path, read_result

_IN_STAGE = re.compile(r"it_(\d+)/([a-z-]+)/")
_LOST_SIMULATOR = re.compile(r"^parc_ray\.errors\.SimulatorLostError: ", re.MULTILINE)
_WORKER_ERRORS = {  # by name, of ray.exceptions mostly: finished runs never import Ray
    "ActorDiedError",
    "ActorUnavailableError",
    "LocalRayletDiedError",
    "NodeDiedError",
    "ObjectLostError",
    "OutOfMemoryError",
    "OwnerDiedError",
    "RayActorError",
    "SimulatorLostError",
    "WorkerCrashedError",
    "WorkerGroupError",
}


def lost_worker(error: BaseException) -> bool:
    """Whether an error means that an actor, worker, node or simulator died, not that work is wrong.

    Its causes count: what a worker raised comes wrapped, by Ray Data twice.
    """
    if find_input_error(error) is not None:  # an actor that refuses its input dies as well
        return False
    return any(
        kind.__name__ in _WORKER_ERRORS for at in causes(error) for kind in type(at).__mro__
    ) or any(_tells_of_lost_simulator(at) for at in causes(error))


def _tells_of_lost_simulator(error: BaseException) -> bool:
    """Whether it is Ray's and has the traceback of one: Ray Data keeps of a cause only that."""
    ray = type(error).__module__.partition(".")[0] == "ray"
    return ray and _LOST_SIMULATOR.search(str(error)) is not None


def damaged_sources(
    context: StageContext, stage: PlannedStage, *, parts: bool
) -> list[tuple[Source, str]]:
    """Which inputs of a stage are no longer as the stage that made them left them.

    Args:
        context: of the stage.
        stage: whose inputs are looked at.
        parts: also compare the hashes of a data set's parts, which takes as long as reading them.

    Returns:
        The source and the damaged path, relative to the run directory.
    """
    found = []
    for source in stage.inputs.values():
        where = StageContext(run=context.run, iteration=source.iteration, config=context.config)
        done = read_result(where, source.stage)
        artifact = done.outputs.get(source.output) if done is not None else None
        if artifact is None:
            continue
        path = artifact.path
        if not context.run.exists(path) or hash_path(context.run, path) != artifact.sha256:
            found.append((source, path))
        elif parts and path.endswith(FILE_NAME):
            found += _damaged_parts(context.run, path)
    return found


def _damaged_parts(run: Storage, manifest: str) -> list[tuple[Source, str]]:
    """Parts that stages of this run wrote and that changed or vanished."""
    damaged = []
    for part in Manifest.load(run, manifest).parts:
        owner = _IN_STAGE.match(part.path)
        if owner is None:
            continue
        if not run.exists(part.path) or run.sha256(part.path) != part.sha256:
            maker = Source(iteration=int(owner[1]), stage=owner[2], output="parts")
            damaged.append((maker, part.path))
    return damaged


def makers(
    damaged: Sequence[tuple[Source, str]], stages: Mapping[tuple[int, str], PlannedStage]
) -> list[PlannedStage]:
    """The stages that made damaged files, in the order given, each once."""
    keys = dict.fromkeys((source.iteration, source.stage) for source, _ in damaged)
    return [stages[key] for key in keys if key in stages]


def forget(context: StageContext, stage: PlannedStage, paths: Sequence[str]) -> None:
    """Let a finished stage run again: its marker and its damaged files go, all else stays."""
    home = context.run.join(context.stage_path(stage.name))
    for path in paths:
        context.run.delete(path)
    home.delete(DONE)


def same_again(context: StageContext, stage: PlannedStage, before: Mapping[str, str]) -> None:
    """Refuse outputs that came out unlike those that others were made from.

    Raises:
        InputError: an output has another hash than before.
    """
    done = read_result(context, stage.name)
    after = {k: a.sha256 for k, a in done.outputs.items()} if done is not None else {}
    changed = [k for k, digest in before.items() if after.get(k) not in (None, digest)]
    if changed:
        raise InputError(
            f"{context.run}/{stage.label}: made again after damage, {', '.join(changed)} came out "
            "unlike before (other versions, or a budget of time); what was made from the old one "
            "no longer fits; go on with --force, or restore the file"
        )
