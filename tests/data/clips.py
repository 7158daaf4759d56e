"""Clips made of random numbers, for tests of storage and sampling."""

from __future__ import annotations

import numpy as np
import torch

from parc_ray.motion.clip import MotionClip, Provenance, Replay
from parc_ray.motion.frames import MotionFrames
from parc_ray.terrain.heightfield import Heightfield


def random_clip(seed, *, frames=20, dofs=5, bodies=4, full=False, **changes):
    """A clip with every optional field when ``full``; values are arbitrary float32."""
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return torch.from_numpy(rng.normal(size=shape).astype(np.float32))

    rot = draw(frames, 4)
    heights = draw(6, 5)
    terrain = Heightfield(
        heights=heights,
        origin=draw(2),
        cell_size=0.4,
        upper=heights + 1 if full else None,
        lower=heights - 1 if full else None,
        confidence=torch.rand(6, 5) if full else None,
    )
    replay = Replay(
        root_pos=draw(3),
        root_rot=draw(4),
        root_lin_vel=draw(3),
        root_ang_vel=draw(3),
        dof_pos=draw(dofs),
        dof_vel=draw(dofs),
        pd_targets=draw(frames - 1, dofs),
        boxes=draw(7, 6),
        offset=draw(3),
        backend="mujoco_cpu",
        model_hash="ab",
    )
    values = {
        "clip_id": f"clip/{seed}",
        "frames": MotionFrames(
            root_pos=draw(frames, 3),
            root_rot=rot / rot.norm(dim=-1, keepdim=True),
            dof=draw(frames, dofs),
            contacts=(draw(frames, bodies) > 0).float(),
        ),
        "fps": 30.0,
        "terrain": terrain,
        "path_nodes": draw(3, 3) if full else None,
        "provenance": Provenance(
            source="füzz", iteration=seed, parents=("a", "b"), seeds={"s": 3}, class_name="walk"
        ),
        "replay": replay if full else None,
        "metrics": {"tpl": 0.1 + seed, "tcl": float(rng.normal())},
        "weight": 0.5,
    }
    return MotionClip(**{**values, **changes})


def tensors_of(clip):
    """Every tensor of a clip by name, None where it has none."""
    result = {k: getattr(clip.frames, k) for k in ("root_pos", "root_rot", "dof", "contacts")}
    for name in ("heights", "origin", "upper", "lower", "confidence"):
        result[f"terrain.{name}"] = getattr(clip.terrain, name)
    result["path_nodes"] = clip.path_nodes
    for name, value in vars(clip.replay).items() if clip.replay else ():
        if isinstance(value, torch.Tensor):
            result[f"replay.{name}"] = value
    return result
