from __future__ import annotations

import mujoco
import numpy as np
import pytest
import torch

from envs.sims.base import SimConfig
from envs.sims.mujoco_cpu import MujocoCpuBackend
from envs.sims.mujoco_model import ModelBuilder, effective_inertia
from envs.sims.registry import make_backend
from envs.sims.replay import replay_clip
from parc_ray.character.character import load_character
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.character.rotations import quat_angle
from parc_ray.errors import InputError
from parc_ray.motion.clip import Replay
from parc_ray.protocols import SimBackend, SimState
from parc_ray.terrain.heightfield import Heightfield
from tests.envs.helpers import WADDLER, assert_same, random_state, stand_state

FLAT = Heightfield.flat((10, 10))


def backend(character, num_envs, terrains=(FLAT,), **config):
    out = MujocoCpuBackend(character, num_envs, SimConfig(**config))
    out.load_terrains(list(terrains))
    return out


def everyone(sim):
    return torch.arange(sim.num_envs)


def put(sim, state, terrain=0):
    ids = everyone(sim)
    sim.set_state(ids, torch.full_like(ids, terrain), state)


def targets(sim, steps, seed=0, size=0.2):
    rng = torch.Generator().manual_seed(seed)
    dofs = sim.character.skeleton.num_dofs
    return size * torch.randn(sim.num_envs, steps, dofs, generator=rng)


@pytest.fixture(scope="module")
def waddler():
    return load_character(WADDLER)


def test_implements_the_protocol(humanoid):
    assert isinstance(backend(humanoid, 1), SimBackend)


@pytest.mark.parametrize("which", ["humanoid", "waddler"])
def test_shared_fk_of_the_state_equals_mujocos_bodies(which, request):
    character = request.getfixturevalue(which)
    sim = backend(character, 4)
    put(sim, random_state(character, 4))
    state = sim.state()
    body_pos, body_rot = fk_from_dof(
        character.skeleton, state.root_pos, state.root_rot, state.dof_pos
    )
    model = sim._models[0]
    data = mujoco.MjData(model)
    for env in range(4):
        spec = mujoco.mjtState.mjSTATE_FULLPHYSICS.value
        mujoco.mj_setState(model, data, sim._physics[env], spec)
        mujoco.mj_forward(model, data)
        for b, name in enumerate(character.skeleton.body_names):
            body = data.body(name)
            assert np.abs(body.xpos - body_pos[env, b].numpy()).max() < 1e-5
            theirs = torch.tensor(body.xquat[[1, 2, 3, 0]], dtype=torch.float32)
            assert float(quat_angle(theirs, body_rot[env, b])) < 1e-5 * 100


def test_velocities_mean_the_same_in_mujoco(humanoid):
    """Origin velocity and world angular velocity against mj_objectVelocity, dof rates by FD."""
    sim = backend(humanoid, 1)
    put(sim, random_state(humanoid, 1, seed=3))
    state, model = sim.state(), sim._models[0]
    data = mujoco.MjData(model)
    mujoco.mj_setState(model, data, sim._physics[0], mujoco.mjtState.mjSTATE_FULLPHYSICS.value)
    mujoco.mj_forward(model, data)
    root = model.body(humanoid.skeleton.body_names[0]).id
    eps = 1e-6
    before = data.xpos[root].copy()
    six = np.zeros(6)
    mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_XBODY, root, six, 0)
    np.testing.assert_allclose(state.root_ang_vel[0].numpy(), six[:3], atol=1e-5)
    np.testing.assert_allclose(state.root_lin_vel[0].numpy(), six[3:], atol=1e-5)
    mujoco.mj_integratePos(model, data.qpos, data.qvel, eps)
    mujoco.mj_forward(model, data)
    np.testing.assert_allclose(state.root_lin_vel[0], (data.xpos[root] - before) / eps, atol=1e-4)


@pytest.mark.parametrize("which", ["humanoid", "waddler"])
def test_state_goes_in_and_out_unchanged(which, request):
    character = request.getfixturevalue(which)
    sim = backend(character, 5)
    state = random_state(character, 5, seed=1)
    put(sim, state)
    out = sim.state()
    for name in ("root_pos", "root_lin_vel", "root_ang_vel", "dof_pos", "dof_vel"):
        torch.testing.assert_close(getattr(out, name), getattr(state, name), atol=2e-6, rtol=1e-5)
    assert float(quat_angle(out.root_rot, state.root_rot).max()) < 1e-3
    assert float(out.contact_force.abs().max()) == 0.0


