"""Ray with the toy environment registered."""

from __future__ import annotations

import pytest

from tests.algorithms.ppo.toy import register_toy


@pytest.fixture
def toy(ray_session):
    """Name of the registered toy environment."""
    return register_toy()
