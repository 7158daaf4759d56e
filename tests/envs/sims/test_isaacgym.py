"""The bridge to Isaac Gym and its backend, against the stand-in."""

from __future__ import annotations

import gc
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from envs.sims import isaacgym_bridge
from envs.sims.base import SimConfig
from envs.sims.isaacgym_asset import isaacgym_mjcf
from envs.sims.isaacgym_server import layout, wire
from envs.sims.isaacgym_state import Conversion, blank_frame
from envs.sims.mujoco_cpu import MujocoCpuBackend
from envs.sims.registry import make_backend, missing
from envs.sims.terrain_contact import TerrainContact
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.character.rotations import quat_angle
from parc_ray.errors import InputError, SimulatorLostError
from parc_ray.terrain.heightfield import Heightfield
from tests.envs.helpers import random_state, stand_state
from tests.isaacgym_standin import standin

ROOT = Path(__file__).parents[3]
FLAT = Heightfield.flat((10, 10))
quick = partial(standin, torch=False)  # starts in a fifth of the time


@pytest.fixture(scope="module")
def bench(waddler_):
    """Three environments on two terrains, one server for the tests that do not end it."""
    with standin():
        sim = make_backend("isaacgym", waddler_, 3, [FLAT, Heightfield.flat((4, 6), height=1.0)])
        yield sim
        sim.close()


@pytest.fixture(scope="module")
def waddler_():
    from parc_ray.character.character import load_character

    return load_character(ROOT / "tests" / "assets" / "waddler.xml")


def put(sim, state, terrain=0):
    ids = torch.arange(sim.num_envs)
    sim.set_state(ids, torch.full_like(ids, terrain), state)


def zeros(sim):
    return torch.zeros(sim.num_envs, sim.character.skeleton.num_dofs)


# The engine's terms ------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["humanoid", "waddler"])
def test_flies_like_the_engine_in_this_process(which, request, humanoid, waddler_):
    """Random poses and spins: every conversion wrong would show (frames, order, centre of mass)."""
    character = humanoid if which == "humanoid" else waddler_
    config = SimConfig(self_collision=False, solver_iterations=10)
    direct = MujocoCpuBackend(character, 3, config)
    direct.load_terrains([FLAT, FLAT])
    with standin():
        sim = make_backend("isaacgym", character, 3, [Heightfield.flat((6, 8)), FLAT], config)
        start = random_state(character, 3, seed=4, z=20.0)
        plan = 0.3 * torch.randn(
            3, 6, character.skeleton.num_dofs, generator=torch.Generator().manual_seed(1)
        )
        for backend in (sim, direct):
            put(backend, start, terrain=1)
        got, want = sim.rollout(plan), direct.rollout(plan)
        sim.close()
    assert float((want.root_pos[:, -1] - start.root_pos).norm(dim=-1).min()) > 0.1
    assert float((want.root_ang_vel[:, -1] - start.root_ang_vel).norm(dim=-1).min()) > 0.1
    for name, atol in (("root_pos", 1e-3), ("root_lin_vel", 1e-2), ("dof_pos", 5e-3)):
        torch.testing.assert_close(getattr(got, name), getattr(want, name), atol=atol, rtol=0.0)
    for name in ("root_ang_vel", "dof_vel"):
        torch.testing.assert_close(getattr(got, name), getattr(want, name), atol=0.1, rtol=0.02)
    assert float(quat_angle(got.root_rot, want.root_rot).max()) < 5e-3


def test_what_was_set_is_what_the_engine_has(bench, waddler_):
    """The rows that the server gets, turned back, are what was set: also far from the origin."""
    state = random_state(waddler_, 3, seed=3, z=3.0)
    bench.set_state(torch.arange(3), torch.tensor([0, 1, 0]), state)
    conversion, offsets = bench._conversion, bench._mesh.offsets[[0, 1, 0]].T
    rows = {k: np.zeros_like(v) for k, v in bench._bridge.arrays.items()}
    conversion.write_rows(rows, bench._now, np.arange(3), offsets)
    _reflect(rows, 1)
    frame = conversion.frames(rows)[1]
    conversion.read(rows, 1, offsets, frame)
    back = frame.state
    for name in ("root_pos", "root_lin_vel", "root_ang_vel", "dof_pos", "dof_vel"):
        torch.testing.assert_close(getattr(back, name), getattr(state, name), atol=1e-5, rtol=1e-5)
    assert float(np.abs(offsets[1] - offsets[0]).max()) > 4.0


