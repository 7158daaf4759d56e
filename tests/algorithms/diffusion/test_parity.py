"""The published objective, computed anew in numpy and scipy on a fixed batch.

Weights, forms and frames are written down here a second time, from the published code's figures;
nothing of the project's kinematics, rotations or distances is used.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from algorithms.diffusion.batch import TrainingBatch, local_terrain
from algorithms.diffusion.conditions import Conditions
from algorithms.diffusion.denoiser import Denoiser
from algorithms.diffusion.objective import Objective
from algorithms.diffusion.profiles import profile
from parc_ray.character.surface import surface_points
from parc_ray.motion.features import FeatureLayout, FeatureStats

N, T, DT = 3, 15, 1 / 30
UPSTREAM = {
    "root_pos": 1.0,
    "root_rot": 1.0,
    "joint_rot": 0.5,
    "contacts": 1.0,
    "body_pos": 0.5,
    "consistency": 1.0,
    "fk_pos": 0.5,
    "fk_rot": 0.1,
    "root_vel": 0.5,
    "root_ang_vel": 0.02,
    "joint_vel": 0.01,
    "body_vel": 0.03,
}
PAPER = {**UPSTREAM, "penetration": 15.0, "target": 0.02}


@pytest.fixture(scope="module")
def batch(humanoid) -> TrainingBatch:
    """Random windows on random ground: nothing is zero or symmetric."""
    rng = torch.Generator().manual_seed(5)
    layout = FeatureLayout(humanoid.skeleton)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=rng)

    features = torch.zeros(N, T, layout.size)
    features[..., layout.root_pos] = 0.1 * draw(N, T, 3)
    features[..., layout.root_rot] = 0.4 * draw(N, T, 3)
    features[..., layout.joint_pos] = 0.5 * draw(N, T, 42)
    features[..., layout.dof] = 0.3 * draw(N, T, 28)
    features[..., layout.contacts] = draw(N, T, 15)
    heights = -0.75 + 0.25 * draw(N, 31, 31)
    yes = torch.ones(N, dtype=torch.bool)
    seen = torch.tensor([True, True, False])
    target = torch.nn.functional.normalize(draw(N, 2), dim=-1)
    config = profile("paper")
    return TrainingBatch(
        x0=features,
        features=features,
        noise=draw(N, T, layout.size),
        t=torch.tensor([0, 7, 20]),
        cond=Conditions(heights, target, ~yes, yes, yes, seen),
        ood=~yes,
        terrain=local_terrain(heights, config.grid, config.terrain.max_height),
    )


@pytest.fixture(scope="module")
def answer(batch) -> torch.Tensor:
    """What the network is made to answer: wrong everywhere."""
    rng = torch.Generator().manual_seed(6)
    return batch.features + 0.1 * torch.randn(batch.features.shape, generator=rng)


class Pose:
    """A window in float64: rotations by scipy, kinematics by the tree's definition."""

    def __init__(self, skeleton, x: np.ndarray) -> None:
        self.root_pos = x[:, 0:3]
        self.stored = x[:, 6:48].reshape(T, 14, 3)
        dof, self.contacts = x[:, 48:76], x[:, 76:91]
        self.local: list[Rotation] = [Rotation.from_rotvec(x[:, 3:6])]
        self.pos, self.rot = [self.root_pos], [self.local[0]]
        for body in range(1, 15):
            kind, where = skeleton.joint_kinds[body], skeleton.dof_slices[body]
            if kind == "spherical":
                turn = Rotation.from_rotvec(dof[:, where])
            elif kind == "hinge":
                axis = skeleton.hinge_axes[body].double().numpy()
                turn = Rotation.from_rotvec(dof[:, where] * axis)
            else:
                turn = Rotation.from_rotvec(np.zeros((T, 3)))
            parent = skeleton.parents[body]
            offset = skeleton.offsets[body].double().numpy()
            self.local.append(turn)
            self.pos.append(self.pos[parent] + self.rot[parent].apply(offset))
            self.rot.append(self.rot[parent] * turn)


def angles(a: Rotation, b: Rotation) -> float:
    return float(((a * b.inv()).magnitude() ** 2).sum())


def spins(turn: Rotation) -> np.ndarray:
    return (turn[1:] * turn[:-1].inv()).as_rotvec() / DT


def square(a: np.ndarray, b: np.ndarray) -> float:
    return float(((a - b) ** 2).sum())


def depth_of(point: np.ndarray, heights: np.ndarray) -> float:
    """Distance of a buried point to the air over all 961 columns; 0 in the air and off the grid."""
    centres = np.stack(
        np.meshgrid(0.2 * np.arange(-10, 21), 0.2 * np.arange(-15, 16), indexing="ij"), axis=-1
    )
    gap = np.maximum(np.abs(point[:2] - centres) - 0.1, 0.0)
    here = (np.abs(point[:2] - centres) <= 0.1).all(-1)
    if not here.any() or point[2] >= heights[here].max():
        return 0.0
    up = np.maximum(heights - point[2], 0.0)
    return float(np.sqrt((gap**2).sum(-1) + up**2).min())


