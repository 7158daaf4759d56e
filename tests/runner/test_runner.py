"""The runner against the environment the policy was trained in, and without torch and Ray."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("onnxruntime", reason="the runner needs onnxruntime: pip install '.[export]'")
pytest.importorskip("onnx", reason="bundles are written by onnx: pip install '.[export]'")
pytest.importorskip("onnxscript", reason="bundles are written by it: pip install '.[export]'")

from envs.sims.registry import backend_factory
from envs.tracking.motion_bank import MotionBank
from envs.tracking.rollouts import EpisodeRunner
from envs.tracking.task import REASONS, TrackingTask
from parc_ray.data.exporters.table import encode_npz
from parc_ray.deploy.bundle import write_bundle
from parc_ray.errors import InputError
from parc_ray.runner.__main__ import main
from parc_ray.runner.bundle import Bundle
from parc_ray.runner.observations import State
from parc_ray.runner.track import Tracker
from parc_ray.terrain.heightfield import Heightfield
from tests.deploy.bundles import make_bundle
from tests.envs.helpers import random_state, sway_clip

ROOT = Path(__file__).resolve().parent.parent.parent


def uneven(seed=0):
    rng = np.random.default_rng(seed)
    heights = 0.1 * rng.integers(-2, 2, size=(24, 20))
    heights[8:16, 6:14] = 0.0
    return Heightfield(
        heights=torch.from_numpy(heights).float(), origin=torch.tensor([-4.6, -3.8]), cell_size=0.4
    )


def tracker_of(tmp_path, name="humanoid", tracking="quick"):
    files, policy, config = make_bundle(name, tracking)
    write_bundle(files, tmp_path / "bundle")
    return Tracker(Bundle.open(tmp_path / "bundle")), policy, config


def written(tracker, clip, character, path):
    path.write_bytes(encode_npz(clip, character))
    return tracker.read(path)


def numpy_state(state, row):
    names = ("root_pos", "root_rot", "root_lin_vel", "root_ang_vel", "dof_pos", "dof_vel")
    parts = [getattr(state, name)[row].numpy() for name in names]
    return State(*parts, state.contact_force[row].numpy())


@pytest.mark.parametrize(
    ("name", "tracking"),
    [("humanoid", "quick"), ("humanoid", "upstream"), ("humanoid", "base"), ("waddler", "quick")],
)
def test_observations_are_those_of_training(tmp_path, humanoid, waddler, name, tracking):
    """All numbers of both layouts, from random states over uneven ground."""
    character = humanoid if name == "humanoid" else waddler
    tracker, _, config = tracker_of(tmp_path, name, tracking)
    clip = sway_clip(character, 50, speed=0.6, heading=0.7, terrain=uneven())
    read = written(tracker, clip, character, tmp_path / "clip.npz")
    bank = MotionBank(character, [clip])
    task = TrackingTask(character, bank, config.tracking)
    states = random_state(character, 6)
    states.contact_force[::2, 1, 2] = 30.0
    size = sum(b.size for b in task.builder.layout.blocks if not b.critic_only)
    for row, frame in enumerate((0, 3, 17, 31, 48, 49)):
        at, zero = torch.tensor([frame]), torch.zeros(1, dtype=torch.long)
        state = states.index(slice(row, row + 1))
        seen = task.observe(state, task.references(zero, at), zero, at)
        wanted = task.builder(seen)[0, :size].numpy()
        found = tracker.observer(numpy_state(state, 0), read, frame)
        np.testing.assert_allclose(found, wanted, atol=2e-5)


@pytest.mark.parametrize("tracking", ["quick", "upstream"])
def test_it_completes_and_fails_what_the_environment_does(tmp_path, humanoid, tracking):
    """Same steps, same reason, same end, and the same motion as long as no contact differs."""
    tracker, policy, config = tracker_of(tmp_path, tracking=tracking)
    clips = [
        sway_clip(humanoid, 40, clip_id="stand", amplitude=0.03),
        sway_clip(humanoid, 40, clip_id="glide", speed=1.5, terrain=uneven()),
        sway_clip(humanoid, 40, clip_id="wild", amplitude=0.7),
    ]
    factory = backend_factory("mujoco_cpu", humanoid, config.sim)
    runner = EpisodeRunner(humanoid, clips, config.tracking, factory, len(clips))
    ids = torch.arange(len(clips))
    done = runner.run(policy, ids, torch.zeros_like(ids), keep=True)
    runner.close()
    assert done.states is not None
    for row, clip in enumerate(clips):
        mine = tracker.track(written(tracker, clip, humanoid, tmp_path / "clip.npz"))
        code = int(done.reason[row])
        assert mine.completed == bool(done.completed[row]), clip.clip_id
        assert mine.reason == (REASONS[code] if code >= 0 else "")
        assert abs(mine.steps - int(done.steps[row])) <= 1
        few = min(8, mine.steps)
        root = done.states.root_pos[: few + 1, row].numpy()
        np.testing.assert_allclose(mine.root_pos[: few + 1], root, atol=2e-3)
    if tracking == "quick":  # residuals on the reference; absolute targets of noise hold nobody
        assert len(set(done.completed.tolist())) == 2  # some end, some fail


_BLOCKED = """
import sys
for name in ("torch", "ray", "onnx", "scipy", "pandas"):
    sys.modules[name] = None
from parc_ray.runner.__main__ import main
code = main(sys.argv[1:])
loaded = {m.split(".")[0] for m in sys.modules if sys.modules[m] is not None}
assert not loaded & {"torch", "ray", "algorithms", "envs"}, loaded
sys.exit(code)
"""


def test_it_runs_where_neither_torch_nor_ray_can_be_imported(tmp_path, humanoid):
    files, _, _ = make_bundle()
    write_bundle(files, tmp_path / "tracker.zip")
    clip = sway_clip(humanoid, 30, amplitude=0.03)
    (tmp_path / "sway.npz").write_bytes(encode_npz(clip, humanoid))
    words = [str(tmp_path / "tracker.zip"), str(tmp_path / "sway.npz"), "--out", str(tmp_path)]
    words[-1] = str(tmp_path / "out")
    done = subprocess.run(
        [sys.executable, "-c", _BLOCKED, *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert "steps" in done.stdout
    with np.load(tmp_path / "out" / "sway.simulated.npz") as made:
        assert made["dof"].shape[1] == humanoid.skeleton.num_dofs


def test_damaged_bundles_and_foreign_clips_are_refused(tmp_path, humanoid, waddler, capsys):
    files, _, _ = make_bundle()
    write_bundle(files, tmp_path / "bundle")
    with pytest.raises(InputError, match="is never written over"):
        write_bundle(files, tmp_path / "bundle")
    tracker = Tracker(Bundle.open(tmp_path / "bundle"))
    path = tmp_path / "clip.npz"
    path.write_bytes(encode_npz(sway_clip(waddler, 20), waddler))
    with pytest.raises(InputError, match="export clips of that character"):
        tracker.read(path)
    path.write_bytes(encode_npz(replace(sway_clip(humanoid, 20), fps=60.0), humanoid))
    with pytest.raises(InputError, match="60 fps; the policy needs 30"):
        tracker.read(path)
    (tmp_path / "bundle" / "simulation.xml").write_text("<mujoco/>")
    with pytest.raises(InputError, match=r"simulation\.xml was changed"):
        Bundle.open(tmp_path / "bundle")
    (tmp_path / "bundle" / "tracker.onnx").unlink()
    with pytest.raises(InputError, match=r"tracker\.onnx is missing|was changed"):
        Bundle.open(tmp_path / "bundle")
    assert main([str(tmp_path / "none"), str(path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
