"""A look at what the network generates while it trains.

Losses can fall while samples freeze: a network that answers with the mean pose is rewarded by
squared errors. So every report draws a few windows and compares how much they move with how much
the data moves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from algorithms.diffusion.batch import WindowSource
from algorithms.diffusion.generator import DiffusionGenerator
from algorithms.diffusion.pictures import draw_windows
from parc_ray.character.rotations import heading_angle
from parc_ray.motion.frames import MotionFrames
from parc_ray.protocols import SampleRequest
from parc_ray.terrain.heightfield import HeightfieldBatch

_SEED = 7
_COUNT = 16


def motion_energy(frames: MotionFrames, fps: float) -> float:
    """Mean squared joint velocity, (rad/s)^2, of windows (N, T, ...)."""
    velocity = (frames.dof[:, 1:] - frames.dof[:, :-1]) * fps
    return float(velocity.square().mean())


@dataclass(frozen=True)
class Probe:
    """Windows of the data and their generated continuations.

    Attributes:
        figures: how they compare.
        made: (N, T, ...) generated windows, past frames included.
        true: (N, T, ...) what the data did.
        terrain: their N terrains.
    """

    figures: dict[str, float]
    made: MotionFrames
    true: MotionFrames
    terrain: HeightfieldBatch

    def picture(self, generator: DiffusionGenerator, count: int) -> NDArray[np.uint8]:
        """The first ``count`` windows as an RGB picture."""
        first = torch.arange(min(count, _COUNT))
        return draw_windows(
            generator.character.skeleton,
            self.made[first],
            self.true[first],
            self.terrain.index_select(first),
            generator.num_past,
        )


def probe(generator: DiffusionGenerator, source: WindowSource) -> Probe:
    """Continue windows of the data and compare them with what followed.

    The same windows and noise at every call, from random states of its own, so that probing does
    not disturb a training.

    Args:
        generator: with the present averaged weights.
        source: where windows come from.

    Returns:
        The windows and their figures. ``sample_energy_ratio`` is the motion energy of the
        generated frames over that of the true ones (about 1; near 0 the output is frozen),
        ``sample_drift_m`` the mean distance of the generated root from the true one in the last
        frame.
    """
    rng = torch.Generator().manual_seed(_SEED)
    windows = source.sample_windows(rng, _COUNT, generator.num_frames)
    past = windows.frames.time(0, generator.num_past)
    request = SampleRequest(
        past=past,
        anchor_pos=past.root_pos[:, -1],
        anchor_heading=heading_angle(past.root_rot[:, -1]),
        terrain=source.terrains.index_select(windows.terrain_ids),
        target_w=windows.target_pos[:, :2],
        second_w=windows.second_pos[:, :2] if generator.config.conditioning.second_target else None,
    )
    window = generator.sample(request, rng)
    made = window.time(generator.num_past)
    true = windows.frames.time(generator.num_past)
    energy = motion_energy(true, generator.fps)
    drift = (made.root_pos[:, -1] - true.root_pos[:, -1]).norm(dim=-1).mean()
    figures = {
        "sample_energy_ratio": motion_energy(made, generator.fps) / max(energy, 1e-9),
        "sample_drift_m": float(drift),
    }
    return Probe(figures, window, windows.frames, request.terrain)
