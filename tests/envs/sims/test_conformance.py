"""What every simulator of the registry must do; a new one is one more line in ``CASES``.

All tests of a backend share one instance of it (``stage``) and put it where they need it.
"""

from __future__ import annotations

import math

import pytest
import torch

from envs.sims.base import ContainedBackend
from envs.sims.registry import BACKENDS, make_backend, missing
from envs.tracking.env import VectorTrackingEnv
from parc_ray.character.character import load_character
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.character.rotations import quat_angle
from parc_ray.character.surface import place_points, surface_points
from parc_ray.protocols import SimBackend
from parc_ray.terrain.distance import penetration_depth
from parc_ray.terrain.generators import TERRAINS
from parc_ray.terrain.heightfield import HeightfieldBatch
from tests.envs.helpers import random_state, stand_state, sway_clip
from tests.envs.sims.scenes import (
    AXLE_INERTIA,
    CONFIG,
    FRICTION,
    GRAVITY,
    PILLAR_HEIGHT,
    RAISED,
    SLIDE_SPEED,
    STEP_RAD,
    STEPS,
    STOOL,
    WALL_X,
    Case,
    quick_kernels,
    set_stage,
)
from tests.isaacgym_standin import standin
from tests.isaacgym_standin.python38 import standin38

CASES = (
    Case("mujoco_cpu"),
    Case("mujoco_warp", prepare=quick_kernels),
    Case("isaacgym", exact=False, atol=2e-3, prepare=standin),
    Case("isaacgym", exact=False, atol=2e-3, prepare=standin38, where="_py38"),
)
DT = CONFIG.control_dt


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name + case.where)
def case(request):
    with request.param.prepare():
        lacking = missing(request.param.name)
        if lacking:
            pytest.skip(lacking)
        yield request.param


@pytest.fixture(scope="module")
def stage(case, tmp_path_factory):
    out = set_stage(case, make_backend, tmp_path_factory.mktemp("map"))
    yield out
    out.sim.close()


def times():
    return DT * torch.arange(1, STEPS + 1)


def weight(stage):
    return GRAVITY * float(stage.character.body_masses.sum())


def ids_of(stage):
    return torch.arange(stage.sim.num_envs)


def wiggle(stage, steps, seed=0):
    rng = torch.Generator().manual_seed(seed)
    dofs = stage.character.skeleton.num_dofs
    return 0.2 * torch.randn(stage.sim.num_envs, steps, dofs, generator=rng)


def advance(stage, plan):
    """State after targets (N, H, D)."""
    for step in plan.unbind(1):
        stage.sim.step(step)
    return stage.sim.state()


def others(stage, *gone):
    return torch.tensor([k for k in range(stage.sim.num_envs) if k not in gone])


def test_every_backend_of_the_registry_has_a_case():
    assert {case.name for case in CASES} == set(BACKENDS)


def test_keeps_the_contract(stage):
    assert isinstance(stage.sim, SimBackend)
    assert isinstance(stage.sim, ContainedBackend)
    assert stage.sim.name == stage.case.name
    assert stage.sim.control_dt == pytest.approx(DT)
    assert len(stage.sim.boxes) == len(stage.scenes)
    n, body, dof = len(stage.scenes), 4, 7
    for name, size in (
        ("root_pos", (3,)),
        ("root_rot", (4,)),
        ("root_lin_vel", (3,)),
        ("root_ang_vel", (3,)),
        ("dof_pos", (dof,)),
        ("dof_vel", (dof,)),
        ("contact_force", (body, 3)),
    ):
        value = getattr(stage.played, name)
        assert value.shape == (n, STEPS, *size), name
        assert value.dtype == torch.float32
        assert value.device.type == "cpu"
    assert not bool(stage.sim.bad.any())


def test_state_goes_in_and_out(stage):
    ids = ids_of(stage)
    state = random_state(stage.character, len(ids), seed=1)
    stage.sim.set_state(ids, ids, state)
    out = stage.sim.state()
    for name in ("root_pos", "root_lin_vel", "root_ang_vel", "dof_pos", "dof_vel"):
        torch.testing.assert_close(getattr(out, name), getattr(state, name), atol=1e-5, rtol=1e-5)
    assert float(quat_angle(out.root_rot, state.root_rot).max()) < 1e-3
    assert float(out.contact_force.abs().max()) == 0.0


