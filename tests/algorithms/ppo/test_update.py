"""The update: coverage of samples, guards, critic-only start, what lock-step processes exchange."""

from __future__ import annotations

import pytest
import torch

from algorithms.ppo.config import TrackerConfig
from algorithms.ppo.nan_guard import (
    describe_dump,
    dump_rollout,
    replay_fragment,
    replay_update,
)
from algorithms.ppo.rollout import Sampler
from algorithms.ppo.update import Reducer, TrainingDivergedError, Updater, make_optimiser
from parc_ray.errors import InputError
from tests.algorithms.ppo.test_rollout import clone, make_module, make_sampler
from tests.algorithms.ppo.toy import ToyLine

BASE = {"hidden": (16,), "minibatch": 60, "epochs": 3, "normaliser_warmup": 0}


def make_updater(**changes):
    torch.manual_seed(0)
    config = TrackerConfig(**(BASE | changes))
    module = make_module(config)
    return Updater(module, make_optimiser(module, config), config)


def fragment(module, seed=0):
    rollout, _ = make_sampler(6, 50, seed).run(module)
    return clone(rollout)


def snapshot(module):
    return {k: v.clone() for k, v in module.state_dict().items()}


def test_every_sample_is_visited_once_per_epoch(monkeypatch):
    updater = make_updater()
    seen = []
    original = Updater._step

    def spy(self, batch):
        seen.append(batch.target)
        return original(self, batch)

    monkeypatch.setattr(Updater, "_step", spy)
    rollout = fragment(updater.module)
    batch, _ = updater.prepare(rollout)
    updater.update(rollout)
    assert len(seen) == 3 * 5  # 300 samples in minibatches of 60
    for epoch in range(3):
        visited = torch.cat(seen[5 * epoch : 5 * epoch + 5]).sort().values
        assert torch.equal(visited, batch.target.sort().values)


