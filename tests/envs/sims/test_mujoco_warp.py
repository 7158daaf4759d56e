"""What MuJoCo Warp does beyond the conformance suite; everything on the CPU."""

from __future__ import annotations

import json
import logging
import sys
from types import SimpleNamespace

import pytest
import torch

from envs.sims import mujoco_warp
from envs.sims.base import SimConfig
from envs.sims.registry import BACKENDS, make_backend, missing
from parc_ray import cli
from parc_ray.character.character import load_character
from parc_ray.errors import InputError
from parc_ray.terrain.heightfield import Heightfield
from tests.envs.helpers import random_state, stand_state
from tests.envs.sims.scenes import CONFIG, STOOL, quick_kernels

pytest.importorskip("mujoco_warp", reason="extra 'warp' is not installed")

FLAT = Heightfield.flat((8, 8))


@pytest.fixture(scope="module", autouse=True)
def _quick_kernels():
    with quick_kernels():
        yield


@pytest.fixture(scope="module")
def stool():
    return load_character(STOOL)


def opened(character, num_envs, **config):
    settings = {**vars(CONFIG), **config}
    return make_backend("mujoco_warp", character, num_envs, [FLAT], SimConfig(**settings))


def put(sim, state):
    ids = torch.arange(sim.num_envs)
    sim.set_state(ids, torch.zeros_like(ids), state)


def test_states_agree_with_mujoco_on_the_cpu(stool):
    """The same model in float32: equal within rounding, in the air and standing."""
    warp = opened(stool, 3)
    cpu = make_backend("mujoco_cpu", stool, 3, [FLAT], CONFIG)
    assert warp.model_hash == cpu.model_hash
    state = random_state(stool, 3, seed=4, z=2.0)
    state.dof_pos *= 0.1  # apart from itself: five solver iterations do not agree on deep contacts
    state.dof_vel *= 0.3
    on_ground = stand_state(stool, 1)
    for name, value in vars(state).items():
        value[2] = getattr(on_ground, name)[0]
    plan = 0.05 * torch.randn(3, 5, 7)
    plan[2] = 0.0
    for sim in (warp, cpu):
        put(sim, state)
    ours, theirs = warp.rollout(plan), cpu.rollout(plan)
    for name, in_air, standing in (("root_pos", 1e-4, 1e-3), ("dof_pos", 1e-3, 5e-3)):
        error = (getattr(ours, name) - getattr(theirs, name)).abs().amax((1, 2))
        assert float(error[:2].max()) < in_air
        assert float(error[2]) < standing
    feet = list(stool.feet)
    up = ours.contact_force[2, -1, feet, 2]
    torch.testing.assert_close(up, theirs.contact_force[2, -1, feet, 2], atol=0.5, rtol=0.0)
    warp.close()
    cpu.close()


def test_too_little_room_is_said_and_the_step_repeated(stool, caplog):
    """Two environments stand on four corners of two feet: 8 contacts each, 32 rows."""
    roomy, tight = opened(stool, 2), opened(stool, 2, max_contacts=3, max_constraints=10)
    for sim in (roomy, tight):
        put(sim, stand_state(stool, 2))
    plan = torch.zeros(2, 4, 7)
    with caplog.at_level(logging.WARNING, logger="envs.sims.warp_world"):
        ours, theirs = tight.rollout(plan), roomy.rollout(plan)
    assert tight.growths >= 2
    assert roomy.growths == 0
    for name, value in vars(theirs).items():
        torch.testing.assert_close(getattr(ours, name), value, atol=1e-6, rtol=1e-5)
    message = caplog.text
    for word in ("2 of 2", "contacts", "constraints", "sim.max_contacts", "repeated"):
        assert word in message
    roomy.close()
    tight.close()


def test_room_does_not_grow_for_ever(stool, monkeypatch):
    from envs.sims import warp_world

    monkeypatch.setattr(warp_world, "_MOST_GROWTHS", 0)
    sim = opened(stool, 1, max_contacts=2)
    put(sim, stand_state(stool, 1))
    with pytest.raises(InputError, match=r"sim\.max_contacts"):
        sim.step(torch.zeros(1, 7))
    sim.close()


def test_other_overflows_are_said_once(stool, caplog):
    from mujoco_warp import OverflowType as Kind

    sim = opened(stool, 3)
    worlds = sim._worlds
    worlds._overflow[:2] = int(Kind.EPA_HORIZON)
    worlds._overflow[2] = int(Kind.HFIELD | Kind.ITERATIONS | Kind.LS_ITERATIONS)
    for _ in range(2):
        assert worlds._lacking() == 0
    said = [r.getMessage() for r in caplog.records if "overflow" in r.getMessage()]
    assert len(said) == 2
    assert "HFIELD in 1 of 3" in said[0] + said[1]
    assert "EPA_HORIZON in 2 of 3" in said[0] + said[1]
    worlds._overflow[:] = int(Kind.NVMAX)
    worlds._lacking()
    assert "NVMAX in 3 of 3" in caplog.text
    sim.close()


