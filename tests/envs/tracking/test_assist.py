from __future__ import annotations

import mujoco
import pytest
import torch

from envs.sims.base import SimConfig
from envs.sims.mujoco_cpu import MujocoCpuBackend
from envs.tracking import config as presets
from envs.tracking.assist import Assist, PushingBackend, spring
from envs.tracking.config import AssistConfig, SamplingConfig, TrackingConfig
from envs.tracking.env import VectorTrackingEnv
from parc_ray.config_io import from_plain, to_plain
from parc_ray.errors import InputError
from parc_ray.terrain.heightfield import Heightfield
from tests.envs.helpers import assert_same, stand_state, sway_clip

HELD = SamplingConfig(start_share=1.0, uniform_share=0.0, pos_noise=0.3, vel_noise=0.0)
FULL = AssistConfig(strength=1.0, steps=10_000)


@pytest.fixture
def backend(humanoid):
    sim = MujocoCpuBackend(humanoid, 2, SimConfig())
    sim.load_terrains([Heightfield.flat((16, 16))])
    yield sim
    sim.close()


def helped_env(humanoid, assist, num_envs=8, sampling=HELD):
    config = TrackingConfig(sampling=sampling, assist=assist)
    return VectorTrackingEnv(humanoid, [sway_clip(humanoid)], num_envs, config, seed=2)


def momentum(backend, env):
    """Linear momentum (3,) kg m/s by MuJoCo's own sums."""
    model = backend._models[0]
    data = mujoco.MjData(model)
    mujoco.mj_setState(
        model, data, backend._physics[env], mujoco.mjtState.mjSTATE_FULLPHYSICS.value
    )
    mujoco.mj_forward(model, data)
    mujoco.mj_subtreeVel(model, data)
    root = model.body("pelvis").id
    return torch.tensor(data.subtree_linvel[root] * model.body_subtreemass[root])


def test_the_spring_by_hand(humanoid):
    """Frequency 2: 4 per metre of offset and 4 per m/s of drift."""
    state = stand_state(humanoid, 1)
    ahead = stand_state(humanoid, 1)
    ahead.root_pos += torch.tensor([0.5, 0.0, -0.25])
    ahead.root_lin_vel += torch.tensor([0.0, 1.0, 0.0])
    found = spring(state, ahead, 2.0)
    torch.testing.assert_close(found, torch.tensor([[2.0, 4.0, -1.0]]))


def test_a_push_is_an_impulse_of_one_step(humanoid, backend):
    """In the air the pushed character gains force times time, and nothing in the step after."""
    start = stand_state(humanoid, 2, height=4.0)
    ids = torch.arange(2)
    backend.set_state(ids, torch.zeros_like(ids), start)
    targets = torch.zeros(2, humanoid.skeleton.num_dofs)
    force = torch.tensor([[30.0, -15.0, 60.0], [0.0, 0.0, 0.0]])
    backend.push_root(force)
    backend.step(targets)
    gained = momentum(backend, 0) - momentum(backend, 1)
    torch.testing.assert_close(gained.float(), force[0] / 30.0, atol=2e-2, rtol=0.0)
    backend.step(targets)
    later = momentum(backend, 0) - momentum(backend, 1)
    torch.testing.assert_close(later, gained, atol=2e-2, rtol=0.0)


def test_without_a_push_nothing_is_different(humanoid, backend):
    start = stand_state(humanoid, 2, height=0.05)
    ids, targets = torch.arange(2), torch.zeros(2, humanoid.skeleton.num_dofs)
    backend.set_state(ids, torch.zeros_like(ids), start)
    backend.step(targets)
    plain = backend.state()
    backend.set_state(ids, torch.zeros_like(ids), start)
    backend.push_root(torch.zeros(2, 3))
    backend.step(targets)
    assert_same(vars(plain), vars(backend.state()))


def test_a_push_that_is_not_finite_is_contained(humanoid, backend):
    ids, targets = torch.arange(2), torch.zeros(2, humanoid.skeleton.num_dofs)
    backend.set_state(ids, torch.zeros_like(ids), stand_state(humanoid, 2))
    backend.push_root(torch.tensor([[float("nan"), 0.0, 0.0], [0.0, 0.0, 0.0]]))
    backend.step(targets)
    assert backend.bad.tolist() == [True, False]
    assert bool(torch.isfinite(backend.state().root_pos).all())


def test_help_goes_away_linearly(backend):
    assist = Assist(AssistConfig(strength=0.8, steps=4), 45.0, backend)
    found = [assist.strength(n) for n in (0, 1, 3, 4, 9)]
    assert found == pytest.approx([0.8, 0.6, 0.2, 0.0, 0.0])


def test_helped_episodes_last_longer(humanoid):
    """Zero actions from starts 0.3 m off: with help the root comes back to its reference."""
    drift = {}
    for name, assist in (("alone", AssistConfig()), ("helped", FULL)):
        env = helped_env(humanoid, assist)
        env.reset()
        distances = []
        for _ in range(20):
            result = env.step(torch.zeros(8, env.action_dim))
            gap = env.backend.state().root_pos - env.ahead.now.current.root_pos
            kept = torch.ones(8, dtype=torch.bool)
            kept[result.final_ids] = False
            distances.append(gap[kept, :2].norm(dim=-1).mean())
        drift[name] = float(torch.stack(distances[-5:]).mean())
        assert ("assist/strength" in result.log) == (name == "helped")
        env.close()
    assert drift["helped"] < 0.5 * drift["alone"]


def test_a_helped_environment_goes_on_bit_for_bit(humanoid):
    assist = AssistConfig(strength=1.0, steps=12)
    one, two = (helped_env(humanoid, assist, 4) for _ in range(2))
    one.reset()
    two.reset()
    rng = torch.Generator().manual_seed(5)
    plan = 0.3 * torch.randn(12, 4, one.action_dim, generator=rng)
    for action in plan[:6]:
        one.step(action)
    two.load_state_dict(one.state_dict())
    for action in plan[6:]:
        a, b = one.step(action), two.step(action)
        assert_same({"obs": a.obs, "reward": a.reward}, {"obs": b.obs, "reward": b.reward})
        assert a.log["assist/strength"] == b.log["assist/strength"]
    one.close()
    two.close()


def test_a_simulator_that_cannot_push_is_refused():
    class Other:
        name = "stones"

    assert not isinstance(Other(), PushingBackend)
    Assist(AssistConfig(), 45.0, Other())  # type: ignore[arg-type]  (no help wanted)
    with pytest.raises(InputError, match=r"assist\.strength: stones cannot push"):
        Assist(FULL, 45.0, Other())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "values", [{"strength": 1.5}, {"steps": 0}, {"frequency_rad_s": 30.0}], ids=str
)
def test_ranges(values):
    with pytest.raises(InputError, match="assist"):
        AssistConfig(**values)


@pytest.mark.parametrize("name", list(presets.PRESETS))
def test_presets_have_no_help_and_keep_it_through_files(name):
    config = presets.preset(name)
    assert config.assist.strength == 0.0
    assert from_plain(TrackingConfig, to_plain(config)) == config