def test_setting_is_exact_once_it_has_been_rounded(humanoid):
    """State out of set_state does not depend on how many environments are set at once."""
    sim = backend(humanoid, 7)
    state = random_state(humanoid, 7, seed=2)
    put(sim, state)
    together = sim._physics.copy()
    for env in range(7):
        ids = torch.tensor([env])
        sim.set_state(ids, torch.zeros_like(ids), state.index(ids))
    assert np.array_equal(together, sim._physics)


@pytest.mark.parametrize("self_collision", [True, False])
def test_stands_on_its_feet_with_its_weight(humanoid, self_collision):
    sim = backend(humanoid, 1, self_collision=self_collision)
    put(sim, stand_state(humanoid, 1))
    zero = torch.zeros(1, humanoid.skeleton.num_dofs)
    for _ in range(15):
        sim.step(zero)
    state = sim.state()
    weight = 9.81 * float(humanoid.body_masses.sum())
    total = state.contact_force[0].sum(0)
    assert float(total[2]) == pytest.approx(weight, rel=0.02)
    assert float(total[:2].norm()) < 0.05 * weight
    assert float(state.root_pos[0, 2]) == pytest.approx(humanoid.stand_height, abs=0.02)
    touching = state.contact_force[0].norm(dim=-1) > 1.0
    assert set(touching.nonzero()[:, 0].tolist()) == set(humanoid.feet)


@pytest.mark.parametrize("self_collision", [True, False])
def test_self_contact_is_not_terrain_contact(humanoid, self_collision):
    """Arms pressed against the trunk in free fall touch something, but not the ground."""
    sim = backend(humanoid, 1, self_collision=self_collision)
    state = stand_state(humanoid, 1, height=50.0)
    names = humanoid.skeleton.dof_names
    arm = [k for k, n in enumerate(names) if "shoulder" in n and n.endswith("_x")]
    assert len(arm) == 2
    goal = torch.zeros(1, len(names))
    goal[0, arm[0]], goal[0, arm[1]] = -1.7, 1.7
    goal = -goal if _arms_up(humanoid, goal) else goal
    put(sim, state)
    for _ in range(20):
        sim.step(goal)
    model = sim._models[0]
    data = mujoco.MjData(model)
    mujoco.mj_setState(model, data, sim._physics[0], mujoco.mjtState.mjSTATE_FULLPHYSICS.value)
    mujoco.mj_forward(model, data)
    assert (data.ncon > 0) == self_collision
    assert float(sim.state().contact_force.abs().max()) == 0.0


def _arms_up(character, goal):
    pos, _ = fk_from_dof(
        character.skeleton, torch.zeros(1, 3), torch.tensor([[0.0, 0, 0, 1]]), goal
    )
    return float(pos[0, list(character.hands), 2].mean()) > float(pos[0, 1, 2])


def test_a_box_stops_a_body(humanoid):
    """Thrown at a wall the root stops before its face; on flat ground it goes on."""
    heights = torch.zeros(20, 20)
    heights[13:] = 2.0
    wall = Heightfield(heights=heights, origin=torch.tensor([-3.8, -3.8]))
    sim = backend(humanoid, 2, (FLAT, wall))
    state = stand_state(humanoid, 2)
    state.root_lin_vel[:, 0] = 4.0
    sim.set_state(everyone(sim), torch.tensor([0, 1]), state)
    peak = torch.zeros(2)
    for _ in range(20):
        sim.step(torch.zeros(2, humanoid.skeleton.num_dofs))
        peak = torch.maximum(peak, sim.state().root_pos[:, 0])
    face = -3.8 + 12.5 * 0.4
    assert float(peak[0]) > face + 0.2
    assert float(peak[1]) < face + 0.05


def test_terrains_differ_per_environment_and_reach_beyond_their_edge(humanoid):
    low, high = Heightfield.flat((4, 4)), Heightfield.flat((4, 4), height=1.0)
    sim = backend(humanoid, 2, (low, high))
    state = stand_state(humanoid, 2, xy=(3.0, -3.0))
    state.root_pos[1, 2] += 1.0
    sim.set_state(everyone(sim), torch.tensor([0, 1]), state)
    for _ in range(10):
        sim.step(torch.zeros(2, humanoid.skeleton.num_dofs))
    z = sim.state().root_pos[:, 2]
    assert float(z[0]) == pytest.approx(humanoid.stand_height, abs=0.03)
    assert float(z[1] - z[0]) == pytest.approx(1.0, abs=1e-3)


