"""The configuration of a whole run, nested by owner.

A recipe (``parc_ray.recipes``) returns one; the command line overrides single values by dotted
name; the resolved config is written into the run directory and hashed into every stage marker.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from algorithms.diffusion.config import DiffusionConfig
from algorithms.ppo.config import TrackerConfig
from envs.sims.base import SimConfig
from envs.tracking.config import TrackingConfig
from parc_ray.config_io import differences, to_plain
from parc_ray.correction.config import CorrectionConfig
from parc_ray.errors import InputError
from parc_ray.evaluation.limits import DriftConfig, NaturalnessConfig
from parc_ray.placement import PlaceConfig, PlacesConfig
from parc_ray.pool_config import ChainPools, PoolConfig
from parc_ray.synthesis.config import AugmentConfig, SynthesisConfig
from parc_ray.terrain.curriculum import CurriculumConfig
from parc_ray.terrain.generators import TerrainSpec

_PLACEMENT_KEYS = ("name", "storage", "resources")
"""Sections that say where a run computes and stores, not what it computes."""


def _is_address(text: str) -> bool:
    """Whether ``text`` can be the address of a Ray cluster."""
    if text in ("detect", "local", "auto"):
        return True
    host, _, port = text.rpartition(":")
    number = int(port) if port.isascii() and port.isdigit() else 0
    return bool(host) and not set(host) & set(" /\\") and 1 <= number <= 65535


def require(ok: bool, where: str, value: object, allowed: str) -> None:
    """Raise a one-line ``InputError`` naming field ``where`` unless ``ok``."""
    if not ok:
        raise InputError(f"{where}: {value!r} is out of range; allowed is {allowed}; change it")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The initial motion data."""

    path: str = "sample"
    """``sample`` (fetched and cached on first use), a directory of motion files of any supported
    format, or a data set manifest. Overridden by ``--data``."""
    min_frames: int = 16
    """Shortest clip that is trained on, frames at 30 fps: one window (15) and its successor."""
    cell_size: float = 0.4
    """Cell size of inferred terrains, m. PARC: 0.4."""
    unroll_s: float = 3.0
    """Looped motions are repeated to at least this length, s."""
    initial_share: float = 0.3
    """Least share of the initial clips (D0) in what the generator is trained on, however many
    later clips join. 0: no floor, as in PARC, where it shrinks with every iteration."""
    memory_mb: float = 2_000.0
    """Room for the frames that the generator is trained from, MB per worker. Windows start at four
    times per frame, at two or at the frames themselves, whichever fits. PARC: anywhere."""

    def __post_init__(self) -> None:
        """Check ranges."""
        require(bool(self.path), "data.path", self.path, "'sample', a directory or a manifest")
        require(self.min_frames >= 2, "data.min_frames", self.min_frames, "2 or more")
        ok = 0 <= self.initial_share < 1
        require(ok, "data.initial_share", self.initial_share, "0 to below 1")
        require(self.memory_mb >= 0, "data.memory_mb", self.memory_mb, "0 MB or more")


@dataclass(frozen=True, kw_only=True)
class TrackerBudget:
    """How long a tracker is trained; whichever limit is reached first ends it."""

    samples: int = 1_000_000
    """Simulated control steps over all environments."""
    wall_s: float | None = None
    """Wall time, s. None: no limit (the result is then independent of the machine's speed)."""

    def __post_init__(self) -> None:
        """Check ranges."""
        require(self.samples >= 1, "tracker budget samples", self.samples, "1 or more")
        ok = self.wall_s is None or self.wall_s > 0
        require(ok, "tracker budget wall_s", self.wall_s, "more than 0 s, or None")


@dataclass(frozen=True, kw_only=True)
class GeneratorBudget:
    """How long a generator is trained; whichever limit is reached first ends it."""

    steps: int = 20_000
    """Optimiser steps."""
    wall_s: float | None = None
    """Wall time, s. None: no limit."""

    def __post_init__(self) -> None:
        """Check ranges."""
        require(self.steps >= 1, "generator budget steps", self.steps, "1 or more")
        ok = self.wall_s is None or self.wall_s > 0
        require(ok, "generator budget wall_s", self.wall_s, "more than 0 s, or None")


