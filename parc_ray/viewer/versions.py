"""How the versions of one motion lie to each other: in space and in time."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from parc_ray.motion.clip import MotionClip
from parc_ray.viewer.catalog import Catalog, ClipEntry

_STRETCH = re.compile(r"frames (\d+) to (\d+) of (\d+)")
_NAMES = {
    "import": "original",
    "augment": "augmented",
    "generate": "generated",
    "tracker": "recorded (tracker)",
    "mpc": "recorded (MPC)",
}


def version_name(entry: ClipEntry) -> str:
    """What a version is called: by what made it."""
    name = _NAMES[entry.provenance.maker]
    if entry.refused:
        return f"refused {name}"
    return f"{name}, optimised" if "optimised" in entry.provenance.notes else name


def step(clip: MotionClip) -> tuple[NDArray[np.float32], float]:
    """From a clip to the one it was made from: shift (3,) m, and the time of its first frame, s.

    A recording lies in a frame of its own and may begin later than its source.
    """
    if clip.replay is None:
        return np.zeros(3, np.float32), 0.0
    found = _STRETCH.search(clip.provenance.notes)
    start = int(found[1]) / clip.fps if found else 0.0
    return -clip.replay.offset.numpy().astype(np.float32), start


def alignment(catalog: Catalog, key: str) -> tuple[NDArray[np.float32], float]:
    """From a clip to its oldest known ancestor: shift (3,) m and start on its time line, s."""
    shift, start = np.zeros(3, np.float32), 0.0
    seen: set[str] = set()
    key = catalog.entry(key).key
    while key not in seen:
        seen.add(key)
        parents = catalog.version_parents(key)
        if not parents:
            break
        moved, later = step(catalog.clip(key))
        shift, start = shift + moved, start + later
        key = parents[0]
    return shift, start
