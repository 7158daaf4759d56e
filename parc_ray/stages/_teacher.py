"""The first policy starts from MPC's trajectories (``correction.strategy: mpc_teacher``)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from algorithms.ppo.config import TrackerConfig
from algorithms.ppo.networks import NetSpec
from algorithms.ppo.sizes import EnvSizes
from envs.tracking.creator import ENV_NAME
from parc_ray.character.character import Character
from parc_ray.config import ParcConfig
from parc_ray.correction.config import TeacherConfig
from parc_ray.correction.teacher import Demonstration, clone, demonstrated
from parc_ray.motion.clip import MotionClip
from parc_ray.stages._trackers import warn_of_cpu
from parc_ray.stages.base import StageRun
from parc_ray.stages.pool import WorkItem, run_items
from parc_ray.stages.record import RECORD_GPUS, MpcWorker, outcomes_of, record_setup

FILE = "teacher.pt"


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """What PPO starts with.

    Attributes:
        policy: file of the cloned policy, None where MPC had nothing to show.
        config: the learner's settings, with those of the start.
        metrics: figures of demonstrations and cloning.
        cpu_s: CPU time of MPC's actors, s.
    """

    policy: Path | None
    config: TrackerConfig
    metrics: dict[str, float]
    cpu_s: float


def taught(
    run: StageRun,
    clips: Sequence[MotionClip],
    character: Character,
    tracker: TrackerConfig,
    env_config: dict[str, Any],
    scratch: Path,
) -> Lesson:
    """Let MPC follow the clips on the record stage's actors, and clone a policy from that.

    Demonstrations are work items, so a killed stage goes on with those that are missing.

    Args:
        run: the stage that trains the tracker; the environment is registered.
        clips: what is tracked.
        character: the character.
        tracker: the learner's settings.
        env_config: options of its environment.
        scratch: local directory for the policy's file; a copy of it goes to the stage's own.
    """
    config: ParcConfig = run.ctx.config
    teacher = config.correction.teacher
    setup = record_setup(run, config, character, list(clips))
    items = [
        WorkItem(id=f"teacher-{number:05d}", payload={"clip": clip.clip_id})
        for number, clip in enumerate(clips)
    ]
    pool = config.resources.recording_pool()
    warn_of_cpu(run, pool.gpus, RECORD_GPUS)
    label = f"{run.ctx.stage_path(run.name)} teacher"
    results = run_items(run.dir, items, MpcWorker, {"setup": setup}, pool, label)
    outcomes = outcomes_of(run, results)
    shown = [
        Demonstration(source=clip, recording=outcome.clip, start=outcome.start_frame)
        for clip, outcome in zip(clips, outcomes, strict=True)
        if outcome.clip is not None
    ]
    metrics = {
        "teacher/clips": float(len(clips)),
        "teacher/shown": float(len(shown)),
        "teacher/shown_s": sum(d.recording.duration_s for d in shown),
        "teacher/mpc_cpu_s": sum(o.cpu_s for o in outcomes),
    }
    cpu_s = sum(r.cpu_s for r in results)
    if not shown:
        run.log.warning("[%s] MPC corrected no clip; PPO starts from nothing", label)
        return Lesson(policy=None, config=tracker, metrics=metrics, cpu_s=cpu_s)
    path = scratch / FILE
    began = time.process_time()
    sizes = EnvSizes.probe(ENV_NAME, env_config)
    spec = NetSpec.from_config(sizes.apply(tracker), sizes.obs_dim, sizes.action_dim)
    pairs = demonstrated(character, setup.factory(), shown, config.tracking, teacher, run.seed)
    policy, figures = clone(pairs, spec, teacher, run.seed)
    policy.notes |= {"demonstrations": len(shown), **figures}
    policy.save(path)
    run.dir.write_bytes_atomic(FILE, path.read_bytes())
    metrics |= {f"teacher/{name}": value for name, value in figures.items()}
    metrics["teacher/clone_cpu_s"] = time.process_time() - began
    return Lesson(policy=path, config=started(tracker, teacher), metrics=metrics, cpu_s=cpu_s)


def started(tracker: TrackerConfig, teacher: TeacherConfig) -> TrackerConfig:
    """The learner's settings after cloning: quiet, and the critic first."""
    return tracker.replace(
        lr=teacher.ppo_lr,
        critic_only_iterations=teacher.critic_only_iterations,
        warm_std=teacher.ppo_std,
    )
