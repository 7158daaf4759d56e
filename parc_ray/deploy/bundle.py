"""A run's generator, tracker, character and normalisers as one directory or zip.

Networks lie in it twice: as ONNX for the runner and other programs, and as the project's own files,
which `parc generate --from` and warm starts read. Every file's hash stands in ``bundle.json``.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import uuid
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import parc_ray
from algorithms.diffusion.generator import DiffusionGenerator
from algorithms.ppo.policy import MlpPolicy
from envs.sims.base import SimConfig
from envs.sims.portable import portable_model
from envs.tracking.config import TrackingConfig
from envs.tracking.motion_bank import TerrainBank
from envs.tracking.observations import ObservationBuilder
from parc_ray.character.character import Character
from parc_ray.character.surface import surface_points
from parc_ray.config import ParcConfig
from parc_ray.config_io import to_yaml
from parc_ray.data.storage import Storage
from parc_ray.deploy.networks import generator_onnx, policy_onnx
from parc_ray.errors import InputError
from parc_ray.plan import plan
from parc_ray.runner.bundle import (
    CHARACTER,
    FORMAT,
    GENERATOR,
    SHEET,
    SIMULATION,
    TRACKER,
    VERSION,
)
from parc_ray.stages.base import StageContext, read_result
from parc_ray.terrain.heightfield import Heightfield

CONFIG, TRACKER_FILE, GENERATOR_FILE = "config.yaml", "tracker.pt", "generator.pt"
MJCF, MJCF_YAML = "character.xml", "character.yaml"
_README = """# A trained PARC-Ray run

- `bundle.json`: what is inside, hashes, observation, control, termination and simulation settings
- `tracker.onnx`: `observation` to `action`, normaliser inside; the layout is in the metadata
- `generator.onnx`: one evaluation of the denoiser, statistics inside
- `tracker.pt`, `generator.pt`, `config.yaml`: the same for PARC-Ray itself
- `character.xml`, `character.yaml`: the character; `character.npz`, `simulation.xml`: the same as
  arrays and as MJCF with servos and contact sensors

    python -m parc_ray.runner THIS CLIP.npz
    parc generate --from THIS --out motions
