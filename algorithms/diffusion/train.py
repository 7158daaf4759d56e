"""Training the generator: in this process, or on Ray Train workers with the same loop.

A training is known by its directory (and, on Ray, by its run name): started again after being cut
off it goes on from the last checkpoint, and once its budget is used up it does no further step.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from algorithms.diffusion.batch import WindowSource
from algorithms.diffusion.checkpoint import (
    GeneratorFile,
    load_generator,
    read_tensors,
    save_generator,
    write_atomically,
)
from algorithms.diffusion.compatibility import check_warm_start
from algorithms.diffusion.config import DiffusionConfig
from algorithms.diffusion.guard import FrozenGuard
from algorithms.diffusion.metrics_log import MetricsCallback, MetricsLog
from algorithms.diffusion.trainer import Trainer, private_randomness
from parc_ray.character.character import Character
from parc_ray.data.digests import digest_name, is_whole, newest_whole, write_digest
from parc_ray.data.mirror import Mirror
from parc_ray.data.patient_fs import patient
from parc_ray.data.scratch import scratch
from parc_ray.data.storage import Storage, StoredFile
from parc_ray.errors import InputError

log = logging.getLogger(__name__)

CHECKPOINT = "checkpoint.pt"
GENERATOR = "generator.pt"
_LOGS = ("metrics.jsonl", "tb")


class TrainingDivergedError(RuntimeError):
    """The loss is no longer finite, or samples no longer move; the last checkpoint is whole."""


_FROZEN = (
    "generator training: samples moved with less than {min_energy_ratio:g} of the data's energy in "
    "{frozen_reports} reports, the last at step {step}; the checkpoint is kept; raise "
    "train.learning_rate, or set train.min_energy_ratio to 0 to go on."
)


SourceLike = WindowSource | Callable[[], WindowSource]
"""Windows, or a function without arguments that loads them where the training runs."""


@dataclass(frozen=True)
class TrainResult:
    """Outcome of a training.

    Attributes:
        path: the generator file.
        metrics: the last row of metrics, and ``steps`` and ``seconds`` in total.
        cpu_s: CPU time of the first worker's process in this sitting; 0 for a local training.
    """

    path: Path
    metrics: dict[str, float] = field(default_factory=dict)
    cpu_s: float = 0.0


def run_loop(
    trainer: Trainer,
    metrics: MetricsLog | None,
    dump_dir: Path,
    on_report: Callable[[Trainer, dict[str, float]], None],
) -> dict[str, float]:
    """Train until the budget is used up; the loop of every placement.

    Args:
        trainer: fresh or restored.
        metrics: where rows go; None on all workers but the first.
        dump_dir: where the batch of a failed step goes.
        on_report: saves a checkpoint; called every ``report_every`` steps and at the end, by all
            workers together.

    Returns:
        The last row.

    Raises:
        TrainingDivergedError: if the loss or its gradient stop being finite, or the samples have
            stopped to move.
    """
    cfg = trainer.config.train
    means, guard, frozen = _Means(), FrozenGuard(cfg), False
    row = dict(metrics.last) if metrics is not None else {}
    reported = trainer.step if trainer.step > 0 else -1
    while not trainer.finished():
        try:
            means.add(trainer.train_step())
        except FloatingPointError:
            dump = trainer.dump_bad_step(dump_dir)
            raise TrainingDivergedError(
                f"generator training: the loss is not finite at step {trainer.step}; the last "
                f"checkpoint is kept and the batch is in {dump}; lower train.learning_rate."
            ) from None
        report = trainer.step % cfg.report_every == 0 or trainer.finished()
        if report or trainer.step % cfg.log_every == 0:
            row = {"step": float(trainer.step), "seconds": trainer.seconds(), **means.take()}
            if metrics is not None:
                frozen = report and _look(trainer, metrics, guard, row)
                metrics.write(row)
        if report:
            if metrics is not None:
                metrics.flush()  # what the report sends reaches as far as its checkpoint
            on_report(trainer, row)
            reported = trainer.step
            if trainer.agree(frozen):
                raise TrainingDivergedError(_FROZEN.format(step=trainer.step, **vars(cfg)))
    if reported != trainer.step:
        on_report(trainer, row)
    return row


def _look(trainer: Trainer, metrics: MetricsLog, guard: FrozenGuard, row: dict[str, float]) -> bool:
    """Probe the samples: figures into ``row``, a picture into the log; whether to give up."""
    figures, image = trainer.probe()
    row |= figures
    if image is not None:
        metrics.picture("samples", image, trainer.step)
    return guard.check(trainer.step, figures)


class _Means:
    """Means of scalars over the steps since the last row."""

    def __init__(self) -> None:
        self.sums: dict[str, torch.Tensor] = {}
        self.count = 0

    def add(self, values: dict[str, torch.Tensor]) -> None:
        for name, value in values.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value
        self.count += 1

    def take(self) -> dict[str, float]:
        means = {name: float(value) / self.count for name, value in self.sums.items()}
        self.sums, self.count = {}, 0
        return means


def train_local(
    source: SourceLike,
    character: Character,
    config: DiffusionConfig,
    out_dir: str | Path,
    *,
    warm_start: str | Path | None = None,
    callback: MetricsCallback | None = None,
    device: str = "cpu",
) -> TrainResult:
    """Train in this process.

    Args:
        source: windows, or a function that loads them.
        character: whose motions they are.
        config: generator configuration.
        out_dir: local directory for checkpoint, generator file and metrics; a training found there
            is continued.
        warm_start: generator file of the previous PARC iteration.
        callback: called with every row of metrics.
        device: of the network.

    Raises:
        InputError: for a warm start or checkpoint that does not fit.
        TrainingDivergedError: if the loss stops being finite.
    """
    out = Path(out_dir)
    checkpoint = out / CHECKPOINT
    with private_randomness(config.train.seed, config.train.torch_threads):
        trainer = Trainer(
            source() if callable(source) else source,
            character,
            config,
            warm_start=_read_warm_start(warm_start),
            device=torch.device(device),
        )
        if checkpoint.exists():
            trainer.load_state_dict(read_tensors(checkpoint, "checkpoint"))
            log.info("training continues at step %d", trainer.step)
        with MetricsLog(out, step=trainer.step, callback=callback) as metrics:
            row = run_loop(
                trainer, metrics, out, lambda t, _: write_atomically(t.state_dict(), checkpoint)
            )
    return _finish(trainer, out, row)


def _read_warm_start(path: str | Path | StoredFile | None) -> GeneratorFile | None:
    if isinstance(path, StoredFile):
        with path.storage.fetched(path.path) as file:
            return load_generator(file)
    return None if path is None else load_generator(Path(path))


def _finish(trainer: Trainer, out: Path, row: dict[str, float]) -> TrainResult:
    path = out / GENERATOR
    save_generator(trainer.generator_file(), path)
    metrics = {**row, "steps": float(trainer.step), "seconds": trainer.seconds()}
    return TrainResult(path=path, metrics=metrics)


def train_generator(
    bank: SourceLike,
    character: Character,
    config: DiffusionConfig,
    out_dir: str | Path | Storage,
    run_name: str,
    *,
    warm_start: str | Path | StoredFile | None = None,
    num_workers: int = 1,
    use_gpu: bool = False,
    resources: Mapping[str, float] | None = None,
    max_failures: int = 2,
) -> TrainResult:
    """Train on Ray Train workers; Ray must be running.

    Args:
        bank: windows (handed to the workers through the object store), or a function that loads
            them inside each worker, for data that only the workers can reach.
        character: whose motions they are.
        config: generator configuration; ``train.batch_size`` is shared out over the workers.
        out_dir: directory that all nodes see, or one on an object store; the run's checkpoints lie
            in ``out_dir/run_name``.
        run_name: name of the run; the same name continues a run that was cut off.
        warm_start: generator file of the previous PARC iteration, visible to all nodes.
        num_workers: processes, gloo on CPUs and nccl on GPUs.
        use_gpu: one GPU per worker.
        resources: Ray resources per worker; one CPU by default.
        max_failures: restarts of the worker group before giving up.

    Returns:
        The generator file and the last metrics. Where ``out_dir`` is on an object store only the
        name of the path counts; the file of that name lies there.

    Raises:
        InputError: for a warm start or configuration that does not fit.
        TrainingDivergedError: if the loss stops being finite.
        RuntimeError: if the workers fail too often.
    """
    import ray
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    out = Storage.from_uri(out_dir)
    out.makedirs()
    before = _read_warm_start(warm_start)
    if before is not None:
        check_warm_start(before, character, config)
    handed = {"loader": bank} if callable(bank) else {"bank": ray.put(bank)}
    per_worker = dict(resources) if resources else {"CPU": 1.0}
    trainer = TorchTrainer(
        _worker_loop,
        train_loop_config={
            **handed,
            "character": ray.put(character),
            "config": config.to_dict(),
            "out_dir": out,
            "warm_start": str(warm_start) if isinstance(warm_start, Path) else warm_start,
            "threads": max(1, int(per_worker.get("CPU", 1.0))),
        },
        scaling_config=ScalingConfig(
            num_workers=num_workers, use_gpu=use_gpu, resources_per_worker=per_worker
        ),
        run_config=RunConfig(
            name=run_name,
            storage_path=out.root,
            storage_filesystem=None if out.is_local else patient(out.filesystem),
            failure_config=FailureConfig(max_failures=max_failures),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    )
    outcome: dict[str, Any] = trainer.fit().return_value or {}
    if "input_error" in outcome:
        raise InputError(outcome["input_error"])
    if "diverged" in outcome:
        raise TrainingDivergedError(outcome["diverged"])
    return TrainResult(
        path=Path(out.full_path(GENERATOR)),
        metrics=outcome["metrics"],
        cpu_s=outcome.get("cpu_s", 0.0),
    )


def _worker_loop(setup: dict[str, Any]) -> dict[str, Any]:
    """What a Ray Train worker runs: errors that a restart cannot mend become its return value."""
    try:
        return {"metrics": _train_in_worker(setup), "cpu_s": time.process_time()}
    except InputError as error:
        return {"input_error": str(error)}
    except TrainingDivergedError as error:
        return {"diverged": str(error)}


def _train_in_worker(setup: dict[str, Any]) -> dict[str, float]:
    import ray
    import ray.train
    import ray.train.torch

    from algorithms.diffusion.config import config_from_dict

    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    config = config_from_dict(setup["config"])
    source: Any = setup["loader"]() if "loader" in setup else ray.get(setup["bank"])
    threads = config.train.torch_threads or setup["threads"]

    def wrap(net: torch.nn.Module) -> torch.nn.Module:
        return ray.train.torch.prepare_model(
            net, move_to_device=False, parallel_strategy_kwargs={"broadcast_buffers": False}
        )

    with (
        _workplace(setup["out_dir"]) as (out, mirror),
        private_randomness(config.train.seed, threads),
    ):
        trainer = Trainer(
            source,
            ray.get(setup["character"]),
            config,
            warm_start=_read_warm_start(setup["warm_start"]),
            device=ray.train.torch.get_device(),
            rank=rank,
            world=world,
            wrap=wrap if world > 1 else None,
        )
        _restore(trainer, ray.train.get_checkpoint())
        if rank != 0:
            return run_loop(trainer, None, out, lambda t, row: _report(t, row, None))
        if mirror is not None:
            mirror.pull("metrics.jsonl")
        with MetricsLog(out, step=trainer.step) as metrics:
            try:
                row = run_loop(trainer, metrics, out, lambda t, row: _report(t, row, mirror))
            except TrainingDivergedError as error:
                if mirror is None:
                    raise
                metrics.flush()
                mirror.push(*(p.name for p in out.iterdir()))
                moved = str(error).replace(str(out), str(mirror.remote))
                raise TrainingDivergedError(moved) from error
        result = _finish(trainer, out, row)
        if mirror is not None:
            mirror.push(*_LOGS, GENERATOR)
    return result.metrics


@contextmanager
def _workplace(out: Storage) -> Iterator[tuple[Path, Mirror | None]]:
    """The directory to work in: the training's own, or a local one and its copy on storage."""
    if out.is_local:
        yield out.local_path(), None
        return
    with scratch("generator") as directory:
        yield directory, Mirror(out, directory)


