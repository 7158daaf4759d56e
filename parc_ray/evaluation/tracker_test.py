"""The tracker test: can the policy follow a motion from its first frame, and from anywhere.

One work item tests a chunk of motions in a simulator of its own. Every motion's seeds come from its
number, so that chunks may be done in any order, by any actor, after any kill.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from envs.sims.base import SimConfig
from envs.tracking.config import TrackingConfig
from envs.tracking.rollouts import STANDARD_NOISE, EpisodeRunner, Episodes
from envs.tracking.task import Noise
from parc_ray.character.character import Character
from parc_ray.evaluation.metrics import clip_metrics
from parc_ray.evaluation.support import contact_scores, effort_use
from parc_ray.evaluation.terrain_class import classify_clip
from parc_ray.motion.clip import MotionClip
from parc_ray.motion.frames import MotionFrames
from parc_ray.protocols import Policy
from parc_ray.stages._rollouts import mix
from parc_ray.stages._trackers import make_factory
from parc_ray.stages.pool import ItemOutput, WorkItem

CLIPS_PER_ITEM = 4
MAX_ENVS = 256
_RECORDED = ("tpl_in_grid", "tpl_per_frame", "hjf_frames_percent", "foot_slide_mps")


@dataclass
class TrackerTestWorker:
    """Tests a few motions."""

    __test__ = False
    clips: list[MotionClip]
    character: Character
    policy: Policy | None
    tracking: TrackingConfig
    sim: SimConfig
    simulator: str
    starts: int
    random_starts: int
    seed: int

    def __call__(self, item: WorkItem) -> ItemOutput:
        """Motions ``first`` to ``last`` (exclusive): one row each."""
        numbers = range(item.payload["first"], item.payload["last"])
        return ItemOutput(record={"rows": [self._clip(n) for n in numbers]})

    def _clip(self, number: int) -> dict[str, Any]:
        clip = self.clips[number]
        factory = make_factory(self.character, self.sim, self.simulator)
        size = max(1, min(MAX_ENVS, max(self.starts, self.random_starts)))
        runner = EpisodeRunner(self.character, [clip], self.tracking, factory, size)
        seed = mix(self.seed, number)
        zero = torch.zeros(1, dtype=torch.long)
        try:
            exact = runner.run(self.policy, zero, zero, Noise(), seed, keep=True)
            row = {
                "number": number,
                "clip": clip.clip_id,
                "class": classify_clip(clip),
                "seconds": clip.duration_s,
                **self._from_start(exact, clip),
            }
            if self.starts:
                noisy = runner.run_from_start(self.policy, self.starts, STANDARD_NOISE, seed)
                found = noisy.summary()
                row |= {
                    "noisy_starts": self.starts,
                    "noisy_completed": found["completed"],
                    "noisy_survived": found["survived"],
                }
            if self.random_starts:
                anywhere = runner.run_random(self.policy, self.random_starts, Noise(), seed)
                row |= self._from_anywhere(anywhere)
        finally:
            runner.close()
        return {k: _plain(v) for k, v in row.items()}

    def _from_start(self, episode: Episodes, clip: MotionClip) -> dict[str, float]:
        """The paper's success, and the simulated motion of that episode under the metrics."""
        found = episode.summary()
        steps = int(episode.steps[0])
        row = {
            "success": float(episode.completed[0]),
            "completed_fraction": found["survived"],
            "start_body_error_relative_m": found["body_local_m"],
            "start_body_error_global_m": found["body_global_m"],
        }
        if steps < 1 or episode.states is None or episode.targets is None:
            return row
        state = episode.states.index((slice(steps + 1), 0))
        force = state.contact_force.norm(dim=-1)
        touching = force > self.tracking.reward.contact_threshold_n
        labels = clip.frames.contacts[: steps + 1] > 0.5
        scores = contact_scores(labels[1:], touching[1:])
        row |= {
            "contact_precision": scores.precision,
            "contact_recall": scores.recall,
            "contact_f1": scores.f1,
        }
        gains = (self.character.kp, self.character.kd, self.character.effort)
        used = episode.states.index((slice(steps), 0))
        row |= effort_use(used.dof_pos, used.dof_vel, episode.targets[:steps, 0], gains)
        recorded = MotionClip(
            clip_id=clip.clip_id,
            frames=MotionFrames(
                state.root_pos, state.root_rot, state.dof_pos, touching.to(force.dtype)
            ),
            fps=clip.fps,
            terrain=clip.terrain,
        )
        figures = clip_metrics(recorded, self.character, "paper")
        return row | {name: figures[name] for name in _RECORDED}

    def _from_anywhere(self, episodes: Episodes) -> dict[str, float]:
        """The paper's joint error: the mean over episodes of each episode's mean."""
        found = episodes.summary()
        return {
            "random_starts": self.random_starts,
            "random_completed": found["completed"],
            "body_error_relative_m": found["body_local_m"],
            "body_error_global_m": found["body_global_m"],
            "root_error_m": found["root_pos_m"],
            "root_error_rad": found["root_rot_rad"],
            "joint_error_rad": found["joint_rad"],
        }


def tracker_items(count: int) -> list[WorkItem]:
    """Work items over the motions."""
    return [
        WorkItem(
            id=f"track-{first:05d}",
            payload={"first": first, "last": min(first + CLIPS_PER_ITEM, count)},
        )
        for first in range(0, count, CLIPS_PER_ITEM)
    ]


def _plain(value: Any) -> Any:
    """JSON has no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
