"""What a run reads: the initial data and the outputs of earlier stages.

Everything that may be wrong with it is looked at before a run directory is made, a log line is
written or Ray is started, so that a mistake costs seconds and leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Sequence

from parc_ray.character.character import load_character
from parc_ray.config import ParcConfig
from parc_ray.data.sample_data import WHEEL_SHA256
from parc_ray.data.storage import Storage
from parc_ray.demands import require_driver_gpu
from parc_ray.errors import InputError
from parc_ray.plan import PlannedStage, Source
from parc_ray.stages.base import DONE, Artifact, StageContext, hash_path, read_result
from parc_ray.stages.registry import get_stage

SAMPLE = "sample"
_JOB_COPY = "/runtime_resources/working_dir_files/"  # of `ray job submit --working-dir`
_SCHEMES = ("file", "s3", "gs")
_DATA_REMEDY = "give a directory of motion files, a data set manifest or 'sample'"


def run_storage(config: ParcConfig) -> Storage:
    """The run directory, ``<storage>/<name>``; nothing is made.

    Raises:
        InputError: another kind of storage, an address with a password in it (it would be written
            into ``config.yaml``), a directory that goes with a job, or an object store that does
            not answer or lets us not in.
    """
    scheme, found, rest = config.storage.partition("://")
    if found and scheme not in _SCHEMES:
        raise InputError(
            f"--storage: {scheme}:// cannot hold a run; allowed are a directory that all nodes "
            f"mount (local disk, NFS), {', '.join(f'{s}://' for s in _SCHEMES[1:])}; give such a "
            f"place instead of {config.storage}"
        )
    who, named, _ = rest.partition("/")[0].partition("@")
    if found and ((named and who != "anonymous") or "secret_key" in rest):
        raise InputError(
            f"--storage: the {scheme}:// address has credentials in it, which would be written "
            "into the run; allowed are a bucket and a path; set credentials in the environment"
        )
    storage = Storage.from_uri(config.storage)
    if storage.is_local and _JOB_COPY in f"{storage.root}/":
        raise InputError(
            f"--storage {config.storage}: lies in the copy of the working directory that Ray made "
            "for this job and removes after it; allowed is a place that stays; give the path of a "
            "directory that all nodes mount, or set PARC_STORAGE on the cluster"
        )
    storage.require_reachable()
    return storage.join(config.name)


def check_inputs(
    run: Storage, config: ParcConfig, stages: Sequence[PlannedStage], *, force: bool
) -> None:
    """Refuse what these stages could not work with. Finished stages are not looked at again.

    Args:
        run: the run directory; nothing is written into it.
        config: the run.
        stages: in the order in which they shall run.
        force: whether finished stages may be run again.

    Raises:
        InputError: unknown character or simulator, one that cannot run, a GPU that this machine
            lacks, an earlier stage that is missing, or initial data that cannot be used.
    """
    coming: set[str] = set()
    unnamed = True
    for stage in stages:
        context = StageContext(run=run, iteration=stage.iteration, config=config)
        for name, source in stage.inputs.items():
            if stage_label(source) not in coming:
                _output(context, stage, name, source)
        if stage.reads_data:
            require_data(config.data.path)
        if force or read_result(context, stage.name) is None:
            if unnamed:
                _check_names(config)
                unnamed = False
            if stage.name == "train-tracker":
                require_driver_gpu(config)
            if stage.reads_data:
                get_stage(stage.name).check(config)
        coming.add(stage.label)


def gather_inputs(context: StageContext, stage: PlannedStage) -> dict[str, Artifact]:
    """Find the outputs that a stage reads.

    Raises:
        InputError: an earlier stage is not finished, made no output of that name, or what it made
            is no longer there as it was.
    """
    inputs = {"data": data_artifact(context.config.data.path)} if stage.reads_data else {}
    fresh = read_result(context, stage.name) is None
    for name, source in stage.inputs.items():
        inputs[name] = _output(context, stage, name, source)
        if fresh:
            _require_intact(context, stage_label(source), inputs[name])
    return inputs


def data_artifact(path: str) -> Artifact:
    """The initial data as a stage input, with the digest of its content.

    Raises:
        InputError: nothing is there, or an empty directory.
    """
    if path == SAMPLE:
        return Artifact(path=SAMPLE, sha256=WHEEL_SHA256)
    storage, files = require_data(path)
    where = storage.root if storage.is_local else path
    if storage.is_dir():
        return Artifact(path=where, sha256=hash_path(storage, ""), rows=len(files))
    parent, _, leaf = storage.root.rpartition("/")
    digest = Storage(filesystem=storage.filesystem, root=parent or "/").sha256(leaf)
    return Artifact(path=where, sha256=digest, rows=1)


def require_data(path: str) -> tuple[Storage, list[str]]:
    """Storage of the initial data and the files in it (none for a single file or the sample).

    Raises:
        InputError: nothing is there, or an empty directory.
    """
    storage = Storage.from_uri(path)
    if path == SAMPLE:
        return storage, []
    if not storage.exists():
        raise InputError(f"data.path: {path} does not exist; {_DATA_REMEDY}")
    if not storage.is_dir():
        return storage, []
    files = storage.list(recursive=True)
    if not files:
        raise InputError(f"data.path: {path} is empty; {_DATA_REMEDY}")
    return storage, files


def stage_label(source: Source) -> str:
    """Label of the stage that a source names: ``it_01/generate``."""
    return f"it_{source.iteration:02d}/{source.stage}"


def _output(context: StageContext, stage: PlannedStage, name: str, source: Source) -> Artifact:
    """The output of an earlier stage that is input ``name`` of ``stage``.

    Raises:
        InputError: that stage is not finished, or made no output of that name.
    """
    where = StageContext(run=context.run, iteration=source.iteration, config=context.config)
    done = read_result(where, source.stage)
    if done is None:
        raise InputError(
            f"{stage.label}: input {name!r} comes from {stage_label(source)} of {context.run}, "
            f"which is not finished; run `parc {source.stage} --iteration {source.iteration}` "
            "or `parc run` first"
        )
    if source.output not in done.outputs:
        raise InputError(
            f"{stage_label(source)}: has no output {source.output!r}; it has "
            f"{', '.join(done.outputs) or 'none'}; remove its {DONE} to make it again"
        )
    return done.outputs[source.output]


def _require_intact(context: StageContext, label: str, artifact: Artifact) -> None:
    """Refuse an output that was lost or changed after its stage had finished."""
    there = context.run.exists(artifact.path)
    if there and hash_path(context.run, artifact.path) == artifact.sha256:
        return
    raise InputError(
        f"{context.run}/{artifact.path}: {'changed' if there else 'lost'} since {label} wrote it; "
        f"it must stay as it was; restore it, or remove {context.run}/{label}/{DONE} to make it "
        "again"
    )


def _check_names(config: ParcConfig) -> None:
    """Refuse a character or a simulator that does not exist or cannot run here."""
    from envs.sims.registry import BACKENDS, missing
    from parc_ray.cluster import find_address
    from parc_ray.config_io import unknown_name

    load_character(config.character)
    name = config.simulator
    if name not in BACKENDS:
        raise InputError(unknown_name(f"--simulator {name}", name, BACKENDS, "simulator"))
    # On a cluster it is the workers that must be able to run it, not this machine.
    lack = missing(name) if find_address(config.resources) == "local" else None
    if lack is not None:
        raise InputError(f"--simulator {name}: {lack}")