def test_torch_looks_at_warps_own_arrays(stool):
    sim = opened(stool, 2)
    put(sim, stand_state(stool, 2, height=5.0))
    worlds = sim._worlds
    assert worlds.qpos.data_ptr() == worlds._data.qpos.ptr
    before = worlds.qpos.clone()
    sim.step(torch.zeros(2, 7))
    assert not torch.equal(worlds.qpos, before)
    sim.close()


def test_saved_states_of_another_size_are_refused(stool):
    sim, other = opened(stool, 2), opened(stool, 3)
    with pytest.raises(ValueError, match="qpos"):
        other.load_state_dict(sim.state_dict())
    sim.close()
    other.close()


def test_a_device_that_is_not_there_is_named(stool):
    with pytest.raises(InputError, match=r"sim\.device: 'cuda:97' is not on this machine.*cpu"):
        opened(stool, 1, device="cuda:97")
    with pytest.raises(InputError, match=r"sim\.device: 'gpu' is unknown"):
        SimConfig(device="gpu")


@pytest.mark.parametrize(("gpus", "device"), [(None, "cuda:0"), ([3], "cuda:0"), ([], "cpu")])
def test_a_worker_takes_only_a_gpu_that_ray_gave_it(monkeypatch, caplog, gpus, device):
    """Ray lets a worker without GPUs see them all; None: not a worker."""
    from envs.sims import warp_world

    monkeypatch.setattr(warp_world.wp, "get_devices", lambda: ["cpu", "cuda:0", "cuda:1"])
    fake = SimpleNamespace(
        is_initialized=lambda: gpus is not None,
        WORKER_MODE=1,
        get_runtime_context=lambda: SimpleNamespace(worker=SimpleNamespace(mode=1)),
        get_gpu_ids=lambda: gpus,
    )
    monkeypatch.setitem(sys.modules, "ray", fake)
    assert warp_world.pick_device("auto") == device
    assert warp_world.pick_device("cuda:1") == "cuda:1"  # forced
    assert ("got no GPU from Ray" in caplog.text) == (device == "cpu")


@pytest.mark.parametrize(
    ("simulator", "device", "gpus", "warned"),
    [
        ("mujoco_warp", "auto", 0.0, True),
        ("isaacgym", "auto", 0.0, True),
        ("mujoco_warp", "auto", 0.25, False),
        ("mujoco_warp", "cpu", 0.0, False),
        ("mujoco_cpu", "auto", 0.0, False),
    ],
)
def test_the_driver_says_that_workers_have_no_gpu(caplog, simulator, device, gpus, warned):
    from parc_ray.config import ParcConfig
    from parc_ray.stages._trackers import warn_of_cpu

    config = ParcConfig(simulator=simulator, sim=SimConfig(device=device))
    context = SimpleNamespace(config=config, stage_path=lambda name: f"it_01/{name}")
    run = SimpleNamespace(ctx=context, name="record", log=logging.getLogger("test_driver"))
    warn_of_cpu(run, gpus, "--resources.places.record.gpus")
    assert ("--resources.places.record.gpus" in caplog.text) == warned


def test_closing_twice_is_no_error(stool):
    sim = opened(stool, 1)
    sim.close()
    sim.close()


def test_missing_packages_are_named(stool, monkeypatch):
    assert missing("mujoco_warp") is None
    monkeypatch.setattr(mujoco_warp, "_PACKAGES", ("warp", "mujoco_warp_of_tomorrow"))
    want = r"mujoco_warp_of_tomorrow is not installed; run: pip install 'parc-ray\[warp\]'"
    with pytest.raises(InputError, match=want):
        opened(stool, 1)
    assert "mujoco_warp_of_tomorrow" in (missing("mujoco_warp") or "")


def test_info_says_which_simulators_run_here(monkeypatch, capsys):
    def told(*words: str) -> str:
        with pytest.raises(SystemExit) as caught:
            cli.main(["info", *words])
        assert caught.value.code == 0
        return capsys.readouterr().out

    assert "simulator  mujoco_warp: runs here" in told()
    monkeypatch.setattr(mujoco_warp, "_PACKAGES", ("warp_of_tomorrow",))
    assert "simulator  mujoco_warp: package warp_of_tomorrow is not installed; run: pip" in told()
    found = json.loads(told("--json"))["simulators"]
    assert set(found) == set(BACKENDS)
    assert found["mujoco_cpu"] is None
    assert "warp_of_tomorrow" in found["mujoco_warp"]
