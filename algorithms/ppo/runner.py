"""RLlib's env runner on tensors: fixed [T, N] fragments, no episodes, no connectors."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import gymnasium as gym
import numpy as np
import ray
import torch
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core import COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.env import INPUT_ENV_SINGLE_SPACES, INPUT_ENV_SPACES
from ray.rllib.env.env_context import EnvContext
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.utils.checkpoints import Checkpointable
from ray.rllib.utils.framework import get_device
from ray.tune.registry import ENV_CREATOR, _global_registry
from torch import Tensor

from algorithms.ppo.config import TrackerConfig
from algorithms.ppo.module import ActorCritic
from algorithms.ppo.rollout import Rollout, Sampler
from parc_ray.errors import InputError
from parc_ray.protocols import TrackingEnv

SAMPLER = "sampler"


def box_space(dim: int) -> gym.spaces.Box:
    """Unbounded float32 box of ``dim`` numbers, RLlib's description of a flat vector."""
    return gym.spaces.Box(-np.inf, np.inf, (dim,), np.float32)


def make_tracking_env(config: AlgorithmConfig, worker_index: int, num_workers: int) -> TrackingEnv:
    """Create the registered environment for one runner.

    The creator gets the user's ``env_config`` plus ``num_envs`` and ``seed`` (the run's seed plus
    the worker index), as an ``EnvContext`` that also knows ``worker_index``.

    Raises:
        InputError: the name is not registered.
    """
    name = config.env
    if not isinstance(name, str) or not _global_registry.contains(ENV_CREATOR, name):
        raise InputError(f"environment {name!r}: not registered; call register_env first")
    extra = {
        "num_envs": config.num_envs_per_env_runner,
        "seed": int(config.seed or 0) + worker_index,
    }
    context = EnvContext(
        {**config.env_config, **extra}, worker_index=worker_index, num_workers=num_workers
    )
    return _global_registry.get(ENV_CREATOR, name)(context)


class TensorEnvRunner(EnvRunner, Checkpointable):
    """Samples fragments of a :class:`~parc_ray.protocols.TrackingEnv`.

    A runner with worker index 0 only has an environment in local placement; in the others it is
    the empty local runner that RLlib insists on.
    """

    def __init__(self, *, config: AlgorithmConfig, **kwargs: Any) -> None:
        """Create environment, sampler and an inference-only copy of the policy."""
        super().__init__(config=config, **kwargs)
        self.knobs: TrackerConfig = config.learner_config_dict["tracker"]
        self.worker_index = int(self.worker_index or 0)
        gpus = self.knobs.gpus_per_runner
        if self.worker_index == 0 or self.knobs.placement == "colocated":
            gpus = self.knobs.gpus_per_learner
        has_env = self.worker_index > 0 or self.knobs.placement == "local"
        self.device = torch.device(get_device(self.config, gpus if has_env else 0))  # pyright: ignore
        self.sampler: Sampler | None = None
        self.module: ActorCritic | None = None
        if has_env:
            torch.set_num_threads(self.knobs.threads)
            self.make_env()
        if has_env and self.knobs.placement == "split":
            self.make_module()

    def make_env(self) -> None:
        """Create the environment and its sampler, closing earlier ones."""
        if self.env is not None:
            self.env.close()
        env = make_tracking_env(self.config, self.worker_index, self.num_workers)
        self.env = env
        seed = self.knobs.seed + 7919 * (self.worker_index + 1)
        memory = self.knobs.noise_memory
        self.sampler = Sampler(env, self.knobs.horizon, seed, self.device, memory)

    def make_module(self) -> None:
        """Create the inference-only policy; local and colocated placements share the learner's."""
        spec = self.config.get_rl_module_spec(spaces=self.get_spaces(), inference_only=True)  # pyright: ignore[reportArgumentType]
        self.module = spec.build().to(self.device)  # pyright: ignore

    def assert_healthy(self) -> None:
        """Raise unless the constructor came to its end."""
        if self.sampler is None and self.worker_index > 0:
            raise RuntimeError("runner without an environment")

    def get_spaces(self) -> dict[str, tuple[Any, Any]]:
        """Spaces under the keys that RLlib expects."""
        if self.env is not None:
            spaces = (box_space(self.env.obs_dim), box_space(self.env.action_dim))
        else:
            spaces = (self.config.observation_space, self.config.action_space)
        keys: tuple[str, ...] = (INPUT_ENV_SPACES, INPUT_ENV_SINGLE_SPACES, DEFAULT_MODULE_ID)
        return dict.fromkeys(keys, spaces)

    def sample(self, **kwargs: Any) -> tuple[Rollout, dict[str, float]]:
        """Sample one fragment with the present weights; tensors are valid until the next call."""
        if self.sampler is None or self.module is None:
            raise RuntimeError(f"runner {self.worker_index} has no environment or no policy")
        return self.sampler.run(self.module)

    def rollout(self, state: dict[str, Tensor], parts: int) -> tuple[Any, ...]:
        """Remote sampling: take over weights, sample, return metrics and one part per learner.

        Args:
            state: module state (numpy or tensors); being an argument, it cannot be lost or late.
            parts: number of learners.

        Returns:
            ``(metrics, part_0, ..., part_{parts-1})``, parts as dicts of numpy arrays.
        """
        self.set_state({COMPONENT_RL_MODULE: state})
        rollout, metrics = self.sample()
        pieces = [to_numpy(part) for part in rollout.chunks(parts)]
        return metrics, *pieces

    def get_metrics(self) -> Any:
        """RLlib's own logger; ours travel with the fragments."""
        return self.metrics.reduce()

    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Weights and the sampler's state (environment, generator, running episodes)."""
        state: dict[str, Any] = {}
        if self.module is not None and self._check_component(
            COMPONENT_RL_MODULE, components, not_components
        ):
            state[COMPONENT_RL_MODULE] = self.module.get_state(inference_only=True)
        if self.sampler is not None and self._check_component(SAMPLER, components, not_components):
            state[SAMPLER] = self.sampler.state_dict()
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Apply what ``state`` holds, always (no sequence number can veto older weights)."""
        weights = state.get(COMPONENT_RL_MODULE)
        if isinstance(weights, ray.ObjectRef):
            weights = ray.get(weights)
        if weights is not None and self.module is not None:
            self.module.set_state(weights.get(DEFAULT_MODULE_ID, weights))
        if SAMPLER in state and self.sampler is not None:
            self.sampler.load_state_dict(state[SAMPLER])

    def get_ctor_args_and_kwargs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments that rebuild this runner."""
        return (), {"config": self.config, "worker_index": self.worker_index}

    def get_checkpointable_components(self) -> list[tuple[str, Any]]:
        """No components of its own: the policy is saved with the learner."""
        return []

    def stop(self) -> None:
        """Close the environment."""
        if self.env is not None:
            self.env.close()
            self.env = None


def to_numpy(rollout: Rollout) -> dict[str, np.ndarray]:
    """Arrays for the object store (read there without copies)."""
    return {k: v.cpu().contiguous().numpy() for k, v in rollout.to_dict().items()}


def from_numpy(arrays: dict[str, np.ndarray], device: torch.device) -> Rollout:
    """Inverse of :func:`to_numpy`; arrays from the object store are read-only and get copied."""
    return Rollout(**{k: torch.from_numpy(v.copy()).to(device) for k, v in arrays.items()})
