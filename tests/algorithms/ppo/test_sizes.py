"""Reading an environment's observation layout."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from algorithms.ppo.config import TrackerConfig
from algorithms.ppo.sizes import EnvSizes, treat_blocks
from parc_ray.errors import InputError


@dataclass
class Block:
    size: int
    normalise: bool = True
    critic_only: bool = False


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
