"""Parts of the generator study: data, settings, and what a trained generator is measured by."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from algorithms.diffusion.batch import BatchMaker
from algorithms.diffusion.config import DiffusionConfig, SamplingConfig
from algorithms.diffusion.generator import DiffusionGenerator
from algorithms.diffusion.objective import Objective
from algorithms.diffusion.probe import motion_energy
from algorithms.diffusion.profiles import profile
from parc_ray.character.character import Character
from parc_ray.config import DataConfig
from parc_ray.config_io import from_plain, to_plain
from parc_ray.data.bank import ClipBank
from parc_ray.errors import InputError
from parc_ray.evaluation.metrics import clip_metrics
from parc_ray.motion.clip import MotionClip
from parc_ray.stages._initial import import_source
from parc_ray.stages._rollouts import plan_terrains, roll_out
from parc_ray.synthesis.config import PlannerConfig, RolloutConfig, SynthesisConfig
from parc_ray.terrain.spec import TerrainSpec

VALIDATION_TAKES = (
    "mid_climb03",
    "platform05",
    "run05",
    "run_jump_gap00",
    "stairs03",
    "speed_vault01",
)
"""Never trained on: one take of every class that has two or more."""
VALIDATION_SEED, VALIDATION_BATCHES, VALIDATION_SIZE = 20_260_101, 16, 64
EVALUATION_SEED = 7001
TERRAINS, MOTIONS, SECONDS = 10, 8, 4.0
BLENDS = (0.0, 0.25, 0.5, 0.65, 0.75, 1.0)
_STEPS_WITHOUT_END = 1_000_000


def load_clips(data: str, character: Character) -> tuple[list[MotionClip], list[MotionClip]]:
    """Training and validation clips of a directory of PARC's motion capture, split by take.

    Raises:
        InputError: a validation take is missing.
    """
    clips, _ = import_source(replace(DataConfig(), path=data), character)
    takes = {clip.provenance.take for clip in clips}
    missing = sorted(set(VALIDATION_TAKES) - takes)
    if missing:
        raise InputError(
            f"--data {data}: take {missing[0]!r} is missing; the study needs PARC's 23 initial "
            "clips; give the directory that holds them."
        )
    held_out = [c for c in clips if c.provenance.take in VALIDATION_TAKES]
    return [c for c in clips if c.provenance.take not in VALIDATION_TAKES], held_out


def setting(
    name: str, seed: int, cpu_s: float, changes: dict[str, Any] | None = None
) -> DiffusionConfig:
    """A profile with a budget of CPU time in the place of its number of steps.

    Args:
        name: of the profile.
        seed: of the training.
        cpu_s: CPU time, s.
        changes: values by dotted key.
    """
    plain = to_plain(profile(name))
    budget = {
        "train.steps": _STEPS_WITHOUT_END,
        "train.max_cpu_s": cpu_s,
        "train.seed": seed,
        "train.torch_threads": 1,
        "train.report_every": 200,
        "train.stat_windows": 8_192,
        "train.min_energy_ratio": 0.0,
        "train.pictures": 0,
    }
    for key, value in {**budget, **(changes or {})}.items():
        *parents, leaf = key.split(".")
        node = plain
        for parent in parents:
            node = node[parent]
        if leaf not in node:
            raise InputError(f"{key}: unknown key; see algorithms/diffusion/config.py; correct it.")
        node[leaf] = value
    return from_plain(DiffusionConfig, plain)


@torch.no_grad()
def held_out_loss(
    generator: DiffusionGenerator, clips: list[MotionClip], character: Character
) -> dict[str, float]:
    """Mean loss on fixed batches of clips that were not trained on.

    Terms, weights, masks and terrain augmentation are the ``upstream`` profile's for every
    setting; past frames that are given clean are put in the place of their prediction, as
    sampling does. Windows, targets, terrains, masks and noise levels are the same for all.
    """
    theirs = profile("upstream")
    # Kept: how this network wants its target told; everything else as upstream trains.
    ours = generator.config.conditioning
    kept = {k: getattr(ours, k) for k in ("target_distance", "second_target", "target_speed")}
    config = replace(
        generator.config,
        conditioning=replace(theirs.conditioning, **kept),
        loss=replace(theirs.loss, score_clean_past=False),
    )
    bank = ClipBank(clips, character.skeleton)
    batches = BatchMaker(bank, character, config, generator.file.stats)
    objective = Objective(character, config, generator.file.stats, torch.device("cpu"))
    rng = torch.Generator().manual_seed(VALIDATION_SEED)
    sums: dict[str, float] = {}
    for _ in range(VALIDATION_BATCHES):
        loss, shares = objective(generator.denoiser, batches.draw(rng, VALIDATION_SIZE))
        for key, value in {"loss": loss, **shares}.items():
            sums[key] = sums.get(key, 0.0) + float(value) / VALIDATION_BATCHES
    return sums


def test_protocol() -> tuple[TerrainSpec, SynthesisConfig]:
    """Random-walk terrains of moderate steps, paths of at least 5 m, motions of 4 s."""
    terrain = TerrainSpec(
        kind="paths", cells=(24, 24), path_count=6, path_height_m=(-0.6, 0.6), path_floor_m=-0.6
    )
    rollout = RolloutConfig(candidates=MOTIONS, max_duration_s=SECONDS, stall_s=None)
    return terrain, SynthesisConfig(planner=PlannerConfig(min_distance_m=4.0), rollout=rollout)


@torch.no_grad()
def roll_out_figures(
    generator: DiffusionGenerator, character: Character, energy: float
) -> dict[str, float]:
    """Means over the test motions, none filtered.

    Args:
        generator: to be measured.
        character: whose motions it makes.
        energy: motion energy of the data, (rad/s)^2.

    Returns:
        ``fwd_m``, ``tpl`` (points within the terrain), ``tcl``, ``hjf_percent``,
        ``tpl_per_frame``, ``energy_ratio``, ``finished``, ``seconds`` and ``motions``.
    """
    spec, synthesis = test_protocol()
    batch = plan_terrains(spec, synthesis, range(TERRAINS), EVALUATION_SEED)
    candidates = roll_out(generator, batch, character, synthesis, MOTIONS, EVALUATION_SEED)
    rows: list[dict[str, float]] = []
    for c in candidates:
        if c.frames.num_frames < 4:
            continue
        planned = batch.planned[c.path_index]
        clip = MotionClip(
            clip_id="test",
            frames=c.frames,
            fps=generator.fps,
            terrain=planned.terrain,
            path_nodes=planned.path.points,
        )
        found = clip_metrics(clip, character, "paper")
        moved = c.frames.map(lambda x: x[None])
        rows.append(
            {
                **{k: found[k] for k in ("fwd_m", "tpl", "tcl", "hjf_percent", "tpl_per_frame")},
                "tpl_code": found["tpl_code"],
                "off_grid_percent": found["off_grid_percent"],
                "energy_ratio": motion_energy(moved, generator.fps) / energy,
                "finished": float(c.finished),
                "progress": c.progress,
                "seconds": found["length_s"],
            }
        )
    means = {key: sum(r[key] for r in rows) / len(rows) for key in rows[0]}
    return {**means, "motions": float(len(rows))}


def data_energy(clips: list[MotionClip]) -> float:
    """Motion energy of clips, weighted by their length, (rad/s)^2."""
    frames = sum(c.num_frames for c in clips)
    parts = [motion_energy(c.frames.map(lambda x: x[None]), c.fps) * c.num_frames for c in clips]
    return sum(parts) / frames


def with_sampling(generator: DiffusionGenerator, **changes: Any) -> DiffusionGenerator:
    """The same weights with other sampling settings."""
    sampling: SamplingConfig = replace(generator.config.sampling, **changes)
    return DiffusionGenerator(generator.file, generator.character, sampling=sampling)


def default_data() -> str:
    """Where the development data is."""
    shared = os.environ.get("PARC_SHARED_DATA")
    root = Path(shared) if shared else Path(__file__).resolve().parents[2] / "shared" / "data"
    return str(root / "parc_clips")
