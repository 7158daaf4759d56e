"""A clip as the policy's reference: frames, velocities, bodies, and the ground under them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from parc_ray.errors import InputError
from parc_ray.runner.files import read_npz
from parc_ray.runner.kinematics import Body, Floats, quat_conj, quat_mul, quat_to_exp

_NEEDED: dict[str, tuple[str | int, ...]] = {
    "root_pos": ("T", 3),
    "root_rot": ("T", 4),
    "dof": ("T", "D"),
    "contacts": ("T", "B"),
    "fps": (),
    "terrain_heights": ("X", "Y"),
    "terrain_origin": (2,),
    "terrain_cell_size": (),
}
"""What a clip file holds, and the shape of each: equal letters are equal lengths."""
_REMEDY = "give a file of parc export --format npz"


@dataclass(frozen=True, kw_only=True, eq=False)
class Ground:
    """Flat-topped columns centred on grid points.

    Attributes:
        heights: (X, Y) m.
        origin: (2,) m, centre of cell (0, 0).
        cell_size: m.
    """

    heights: Floats
    origin: Floats
    cell_size: float

    def height_at(self, xy: Floats) -> Floats:
        """Heights (...) under points (..., 2); edges extend."""
        cells = np.round((xy - self.origin) / np.float32(self.cell_size))
        limit = np.array(self.heights.shape, dtype=np.float32) - 1
        ij = np.clip(cells, 0, limit).astype(np.int64)
        return self.heights[ij[..., 0], ij[..., 1]]

    def cropped(self, xy: Floats, margin_m: float) -> Ground:
        """The part within ``margin_m`` of points (T, 2), as far as there is ground."""
        last = np.array(self.heights.shape) - 1
        low = (xy.min(axis=0) - margin_m - self.origin) / self.cell_size
        high = (xy.max(axis=0) + margin_m - self.origin) / self.cell_size
        a = np.clip(np.round(low), 0, last).astype(int)
        b = np.clip(np.round(high), a, last).astype(int)
        return Ground(
            heights=self.heights[a[0] : b[0] + 1, a[1] : b[1] + 1],
            origin=(self.origin + a * self.cell_size).astype(np.float32),
            cell_size=self.cell_size,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Clip:
    """A motion with what follows from it; T frames.

    Attributes:
        root_pos: (T, 3) m.
        root_rot: (T, 4) xyzw.
        dof: (T, D) rad.
        contacts: (T, B) in [0, 1].
        joint_rot: (T, J, 4).
        body_pos: (T, B, 3) m, world.
        body_rot: (T, B, 4), world.
        root_lin_vel: (T, 3) m/s, world, to the next frame.
        root_ang_vel: (T, 3) rad/s, world.
        dof_vel: (T, D) rad/s.
        fps: frames per second.
        ground: what it moves on.
    """

    root_pos: Floats
    root_rot: Floats
    dof: Floats
    contacts: Floats
    joint_rot: Floats
    body_pos: Floats
    body_rot: Floats
    root_lin_vel: Floats
    root_ang_vel: Floats
    dof_vel: Floats
    fps: float
    ground: Ground


def read_clip(path: str | Path, body: Body) -> Clip:
    """A clip from a file that ``parc export --format npz`` wrote.

    Raises:
        InputError: no such file, another content, or another character.
    """
    data = read_npz(path, str(path), _REMEDY)
    _require_fields(data, path)
    wanted = (int(body.dofs.max()), len(body.names))
    found = (data["dof"].shape[-1], data["contacts"].shape[-1])
    if found != wanted:
        raise InputError(
            f"{path}: {found[0]} dofs and {found[1]} bodies; the bundle's character has "
            f"{wanted[0]} and {wanted[1]}; export clips of that character"
        )
    ground = Ground(
        heights=data["terrain_heights"].astype(np.float32),
        origin=data["terrain_origin"].astype(np.float32),
        cell_size=float(data["terrain_cell_size"]),
    )
    frames = {k: data[k].astype(np.float32) for k in ("root_pos", "root_rot", "dof", "contacts")}
    return make_clip(body, **frames, fps=float(data["fps"]), ground=ground)


def _require_fields(data: Mapping[str, NDArray], path: str | Path) -> None:
    """Refuse arrays that are missing, of another shape, or hold no numbers.

    Raises:
        InputError: the first that does not fit.
    """
    missing = [key for key in _NEEDED if key not in data]
    if missing:
        raise InputError(f"{path}: {', '.join(missing)} missing; {_REMEDY}")
    lengths: dict[str, int] = {}
    for key, shape in _NEEDED.items():
        value = data[key]
        fits = len(shape) == value.ndim and all(
            found > 0
            and found == (wanted if isinstance(wanted, int) else lengths.setdefault(wanted, found))
            for wanted, found in zip(shape, value.shape, strict=True)
        )
        if not fits:
            raise InputError(f"{path}: {key} of shape {value.shape} does not fit; {_REMEDY}")
        if value.dtype.kind not in "biuf" or not np.isfinite(value).all():
            raise InputError(f"{path}: {key} holds other than finite numbers; {_REMEDY}")
    for key in ("fps", "terrain_cell_size"):
        if data[key] <= 0:
            raise InputError(f"{path}: {key} is {data[key]:g}; it must be above 0; {_REMEDY}")


def make_clip(
    body: Body,
    root_pos: Floats,
    root_rot: Floats,
    dof: Floats,
    contacts: Floats,
    fps: float,
    ground: Ground,
) -> Clip:
    """A clip of its frames; velocities are forward differences, the last one repeated."""
    if len(root_pos) < 2:
        raise InputError(f"clip: {len(root_pos)} frame; 2 or more are needed; give a longer motion")
    joint_rot = body.joint_rot(dof)
    body_pos, body_rot = body.place(root_pos, root_rot, joint_rot)
    turn = quat_to_exp(quat_mul(root_rot[1:], quat_conj(root_rot[:-1])))
    bend = body.to_dof(quat_mul(quat_conj(joint_rot[:-1]), joint_rot[1:]))
    return Clip(
        root_pos=root_pos,
        root_rot=root_rot,
        dof=dof,
        contacts=contacts,
        joint_rot=joint_rot,
        body_pos=body_pos,
        body_rot=body_rot,
        root_lin_vel=_held(np.diff(root_pos, axis=0) * np.float32(fps)),
        root_ang_vel=_held(turn * np.float32(fps)),
        dof_vel=_held(bend * np.float32(fps)),
        fps=fps,
        ground=ground,
    )


def _held(values: NDArray) -> Floats:
    return np.concatenate((values, values[-1:])).astype(np.float32)