def test_other_orders_of_the_engine_are_undone():
    about = {"root_com": [0.0, 0.0, 0.1], "body_names": ["b", "a"], "dof_names": ["z", "x", "y"]}
    conversion = Conversion(about, ("a", "b"), ("x", "y", "z"))
    state = blank_frame(1, 2, 3)
    state.arrays["dof_pos"][0] = [1.0, 2.0, 3.0]
    state.arrays["dof_vel"][0] = [4.0, 5.0, 6.0]
    rows, size = layout.buffer_table(1, 2, 3, False)
    arrays = {r["name"]: np.zeros(r["shape"], dtype=r["dtype"]) for r in rows}
    conversion.write_rows(arrays, state, np.array([0]), np.zeros((3, 1), dtype=np.float32))
    assert arrays["set_dof"][0].tolist() == [[3, 6], [1, 4], [2, 5]]
    conversion.write_targets(arrays, np.array([[7.0, 8.0, 9.0]], dtype=np.float32))
    assert arrays["targets"].tolist() == [[9, 7, 8]]
    _reflect(arrays, 1)
    arrays["root"][6, 0] = -1.0
    arrays["force"][1, 0] = [[1, 1, 1], [2, 2, 2]]
    frame = conversion.frames(arrays)[1]
    conversion.read(arrays, 1, np.zeros((3, 1), dtype=np.float32), frame)
    back = frame.state
    assert back.dof_pos.tolist() == [[1, 2, 3]]
    assert back.dof_vel.tolist() == [[4, 5, 6]]
    assert back.contact_force[0, :, 0].tolist() == [2, 1]
    assert back.root_rot.tolist() == [[0, 0, 0, 1]]
    assert size >= sum(a.nbytes for a in arrays.values())


def _reflect(rows, half):
    """As an engine does that leaves everything as it was set."""
    rows["root"][:] = rows["set_root"].T
    rows["dof_pos"][half], rows["dof_vel"][half] = np.moveaxis(rows["set_dof"], -1, 0)


def test_a_step_that_is_lost_leaves_the_last_state_whole(waddler_):
    """The server had written part of the next one: it is in the other half of the buffers."""
    with quick():
        sim = make_backend("isaacgym", waddler_, 2, [FLAT])
        put(sim, stand_state(waddler_, 2, height=0.5))
        for _ in range(3):
            sim.step(zeros(sim))
            before, bridge = sim.state(), sim._bridge
            os.kill(bridge.process.pid, signal.SIGSTOP)
            bridge.step_s = bridge._patience_s = 0.1
            half = int(sim._now is sim._frames[0])
            for name in ("dof_pos", "dof_vel", "force"):
                bridge.arrays[name][half] = np.nan
            with pytest.raises(SimulatorLostError):
                sim.step(zeros(sim))
            for name, value in vars(sim.state()).items():
                assert torch.equal(value, getattr(before, name)), name
        sim.close()


def test_the_asset_has_three_hinges_for_each_ball(humanoid, waddler_):
    for character in (humanoid, waddler_):
        text = isaacgym_mjcf(character)
        assert "ball" not in text
        names = re.findall(r'<joint name="([^"]+)" type="hinge"', text)
        assert names == list(character.skeleton.dof_names)
    neck = re.search(r'<joint name="neck_y"[^>]* range="(\S+) (\S+)"', isaacgym_mjcf(humanoid))
    assert neck is not None
    assert [float(x) for x in neck.groups()] == pytest.approx([-40, 60], abs=1e-4)


def test_buffers_do_not_overlap():
    rows, size = layout.buffer_table(5, 3, 7, True)
    ends = [r["offset"] + np.dtype(r["dtype"]).itemsize * int(np.prod(r["shape"])) for r in rows]
    assert all(r["offset"] >= end for r, end in zip(rows[1:], ends[:-1], strict=True))
    assert all(r["offset"] % 64 == 0 for r in rows)
    assert size >= ends[-1]


