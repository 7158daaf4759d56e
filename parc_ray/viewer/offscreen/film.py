"""Films and film strips: panels beside each other, captions, and the clock."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from parc_ray.terrain.heightfield import Heightfield
from parc_ray.viewer.offscreen.camera import View, follow
from parc_ray.viewer.offscreen.scene import Actor, Colour, Panel, Shapes

Picture = NDArray[np.uint8]
_INK, _PAPER = (40, 44, 52), (255, 255, 255)
_AHEAD = 8
"""Frames that are drawn before the first of them is wanted."""


class Renderer(Protocol):
    """Draws characters on one terrain from one direction."""

    name: str

    def draw(
        self, versions: Sequence[Sequence[tuple[Shapes, Colour]]], target: NDArray
    ) -> list[Picture]:
        """A picture (H, W, 3) of each version's bodies, the camera looking at ``target`` (3,) m."""
        ...

    def close(self) -> None:
        """Release what it holds."""
        ...


RendererFactory = Callable[[Heightfield, View, tuple[int, int], int], Renderer]
"""Makes a renderer of a terrain, a view, a size (W, H) and pixels per pixel and axis."""


@dataclass(frozen=True, kw_only=True)
class Film:
    """What is filmed and how."""

    panels: Sequence[Panel]
    """Pictures beside each other, all on one clock."""
    view: View
    """Direction of the camera, the same in all panels."""
    lead: Actor
    """Whom the camera follows."""
    size: tuple[int, int]
    """Width and height of the whole picture, pixels."""
    fps: float
    """Pictures per second."""
    start_s: float = 0.0
    """Where the film begins on the clock."""
    end_s: float | None = None
    """Where it ends; None: with the last version."""
    supersample: int = 1
    """Pixels per pixel and axis that are averaged."""

    @property
    def times(self) -> list[float]:
        """Moments of the pictures, s."""
        last = max(actor.end_s for panel in self.panels for actor in panel.actors)
        end = last if self.end_s is None else min(self.end_s, last)
        count = max(1, math.floor((end - self.start_s) * self.fps + 1e-6) + 1)
        return [self.start_s + k / self.fps for k in range(count)]

    @property
    def grid(self) -> tuple[int, int]:
        """Columns and rows of the panels."""
        count = len(self.panels)
        columns = count if count <= 3 else math.ceil(math.sqrt(count))
        return columns, math.ceil(count / columns)

    @property
    def panel_size(self) -> tuple[int, int]:
        """Width and height of a panel, even numbers of pixels."""
        columns, rows = self.grid
        return self.size[0] // columns // 2 * 2, self.size[1] // rows // 2 * 2


def pictures(film: Film, make: RendererFactory, times: Sequence[float]) -> Iterator[Picture]:
    """Pictures (H, W, 3) of the film at ``times``; software renderers use two threads."""
    targets = follow(film.lead, times)
    size = film.panel_size
    shared: dict[int, list[int]] = {}
    for number, panel in enumerate(film.panels):
        shared.setdefault(id(panel.terrain), []).append(number)
    groups = list(shared.values())
    renderers = [make(film.panels[g[0]].terrain, film.view, size, film.supersample) for g in groups]

    def picture(index: int) -> Picture:
        drawn: dict[int, Picture] = {}
        for renderer, group in zip(renderers, groups, strict=True):
            versions = [_bodies(film.panels[number], times[index]) for number in group]
            drawn.update(zip(group, renderer.draw(versions, targets[index]), strict=True))
        panels = enumerate(film.panels)
        return _tiled([_captioned(drawn[k], panel, times[index]) for k, panel in panels], film.grid)

    try:
        if any(renderer.name != "software" for renderer in renderers):
            yield from map(picture, range(len(times)))
            return
        with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
            for first in range(0, len(times), _AHEAD):
                yield from pool.map(picture, range(first, min(first + _AHEAD, len(times))))
    finally:
        for renderer in renderers:
            renderer.close()


def strip(film: Film, make: RendererFactory, count: int) -> Picture:
    """(H, W, 3) film strip: ``count`` moments from left to right, a row of them per panel."""
    every = film.times
    chosen = [every[k] for k in np.linspace(0, len(every) - 1, count).round().astype(int)]
    width, height = film.panel_size
    columns, _ = film.grid
    moments = list(pictures(film, make, chosen))
    lines = []
    for k in range(len(film.panels)):
        y, x = k // columns * height, k % columns * width
        lines.append(np.concatenate([m[y : y + height, x : x + width] for m in moments], axis=1))
    return np.concatenate(lines, axis=0)


def _bodies(panel: Panel, time_s: float) -> list[tuple[Shapes, Colour]]:
    found = []
    for actor in panel.actors:
        frame = actor.frame_at(time_s)
        if frame is not None:
            found.append((actor.shapes(frame), actor.colour))
    return found


def _tiled(drawn: Sequence[Picture], grid: tuple[int, int]) -> Picture:
    columns, rows = grid
    empty = np.full_like(drawn[0], 255)
    cells = [*drawn, *[empty] * (columns * rows - len(drawn))]
    lines = [np.concatenate(cells[r * columns : (r + 1) * columns], axis=1) for r in range(rows)]
    return np.concatenate(lines, axis=0)


@lru_cache(maxsize=8)
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _captioned(picture: Picture, panel: Panel, time_s: float) -> Picture:
    """Title and clock at the top, the versions in their colours at the bottom."""
    image = Image.fromarray(picture)
    draw = ImageDraw.Draw(image)
    size = max(11, image.height // 30)
    font, pad = _font(size), size // 2
    if panel.title:
        draw.text((pad, pad), panel.title, fill=_INK, font=font)
    clock = f"{time_s:.1f} s"
    draw.text((image.width - pad - draw.textlength(clock, font=font), pad), clock, _INK, font=font)
    y = image.height - pad - size
    for actor in reversed(panel.actors):
        here = actor.frame_at(time_s) is not None
        text = (
            actor.label if here else f"{actor.label} ({actor.start_s:.1f} to {actor.end_s:.1f} s)"
        )
        length = draw.textlength(text, font=font)
        draw.rectangle((pad - 3, y - 2, pad + size * 1.6 + length + 3, y + size + 3), fill=_PAPER)
        draw.rectangle((pad, y + size // 6, pad + size, y + size), fill=actor.colour)
        draw.text((pad + size * 1.6, y), text, fill=_INK, font=font)
        y -= size + pad
    return np.asarray(image)
