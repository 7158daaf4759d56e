"""How the policies of the policy study start: MPC's demonstrations, or specialists put together."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from algorithms.ppo.networks import NetSpec
from algorithms.ppo.policy import MlpPolicy
from algorithms.ppo.sizes import EnvSizes
from benchmarks.tracker_study_parts import StudySetting, Training
from envs.sims.registry import backend_factory
from envs.tracking.env import VectorTrackingEnv
from parc_ray.character.character import Character
from parc_ray.correction.by_mpc import correct_by_mpc
from parc_ray.correction.config import CorrectionConfig, TeacherConfig
from parc_ray.correction.specialists import DistilConfig, distil
from parc_ray.correction.strategies import record_config, source_seed
from parc_ray.correction.teacher import Demonstration, clone, demonstrated
from parc_ray.data.storage import Storage
from parc_ray.data.store import Part, read_part, write_part
from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip

Start = tuple[MlpPolicy, float, dict[str, float]]
"""A policy, the CPU time of its making (s), and figures of it."""


def warm_setting(config: StudySetting, *, fresh_critic: bool) -> StudySetting:
    """Settings after a start: quiet, statistics kept, the critic first where it is new."""
    teacher = TeacherConfig()
    ppo = config.ppo.replace(
        normaliser="frozen",
        lr=teacher.ppo_lr,
        warm_std=teacher.ppo_std if fresh_critic else None,
        critic_only_iterations=teacher.critic_only_iterations if fresh_critic else 0,
    )
    return replace(config, ppo=ppo)


def by_teacher(
    folder: Path,
    character: Character,
    clips: Sequence[MotionClip],
    config: StudySetting,
    budget_s: float,
) -> Start:
    """Clone what MPC shows of every clip; what it showed is kept in ``folder``.

    Raises:
        InputError: MPC corrected no clip.
    """
    del budget_s  # MPC takes what it takes
    correction, seed = CorrectionConfig(), config.ppo.seed
    factory = backend_factory("mujoco_cpu", character, config.sim)
    storage = Storage.from_uri(folder)
    shown, spent = [], 0.0
    for clip in clips:
        done = folder / f"shown_{clip.clip_id}.json"
        if not done.exists():
            own = source_seed(seed, clip.clip_id)
            settings = record_config(correction, own)
            outcome = correct_by_mpc(
                character, factory, clip, correction, config.task, settings, own
            )
            record = {"cpu_s": outcome.cpu_s, "start_frame": outcome.start_frame, "part": None}
            if outcome.clip is not None:
                part = write_part(storage, f"shown_{clip.clip_id}.parquet", [outcome.clip])
                record["part"] = asdict(part)
            storage.write_bytes_atomic(done.name, json.dumps(record).encode())
            print(f"MPC {clip.clip_id}: {outcome.cpu_s:.0f} CPU-s", flush=True)
        record = json.loads(done.read_text())
        spent += record["cpu_s"]
        if record["part"] is not None:
            recording = read_part(storage, Part(**record["part"]))[0]
            shown.append(Demonstration(clip, recording, record["start_frame"]))
    if not shown:
        raise InputError("teacher: MPC corrected none of the clips; use other clips")
    began = time.process_time()
    teacher = TeacherConfig()
    pairs = demonstrated(character, factory, shown, config.task, teacher, seed)
    policy, figures = clone(pairs, spec_of(character, clips, config), teacher, seed)
    figures |= {"shown": float(len(shown)), "mpc_cpu_s": spent}
    return policy, spent + time.process_time() - began, figures


def by_specialists(
    folder: Path,
    character: Character,
    clips: Sequence[MotionClip],
    config: StudySetting,
    budget_s: float,
) -> Start:
    """Train a policy per clip, equal shares of ``budget_s`` each, and put them together."""
    specialists, spent, figures = [], 0.0, {}
    share = budget_s / len(clips)
    for clip in clips:
        training = Training(character, [clip], config, folder / f"specialist_{clip.clip_id}")
        try:
            saved = training.used_s
            while training.used_s < share:
                training.iterate()
                if training.used_s >= saved + 60.0:
                    training.save()
                    saved = training.used_s
            row = training.test()
            training.save()
            specialists.append(training.policy())
            spent += training.used_s
        finally:
            training.close()
        figures[f"completed/{clip.clip_id}"] = row["start_completed"]
        print(f"specialist {clip.clip_id}: {row['start_completed']:.2f}", flush=True)
    began = time.process_time()
    env = VectorTrackingEnv(
        character, clips, config.ppo.num_envs, config.task, config.sim, seed=config.ppo.seed
    )
    try:
        spec = spec_of(character, clips, config)
        policy, found = distil(env, specialists, spec, DistilConfig(), config.ppo.seed)
    finally:
        env.close()
    return policy, spent + time.process_time() - began, figures | found


def spec_of(character: Character, clips: Sequence[MotionClip], config: StudySetting) -> NetSpec:
    """Shape of the networks."""
    env = VectorTrackingEnv(character, clips[:1], 1, config.task, config.sim)
    try:
        sizes = EnvSizes.of(env)
    finally:
        env.close()
    return NetSpec.from_config(sizes.apply(config.ppo), sizes.obs_dim, sizes.action_dim)