def test_resetting_some_leaves_the_others_untouched(humanoid):
    first, second = backend(humanoid, 4), backend(humanoid, 4)
    plan = targets(first, 12)
    for sim in (first, second):
        put(sim, random_state(humanoid, 4, z=1.0))
    for t in range(6):
        first.step(plan[:, t])
        second.step(plan[:, t])
    ids = torch.tensor([1, 3])
    second.set_state(ids, torch.zeros(2, dtype=torch.long), stand_state(humanoid, 2))
    for t in range(6, 12):
        first.step(plan[:, t])
        second.step(plan[:, t])
    keep = torch.tensor([0, 2])
    assert_same(first.state().index(keep), second.state().index(keep))
    assert not torch.equal(first.state().root_pos[1], second.state().root_pos[1])


@pytest.mark.parametrize("threads", [1, 2])
def test_deterministic_and_independent_of_threads(humanoid, threads):
    one, other = backend(humanoid, 6), backend(humanoid, 6, num_threads=threads)
    for sim in (one, other):
        put(sim, random_state(humanoid, 6, z=0.9))
    plan = targets(one, 10)
    assert_same(one.rollout(plan), other.rollout(plan))


def test_rollout_equals_single_steps(humanoid):
    one, other = backend(humanoid, 3), backend(humanoid, 3)
    for sim in (one, other):
        put(sim, random_state(humanoid, 3, z=0.9))
    plan = targets(one, 8)
    states = one.rollout(plan)
    for t in range(8):
        other.step(plan[:, t])
        assert_same(states.index((slice(None), t)), other.state())


def test_copy_env_copies_everything(humanoid):
    sim = backend(humanoid, 4, (FLAT, Heightfield.flat((6, 6), height=0.2)))
    sim.set_state(
        everyone(sim), torch.tensor([0, 1, 0, 1]), random_state(humanoid, 4, seed=5, z=1.0)
    )
    plan = targets(sim, 10)
    plan[2:] = plan[1]
    for t in range(5):
        sim.step(plan[:, t])
    sim.copy_env(1, torch.tensor([2, 3]))
    assert sim.terrain_ids.tolist() == [0, 1, 1, 1]
    for t in range(5, 10):
        sim.step(plan[:, t])
    state = sim.state()
    assert_same(state.index(1), state.index(2))
    assert_same(state.index(1), state.index(3))


def test_state_dict_continues_bit_for_bit(humanoid):
    sim = backend(humanoid, 3)
    put(sim, random_state(humanoid, 3, z=0.95))
    plan = targets(sim, 12)
    sim.rollout(plan[:, :6])
    saved = sim.state_dict()
    expected = sim.rollout(plan[:, 6:])
    fresh = backend(humanoid, 3)
    fresh.load_state_dict(saved)
    assert_same(fresh.rollout(plan[:, 6:]), expected)


def test_saved_states_of_another_size_are_refused(humanoid):
    saved = backend(humanoid, 3).state_dict()
    with pytest.raises(ValueError, match="physics"):
        backend(humanoid, 2).load_state_dict(saved)


@pytest.mark.parametrize("bad", ["target", "state", "fast"])
def test_a_blow_up_is_contained(humanoid, bad, capfd):
    sim, clean = backend(humanoid, 3), backend(humanoid, 3)
    for s in (sim, clean):
        put(s, stand_state(humanoid, 3))
    zero = torch.zeros(3, humanoid.skeleton.num_dofs)
    if bad == "target":
        poisoned = zero.clone()
        poisoned[1] = float("nan")
        sim.step(poisoned)
    else:
        state = stand_state(humanoid, 1)
        state.dof_vel[:] = 400.0 if bad == "fast" else float("nan")
        sim.set_state(torch.tensor([1]), torch.tensor([0]), state)
        sim.step(zero)
    clean.step(zero)
    assert sim.bad.tolist() == [False, True, False]
    for _ in range(3):
        sim.step(zero)
        clean.step(zero)
    assert sim.bad.tolist() == [False, True, False]
    state = sim.state()
    for value in vars(state).values():
        assert bool(torch.isfinite(value).all())
    keep = torch.tensor([0, 2])
    assert_same(state.index(keep), clean.state().index(keep))
    assert sim.state_dict()["bad"].tolist() == [False, True, False]
    put(sim, stand_state(humanoid, 3))
    assert not bool(sim.bad.any())
    captured = capfd.readouterr()
    assert "WARNING" not in captured.out + captured.err


