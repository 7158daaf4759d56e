"""Retargeting: motions whose right answer is known, real ones within the agreed error."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import least_squares

from parc_ray.character import rotations as rot
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.data.importers import asf_amc
from parc_ray.data.retarget import RetargetConfig, load_joint_map, retarget
from parc_ray.data.retarget.align import align_rest, leg_scale, turn_between
from parc_ray.data.retarget.ik import IkProblem, _banded_step, _cost, _normal_equations, solve
from parc_ray.data.retarget.jacobian import Kinematics, right_jacobian
from parc_ray.data.retarget.mapping import continuous_exp, map_pose
from parc_ray.data.retarget.targets import bearing
from parc_ray.errors import InputError

from .skeletons import as_source, motion_of, own_map, positions

CMU = ("02_01", "03_01")


def random_turns(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return rot.quat_normalize(torch.randn(count, 4, generator=generator, dtype=torch.float64))


# ---- known answers -------------------------------------------------------------------------


def test_a_character_retargets_onto_itself(character):
    motion = motion_of(character)
    frames, report = retarget(as_source(character, *motion), own_map(character), character)
    want = fk_from_dof(character.skeleton, *motion)[0]
    assert report.scale == pytest.approx(1.0, abs=1e-9)
    assert (positions(character, frames) - want).norm(dim=-1).max() < 1e-3
    assert (frames.dof - motion[2]).abs().max() < 0.02
    assert report.ankle_max_m < 1e-3
    assert report.limit_share == 0.0


def test_size_and_rest_frames_of_the_source_do_not_matter(character):
    motion = motion_of(character, frames=12)
    turn = random_turns(character.skeleton.num_bodies)
    source = as_source(character, *motion, size=37.0, frames_turn=turn)
    frames, report = retarget(source, own_map(character), character)
    assert report.scale == pytest.approx(1.0 / 37.0)
    want = fk_from_dof(character.skeleton, *motion)[0]
    assert (positions(character, frames) - want).norm(dim=-1).max() < 1e-3


def test_another_rest_pose_is_aligned_by_its_bones(humanoid):
    """The same motion by a skeleton whose arms hang and whose legs are apart at rest."""
    motion = motion_of(humanoid, frames=12)
    source = as_source(humanoid, *motion)
    assert source.rest_rot is not None
    rest = source.rest_rot.clone()
    x = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    for name, angle in (
        ("right_upper_arm", 1.3),
        ("left_upper_arm", -1.3),
        ("right_thigh", -0.35),
        ("left_thigh", 0.35),
    ):
        joint = source.index(f"j_{name}")
        rest[joint] = rot.quat_from_axis_angle(x, torch.tensor(angle, dtype=torch.float64))
    source = replace(source, rest_rot=rest)
    frames, _ = retarget(source, own_map(humanoid, feet="shin"), humanoid)
    want = fk_from_dof(humanoid.skeleton, *motion)[0]
    assert (positions(humanoid, frames) - want).norm(dim=-1).max() < 2e-3
    mapped = own_map(humanoid).resolve(source.joint_names, humanoid, "x")
    level = align_rest(source, mapped, humanoid)
    foot = humanoid.skeleton.body_index("left_foot")
    square = align_rest(source, mapped, humanoid, level_feet=False)
    assert rot.quat_angle(level[foot], square[foot]) == pytest.approx(0.35, abs=1e-6)


def test_heading_of_the_rest_pose_is_found(humanoid):
    """A source that faces -y at rest (as from files with y up)."""
    motion = motion_of(humanoid, frames=6)
    quarter = rot.yaw_quat(torch.tensor(np.pi / 2, dtype=torch.float64))
    turn = quarter.expand(humanoid.skeleton.num_bodies, 4)
    source = as_source(humanoid, *motion, frames_turn=turn)
    source = replace(source, rest_rot=None)
    assert abs(float(source.rest()[0][source.index("j_right_hand"), 0])) > 0.5
    frames, _ = retarget(source, own_map(humanoid), humanoid)
    want = fk_from_dof(humanoid.skeleton, *motion)[0]
    assert (positions(humanoid, frames) - want).norm(dim=-1).max() < 1e-3


def test_twist_that_hinges_cannot_make_moves_to_the_bone_above(humanoid):
    """A source that turns its forearms and shins about the bones above: same places."""
    motion = motion_of(humanoid, frames=30)
    skeleton = humanoid.skeleton
    motion[2][:, skeleton.dof_names.index("right_elbow")] = 1.2
    motion[2][:, skeleton.dof_names.index("left_elbow")] = -1.2
    motion[2][:, skeleton.dof_names.index("right_knee")] = 1.0
    source = as_source(humanoid, *motion)
    local = source.local_rot.clone()
    for upper, lower in (("right_upper_arm", "right_lower_arm"), ("right_thigh", "right_shin")):
        a, b = source.index(f"j_{upper}"), source.index(f"j_{lower}")
        bone = source.offsets[b] / source.offsets[b].norm()
        turn = rot.quat_from_axis_angle(bone, torch.tensor(0.9, dtype=torch.float64))
        local[:, a] = rot.quat_mul(local[:, a], turn.expand(len(local), 4))
        local[:, b] = rot.quat_mul(rot.quat_conj(turn).expand(len(local), 4), local[:, b])
    source = replace(source, local_rot=local)
    place, quat = source.forward()
    want = fk_from_dof(skeleton, *motion)[0]
    torch.testing.assert_close(place, want, atol=1e-9, rtol=0)
    mapped = own_map(humanoid).resolve(source.joint_names, humanoid, "x")
    pose = map_pose(place, quat, align_rest(source, mapped, humanoid), mapped, humanoid)
    got = fk_from_dof(skeleton, pose.root_pos, pose.root_rot, pose.dof)[0]
    for end in ("right_hand", "right_foot"):
        body = skeleton.body_index(end)
        assert (got[:, body] - want[:, body]).norm(dim=-1).max() < 0.08, "before any IK"
    _, report = retarget(source, own_map(humanoid), humanoid)
    assert report.wrist_mean_m < 3e-3
    assert report.ankle_mean_m < 1e-3


def test_poses_beyond_the_ranges_come_back_inside(character):
    root, quat, dof = motion_of(character)
    frames, report = retarget(
        as_source(character, root, quat, dof * 3.0), own_map(character), character
    )
    low, high = character.skeleton.dof_limits.double().T
    outside = ((dof * 3.0 < low) | (dof * 3.0 > high)).double().mean()
    assert outside > 0.05, "the source does break them"
    assert report.limit_share == 0.0
    assert bool(((frames.dof >= low - 1e-9) & (frames.dof <= high + 1e-9)).all())
    assert all(torch.isfinite(x).all() for x in (frames.root_pos, frames.root_rot, frames.dof))


def test_parts_of_a_long_motion_join_smoothly(waddler):
    source = as_source(waddler, *motion_of(waddler, frames=150, share=1.1))
    whole, _ = retarget(source, own_map(waddler), waddler)
    parts, report = retarget(
        source, own_map(waddler), waddler, RetargetConfig(part_frames=50, overlap_frames=16)
    )
    assert (whole.dof - parts.dof).abs().max() < 0.05
    assert (parts.dof.diff(dim=0) - whole.dof.diff(dim=0)).abs().max() < 0.01
    assert report.ankle_mean_m < 2e-3


def test_a_fixed_scale_is_kept(humanoid):
    source = as_source(humanoid, *motion_of(humanoid, frames=4), size=100.0)
    frames, report = retarget(source, own_map(humanoid, scale=0.01), humanoid)
    assert report.scale == 0.01
    assert (frames.root_pos - source.root_pos * 0.01).norm(dim=-1).max() < 0.01


def test_no_leg_no_scale(humanoid):
    source = as_source(humanoid, *motion_of(humanoid, frames=4))
    few = replace(own_map(humanoid), bodies={"pelvis": ("j_pelvis",), "torso": ("j_torso",)})
    with pytest.raises(InputError, match=r"made: no leg .* thigh and foot"):
        retarget(source, few, humanoid)
    mapped = own_map(humanoid).resolve(source.joint_names, humanoid, "x")
    assert leg_scale(source, mapped, humanoid) == pytest.approx(1.0)


def test_places_beyond_this_world(waddler):
    root, quat, dof = motion_of(waddler, frames=4)
    source = as_source(waddler, root * 1e7, quat, dof)
    with pytest.raises(InputError, match=r"made: joints up to .* m from the origin"):
        retarget(source, own_map(waddler), waddler)


@pytest.mark.parametrize("field", ["ankle_m", "stay_rad", "iterations"])
def test_settings_are_checked(field):
    with pytest.raises(InputError, match=field):
        RetargetConfig(**{field: 0})
    with pytest.raises(InputError, match="part_frames"):
        RetargetConfig(part_frames=64, overlap_frames=32)


def test_hands_that_bear_are_told_from_hands_that_swing():
    t = torch.arange(200, dtype=torch.float64) / 100
    still = torch.zeros(200, 3, dtype=torch.float64)
    moving = torch.stack((2.0 * t, 0 * t, 0 * t), dim=-1)
    hangs = torch.where(t[:, None] < 1.0, moving, moving[100])
    runs, stands = torch.stack((moving, moving), 1), torch.stack((moving, still), 1)
    assert bearing(hangs, stands, 100.0).max() == 0.0, "a foot stands"
    grip = bearing(hangs, runs, 100.0)
    assert grip[:60].max() < 0.01
    assert grip[120:].min() > 0.95
    assert grip.diff().abs().max() < 0.1
    assert bearing(still, torch.zeros(200, 0, 3, dtype=torch.float64), 100.0).max() == 0.0


def test_hands_hold_on_to_what_was_scaled_with_the_path(humanoid):
    """Hands still, legs swinging: hands end where the source's are although its trunk is longer."""
    skeleton = humanoid.skeleton
    root, quat, dof = (x[:1].expand(90, -1).clone() for x in motion_of(humanoid, share=0.3))
    swing = torch.sin(2 * np.pi * torch.arange(90, dtype=torch.float64) / 60.0)
    for side in ("left", "right"):
        dof[:, skeleton.dof_names.index(f"{side}_hip_y")] = 0.6 * swing - 0.3
    source = as_source(humanoid, root, quat, dof)
    offsets = source.offsets.clone()
    offsets[source.index("j_torso")] *= 1.2
    source = replace(source, offsets=offsets)
    names = ("left_hand", "right_hand")
    bodies = [skeleton.body_index(name) for name in names]
    place = source.forward()[0][:, [source.index(f"j_{name}") for name in names]]
    frames, report = retarget(source, own_map(humanoid), humanoid)
    miss = (positions(humanoid, frames)[:, bodies] - place).norm(dim=-1)
    assert miss.mean() < 0.015
    assert report.ankle_mean_m < 0.003
    still = replace(source, local_rot=source.local_rot[:1].expand(90, -1, -1))
    frames, report = retarget(still, own_map(humanoid), humanoid)
    miss = (positions(humanoid, frames)[:, bodies] - place).norm(dim=-1)
    assert miss.mean() > 0.03, "standing, hands stay with the shoulders"
    assert report.wrist_mean_m < 0.01


