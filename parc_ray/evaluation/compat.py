"""Surface points exactly as the published PARC code places them, for comparing its figures.

That code turns every ring of a capsule about ``z x d`` (d from the capsule's near to its far end)
by acos(axis . d), which is 90 degrees whatever d is; where d is along z it turns about z instead,
by acos(d_z). Limbs along z so get a twist of the ring points, and slanted capsules are flattened.
Our own points (``parc_ray.character.surface``) have neither error. The twist was inferred from the
published code's figures on three motions, which it reproduces (tests/evaluation/test_metrics.py).
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import torch

from parc_ray.character.character import Character
from parc_ray.character.geometry import Geom
from parc_ray.character.surface import SurfacePoints, surface_points


@lru_cache(maxsize=16)
def upstream_points(character: Character) -> SurfacePoints:
    """The full point set of ``character`` with the published code's capsule orientations."""
    geoms = tuple(_upstream_capsule(g) if g.kind == "capsule" else g for g in character.geoms)
    return surface_points(replace(character, geoms=geoms), "full")


def _upstream_capsule(geom: Geom) -> Geom:
    ends = geom.ends()
    near, far = ends[ends.norm(dim=1).argsort()]
    direction = far - near
    axis = torch.linalg.cross(direction.new_tensor([0.0, 0.0, 1.0]), direction)
    if float(axis.norm()) < 1e-6:
        axis = direction.new_tensor([0.0, 0.0, 1.0])
        angle = math.acos(min(1.0, max(-1.0, float(direction[2]))))
    else:
        axis, angle = axis / axis.norm(), math.pi / 2
    x, y, z = (math.sin(angle / 2) * float(v) for v in axis)
    return replace(geom, quat=(x, y, z, math.cos(angle / 2)))
