"""Bundles as the runner opens them: a directory or a zip with networks, character and settings."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from parc_ray.errors import InputError
from parc_ray.runner.kinematics import Body, Floats

FORMAT = "parc-ray-bundle"
VERSION = 1
SHEET = "bundle.json"
TRACKER, GENERATOR = "tracker.onnx", "generator.onnx"
CHARACTER, SIMULATION = "character.npz", "simulation.xml"


def read_members(path: str | Path) -> dict[str, bytes]:
    """All files of a bundle by name, each with the hash that its sheet tells.

    Raises:
        InputError: no bundle, a newer one, or a file that is missing or changed.
    """
    path = Path(path)
    try:
        if path.is_dir():
            files = {p.name: p.read_bytes() for p in sorted(path.iterdir()) if p.is_file()}
        else:
            with zipfile.ZipFile(path) as archive:
                files = {name: archive.read(name) for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{path}: is no bundle ({error}); give a directory or zip that parc export RUN wrote"
        ) from error
    try:
        sheet = json.loads(files[SHEET])
        known = sheet["format"] == FORMAT
        version, hashes = int(sheet["version"]), dict(sheet["files"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: is no bundle ({SHEET} is missing or damaged); give one of parc export RUN"
        ) from error
    if not known or version > VERSION:
        raise InputError(
            f"{path}: {sheet['format']} version {version}; {FORMAT} up to {VERSION} can be read; "
            "update this program"
        )
    for name, digest in hashes.items():
        if name not in files or hashlib.sha256(files[name]).hexdigest() != digest:
            what = "is missing" if name not in files else "was changed"
            raise InputError(f"{path}: {name} {what} since the export; export the run again")
    return files


@dataclass(frozen=True, kw_only=True, eq=False)
class Bundle:
    """A tracker with its character and physics.

    Attributes:
        sheet: ``bundle.json``.
        body: the kinematic tree.
        arrays: action ranges, key bodies, limits, height points, surface points.
        simulation_xml: MJCF without ground.
        session: the policy.
    """

    sheet: dict[str, Any]
    body: Body
    arrays: dict[str, NDArray]
    simulation_xml: str
    session: onnxruntime.InferenceSession

    @classmethod
    def open(cls, path: str | Path) -> Bundle:
        """Read a bundle.

        Raises:
            InputError: as :func:`read_members`; or it holds no tracker.
        """
        files = read_members(path)
        if TRACKER not in files:
            raise InputError(f"{path}: holds no tracker; export a run that has trained one")
        sheet = json.loads(files[SHEET])
        with np.load(io.BytesIO(files[CHARACTER])) as data:
            arrays = {key: data[key] for key in data.files}
        names, kinds = (tuple(sheet["character"][k]) for k in ("bodies", "kinds"))
        return cls(
            sheet=sheet,
            body=Body.read(names, kinds, arrays),
            arrays=arrays,
            simulation_xml=files[SIMULATION].decode(),
            session=open_network(files[TRACKER]),
        )

    def act(self, observation: Floats) -> Floats:
        """Normalised action (D,) for an observation (O,)."""
        (action,) = self.session.run(["action"], {"observation": observation[None]})
        return np.asarray(action)[0]


def open_network(content: bytes) -> onnxruntime.InferenceSession:
    """A network on one CPU thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
