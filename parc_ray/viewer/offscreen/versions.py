"""Versions of one motion: found by its id or its lineage, and laid on one clock and one ground.

A recording is a piece of its source in a frame of its own. Where it starts in the source stands in
its notes, and by how much it was moved in its replay.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parc_ray.character.character import Character
from parc_ray.motion.clip import MotionClip
from parc_ray.viewer.offscreen.camera import choose_view
from parc_ray.viewer.offscreen.film import Film
from parc_ray.viewer.offscreen.scene import PALETTE, Actor, Panel, make_actor

_NOTE = re.compile(r"^frames (\d+) to \d+ of \d+ of ")


@dataclass(frozen=True, kw_only=True, eq=False)
class Version:
    """A clip as one of several versions."""

    label: str
    """What it is called."""
    clip: MotionClip
    """The motion."""


class Related:
    """Clips by what they are versions of.

    Args:
        clips: of one data set.
    """

    def __init__(self, clips: Sequence[MotionClip]) -> None:
        """List them by id and by parent; see the class."""
        self._by_id = {clip.clip_id: clip for clip in clips}
        self._by_parent: dict[str, MotionClip] = {}
        for clip in clips:
            for parent in clip.provenance.parents:
                self._by_parent.setdefault(parent, clip)

    def to(self, clip_id: str) -> MotionClip | None:
        """The clip of that id, else the first that was made from it."""
        return self._by_id.get(clip_id) or self._by_parent.get(clip_id)


def start_frame(clip: MotionClip) -> int:
    """Frame of its source at which a recording begins; 0 for everything else."""
    found = _NOTE.match(clip.provenance.notes)
    return int(found[1]) if found and clip.replay is not None else 0


def actors_of(versions: Sequence[Version], character: Character) -> list[Actor]:
    """The versions in the first one's frame and on its clock, in the colours of the palette."""
    base = versions[0].clip
    actors = []
    for number, version in enumerate(versions):
        clip = version.clip
        recorded_here = clip.replay is not None and base.clip_id in clip.provenance.parents
        shift, start_s = None, 0.0
        if recorded_here and clip.replay is not None:
            shift, start_s = -clip.replay.offset.numpy(), start_frame(clip) / base.fps
        elif number and clip.clip_id != base.clip_id:
            shift = _beside(base, clip)
        colour = PALETTE[number % len(PALETTE)]
        actors.append(
            make_actor(clip, character, version.label, colour, shift=shift, start_s=start_s)
        )
    return actors


def _beside(base: MotionClip, clip: MotionClip) -> np.ndarray:
    """The move that puts the first root of ``clip`` where that of ``base`` is."""
    return (base.frames.root_pos[0] - clip.frames.root_pos[0]).numpy()


def panels_of(
    versions: Sequence[Version], actors: Sequence[Actor], title: str, overlaid: bool
) -> list[Panel]:
    """A panel per version, or one for all; the ground is that of the first version."""
    terrain = versions[0].clip.terrain
    if overlaid or len(actors) == 1:
        return [Panel(title=title, terrain=terrain, actors=actors)]
    return [
        Panel(title=title if k == 0 else "", terrain=terrain, actors=[actor])
        for k, actor in enumerate(actors)
    ]


def film_of(
    versions: Sequence[Version],
    character: Character,
    *,
    size: tuple[int, int],
    fps: float,
    title: str = "",
    overlaid: bool = False,
    azimuth_deg: float | None = None,
    elevation_deg: float | None = None,
    distance_m: float | None = None,
    start_s: float = 0.0,
    end_s: float | None = None,
    supersample: int = 1,
) -> Film:
    """A film of one motion in all its versions; the camera goes with the first.

    Args:
        versions: one or more.
        character: who moves.
        size: of the whole picture, pixels.
        fps: pictures per second.
        title: written into the corner.
        overlaid: all versions in one panel.
        azimuth_deg: of the camera; None chooses a side from which most is seen.
        elevation_deg: of the camera; None looks down a little.
        distance_m: of the camera; None follows from the character's height.
        start_s: where it begins.
        end_s: where it ends; None: with the last version.
        supersample: pixels per pixel and axis that are averaged.
    """
    actors = actors_of(versions, character)
    view = choose_view(
        actors[0],
        versions[0].clip.terrain,
        character.stand_height,
        azimuth_deg,
        elevation_deg,
        distance_m,
    )
    return Film(
        panels=panels_of(versions, actors, title, overlaid),
        view=view,
        lead=actors[0],
        size=size,
        fps=fps,
        start_s=start_s,
        end_s=end_s,
        supersample=supersample,
    )
