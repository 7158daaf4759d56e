"""What the workers of a run ask of GPUs, so that nobody waits for one that cannot come."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from parc_ray.config import ParcConfig
from parc_ray.errors import InputError


def gpu_demands(config: ParcConfig, stages: Collection[str]) -> dict[str, float]:
    """The most GPUs that one worker of each kind asks Ray for, where it asks for any.

    Args:
        config: of the run.
        stages: names of the stages that are to run.

    Returns:
        Settings that decide it, for messages, to GPUs.
    """
    resources = config.resources
    asked: Mapping[str, tuple[str, float]] = {
        "augment": ("resources.places.augment.gpus", resources.augmenting_pool().gpus),
        "train-generator": _shared("generator", resources.per_worker()["GPU"]),
        "generate": _shared("generate", resources.generate_pools().together.gpus),
        "train-tracker": _tracker(config),
        "record": ("resources.places.record.gpus", resources.recording_pool().gpus),
        "evaluate": _shared(
            "evaluate", max(resources.testing_pool().gpus, resources.tracker_testing_pool().gpus)
        ),
    }
    wanted = (asked[name] for name in asked if name in stages)
    return {setting: gpus for setting, gpus in wanted if gpus > 0}


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


def _shared(place: str, gpus: float) -> tuple[str, float]:
    """Of workers that hold a network: a setting of theirs, or everybody's."""
    return f"resources.gpus_per_worker or resources.places.{place}.gpus", gpus


def _tracker(config: ParcConfig) -> tuple[str, float]:
    """Of the tracker's actors, or of its one process where that leaves the driver."""
    tracker = config.tracker
    if tracker.placement == "split":
        learner = tracker.gpus_per_learner if tracker.num_learners else 0.0
        if tracker.gpus_per_runner > learner:
            return "tracker.gpus_per_runner", tracker.gpus_per_runner
        return "tracker.gpus_per_learner", learner
    in_driver = tracker.placement == "local" and config.resources.tracker_host == "driver"
    return "tracker.gpus_per_learner", 0.0 if in_driver else tracker.gpus_per_learner
