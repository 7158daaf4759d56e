"""Retargeting: motions of foreign skeletons onto any character.

An importer makes a :class:`SourceMotion` of what its file says, chooses a :class:`JointMap` and
returns :func:`retarget_raw` of both. Importers take names from the modules, not from here, as both
packages know each other.
"""

import parc_ray.data.importers  # noqa: F401  (first, as its modules import those below)
from parc_ray.data.retarget.joint_map import JointMap, load_joint_map, parse_joint_map
from parc_ray.data.retarget.retarget import (
    RetargetConfig,
    RetargetedFrames,
    RetargetReport,
    retarget,
    retarget_raw,
)
from parc_ray.data.retarget.source import SourceMotion

__all__ = [
    "JointMap",
    "RetargetConfig",
    "RetargetReport",
    "RetargetedFrames",
    "SourceMotion",
    "load_joint_map",
    "parse_joint_map",
    "retarget",
    "retarget_raw",
]