# ---- pieces --------------------------------------------------------------------------------


def test_smallest_turn_between_directions():
    generator = torch.Generator().manual_seed(3)
    for _ in range(20):
        a, b = torch.randn(2, 3, generator=generator, dtype=torch.float64)
        turned = rot.quat_rotate(turn_between(a, b), a)
        assert torch.linalg.cross(turned, b).norm() < 1e-12 * 100
        assert turned @ b > 0
    a = torch.tensor([0.0, 0.0, 2.0], dtype=torch.float64)
    torch.testing.assert_close(rot.quat_rotate(turn_between(a, -a), a), -a)
    torch.testing.assert_close(turn_between(a, 3 * a)[3], torch.tensor(1.0, dtype=torch.float64))


def test_rotation_vectors_stay_continuous_past_a_half_turn():
    angle = torch.linspace(0.5, 4.5, 50, dtype=torch.float64)
    axis = torch.tensor([0.6, 0.0, 0.8], dtype=torch.float64)
    quat = rot.quat_positive(rot.quat_from_exp(angle[:, None] * axis))
    got = continuous_exp(quat)
    assert got.diff(dim=0).norm(dim=-1).max() < 0.1
    torch.testing.assert_close(rot.quat_positive(rot.quat_from_exp(got)), quat)
    still = torch.tensor([[0.0, 0.0, 0.0, 1.0]], dtype=torch.float64).expand(3, 4)
    assert torch.count_nonzero(continuous_exp(still)) == 0