@dataclass(frozen=True, kw_only=True)
class D0Config:
    """Iteration 0: the initial clips, varied in space and corrected, become D0."""

    correction: Literal["tracker", "mpc", "tracker_then_mpc", "mpc_teacher", "none"] = "tracker"
    """Who makes the augmented clips physical. PARC: tracker."""
    tracker: TrackerBudget = field(default_factory=TrackerBudget)
    """Training of the first tracker."""
    max_clips: int | None = None
    """Initial clips used at most, classes in turn, terrain first; None: all. PARC: all."""
    max_clip_s: float | None = None
    """Longer initial clips are cut to the piece with the greatest level change, s; None: whole."""
    min_tracked_s: float = 1.0
    """Shorter clips are no training material for the tracker, s."""
    keep_uncorrected: bool = False
    """Whether initial clips that nobody could correct join D0 as they are. PARC: no."""

    def __post_init__(self) -> None:
        """Check ranges."""
        ok = self.max_clips is None or self.max_clips >= 1
        require(ok, "d0.max_clips", self.max_clips, "1 or more, or None")
        ok = self.max_clip_s is None or self.max_clip_s >= 0.5
        require(ok, "d0.max_clip_s", self.max_clip_s, "0.5 s or more, or None")
        require(self.min_tracked_s >= 0.1, "d0.min_tracked_s", self.min_tracked_s, "0.1 s or more")


@dataclass(frozen=True, kw_only=True)
class IterationConfig:
    """One PARC iteration."""

    terrain: TerrainSpec = field(default_factory=TerrainSpec)
    """Terrains to generate on. PARC: 16 x 16 boxes in 1 and 2, slices of a 100 x 100 map after."""
    motions: int = 1000
    """Motions to keep (before mirroring). PARC: about 1000 in 1 and 2, 2000 in 3 and 4."""
    max_terrains: int | None = None
    """Terrains tried at most; None: ten per motion kept. PARC tries without end."""
    s: float = 0.65
    """Blend coefficient: weight of the prediction made without history. PARC: 0.65."""
    candidates: int = 64
    """Roll-outs per terrain, of which the best are kept. Paper: 64; published code: 128."""
    mirror: bool = True
    """Keep the mirror image of every generated motion too. PARC: true."""
    correct: bool = True
    """Physical correction of what was generated; false is the paper's ablation."""
    generator: GeneratorBudget = field(default_factory=GeneratorBudget)
    """Training of the generator in this iteration."""
    tracker: TrackerBudget = field(default_factory=TrackerBudget)
    """Training of the tracker in this iteration."""

    def __post_init__(self) -> None:
        """Check ranges."""
        require(self.motions >= 1, "iteration motions", self.motions, "1 or more")
        require(0 <= self.s <= 1, "iteration s", self.s, "0 to 1")
        require(self.candidates >= 1, "iteration candidates", self.candidates, "1 or more")
        ok = self.max_terrains is None or self.max_terrains >= 1
        require(ok, "iteration max_terrains", self.max_terrains, "1 or more, or None")


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """The fixed set of test terrains and what is measured on it (PARC, tables 1 to 3)."""

    terrain: TerrainSpec = field(default_factory=TerrainSpec)
    """Test terrains. PARC: 32 x 32 cells with 10 random walks."""
    terrains: int = 100
    """Number of test terrains. PARC: 100."""
    motions_per_terrain: int = 32
    """Motions generated on each, none filtered. PARC: 32."""
    s: float = 0.65
    """Blend coefficient. PARC: 0.65."""
    stride: int | None = None
    """DDIM stride, which decides the number of denoising steps; None: the generator's own."""
    max_duration_s: float = 10.0
    """Longest motion, s. PARC: 10 in the loop."""
    form: Literal["paper", "code"] = "paper"
    """Whose definition of %HJF and of off-grid penetration is reported first."""
    tracker_starts: int = 32
    """Episodes from frame 0 per clip, with reset noise and fresh seeds."""
    tracker_random_starts: int = 256
    """Episodes from random frames over all clips. PARC: 2048 per motion."""
    seed: int = 7001
    """Decides terrains, paths and noise; the same in every iteration and every run."""
    drift: DriftConfig = field(default_factory=DriftConfig)
    """Alarms of the drift monitor."""

    def __post_init__(self) -> None:
        """Check ranges."""
        require(self.terrains >= 0, "evaluation.terrains", self.terrains, "0 or more")
        for name in ("motions_per_terrain", "tracker_starts"):
            value = getattr(self, name)
            require(value >= 1, f"evaluation.{name}", value, "1 or more")
        require(0 <= self.s <= 1, "evaluation.s", self.s, "0 to 1")
        require(self.max_duration_s > 0, "evaluation.max_duration_s", self.max_duration_s, "> 0 s")
        ok = self.stride is None or self.stride >= 1
        require(ok, "evaluation.stride", self.stride, "1 or more, or None")