def test_a_state_is_a_copy(stage):
    stage.restart()
    state = stage.sim.state()
    kept = state.clone()
    advance(stage, wiggle(stage, 1))
    assert torch.equal(state.root_pos, kept.root_pos)
    assert torch.equal(state.dof_vel, kept.dof_vel)


def test_falls_as_it_must(stage):
    """Ballistic, from the start velocity and 9.81 m/s2; no force, no turn."""
    play, t = stage.play("fall"), times()
    start = stage.before.index(stage.index("fall"))
    want_v = start.root_lin_vel[2] - GRAVITY * t
    want_z = start.root_pos[2] + start.root_lin_vel[2] * t - GRAVITY / 2 * t**2
    torch.testing.assert_close(play.root_lin_vel[:, 2], want_v, atol=0.02, rtol=0.0)
    # First-order integrators lag by g dt t / 2 with dt = 1/120 s.
    assert float((play.root_pos[:, 2] - want_z).abs().max()) < 0.04
    for axis in (0, 1):
        speed = start.root_lin_vel[axis]
        assert float((play.root_lin_vel[:, axis] - speed).abs().max()) < 0.01
        assert float((play.root_pos[:, axis] - speed * t).abs().max()) < 0.01
    assert float(play.contact_force.abs().max()) == 0.0
    assert float(play.root_ang_vel.abs().max()) < 1e-3


def test_servo_answers_a_step_like_its_equation(stage):
    """I q'' = kp (q* - q) - kd q' with all figures known: an under-damped second-order system."""
    dof = stage.dof("axle")
    kp, kd = float(stage.character.kp[dof]), float(stage.character.kd[dof])
    rate = math.sqrt(kp / AXLE_INERTIA)
    damping = kd / (2 * math.sqrt(kp * AXLE_INERTIA))
    assert damping < 0.5
    t, ringing = times(), rate * math.sqrt(1 - damping**2)
    fade = torch.exp(-damping * rate * t)
    shape = torch.cos(ringing * t) + damping * rate / ringing * torch.sin(ringing * t)
    want = STEP_RAD * (1 - fade * shape)
    want_vel = STEP_RAD * fade * rate**2 / ringing * torch.sin(ringing * t)
    play = stage.play("servo")
    assert float(want.max()) > 1.3 * STEP_RAD
    torch.testing.assert_close(play.dof_pos[:, dof], want, atol=0.05 * STEP_RAD, rtol=0.0)
    torch.testing.assert_close(play.dof_vel[:, dof], want_vel, atol=0.3, rtol=0.0)
    still = [k for k in range(7) if k != dof]
    assert float(play.dof_pos[:, still].abs().max()) < 0.02


@pytest.mark.parametrize(("name", "height"), [("stand", 0.0), ("stand_raised", RAISED)])
def test_a_standing_pose_stands_with_its_weight_on_its_feet(stage, name, height):
    play = stage.play(name)
    rest = stage.character.stand_height + height
    assert float((play.root_pos[:, 2] - rest).abs().max()) < 0.02
    assert float(play.root_pos[:, :2].abs().max()) < 0.02
    assert float(quat_angle(play.root_rot[-1], stage.before.root_rot[0])) < 0.03
    force = play.contact_force[-1]
    assert float(force.sum(0)[2]) == pytest.approx(weight(stage), rel=0.03)
    assert float(force.sum(0)[:2].norm()) < 0.05 * weight(stage)
    touching = (force.norm(dim=-1) > 1.0).nonzero()[:, 0].tolist()
    assert set(touching) == set(stage.character.feet)
    left, right = force[list(stage.character.feet), 2].tolist()
    assert left == pytest.approx(right, rel=0.1)


def test_friction_brakes_a_slide_at_mu_g(stage):
    """On long feet nothing tips: v = v0 - mu g t, and at rest it stays."""
    play, t = stage.play("slide"), times()
    want = SLIDE_SPEED * t - FRICTION * GRAVITY / 2 * t**2
    moving = SLIDE_SPEED - FRICTION * GRAVITY * t > 0.3
    assert int(moving.sum()) >= 10
    # Friction that sets in at once makes it hop, and the seat rocks on its springs.
    assert float((play.root_pos[moving, 0] - want[moving]).abs().max()) < 0.06
    way = SLIDE_SPEED**2 / (2 * FRICTION * GRAVITY)
    assert float(play.root_pos[-1, 0]) == pytest.approx(way, rel=0.08)
    assert float(play.root_lin_vel[-4:].abs().max()) < 0.06
    force = play.contact_force[moving].sum(1)
    ratio = -float(force[:, 0].sum()) / float(force[:, 2].sum())
    assert ratio == pytest.approx(FRICTION, rel=0.15)


