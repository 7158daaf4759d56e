"""What the bodies of a character are for, read from its tree: legs, arms, trunk.

Joint maps speak of roles, so that one map per source skeleton serves every character. Nothing here
depends on names except which side is left.
"""

from __future__ import annotations

from parc_ray.character.character import Character
from parc_ray.character.skeleton import Skeleton

TRUNK_ROLES = ("pelvis", "torso", "head")
LEG_ROLES = ("thigh", "shin", "foot")
ARM_ROLES = ("upper_arm", "lower_arm", "hand")
SIDES = ("left", "right")
ROLES: tuple[str, ...] = (
    *TRUNK_ROLES,
    *(f"{side}_{part}" for side in SIDES for part in (*LEG_ROLES, *ARM_ROLES)),
)
"""All names of roles."""


def path_from_root(skeleton: Skeleton, body: int) -> tuple[int, ...]:
    """Bodies from the root's child down to ``body``."""
    path = []
    while body > 0:
        path.append(body)
        body = skeleton.parents[body]
    return tuple(reversed(path))


def body_roles(character: Character) -> dict[str, int]:
    """Body of each role that the character has.

    A leg is the way from the trunk to one of ``character.feet``, an arm the way to one of
    ``character.hands``; the torso is what carries the arms (else the first body besides the legs),
    the head the furthest end of what is left on top of it.

    Args:
        character: any character.

    Returns:
        Role to body index; roles without a body are left out.
    """
    skeleton = character.skeleton
    legs = [path_from_root(skeleton, b) for b in character.feet]
    arms = [path_from_root(skeleton, b) for b in character.hands]
    roles = {"pelvis": 0}
    in_legs = {b for path in legs for b in path}
    shared = _shared(arms) if len(arms) > 1 else ()
    trunk = [b for b in range(1, skeleton.num_bodies) if b not in in_legs]
    if shared:
        roles["torso"] = shared[-1]
    elif trunk:
        roles["torso"] = trunk[0]
    in_arms = {b for path in arms for b in path if b not in shared}
    above = [b for b in trunk if b not in in_arms and b != roles.get("torso") and b not in shared]
    if above:
        roles["head"] = max(above, key=lambda b: len(path_from_root(skeleton, b)))
    for path in legs:
        _limb(roles, character, path, LEG_ROLES)
    for path in arms:
        _limb(roles, character, tuple(b for b in path if b not in shared), ARM_ROLES)
    return roles


def _shared(paths: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Bodies that all paths begin with."""
    count = 0
    while all(len(p) > count and p[count] == paths[0][count] for p in paths):
        count += 1
    return paths[0][:count]


def _limb(
    roles: dict[str, int], character: Character, path: tuple[int, ...], names: tuple[str, ...]
) -> None:
    """Enter the first, second and last body of a limb, on its side."""
    if not path:
        return
    side = _side(character, path[-1])
    upper, middle, end = names
    roles[f"{side}_{end}"] = path[-1]
    if len(path) > 1:
        roles[f"{side}_{upper}"] = path[0]
    if len(path) > 2:
        roles[f"{side}_{middle}"] = path[1]


def _side(character: Character, body: int) -> str:
    """Side of a body: by its name, else by where its limb sits (y to the left)."""
    skeleton = character.skeleton
    name = skeleton.body_names[body].lower()
    for side in SIDES:
        if side in name:
            return side
    y = float(sum(skeleton.offsets[b][1] for b in path_from_root(skeleton, body)))
    return "left" if y >= 0.0 else "right"