@pytest.mark.parametrize("length", [0.0, 1e-6, 1e-3, 0.7, 3.0])
def test_right_jacobian_by_differences(length):
    v = torch.tensor([0.36, 0.48, -0.8], dtype=torch.float64) * length
    h = 1e-6
    for k in range(3):
        d = torch.zeros(3, dtype=torch.float64)
        d[k] = h
        step = rot.quat_mul(rot.quat_conj(rot.quat_from_exp(v - d)), rot.quat_from_exp(v + d))
        torch.testing.assert_close(
            right_jacobian(v)[:, k], rot.quat_to_exp(step) / (2 * h), atol=1e-6, rtol=0
        )


def test_derivatives_of_all_bodies_by_differences(character):
    kinematics = Kinematics.of(character.skeleton)
    root, reference, dof = motion_of(character, frames=3)
    x = torch.cat((root, 0.2 * torch.ones(3, 3, dtype=torch.float64), dof), dim=1)
    bodies = torch.arange(character.skeleton.num_bodies)
    pos, quat = kinematics.place(x, reference)
    shift, turn = kinematics.jacobians(kinematics.axes(x, quat), pos, bodies)
    h = 1e-6
    for k in range(x.shape[1]):
        d = torch.zeros_like(x)
        d[:, k] = h
        (p1, q1), (p0, q0) = (kinematics.place(x + s * d, reference) for s in (1, -1))
        torch.testing.assert_close(shift[..., k], (p1 - p0) / (2 * h), atol=1e-6, rtol=0)
        spin = rot.quat_to_exp(rot.quat_mul(q1, rot.quat_conj(q0))) / (2 * h)
        torch.testing.assert_close(turn[..., k], spin, atol=1e-6, rtol=0)


