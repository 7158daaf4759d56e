"""Windows for distillation: short roll-outs that begin in the data and go on from what was made.

A student that only ever continues the data meets its own mistakes for the first time when it is
used. So every drawn window is the start of a chain: the next windows continue what teacher or
student made, over the same local terrain, which goes on evenly beyond its border.

Shapes: N chains, P past frames, T frames, F features.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from algorithms.diffusion.batch import BatchMaker, WindowSource, local_terrain
from algorithms.diffusion.conditions import Conditions
from algorithms.diffusion.generator import DiffusionGenerator
from parc_ray.character.rotations import heading_angle, rotate_xy
from parc_ray.motion.features import unpack
from parc_ray.motion.frames import MotionFrames
from parc_ray.protocols import SampleRequest
from parc_ray.terrain.heightfield import HeightfieldBatch

TARGET_M = 2.8
"""Distance of the point to move towards, m; roll-outs look as far ahead."""
TURN_RAD = 0.6
"""Standard deviation of the turn of that point between two windows of a chain, rad."""
LOST_M = 2.0
"""A chain whose root is further than this from its data's height over the ground begins anew, m."""


@dataclass(frozen=True)
class Items:
    """Windows to learn, with the answer of the teacher.

    Attributes:
        heights: (N, GX, GY) m.
        target: (N, G).
        past: (N, P, F) normalised.
        clean: (N,) bool, the past is given; False for first windows.
        noise: (N, T, F).
        answer: (N, T, F) normalised window of the teacher.
    """

    heights: Tensor
    target: Tensor
    past: Tensor
    clean: Tensor
    noise: Tensor
    answer: Tensor

    def select(self, index: Tensor) -> Items:
        """Rows of every tensor."""
        return Items(**{f.name: getattr(self, f.name)[index] for f in fields(self)})

    def conditions(self) -> Conditions:
        """As the student sees them: one branch, the past readable."""
        yes = torch.ones_like(self.clean)
        return Conditions(self.heights, self.target, self.clean, yes, yes, yes)


def join(parts: list[Items]) -> Items:
    """Put items together."""
    return Items(**{f.name: torch.cat([getattr(p, f.name) for p in parts]) for f in fields(Items)})


class Chains:
    """N chains on the CPU; all randomness comes from the generator passed in."""

    def __init__(
        self,
        source: WindowSource,
        teacher: DiffusionGenerator,
        count: int,
        *,
        depth: int,
        rewind: int,
        first_share: float,
    ) -> None:
        """Keep references.

        Args:
            source: where chains begin.
            teacher: answers; its configuration decides how windows are drawn from the source.
            count: N.
            depth: windows of a chain.
            rewind: frames at the end of a window that are thrown away (plus one).
            first_share: share of chains that begin without past frames.
        """
        self.teacher, self.count, self.depth = teacher, count, depth
        self.first_share, self.past = first_share, teacher.num_past
        self.keep_end = teacher.num_frames - 1 - rewind
        self.batches = BatchMaker(source, teacher.character, teacher.config, teacher.file.stats)
        self.state: dict[str, Tensor] = {}

    def state_dict(self) -> dict[str, Tensor]:
        """Where the chains are."""
        return dict(self.state)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from ``state_dict``."""
        self.state = dict(state)

    def items(self, rng: torch.Generator) -> Items:
        """The next window of every chain, answered by the teacher; chains do not move on yet."""
        if not self.state:
            self.state = self._drawn(rng, self.count)
            # Not all chains end at once.
            self.state["age"] = torch.arange(self.count) % self.depth
        state, teacher = self.state, self.teacher
        request = self._request(state)
        frame = teacher.frame(request)
        cond = teacher.conditions(request, frame)
        assert request.past is not None
        past = teacher.past_features(request.past, frame)
        noise = torch.randn(self.count, teacher.num_frames, past.shape[-1], generator=rng)
        noise = noise.to(teacher.device)
        answer = torch.empty_like(noise)
        first = state["first"].to(teacher.device)
        for which, given in ((~first, past), (first, None)):
            if bool(which.any()):
                some = Conditions(
                    **{f.name: getattr(cond, f.name)[which] for f in fields(Conditions)}
                )
                given = None if given is None else given[which]
                answer[which] = teacher.windows(some, given, noise[which])
        return Items(cond.heights, cond.target, past, ~first, noise, answer)

    def advance(self, rng: torch.Generator, windows: Tensor) -> None:
        """Go on from windows (N, T, F) made for ``items``; finished and lost chains begin anew."""
        state = self.state
        frame = self.teacher.frame(self._request(state))
        made = self.teacher.place(windows, frame, torch.device("cpu"))
        kept = made.time(self.keep_end - self.past, self.keep_end)
        terrain = self._terrain(state)
        ground = terrain.height_at(kept.root_pos[:, -1:, :2])[:, 0]
        clearance = kept.root_pos[:, -1, 2] - ground
        pieces = (kept.root_pos, kept.root_rot, kept.dof)
        finite = torch.stack([torch.isfinite(x).flatten(1).all(1) for x in pieces]).all(0)
        good = finite & ((clearance - state["clearance"]).abs() < LOST_M)
        over = (state["age"] + 1 >= self.depth) | ~good
        turn = TURN_RAD * torch.randn(self.count, generator=rng)
        moved = {
            **state,
            **{name: getattr(kept, name) for name in _FRAMES},
            "direction": rotate_xy(state["direction"], turn),
            "age": state["age"] + 1,
            "first": torch.zeros_like(state["first"]),
        }
        fresh = self._drawn(rng, self.count)
        self.state = {
            name: torch.where(over.view(-1, *[1] * (value.dim() - 1)), fresh[name], value)
            for name, value in moved.items()
        }

    def _drawn(self, rng: torch.Generator, n: int) -> dict[str, Tensor]:
        """New chains: windows of the source in their canonical frames."""
        teacher = self.teacher
        batch = self.batches.draw(rng, n)
        frames, _ = unpack(teacher.layout, batch.features[:, : self.past])
        direction = batch.cond.target[:, :2]
        ahead = torch.tensor([1.0, 0.0]).expand_as(direction)
        length = direction.norm(dim=-1, keepdim=True)
        terrain = batch.terrain
        reference = frames.root_pos[:, -1]
        ground = terrain.height_at(reference[:, None, :2])[:, 0]
        return {
            **{name: getattr(frames, name) for name in _FRAMES},
            "heights": terrain.heights,
            "direction": torch.where(length > 0.5, direction / length.clamp_min(1e-6), ahead),
            "clearance": reference[:, 2] - ground,
            "age": torch.zeros(n, dtype=torch.long),
            "first": torch.rand(n, generator=rng) < self.first_share,
        }

    def _terrain(self, state: dict[str, Tensor]) -> HeightfieldBatch:
        config = self.teacher.config
        return local_terrain(state["heights"], config.grid, config.terrain.max_height)

    def _request(self, state: dict[str, Tensor]) -> SampleRequest:
        past = MotionFrames(**{name: state[name] for name in _FRAMES})
        anchor = past.root_pos[:, -1]
        aim: dict[str, Any] = {"target_w": anchor[:, :2] + TARGET_M * state["direction"]}
        return SampleRequest(
            past=past,
            anchor_pos=anchor,
            anchor_heading=heading_angle(past.root_rot[:, -1]),
            terrain=self._terrain(state),
            **aim,
        )


_FRAMES = tuple(f.name for f in fields(MotionFrames))