def test_a_box_stops_a_body_from_the_side(stage):
    """The seat's front ends .12 m before its centre, the feet .16 m; without a wall it goes on."""
    face = WALL_X - 0.1
    wall, free = stage.play("wall"), stage.play("no_wall")
    assert float(wall.root_pos[:, 0].max()) < face - 0.12 + 0.03
    assert float(free.root_pos[:, 0].max()) > face + 0.1 - 0.12
    assert float(wall.contact_force.sum(1)[:, 0].min()) < -weight(stage)


def test_a_box_stops_a_body_from_above_without_a_bounce(stage):
    top, low = stage.play("pillar").root_pos[:, 2], stage.play("no_pillar").root_pos[:, 2]
    rest = stage.character.stand_height
    assert float(top[-1]) == pytest.approx(PILLAR_HEIGHT + rest, abs=0.02)
    assert float(low[-1]) == pytest.approx(rest, abs=0.03)
    landed = int((top < PILLAR_HEIGHT + rest + 0.01).nonzero()[0])
    assert landed < STEPS - 6
    assert float(top[landed:].max()) < PILLAR_HEIGHT + rest + 0.03
    assert float(top.min()) > PILLAR_HEIGHT + rest - 0.04


@pytest.mark.parametrize(
    ("name", "ground", "drop"), [("pillar", 0.8, 0.3), ("no_pillar", 0.0, 1.1)]
)
def test_a_fall_is_not_given_back(stage, name, ground, drop):
    """With restitution e it would rise by e^2 times the drop; e is below .2 and .1."""
    height = stage.play(name).root_pos[:, 2] - ground - stage.character.stand_height
    lowest = int(height.argmin())
    assert lowest < STEPS - 8
    assert float(height[lowest:].max()) < 0.01
    assert float(stage.before.root_pos[stage.index(name), 2]) == pytest.approx(
        ground + stage.character.stand_height + drop
    )


def test_forces_are_the_terrains_alone(stage):
    """In the air the feet press against each other: blocked, and yet no terrain force."""
    play = stage.play("legs")
    left, right = stage.dof("left_hip_x"), stage.dof("right_hip_x")
    assert -0.45 < float(play.dof_pos[-1, left]) < -0.1
    assert 0.1 < float(play.dof_pos[-1, right]) < 0.45
    assert float(play.contact_force.abs().max()) == 0.0


@pytest.mark.parametrize("kind", sorted(TERRAINS))
def test_comes_down_on_every_terrain_family(stage, kind):
    """Lands on something, and is nowhere inside the ground when it has landed."""
    scene, play = stage.scenes[f"on_{kind}"], stage.play(f"on_{kind}")
    skeleton = stage.character.skeleton
    points = surface_points(stage.character)
    pos, rot = fk_from_dof(skeleton, play.root_pos, play.root_rot, play.dof_pos)
    placed = place_points(points, pos, rot)
    terrain = HeightfieldBatch.stack([scene.terrain]).expand(STEPS)
    depth = penetration_depth(placed, terrain, off_grid="extend").amax(-1)
    assert float(depth.max()) < 0.05
    assert float(depth[-6:].max()) < 0.02
    assert float(play.contact_force.sum(1)[..., 2].max()) > 0.5 * weight(stage)
    assert float(play.root_pos[-1, 2]) < float(stage.before.root_pos[stage.index(f"on_{kind}"), 2])


def test_equal_starts_give_equal_ends(stage):
    stage.restart()
    plan = stage.targets()[:, None].expand(-1, 4, -1)
    again = stage.sim.rollout(plan)
    stage.case.assert_alike(again, stage.played.index((slice(None), slice(0, 4))))


def test_single_steps_equal_a_rollout(stage):
    plan = wiggle(stage, 3, seed=2)
    stage.restart()
    states = stage.sim.rollout(plan)
    stage.restart()
    stage.case.assert_alike(advance(stage, plan), states.index((slice(None), -1)))


