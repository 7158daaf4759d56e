"""The vectorised training environment: steps, ends and restarts episodes of the tracking task.

Implements `parc_ray.protocols.TrackingEnv`. Finished environments start anew in the same step; the
observations that ended them are returned sparsely. Two environments with equal arguments and equal
`state_dict` continue bit for bit alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from envs.sims.base import ContainedBackend, SimConfig
from envs.sims.registry import make_backend
from envs.tracking.assist import Assist
from envs.tracking.config import TrackingConfig
from envs.tracking.lookahead import Sight, make_lookahead
from envs.tracking.motion_bank import MotionBank
from envs.tracking.observations import Layout
from envs.tracking.sampling import Starts, StartSampler, class_balanced, with_initial_share
from envs.tracking.start_queue import PreparedStarts, StartQueue
from envs.tracking.task import REASONS, Noise, TrackingTask
from parc_ray.motion.clip import MotionClip
from parc_ray.protocols import StepResult

if TYPE_CHECKING:
    from parc_ray.character.character import Character

_MAX_CLIPS_LOGGED = 256
_PREPARED = 512
_EPISODE_STATE = ("clip", "start", "steps", "episode_return", "previous")


class VectorTrackingEnv:
    """N characters that track clips, each on its clip's terrain.

    Args:
        character: the character.
        clips: motions at the control rate.
        num_envs: number of environments N.
        config: task settings.
        sim: simulator settings.
        simulator: name of the simulator.
        seed: seed of starts and noise.
        terrain_margin_m: ground kept around each motion's path in the simulator, metres.
    """

    def __init__(
        self,
        character: Character,
        clips: Sequence[MotionClip],
        num_envs: int,
        config: TrackingConfig | None = None,
        sim: SimConfig | None = None,
        simulator: str = "mujoco_cpu",
        seed: int = 0,
        terrain_margin_m: float = 3.0,
    ) -> None:
        """Load clips and terrains; call `reset` before `step`."""
        self.config = config or TrackingConfig()
        sim = sim or SimConfig()
        self.num_envs = num_envs
        self.bank = MotionBank(character, clips, sim.control_hz)
        self.task = TrackingTask(character, self.bank, self.config)
        self.backend: ContainedBackend = make_backend(
            simulator, character, num_envs, self.bank.terrains(terrain_margin_m), sim
        )
        mass_kg = float(character.body_masses.sum())
        self.assist = Assist(self.config.assist, mass_kg, self.backend)
        self.taken = 0
        sampling = self.config.sampling
        weight = self.bank.weight
        if sampling.class_balance:
            weight = class_balanced(weight, self.bank.length, self.bank.class_names)
        initial = [clip.provenance.iteration == 0 for clip in self.bank.clips]
        weight = with_initial_share(weight, self.bank.length, initial, sampling.initial_share)
        self.sampler = StartSampler(sampling, self.bank.length, weight, sim.control_hz)
        self.noise = Noise(sampling.pos_noise, sampling.vel_noise, sampling.shift_m)
        self.rng = torch.Generator().manual_seed(seed)
        self.action_dim = character.skeleton.num_dofs
        self.obs_dim = self.layout.size
        self.max_steps = round(self.config.termination.episode_s * sim.control_hz)
        self.clip = torch.zeros(num_envs, dtype=torch.long)
        self.start = torch.zeros(num_envs)
        self.steps = torch.zeros(num_envs, dtype=torch.long)
        self.episode_return = torch.zeros(num_envs)
        self.previous = torch.zeros(num_envs, self.action_dim)
        size = min(max(num_envs // 4, 1), _PREPARED)
        self.ahead = make_lookahead(self.task, sampling.start_on_frames)
        self.queue = StartQueue(self.sampler, self._prepare, self._see, size)
        self.ahead.fill(self.clip, self._frame())

    @property
    def layout(self) -> Layout:
        """Blocks of the observation."""
        return self.task.builder.layout

    def reset(self) -> Tensor:
        """Start all environments anew; observations (N, O)."""
        with torch.no_grad():
            obs = torch.empty(self.num_envs, self.obs_dim)
            self._restart(torch.arange(self.num_envs), obs)
            return obs

    @torch.no_grad()
    def step(self, action: Tensor) -> StepResult:
        """Advance by one control step with normalised actions (N, A), on any device."""
        action = action.to(self.previous.device)
        target = self.task.targets(action, self.ahead.now)
        help_left = self.assist.strength(self.taken)
        if help_left > 0:
            self.assist.push(self.taken, self.backend.state(), self.ahead.now.next)
        self.backend.step(target)
        self.taken += 1
        self.steps += 1
        frame = self._frame()
        seen = self.task.observe(
            self.backend.state(), self.ahead.advance(self.clip, frame), self.clip, frame
        )
        obs = self.task.builder(seen)
        terms = self.task.reward_terms(seen, action, self.previous, target)
        reward = self.task.total_reward(terms)
        failures = self.task.failures(seen, self.backend.bad)
        reward = torch.where(failures[:, -1], torch.zeros_like(reward), reward)
        failed = failures.any(-1)
        at_end = seen.remaining_s <= 0
        truncated = ~failed & (at_end | (self.steps >= self.max_steps))
        self.episode_return += reward
        self.previous = action.clone()
        ids = (failed | truncated).nonzero()[:, 0]
        log = self._step_log(terms, reward)
        if self.config.assist.strength > 0:
            log["assist/strength"] = help_left
        final_obs = obs[ids]
        if len(ids):
            self._episode_log(log, ids, failures, at_end)
            self.queue.ended(self.clip[ids], self.start[ids], frame[ids].float(), failed[ids])
            self._restart(ids, obs)
        worthless = truncated & at_end & (self.config.termination.clip_end == "zero")
        return StepResult(
            obs=obs,
            reward=reward,
            terminated=failed | worthless,
            truncated=truncated & ~worthless,
            final_ids=ids,
            final_obs=final_obs,
            log=log,
        )

    def state_dict(self) -> dict[str, Any]:
        """Simulator, clips, times, sampler and random state."""
        return {
            "backend": self.backend.state_dict(),
            "sampler": self.sampler.state_dict(),
            "queue": self.queue.state_dict(),
            "rng": self.rng.get_state(),
            "taken": self.taken,
            **{name: getattr(self, name).clone() for name in _EPISODE_STATE},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict` of an environment with equal arguments."""
        self.backend.load_state_dict(state["backend"])
        self.sampler.load_state_dict(state["sampler"])
        self.queue.load_state_dict(state.get("queue", {}))
        self.rng.set_state(state["rng"])
        self.taken = int(state.get("taken", 0))  # states of before know no help
        for name in _EPISODE_STATE:
            getattr(self, name).copy_(state[name])
        self.ahead.fill(self.clip, self._frame())

    @torch.no_grad()
    def observe(self) -> Tensor:
        """Observations (N, O) of the present moment, without advancing anything."""
        state = self.backend.state()
        frame = self._frame()
        seen = self.task.observe(state, self.task.references(self.clip, frame), self.clip, frame)
        return self.task.builder(seen)

    def metrics(self) -> dict[str, float]:
        """Failure rates: mean, greatest, per class, and per clip where there are not too many."""
        fail, start = self.sampler.clip_fail, self.sampler.start_fail
        out = {
            "fail_rate/mean": float(fail.mean()),
            "fail_rate/max": float(fail.max()),
            "fail_rate_from_start/mean": float(start.mean()),
        }
        classes: dict[str, list[int]] = defaultdict(list)
        for index, name in enumerate(self.bank.class_names):
            classes[name or "unnamed"].append(index)
            if self.bank.num_clips <= _MAX_CLIPS_LOGGED:
                clip_id = self.bank.clips[index].clip_id
                out[f"fail_rate/clip/{clip_id}"] = float(fail[index])
                out[f"fail_rate_from_start/clip/{clip_id}"] = float(start[index])
        for name, members in classes.items():
            out[f"fail_rate/class/{name}"] = float(fail[members].mean())
        return out

    def close(self) -> None:
        """Release the simulator."""
        self.backend.close()

    def _whole(self, frame: Tensor) -> Tensor:
        """Frame numbers as whole numbers where starts are on frames."""
        return frame.long() if self.config.sampling.start_on_frames else frame

    def _frame(self) -> Tensor:
        """(N,) frame number in the clip; long where starts are on frames."""
        return self._whole(self.start) + self.steps

    def _see(self, clip: Tensor, start: Tensor) -> Sight:
        """Look ahead from starts (K,)."""
        return self.ahead.see(clip, self._whole(start))[1]

    def _prepare(self, starts: Starts) -> PreparedStarts:
        """States and first observations of new episodes."""
        clip, frame = starts.clip, self._whole(starts.frame)
        ahead, sight = self.ahead.see(clip, frame)
        seen = self.task.start(ahead, clip, frame, self.noise, self.rng)
        return PreparedStarts(clip, starts.frame, seen.state, self.task.builder(seen), sight)

    def _restart(self, ids: Tensor, obs: Tensor) -> None:
        """Begin new episodes in ``ids`` (K,) and write their observations into ``obs``."""
        starts = self.queue.take(len(ids), self.rng)
        self.clip[ids], self.start[ids] = starts.clip, starts.frame
        self.steps[ids] = 0
        self.episode_return[ids] = 0.0
        self.previous[ids] = 0.0
        self.backend.set_state(ids, starts.clip, starts.state)
        self.ahead.replace(ids, starts.sight)
        obs[ids] = starts.obs

    def _step_log(self, terms: dict[str, Tensor], reward: Tensor) -> dict[str, float]:
        values = torch.stack([*terms.values(), reward]).mean(-1).tolist()
        names = [*(f"reward/{name}" for name in terms), "reward/total"]
        return dict(zip(names, values, strict=True))

    def _episode_log(
        self, log: dict[str, float], ids: Tensor, failures: Tensor, at_end: Tensor
    ) -> None:
        """Add sums and counts over the episodes that end in this step."""
        failed = failures[ids].any(-1)
        rows = torch.stack(
            (
                torch.ones(len(ids)),
                self.steps[ids].float(),
                self.episode_return[ids],
                failed.float(),
                (~failed & at_end[ids]).float(),
                (~failed & ~at_end[ids]).float(),
                *failures[ids].T.float(),
            )
        )
        names = (
            "episode_count",
            "episode_length_sum",
            "episode_return_sum",
            "episode_failed_count",
            "end/clip_end_count",
            "end/time_limit_count",
            *(f"end/{reason}_count" for reason in REASONS),
        )
        log.update(zip(names, rows.sum(-1).tolist(), strict=True))
