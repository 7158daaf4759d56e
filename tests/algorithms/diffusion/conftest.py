from __future__ import annotations

import pytest
import torch

from parc_ray.character.character import load_character
from tests.algorithms.diffusion.fakes import make_bank


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def character():
    return load_character("humanoid")


@pytest.fixture(scope="session")
def bank(character):
    return make_bank(character)
