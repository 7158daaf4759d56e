"""What every stage shares: its directory, its marker, and the rule when it runs again.

A stage is a function of its config and its inputs. ``run_stage`` writes ``_STARTED.json`` before
the body and ``_DONE.json`` after it, the latter by temporary name and rename, so that a directory
either holds a finished stage or one that goes on from its own parts and checkpoints. Run again
with the same config and inputs a finished stage is a no-op.
"""

from __future__ import annotations

import hashlib
import logging
import math
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from parc_ray.config_io import config_hash, differences, to_plain
from parc_ray.data.storage import Storage
from parc_ray.errors import InputError
from parc_ray.scalars import ScalarWriter
from parc_ray.versions import versions

DONE = "_DONE.json"
STARTED = "_STARTED.json"
MARKER_SCHEMA = 1

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A file or directory that one stage hands to another."""

    path: str
    """Relative to the run directory; an absolute path or URI for what comes from outside."""
    sha256: str
    """Hex digest of the content (of names and contents, for a directory)."""
    rows: int = 0
    """Clips, parts or models inside; 0 where counting makes no sense."""


@dataclass(frozen=True, kw_only=True)
class StageOutputs:
    """What a stage body returns."""

    paths: Mapping[str, str]
    """Output name to path, relative to the stage directory; files or directories."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """Output name to number of rows."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Figures of this stage; a value that is not finite is stored as null."""
    worker_cpu_seconds: float = 0.0
    """CPU time spent in Ray workers, which the driver's own clock cannot see."""


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """A finished stage, as its marker tells it."""

    name: str
    iteration: int
    outputs: dict[str, Artifact]
    inputs: dict[str, Artifact]
    metrics: dict[str, float | None]
    config_hash: str
    seconds: float
    cpu_seconds: float
    skipped: bool = False
    """True when the marker was found and nothing was done."""


@dataclass(frozen=True, kw_only=True)
class StageContext:
    """Where and how a stage runs. The config is the whole run's; stages read their section."""

    run: Storage
    """The run directory, ``<storage>/<name>``."""
    iteration: int
    """0 for the correction of the initial data, then 1, 2, ..."""
    config: Any
    """The run's ``ParcConfig``."""
    force: bool = False
    """Redo a stage whose config or inputs changed, dropping what it had."""

    def stage_path(self, name: str) -> str:
        """Directory of stage ``name`` in this iteration, relative to the run directory."""
        return f"it_{self.iteration:02d}/{name}"

    def seed(self, name: str) -> int:
        """Seed in [0, 2^31) of stage ``name``: decided by run seed, iteration and name."""
        text = f"{self.config.seed}/{self.iteration}/{name}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


@dataclass(frozen=True, kw_only=True)
class StageRun:
    """What a stage body receives."""

    ctx: StageContext
    name: str
    dir: Storage
    """The stage's own directory; a body writes nowhere else."""
    inputs: Mapping[str, Artifact]
    section: Any
    """The part of the config that decides the result (what ``config_hash`` covers)."""
    seed: int
    resumed: bool
    """Whether an earlier attempt left its parts or checkpoints in ``dir``."""
    log: logging.Logger
    scalars: ScalarWriter

    def open_input(self, name: str) -> tuple[Storage, str]:
        """Storage and relative path of input ``name``."""
        path = self.inputs[name].path
        if "://" in path or path.startswith("/"):
            parent, _, leaf = path.rstrip("/").rpartition("/")
            return Storage.from_uri(parent or "/"), leaf
        return self.ctx.run, path


StageBody = Callable[[StageRun], StageOutputs]


def run_stage(
    ctx: StageContext,
    name: str,
    section: Any,
    inputs: Mapping[str, Artifact],
    body: StageBody,
) -> StageResult:
    """Run one stage, or find that it is done.

    Args:
        ctx: run directory, iteration, config, force flag.
        name: stage name; decides the directory.
        section: config values that decide the result (dataclasses, mappings, scalars).
        inputs: what the stage reads.
        body: the work; called with the stage's directory, where parts of a killed attempt remain.

    Raises:
        InputError: config or inputs differ from those of the marker and ``force`` is off, or an
            output that the marker lists has vanished.
    """
    directory = ctx.run.join(ctx.stage_path(name))
    identity = _identity(ctx, name, section, inputs)
    done = _admit(ctx, directory, identity)
    if done is not None:
        return done
    resumed = directory.exists(STARTED)
    directory.write_json_atomic(STARTED, identity)
    log = logging.getLogger(f"parc_ray.stages.{name}")
    log.info("[%s] %s", ctx.stage_path(name), "continuing" if resumed else "started")
    wall, cpu = time.monotonic(), _cpu_seconds()
    with ScalarWriter(ctx.run, f"logs/{ctx.stage_path(name)}") as scalars:
        run = StageRun(
            ctx=ctx,
            name=name,
            dir=directory,
            inputs=dict(inputs),
            section=section,
            seed=identity["seed"],
            resumed=resumed,
            log=log,
            scalars=scalars,
        )
        made = body(run)
        scalars.add_all({f"{name}/{key}": v for key, v in made.metrics.items()}, ctx.iteration)
    record = {
        **identity,
        "outputs": {key: asdict(a) for key, a in _hash_outputs(ctx, name, made).items()},
        "metrics": {key: _finite(value) for key, value in made.metrics.items()},
        "seconds": time.monotonic() - wall,
        "cpu_seconds": _cpu_seconds() - cpu + made.worker_cpu_seconds,
        "finished_unix_s": time.time(),
        "versions": versions(),
    }
    directory.write_json_atomic(DONE, record)
    log.info("[%s] done in %.1f s", ctx.stage_path(name), record["seconds"])
    return _result(record, skipped=False)


