"""``train-tracker``: PPO on the data set and on what was generated (on the variants in it_00)."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from ray.tune.registry import register_env

from algorithms.ppo.policy import MlpPolicy
from algorithms.ppo.train import train_tracker
from envs.tracking.creator import ENV_NAME, make_tracking_env
from envs.tracking.rollouts import EpisodeRunner
from parc_ray.character.character import Character, load_character
from parc_ray.config import ParcConfig
from parc_ray.motion.clip import MotionClip
from parc_ray.stages._clip_board import ClipBoard
from parc_ray.stages._curves import write_curve
from parc_ray.stages._datasets import read_input, require_clips
from parc_ray.stages._teacher import taught
from parc_ray.stages._trackers import make_factory, warn_of_cpu
from parc_ray.stages.base import StageOutputs, StageRun
from parc_ray.stages.registry import StageSpec

PROGRESS_EVERY = 20
_PROBES_PER_CLIP = 4


def training_clips(run: StageRun, character: Character) -> list[MotionClip]:
    """The clips that are tracked: D_{i-1} where there is one, then the new motions."""
    clips: list[MotionClip] = []
    for name in ("dataset", "motions"):
        if name in run.inputs:
            clips += read_input(run, name, character)
    config: ParcConfig = run.ctx.config
    shortest = config.d0.min_tracked_s
    return [clip for clip in clips if clip.duration_s >= shortest - 1e-6]


class PolicyProbe:
    """Scores a policy during training: survival and completion from frame 0."""

    def __init__(
        self,
        character: Character,
        clips: list[MotionClip],
        config: ParcConfig,
        seed: int,
        board: ClipBoard,
    ) -> None:
        """Load the clips into a simulator of its own; every test goes on the board."""
        factory = make_factory(character, config.sim, config.simulator)
        size = min(256, _PROBES_PER_CLIP * len(clips))
        self.runner = EpisodeRunner(character, clips, config.tracking, factory, size)
        self.seed, self.board = seed, board

    def __call__(self, policy: MlpPolicy) -> dict[str, float]:
        """Figures of a policy; ``score`` decides which policy is kept."""
        first = self.runner.run_from_start(policy, _PROBES_PER_CLIP, seed=self.seed)
        self.board.add(int(policy.notes.get("iteration", 0)), first)
        figures = first.summary()
        return {
            "completed_from_start": figures["completed"],
            "survived_from_start": figures["survived"],
            "body_error_relative_m": figures["body_local_m"],
            "score": figures["survived"] + figures["completed"],
        }


def body(run: StageRun) -> StageOutputs:
    """Train with resume; the best probed policy is handed on."""
    config: ParcConfig = run.ctx.config
    character = load_character(config.character)
    clips = training_clips(run, character)
    require_clips(clips, "training set of the tracker", "lower d0.min_tracked_s or add motions")
    with ExitStack() as held:
        return _train(run, character, clips, held)


def _train(
    run: StageRun, character: Character, clips: list[MotionClip], held: ExitStack
) -> StageOutputs:
    """Train on ``clips``; files that are only fetched live as long as ``held``."""
    config: ParcConfig = run.ctx.config
    warm = None
    if "warm_start" in run.inputs:
        storage, path = run.open_input("warm_start")
        warm = held.enter_context(storage.fetched(path))
    register_env(ENV_NAME, make_tracking_env)
    env_config = {
        "character": character,
        "clips": clips,
        "tracking": config.tracking,
        "sim": config.sim,
        "simulator": config.simulator,
    }
    tracker = config.tracker_for(run.ctx.iteration, run.seed % (1 << 30))
    lesson = None
    if warm is None and config.teaches(run.ctx.iteration):
        scratch = Path(held.enter_context(TemporaryDirectory(prefix="parc-teacher-")))
        lesson = taught(run, clips, character, tracker, env_config, scratch)
        warm, tracker = lesson.policy, lesson.config
    board = ClipBoard(run, clips)
    probe = PolicyProbe(character, clips, config, run.seed + 1, board)

    def progress(iteration: int, metrics: dict[str, float]) -> None:
        if iteration % PROGRESS_EVERY == 0:
            run.log.info("[%s] %s", run.ctx.stage_path(run.name), _line(iteration, metrics))

    if tracker.placement != "local":
        who = "runner" if tracker.placement == "split" else "learner"
        warn_of_cpu(run, getattr(tracker, f"gpus_per_{who}"), f"--tracker.gpus_per_{who}")
    result = train_tracker(
        tracker,
        ENV_NAME,
        env_config,
        run.dir,
        warm_start=warm,
        on_iteration=progress,
        evaluate=probe if config.tracker.evaluate_every else None,
        custom_resources=config.resources.places.tracker.custom(),
    )
    probe.runner.close()
    board.draw()
    curve = write_curve(run, "metrics.jsonl", step="iteration")
    metrics = {
        "clips": float(len(clips)),
        "seconds_of_motion": sum(c.duration_s for c in clips),
        "samples": float(result.samples),
        "iterations": float(result.iterations),
        "train_wall_s": result.wall_s,
        **_last(curve),
    }
    if result.best_score is not None:
        metrics["best_score"] = result.best_score
    if lesson is not None:
        metrics |= lesson.metrics
    return StageOutputs(
        paths={"tracker": result.chosen.name},
        rows={"tracker": 1},
        metrics=metrics,
        worker_cpu_seconds=lesson.cpu_s if lesson is not None else 0.0,
    )


def _last(curve: pd.DataFrame) -> dict[str, float]:
    """The last iteration's headline figures, whichever sitting it was in."""
    wanted = ("episode_length", "failure_rate", "reward_per_step", "kl", "lr", "std")
    wanted += ("samples_per_s", "eval/survived_from_start", "eval/completed_from_start")
    return {name: float(curve[name].iloc[-1]) for name in wanted if name in curve}


def _line(iteration: int, metrics: dict[str, Any]) -> str:
    """One line of progress."""
    parts = [f"iteration {iteration}", f"{metrics.get('samples', 0) / 1e3:.0f}k steps"]
    shown = {
        "episode length": "episode_length",
        "failures per step": "failure_rate",
        "survived": "eval/survived_from_start",
        "steps/s": "samples_per_s",
    }
    parts += [f"{label} {metrics[key]:.3g}" for label, key in shown.items() if key in metrics]
    return ", ".join(parts)


def _section(config: ParcConfig, iteration: int) -> dict[str, Any]:
    section: dict[str, Any] = {
        "tracker": config.tracker_for(iteration, 0),
        "tracking": config.tracking,
        "sim": replace(config.sim, num_threads=1),
        "simulator": config.simulator,
        "min_tracked_s": config.d0.min_tracked_s,
        "character": config.character,
    }
    if config.teaches(iteration):
        section["correction"] = config.correction_for(iteration)
    return section


STAGE = StageSpec(section=_section, body=body)
