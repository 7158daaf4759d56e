"""How many trials may run at once without waiting for each other for ever.

A trial's stages ask Ray for CPUs and GPUs one stage at a time. Two trials that each hold half of
what both need would never end, so there are never more trials than the widest stage of each fits.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from parc_ray.config import ParcConfig
from parc_ray.errors import InputError
from parc_ray.pool_config import PoolConfig

ACTOR_CPUS = 0.1
"""Logical CPUs of the actor that watches a trial."""
_TASK_CPUS = 1.0
"""Room for Ray Data's own tasks beside a stage's actors."""


def widest_stage(config: ParcConfig, stages: Collection[str] | None = None) -> tuple[float, float]:
    """CPUs and GPUs that a trial of this config may hold at once.

    Args:
        config: of the trial.
        stages: names of the stages that it runs itself, beside the tests; None: all there are.
    """
    resources, tracker = config.resources, config.tracker
    workers, per_worker = resources.generator_workers, resources.per_worker()
    pools = resources.generate_pools()
    apart = [] if pools.placement == "together" else list(pools.operators.values())
    needs = {
        "tests": _widest([[resources.testing_pool()], [resources.tracker_testing_pool()]]),
        "augment": _widest([[resources.augmenting_pool()]]),
        "record": _widest([[resources.recording_pool()]]),
        "generate": _widest([apart, [pools.together]]),
        "train-generator": (workers * per_worker["CPU"], workers * per_worker["GPU"]),
        "train-tracker": (
            (tracker.num_runners + tracker.num_learners) * tracker.cpus_per_actor,
            tracker.num_learners * tracker.gpus_per_learner
            + tracker.num_runners * tracker.gpus_per_runner,
        ),
    }
    mine = [n for name, n in needs.items() if stages is None or name == "tests" or name in stages]
    return max(n[0] for n in mine) + _TASK_CPUS + ACTOR_CPUS, max(n[1] for n in mine)


def _widest(groups: Sequence[Sequence[PoolConfig]]) -> tuple[float, float]:
    """CPUs and GPUs of the group of pools that takes most of each, grown as far as they may."""

    def most(pool: PoolConfig) -> int:
        return max(pool.actors, pool.most or 0)

    return (
        max(sum(most(p) * p.cpus for p in pools) for pools in groups),
        max(sum(most(p) * p.gpus for p in pools) for pools in groups),
    )


def trials_at_once(
    needs: Sequence[tuple[float, float]], cpus: float, gpus: float, wanted: int | None
) -> int:
    """Number of trials that fit at once, at most ``wanted``.

    Args:
        needs: ``widest_stage`` of every trial.
        cpus: logical CPUs that Ray has.
        gpus: GPUs that Ray has.
        wanted: the sweep's own bound, or None.

    Raises:
        InputError: not even one trial fits, or fewer than are wanted.
    """
    cpu, gpu = max(n[0] for n in needs), max(n[1] for n in needs)
    fit = int(cpus / cpu + 1e-9)
    if gpu > 0:
        fit = min(fit, int(gpus / gpu + 1e-9))
    if fit < 1:
        raise InputError(
            f"resources: the widest stage of a trial takes {cpu:g} CPUs and {gpu:g} GPUs, Ray has "
            f"{cpus:g} and {gpus:g}; a trial must fit; lower resources.* or give Ray more"
        )
    if wanted is not None and not 1 <= wanted <= fit:
        raise InputError(
            f"concurrent: {wanted} trials of {cpu:g} CPUs and {gpu:g} GPUs do not fit into "
            f"{cpus:g} and {gpus:g}, they could wait for each other for ever; allowed is 1 to {fit}"
        )
    return min(fit, len(needs), wanted or fit)
