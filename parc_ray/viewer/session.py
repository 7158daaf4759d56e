"""What a page shows: clip, comparison, colours and time. Plain state; the page only draws it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip
from parc_ray.viewer.catalog import Catalog, ClipEntry
from parc_ray.viewer.clock import PlaybackClock
from parc_ray.viewer.filters import ClipFilter
from parc_ray.viewer.poses import PoseCache
from parc_ray.viewer.scene import Arrangement, Figure, Scene, arrange
from parc_ray.viewer.tint import PALETTE, Tint
from parc_ray.viewer.versions import alignment, version_name

MOST_FIGURES = 16
_GHOST = 0.55


@dataclass(kw_only=True)
class Session:
    """State of the viewer.

    Attributes:
        catalog: the clips.
        clock: time of the playback.
        filter: which clips are listed.
        arrangement: how several figures stand.
        compare: whether the versions of the chosen clip are shown together.
        key: the chosen clip, "" while there is none.
    """

    catalog: Catalog
    clock: PlaybackClock = field(default_factory=PlaybackClock)
    filter: ClipFilter = field(default_factory=ClipFilter)
    arrangement: Arrangement = "overlay"
    compare: bool = False
    key: str = ""
    scene: Scene = field(init=False)
    cache: PoseCache = field(init=False)

    def __post_init__(self) -> None:
        """An empty scene, or the first clip."""
        self.scene = Scene(character=self.catalog.character)
        self.cache = PoseCache(self.catalog.character)

    def listed(self) -> list[ClipEntry]:
        """The clips that the filter lets through."""
        return self.filter.apply(self.catalog.entries.values())

    def select(self, key: str) -> None:
        """Show a clip, with its versions if comparison is on; time begins anew."""
        self.key = self.catalog.entry(key).key
        self.show(self.catalog.versions(self.key) if self.compare else [self.key])
        self.clock.seek(0.0)

    def chosen(self) -> MotionClip:
        """The chosen clip, whatever is shown beside it.

        Raises:
            InputError: none is chosen, or it cannot be read.
        """
        if not self.key:
            raise InputError("there is no clip; choose one")
        return self.catalog.clip(self.key)

    def chosen_frame(self) -> int:
        """Frame of the chosen clip that is shown.

        Raises:
            InputError: the chosen clip is not shown.
        """
        for figure in self.scene.figures:
            if figure.key == self.key:
                return figure.frame(self.clock.time_s)
        raise InputError("the chosen clip is not shown; choose it again")

    def set_compare(self, compare: bool) -> None:
        """Show the versions of the chosen clip together, or it alone."""
        self.compare = compare
        if self.key:
            self.show(self.catalog.versions(self.key) if compare else [self.key])

    def set_arrangement(self, how: Arrangement) -> None:
        """Overlay or side by side."""
        self.arrangement = how
        arrange(self.scene.figures, how)
        self._fade()

    def set_tint(self, tint: Tint) -> None:
        """What the colours tell."""
        self.scene.tint = tint

    def step_clip(self, by: int) -> None:
        """The next or an earlier one of the listed clips."""
        keys = [entry.key for entry in self.listed()]
        if keys:
            at = keys.index(self.key) + by if self.key in keys else 0
            self.select(keys[at % len(keys)])

    def show(self, keys: Sequence[str], arrangement: Arrangement | None = None) -> None:
        """Show these clips together.

        Raises:
            InputError: more than fit, or a clip that cannot be read.
        """
        if len(keys) > MOST_FIGURES:
            raise InputError(f"{len(keys)} clips; up to {MOST_FIGURES} can be shown together")
        related = len(keys) > 1 and set(keys) <= set(self.catalog.versions(keys[0]))
        self.scene.figures = [self._figure(key, n, related) for n, key in enumerate(keys)]
        if related:
            first = min(figure.start_s for figure in self.scene.figures)
            base = self.scene.figures[0].shift.copy()
            for figure in self.scene.figures:
                figure.start_s -= first
                figure.shift = figure.shift - base
        how = arrangement or ("side by side" if len(keys) > 1 and not related else self.arrangement)
        arrange(self.scene.figures, how)
        self._fade()
        self.clock.set_length(self.scene.length_s)

    def _figure(self, key: str, number: int, related: bool) -> Figure:
        entry = self.catalog.entry(key)
        poses = self.cache.get(entry.key, self.catalog.clip(entry.key))
        shift, start = alignment(self.catalog, entry.key) if related else (np.zeros(3), 0.0)
        name = version_name(entry)
        return Figure(
            key=entry.key,
            title=name if related else entry.clip_id,
            poses=poses,
            colour=PALETTE[number % len(PALETTE)],
            start_s=start,
            shift=np.asarray(shift, np.float32),
        )

    def _fade(self) -> None:
        """In an overlay all but the last figure are seen through."""
        figures = self.scene.figures
        overlaid = len(figures) > 1 and not any(f.place.any() for f in figures)
        for number, figure in enumerate(figures):
            figure.opacity = _GHOST if overlaid and number < len(figures) - 1 else 1.0
