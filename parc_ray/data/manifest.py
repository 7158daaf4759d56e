"""Manifests: a data set is a JSON file that names immutable parts.

D_i = D_{i-1} + M_i names D_{i-1}'s parts and adds its own; nothing is copied. Paths of parts are
relative to one root directory (of the run, or of an imported data set); the manifest knows how many
levels below that root it lies, so that it can be opened by its own path alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from parc_ray.data.schema import SCHEMA_VERSION
from parc_ray.data.storage import Storage
from parc_ray.errors import InputError

FORMAT = "parc-ray-dataset"
FILE_NAME = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class Part:
    """One immutable Parquet file of clips."""

    path: str
    """Path relative to the data set's root, or an absolute path or URI."""
    rows: int
    """Number of clips."""
    seconds: float
    """Total duration of the clips, s."""
    sha256: str
    """Hash of the file's bytes, hex."""

    def under(self, prefix: str) -> Part:
        """The same part seen from a root that holds this one's root as ``prefix``."""
        return replace(self, path=f"{prefix.strip('/')}/{self.path}") if prefix else self


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A data set: named, ordered, immutable."""

    name: str
    """Name of the data set, e.g. "D0"."""
    iteration: int = 0
    """PARC iteration that the data set closes."""
    parts: tuple[Part, ...] = ()
    """Parts in the order in which their clips are read."""
    parents: tuple[str, ...] = ()
    """Names of the data sets whose parts it contains, oldest first."""
    character_digest: str = ""
    """``Character.digest`` of the character that the clips are for."""
    schema_version: int = SCHEMA_VERSION
    """Newest version of the clip schema among the parts; older parts are migrated when read."""

    def __post_init__(self) -> None:
        """Check the name and that no part is named twice."""
        if not self.name:
            raise InputError("manifest: name is empty; any text is allowed; give the set a name")
        paths = [part.path for part in self.parts]
        twice = sorted({path for path in paths if paths.count(path) > 1})
        if twice:
            raise InputError(
                f"manifest {self.name!r}: part {twice[0]} is named twice; every part may appear "
                "once; remove the repetition"
            )

    @property
    def rows(self) -> int:
        """Number of clips."""
        return sum(part.rows for part in self.parts)

    @property
    def seconds(self) -> float:
        """Total duration, s."""
        return sum(part.seconds for part in self.parts)

    def extend(self, parts: Sequence[Part], name: str, iteration: int | None = None) -> Manifest:
        """A new data set: this one's parts by reference, then ``parts``.

        Args:
            parts: new parts, paths relative to the same root.
            name: name of the new data set.
            iteration: its iteration, this one's plus 1 by default.
        """
        return replace(
            self,
            name=name,
            iteration=self.iteration + 1 if iteration is None else iteration,
            parts=(*self.parts, *parts),
            parents=(*self.parents, self.name),
            schema_version=SCHEMA_VERSION,
        )

    def check_character(self, digest: str, where: str = "data set") -> None:
        """Refuse a data set made for another character.

        Raises:
            InputError: the digests differ.
        """
        if self.character_digest != digest:
            raise InputError(
                f"{where} {self.name!r}: made for character {self.character_digest[:12]}; this run "
                f"uses {digest[:12]}; import the data again for this character"
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "parts": [asdict(p) for p in self.parts], "format": FORMAT}

    def save(self, storage: Storage, path: str = FILE_NAME) -> None:
        """Write the manifest to ``path`` below the data set's root ``storage``, atomically."""
        depth = len([p for p in path.split("/") if p]) - 1
        storage.write_json_atomic(path, {**self.to_dict(), "levels_below_root": depth})

    @classmethod
    def load(cls, storage: Storage, path: str = FILE_NAME) -> Manifest:
        """Read the manifest at ``path`` below the data set's root.

        Raises:
            InputError: missing file, other content, a newer schema version.
        """
        return cls.from_dict(storage.read_json(path), storage.full_path(path))

    @classmethod
    def from_dict(cls, data: Any, where: str = "manifest") -> Manifest:
        """The inverse of ``to_dict``; errors as ``load``."""
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            raise InputError(
                f"{where}: not a data set manifest; a JSON object with format {FORMAT!r} is "
                "needed; import the data with 'parc import'"
            )
        version = int(data.get("schema_version", 0))
        if version > SCHEMA_VERSION:
            raise InputError(
                f"{where}: clip schema version {version}; up to {SCHEMA_VERSION} can be read; "
                "update this program"
            )
        try:
            known = {f.name: data[f.name] for f in fields(cls)}
            known["parts"] = tuple(Part(**part) for part in known["parts"])
            known["parents"] = tuple(known["parents"])
            return cls(**known)
        except (KeyError, TypeError) as error:
            raise InputError(
                f"{where}: field {error} is missing or wrong; a complete manifest is needed; "
                "restore the file"
            ) from error


def open_dataset(location: str | Path | Storage) -> tuple[Storage, Manifest]:
    """Open a data set by the path of its manifest, or of the directory that holds it.

    Returns:
        The root that the parts' paths are relative to, and the manifest.

    Raises:
        InputError: no manifest there, or not readable.
    """
    storage = Storage.from_uri(location)
    if not storage.root.endswith(".json"):
        storage = storage.join(FILE_NAME)
    directory, _, name = storage.root.rpartition("/")
    here = Storage(filesystem=storage.filesystem, root=directory or "/")
    data = here.read_json(name)
    manifest = Manifest.from_dict(data, storage.root)
    levels = int(data.get("levels_below_root", 0))
    root = "/".join(here.root.split("/")[:-levels]) if levels else here.root
    return Storage(filesystem=storage.filesystem, root=root or "/"), manifest
