"""Which clips there are: of a run, a data set, motion files; read without their frames.

Frames are read when a clip is looked at, so that a thousand clips open at once. A run is looked at
again and again while it works: stages that are not finished show the parts of their finished items.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from parc_ray.character.character import Character
from parc_ray.config import DataConfig
from parc_ray.data.columns import read_columns
from parc_ray.data.manifest import FILE_NAME, Manifest, Part, open_dataset
from parc_ray.data.schema import table_to_clips
from parc_ray.data.storage import Storage
from parc_ray.data.store import locate_part
from parc_ray.errors import InputError
from parc_ray.inputs import SAMPLE
from parc_ray.loop import CONFIG_FILE
from parc_ray.motion.clip import MotionClip, Provenance
from parc_ray.stages._items import read_item
from parc_ray.stages.record import REFUSED
from parc_ray.tools.import_data import load_source

_COLUMNS = ("clip_id", "iteration", "class_name", "fps", "num_frames", "provenance", "metrics")
_STAGES = ("augment", "generate", "record", "merge")
_KEPT_CLIPS = 64


@dataclass(frozen=True, kw_only=True, eq=False)
class ClipEntry:
    """What is known of a clip before its frames are read.

    Attributes:
        key: unique in the catalogue: the label of its set and its id.
        label: stage of a run that it comes from, or the data set's name.
        clip_id: its id.
        seconds: duration.
        provenance: where it comes from.
        metrics: figures stored with it.
        part: file and row, or None for clips that are in memory.
        clip: the clip, where it is in memory.
    """

    key: str
    label: str
    clip_id: str
    seconds: float
    provenance: Provenance
    metrics: dict[str, float]
    part: tuple[Part, int] | None = None
    clip: MotionClip | None = None

    @property
    def refused(self) -> bool:
        """Whether it is a recording that the gate refused."""
        return self.label.endswith("refused")


@dataclass(kw_only=True)
class Catalog:
    """The clips of one place, and their lineage.

    Attributes:
        where: what was opened, as it was named.
        character: whose motions these are.
        storage: root that the parts' paths are relative to.
        is_run: whether it is a run directory.
        entries: clips by key, in the order of stages and parts.
    """

    where: str
    character: Character
    storage: Storage | None = None
    is_run: bool = False
    entries: dict[str, ClipEntry] = field(default_factory=dict)
    _columns: dict[str, list[ClipEntry]] = field(default_factory=dict)
    _items: dict[tuple[str, str], Part | None] = field(default_factory=dict)
    _clips: OrderedDict[str, MotionClip] = field(default_factory=OrderedDict)
    _parents: dict[str, list[str]] = field(default_factory=dict)
    _children: dict[str, list[str]] = field(default_factory=dict)

    def refresh(self) -> list[str]:
        """Look for new parts of a run; keys that are new. Other places do not change."""
        return self.take(self.scan())

    def scan(self) -> list[ClipEntry]:
        """The clips that a run's stages hold now; slow, and changes no list (one thread at a time).

        Raises:
            InputError: files of the run that cannot be used.
        """
        if not self.is_run or self.storage is None:
            return []
        return _run_entries(self, self.storage)

    def take(self, found: Sequence[ClipEntry]) -> list[str]:
        """List what ``scan`` found, beside what was made here; keys that are new.

        Where several threads use the catalogue, this and ``add`` are called with one lock held.
        """
        if not self.is_run or self.storage is None:
            return []
        before = set(self.entries)
        made_here = [entry for entry in self.entries.values() if entry.clip is not None]
        self._replace([*found, *made_here])
        return [key for key in self.entries if key not in before]

    def clip(self, key: str) -> MotionClip:
        """The clip behind a key, its frames read now or kept from before.

        Raises:
            InputError: no such clip, or a file that cannot be read.
        """
        entry = self.entry(key)
        if entry.clip is not None:
            return entry.clip
        if key in self._clips:
            self._clips.move_to_end(key)
            return self._clips[key]
        if entry.part is None or self.storage is None:
            raise InputError(f"clip {key}: has neither a file nor frames; open the data set again")
        clip = _read_row(self.storage, *entry.part)
        self._clips[key] = clip
        while len(self._clips) > _KEPT_CLIPS:
            self._clips.popitem(last=False)
        return clip

    def entry(self, key: str) -> ClipEntry:
        """The entry of a key, or of a clip id where only one clip has it, or its newest set's.

        Raises:
            InputError: there is none.
        """
        if key in self.entries:
            return self.entries[key]
        found = [e for e in self.entries.values() if e.clip_id == key]
        if not found:
            near = [e.clip_id for e in self.entries.values() if key.lower() in e.clip_id.lower()]
            said = f"near: {', '.join(sorted(set(near))[:4])}" if near else "see `parc info`"
            raise InputError(
                f"clip {key!r}: not in {self.where} ({len(self.entries)} clips); {said}"
            )
        return found[-1]

    def add(self, clip: MotionClip, label: str) -> str:
        """Add a clip that was made here; its key."""
        entry = memory_entry(clip, label)
        self._replace([*[e for e in self.entries.values() if e.key != entry.key], entry])
        return entry.key

    def parents(self, key: str) -> list[str]:
        """Keys of the clips that a clip was made from."""
        return self._parents.get(key, [])

    def children(self, key: str) -> list[str]:
        """Keys of the clips that were made from a clip."""
        return self._children.get(key, [])

    def versions(self, key: str) -> list[str]:
        """Keys of one motion's versions, oldest first: ancestors, itself, descendants.

        A spatial variant is a motion of its own: it is no version of the clip that it varies.
        """
        older = _closure(key, self.version_parents)
        newer = _closure(
            key, lambda at: [k for k in self.children(at) if at in self.version_parents(k)]
        )
        return [*reversed(older), key, *newer]

    def version_parents(self, key: str) -> list[str]:
        """Keys of the clips that a clip is another version of."""
        return [] if self.entries[key].provenance.maker == "augment" else self.parents(key)

    def _replace(self, entries: Iterable[ClipEntry]) -> None:
        self.entries = {entry.key: entry for entry in entries}
        order = {key: n for n, key in enumerate(self.entries)}
        by_id: dict[str, list[str]] = {}
        for key, entry in self.entries.items():
            by_id.setdefault(entry.clip_id, []).append(key)
        self._parents, self._children = {}, {}
        for key, entry in self.entries.items():
            for parent in entry.provenance.parents:
                known = [k for k in by_id.get(parent, []) if k != key]
                before = [k for k in known if order[k] < order[key]]
                if known:
                    chosen = before[-1] if before else known[0]
                    if parent == entry.clip_id and not before:
                        continue  # of two versions of one id, the older one is the parent
                    self._parents.setdefault(key, []).append(chosen)
                    self._children.setdefault(chosen, []).append(key)


def open_catalog(source: str, character: Character) -> Catalog:
    """Open a run directory, a data set (its directory or manifest), motion files, or ``sample``.

    Raises:
        InputError: nothing there, a data set of another character, or files that cannot be used.
    """
    storage = Storage.from_uri(source)
    if source != SAMPLE and storage.exists(CONFIG_FILE):
        catalog = Catalog(where=source, character=character, storage=storage, is_run=True)
        catalog.refresh()
        return catalog
    if source != SAMPLE and (storage.root.endswith(".json") or storage.exists(FILE_NAME)):
        root, manifest = open_dataset(source)
        manifest.check_character(character.digest, source)
        catalog = Catalog(where=source, character=character, storage=root)
        catalog._replace(_part_entries(catalog, root, manifest.parts, manifest.name))
        return catalog
    clips, _ = load_source(DataConfig(path=source, min_frames=2), character)
    catalog = Catalog(where=source, character=character)
    catalog._replace(memory_entry(clip, "") for clip in clips)
    return catalog


def memory_entry(clip: MotionClip, label: str) -> ClipEntry:
    """An entry of a clip that is in memory."""
    return ClipEntry(
        key=f"{label}/{clip.clip_id}" if label else clip.clip_id,
        label=label,
        clip_id=clip.clip_id,
        seconds=clip.duration_s,
        provenance=clip.provenance,
        metrics=dict(clip.metrics),
        clip=clip,
    )


def _run_entries(catalog: Catalog, run: Storage) -> list[ClipEntry]:
    """Clips of all stages; a part that several stages name belongs to the first."""
    found: list[ClipEntry] = []
    seen: set[str] = set()
    labels = [
        f"{name}/{stage}"
        for name in sorted(n.rsplit("/", 1)[-1] for n in run.list_dirs())
        if name.startswith("it_")
        for stage in _STAGES
    ]
    for label in labels:
        for file, kind in ((FILE_NAME, label), (REFUSED, f"{label} refused")):
            parts = _stage_parts(catalog, run, label, file)
            fresh = [part for part in parts if part.path not in seen]
            seen |= {part.path for part in fresh}
            found += _part_entries(catalog, run, fresh, kind)
    return found


def _stage_parts(catalog: Catalog, run: Storage, label: str, file: str) -> Sequence[Part]:
    if run.exists(f"{label}/{file}"):
        manifest = Manifest.load(run, f"{label}/{file}")
        manifest.check_character(catalog.character.digest, f"{catalog.where}/{label}")
        return manifest.parts
    if file != FILE_NAME or not run.exists(f"{label}/items"):
        return ()
    home = run.join(label)
    names = [name for name in home.list("items") if name.endswith(".json")]
    ids = sorted(name.rsplit("/", 1)[-1].removesuffix(".json") for name in names)
    for item_id in ids:
        if (label, item_id) not in catalog._items:
            part = read_item(home, item_id).part
            catalog._items[label, item_id] = part.under(label) if part is not None else None
    parts = [catalog._items[label, item_id] for item_id in ids]
    return [part for part in parts if part is not None]


def _part_entries(
    catalog: Catalog, root: Storage, parts: Sequence[Part], label: str
) -> list[ClipEntry]:
    out: list[ClipEntry] = []
    for part in parts:
        if part.path not in catalog._columns:
            table = read_columns(root, part, _COLUMNS).table
            rows = enumerate(table.to_pylist())
            catalog._columns[part.path] = [_row_entry(part, n, row, label) for n, row in rows]
        out += catalog._columns[part.path]
    return out


def _row_entry(part: Part, number: int, row: dict[str, Any], label: str) -> ClipEntry:
    metrics = {k: float(v) for k, v in json.loads(row["metrics"]).items() if v is not None}
    return ClipEntry(
        key=f"{label}/{row['clip_id']}" if label else row["clip_id"],
        label=label,
        clip_id=row["clip_id"],
        seconds=(row["num_frames"] - 1) / row["fps"],
        provenance=Provenance.from_dict(json.loads(row["provenance"])),
        metrics=metrics,
        part=(part, number),
    )


def _read_row(storage: Storage, part: Part, number: int) -> MotionClip:
    """One clip of a part, by its row group alone; the part's hash is not compared."""
    home, path = locate_part(storage, part.path)
    where = home.full_path(path)
    try:
        with home.filesystem.open_input_file(where) as file:
            parquet = pq.ParquetFile(file)
            group, first = 0, 0
            while first + parquet.metadata.row_group(group).num_rows <= number:
                first += parquet.metadata.row_group(group).num_rows
                group += 1
            table = parquet.read_row_group(group, use_threads=False)
            table = table.replace_schema_metadata(parquet.schema_arrow.metadata)
    except (pa.ArrowInvalid, OSError, IndexError) as error:
        raise InputError(
            f"{where}: cannot be read ({error}); restore the file or make the data set again"
        ) from error
    return table_to_clips(table.slice(number - first, 1), where)[0]


def _closure(key: str, links: Callable[[str], list[str]]) -> list[str]:
    """All keys that links lead to, nearest first, each once."""
    found: list[str] = []
    front = list(links(key))
    while front:
        at = front.pop(0)
        if at not in found and at != key:
            found.append(at)
            front += links(at)
    return found
