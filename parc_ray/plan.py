"""Which stages a run consists of and how they feed each other.

Iteration 0 corrects the initial clips; every later iteration trains the generator, generates,
trains the tracker, records, merges and evaluates. The plan is a pure function of the config.
"""

from __future__ import annotations

from dataclasses import dataclass

from parc_ray.config import ParcConfig


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a stage input comes from: an output of an earlier stage."""

    iteration: int
    stage: str
    output: str


@dataclass(frozen=True, kw_only=True)
class PlannedStage:
    """One stage of a run."""

    iteration: int
    name: str
    inputs: dict[str, Source]
    reads_data: bool = False
    """Whether the initial data (``config.data``) is an input too, under the name ``data``."""

    @property
    def label(self) -> str:
        """For messages: ``it_01/generate``."""
        return f"it_{self.iteration:02d}/{self.name}"


def plan(config: ParcConfig) -> tuple[PlannedStage, ...]:
    """All stages of a run in the order in which they run.

    Output names that the stages agree on: augment ``dataset``; train-generator ``generator``;
    generate ``motions``; train-tracker ``tracker``; record ``recorded``; merge ``dataset``;
    evaluate ``metrics``; report ``report``. Datasets are manifests.
    """
    stages = _initial(config)
    last_tracker = _last(stages, "train-tracker", "tracker")
    last_generator: Source | None = None
    for iteration in range(1, len(config.iterations) + 1):
        added = _iteration(config, iteration, last_generator, last_tracker)
        last_generator = _last(added, "train-generator", "generator")
        last_tracker = _last(added, "train-tracker", "tracker") or last_tracker
        stages += added
    evaluations = {
        f"metrics_{s.iteration:02d}": Source(
            iteration=s.iteration, stage="evaluate", output="metrics"
        )
        for s in stages
        if s.name == "evaluate"
    }
    final = len(config.iterations)
    inputs = {**evaluations, "dataset": _dataset(final)}
    return (*stages, PlannedStage(iteration=final, name="report", inputs=inputs))


def _initial(config: ParcConfig) -> list[PlannedStage]:
    """Iteration 0: augment, correct as ``d0.correction`` says, merge into D0."""
    clips = Source(iteration=0, stage="augment", output="dataset")
    stages = [PlannedStage(iteration=0, name="augment", inputs={}, reads_data=True)]
    if config.d0.correction == "none":
        merge = PlannedStage(iteration=0, name="merge", inputs={"motions": clips})
        return [*stages, merge]
    record_inputs = {"motions": clips}
    if config.d0.correction != "mpc":
        stages.append(PlannedStage(iteration=0, name="train-tracker", inputs={"motions": clips}))
        record_inputs["tracker"] = Source(iteration=0, stage="train-tracker", output="tracker")
    recorded = Source(iteration=0, stage="record", output="recorded")
    stages.append(PlannedStage(iteration=0, name="record", inputs=record_inputs))
    merged = {"motions": recorded}
    if config.d0.keep_uncorrected:
        merged["uncorrected"] = clips
    stages.append(PlannedStage(iteration=0, name="merge", inputs=merged))
    return stages


def _iteration(
    config: ParcConfig, iteration: int, generator: Source | None, tracker: Source | None
) -> list[PlannedStage]:
    """One PARC iteration; trainings start from the previous models where there are some."""
    dataset = _dataset(iteration - 1)
    carry = config.carry
    warm_generator = (
        {"warm_start": generator} if generator and carry.generator == "continue" else {}
    )
    warm_tracker = {"warm_start": tracker} if tracker and carry.tracker == "continue" else {}
    new_generator = Source(iteration=iteration, stage="train-generator", output="generator")
    motions = Source(iteration=iteration, stage="generate", output="motions")
    new_tracker = Source(iteration=iteration, stage="train-tracker", output="tracker")
    recorded = Source(iteration=iteration, stage="record", output="recorded")
    evaluated = {"generator": new_generator, "motions": motions, "dataset": dataset}
    success = _success(config, iteration) if config.curriculum.by == "success" else {}

    def stage(name: str, inputs: dict[str, Source]) -> PlannedStage:
        return PlannedStage(iteration=iteration, name=name, inputs=inputs)

    stages = [
        stage("train-generator", {"dataset": dataset, **warm_generator}),
        stage("generate", {"generator": new_generator, "dataset": dataset, **success}),
    ]
    added = motions
    if config.row(iteration).correct:
        if config.correction.strategy != "mpc" and tracker and carry.tracker == "frozen":
            evaluated["tracker"] = new_tracker = tracker
        elif config.correction.strategy != "mpc":
            sources = {"dataset": dataset, "motions": motions, **warm_tracker}
            stages.append(stage("train-tracker", sources))
            evaluated["tracker"] = new_tracker
        policy = {"tracker": new_tracker} if "tracker" in evaluated else {}
        stages.append(stage("record", {"motions": motions, **policy}))
        evaluated["recorded"] = added = recorded
    stages.append(stage("merge", {"dataset": dataset, "motions": added}))
    stages.append(stage("evaluate", evaluated))
    return stages


def _success(config: ParcConfig, iteration: int) -> dict[str, Source]:
    """What the difficulty of ``iteration`` follows: motions made before, and what was kept."""
    found = {}
    for k in range(1, iteration):
        if config.row(k).correct:
            found[f"motions_{k:02d}"] = Source(iteration=k, stage="generate", output="motions")
            found[f"recorded_{k:02d}"] = Source(iteration=k, stage="record", output="recorded")
    return found


def _dataset(iteration: int) -> Source:
    """D_i, the data set after iteration ``iteration``."""
    return Source(iteration=iteration, stage="merge", output="dataset")


def _last(stages: list[PlannedStage], name: str, output: str) -> Source | None:
    found = [s for s in stages if s.name == name]
    return Source(iteration=found[-1].iteration, stage=name, output=output) if found else None
