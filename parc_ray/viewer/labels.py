"""Contact labels changed by hand."""

from __future__ import annotations

from dataclasses import replace

from parc_ray.character.character import Character
from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip


def set_contact(
    clip: MotionClip, character: Character, body: str, first: int, last: int, value: float
) -> MotionClip:
    """A copy of ``clip`` whose label of ``body`` is ``value`` in frames ``first`` to ``last``.

    Args:
        clip: the motion.
        character: names the bodies.
        body: name of a body.
        first: first frame.
        last: last frame, included.
        value: 0 (free) to 1 (touching).

    Raises:
        InputError: an unknown body, frames that the clip does not have, another value.
    """
    names = character.skeleton.body_names
    if body not in names:
        raise InputError(f"body {body!r}: unknown; allowed are {', '.join(names)}")
    if not 0 <= first <= last < clip.num_frames:
        raise InputError(
            f"frames {first} to {last}: allowed is 0 to {clip.num_frames - 1}, the first before "
            "the last"
        )
    if not 0.0 <= value <= 1.0:
        raise InputError(f"label: {value:g}; allowed is 0 to 1")
    labels = clip.frames.contacts.clone()
    labels[first : last + 1, names.index(body)] = value
    return replace(clip, frames=replace(clip.frames, contacts=labels))


def contact_spans(clip: MotionClip, character: Character) -> dict[str, list[tuple[int, int]]]:
    """First and last frame of every stretch in which a body touches (label over 0.5), by name."""
    out: dict[str, list[tuple[int, int]]] = {}
    for body, name in enumerate(character.skeleton.body_names):
        spans: list[tuple[int, int]] = []
        for frame, touching in enumerate((clip.frames.contacts[:, body] > 0.5).tolist()):
            if touching and spans and spans[-1][1] == frame - 1:
                spans[-1] = (spans[-1][0], frame)
            elif touching:
                spans.append((frame, frame))
        if spans:
            out[name] = spans
    return out
