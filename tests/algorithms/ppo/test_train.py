"""Local placement end to end: learns, resumes bit for bit, evaluates, starts warm."""

from __future__ import annotations

import json

import pytest
import torch
from pyarrow import fs
from ray.tune.registry import register_env

from algorithms.ppo.algorithm_config import TensorPPOConfig
from algorithms.ppo.checkpoint import load_state
from algorithms.ppo.config import TrackerConfig
from algorithms.ppo.nan_guard import describe_dump, replay_fragment, replay_update
from algorithms.ppo.policy import MlpPolicy
from algorithms.ppo.sizes import EnvSizes
from algorithms.ppo.train import train_tracker
from algorithms.ppo.update import TrainingDivergedError
from parc_ray.data.storage import Storage
from parc_ray.errors import InputError
from tests.algorithms.ppo.toy import ToyLine

SMALL = TrackerConfig(
    num_envs=32,
    horizon=16,
    minibatch=128,
    hidden=(32, 32),
    kl_target=0.02,
    lr=2e-3,
    samples=2_000_000_000,
    checkpoint_every=2,
)
SIZES = EnvSizes(obs_dim=6, action_dim=2)


def reward_of(policy, steps=40):
    env = ToyLine(64, seed=99)
    obs, total = env.reset(), 0.0
    for _ in range(steps):
        result = env.step(policy.act(obs))
        obs, total = result.obs, total + float(result.reward.mean())
    return total / steps


def iterations(count, config=SMALL):
    return count * config.samples_per_iteration


def build(name, config=SMALL):
    return TensorPPOConfig.from_tracker(config, name, {}, 6, 2).build_algo()


