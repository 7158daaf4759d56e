"""Colours of bodies: plain, by contact, by penetration, by jerk."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from parc_ray.evaluation.metrics import JERK_LIMIT
from parc_ray.viewer.poses import ClipPoses

Tint = Literal["plain", "contacts", "penetration", "jerk"]
TINTS: tuple[Tint, ...] = ("plain", "contacts", "penetration", "jerk")
Colour = tuple[int, int, int]
PALETTE: tuple[Colour, ...] = (
    (70, 130, 190),
    (230, 140, 60),
    (90, 165, 95),
    (160, 110, 180),
    (190, 95, 95),
    (120, 120, 120),
)
CONTACT: Colour = (235, 75, 60)
DEEP: Colour = (215, 25, 30)
PALE: Colour = (225, 225, 220)
_OWN = 0.35
"""Share of the version's colour in the pale one."""
FULL_DEPTH_M = 0.05
LEGENDS: dict[str, str] = {
    "plain": "Each version has its own colour.",
    "contacts": "Red: the body is labelled as touching. Pale: it is not.",
    "penetration": f"Pale to red: 0 to {100 * FULL_DEPTH_M:.0f} cm below the ground.",
    "jerk": f"Pale to red: 0 to {JERK_LIMIT:,.0f} m/s³, the most in PARC's motion capture.",
}


def body_colours(poses: ClipPoses, tint: Tint, base: Colour) -> NDArray[np.uint8]:
    """RGB (T, B, 3) of every body in every frame.

    Args:
        poses: the motion.
        tint: what the colour tells.
        base: colour of the version; a pale one of it where nothing is to be told.
    """
    if tint == "plain":
        shape = (poses.num_frames, poses.character.skeleton.num_bodies, 3)
        return np.broadcast_to(np.array(base, np.uint8), shape)
    low = pale(base)
    if tint == "contacts":
        return blend(poses.contacts, low, CONTACT)
    if tint == "penetration":
        return blend(poses.penetration / FULL_DEPTH_M, low, DEEP)
    return blend(poses.jerk / JERK_LIMIT, low, DEEP)


def pale(base: Colour) -> Colour:
    """What a body of a version has where there is nothing to tell."""
    red, green, blue = (round(p + _OWN * (own - p)) for p, own in zip(PALE, base, strict=True))
    return red, green, blue


def blend(share: NDArray[np.float32], low: Colour, high: Colour) -> NDArray[np.uint8]:
    """Colours (..., 3) between ``low`` at share 0 and ``high`` at share 1 (...)."""
    t = np.clip(share, 0.0, 1.0)[..., None]
    mixed = (1.0 - t) * np.array(low, np.float32) + t * np.array(high, np.float32)
    return np.rint(mixed).astype(np.uint8)
