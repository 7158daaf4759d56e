"""Small clips, data sets and a run for the tests of the viewer."""

from __future__ import annotations

from dataclasses import replace

import torch

from envs.recorder import RecordConfig, Simulation, simulation_to_clip
from parc_ray.character.character import Character
from parc_ray.motion.clip import MotionClip, Provenance
from parc_ray.protocols import SimState
from parc_ray.terrain.heightfield import Heightfield
from tests.envs.helpers import sway_clip


def step_terrain(height: float = 0.4) -> Heightfield:
    """12 x 10 cells, the farther half along x raised."""
    heights = torch.zeros(12, 10)
    heights[6:] = height
    return Heightfield(heights=heights, origin=torch.tensor([-2.0, -1.8]))


def generated(character: Character, name: str = "walk", **changes: object) -> MotionClip:
    """A clip as ``generate`` leaves it, with a path and figures."""
    clip = sway_clip(character, 46, name, speed=0.5, terrain=step_terrain())
    path = torch.tensor([[-1.0, 0.0, 0.0], [0.0, 0.2, 0.0], [1.0, 0.0, 0.4]])
    made = Provenance(maker="generate", iteration=1, class_name="walk")
    return replace(
        clip, path_nodes=path, provenance=made, metrics={"tpl": 2.5, "tcl": 1.0}, **changes
    )


def recorded(character: Character, source: MotionClip, first: int = 6) -> MotionClip:
    """A recording of ``source`` from frame ``first`` on, by the recorder's own cutting.

    The simulated states are the source's frames, so that the recording lies exactly on it.
    """
    frames = source.frames.time(first)
    count = frames.num_frames
    states = SimState(
        root_pos=frames.root_pos,
        root_rot=frames.root_rot,
        root_lin_vel=torch.zeros(count, 3),
        root_ang_vel=torch.zeros(count, 3),
        dof_pos=frames.dof,
        dof_vel=torch.zeros_like(frames.dof),
        contact_force=torch.zeros(count, character.skeleton.num_bodies, 3),
    )
    simulation = Simulation(
        start=states.index(0),
        states=states,
        targets=frames.dof[1:],
        boxes=torch.zeros(1, 6).numpy(),
        terrain=source.terrain,
        control_dt=1.0 / source.fps,
        backend="mujoco_cpu",
        model_hash="0",
    )
    last = first + count - 1
    return simulation_to_clip(
        simulation,
        source,
        clip_id=f"{source.clip_id}_tracked",
        maker="tracker",
        config=RecordConfig(),
        notes=f"frames {first} to {last} of {source.num_frames} of {source.clip_id}",
    )
