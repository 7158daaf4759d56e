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
FULL_DEPTH_M = 0.05
LEGENDS: dict[str, str] = {
    "plain": "Each version has its own colour.",
    "contacts": "Red: the body is labelled as touching. Pale: it is not.",
    "penetration": f"White to red: 0 to {100 * FULL_DEPTH_M:.0f} cm below the ground.",
    "jerk": f"White to red: 0 to {JERK_LIMIT:,.0f} m/s³, the most in PARC's motion capture.",
}


def body_colours(poses: ClipPoses, tint: Tint, base: Colour) -> NDArray[np.uint8]:
    """RGB (T, B, 3) of every body in every frame.

    Args:
        poses: the motion.
        tint: what the colour tells.
        base: colour of the version, for "plain".
    """
    if tint == "plain":
        shape = (poses.num_frames, poses.character.skeleton.num_bodies, 3)
        return np.broadcast_to(np.array(base, np.uint8), shape)
    if tint == "contacts":
        return blend(poses.contacts, PALE, CONTACT)
    if tint == "penetration":
        return blend(poses.penetration / FULL_DEPTH_M, PALE, DEEP)
    return blend(poses.jerk / JERK_LIMIT, PALE, DEEP)


def blend(share: NDArray[np.float32], low: Colour, high: Colour) -> NDArray[np.uint8]:
    """Colours (..., 3) between ``low`` at share 0 and ``high`` at share 1 (...)."""
    t = np.clip(share, 0.0, 1.0)[..., None]
    mixed = (1.0 - t) * np.array(low, np.float32) + t * np.array(high, np.float32)
    return np.rint(mixed).astype(np.uint8)
