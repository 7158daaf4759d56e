"""RLlib's configuration object, derived from :class:`TrackerConfig` alone."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from algorithms.ppo.config import TrackerConfig
from algorithms.ppo.learner import TensorPPOLearner
from algorithms.ppo.module import ActorCritic, model_config
from algorithms.ppo.networks import NetSpec
from algorithms.ppo.runner import TensorEnvRunner, box_space
from parc_ray.data.storage import Storage


class TensorPPOConfig(PPOConfig):
    """PPO on tensor environments; build it with :meth:`from_tracker`."""

    def __init__(self, algo_class: type | None = None) -> None:
        """Start from RLlib's defaults with every connector switched off."""
        from algorithms.ppo.algorithm import TensorPPO

        super().__init__(algo_class=algo_class or TensorPPO)
        self.learner_config_dict = {"tracker": TrackerConfig(), "dump_dir": "."}
        self._dont_auto_sync_env_runner_states = True
        self.add_default_connectors_to_env_to_module_pipeline = False
        self.add_default_connectors_to_module_to_env_pipeline = False
        self.add_default_connectors_to_learner_pipeline = False

    @classmethod
    def from_tracker(
        cls,
        tracker: TrackerConfig,
        env_name: str,
        env_config: Mapping[str, Any],
        obs_dim: int,
        action_dim: int,
        dump_dir: str | Storage = ".",
        custom_resources: Mapping[str, float] | None = None,
    ) -> TensorPPOConfig:
        """Translate our knobs.

        Args:
            tracker: the knobs.
            env_name: name under which the environment's creator is registered.
            env_config: passed to the creator (plus ``num_envs`` and ``seed``).
            obs_dim: observation size of the environment.
            action_dim: action size of the environment.
            dump_dir: where a diverged run leaves its last fragment; its learners write there.
            custom_resources: what each runner and learner actor asks of its node, beside CPUs
                and GPUs.

        Returns:
            A config ready for ``build_algo`` or for ``ray.tune.Tuner``.
        """
        spec = NetSpec.from_config(tracker, obs_dim, action_dim)
        config = cls()
        config.environment(
            env=env_name,
            env_config=dict(env_config),
            observation_space=box_space(obs_dim),
            action_space=box_space(action_dim),
            disable_env_checking=True,
        )
        config.learner_config_dict = {"tracker": tracker, "dump_dir": dump_dir}
        config.rl_module(model_config=model_config(spec, tracker))
        config._apply_tracker(tracker)
        if custom_resources:
            config.env_runners(custom_resources_per_env_runner=dict(custom_resources))
            config.custom_resources_per_learner = dict(custom_resources)
        return config

    def _apply_tracker(self, tracker: TrackerConfig) -> None:
        split = tracker.placement == "split"
        self.env_runners(
            env_runner_cls=TensorEnvRunner,
            num_env_runners=tracker.num_runners if split else 0,
            num_envs_per_env_runner=tracker.num_envs,
            rollout_fragment_length=tracker.horizon,
            num_cpus_per_env_runner=tracker.cpus_per_actor,  # pyright: ignore[reportArgumentType]
            num_gpus_per_env_runner=tracker.gpus_per_runner,
            sample_timeout_s=tracker.sample_timeout_s,
            create_env_on_local_worker=False,
        )
        self.learners(
            num_learners=tracker.num_learners,
            num_cpus_per_learner=tracker.cpus_per_actor if tracker.num_learners else 0,
            num_gpus_per_learner=tracker.gpus_per_learner,
        )
        batch = tracker.samples_per_iteration // max(1, tracker.num_learners)
        self.training(
            gamma=tracker.gamma,
            lambda_=tracker.lam,
            lr=tracker.lr,
            clip_param=tracker.clip,
            num_epochs=tracker.epochs,
            train_batch_size_per_learner=batch,
            minibatch_size=min(tracker.minibatch, batch),
            use_kl_loss=False,
        )
        self.fault_tolerance(
            restart_failed_env_runners=True,
            ignore_env_runner_failures=True,
            env_runner_health_probe_timeout_s=5.0,
            env_runner_restore_timeout_s=60.0,
        )
        self.debugging(seed=tracker.seed, log_level="ERROR")

    def get_default_learner_class(self) -> type[TensorPPOLearner]:
        """Our learner."""
        return TensorPPOLearner

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        """Our actor-critic."""
        return RLModuleSpec(module_class=ActorCritic)

    @property
    def _model_config_auto_includes(self) -> dict[str, Any]:
        return {}

    def validate(self) -> None:
        """RLlib's checks, without its advice on moving old code to the new API stack."""
        advice = logging.getLogger("ray.rllib.algorithms.algorithm_config")
        level = advice.level
        advice.setLevel(logging.ERROR)
        try:
            super().validate()
        finally:
            advice.setLevel(level)

    def validate_train_batch_size_vs_rollout_fragment_length(self) -> None:
        """Nothing to compare: the batch size is derived from the fragments."""
