"""What the name of a motion file tells: its class and the take it was cut from.

Classes balance sampling. Takes keep mirrored and overlapping cuts of one recording on one side of a
train/test split (docs/design/data.md, Traps).
"""

from __future__ import annotations

import re

UNNAMED = "motion"
"""Class of files whose name and directory are numbers only."""

# first match wins: the rarer skill names the class ("dash_vault" is a vault, "run_jump" a jump)
_CLASSES: tuple[tuple[str, str], ...] = (
    ("vault|kong", "vault"),
    ("climb|hang|ledge", "climb"),
    ("stair", "stairs"),
    ("platform", "platform"),
    ("getup|get_up", "getup"),
    ("flip|cartwheel|kick|punch|sword|spin|dance|roll|crawl", ""),
    ("jump|gap|hop|leap", "jump"),
    ("run|jog|stride|dash|sprint", "run"),
    ("walk", "walk"),
    ("stand|idle", "stand"),
)
_PREFIX = re.compile(r"^(amp_)?humanoid(3d|28)?_")
_SUFFIX = re.compile(r"_(flipped|flip|mirror(ed)?|opt|dm|modified|aug\d*|loop)$")
_LETTER = re.compile(r"[^\W\d_]")
_NUMBER = re.compile(r"[_\-]?\d+$")
# overlaps measured with 15-frame joint windows, see docs/design/data.md, Traps
_INSIDE = {
    "stairs06": "stairs05",
    "platform11": "platform05",
    "platform22": "platform05",
    "mid_climb05": "run05",
}
_MIRRORED_RUNS = 31


def bare_name(stem: str) -> str:
    """File stem without the character's name in front, in lower case."""
    return _PREFIX.sub("", stem.lower())


def class_of(stem: str, folder: str = "") -> str:
    """Class of a clip by the words in its name; its name without number where none is known.

    Args:
        stem: name of the file without suffix.
        folder: the directory it is in, which names the class of files that are numbers only, as
            CMU's takes are (a subject is no kind of motion). ``motion`` where that is one too.
    """
    name = bare_name(stem)
    if not _LETTER.search(name):
        return folder if _LETTER.search(folder) else UNNAMED
    for pattern, label in _CLASSES:
        if re.search(pattern, name):
            return label or _plain(name)
    return _plain(name)


def take_of(stem: str) -> str:
    """Take that a clip belongs to: mirrored, edited and known overlapping cuts share one."""
    name = bare_name(stem)
    while _SUFFIX.search(name):
        name = _SUFFIX.sub("", name)
    run = re.fullmatch(r"run(\d+)", name)
    if run and int(run[1]) >= _MIRRORED_RUNS:
        name = f"run{int(run[1]) - _MIRRORED_RUNS:02d}"
    return _INSIDE.get(name, name)


def _plain(name: str) -> str:
    while _SUFFIX.search(name):
        name = _SUFFIX.sub("", name)
    return _NUMBER.sub("", name) or name
