"""Reading an environment's observation layout."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch

from algorithms.ppo.config import PRESETS, TrackerConfig
from algorithms.ppo.networks import NetSpec
from algorithms.ppo.policy import MlpPolicy
from algorithms.ppo.sizes import EnvSizes, treat_blocks
from envs.tracking import config as tasks
from envs.tracking.env import VectorTrackingEnv
from parc_ray.character.character import load_character
from parc_ray.errors import InputError
from tests.envs.helpers import WADDLER, stand_clip


@dataclass
class Block:
    size: int
    normalise: bool = True
    critic_only: bool = False
    encode: str = "none"
    rows: int = 1

    @property
    def shape(self):
        return (self.rows, self.size // self.rows)


def test_neighbouring_raw_blocks_join_and_critic_blocks_count():
    blocks = [
        Block(4),
        Block(2, False),
        Block(3, False),
        Block(5),
        Block(1, False),
        Block(6, True, True),
    ]
    assert treat_blocks(blocks) == (((4, 9), (14, 15)), 6)


def test_critic_only_blocks_must_come_last():
    with pytest.raises(InputError, match="last"):
        treat_blocks([Block(2, True, True), Block(3)])


def test_layout_fills_in_what_the_config_leaves_open():
    layout = SimpleNamespace(blocks=[Block(4), Block(2, False), Block(1, True, True)])
    sizes = EnvSizes.of(SimpleNamespace(obs_dim=7, action_dim=2, layout=layout))
    assert (sizes.obs_dim, sizes.action_dim) == (7, 2)
    filled = sizes.apply(TrackerConfig())
    assert filled.normaliser_skip == ((4, 6),)
    assert filled.privileged_dims == 1
    chosen = sizes.apply(TrackerConfig(normaliser_skip=((0, 1),)))
    assert chosen.normaliser_skip == ((0, 1),)


def test_encoders_follow_the_layout():
    """Own 5 numbers, 3 target frames of 4, 2 labels, 6 heights, 2 for the critic."""
    blocks = [
        Block(5),
        Block(12, encode="rows", rows=3),
        Block(2, False),
        Block(6, False, encode="heights"),
        Block(2, True, True),
    ]
    layout = SimpleNamespace(blocks=blocks)
    sizes = EnvSizes.of(SimpleNamespace(obs_dim=27, action_dim=2, layout=layout))
    config = TrackerConfig(encoders="shared", frame_encoder=(7, 3), height_encoder=(4,))
    frames, heights = sizes.apply(config).blocks
    assert (frames.start, frames.width, frames.count, frames.hidden) == (5, 4, 3, (7, 3))
    assert (heights.start, heights.width, heights.count, heights.hidden) == (19, 6, 1, (4,))
    assert sizes.apply(TrackerConfig()).blocks == ()
    own = TrackerConfig(encoders="shared", blocks=(heights,))
    assert sizes.apply(own).blocks == (heights,)


def test_encoders_without_anything_to_encode_are_refused():
    sizes = EnvSizes.of(SimpleNamespace(obs_dim=7, action_dim=2))
    with pytest.raises(InputError, match="encoders"):
        sizes.apply(TrackerConfig(encoders="shared"))


@pytest.mark.parametrize("which", ["humanoid", "waddler"])
@pytest.mark.parametrize("layout", ["base", "upstream"])
def test_every_target_frame_is_read_by_one_encoder(humanoid, which, layout):
    """Two frames that show the same have the same code, wherever they stand."""
    character = humanoid if which == "humanoid" else load_character(WADDLER)
    task = tasks.base()
    task = replace(task, observation=replace(task.observation, layout=layout))
    env = VectorTrackingEnv(character, [stand_clip(character)], 1, task)
    sizes = EnvSizes.of(env)
    slices = env.layout.slices
    config = sizes.apply(PRESETS["base"]())
    spec = NetSpec.from_config(config, sizes.obs_dim, sizes.action_dim)
    actor = MlpPolicy(spec).actor
    frames, heights = config.blocks
    assert frames.start == slices["targets"].start
    assert frames.start + frames.width * frames.count == slices["targets"].stop
    assert heights.start == slices["heights"].start
    obs = torch.randn(2, spec.actor_dim)
    first, second = (slice(frames.start + k * frames.width, None) for k in (0, 1))
    size = frames.width
    obs[:, second][:, :size] = obs[:, first][:, :size]
    code = config.frame_encoder[-1]
    rest = spec.actor_dim - frames.width * frames.count - heights.width
    codes = actor._encode(obs)[:, rest:]
    torch.testing.assert_close(codes[:, :code], codes[:, code : 2 * code])
    assert codes.shape[1] == frames.count * code + config.height_encoder[-1]
    assert spec.obs_dim - spec.actor_dim == sizes.privileged_dims > 0
    env.close()
