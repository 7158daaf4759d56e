"""A motion clip: frames, the terrain they belong to, and where they come from.

This is what data sets store and stages exchange. See docs/design/architecture.md, Contracts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

import torch
from torch import Tensor

from parc_ray.character.character import Character
from parc_ray.errors import InputError
from parc_ray.motion.frames import MotionFrames
from parc_ray.terrain.heightfield import Heightfield

LoopMode = Literal["clamp", "wrap"]
Maker = Literal["import", "augment", "generate", "tracker", "mpc"]
MAKERS: tuple[str, ...] = ("import", "augment", "generate", "tracker", "mpc")
QUAT_TOLERANCE = 1e-3
CONTACT_TOLERANCE = 1e-4
MAX_FPS = 1000.0


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where a clip comes from; plain values only, so that it round-trips through JSON."""

    source: str = ""
    """Data set or file the motion goes back to."""
    licence: str = ""
    """Licence of that source."""
    take: str = ""
    """Recording session; clips of one take never straddle a train/test split."""
    iteration: int = 0
    """PARC iteration that made the clip, 0 for initial data."""
    parents: tuple[str, ...] = ()
    """Ids of the clips it was made from."""
    seeds: Mapping[str, int] = field(default_factory=dict)
    """Random seeds by purpose."""
    hashes: Mapping[str, str] = field(default_factory=dict)
    """Hashes of the generator, tracker or settings that made it, by name."""
    maker: Maker = "import"
    """What made it."""
    class_name: str = ""
    """Class for balanced sampling (walk, climb, ...)."""
    notes: str = ""
    """Anything else worth knowing."""

    def __post_init__(self) -> None:
        """Normalise containers and check the maker."""
        if self.maker not in MAKERS:
            raise InputError(f"maker {self.maker!r} is unknown; allowed are {', '.join(MAKERS)}")
        object.__setattr__(self, "parents", tuple(str(p) for p in self.parents))
        object.__setattr__(self, "seeds", {str(k): int(v) for k, v in self.seeds.items()})
        object.__setattr__(self, "hashes", {str(k): str(v) for k, v in self.hashes.items()})

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "parents": list(self.parents)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Provenance:
        """The inverse of :meth:`to_dict`; InputError for unknown fields."""
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(data) - known)
        if unknown:
            raise InputError(f"provenance has unknown fields {', '.join(unknown)}")
        return cls(**dict(data))


@dataclass(frozen=True, kw_only=True, eq=False)
class Replay:
    """What a physics backend needs to make the clip again, in the simulated frame."""

    root_pos: Tensor
    """(3,) m, initial root position."""
    root_rot: Tensor
    """(4,) xyzw, initial root rotation."""
    root_lin_vel: Tensor
    """(3,) m/s, initial world-frame velocity of the root."""
    root_ang_vel: Tensor
    """(3,) rad/s, initial world-frame angular velocity of the root."""
    dof_pos: Tensor
    """(D,) rad, initial joint dofs."""
    dof_vel: Tensor
    """(D,) rad/s, initial joint velocities."""
    pd_targets: Tensor
    """(T-1, D) rad, PD target of every control step."""
    boxes: Tensor
    """(K, 6) m, terrain boxes: centre and half sizes."""
    offset: Tensor
    """(3,) m, translation from the simulated frame to the clip's frame."""
    backend: str
    """Name of the simulator."""
    model_hash: str
    """Hash of the model that was simulated."""


@dataclass(kw_only=True)
class MotionClip:
    """A motion with its terrain, in one world frame."""

    clip_id: str
    """Unique name within a data set."""
    frames: MotionFrames
    """Frames with time as the only leading dimension."""
    fps: float
    """Frames per second."""
    terrain: Heightfield
    """The ground under the motion."""
    loop: LoopMode = "clamp"
    """What lies past the end: "clamp" the last frame, "wrap" the motion again, moved along."""
    path_nodes: Tensor | None = None
    """(M, 3) m, nodes of the path that the motion was generated along."""
    provenance: Provenance = field(default_factory=Provenance)
    """Where it comes from."""
    replay: Replay | None = None
    """How to simulate it again, for recorded clips."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Quality figures by name."""
    weight: float = 1.0
    """Weight in sampling, before class balance."""

    @property
    def num_frames(self) -> int:
        """Number of frames T."""
        return self.frames.num_frames

    @property
    def duration_s(self) -> float:
        """Time from the first to the last frame, (T - 1) / fps."""
        return (self.num_frames - 1) / self.fps


