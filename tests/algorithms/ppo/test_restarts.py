"""Going on after a lost learner, with an algorithm that only counts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, RayTaskError

from algorithms.ppo import train
from algorithms.ppo.config import TrackerConfig
from algorithms.ppo.networks import NetSpec
from algorithms.ppo.policy import MlpPolicy
from algorithms.ppo.sizes import EnvSizes
from algorithms.ppo.update import TrainingDivergedError
from parc_ray.errors import InputError, SimulatorLostError

CONFIG = TrackerConfig(
    num_envs=4,
    horizon=5,
    hidden=(3,),
    placement="colocated",
    num_learners=2,
    checkpoint_every=2,
    samples=5 * 40,
)
SIZES = EnvSizes(obs_dim=2, action_dim=1)


def own(error: Exception) -> Exception:
    """What Ray makes of an actor's own error: an error of both kinds."""
    return RayTaskError("update", "traceback", error).as_instanceof_cause()


class Counting:
    """Counts iterations; `errors` are raised in turn when iteration 4 begins."""

    errors: list[BaseException] = []  # noqa: RUF012
    started = stopped = 0

    def __init__(self, config: Any) -> None:
        self.iteration = self.samples = 0
        type(self).started += 1

    def train(self) -> dict[str, Any]:
        if self.iteration == 3 and self.errors:
            raise self.errors.pop(0)
        self.iteration += 1
        self.samples += CONFIG.samples_per_iteration
        return {"tracker": {"samples": float(self.samples)}}

    def training_state(self) -> dict[str, Any]:
        return {"iteration": self.iteration, "samples": self.samples}

    def load_training_state(self, state: dict[str, Any]) -> None:
        self.iteration, self.samples = state["iteration"], state["samples"]

    def export_policy(self) -> MlpPolicy:
        return MlpPolicy(NetSpec(obs_dim=2, action_dim=1, hidden=(3,), activation="relu"))

    def stop(self) -> None:
        type(self).stopped += 1


@pytest.fixture
def counting(monkeypatch):
    class Fresh(Counting):
        errors: list[BaseException] = []  # noqa: RUF012
        started = stopped = 0

    monkeypatch.setattr(train, "TensorPPO", Fresh)
    return Fresh


def run(path, config=CONFIG):
    seen: list[int] = []
    result = train.train_tracker(
        config, "any", {}, path, sizes=SIZES, on_iteration=lambda i, _: seen.append(i)
    )
    return result, seen


def test_a_lost_learner_costs_what_was_done_since_the_checkpoint(counting, tmp_path):
    counting.errors = [ActorDiedError(), ActorDiedError()]
    result, seen = run(tmp_path)
    assert seen == [1, 2, 3, 3, 3, 4, 5]
    assert (result.iterations, result.resumed_from) == (5, 2)
    assert counting.started == counting.stopped == 3
    lines = [json.loads(s) for s in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "changes",
    [{}, {"placement": "local", "num_learners": 0}, {"placement": "split", "num_runners": 1}],
)
@pytest.mark.parametrize("where", ["here", "in an actor"])
def test_a_lost_simulator_costs_as_much_in_every_placement(counting, tmp_path, changes, where):
    lost = SimulatorLostError("the server (process 7) ended")
    counting.errors = [lost if where == "here" else own(lost)]
    result, seen = run(tmp_path, CONFIG.replace(**changes))
    assert seen == [1, 2, 3, 3, 4, 5]
    assert (result.iterations, result.resumed_from) == (5, 2)


def test_before_the_first_checkpoint_it_starts_again(counting, tmp_path):
    counting.errors = [ActorDiedError()]
    result, seen = run(tmp_path, CONFIG.replace(checkpoint_every=50))
    assert seen == [1, 2, 3, 1, 2, 3, 4, 5]
    assert result.resumed_from == 0
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 5


@pytest.mark.parametrize(
    ("error", "changes", "starts"),
    [
        (ActorDiedError(), {"restarts": 0}, 1),
        (own(TrainingDivergedError("20 updates in a row were not finite")), {}, 1),
        (own(RuntimeError("a mistake")), {}, 1),
        (RuntimeError("a mistake"), {}, 1),
        (ActorDiedError(), {"placement": "local", "num_learners": 0}, 1),
    ],
)
def test_other_ends_are_ends(counting, tmp_path, error, changes, starts):
    counting.errors = [error, error]
    with pytest.raises(type(error)):
        run(tmp_path, CONFIG.replace(**changes))
    assert counting.started == counting.stopped == starts


def test_a_field_that_a_checkpoint_does_not_know_counts_as_its_default(counting, tmp_path):
    run(tmp_path)
    path = tmp_path / "ckpt_000005" / "state.pt"
    state = train.load_state(path)
    values = json.loads(state["run"]["fingerprint"]["config"])
    del values["encoders"], values["noise_memory"]
    state["run"]["fingerprint"]["config"] = json.dumps(values)
    from algorithms.ppo.checkpoint import save_state
    from parc_ray.data.digests import write_digest

    save_state(path, state)
    write_digest(path)
    result, seen = run(tmp_path, CONFIG.replace(samples=6 * 40))
    assert seen == [6]
    assert result.resumed_from == 5
    with pytest.raises(InputError, match="noise_memory"):
        run(tmp_path, CONFIG.replace(samples=7 * 40, noise_memory=0.5))


def test_damaged_checkpoints_are_in_use_too(counting, tmp_path):
    """Who does not want to resume loses nothing, not even where nothing whole is left."""
    run(tmp_path)
    for file in tmp_path.glob("ckpt_*/state.pt"):
        file.write_bytes(file.read_bytes()[:-1])
    before = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*"))
    with pytest.raises(InputError, match="holds checkpoints already"):
        train.train_tracker(CONFIG, "any", {}, tmp_path, sizes=SIZES, resume=False)
    assert sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*")) == before