# Contacts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("height", "kept"), [(-0.01, True), (0.02, True), (0.08, False), (0.5, False)]
)
def test_a_foot_touches_when_its_sole_is_near_a_top(humanoid, height, kept):
    state = stand_state(humanoid, 1, height=height)
    assert _touches(humanoid, [FLAT], state)[humanoid.feet[0]] == kept


@pytest.mark.parametrize(("gap", "kept"), [(0.02, True), (0.12, False)])
def test_a_hand_touches_a_wall_beside_it(humanoid, gap, kept):
    """Arms along y; the wall's face is at y = .2 + the hands' reach of a T-pose + the gap."""
    hand = humanoid.hands[0]
    state = stand_state(humanoid, 1, height=1.0)
    pos, _ = fk_from_dof(humanoid.skeleton, state.root_pos, state.root_rot, state.dof_pos)
    side = 1.0 if float(pos[0, hand, 1]) > 0 else -1.0
    face = abs(float(pos[0, hand, 1])) + 0.04 + gap
    heights = torch.zeros(3, 3)
    heights[:, 2 if side > 0 else 0] = 5.0
    middle = torch.tensor([-0.4, side * (face - 0.2) - 0.4])
    walled = Heightfield(heights=heights, origin=middle)
    assert _touches(humanoid, [walled], state)[hand] == kept


def _touches(character, terrains, state):
    """Which bodies' forces are kept, each with 1 N."""
    contact = TerrainContact(character, terrains, 3.0)
    pos, rot = fk_from_dof(character.skeleton, state.root_pos, state.root_rot, state.dof_pos)
    count = character.skeleton.num_bodies
    force, zero = torch.ones(1, count, 3), np.zeros(count, dtype=np.intp)
    pose = torch.cat((pos, rot), dim=-1)[0].numpy()
    contact.keep_terrain(force, zero, np.arange(count), pose, zero)
    return (force[0].abs().amax(-1) > 0).tolist()


# Ends of a server --------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["killed", "hung", "gone"])
def test_a_lost_server_is_noticed_and_the_next_step_goes_on(waddler_, end):
    with quick():
        sim = make_backend("isaacgym", waddler_, 2, [FLAT])
        put(sim, stand_state(waddler_, 2, height=0.5))
        sim.step(zeros(sim))
        bridge, before, pid = sim._bridge, sim.state(), sim.about["pid"]
        assert bridge.step_s < 5.0  # the longest that a hung one stays unnoticed
        if end == "hung":
            bridge.step_s = 0.5
            os.kill(pid, signal.SIGSTOP)
        else:
            os.kill(pid, signal.SIGKILL)
            if end == "gone":
                bridge.process.wait()
        with pytest.raises(SimulatorLostError, match=str(pid)):
            sim.step(zeros(sim))
        assert not _runs(pid)
        assert torch.equal(sim.state().root_pos, before.root_pos)
        sim.step(zeros(sim))
        assert sim.about["pid"] != pid
        speed = before.root_lin_vel[:, 2] - 9.81 * sim.control_dt / 2
        fallen = sim.state().root_pos[:, 2] - before.root_pos[:, 2]
        torch.testing.assert_close(fallen, speed * sim.control_dt, atol=5e-3, rtol=0.0)
        sim.close()