def read_result(ctx: StageContext, name: str) -> StageResult | None:
    """The finished stage ``name`` of this iteration, or None while it is not finished."""
    path = f"{ctx.stage_path(name)}/{DONE}"
    return _result(ctx.run.read_json(path), skipped=True) if ctx.run.exists(path) else None


def hash_path(storage: Storage, path: str) -> str:
    """SHA-256 of a file, or of the sorted names and digests of a directory's files.

    Raises:
        InputError: nothing is there.
    """
    if not storage.is_dir(path):
        return storage.sha256(path)
    digest = hashlib.sha256()
    for name in storage.list(path, recursive=True):
        relative = name[len(path.strip("/")) :].lstrip("/")
        digest.update(f"{relative}\0{storage.sha256(name)}\n".encode())
    return digest.hexdigest()


def _identity(
    ctx: StageContext, name: str, section: Any, inputs: Mapping[str, Artifact]
) -> dict[str, Any]:
    """Everything that decides what a stage makes: two equal identities give equal outputs."""
    return {
        "schema": MARKER_SCHEMA,
        "stage": name,
        "iteration": ctx.iteration,
        "seed": ctx.seed(name),
        "config_hash": config_hash(section),
        "config": to_plain(section),
        "inputs": {key: asdict(artifact) for key, artifact in sorted(inputs.items())},
    }


def _admit(
    ctx: StageContext, directory: Storage, identity: Mapping[str, Any]
) -> StageResult | None:
    """Return the result of a finished equal stage; clear or refuse a different one."""
    marker = next((m for m in (DONE, STARTED) if directory.exists(m)), None)
    if marker is None:
        return None
    stored = directory.read_json(marker)
    changes = _changes(stored, identity)
    where = f"{ctx.run}/{ctx.stage_path(identity['stage'])}"
    if changes and not ctx.force:
        more = f" and {len(changes) - 6} more" if len(changes) > 6 else ""
        raise InputError(
            f"{where}: made with other settings or inputs ({'; '.join(changes[:6])}{more}); "
            "go back to the old ones, choose another --name, or redo the stage with --force"
        )
    if changes:
        logger.warning("%s: dropped, its settings or inputs changed", where)
        directory.delete("")
        return None
    if marker == STARTED:
        return None
    result = _result(stored, skipped=True)
    for key, artifact in result.outputs.items():
        if not ctx.run.exists(artifact.path):
            raise InputError(
                f"{ctx.run}/{artifact.path}: output {key!r} of a finished stage is missing; "
                f"restore it, or remove {where}/{DONE} to make it again"
            )
    return result


def _changes(stored: Mapping[str, Any], identity: Mapping[str, Any]) -> list[str]:
    """Readable differences between a stored marker and the present identity."""
    changes = differences(
        {key: stored.get(key) for key in ("schema", "seed")},
        {key: identity[key] for key in ("schema", "seed")},
    )
    if stored.get("config_hash") != identity["config_hash"]:
        changes += differences(stored.get("config", {}), identity["config"]) or ["config hash"]
    old, new = stored.get("inputs", {}), identity["inputs"]
    for key in sorted({*old, *new}):
        if key not in new:
            changes.append(f"input {key} is no longer given")
        elif key not in old:
            changes.append(f"input {key} is new")
        elif old[key]["sha256"] != new[key]["sha256"]:
            changes.append(f"input {key} has other content ({new[key]['path']})")
    return changes


def _hash_outputs(ctx: StageContext, name: str, made: StageOutputs) -> dict[str, Artifact]:
    artifacts = {}
    for key, relative in made.paths.items():
        path = f"{ctx.stage_path(name)}/{relative}"
        artifacts[key] = Artifact(
            path=path, sha256=hash_path(ctx.run, path), rows=int(made.rows.get(key, 0))
        )
    return artifacts


def _result(record: Mapping[str, Any], *, skipped: bool) -> StageResult:
    return StageResult(
        name=record["stage"],
        iteration=record["iteration"],
        outputs={key: Artifact(**value) for key, value in record["outputs"].items()},
        inputs={key: Artifact(**value) for key, value in record["inputs"].items()},
        metrics=dict(record["metrics"]),
        config_hash=record["config_hash"],
        seconds=record["seconds"],
        cpu_seconds=record["cpu_seconds"],
        skipped=skipped,
    )


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _cpu_seconds() -> float:
    """CPU time of this process and of its finished children, in seconds."""
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    return total
