from __future__ import annotations

from pathlib import Path

import pytest
import torch

from parc_ray.character.character import Character, load_character

torch.set_num_threads(1)
ASSETS = Path(__file__).parents[1] / "assets"


@pytest.fixture(params=["humanoid", "waddler"])
def character(request) -> Character:
    """Every property must hold for both characters."""
    name = request.param
    return load_character(name if name == "humanoid" else ASSETS / f"{name}.xml")


@pytest.fixture
def person() -> Character:
    return load_character("humanoid")


@pytest.fixture
def waddler() -> Character:
    return load_character(ASSETS / "waddler.xml")
