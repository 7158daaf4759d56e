"""Poses of the data to start roll-outs from, kept with a trained generator.

PARC lets the network dream up the first window. A network of minutes dreams badly, and a motion
that begins badly cannot be followed in simulation; so a generator may instead begin with past
frames of the data, set down at the start of the path, and dream from there on.

Shapes: K starts, P past frames, F features.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from algorithms.diffusion.batch import WindowSource
from algorithms.diffusion.config import DiffusionConfig
from parc_ray.character.character import Character
from parc_ray.errors import InputError
from parc_ray.motion.features import (
    CanonicalFrame,
    FeatureLayout,
    canonical_frame,
    from_canonical,
    pack,
    to_canonical,
    unpack,
)
from parc_ray.motion.frames import MotionFrames
from parc_ray.motion.mirror import mirror_frames
from parc_ray.terrain.heightfield import HeightfieldBatch

_SEED = 20_250_503
_DRAWN_PER_KEPT = 8
_LEVEL_M = 0.05
_RADIUS_M = 0.6
_CONTACT = 0.5


@dataclass(frozen=True)
class Starts:
    """Past frames on level ground.

    Attributes:
        features: (K, P, F) canonical features, not normalised.
        clearance: (K,) m, height of the reference root above the ground.
    """

    features: Tensor
    clearance: Tensor

    def draw(
        self, rng: torch.Generator, layout: FeatureLayout, xy: Tensor, ground: Tensor, turn: Tensor
    ) -> MotionFrames:
        """World past frames (N, P, ...) at given places.

        Args:
            rng: decides which starts.
            layout: of the features.
            xy: (N, 2) m, where the reference root stands.
            ground: (N,) m, height of the ground there.
            turn: (N,) rad, heading of the reference root.
        """
        pick = torch.randint(len(self.clearance), (len(xy),), generator=rng)
        frames, _ = unpack(layout, self.features[pick])
        frames.contacts = frames.contacts.clamp(0.0, 1.0)
        height = ground.cpu() + self.clearance[pick]
        origin = torch.cat([xy.cpu(), height[:, None]], dim=-1)
        return from_canonical(frames, CanonicalFrame(origin=origin, heading=turn.cpu()))


def collect_starts(source: WindowSource, character: Character, config: DiffusionConfig) -> Starts:
    """Draw ``train.start_windows`` past windows with a foot down on level ground.

    Mirror images are among them where training mirrors windows. The same source gives the same.

    Raises:
        InputError: if the data holds none.
    """
    rng = torch.Generator().manual_seed(_SEED)
    wanted = config.train.start_windows
    windows = source.sample_windows(rng, wanted * _DRAWN_PER_KEPT, config.num_past)
    terrain = source.terrains.index_select(windows.terrain_ids)
    frames, r = windows.frames, config.reference
    ground = _level_ground(terrain, frames.root_pos[:, r, :2])
    feet = frames.contacts[:, r, list(character.feet)].amax(dim=-1)
    good = (torch.isfinite(ground) & (feet >= _CONTACT)).nonzero()[:wanted, 0]
    if len(good) == 0:
        raise InputError(
            "train.start_windows: no window of the data stands on level ground; set it to 0 and "
            "sampling.start to 'noise'."
        )
    kept = frames[good]
    canonical = to_canonical(kept, canonical_frame(kept, r))
    features = pack(character.skeleton, canonical, form=config.rotations)
    if config.conditioning.mirror_chance > 0:
        twins = pack(character.skeleton, mirror_frames(character, canonical), form=config.rotations)
        flip = torch.arange(len(good)) % 2 == 1
        features = torch.where(flip[:, None, None], twins, features)
    return Starts(features, kept.root_pos[:, r, 2] - ground[good])


def _level_ground(terrain: HeightfieldBatch, xy: Tensor) -> Tensor:
    """Height of the ground at (N, 2), NaN where it changes within the radius."""
    d = _RADIUS_M
    around = xy.new_tensor([[0, 0], [d, 0], [-d, 0], [0, d], [0, -d], [d, d], [-d, -d]])
    heights = terrain.height_at(xy[:, None] + around)
    level = heights.amax(1) - heights.amin(1) <= _LEVEL_M
    return torch.where(level, heights[:, 0], torch.nan)
