"""Bundles as the runner opens them: a directory or a zip with networks, character and settings."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from parc_ray.errors import InputError
from parc_ray.runner.files import DAMAGED, read_npz
from parc_ray.runner.kinematics import Body, Floats

if TYPE_CHECKING:
    import onnxruntime

FORMAT, VERSION = "parc-ray-bundle", 1
SHEET = "bundle.json"
TRACKER, GENERATOR = "tracker.onnx", "generator.onnx"
CHARACTER, SIMULATION = "character.npz", "simulation.xml"
MAX_BYTES = 4 * 2**30
"""What the files of a bundle may take together, unpacked."""
_VALUES = (
    "character.bodies",
    "character.kinds",
    "observation.layout",
    "observation.target_steps",
    "observation.height_clip_m",
    "observation.contact_threshold_n",
    "control.mode",
    "control.residual_scale_rad",
    "control.max_action",
    "termination.root_pos_m",
    "termination.root_rot_rad",
    "max_lift_m",
    "simulation.control_hz",
    "simulation.substeps",
    "simulation.max_velocity",
    "simulation.terrain_extension_m",
    "simulation.terrain_contact",
)
"""What tracking takes from the sheet."""
_ARRAYS = (
    "parents",
    "offsets",
    "rest_rot",
    "dofs",
    "hinge_axes",
    "key_bodies",
    "action_scale",
    "action_offset",
    "body_limits",
    "height_points",
    "surface_body",
    "surface_offset",
)


def read_members(path: str | Path) -> dict[str, bytes]:
    """The sheet of a bundle and the files that it lists by name, each with the hash it tells.

    Raises:
        InputError: no bundle, a newer one, one that is damaged or too large, or a file that is
            missing or changed.
    """
    path = Path(path)
    try:
        if path.is_dir():
            sheet, files = _of_directory(path)
        else:
            with zipfile.ZipFile(path) as archive:
                sheet, files = _of_zip(archive, path)
    except InputError:
        raise
    except DAMAGED as error:
        raise InputError(
            f"{path}: is no bundle ({error}); give a directory or zip that parc export RUN wrote"
        ) from error
    for name, digest in _listed(sheet, path).items():
        if name not in files or hashlib.sha256(files[name]).hexdigest() != digest:
            what = "is missing" if name not in files else "was changed"
            raise InputError(f"{path}: {name} {what} since the export; export the run again")
    return {SHEET: sheet, **files}


def require_members(files: Mapping[str, bytes], names: tuple[str, ...], path: str | Path) -> None:
    """Refuse a bundle without a file that is needed.

    Raises:
        InputError: one is not there.
    """
    missing = [name for name in names if name not in files]
    if missing:
        raise InputError(f"{path}: {', '.join(missing)} missing; export the run again")


def read_sheet(files: Mapping[str, bytes], names: tuple[str, ...], path: str | Path) -> Any:
    """The sheet, with all values of dotted names that are needed.

    Raises:
        InputError: one is not there.
    """
    sheet = json.loads(files[SHEET])
    for name in names:
        at = sheet
        for part in name.split("."):
            if not isinstance(at, dict) or part not in at:
                raise InputError(f"{path}: {SHEET}: {name} is missing; export the run again")
            at = at[part]
    return sheet


def _of_directory(path: Path) -> tuple[bytes, dict[str, bytes]]:
    places = {p.name: p for p in path.iterdir() if p.is_file()}
    _require_small({name: p.stat().st_size for name, p in places.items() if name == SHEET}, path)
    sheet = places[SHEET].read_bytes() if SHEET in places else b""
    wanted = {name: places[name] for name in _listed(sheet, path) if name in places}
    _require_small({name: p.stat().st_size for name, p in wanted.items()}, path)
    return sheet, {name: p.read_bytes() for name, p in wanted.items()}


def _of_zip(archive: zipfile.ZipFile, path: Path) -> tuple[bytes, dict[str, bytes]]:
    sizes = {info.filename: info.file_size for info in archive.infolist()}
    _require_small({name: size for name, size in sizes.items() if name == SHEET}, path)
    sheet = archive.read(SHEET) if SHEET in sizes else b""
    wanted = {name: sizes[name] for name in _listed(sheet, path) if name in sizes}
    _require_small(wanted, path)
    return sheet, {name: archive.read(name) for name in wanted}


def _require_small(sizes: Mapping[str, int], path: Path) -> None:
    """Refuse files that take more than ``MAX_BYTES`` together, before they are read."""
    total = sum(sizes.values())
    if total > MAX_BYTES:
        raise InputError(
            f"{path}: its files take {total / 2**30:.1f} GiB; up to {MAX_BYTES / 2**30:g} GiB are "
            "read; give a bundle of parc export RUN"
        )


def _listed(content: bytes, path: Path) -> dict[str, str]:
    """Names and hashes that a sheet tells, of a format that can be read."""
    try:
        sheet = json.loads(content)
        form, version = sheet["format"], int(sheet["version"])
        hashes = {str(name): str(digest) for name, digest in sheet["files"].items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: is no bundle ({SHEET} is missing or damaged); give one of parc export RUN"
        ) from error
    if form != FORMAT or version > VERSION:
        raise InputError(
            f"{path}: {form} version {version}; {FORMAT} up to {VERSION} can be read; "
            "update this program"
        )
    return hashes


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
            InputError: as :func:`read_members`; it holds no tracker, or lacks what one needs.
        """
        files = read_members(path)
        if TRACKER not in files:
            raise InputError(f"{path}: holds no tracker; export a run that has trained one")
        require_members(files, (CHARACTER, SIMULATION), path)
        sheet = read_sheet(files, _VALUES, path)
        arrays = read_npz(files[CHARACTER], f"{path}/{CHARACTER}", "export the run again")
        missing = [name for name in _ARRAYS if name not in arrays]
        if missing:
            raise InputError(
                f"{path}: {CHARACTER}: {', '.join(missing)} missing; export the run again"
            )
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
    """A network on one CPU thread.

    Raises:
        InputError: onnxruntime is not installed, or it cannot read the network.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise InputError(
            "onnxruntime: is not installed, and the networks of a bundle run by it; run "
            "pip install 'parc-ray[export]' (or onnxruntime alone)"
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the classes it raises have no base of their own
        raise InputError(
            f"network: onnxruntime {onnxruntime.__version__} cannot read it ({error}); update "
            "onnxruntime, or export the run again"
        ) from error
