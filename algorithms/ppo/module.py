"""The actor-critic as an RLlib module: separate networks and an observation normaliser."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis.inference_only_api import InferenceOnlyAPI
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from torch import Tensor, nn

from algorithms.ppo.config import TrackerConfig
from algorithms.ppo.networks import Head, NetSpec, ObsNormaliser
from algorithms.ppo.policy import MlpPolicy
from parc_ray.errors import InputError


def model_config(spec: NetSpec, config: TrackerConfig) -> dict[str, Any]:
    """What RLlib is to hand to `ActorCritic`."""
    return {
        "spec": spec.to_dict(),
        "init_std": config.init_std,
        "learn_std": config.learn_std,
        "mean_init": config.mean_init,
    }


class ActorCritic(TorchRLModule, InferenceOnlyAPI, ValueFunctionAPI):
    """Gaussian actor and critic on normalised observations.

    ``model_config`` holds ``spec`` (a :class:`NetSpec` as dict), ``init_std``, ``learn_std``,
    and ``mean_init`` (see `model_config`). The normaliser's statistics are buffers, so they travel
    with the weights; the critic is left out of inference-only copies.
    """

    actor: Head
    critic: Head
    normaliser: ObsNormaliser
    log_std: nn.Parameter

    def setup(self) -> None:
        """Create the networks; called by RLlib once the spaces are known."""
        config: dict[str, Any] = dict(self.model_config)  # pyright: ignore[reportArgumentType]
        self.spec = NetSpec.from_dict(config["spec"])
        dims = (self.spec.obs_dim, self.spec.normaliser_skip, self.spec.normaliser_clip)
        self.normaliser = ObsNormaliser(*dims)
        self.actor = Head(self.spec, self.spec.actor_dim, self.spec.action_dim)
        self.critic = Head(self.spec, self.spec.obs_dim, 1)
        bound = float(config["mean_init"])
        nn.init.uniform_(self.actor.out.weight, -bound, bound)
        nn.init.zeros_(self.actor.out.bias)
        nn.init.zeros_(self.critic.out.bias)
        start = torch.full((self.spec.action_dim,), math.log(float(config["init_std"])))
        self.log_std = nn.Parameter(start, requires_grad=bool(config["learn_std"]))

    def get_non_inference_attributes(self) -> list[str]:
        """Names of the parts that runners do not need."""
        return ["critic"]

    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        inference_only: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Arrays of all tensors in their own precision (RLlib's version reduces float64).

        Args:
            components: unused, a module has none.
            not_components: unused.
            inference_only: leave the critic out.
            **kwargs: ignored.
        """
        return {
            k: v.detach().cpu().numpy().copy()
            for k, v in self.state_dict().items()
            if not (inference_only and k.startswith("critic."))
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Load a state of arrays or tensors; inference-only copies ignore a critic in it.

        Raises:
            KeyError: tensors are missing.
        """
        tensors = {
            k: v if isinstance(v, Tensor) else torch.from_numpy(np.array(v))
            for k, v in state.items()
        }
        missing, _ = self.load_state_dict(tensors, strict=False)
        if self.inference_only and missing:
            raise KeyError(f"module state lacks {missing}")

    def act_mean(self, obs: Tensor) -> Tensor:
        """Mean actions (..., A) for raw observations (..., O)."""
        return self.actor(self.normaliser(obs))

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        mean = self.act_mean(batch[Columns.OBS])
        inputs = torch.cat([mean, self.log_std.expand_as(mean)], -1)
        return {Columns.ACTION_DIST_INPUTS: inputs}

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {**self._forward(batch), Columns.VF_PREDS: self.compute_values(batch)}

    def compute_values(self, batch: dict[str, Any], embeddings: Any | None = None) -> Tensor:
        """Values (...,) of raw observations ``batch["obs"]`` (..., O)."""
        return self.critic(self.normaliser(batch[Columns.OBS])).squeeze(-1)

    def load_policy(self, policy: MlpPolicy) -> bool:
        """Take over a policy's networks, normaliser and deviation (warm start).

        Args:
            policy: of the same shape.

        Returns:
            Whether the critic came along.

        Raises:
            InputError: the shapes differ.
        """
        if policy.spec != self.spec:
            raise InputError(
                f"warm start: the policy has shape {policy.spec}, this run needs {self.spec}; "
                "use a policy of the same networks and observations, or start without one"
            )
        state = {k: v.clone() for k, v in policy.state_dict().items()}
        state.update({f"critic.{k}": v for k, v in policy.critic_state.items()})
        self.load_state_dict(state, strict=False)
        return bool(policy.critic_state)
