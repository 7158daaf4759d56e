from __future__ import annotations

import dataclasses

import pytest

from algorithms.diffusion.config import DiffusionConfig
from algorithms.diffusion.profiles import tiny
from tests.algorithms.diffusion.fakes import FakeBank, make_bank


@pytest.fixture(scope="session")
def bank(humanoid) -> FakeBank:
    return make_bank(humanoid)


@pytest.fixture
def config() -> DiffusionConfig:
    """The tiny profile with few windows for its statistics."""
    return with_train(tiny(), stat_windows=64, batch_size=8, steps=4, report_every=2, log_every=1)


def with_train(config: DiffusionConfig, **changes) -> DiffusionConfig:
    return dataclasses.replace(config, train=dataclasses.replace(config.train, **changes))