def test_replay_is_bit_equal_whatever_else_was_simulated(humanoid):
    """One environment among others on bigger terrains, replayed alone from its float32 figures."""
    rough = torch.Generator().manual_seed(0)
    heights = 0.1 * torch.randint(0, 3, (12, 12), generator=rough).float()
    rough_terrain = Heightfield(heights=heights, origin=torch.tensor([-2.2, -2.2]))
    small = torch.zeros(12, 12)
    small[5:8, 4:9] = 0.15
    step = Heightfield(heights=small, origin=torch.tensor([-2.2, -2.2]))
    sim = backend(humanoid, 5, (rough_terrain, step))
    assert len(sim.boxes[0]) > len(sim.boxes[1]) + 20
    state = random_state(humanoid, 5, seed=9, z=1.15)
    sim.set_state(everyone(sim), torch.tensor([0, 0, 1, 0, 0]), state)
    plan = targets(sim, 25, size=0.3)
    recorded = sim.rollout(plan).index(2)
    assert float(recorded.contact_force.abs().sum()) > 0
    start = state.index(2)
    replay = Replay(
        root_pos=start.root_pos,
        root_rot=start.root_rot,
        root_lin_vel=start.root_lin_vel,
        root_ang_vel=start.root_ang_vel,
        dof_pos=start.dof_pos,
        dof_vel=start.dof_vel,
        pd_targets=plan[2],
        boxes=torch.from_numpy(sim.boxes[1]),
        offset=torch.zeros(3),
        backend=sim.name,
        model_hash=sim.model_hash,
    )
    again = replay_clip(humanoid, replay)
    assert_same(again.index(slice(1, None)), recorded)
    with pytest.raises(InputError, match="made with"):
        replay_clip(humanoid, replay, SimConfig(friction=0.5))


def test_second_character_steps(waddler):
    sim = backend(waddler, 2)
    put(sim, stand_state(waddler, 2))
    zero = torch.zeros(2, waddler.skeleton.num_dofs)
    for _ in range(5):
        sim.step(zero)
    state = sim.state()
    assert isinstance(state, SimState)
    weight = 9.81 * float(waddler.body_masses.sum())
    assert float(state.contact_force[0].sum(0)[2]) == pytest.approx(weight, rel=0.3)


def test_gains_and_limits_follow_the_config(humanoid):
    critical = ModelBuilder(humanoid, SimConfig(), 1)
    xml = ModelBuilder(humanoid, SimConfig(gains="xml", torque_limits=False), 1)
    assert np.allclose(xml.kd, humanoid.kd.numpy())
    model = critical.build(np.zeros((0, 6), dtype=np.float32))
    bound = 2.0 * np.sqrt(critical.kp * effective_inertia(model))
    assert np.allclose(critical.kd, np.minimum(humanoid.kd.numpy(), bound))
    np.testing.assert_allclose(model.actuator_biasprm[:, 2], -critical.kd)
    np.testing.assert_allclose(model.actuator_forcerange[:, 1], humanoid.effort.numpy())
    free = xml.build(np.zeros((0, 6), dtype=np.float32))
    assert not free.actuator_forcelimited.any()


def test_actuator_length_is_the_rotation_vector(humanoid):
    sim = backend(humanoid, 1)
    state = stand_state(humanoid, 1)
    state.dof_pos[0, :3] = torch.tensor([0.3, 0.5, -0.2])
    put(sim, state)
    data = mujoco.MjData(sim._models[0])
    spec = mujoco.mjtState.mjSTATE_FULLPHYSICS.value
    mujoco.mj_setState(sim._models[0], data, sim._physics[0], spec)
    mujoco.mj_forward(sim._models[0], data)
    np.testing.assert_allclose(data.actuator_length[:3], [0.3, 0.5, -0.2], atol=1e-7)


def test_model_hash_tells_dynamics_apart(humanoid, waddler):
    base = MujocoCpuBackend(humanoid, 1).model_hash
    assert base == MujocoCpuBackend(humanoid, 9, SimConfig(num_threads=2)).model_hash
    assert base != MujocoCpuBackend(humanoid, 1, SimConfig(friction=0.9)).model_hash
    assert base != MujocoCpuBackend(waddler, 1).model_hash


@pytest.mark.parametrize(
    ("field", "value"),
    [("substeps", 0), ("friction", -1.0), ("gains", "none"), ("num_threads", 0)],
)
def test_wrong_settings_are_named(field, value):
    with pytest.raises(InputError, match=field):
        SimConfig(**{field: value})


def test_unknown_simulator_is_named(humanoid):
    with pytest.raises(InputError, match="mujoco_cpu"):
        make_backend("bullet", humanoid, 1, [FLAT])