@dataclass(frozen=True, kw_only=True)
class CarryConfig:
    """What an iteration takes over from the one before."""

    generator: Literal["continue", "scratch"] = "continue"
    """Whether the generator's training starts from the last iteration's weights. PARC: continue."""
    tracker: Literal["continue", "scratch", "frozen"] = "continue"
    """The same for the tracker; ``frozen``: the first one serves all iterations. PARC:
    continue."""


@dataclass(frozen=True, kw_only=True)
class ResourcesConfig:
    """Where the work runs.

    Two things here touch results: ``generator_workers`` share out the batch and its noise, and
    other numbers of CPUs per worker or threads round sums differently.
    """

    address: str = "detect"
    """Ray cluster: ``detect`` (a running one, else local), ``local``, ``auto`` or ``host:port``."""
    local_cpus: int | None = None
    """Logical CPUs of a local Ray instance; None: the cores, at least four."""
    object_store_mb: int | None = None
    """Object store of a local Ray instance, MiB; None: Ray's own choice."""
    worker_logs: bool = False
    """Show what workers print on the driver's console."""
    generator_workers: int = 1
    """Ray Train workers of the generator."""
    cpus_per_worker: float = 1.0
    """Logical CPUs of each generator worker and of each actor; fractions are allowed."""
    gpus_per_worker: float = 0.0
    """GPUs of each generator worker and of each generating actor; fractions are allowed."""
    generate_actors: int = 2
    """Ray Data actors that roll motions out and select them; also those that augment and test."""
    generate_operators: Literal["auto", "apart", "together"] = "auto"
    """Whether planning, roll-out and optimisation have actors of their own, which overlap, or
    share them (``generate_actors`` then do everything). ``auto``: apart where every actor has a
    CPU and its GPUs. Results are the same."""
    plan_actors: int = 1
    """Ray Data actors that make terrains and paths, where operators are apart."""
    optimize_actors: int | None = None
    """Ray Data actors that optimise motions, where operators are apart; None: as many as
    ``generate_actors``."""
    rollout_gpus: float | None = None
    """GPUs of each actor that rolls out; None: ``gpus_per_worker``."""
    optimize_gpus: float | None = None
    """GPUs of each actor that optimises; 0: on the CPU; None: ``gpus_per_worker``."""
    queued_items: int = 2
    """Items that may wait before an operator; those before it then pause."""
    record_actors: int = 2
    """Ray Data actors that correct motions in simulation."""
    threads_per_worker: int = 1
    """Threads of PyTorch and of the simulator in each worker."""
    stage_retries: int = 2
    """How often a stage is run again after losing an actor or a node."""
    places: PlacesConfig = field(default_factory=PlacesConfig)
    """Nodes, CPUs, GPUs and growth by kind of stage, where they differ from the above."""
    tracker_host: Literal["auto", "driver", "cluster"] = "auto"
    """Where a tracker of placement ``local`` is trained: in the driver, or in a process on a node
    that has what ``tracker.gpus_per_learner`` and ``places.tracker`` ask for. ``auto``: in the
    driver unless they ask for what its machine lacks."""
    overlap: bool = False
    """Evaluate an iteration while the next one is at work, in a process of its own."""

    def __post_init__(self) -> None:
        """Check ranges."""
        words = "detect, local, auto or host:port"
        require(_is_address(self.address), "resources.address", self.address, words)
        ok = self.object_store_mb is None or self.object_store_mb >= 75  # Ray refuses less
        require(ok, "resources.object_store_mb", self.object_store_mb, "75 or more, or None")
        for name in ("generator_workers", "generate_actors", "record_actors", "threads_per_worker"):
            require(getattr(self, name) >= 1, f"resources.{name}", getattr(self, name), ">= 1")
        for name in ("cpus_per_worker", "gpus_per_worker", "stage_retries"):
            require(getattr(self, name) >= 0, f"resources.{name}", getattr(self, name), ">= 0")
        for name in ("plan_actors", "queued_items"):
            require(getattr(self, name) >= 1, f"resources.{name}", getattr(self, name), ">= 1")
        ok = self.optimize_actors is None or self.optimize_actors >= 1
        require(ok, "resources.optimize_actors", self.optimize_actors, "1 or more, or None")
        for name in ("rollout_gpus", "optimize_gpus"):
            value = getattr(self, name)
            ok = value is None or value >= 0
            require(ok, f"resources.{name}", value, "0 or more, or None")

    def generate_pools(self) -> ChainPools:
        """Pools of the stage ``generate``: of each operator, and of all together."""
        place = self.places.generate
        own = self.gpus_per_worker if place.gpus is None else place.gpus
        rollout = own if self.rollout_gpus is None else self.rollout_gpus
        optimize = own if self.optimize_gpus is None else self.optimize_gpus
        rolling = replace(self.pool(self.generate_actors, place=place), gpus=rollout)
        planning = replace(self.pool(self.plan_actors, place=place), gpus=0.0, most=None)
        count = self.optimize_actors or self.generate_actors
        return ChainPools(
            operators={
                "plan": planning,
                "roll-out": rolling,
                "optimise": replace(self.pool(count, place=place), gpus=optimize),
            },
            together=replace(rolling, gpus=max(rollout, optimize)),
            placement=self.generate_operators,
            queued=self.queued_items,
        )

    def pool(
        self, actors: int, *, gpus: bool = False, place: PlaceConfig | None = None
    ) -> PoolConfig:
        """A pool of ``actors`` with this section's share of the machine each.

        Args:
            actors: how many.
            gpus: whether they hold a network and get this section's share of the GPUs too.
            place: where they go and what each may use, where that differs.
        """
        place = place or PlaceConfig()
        share = self.gpus_per_worker if gpus else 0.0
        return PoolConfig(
            actors=actors,
            cpus=self.cpus_per_worker if place.cpus is None else place.cpus,
            gpus=share if place.gpus is None else place.gpus,
            threads=self.threads_per_worker,
            most=place.most,
            node=place.node,
        )

    def augmenting_pool(self) -> PoolConfig:
        """Actors that make variants of the initial clips."""
        return self.pool(self.generate_actors, place=self.places.augment)

    def recording_pool(self) -> PoolConfig:
        """Actors that correct motions in simulation."""
        return self.pool(self.record_actors, place=self.places.record)

    def testing_pool(self) -> PoolConfig:
        """Actors that test a generator."""
        return self.pool(self.generate_actors, gpus=True, place=self.places.evaluate)

    def tracker_testing_pool(self) -> PoolConfig:
        """Actors that test a tracker in simulation."""
        return self.pool(self.record_actors, place=self.places.evaluate)

    @property
    def device(self) -> str:
        """Where workers that hold a network put it."""
        return "cuda" if self.gpus_per_worker > 0 else "cpu"

    def per_worker(self) -> dict[str, float]:
        """Ray resources of one training worker."""
        pool = self.pool(1, gpus=True, place=self.places.generator)
        return {"CPU": pool.cpus, "GPU": pool.gpus, **pool.custom()}