def _runs(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


@pytest.mark.parametrize("which", ["_control", "lifeline"])
def test_a_server_ends_with_its_client(waddler_, which):
    """Either descriptor at its end is enough: what happens to both when a client is killed."""
    with quick():
        sim = make_backend("isaacgym", waddler_, 1, [FLAT])
        bridge = sim._bridge
        control, lifeline = bridge._finalizer.peek()[2][1:3]
        (control if which == "_control" else lifeline).shutdown(2)
        assert bridge.process.wait(20.0) == 0
        sim.close()


def test_closing_ends_the_server_and_leaves_nothing(waddler_):
    """The memory has no name: a leak would be a mapping or a descriptor of this process."""
    gc.collect()
    before = _held()
    with quick():
        sim = make_backend("isaacgym", waddler_, 1, [FLAT])
        put(sim, stand_state(waddler_, 1))
        sim.step(zeros(sim))
        pid = sim.about["pid"]
        shared, descriptors = _held()
        assert len(shared) > len(before[0])
        assert len(descriptors) > len(before[1])
        sim.close()
        sim.close()
    assert not _runs(pid)
    del sim
    gc.collect()
    shared, descriptors = _held()
    assert shared <= before[0]
    assert descriptors <= before[1]


def _held():
    """Shared memory that is mapped, and open sockets and unnamed files, of this process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    shared = {line for line in lines if line.split()[1].endswith("s") and "(deleted)" in line}
    links = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            name = os.readlink(entry)
            if name.startswith("socket:") or "(deleted)" in name:
                links.add((entry.name, name))
    return shared, links


def test_the_first_step_may_take_as_long_as_the_setup(waddler_):
    with quick():
        sim = make_backend("isaacgym", waddler_, 1, [FLAT])
        bridge = sim._bridge
        bridge.step_s = 0.5
        for pause in (1.5, 30.0):  # the second is not waited for
            put(sim, stand_state(waddler_, 1))
            os.kill(bridge.process.pid, signal.SIGSTOP)
            timer = threading.Timer(pause, os.kill, (bridge.process.pid, signal.SIGCONT))
            timer.start()
            if pause < 2:
                sim.step(zeros(sim))
                continue
            with pytest.raises(SimulatorLostError, match=r"did not answer for 0\.5 s"):
                sim.step(zeros(sim))
            timer.cancel()
        sim.close()


def test_a_server_that_says_half_a_message_counts_as_hung(waddler_):
    with quick():
        bridge = make_backend("isaacgym", waddler_, 1, [FLAT])._bridge
        ours, theirs = socket.socketpair()
        bridge._control.close()
        bridge._control, bridge._poll = ours, select.poll()
        bridge._poll.register(ours, select.POLLIN)
        theirs.sendall(wire.FAILED + b"\0\0")
        with pytest.raises(SimulatorLostError):
            bridge._answer(0.3)
        for sock in (ours, theirs):
            sock.close()


def test_how_long_a_step_may_take_is_set_for_the_machine(monkeypatch):
    monkeypatch.delenv(isaacgym_bridge.STEP_S, raising=False)
    assert isaacgym_bridge.longest_step() == 4.0
    monkeypatch.setenv(isaacgym_bridge.STEP_S, "90")
    assert isaacgym_bridge.longest_step() == 90.0
    for wrong in ("soon", "0", "-1", "inf", "nan"):
        monkeypatch.setenv(isaacgym_bridge.STEP_S, wrong)
        with pytest.raises(InputError, match="seconds above 0"):
            isaacgym_bridge.longest_step()


def test_a_script_around_the_interpreter_does_not_shield_it(waddler_, tmp_path):
    """Without ``exec`` the process that was started is the shell; its child is the engine."""
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\n{sys.executable} "$@"\nexit $?\n')
    script.chmod(0o755)
    with standin(script, torch=False):
        sim = make_backend("isaacgym", waddler_, 1, [FLAT])
        put(sim, stand_state(waddler_, 1))
        sim.step(zeros(sim))
        pid = sim.about["pid"]
        assert pid != sim._bridge.process.pid
        sim._bridge.step_s = 0.3
        sim._bridge._patience_s = 0.3
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(SimulatorLostError):
            sim.step(zeros(sim))
        assert _ends(pid)
        sim.close()


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_a_hung_engine_ends_with_a_client_that_was_killed():
    """The server cannot run a line of Python: only the system can end it."""
    with quick():
        client = subprocess.Popen(
            [sys.executable, "-c", _CLIENT], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert client.stdout is not None
        pid = int(client.stdout.readline())
    os.kill(pid, signal.SIGSTOP)
    client.kill()
    client.wait()
    client.stdout.close()
    try:
        assert _ends(pid)
    finally:
        if _runs(pid):
            os.kill(pid, signal.SIGKILL)


_CLIENT = """
import time
from envs.sims.registry import make_backend
from parc_ray.character.character import load_character
from parc_ray.terrain.heightfield import Heightfield
waddler = load_character("tests/assets/waddler.xml")
sim = make_backend("isaacgym", waddler, 1, [Heightfield.flat((10, 10))])
print(sim.about["pid"], flush=True)
time.sleep(600)
"""


def _ends(pid):
    for _ in range(200):
        if not _runs(pid):
            return True
        time.sleep(0.05)
    return False


def test_a_failing_server_says_why(waddler_):
    """Numbers that are not finite never get there; here they are put past the backend."""
    with quick():
        sim = make_backend("isaacgym", waddler_, 1, [FLAT])
        put(sim, stand_state(waddler_, 1))
        sim.step(zeros(sim))
        sim._bridge.arrays["targets"][:] = np.nan
        with pytest.raises(SimulatorLostError, match="not finite"):
            sim._bridge.step()
        sim.close()


# What is missing ---------------------------------------------------------------------------------


def test_without_an_interpreter_it_says_so(waddler_, monkeypatch, tmp_path):
    monkeypatch.delenv(isaacgym_bridge.PYTHON, raising=False)
    assert "PARC_ISAACGYM_PYTHON is not set" in (missing("isaacgym") or "")
    with pytest.raises(InputError, match=r"docs/isaacgym\.md"):
        make_backend("isaacgym", waddler_, 1, [FLAT])
    monkeypatch.setenv(isaacgym_bridge.PYTHON, str(tmp_path / "python"))
    assert "no executable file" in (missing("isaacgym") or "")
    monkeypatch.setenv(isaacgym_bridge.PYTHON, sys.executable)
    assert missing("isaacgym") is None


def test_an_interpreter_without_the_package_is_named(waddler_, monkeypatch, tmp_path):
    monkeypatch.setenv(isaacgym_bridge.PYTHON, sys.executable)
    monkeypatch.setenv(isaacgym_bridge.PYTHONPATH, str(tmp_path))
    with pytest.raises(InputError, match="No module named 'isaacgym'"):
        make_backend("isaacgym", waddler_, 1, [FLAT])


def test_info_lets_the_interpreter_import_the_package(monkeypatch, tmp_path):
    from envs.sims.registry import found_by_trying

    with quick():
        assert found_by_trying("isaacgym") is None
    monkeypatch.setenv(isaacgym_bridge.PYTHON, sys.executable)
    monkeypatch.setenv(isaacgym_bridge.PYTHONPATH, str(tmp_path))
    assert missing("isaacgym") is None
    assert "No module named 'isaacgym'" in (found_by_trying("isaacgym") or "")
    (tmp_path / "isaacgym.py").write_text("import time; time.sleep(600)")
    monkeypatch.setattr(isaacgym_bridge, "_IMPORT_S", 0.5)
    assert "within 0.5 s" in (found_by_trying("isaacgym") or "")
    monkeypatch.delenv(isaacgym_bridge.PYTHON)
    assert "is not set" in (found_by_trying("isaacgym") or "")


def test_a_file_that_is_no_program_is_named(waddler_, monkeypatch, tmp_path):
    program = tmp_path / "python"
    program.write_bytes(b"not a program")
    program.chmod(0o755)
    monkeypatch.setenv(isaacgym_bridge.PYTHON, str(program))
    with pytest.raises(InputError, match="cannot be run"):
        make_backend("isaacgym", waddler_, 1, [FLAT])


def test_another_version_of_the_bridge_is_refused(waddler_, monkeypatch):
    monkeypatch.setattr(isaacgym_bridge, "PROTOCOL", layout.PROTOCOL + 1)
    with quick(), pytest.raises(SimulatorLostError, match="one version of the project"):
        make_backend("isaacgym", waddler_, 1, [FLAT])


def test_a_server_sees_one_gpu_and_none_of_our_python(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/ours")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    monkeypatch.delenv(isaacgym_bridge.PYTHONPATH, raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    outside = isaacgym_bridge.server_environment()
    assert outside["CUDA_VISIBLE_DEVICES"] == "0,1,2"
    assert "PYTHONPATH" not in outside
    for gpus, seen in (([2, 1], "2"), ([], "")):
        worker = SimpleNamespace(worker=SimpleNamespace(mode=1))
        fake = SimpleNamespace(
            is_initialized=lambda: True,
            WORKER_MODE=1,
            get_runtime_context=lambda worker=worker: worker,
            get_gpu_ids=lambda gpus=gpus: gpus,
        )
        monkeypatch.setitem(sys.modules, "ray", fake)
        assert isaacgym_bridge.server_environment()["CUDA_VISIBLE_DEVICES"] == seen