def terms_of(humanoid, truth: Pose, guess: Pose, heights: np.ndarray, target: np.ndarray):
    points = surface_points(humanoid, "minimal")
    depth = sum(
        0.5 * depth_of(guess.pos[int(b)][t] + guess.rot[int(b)][t].apply(p), heights) ** 2
        for b, p in zip(points.body, points.offset.double().numpy(), strict=True)
        for t in range(T)
    )
    bodies = range(1, 15)
    moved = guess.root_pos[14, :2] - guess.root_pos[1, :2]
    return {
        "root_pos": square(guess.root_pos, truth.root_pos),
        "root_rot": angles(guess.local[0], truth.local[0]),
        "joint_rot": sum(angles(guess.local[b], truth.local[b]) for b in bodies),
        "contacts": square(guess.contacts, truth.contacts),
        "body_pos": sum(square(truth.pos[b], guess.stored[:, b - 1]) for b in bodies),
        "consistency": sum(square(guess.pos[b], guess.stored[:, b - 1]) for b in bodies),
        "fk_pos": sum(square(truth.pos[b], guess.pos[b]) for b in range(15)),
        "fk_rot": sum(angles(truth.rot[b], guess.rot[b]) for b in range(15)),
        "root_vel": square(np.diff(guess.root_pos, axis=0), np.diff(truth.root_pos, axis=0))
        / DT**2,
        "root_ang_vel": square(spins(guess.local[0]), spins(truth.local[0])),
        "joint_vel": sum(square(spins(guess.local[b]), spins(truth.local[b])) for b in bodies),
        "body_vel": sum(
            square(np.diff(guess.pos[b], axis=0), np.diff(truth.pos[b], axis=0)) / DT**2
            for b in range(15)
        ),
        "penetration": depth,
        "target": max(-float(target @ moved), -0.1),
    }


@pytest.mark.parametrize(("name", "weights"), [("upstream", UPSTREAM), ("paper", PAPER)])
def test_loss_of_a_fixed_batch(humanoid, batch, answer, name, weights):
    """Both published weight sets, every term and the total."""
    skeleton = humanoid.skeleton
    config = dataclasses.replace(profile(name), diffusion_steps=21)
    stats = FeatureStats(torch.zeros(T, 91), torch.ones(T, 91))
    objective = Objective(humanoid, config, stats, torch.device("cpu"))
    total, shares = objective(lambda x, t, cond: answer, batch)
    expected = dict.fromkeys(weights, 0.0)
    for i in range(N):
        truth = Pose(skeleton, batch.features[i].double().numpy())
        guess = Pose(skeleton, answer[i].double().numpy())
        seen = batch.cond.target[i] * batch.cond.target_visible[i]
        found = terms_of(
            humanoid,
            truth,
            guess,
            batch.cond.heights[i].double().numpy(),
            seen.double().numpy(),
        )
        for key, weight in weights.items():
            expected[key] += weight * found[key] / N
    assert set(shares) == set(weights)
    for key, value in expected.items():
        assert float(shares[key]) == pytest.approx(value, rel=2e-4, abs=1e-5), key
    assert float(total) == pytest.approx(sum(expected.values()), rel=1e-4)
    if name == "paper":
        assert expected["penetration"] > 1e-2


def test_hidden_past_frames_get_no_gradient_from_the_loss(humanoid, batch):
    """The branch that blending uses: its score of new frames does not depend on past ones."""
    config = profile("tiny")
    layout = FeatureLayout(humanoid.skeleton)
    net = Denoiser(config, layout.size, config.grid.shape).eval()
    stats = FeatureStats(torch.zeros(T, 91), torch.ones(T, 91))
    objective = Objective(humanoid, config, stats, torch.device("cpu"))
    no = torch.zeros(N, dtype=torch.bool)
    gradients = {}
    for visible in (True, False):
        cond = dataclasses.replace(batch.cond, past_visible=~no if visible else no)
        noised = torch.randn(N, T, 91, generator=torch.Generator().manual_seed(1))
        noised.requires_grad_()

        def network(x, t, given, noised=noised):
            answer = net(noised, t, given)
            # The network's own past frames may read themselves: only new frames are looked at.
            return torch.cat([batch.x0[:, :2], answer[:, 2:]], dim=1)

        hidden = dataclasses.replace(batch, cond=cond, t=batch.t.clamp(max=10))
        loss, _ = objective(network, hidden)
        (gradients[visible],) = torch.autograd.grad(loss, noised)
    assert gradients[False][:, :2].abs().max() == 0
    assert gradients[True][:, :2].abs().max() > 0
    assert gradients[False][:, 2:].abs().max() > 0
