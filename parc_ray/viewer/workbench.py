"""A terrain under work and the motions made on it; what the editor's buttons do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from parc_ray.data.checks import CheckConfig, judge, measure, require_usable
from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip
from parc_ray.synthesis.legs import LongPath
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.viewer.shelf import put
from parc_ray.viewer.studio import Made, Studio, Tried
from parc_ray.viewer.terrain_edit import Point, TerrainEditor

Tool = Literal["raise", "lower", "level", "box", "stairs", "way-point"]
TOOLS: tuple[Tool, ...] = ("raise", "lower", "level", "box", "stairs", "way-point")


@dataclass(frozen=True, kw_only=True)
class Brush:
    """What a click on the ground does."""

    tool: Tool = "raise"
    """One of ``TOOLS``."""
    height_m: float = 0.3
    """By how much (raise, lower, box), to what height (level), or height of a step (stairs), m."""
    radius_m: float = 0.0
    """Of raise, lower and level, m; 0 is one cell."""
    size_m: tuple[float, float] = (1.2, 1.2)
    """Of a box, along x and y, m; of stairs: length of a step, and width."""
    steps: int = 4
    """Of stairs."""
    heading_deg: float = 0.0
    """Of stairs: 0 goes up along x, 90 along y."""


@dataclass(kw_only=True, eq=False)
class Workbench:
    """Editor, path and candidates.

    Attributes:
        studio: the models.
        out: directory of the data sets that are written.
        editor: the terrain, or None before there is one.
        path: through the way-points, or None where they changed since.
        made: candidates, best first.
    """

    studio: Studio
    out: str
    editor: TerrainEditor | None = None
    path: LongPath | None = None
    made: list[Made] = field(default_factory=list)

    @property
    def terrain(self) -> TerrainEditor:
        """The editor.

        Raises:
            InputError: no terrain is being edited.
        """
        if self.editor is None:
            raise InputError("editor: there is no terrain yet; take the clip's, or make a flat one")
        return self.editor

    def begin(self, terrain: Heightfield) -> None:
        """Edit a copy of this terrain."""
        self.editor = TerrainEditor(terrain=replace(terrain))
        self.path, self.made = None, []

    def begin_flat(self, cells: int) -> None:
        """Edit a flat square of cells of the usual size."""
        if not 8 <= cells <= 200:
            raise InputError(f"cells: {cells}; allowed is 8 to 200")
        self.begin(Heightfield.flat((cells, cells)))

    def click(self, at: Point, brush: Brush) -> str:
        """Apply a brush at a point; what was done, in words."""
        editor = self.terrain
        self.path = None
        if brush.tool == "way-point":
            editor.add_waypoint(at)
            return f"way-point {len(editor.waypoints)} at {at[0]:.1f}, {at[1]:.1f}"
        if brush.tool == "stairs":
            count = editor.stamp_stairs(
                at,
                steps=brush.steps,
                rise_m=brush.height_m,
                run_m=brush.size_m[0],
                width_m=brush.size_m[1],
                heading_deg=brush.heading_deg,
            )
        elif brush.tool == "box":
            count = editor.stamp_box(at, brush.size_m, brush.height_m)
        elif brush.tool == "level":
            count = editor.level(at, brush.height_m, brush.radius_m)
        else:
            sign = 1.0 if brush.tool == "raise" else -1.0
            count = editor.raise_by(at, sign * brush.height_m, brush.radius_m)
        return f"{brush.tool}: {count} cells changed"

    def plan(self, seed: int) -> LongPath:
        """The path through the way-points on the present ground."""
        self.path = self.studio.plan(self.terrain.terrain, self.terrain.waypoints, seed)
        return self.path

    def generate(self, *, s: float, seed: int, candidates: int, seconds: float) -> list[Made]:
        """Plan and make candidates on the present ground; see ``Studio.generate``."""
        path = self.plan(seed)
        self.made = self.studio.generate(
            self.terrain.terrain, path, s=s, seed=seed, candidates=candidates, seconds=seconds
        )
        if not self.made:
            raise InputError(
                "generate: no candidate has any frames; try another seed, or way-points farther "
                "from the edge"
            )
        return self.made

    def paths(self) -> Mapping[str, NDArray[np.float32]]:
        """What is drawn of way-points and path."""
        if self.editor is None:
            return {}
        out = {"way-points": self.editor.waypoints_w().numpy()}
        if self.path is not None:
            out["planned"] = self.path.points.numpy()
        return out

    def optimise(self, clip: MotionClip, iterations: int | None = None) -> MotionClip:
        """See ``Studio.optimise``."""
        return self.studio.optimise(clip, iterations)

    def track(self, clip: MotionClip) -> Tried:
        """See ``Studio.track``."""
        return self.studio.track(clip)

    def save(self, clip: MotionClip) -> str:
        """Keep a clip in data set ``<out>/clips``; where, in words."""
        return self._put("clips", clip)

    def queue(self, clip: MotionClip) -> str:
        """Put a clip into data set ``<out>/queue``, which `parc run --data` takes; where.

        Raises:
            InputError: the import's checks would refuse the clip.
        """
        try:
            values = measure(clip, self.studio.character)
            require_usable(clip.clip_id, judge(values, CheckConfig()))
        except InputError as error:
            raise InputError(f"queue: {error}; optimise the motion, or choose another") from error
        return self._put("queue", clip)

    def _put(self, name: str, clip: MotionClip) -> str:
        place = f"{self.out.rstrip('/')}/{name}"
        kept, manifest = put(place, clip, self.studio.character)
        return f"{place}: {kept}, {manifest.rows} clips now"


def score_table(made: list[Made]) -> str:
    """Markdown: candidates and their judgement, best first."""
    rows = [
        f"| {m.verdict.index} | {_number(m.verdict.score)} | {_number(m.verdict.tpl)} | "
        f"{_number(m.verdict.tcl)} | {100 * m.verdict.progress:.0f} % | "
        f"{'kept' if m.verdict.kept else m.verdict.reason or 'not among the best'} |"
        for m in made
    ]
    head = [
        "| candidate | score | TPL (m) | TCL (m) | path | judged |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *rows])


def _number(value: float) -> str:
    """A figure, or a dash for one that a failed candidate does not have."""
    return f"{value:.2f}" if math.isfinite(value) else "–"