def problem_of(character, frames, seed=1):
    """Feet (and what else is held) are asked to be somewhere else than they are."""
    kinematics = Kinematics.of(character.skeleton)
    root, reference, dof = motion_of(character, frames, share=0.9, seed=seed)
    start = torch.cat((root, torch.zeros_like(root), dof), dim=1)
    held = torch.tensor(character.key_bodies)
    turned = torch.arange(character.skeleton.num_bodies)
    pos, quat = kinematics.place(start, reference)
    low = torch.full((6,), -torch.inf, dtype=torch.float64)
    limits = character.skeleton.dof_limits.double().T
    ones = torch.ones(start.shape[1], dtype=torch.float64)
    return kinematics, IkProblem(
        reference_rot=reference,
        start=start,
        bounds=torch.stack((torch.cat((low, limits[0])), torch.cat((-low, limits[1])))),
        balls=torch.empty(0, 3, dtype=torch.long),
        held=held,
        target=pos[:, held] + torch.tensor([0.03, 0.02, 0.05], dtype=torch.float64),
        held_weight=torch.full((len(held),), 400.0, dtype=torch.float64),
        turned=turned,
        wanted_rot=quat[:, turned],
        turned_weight=torch.full((len(turned),), 0.01, dtype=torch.float64),
        stay_weight=0.5 * ones,
        smooth_weight=3.0 * ones,
    )


def test_step_solves_the_full_normal_equations(waddler):
    kinematics, problem = problem_of(waddler, frames=5)
    blocks, gradient = _normal_equations(kinematics, problem, problem.start)
    frames, size = gradient.shape
    fixed = torch.zeros(frames, size, dtype=torch.bool)
    fixed[1, 3] = fixed[4, 0] = True
    second = np.zeros((frames - 2, frames))
    for t in range(frames - 2):
        second[t, t : t + 3] = 1.0, -2.0, 1.0
    full = np.kron(second.T @ second, np.diag(problem.smooth_weight.numpy()))
    for t in range(frames):
        block = slice(t * size, (t + 1) * size)
        full[block, block] += blocks[t].numpy()
    damped = full + 0.1 * np.diag(np.diag(full))
    free = ~fixed.numpy().reshape(-1)
    want = np.zeros(frames * size)
    want[free] = np.linalg.solve(damped[np.ix_(free, free)], gradient.numpy().reshape(-1)[free])
    got = _banded_step(blocks, gradient, problem.smooth_weight, fixed, 0.1)
    np.testing.assert_allclose(got.numpy().reshape(-1), want, atol=1e-9)


def test_gradient_by_differences(waddler):
    kinematics, problem = problem_of(waddler, frames=4)
    x = problem.start + 0.01
    _, gradient = _normal_equations(kinematics, problem, x)
    exact = replace(problem, turned_weight=torch.zeros_like(problem.turned_weight))
    _, without = _normal_equations(kinematics, exact, x)
    for t, k in ((0, 0), (1, 4), (2, 7), (3, 9)):
        d = torch.zeros_like(x)
        d[t, k] = 1e-5
        slope = (_cost(kinematics, exact, x + d) - _cost(kinematics, exact, x - d)) / 4e-5
        assert float(without[t, k]) == pytest.approx(slope, abs=1e-5)
        slope = (_cost(kinematics, problem, x + d) - _cost(kinematics, problem, x - d)) / 4e-5
        assert float(gradient[t, k]) == pytest.approx(slope, abs=1e-3), "rotations to first order"