"""


@dataclass(frozen=True, kw_only=True)
class Models:
    """Files of the models that a run has trained last, None where there is none."""

    generator: Path | None
    tracker: Path | None
    labels: dict[str, str]
    """Stage that made each, ``it_02/train-tracker``."""
    iterations: dict[str, int]
    """Iteration of each, from 1; 0 for a tracker of the initial data."""


def trained_models(run: Storage, config: ParcConfig, iteration: int | None = None) -> Models:
    """The newest finished generator and tracker of a run.

    Args:
        run: the run directory.
        config: its config.
        iteration: the last iteration that counts; None for all.

    Raises:
        InputError: neither is there yet.
    """
    found: dict[str, Path] = {}
    labels: dict[str, str] = {}
    iterations: dict[str, int] = {}
    for stage in plan(config):
        name = {"train-generator": "generator", "train-tracker": "tracker"}.get(stage.name)
        if name is None or (iteration is not None and stage.iteration > iteration):
            continue
        context = StageContext(run=run, iteration=stage.iteration, config=config)
        result = read_result(context, stage.name)
        if result is not None:
            found[name] = run.local_path(result.outputs[name].path)
            labels[name], iterations[name] = stage.label, stage.iteration
    if not found:
        raise InputError(
            f"{run}: neither a generator nor a tracker is finished; let the run train one first"
        )
    return Models(
        generator=found.get("generator"),
        tracker=found.get("tracker"),
        labels=labels,
        iterations=iterations,
    )


def bundle_files(
    config: ParcConfig,
    character: Character,
    character_files: tuple[bytes, bytes],
    models: Models,
) -> dict[str, bytes]:
    """All files of a bundle by name.

    Args:
        config: the run's.
        character: of the run.
        character_files: its MJCF and YAML as they lie on disk.
        models: what the run has trained.

    Raises:
        InputError: a model does not fit the config or the character.
    """
    files: dict[str, bytes] = {"README.md": _README.encode(), CONFIG: to_yaml(config).encode()}
    files[MJCF], files[MJCF_YAML] = character_files
    builder = _builder(character, config.tracking)
    sheet = _sheet(config, character, models)
    xml, contact = portable_model(character, config.sim)
    sheet["simulation"]["terrain_contact"] = contact
    files[SIMULATION] = xml.encode()
    files[CHARACTER] = _arrays(character, builder, config.tracking)
    facts = {"control": sheet["control"], "dofs": list(character.skeleton.dof_names)}
    if models.tracker is not None:
        policy = MlpPolicy.load(models.tracker)
        files[TRACKER] = policy_onnx(policy, builder.layout, facts)
        files[TRACKER_FILE] = models.tracker.read_bytes()
    if models.generator is not None:
        generator = DiffusionGenerator.load(models.generator, character)
        files[GENERATOR] = generator_onnx(generator, {"character": character.digest})
        files[GENERATOR_FILE] = models.generator.read_bytes()
    sheet["files"] = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    files[SHEET] = json.dumps(sheet, indent=1, sort_keys=True).encode()
    return files


def write_bundle(files: dict[str, bytes], out: Path) -> None:
    """A new directory, or a zip where ``out`` ends in .zip; whole or not at all.

    Raises:
        InputError: something is there already, or the place cannot be written to.
    """
    if out.exists():
        raise InputError(f"--out: {out} exists; a bundle is never written over; name another place")
    half = out.with_name(f".{out.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.suffix == ".zip":
            with zipfile.ZipFile(half, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, data in sorted(files.items()):
                    archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
        else:
            half.mkdir()
            for name, data in files.items():
                (half / name).write_bytes(data)
        half.replace(out)
    except OSError as error:
        raise InputError(
            f"--out: {out} cannot be written ({error.strerror or error}); choose another place"
        ) from error
    finally:
        shutil.rmtree(half, ignore_errors=True)
        with suppress(OSError):
            half.unlink(missing_ok=True)


def _builder(character: Character, tracking: TrackingConfig) -> ObservationBuilder:
    """Observations over a flat ground: for layout and look-up points alone."""
    return ObservationBuilder(
        character, tracking.observation, TerrainBank([Heightfield.flat((2, 2))])
    )


def _sheet(config: ParcConfig, character: Character, models: Models) -> dict[str, Any]:
    tracking, sim = config.tracking, config.sim
    seen, skeleton = tracking.observation, character.skeleton
    return {
        "format": FORMAT,
        "version": VERSION,
        "made_by": f"parc-ray {parc_ray.__version__}",
        "run": config.name,
        "models": models.labels,
        "iterations": models.iterations,
        "character": {
            "name": character.name,
            "digest": character.digest,
            "bodies": list(skeleton.body_names),
            "kinds": list(skeleton.joint_kinds),
            "dofs": list(skeleton.dof_names),
        },
        "observation": {
            "layout": seen.layout,
            "target_steps": list(seen.target_steps),
            "height_clip_m": seen.height_clip_m,
            "contact_threshold_n": seen.contact_threshold_n,
        },
        "control": {
            "mode": tracking.control.mode,
            "residual_scale_rad": tracking.control.residual_scale_rad,
            "max_action": tracking.control.max_action,
        },
        "termination": {
            "root_pos_m": tracking.termination.root_pos_m,
            "root_rot_rad": tracking.termination.root_rot_rad,
        },
        "max_lift_m": tracking.sampling.max_lift_m,
        "simulation": _simulation(sim),
    }


def _simulation(sim: SimConfig) -> dict[str, Any]:
    return {
        "control_hz": sim.control_hz,
        "substeps": sim.substeps,
        "max_velocity": sim.max_velocity,
        "terrain_extension_m": sim.terrain_extension_m,
    }


def _arrays(character: Character, builder: ObservationBuilder, tracking: TrackingConfig) -> bytes:
    """What the runner computes with, as one .npz."""
    skeleton, points = character.skeleton, surface_points(character)
    limits = character.termination_distance.clone()
    if tracking.termination.body_m is not None:
        feet = {foot - 1 for foot in character.feet}
        for joint in range(len(limits)):
            if joint not in feet:
                limits[joint] = tracking.termination.body_m
    slices = [range(skeleton.num_dofs)[s] for s in skeleton.dof_slices]
    sink = io.BytesIO()
    np.savez_compressed(
        sink,
        allow_pickle=False,
        parents=np.array(skeleton.parents),
        offsets=skeleton.offsets.numpy(),
        rest_rot=skeleton.rest_rot.numpy(),
        dofs=np.array([(s.start, s.stop) for s in slices]),
        hinge_axes=skeleton.hinge_axes.numpy(),
        key_bodies=np.array(character.key_bodies),
        action_scale=character.action_scale.numpy(),
        action_offset=character.action_offset.numpy(),
        body_limits=(limits * tracking.termination.body_scale).numpy(),
        height_points=builder.points.numpy(),
        surface_body=points.body.numpy(),
        surface_offset=points.offset.numpy(),
    )
    return sink.getvalue()
