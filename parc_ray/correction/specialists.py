"""Many specialists, one policy: DAgger over policies that each track one clip.

The student acts, the specialist of the clip says what it would have done, and all that was ever
said is learned together. In the first round the specialists act themselves; from round to round the
student acts more often, so that it is told what to do in the states that it brings about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from algorithms.ppo.networks import NetSpec
from algorithms.ppo.policy import MlpPolicy
from envs.tracking.env import VectorTrackingEnv
from parc_ray.correction.teacher import Fit, Pairs, explained, fit
from parc_ray.errors import InputError


@dataclass(frozen=True, kw_only=True)
class DistilConfig:
    """How specialists are put together."""

    rounds: int = 8
    """Times that states are collected and everything is learned again."""
    steps: int = 48
    """Control steps of every environment in a round."""
    mixing: float = 0.5
    """Share of environments in which the specialist acts, to the power of the round."""
    noise: float = 0.1
    """Deviation of the noise on actions that are taken (normalised); labels have none."""
    fit: Fit = field(default_factory=lambda: Fit(epochs=6, batch=1024, lr=1e-3))
    """Learning of a round."""

    def __post_init__(self) -> None:
        """Check ranges."""
        for name in ("rounds", "steps"):
            if getattr(self, name) < 1:
                raise InputError(f"distil.{name}: {getattr(self, name)}; 1 or more")
        if not 0 <= self.mixing <= 1:
            raise InputError(f"distil.mixing: {self.mixing}; 0 to 1")
        if self.noise < 0:
            raise InputError(f"distil.noise: {self.noise}; 0 or more")


def distil(
    env: VectorTrackingEnv,
    specialists: Sequence[MlpPolicy],
    spec: NetSpec,
    config: DistilConfig,
    seed: int,
) -> tuple[MlpPolicy, dict[str, float]]:
    """One policy of what the specialists do.

    Args:
        env: environment over all clips; it is reset.
        specialists: by the clips' index; their observations are those of ``env``.
        spec: shape of the student.
        config: rounds, steps, mixing.
        seed: of weights, mixing and noise.

    Returns:
        The student, without a critic, and ``pairs``, ``explained`` (of the last round's actions,
        before they were learned) and ``rounds``.

    Raises:
        InputError: the numbers of specialists and clips differ, or their observations.
    """
    _check(env, specialists, spec)
    rng = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        student = MlpPolicy(spec)
        torch.nn.init.zeros_(student.actor.out.bias)
        shown: list[Pairs] = []
        newly = 0.0
        obs = env.reset()
        for number in range(config.rounds):
            taught = config.mixing**number
            pairs, obs = _collect(env, specialists, student, obs, taught, config, rng)
            if number:
                newly = explained(student, pairs)
            shown.append(pairs)
            student.normaliser.merge(student.normaliser.sums(pairs.obs))
            everything = Pairs(
                torch.cat([p.obs for p in shown]), torch.cat([p.action for p in shown])
            )
            fit(student, everything, config.fit)
    student.eval()
    count = float(sum(len(p.obs) for p in shown))
    return student, {"rounds": float(config.rounds), "pairs": count, "explained": newly}


@torch.no_grad()
def _collect(
    env: VectorTrackingEnv,
    specialists: Sequence[MlpPolicy],
    student: MlpPolicy,
    obs: Tensor,
    taught: float,
    config: DistilConfig,
    rng: torch.Generator,
) -> tuple[Pairs, Tensor]:
    """States of a round with the specialists' actions, and the last observations (N, O)."""
    seen, said = [], []
    student.eval()
    by_specialist = torch.rand(env.num_envs, generator=rng) < taught
    for _ in range(config.steps):
        wanted = expert_actions(specialists, env.clip, obs)
        seen.append(obs.clone())
        said.append(wanted)
        action = torch.where(by_specialist[:, None], wanted, student.act(obs))
        noise = torch.randn(action.shape, generator=rng)
        obs = env.step(action + config.noise * noise).obs
    return Pairs(torch.cat(seen), torch.cat(said)), obs


def expert_actions(specialists: Sequence[MlpPolicy], clip: Tensor, obs: Tensor) -> Tensor:
    """Actions (N, A) of each environment's specialist, by its clip (N,), for (N, O)."""
    out = torch.empty(len(obs), specialists[0].spec.action_dim)
    for index in clip.unique().tolist():
        rows = (clip == index).nonzero()[:, 0]
        out[rows] = specialists[index].act(obs[rows])
    return out


def _check(env: VectorTrackingEnv, specialists: Sequence[MlpPolicy], spec: NetSpec) -> None:
    clips = env.bank.num_clips
    if len(specialists) != clips:
        raise InputError(
            f"specialists: {len(specialists)} policies for {clips} clips; one per clip is wanted"
        )
    for index, policy in enumerate(specialists):
        ours = (policy.spec.obs_dim, policy.spec.action_dim)
        if ours != (spec.obs_dim, spec.action_dim):
            raise InputError(
                f"specialists: policy {index} has {ours} observations and actions, the student "
                f"{(spec.obs_dim, spec.action_dim)}; train them with one tracking configuration"
            )
