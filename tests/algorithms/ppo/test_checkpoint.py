"""States as safe files, and the folder of a run."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from algorithms.ppo.checkpoint import STATE_FILE, load_state, save_state
from algorithms.ppo.networks import NetSpec
from algorithms.ppo.policy import MlpPolicy
from algorithms.ppo.storage import RunFolder
from parc_ray.errors import InputError


def test_state_tree_round_trip(tmp_path):
    pcg = np.random.default_rng(3).bit_generator.state
    state = {
        "t": torch.arange(3.0, dtype=torch.float64),
        "array": np.arange(6, dtype=np.int64).reshape(2, 3),
        "scalar": np.float32(1.5),
        "pcg": pcg,
        "list": [1, (2.5, None, True)],
        3: {"text": "é", "bytes": b"\x00\xff"},
        "empty": np.zeros((0, 4)),
    }
    save_state(tmp_path / "s.pt", state)
    back = load_state(tmp_path / "s.pt")
    assert torch.equal(back["t"], state["t"])
    assert back["t"].dtype == torch.float64
    assert isinstance(back["array"], np.ndarray)
    np.testing.assert_array_equal(back["array"], state["array"])
    assert back["scalar"] == 1.5
    assert back["pcg"] == pcg  # 128-bit integers included
    assert back["list"] == state["list"]
    assert back[3] == state[3]
    assert back["empty"].shape == (0, 4)


def test_objects_are_refused_with_their_place(tmp_path):
    with pytest.raises(TypeError, match=r"state\.a\[1\]"):
        save_state(tmp_path / "s.pt", {"a": [1, object()]})


@pytest.fixture
def policy():
    return MlpPolicy(NetSpec(obs_dim=2, action_dim=1, hidden=(3,), activation="relu"))


def test_folder_keeps_the_newest_and_prunes(policy, tmp_path):
    folder = RunFolder(tmp_path, keep=1)
    for iteration in (5, 10, 15):
        folder.save(iteration, {"iteration": iteration}, policy)
    assert sorted(p.name for p in tmp_path.glob("ckpt_*")) == ["ckpt_000010", "ckpt_000015"]
    newest = folder.newest()
    assert newest is not None
    assert load_state(newest / STATE_FILE)["iteration"] == 15


def test_kill_between_writing_and_publishing_leaves_the_older_checkpoint(policy, tmp_path):
    folder = RunFolder(tmp_path, keep=2)
    folder.save(5, {"iteration": 5}, policy)
    half = tmp_path / ".ckpt_000010.tmp"
    half.mkdir()
    (half / STATE_FILE).write_bytes(b"half")
    again = RunFolder(tmp_path, keep=2)
    newest = again.newest()
    assert newest is not None
    assert newest.name == "ckpt_000005"
    assert not half.exists()
    again.save(10, {"iteration": 10}, policy)


def test_restore_brings_back_log_and_best_of_that_moment(policy, tmp_path):
    folder = RunFolder(tmp_path, keep=5)
    policy.notes = {"score": 1}
    folder.log(1, {"x": 1.0})
    folder.keep_best(policy)
    folder.save(1, {}, policy)
    folder.log(2, {"x": 2.0})
    policy.notes = {"score": 2}
    folder.keep_best(policy)
    with (tmp_path / "metrics.jsonl").open("a") as handle:
        handle.write('{"iteration": 3, "x"')  # killed while writing
    folder.restore(1)
    lines = [json.loads(s) for s in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"iteration": 1, "x": 1.0}]
    assert MlpPolicy.load(tmp_path / "best.pt").notes == {"score": 1}


def test_missing_checkpoint_is_named(policy, tmp_path):
    folder = RunFolder(tmp_path, keep=1)
    (tmp_path / "LATEST").write_text("ckpt_000077\n")
    with pytest.raises(InputError, match="ckpt_000077"):
        folder.newest()


def test_a_damaged_checkpoint_is_passed_over_and_without_any_it_starts_again(policy, tmp_path):
    folder = RunFolder(tmp_path, keep=2)
    for iteration in (5, 10):
        folder.log(iteration, {})
        folder.save(iteration, {"iteration": iteration}, policy)
    for name, left in (("ckpt_000010", "ckpt_000005"), ("ckpt_000005", None)):
        file = tmp_path / name / STATE_FILE
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1  # one bit
        file.write_bytes(content)
        newest = RunFolder(tmp_path, keep=2).newest()
        assert (newest.name if newest else None) == left
        if left is not None:
            assert (tmp_path / "LATEST").read_text() == f"{left}\n"
    assert not (tmp_path / "LATEST").exists()
    assert (tmp_path / "metrics.jsonl").read_text() == ""
