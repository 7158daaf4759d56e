"""What the workers of a run ask of GPUs, so that nobody waits for one that cannot come."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from parc_ray.config import ParcConfig
from parc_ray.errors import InputError


@dataclass(frozen=True, kw_only=True)
class GpuDemand:
    """What the workers of one kind ask of GPUs."""

    setting: str
    """Values that decide it, for messages."""
    gpus: float
    """GPUs of one worker, or a share of one."""
    workers: int = 1
    """Workers that wait for each other, so that all of them must find a place at once."""
    count: str = ""
    """Value that says how many those are."""

    def places(self, offered: Iterable[float]) -> int:
        """How many of these workers nodes with ``offered`` GPUs each have room for."""
        if self.gpus <= 1.0:
            return sum(int(node) * int(1.0 / self.gpus + 1e-9) for node in offered)
        return sum(int(node / self.gpus + 1e-9) for node in offered)


def gpu_demands(config: ParcConfig, stages: Collection[str]) -> list[GpuDemand]:
    """What each kind of worker asks Ray for, where it asks for any GPU.

    The actors of pools work with however many of them found a place; those that train do not.

    Args:
        config: of the run.
        stages: names of the stages that are to run.
    """
    resources = config.resources
    testing = max(resources.testing_pool().gpus, resources.tracker_testing_pool().gpus)
    asked: dict[str, Sequence[GpuDemand]] = {
        "augment": [_pool("augment", resources.augmenting_pool().gpus)],
        "train-generator": [
            GpuDemand(
                setting=_network("generator"),
                gpus=resources.per_worker()["GPU"],
                workers=resources.generator_workers,
                count="resources.generator_workers",
            )
        ],
        "generate": [
            GpuDemand(setting=_network("generate"), gpus=resources.generate_pools().together.gpus)
        ],
        "train-tracker": _tracker(config),
        "record": [_pool("record", resources.recording_pool().gpus)],
        "evaluate": [GpuDemand(setting=_network("evaluate"), gpus=testing)],
    }
    wanted = (demand for name in asked if name in stages for demand in asked[name])
    return [demand for demand in wanted if demand.gpus > 0 and demand.workers > 0]


def require_driver_gpu(config: ParcConfig) -> None:
    """Refuse a tracker that shall learn in this process on a GPU that it lacks.

    Raises:
        InputError: no CUDA here.
    """
    import torch

    tracker = config.tracker
    here = tracker.placement == "local" and config.resources.tracker_host == "driver"
    here = here or (tracker.placement == "split" and not tracker.num_learners)
    if not here or not tracker.gpus_per_learner or torch.cuda.is_available():
        return
    raise InputError(
        f"tracker.gpus_per_learner: the tracker learns in this process and asks for "
        f"{tracker.gpus_per_learner:g} GPUs, but PyTorch finds none here; allowed is 0 (on the "
        "CPU), or resources.tracker_host auto (placement local) or tracker.num_learners 1 (split) "
        "to learn on another node; change one of them"
    )


def _network(place: str) -> str:
    """Settings of workers that hold a network: one of theirs, or everybody's."""
    return f"resources.gpus_per_worker or resources.places.{place}.gpus"


def _pool(place: str, gpus: float) -> GpuDemand:
    return GpuDemand(setting=f"resources.places.{place}.gpus", gpus=gpus)


def _tracker(config: ParcConfig) -> list[GpuDemand]:
    """Of the tracker's actors, or of its one process where that leaves the driver."""
    tracker = config.tracker
    learners = GpuDemand(
        setting="tracker.gpus_per_learner",
        gpus=tracker.gpus_per_learner,
        workers=tracker.num_learners,
        count="tracker.num_learners",
    )
    if tracker.placement == "colocated":
        return [learners]
    if tracker.placement == "split":
        runners = GpuDemand(
            setting="tracker.gpus_per_runner",
            gpus=tracker.gpus_per_runner,
            workers=tracker.num_runners,
            count="tracker.num_runners",
        )
        return [learners, runners]
    if config.resources.tracker_host == "driver":
        return []
    return [GpuDemand(setting="tracker.gpus_per_learner", gpus=tracker.gpus_per_learner)]