@dataclass(frozen=True, kw_only=True)
class ParcConfig:
    """Everything that decides a run."""

    name: str = "parc"
    """Name of the run: its directory below ``storage``."""
    storage: str = field(default_factory=lambda: os.environ.get("PARC_STORAGE") or "runs")
    """Directory that holds runs: a path that all nodes mount (local disk, NFS), or a place in an
    object store that all nodes reach (``s3://bucket/runs``, ``gs://bucket/runs``); the environment
    variable PARC_STORAGE where it is set."""
    seed: int = 0
    """Decides every random draw of the run, together with iteration and stage."""
    character: str = "humanoid"
    """``humanoid`` (PARC's) or the path of an MJCF file with its YAML beside it."""
    data: DataConfig = field(default_factory=DataConfig)
    """Initial motion data."""
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    """Spatial variants of the initial data."""
    d0: D0Config = field(default_factory=D0Config)
    """Correction of the initial data."""
    iterations: tuple[IterationConfig, ...] = (IterationConfig(),)
    """One entry per PARC iteration. ``--iterations N`` cuts it, or repeats its last entry."""
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    """Terrain difficulty by iteration, or by the success of those before, on top of each entry's
    own."""
    generator: DiffusionConfig = field(default_factory=DiffusionConfig)
    """Motion generator; its training budget comes from the iteration."""
    synthesis: SynthesisConfig = field(default_factory=SynthesisConfig)
    """Paths, roll-outs, selection and kinematic optimisation."""
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    """The environment in which the tracker learns."""
    tracker: TrackerConfig = field(default_factory=TrackerConfig)
    """PPO; its training budget comes from the iteration."""
    correction: CorrectionConfig = field(default_factory=CorrectionConfig)
    """From kinematic to physical motions."""
    carry: CarryConfig = field(default_factory=CarryConfig)
    """What trainings start from."""
    naturalness: NaturalnessConfig = field(default_factory=NaturalnessConfig)
    """Filter of what joins the data set."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """Test set and metrics."""
    sim: SimConfig = field(default_factory=SimConfig)
    """The simulated physics."""
    simulator: str = "mujoco_cpu"
    """Which simulator runs it."""
    resources: ResourcesConfig = field(default_factory=ResourcesConfig)
    """Where it runs."""

    def __post_init__(self) -> None:
        """Check what spans sections."""
        bad = not self.name or self.name in (".", "..") or set(self.name) & set("/\\: ")
        require(not bad, "name", self.name, "a word without slashes, colons and spaces")
        require(bool(self.storage), "storage", self.storage, "a directory")
        require(self.seed >= 0, "seed", self.seed, "0 or more")

    def row(self, iteration: int) -> IterationConfig:
        """Settings of PARC iteration ``iteration``, counted from 1, at its scheduled difficulty."""
        row = self.iterations[iteration - 1]
        terrain = self.curriculum.scheduled(row.terrain, iteration)
        return row if terrain is row.terrain else replace(row, terrain=terrain)

    def with_iterations(self, count: int) -> ParcConfig:
        """The same run with ``count`` iterations: cut, or the last row repeated.

        Raises:
            InputError: ``count`` is negative, or positive where there is no row to repeat.
        """
        require(count >= 0, "--iterations", count, "0 or more")
        rows = self.iterations[:count]
        if len(rows) < count:
            require(bool(rows), "--iterations", count, "0, as the recipe has no row to repeat")
            rows += rows[-1:] * (count - len(rows))
        return replace(self, iterations=rows)

    def generator_for(self, iteration: int, seed: int) -> DiffusionConfig:
        """Generator settings of an iteration (from 1): its budget, its s, and a seed."""
        row = self.row(iteration)
        budget = {"steps": row.generator.steps, "max_seconds": row.generator.wall_s}
        return replace(
            self.generator,
            train=replace(self.generator.train, **budget, seed=seed),
            sampling=replace(self.generator.sampling, blend=row.s),
        )

    def tracker_for(self, iteration: int, seed: int) -> TrackerConfig:
        """Tracker settings of an iteration (from 0): its budget and a seed."""
        budget = self.row(iteration).tracker if iteration else self.d0.tracker
        return replace(self.tracker, samples=budget.samples, wall_s=budget.wall_s, seed=seed)

    def synthesis_for(self, iteration: int) -> SynthesisConfig:
        """Synthesis settings of an iteration (from 1): its candidates and mirroring."""
        row = self.row(iteration)
        rollout = replace(self.synthesis.rollout, candidates=row.candidates)
        return replace(self.synthesis, rollout=rollout, mirror=row.mirror)

    def correction_for(self, iteration: int) -> CorrectionConfig:
        """Correction settings of an iteration; in iteration 0 the strategy is ``d0.correction``.

        Raises:
            InputError: iteration 0 of a run whose ``d0.correction`` is none.
        """
        if iteration:
            return self.correction
        if self.d0.correction == "none":
            raise InputError(
                "d0.correction: 'none' leaves nothing to record in iteration 0; allowed are "
                "tracker, mpc, tracker_then_mpc and mpc_teacher; change it"
            )
        return replace(self.correction, strategy=self.d0.correction)

    def teaches(self, iteration: int) -> bool:
        """Whether MPC's trajectories start the policy where no earlier one does."""
        strategy = self.correction.strategy if iteration else self.d0.correction
        return strategy == "mpc_teacher"

    def identity(self) -> dict[str, Any]:
        """Plain data of all that decides results (no name, storage or resources)."""
        plain = to_plain(self)
        return {key: value for key, value in plain.items() if key not in _PLACEMENT_KEYS}


def run_differences(stored: dict[str, Any], config: ParcConfig) -> list[str]:
    """What keeps ``config`` from continuing the run whose ``identity`` is ``stored``.

    A run may be continued with more or fewer iterations as long as the common ones are equal.
    """
    present = config.identity()
    common = min(len(stored.get("iterations", [])), len(present["iterations"]))
    old = {**stored, "iterations": stored.get("iterations", [])[:common]}
    new = {**present, "iterations": present["iterations"][:common]}
    return differences(old, new)
