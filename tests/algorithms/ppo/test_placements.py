"""Split and colocated placements on real actors: equality, lost runners, checkpoints, learning."""

from __future__ import annotations

import os
import signal

import pytest
import ray
import torch

from algorithms.ppo.algorithm_config import TensorPPOConfig
from algorithms.ppo.config import TrackerConfig
from algorithms.ppo.sizes import EnvSizes
from algorithms.ppo.train import train_tracker
from tests.algorithms.ppo.test_train import assert_equal_trees
from tests.algorithms.ppo.toy import register_deadly

pytestmark = pytest.mark.slow

BASE = TrackerConfig(
    num_envs=32,
    horizon=32,
    minibatch=256,
    hidden=(32, 32),
    kl_target=0.02,
    lr=2e-3,
    cpus_per_actor=0.5,
    sample_timeout_s=60.0,
)


def build(name, **changes):
    return TensorPPOConfig.from_tracker(BASE.replace(**changes), name, {}, 6, 2).build_algo()


def module_states(algo):
    def read(learner):
        state = {k: v.clone() for k, v in learner.actor_critic.state_dict().items()}
        return state, learner.updater.lr

    return [r.get() for r in algo.learner_group.foreach_learner(read)]


def test_colocated_learners_stay_equal_learn_and_restore(toy, tmp_path):
    algo = build(toy, placement="colocated", num_learners=2)
    assert algo.env_runner.env is None  # the runner that RLlib insists on has no simulator
    first = algo.train()["tracker"]
    for _ in range(17):
        last = algo.train()["tracker"]
    assert last["samples"] == 18 * 2 * 32 * 32
    assert last["reward_per_step"] > first["reward_per_step"] + 0.2
    one, two = module_states(algo)
    assert_equal_trees(one, two)
    algo.save_checkpoint(str(tmp_path))
    algo.train()
    want = algo.training_state()
    algo.load_checkpoint(str(tmp_path))  # backwards, on living actors
    algo.train()
    got = algo.training_state()
    policy = algo.export_policy()
    algo.stop()
    assert_equal_trees(want, got)
    assert policy.notes["iteration"] == 19


def kill_runner(algo, index):
    actor = algo.env_runner_group._worker_manager.actors()[index]
    pid = ray.get(actor.apply.remote(lambda _: os.getpid()))
    os.kill(pid, signal.SIGKILL)


def test_split_loses_only_the_fragment_of_a_killed_runner(toy):
    algo = build(toy, placement="split", num_runners=2, num_learners=2)
    first = algo.train()["tracker"]
    assert first["samples"] == 2 * 32 * 32
    kill_runner(algo, 1)
    second = algo.train()["tracker"]
    assert second["samples"] == 3 * 32 * 32  # the living runner's fragment alone
    for _ in range(30):
        last = algo.train()["tracker"]
        if algo.env_runner_group.num_healthy_remote_workers() == 2:
            break
    before = last["samples"]
    after = algo.train()["tracker"]["samples"]
    one, two = module_states(algo)
    algo.stop()
    assert after - before == 2 * 32 * 32  # it came back
    assert_equal_trees(one, two)


def test_split_with_a_local_learner_restores_its_runners(toy, tmp_path):
    algo = build(toy, placement="split", num_runners=1)
    first = algo.train()["tracker"]["reward_per_step"]
    for _ in range(24):
        last = algo.train()["tracker"]["reward_per_step"]
    assert last > first + 0.2
    algo.save_checkpoint(str(tmp_path))
    algo.train()
    want = algo.training_state()
    algo.load_checkpoint(str(tmp_path))
    algo.train()
    got = algo.training_state()
    algo.stop()
    assert_equal_trees(want, got)


def test_learner_parts_of_a_split_batch_are_those_of_the_runners(toy):
    """Weights of a split step equal those of a local step on the same fragment."""
    split = build(toy, placement="split", num_runners=1, normaliser_warmup=0)
    local = build(toy, normaliser_warmup=0)
    sampler_state = ray.get(
        split.env_runner_group._worker_manager.actors()[1].get_state.remote("sampler")
    )["sampler"]
    local.env_runner.sampler.rng.set_state(sampler_state["rng"])
    # the split runner's environment has seed + 1
    local.env_runner.env.rng.manual_seed(1)
    split.train()
    local.train()
    one = split.learner_group._learner.actor_critic.state_dict()
    two = local.learner_group._learner.actor_critic.state_dict()
    split.stop()
    local.stop()
    for key, value in one.items():
        torch.testing.assert_close(value, two[key], rtol=1e-5, atol=1e-6)


def final_reward(name, seed, **changes):
    """Mean reward per step over the last five of 30 iterations of 64 x 32 steps."""
    algo = build(name, seed=seed, **changes)
    rewards = [algo.train()["tracker"]["reward_per_step"] for _ in range(30)]
    algo.stop()
    return sum(rewards[-5:]) / 5


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_placements_learn_alike(toy, record_property):
    """Three seeds each, as many samples and as large batches in all."""
    seeds = (0, 1, 2)
    local = [final_reward(toy, s, num_envs=64) for s in seeds]
    split = [final_reward(toy, s, placement="split", num_runners=2, num_learners=1) for s in seeds]
    shared = {"placement": "colocated", "num_learners": 2, "minibatch": BASE.minibatch // 2}
    colocated = [final_reward(toy, s, **shared) for s in seeds]
    for place, rewards in (("local", local), ("split", split), ("colocated", colocated)):
        record_property(place, " ".join(f"{reward:.4f}" for reward in rewards))
    assert min(local) > 0.5  # an untrained policy gets about 0.3
    mean = sum(local) / len(local)
    for other in (split, colocated):
        assert sum(other) / len(other) == pytest.approx(mean, rel=0.1)


def test_a_killed_learner_costs_what_was_done_since_the_checkpoint(toy, tmp_path):
    """It dies in the fourth iteration; the newest checkpoint is of the second."""
    config = BASE.replace(placement="colocated", num_learners=2, checkpoint_every=2)
    mark = tmp_path / "died"
    seen = []
    result = train_tracker(
        config,
        register_deadly(),
        {"mark": str(mark), "at_step": 3 * config.horizon + 5},
        tmp_path / "run",
        samples=5 * config.samples_per_iteration,
        on_iteration=lambda iteration, _: seen.append(iteration),
        sizes=EnvSizes(obs_dim=6, action_dim=2),
    )
    assert mark.exists()
    assert seen == [1, 2, 3, 3, 4, 5]
    assert result.resumed_from == 2
    assert result.iterations == 5
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 5
