"""Samples as pictures while a training runs: stick figures over the ground, seen from the side.

Figures do not show a body that floats or folds. One row per sample, x to the right and z upwards in
the sample's canonical frame; the data's continuation is grey, the generated one coloured, the past
frames black. Drawn pixel by pixel without a plotting library: it costs milliseconds.

Shapes: N windows, T frames, B bodies.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor

from parc_ray.character.kinematics import fk_from_dof
from parc_ray.character.skeleton import Skeleton
from parc_ray.motion.features import canonical_frame, to_canonical
from parc_ray.motion.frames import MotionFrames
from parc_ray.terrain.heightfield import HeightfieldBatch

WIDTH, HEIGHT = 560, 200
"""Pixels of one row."""
SPAN_M = (-1.2, 3.4)
"""m, shown along x."""
FLOOR_M = -1.25
"""m, lowest height shown, relative to the root of the last past frame."""
EVERY = 3
"""Frames between two stick figures."""
_GROUND, _PAST, _TRUE, _MADE = (150, 125, 80), (20, 20, 20), (170, 170, 170), (200, 60, 80)

Colour = tuple[int, int, int]


def draw_windows(
    skeleton: Skeleton,
    made: MotionFrames,
    true: MotionFrames,
    terrain: HeightfieldBatch,
    num_past: int,
) -> NDArray[np.uint8]:
    """One picture of N windows.

    Args:
        skeleton: for the bones.
        made: generated windows (N, T, ...) in the world, past frames included.
        true: what the data does there.
        terrain: N terrains.
        num_past: past frames, the last of which is the reference.

    Returns:
        (N * HEIGHT, WIDTH, 3) RGB.
    """
    frame = canonical_frame(true, num_past - 1)
    x = torch.linspace(*SPAN_M, WIDTH)
    line = torch.stack([x, torch.zeros_like(x), torch.zeros_like(x)], dim=-1)
    n = made.root_pos.shape[0]
    xy = frame.point_to_world(line.expand(n, -1, -1))[..., :2]
    ground = terrain.height_at(xy) - frame.origin[:, 2:]
    bodies = [_body_pos(skeleton, to_canonical(f, frame)) for f in (made, true)]
    rows = [
        _row(skeleton, ground[i].numpy(), bodies[0][i].numpy(), bodies[1][i].numpy(), num_past)
        for i in range(n)
    ]
    return np.concatenate(rows)


def _body_pos(skeleton: Skeleton, frames: MotionFrames) -> Tensor:
    return fk_from_dof(skeleton, frames.root_pos, frames.root_rot, frames.dof)[0]


def _row(
    skeleton: Skeleton, ground: NDArray, made: NDArray, true: NDArray, num_past: int
) -> NDArray[np.uint8]:
    """One window: ground (WIDTH,) m, bodies (T, B, 3) m of sample and data."""
    image = Image.new("RGB", (WIDTH, HEIGHT), "white")
    pen = ImageDraw.Draw(image)
    outline = [(i, _pixel_z(z)) for i, z in enumerate(ground)]
    pen.polygon([(0, HEIGHT), *outline, (WIDTH, HEIGHT)], fill=_GROUND)
    for bodies, colour in ((true, _TRUE), (made, _MADE)):
        for t in range(num_past - 1, len(bodies), EVERY):
            _stick(pen, skeleton, bodies[t], _PAST if t < num_past else colour)
    pen.line([(0, 0), (WIDTH, 0)], fill=_PAST)
    return np.asarray(image, dtype=np.uint8)


def _stick(pen: ImageDraw.ImageDraw, skeleton: Skeleton, bodies: NDArray, colour: Colour) -> None:
    if not np.isfinite(bodies).all():
        return
    points = [(_pixel_x(p[0]), _pixel_z(p[2])) for p in bodies]
    for body, parent in enumerate(skeleton.parents):
        if parent >= 0:
            pen.line([points[parent], points[body]], fill=colour, width=2)


def _scale() -> float:
    return WIDTH / (SPAN_M[1] - SPAN_M[0])


def _pixel_x(x: float) -> float:
    return float(np.clip((x - SPAN_M[0]) * _scale(), -WIDTH, 2 * WIDTH))


def _pixel_z(z: float) -> float:
    return float(np.clip(HEIGHT - (z - FLOOR_M) * _scale(), -HEIGHT, 2 * HEIGHT))
