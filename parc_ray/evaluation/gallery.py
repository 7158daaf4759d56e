"""The gallery of spatial variants: one self-contained page with a strip per variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

import jinja2
import pandas as pd

from parc_ray.character.character import Character
from parc_ray.evaluation.report import Card, text_of
from parc_ray.evaluation.strips import map_svg, strip_svg
from parc_ray.motion.clip import MotionClip
from parc_ray.motion.frames import MotionFrames

BEFORE_COLOUR = "#9aa3ab"
AFTER_COLOUR = "#00798c"


@dataclass(frozen=True, kw_only=True, eq=False)
class Exhibit:
    """A variant to show.

    Attributes:
        clip: the variant.
        before: the parent's motion on the variant's ground, turned and stretched, not adapted.
        facts: captions and values: the plan and the figures.
    """

    clip: MotionClip
    before: MotionFrames
    facts: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class _Shown:
    """An exhibit as the template wants it."""

    id: str
    strip: str
    map: str
    facts: Mapping[str, str]


def render_gallery(
    title: str,
    cards: Sequence[Card],
    table: pd.DataFrame,
    exhibits: Sequence[Exhibit],
    character: Character,
) -> str:
    """The page. Text that is handed in is escaped.

    Args:
        title: its heading.
        cards: headline figures.
        table: one row per variant; the first column holds its id and links to its strip.
        exhibits: what is drawn.
        character: whose motions they are.
    """
    source = resources.files("parc_ray.evaluation").joinpath("templates/gallery.html.j2")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(source.read_text(encoding="utf-8"))
    rows = [[text_of(value) for value in row] for row in table.to_numpy(dtype=object)]
    return template.render(
        title=title,
        cards=cards,
        columns=list(table.columns),
        rows=rows,
        exhibits=[_shown(exhibit, character) for exhibit in exhibits],
        drawn={exhibit.clip.clip_id for exhibit in exhibits},
        before=BEFORE_COLOUR,
        after=AFTER_COLOUR,
    )


def _shown(exhibit: Exhibit, character: Character) -> _Shown:
    clip = exhibit.clip
    layers = [(exhibit.before, BEFORE_COLOUR), (clip.frames, AFTER_COLOUR)]
    return _Shown(
        id=clip.clip_id,
        strip=strip_svg(character, layers, clip.terrain, clip.fps),
        map=map_svg(clip.terrain, clip.frames, "#ff6b35"),
        facts=exhibit.facts,
    )