def test_resetting_some_leaves_the_others_untouched(stage):
    plan = wiggle(stage, 4)
    stage.restart()
    straight = advance(stage, plan)
    stage.restart()
    advance(stage, plan[:, :2])
    ids = torch.tensor([stage.index("slide"), stage.index("on_boxes")])
    stage.sim.set_state(ids, torch.tensor([0, 0]), stand_state(stage.character, 2))
    mixed = advance(stage, plan[:, 2:])
    keep = others(stage, *ids.tolist())
    stage.case.assert_alike(mixed.index(keep), straight.index(keep))
    assert float((mixed.root_pos[ids] - straight.root_pos[ids]).abs().max()) > 0.05


def test_an_environment_can_change_its_terrain(stage):
    """The one on the raised ground falls when the ground is taken away, and the other way round."""
    stage.restart()
    ids = torch.tensor([stage.index("stand"), stage.index("stand_raised")])
    swapped = stand_state(stage.character, 2)
    swapped.root_pos[0, 2] += RAISED
    swapped.root_pos[1, 2] += 0.3
    stage.sim.set_state(ids, torch.tensor([ids[1], ids[0]]), swapped)
    end = advance(stage, torch.zeros(stage.sim.num_envs, 9, 7))
    rest = stage.character.stand_height
    assert float(end.root_pos[ids[0], 2]) == pytest.approx(rest + RAISED, abs=0.02)
    assert float(end.root_pos[ids[1], 2]) == pytest.approx(rest, abs=0.03)


def test_copies_of_an_environment_go_the_same_way(stage):
    stage.restart()
    plan = wiggle(stage, 4, seed=4)
    source, copies = stage.index("on_rubble"), torch.tensor([0, stage.index("wall")])
    plan[copies, 2:] = plan[source, 2:]
    advance(stage, plan[:, :2])
    stage.sim.copy_env(source, copies)
    end = advance(stage, plan[:, 2:])
    for copy in copies.tolist():
        stage.case.assert_alike(end.index(copy), end.index(source))


def test_continues_from_a_saved_state(stage):
    plan = wiggle(stage, 4, seed=5)
    stage.restart()
    advance(stage, plan[:, :2])
    saved = stage.sim.state_dict()
    want = advance(stage, plan[:, 2:])
    stage.restart()
    stage.sim.load_state_dict(saved)
    stage.case.assert_alike(advance(stage, plan[:, 2:]), want)


@pytest.mark.parametrize("how", ["target", "state", "fast"])
def test_a_blow_up_stays_where_it_is(stage, how):
    """One environment is flagged until it is set anew; the others never notice."""
    poisoned = stage.targets()
    victim = stage.index("slide")
    stage.restart()
    if how == "target":
        poisoned[victim] = math.nan
    else:
        state = stand_state(stage.character, 1)
        state.dof_vel[:] = 2000.0 if how == "fast" else math.nan
        stage.sim.set_state(torch.tensor([victim]), torch.tensor([0]), state)
    stage.sim.step(poisoned)
    want = torch.zeros(stage.sim.num_envs, dtype=torch.bool)
    want[victim] = True
    assert stage.sim.bad.tolist() == want.tolist()
    end = advance(stage, stage.targets()[:, None].expand(-1, 2, -1))
    assert stage.sim.bad.tolist() == want.tolist()
    for value in vars(end).values():
        assert bool(torch.isfinite(value).all())
    keep = others(stage, victim)
    stage.case.assert_alike(end.index(keep), stage.played.index((keep, 2)))
    stage.restart()
    assert not bool(stage.sim.bad.any())
    alive = advance(stage, stage.targets()[:, None])
    assert bool(torch.isfinite(alive.root_pos).all())
    assert not bool(stage.sim.bad.any())


def test_a_tracking_environment_counts_and_restarts_the_blown_up_one(case):
    character = load_character(STOOL)
    env = VectorTrackingEnv(character, [sway_clip(character)], 3, simulator=case.name)
    env.reset()
    action = torch.zeros(3, env.action_dim)
    env.step(action)
    action[1] = math.nan
    result = env.step(action)
    assert result.log["end/diverged_count"] == 1
    assert 1 in result.final_ids.tolist()
    assert bool(torch.isfinite(result.obs).all())
    assert bool(torch.isfinite(result.reward).all())
    after = env.step(torch.zeros(3, env.action_dim))
    assert after.log.get("end/diverged_count", 0) == 0
    assert bool(torch.isfinite(after.obs).all())
    env.close()
