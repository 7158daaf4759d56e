"""The simulated character as MJCF text, for programs that know nothing of this one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from envs.sims.base import SimConfig
from envs.sims.mujoco_model import ModelBuilder

if TYPE_CHECKING:
    from parc_ray.character.character import Character


def portable_model(character: Character, config: SimConfig) -> tuple[str, dict[str, Any]]:
    """What has to be simulated: servos with their damping, contact sensors, solver options.

    Args:
        character: the character.
        config: simulator settings.

    Returns:
        MJCF without ground, and the properties that ground boxes must have to touch as they do
        in training.
    """
    builder = ModelBuilder(character, config, 1)
    spec = builder._spec
    ground = builder._boxes[0]
    contact = {
        "contype": 2,
        "conaffinity": 1,
        "condim": int(ground.condim),
        "friction": [float(v) for v in ground.friction],
        "solref": [float(v) for v in ground.solref],
        "solimp": [float(v) for v in ground.solimp],
    }
    for geom in builder._boxes:
        spec.delete(geom)
    spec.compile()
    return spec.to_xml(), contact