def test_solution_is_as_good_as_scipys(waddler):
    """Bounded least squares of a general solver, from the same start, costs no less."""
    kinematics, problem = problem_of(waddler, frames=3)
    x = solve(kinematics, problem, 60, 1e-9)
    low, high = problem.bounds
    assert bool(((x >= low) & (x <= high)).all())

    def residuals(flat):
        y = torch.from_numpy(flat).reshape(x.shape)
        pos, quat = kinematics.place(y, problem.reference_rot)
        off = rot.quat_mul(quat, rot.quat_conj(problem.wanted_rot))
        away = y - problem.start
        parts = (
            (pos[:, problem.held] - problem.target) * problem.held_weight.sqrt()[:, None],
            rot.quat_to_exp(off) * problem.turned_weight.sqrt()[:, None],
            away * problem.stay_weight.sqrt(),
            (away[2:] - 2 * away[1:-1] + away[:-2]) * problem.smooth_weight.sqrt(),
        )
        return torch.cat([p.reshape(-1) for p in parts]).numpy()

    bounds = [b.repeat(len(x)).numpy() for b in problem.bounds]
    first = problem.start.clamp(low + 1e-6, high - 1e-6).reshape(-1).numpy()
    theirs = least_squares(residuals, first, bounds=bounds)
    ours = float(np.sum(residuals(x.reshape(-1).numpy()) ** 2))
    assert ours == pytest.approx(_cost(kinematics, problem, x))
    assert ours <= 2.0 * theirs.cost * 1.001
    assert ours < 0.2 * _cost(kinematics, problem, problem.start.clamp(low, high))


# ---- real motions --------------------------------------------------------------------------


@pytest.mark.parametrize("take", CMU)
def test_cmu_motions_keep_ankles_and_ranges(shared_data, character, take):
    source = asf_amc.read_source(shared_data / "formats" / "cmu" / f"{take}.amc").converted("y")
    frames, report = retarget(source, load_joint_map("cmu"), character)
    # measured again, by nothing that the retargeting itself computes
    place, _ = source.forward()
    skeleton, feet = character.skeleton, list(character.feet)
    left = ["left" in skeleton.body_names[b] for b in feet]
    ankles = [source.index("lfoot" if side else "rfoot") for side in left]
    bones = ("ltibia", "lfoot", "rtibia", "rfoot")
    legs = sum(float(source.offsets[source.index(bone)].norm()) for bone in bones)
    shins = [skeleton.parents[foot] for foot in feet]
    own = sum(float(skeleton.offsets[b].double().norm()) for b in feet + shins)
    assert report.scale == pytest.approx(own / legs, rel=1e-6)
    miss = (positions(character, frames)[:, feet] - place[:, ankles] * (own / legs)).norm(dim=-1)
    assert miss.mean() < 0.003
    assert float(miss.mean()) == pytest.approx(report.ankle_mean_m, rel=1e-6)
    limits = character.skeleton.dof_limits.double()
    outside = (frames.dof < limits[:, 0] - 1e-4) | (frames.dof > limits[:, 1] + 1e-4)
    assert outside.double().mean() < 0.001
    assert report.wrist_mean_m < 0.01


def test_cmu_soles_are_level_where_they_stand(shared_data, humanoid):
    source = asf_amc.read_source(shared_data / "formats" / "cmu" / "02_01.amc").converted("y")
    frames, _ = retarget(source, load_joint_map("cmu"), humanoid)
    pos, quat = fk_from_dof(humanoid.skeleton, frames.root_pos, frames.root_rot, frames.dof)
    for foot, toe in (("left_foot", "ltoes"), ("right_foot", "rtoes")):
        body = humanoid.skeleton.body_index(foot)
        place = source.forward()[0][:, source.index(toe)]
        still = torch.cat((place.diff(dim=0).norm(dim=-1) * source.fps, torch.ones(1))) < 0.1
        low = still & (pos[:, body, 2] < pos[:, body, 2].min() + 0.03)
        up = rot.quat_to_matrix(quat[low, body])[:, 2, 2]
        assert len(up) > 10
        assert torch.rad2deg(torch.acos(up)).mean() < 12.0


def test_inverse_kinematics_adds_no_jitter(shared_data, humanoid):
    source = asf_amc.read_source(shared_data / "formats" / "cmu" / "03_01.amc").converted("y")
    frames, report = retarget(source, load_joint_map("cmu"), humanoid)
    mapped = load_joint_map("cmu").resolve(source.joint_names, humanoid, "x")
    place, quat = source.forward()
    align = align_rest(source, mapped, humanoid, level_feet=False)
    pose = map_pose(place * report.scale, quat, align, mapped, humanoid)

    def roughness(dof):
        return (dof[2:] - 2 * dof[1:-1] + dof[:-2]).square().mean().sqrt()

    assert roughness(frames.dof) < 1.05 * roughness(pose.dof)