def test_first_step_starts_from_the_sampling_policy():
    updater = make_updater(epochs=1, minibatch=10_000)
    metrics = updater.update(fragment(updater.module))
    assert metrics["kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["clip_fraction"] == 0.0
    # normalised advantages average to zero, and all ratios are one
    assert metrics["policy_loss"] == pytest.approx(0.0, abs=1e-3)


def test_targets_scale_with_the_rewards_and_values_are_reported_unscaled():
    updater = make_updater(gamma=0.9)
    rollout = fragment(updater.module)
    with torch.no_grad():
        for p in updater.module.critic.out.parameters():
            p.zero_()
    batch, _ = updater.prepare(rollout)
    last = rollout.reward[-1]
    assert torch.allclose(batch.target.reshape(50, 6)[-1], 0.1 * last)


def test_advantages_are_standard_and_clipped():
    updater = make_updater(advantage_clip=1.0)
    batch, _ = updater.prepare(fragment(updater.module))
    assert float(batch.advantage.abs().max()) == 1.0
    free = make_updater(advantage_clip=None)
    batch, _ = free.prepare(fragment(free.module))
    assert float(batch.advantage.mean()) == pytest.approx(0.0, abs=1e-4)
    assert float(batch.advantage.std(unbiased=False)) == pytest.approx(1.0, abs=1e-3)


def test_non_finite_fragments_are_left_out_counted_and_stop_in_the_end():
    updater = make_updater(max_bad_updates=3)
    good = fragment(updater.module)
    bad = clone(good)
    bad.reward[3, 2] = float("nan")
    before = snapshot(updater.module)
    metrics = updater.update(bad)
    assert metrics["skipped_updates"] == 1.0
    assert all(torch.equal(v, before[k]) for k, v in updater.module.state_dict().items())
    updater.update(good)
    assert updater.bad_streak == 0
    assert updater.bad_total == 1
    updater.update(bad)
    updater.update(bad)
    with pytest.raises(TrainingDivergedError, match="3 updates in a row"):
        updater.update(bad)


def test_a_single_non_finite_minibatch_is_left_out(monkeypatch):
    updater = make_updater()
    rollout = fragment(updater.module)
    original = Updater.prepare

    def poisoned(self, rollout):
        batch, metrics = original(self, rollout)
        batch.target[17] = float("inf")
        return batch, metrics

    monkeypatch.setattr(Updater, "prepare", poisoned)
    metrics = updater.update(rollout)
    assert metrics["skipped_updates"] == 3.0  # the sample's minibatch in each of three epochs
    assert all(torch.isfinite(v).all() for v in updater.module.state_dict().values())


def dumped(tmp_path, updater, rollout, sampler=None):
    state = {k: v.clone() for k, v in updater.module.state_dict().items()}
    return dump_rollout(tmp_path / "d.pt", rollout, updater, state, sampler)


def test_dump_says_where_the_first_bad_number_is(tmp_path):
    updater = make_updater()
    rollout = fragment(updater.module)
    rollout.obs[4, 1, 2] = float("nan")
    path = dumped(tmp_path, updater, rollout)
    assert describe_dump(path) == ["rollout.obs: 1 not finite, first at [4, 1, 2]"]


def test_a_dumped_update_is_replayed_to_where_it_fails(tmp_path):
    """A finite fragment and a critic whose output overflows in the loss alone."""
    updater = make_updater(max_bad_updates=1)
    rollout = fragment(updater.module)
    fine = dumped(tmp_path, updater, rollout)
    before = snapshot(updater.module)
    assert replay_update(fine) == []
    assert all(torch.equal(v, before[k]) for k, v in updater.module.state_dict().items())
    with torch.no_grad():
        updater.module.critic.out.weight.fill_(1e25)
    with pytest.raises(TrainingDivergedError):
        updater.update(rollout)
    lines = replay_update(dumped(tmp_path, updater, rollout))
    assert lines[0] == "minibatch 0: not finite"
    assert any("gradient of critic" in line for line in lines)


def test_a_dumped_fragment_is_sampled_again_bit_for_bit(tmp_path):
    updater = make_updater()
    sampler = Sampler(ToyLine(6, 0), 12, 3, torch.device("cpu"))
    sampler.run(updater.module)
    rollout, _ = sampler.run(updater.module)
    updater.config = updater.config.replace(num_envs=6, horizon=12)
    path = dumped(tmp_path, updater, rollout, sampler.before)
    assert replay_fragment(path, ToyLine(6, 99)) == []
    rollout.reward[2, 1] = float("nan")  # what the simulator did not do this time
    path = dumped(tmp_path, updater, rollout, sampler.before)
    assert replay_fragment(path, ToyLine(6, 99)) == ["rollout.reward: differs from the stored one"]
    with pytest.raises(InputError, match="another process"):
        replay_fragment(dumped(tmp_path, updater, rollout), ToyLine(6, 99))


def test_critic_only_iterations_leave_the_actor_alone():
    updater = make_updater(critic_only_iterations=1)
    before = snapshot(updater.module)
    updater.update(fragment(updater.module))
    after = snapshot(updater.module)
    moved = {k for k in after if not torch.equal(after[k], before[k])}
    assert any(k.startswith("critic.") for k in moved)
    assert not any(k.startswith(("actor.", "log_std")) for k in moved)
    updater.update(fragment(updater.module, 1))
    assert not torch.equal(snapshot(updater.module)["actor.out.weight"], after["actor.out.weight"])


def test_critic_gate_detaches_the_actor():
    updater = make_updater(critic_gate=1e-12, scale_rewards=False)
    before = snapshot(updater.module)
    updater.update(fragment(updater.module))
    assert torch.equal(snapshot(updater.module)["actor.out.weight"], before["actor.out.weight"])


def test_normaliser_warms_up_freezes_and_stops():
    warm = make_updater(normaliser_warmup=1)
    before = snapshot(warm.module)
    warm.update(fragment(warm.module))
    assert float(warm.module.normaliser.count) == 300
    assert torch.equal(snapshot(warm.module)["actor.out.weight"], before["actor.out.weight"])
    frozen = make_updater(normaliser="frozen")
    frozen.update(fragment(frozen.module))
    assert float(frozen.module.normaliser.count) == 0
    capped = make_updater(normaliser_samples=300)
    for seed in range(3):
        capped.update(fragment(capped.module, seed))
    assert float(capped.module.normaliser.count) == 300


def test_learning_rate_moves_once_per_iteration_and_a_large_kl_ends_the_epochs():
    updater = make_updater(kl_target=1e-9, lr_control="iteration")
    metrics = updater.update(fragment(updater.module))
    assert metrics["epochs"] == 1.0
    assert metrics["lr"] == pytest.approx(5e-4 / 1.5)
    calm = make_updater(kl_target=10.0, lr_control="iteration")
    metrics = calm.update(fragment(calm.module))
    assert metrics["epochs"] == 3.0
    assert metrics["lr"] == pytest.approx(5e-4 * 1.5)


def test_learning_rate_follows_the_kl_within_bounds_and_deviation_keeps_its_floor():
    updater = make_updater(kl_target=1e-9, lr_min=4e-4, std_floor=0.299, lr_control="minibatch")
    metrics = updater.update(fragment(updater.module))
    assert metrics["lr"] == 4e-4
    assert float(updater.module.log_std.detach().exp().min()) >= 0.299 - 1e-6
    constant = make_updater(kl_target=None)
    assert constant.update(fragment(constant.module))["lr"] == 5e-4


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_state_continues_bit_for_bit(optimiser):
    one = make_updater(optimiser=optimiser)
    one.update(fragment(one.module))
    other = make_updater(optimiser=optimiser, seed=5)
    other.module.load_state_dict(one.module.state_dict())
    other.load_state_dict(one.state_dict())
    other.rng.set_state(one.rng.get_state())
    rollout = fragment(one.module, 1)
    assert one.update(clone(rollout)) == other.update(clone(rollout))
    for key, value in one.module.state_dict().items():
        assert torch.equal(value, other.module.state_dict()[key]), key


class FakePair(Reducer):
    """Pretends to be one of two processes whose other half always sends the same numbers."""

    def __init__(self):
        super().__init__(1)
        self.messages = 0

    def sum_(self, tensor):
        self.messages += 1
        return tensor.mul_(2)

    def broadcast_(self, tensors):
        pass


def test_two_equal_processes_take_the_same_steps_as_one_with_one_message_each():
    single, pair = make_updater(), make_updater()
    pair.reducer = FakePair()
    pair.reducer.world = 2
    rollout = fragment(single.module)
    single.update(clone(rollout))
    pair.update(clone(rollout))
    for key, value in single.module.state_dict().items():
        if "count" not in key:
            torch.testing.assert_close(value, pair.module.state_dict()[key], rtol=1e-4, atol=1e-5)
    # finite check, advantages, normaliser, and one message per minibatch
    assert pair.reducer.messages == 3 + 3 * 5
