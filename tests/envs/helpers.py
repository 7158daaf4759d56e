"""Small motions and states for the tests of envs."""

from __future__ import annotations

from pathlib import Path

import torch

from parc_ray.character.character import Character
from parc_ray.character.rotations import quat_from_exp, quat_mul, yaw_quat
from parc_ray.motion.clip import MotionClip, Provenance
from parc_ray.motion.frames import MotionFrames
from parc_ray.protocols import SimState
from parc_ray.terrain.heightfield import Heightfield

WADDLER = Path(__file__).parent.parent / "assets" / "waddler.xml"
FPS = 30.0


def stand_state(character: Character, count: int, xy=(0.0, 0.0), height: float = 0.0) -> SimState:
    """The rest pose on ground of some height, at rest."""
    skeleton = character.skeleton
    pos = torch.tensor([[*xy, character.stand_height + height]]).repeat(count, 1)
    return SimState(
        root_pos=pos,
        root_rot=torch.tensor([[0.0, 0.0, 0.0, 1.0]]).repeat(count, 1),
        root_lin_vel=torch.zeros(count, 3),
        root_ang_vel=torch.zeros(count, 3),
        dof_pos=torch.zeros(count, skeleton.num_dofs),
        dof_vel=torch.zeros(count, skeleton.num_dofs),
        contact_force=torch.zeros(count, skeleton.num_bodies, 3),
    )


def random_state(character: Character, count: int, seed: int = 0, z: float = 1.3) -> SimState:
    """Random poses and velocities, in the air."""
    rng = torch.Generator().manual_seed(seed)
    skeleton = character.skeleton

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=rng)

    pos = 0.3 * noise(count, 3)
    pos[:, 2] = z
    return SimState(
        root_pos=pos,
        root_rot=quat_from_exp(0.4 * noise(count, 3)),
        root_lin_vel=noise(count, 3),
        root_ang_vel=noise(count, 3),
        dof_pos=0.4 * noise(count, skeleton.num_dofs),
        dof_vel=noise(count, skeleton.num_dofs),
        contact_force=torch.zeros(count, skeleton.num_bodies, 3),
    )


def sway_clip(
    character: Character,
    frames: int = 61,
    clip_id: str = "sway",
    *,
    amplitude: float = 0.15,
    speed: float = 0.0,
    heading: float = 0.0,
    origin=(0.0, 0.0),
    class_name: str = "sway",
    terrain: Heightfield | None = None,
) -> MotionClip:
    """Standing while joints swing, optionally gliding forward; feet are labelled."""
    skeleton = character.skeleton
    t = torch.arange(frames) / FPS
    phase = torch.linspace(0.0, 3.0, skeleton.num_dofs)
    dof = amplitude * torch.sin(2.0 * t[:, None] + phase)
    forward = torch.tensor([torch.cos(torch.tensor(heading)), torch.sin(torch.tensor(heading))])
    xy = torch.tensor(origin) + speed * t[:, None] * forward
    pos = torch.cat((xy, torch.full((frames, 1), character.stand_height + 0.02)), dim=-1)
    tilt = quat_from_exp(0.05 * torch.stack((torch.sin(t), torch.cos(t), 0 * t), dim=-1))
    rot = quat_mul(yaw_quat(torch.tensor(heading)).expand(frames, 4), tilt)
    contacts = torch.zeros(frames, skeleton.num_bodies)
    contacts[:, list(character.feet)] = 1.0
    return MotionClip(
        clip_id=clip_id,
        frames=MotionFrames(pos, rot, dof, contacts),
        fps=FPS,
        terrain=terrain or Heightfield.flat((24, 24)),
        provenance=Provenance(class_name=class_name),
    )


def stand_clip(character: Character, frames: int = 46, clip_id: str = "stand") -> MotionClip:
    """The rest pose, motionless."""
    clip = sway_clip(character, frames, clip_id, amplitude=0.0, class_name="stand")
    clip.frames.root_pos[:, 2] = character.stand_height
    clip.frames.root_rot = torch.tensor([[0.0, 0.0, 0.0, 1.0]]).repeat(frames, 1)
    return clip


def assert_same(a: object, b: object) -> None:
    """Bitwise equality of nested states."""
    if isinstance(a, torch.Tensor):
        assert isinstance(b, torch.Tensor)
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert isinstance(b, dict)
        assert a.keys() == b.keys()
        for key, value in a.items():
            assert_same(value, b[key])
    elif hasattr(a, "__dict__"):
        assert_same(vars(a), vars(b))
    else:
        assert a == b