def validate_clip(clip: MotionClip, character: Character, min_frames: int = 2) -> None:
    """Check that ``clip`` is a usable motion of ``character``.

    Args:
        clip: the clip.
        character: the character it should fit.
        min_frames: least number of frames.

    Raises:
        InputError: one line that names the clip, the field and what is allowed.
    """
    name = f"clip {clip.clip_id!r}"
    _check_shapes(clip, character, name)
    if not 0 < clip.fps <= MAX_FPS:
        raise InputError(f"{name}: fps is {clip.fps:g}; allowed is 0 < fps <= {MAX_FPS:g}")
    if clip.num_frames < min_frames:
        raise InputError(
            f"{name}: {clip.num_frames} frames; at least {min_frames} are needed; "
            "give a longer motion"
        )
    _check_values(clip, name)
    if clip.loop not in ("clamp", "wrap"):
        raise InputError(f"{name}: loop is {clip.loop!r}; allowed are clamp, wrap")
    if not 0 <= clip.weight < float("inf"):
        raise InputError(f"{name}: weight is {clip.weight}; a finite number >= 0 is needed")
    try:
        clip.terrain.validate()
    except InputError as err:
        raise InputError(f"{name}: terrain: {err}") from err


def _check_shapes(clip: MotionClip, character: Character, name: str) -> None:
    frames, skeleton = clip.frames, character.skeleton
    count = frames.num_frames if frames.root_pos.ndim == 2 else -1
    wanted = {
        "root_pos": (count, 3),
        "root_rot": (count, 4),
        "dof": (count, skeleton.num_dofs),
        "contacts": (count, skeleton.num_bodies),
    }
    for key, shape in wanted.items():
        found = tuple(getattr(frames, key).shape)
        if found != shape:
            text = f"(frames, {shape[1]})" if count < 0 else str(shape)
            raise InputError(
                f"{name}: {key} has shape {found}; {character.name} with {skeleton.num_bodies} "
                f"bodies and {skeleton.num_dofs} dofs needs {text}; check the joint count"
            )
    nodes = clip.path_nodes
    if nodes is not None and (nodes.ndim != 2 or nodes.shape[1] != 3):
        raise InputError(f"{name}: path_nodes has shape {tuple(nodes.shape)}; (M, 3) is needed")


def _check_values(clip: MotionClip, name: str) -> None:
    frames = clip.frames
    for key in ("root_pos", "root_rot", "dof", "contacts"):
        bad = ~torch.isfinite(getattr(frames, key)).all(-1)
        if bool(bad.any()):
            raise InputError(
                f"{name}: {key} has NaN or infinite numbers in {int(bad.sum())} frames, first "
                f"frame {int(bad.nonzero()[0])}; only finite numbers are allowed; repair the file"
            )
    norm_error = (frames.root_rot.norm(dim=-1) - 1.0).abs()
    if bool((norm_error > QUAT_TOLERANCE).any()):
        raise InputError(
            f"{name}: root_rot is not a unit quaternion (norm off by {float(norm_error.max()):.3g} "
            f"in frame {int(norm_error.argmax())}); allowed is {QUAT_TOLERANCE:g}; normalise it"
        )
    low, high = float(frames.contacts.min()), float(frames.contacts.max())
    if low < -CONTACT_TOLERANCE or high > 1.0 + CONTACT_TOLERANCE:
        raise InputError(f"{name}: contacts lie in [{low:g}, {high:g}]; allowed is [0, 1]")
    if clip.path_nodes is not None and not bool(torch.isfinite(clip.path_nodes).all()):
        raise InputError(f"{name}: path_nodes has NaN or infinite numbers; repair the file")