def assert_equal_trees(one, two, path=""):
    assert type(one) is type(two), path
    if isinstance(one, dict):
        assert one.keys() == two.keys(), path
        for key in one:
            assert_equal_trees(one[key], two[key], f"{path}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(two), path
        for i, (a, b) in enumerate(zip(one, two, strict=True)):
            assert_equal_trees(a, b, f"{path}[{i}]")
    elif isinstance(one, torch.Tensor):
        assert one.dtype == two.dtype, path
        assert torch.equal(one, two), path
    else:
        assert one == two, path


def test_learns_the_toy_task(toy, tmp_path):
    config = SMALL.replace(num_envs=64, horizon=32, minibatch=512, bf16=True)
    result = train_tracker(config, toy, {}, tmp_path, samples=iterations(25, config), sizes=SIZES)
    policy = MlpPolicy.load(result.policy)
    assert result.iterations == 25
    assert result.metrics["reward_per_step"] > 0.85
    assert result.metrics["explained_variance"] > 0.3
    assert reward_of(policy) > 0.85
    untrained = MlpPolicy.from_state(policy.spec, torch_zero_actor(policy))
    assert reward_of(untrained) < 0.6


def torch_zero_actor(policy):
    state = dict(policy.state_dict())
    return {k: torch.zeros_like(v) if k.startswith("actor.out") else v for k, v in state.items()}


@pytest.mark.parametrize("bf16", [False, True])
def test_two_plus_two_iterations_equal_four_bit_for_bit(toy, tmp_path, bf16):
    config = SMALL.replace(bf16=bf16)
    straight = build(toy, config)
    for _ in range(4):
        straight.train()
    want = straight.training_state()
    straight.stop()
    first = build(toy, config)
    first.train()
    first.train()
    first.save_checkpoint(str(tmp_path))
    first.stop()
    second = build(toy, config.replace())
    second.train()  # a different past, all of it overwritten
    second.load_checkpoint(str(tmp_path))
    for _ in range(2):
        second.train()
    got = second.training_state()
    second.stop()
    assert got["iteration"] == 4
    assert_equal_trees(want, got)


def test_rllib_own_checkpoints_restore_too(toy, tmp_path):
    algo = build(toy)
    algo.train()
    algo.train()
    algo.save_to_path(str(tmp_path / "native"))
    algo.train()
    want = algo.training_state()
    algo.restore_from_path(str(tmp_path / "native"))  # backwards, on the living algorithm
    algo.train()
    got = algo.training_state()
    algo.stop()
    assert_equal_trees(want["learners"], got["learners"])
    assert_equal_trees(want["runners"], got["runners"])
    assert got["iteration"] == 3


def test_local_placement_makes_one_simulator_and_shares_the_module(toy):
    algo = build(toy)
    assert algo.env_runner.module is algo.learner_group._learner.actor_critic
    env = algo.env_runner.env
    algo.stop()
    assert env.closed


class KilledError(Exception):
    """Stands for a kill -9 between two checkpoints."""


def kill_at(iteration):
    def callback(at, _metrics):
        if at == iteration:
            raise KilledError

    return callback


def test_killed_run_continues_to_the_same_bits(toy, tmp_path):
    def evaluate(policy):
        return {"score": reward_of(policy, 5)}

    config = SMALL.replace(evaluate_every=1)
    kwargs = {"samples": iterations(5), "sizes": SIZES, "evaluate": evaluate}
    whole = train_tracker(config, toy, {}, tmp_path / "a", **kwargs)
    with pytest.raises(KilledError):
        train_tracker(config, toy, {}, tmp_path / "b", on_iteration=kill_at(3), **kwargs)
    resumed = train_tracker(config, toy, {}, tmp_path / "b", **kwargs)
    assert resumed.resumed_from == 2
    assert (whole.iterations, whole.samples) == (resumed.iterations, resumed.samples)
    assert MlpPolicy.load(whole.policy).digest == MlpPolicy.load(resumed.policy).digest
    assert whole.best is not None
    assert resumed.best is not None
    assert MlpPolicy.load(whole.best).digest == MlpPolicy.load(resumed.best).digest
    assert whole.best_score == resumed.best_score
    log = (tmp_path / "b" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in log] == [1, 2, 3, 4, 5]
    state = load_state(tmp_path / "b" / "ckpt_000005" / "state.pt")
    assert state["run"]["wall_s"] > 0


def test_finished_run_is_left_alone_and_a_larger_budget_goes_on(toy, tmp_path):
    first = train_tracker(SMALL, toy, {}, tmp_path, samples=iterations(2), sizes=SIZES)
    again = train_tracker(SMALL, toy, {}, tmp_path, samples=iterations(2), sizes=SIZES)
    assert (again.iterations, again.samples) == (first.iterations, first.samples)
    assert again.metrics == {}
    assert again.wall_s >= first.wall_s - 0.5
    more = train_tracker(SMALL, toy, {}, tmp_path, samples=iterations(3), sizes=SIZES)
    assert more.iterations == 3
    with pytest.raises(InputError, match="gamma"):
        train_tracker(SMALL.replace(gamma=0.9), toy, {}, tmp_path, sizes=SIZES)
    with pytest.raises(InputError, match="holds checkpoints"):
        train_tracker(SMALL, toy, {}, tmp_path, sizes=SIZES, resume=False)


def test_wall_budget_counts_earlier_sittings(toy, tmp_path):
    train_tracker(SMALL, toy, {}, tmp_path, samples=iterations(2), sizes=SIZES)
    result = train_tracker(SMALL, toy, {}, tmp_path, wall_s=1e-3, sizes=SIZES)
    assert result.iterations == 2


def test_best_policy_is_kept_apart_from_the_last(toy, tmp_path):
    scores = iter([1.0, 3.0, 2.0])
    result = train_tracker(
        SMALL.replace(evaluate_every=1),
        toy,
        {},
        tmp_path,
        samples=iterations(3),
        evaluate=lambda policy: {"score": next(scores)},
        sizes=SIZES,
    )
    assert result.best_score == 3.0
    assert result.chosen == result.best
    assert result.best is not None
    assert MlpPolicy.load(result.best).notes["iteration"] == 2
    assert result.metrics["eval/score"] == 2.0


def test_warm_start_takes_weights_and_frozen_statistics(toy, tmp_path):
    first = train_tracker(SMALL, toy, {}, tmp_path / "one", samples=iterations(4), sizes=SIZES)
    old = MlpPolicy.load(first.policy)
    config = SMALL.replace(critic_only_iterations=1, warm_std=0.2)
    second = train_tracker(
        config,
        toy,
        {},
        tmp_path / "two",
        warm_start=first.policy,
        samples=iterations(1),
        sizes=SIZES,
    )
    new = MlpPolicy.load(second.policy)
    obs = torch.randn(9, 6)
    assert torch.equal(new.act(obs), old.act(obs))  # critic-only, statistics frozen
    assert torch.allclose(new.log_std.exp(), torch.tensor(0.2))
    assert not torch.equal(new.critic_state["out.weight"], old.critic_state["out.weight"])
    with pytest.raises(InputError, match="warm start"):
        train_tracker(
            SMALL.replace(hidden=(8,)),
            toy,
            {},
            tmp_path / "three",
            warm_start=first.policy,
            sizes=SIZES,
        )


def test_sizes_are_read_from_the_environment_and_its_layout(toy):
    assert EnvSizes.probe(toy, {}) == SIZES
    with pytest.raises(InputError, match="not registered"):
        EnvSizes.probe("no-such-environment", {})


def test_unregistered_environment_gives_one_line(toy, tmp_path):
    with pytest.raises(InputError, match="register_env"):
        train_tracker(SMALL, "no-such-environment", {}, tmp_path)


class BrokenLine(ToyLine):
    """Rewards turn into NaN after the 40th step."""

    count = 0

    def step(self, action):
        result = super().step(action)
        self.count += 1
        if self.count > 40:
            result.reward[3] = float("nan")
        return result

    def state_dict(self):
        return super().state_dict() | {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]
        super().load_state_dict({k: v for k, v in state.items() if k != "count"})


def test_a_diverged_training_leaves_a_dump_that_can_be_replayed(toy, tmp_path):
    """Fragments of 16 steps: the third and fourth are left out, then training stops."""
    register_env("broken", lambda context: BrokenLine(context["num_envs"], context["seed"]))
    config = SMALL.replace(max_bad_updates=2)
    with pytest.raises(TrainingDivergedError, match="nan_rank0"):
        train_tracker(config, "broken", {}, tmp_path, samples=iterations(9), sizes=SIZES)
    (path,) = tmp_path.glob("nan_rank0_*.pt")
    assert describe_dump(path) == ["rollout.reward: 16 not finite, first at [0, 3]"]
    assert "rollout.reward: 16 not finite, first at [0, 3]" in replay_update(path)
    again = replay_fragment(path, BrokenLine(config.num_envs, 5))
    assert again == ["rollout.reward: 16 not finite, first at [0, 3]"]


def test_a_training_that_diverges_on_an_object_store_names_a_dump_that_stays(toy, tmp_path):
    register_env("broken", lambda context: BrokenLine(context["num_envs"], context["seed"]))
    inner = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    remote = Storage(filesystem=inner, root="bucket")  # not local, as an object store
    config = SMALL.replace(max_bad_updates=1)
    with pytest.raises(TrainingDivergedError) as caught:
        train_tracker(config, "broken", {}, remote, samples=iterations(9), sizes=SIZES)
    named = str(caught.value).rpartition(f"the last fragment is in {remote}/")[2]
    with remote.fetched(named) as copy:
        assert describe_dump(copy) == ["rollout.reward: 8 not finite, first at [8, 3]"]
    assert remote.exists("metrics.jsonl")