def _restore(trainer: Trainer, checkpoint: Any) -> None:
    if checkpoint is None:
        return
    with _whole_copy(checkpoint) as file:
        if file is None:
            log.warning("%s: no whole checkpoint is left; training starts again", checkpoint.path)
            return
        trainer.load_state_dict(read_tensors(file, "checkpoint"))
    log.info("training continues at step %d", trainer.step)


@contextmanager
def _whole_copy(checkpoint: Any) -> Iterator[Path | None]:
    """A local file of the newest whole checkpoint, ``checkpoint`` or one before it."""
    from pyarrow import fs

    if isinstance(checkpoint.filesystem, fs.LocalFileSystem):
        yield _whole_checkpoint(Path(checkpoint.path))
        return
    parent, _, newest = checkpoint.path.rstrip("/").rpartition("/")
    home = Storage(filesystem=checkpoint.filesystem, root=parent)
    names = [n for n in home.list_dirs() if n.startswith("checkpoint_") and n <= newest]
    with scratch("checkpoint") as directory:
        mirror = Mirror(home, directory)
        for name in sorted(names, reverse=True):
            (directory / name).mkdir()
            mirror.pull(f"{name}/{CHECKPOINT}", f"{name}/{digest_name(CHECKPOINT)}")
            file = directory / name / CHECKPOINT
            if is_whole(file, believe=False):
                yield file
                return
            log.warning("%s/%s: the checkpoint is damaged", home, name)
        yield None


def _whole_checkpoint(directory: Path) -> Path | None:
    """The checkpoint in ``directory``; where it is damaged, the newest whole one before it."""
    if is_whole(directory / CHECKPOINT):
        return directory / CHECKPOINT
    log.warning("%s: the checkpoint is damaged", directory)
    others = directory.parent.glob("checkpoint_*")  # named by their time
    back = newest_whole((p for p in others if p.name < directory.name), CHECKPOINT)
    return None if back is None else back / CHECKPOINT


def _report(trainer: Trainer, row: dict[str, float], mirror: Mirror | None) -> None:
    """Hand a checkpoint to Ray: all workers report, the first one brings the file."""
    import ray.train

    state = trainer.state_dict()
    if trainer.rank != 0:
        ray.train.report(dict(row))
        return
    with tempfile.TemporaryDirectory() as directory:
        write_atomically(state, Path(directory) / CHECKPOINT)
        write_digest(Path(directory) / CHECKPOINT)
        if mirror is not None:
            mirror.push(*_LOGS)  # its rows reach as far as the checkpoint, or farther
        ray.train.report(dict(row), checkpoint=ray.train.Checkpoint.from_directory(directory))
