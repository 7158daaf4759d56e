"""Data sets at size: ETL on Ray Data with its memory, and sampling of windows and training batches.

A data set of 20 000 random clips of about 300 frames on terrains of 16 to 32 cells is written once
to a temporary directory. Each part runs in a process of its own, so that memory is its own:

- etl: read, filter (short clips go), map (mirror every clip), repartition, write; two CPUs.
- sample: load into a ``ClipBank`` and draw, one thread: raw windows, and complete training samples
  (canonical features, local height map, augmentation with pools and turned boxes, target, noise,
  masks), all that one step of the profile consumes, in batches of 64 as training draws them.

    python benchmarks/data.py [--quick] [--clips N]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import numpy as np
import torch

from benchmarks._common import Row, TreeUsage, cpu_s, parser, print_result, print_table, resident_mb
from parc_ray.character.character import Character, load_character
from parc_ray.character.rotations import yaw_quat
from parc_ray.data.manifest import FILE_NAME, Manifest, open_dataset
from parc_ray.data.storage import Storage
from parc_ray.data.store import iter_clips, write_part
from parc_ray.motion.clip import MotionClip, Provenance
from parc_ray.motion.frames import MotionFrames
from parc_ray.terrain.heightfield import Heightfield

ROOT = Path(__file__).resolve().parent.parent
CLIPS, CLIPS_QUICK = 20_000, 4_000
CLIPS_PER_PART = 256
SHORTEST, LONGEST = 200, 400
"""Frames of the clips."""
FPS = 30.0
MIN_SECONDS = 7.0
"""Shorter clips are filtered out: about one in twenty."""
PEER_SAMPLES = 853.0
"""Samples per CPU-second of the published code (75 ms for a batch of 64), quoted."""
PEER_WINDOWS = 3_000.0
"""Windows a second of Ray Data with a local shuffle (docs/design/ray.md), quoted."""
LIMIT_MB = 3_000.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all parts, or one of them in this process."""
    options = _options(arguments)
    if options.part:
        parts = {"make": make, "etl": etl, "sample": sample}
        print(json.dumps(parts[options.part](options)))
        return
    clips = options.clips or (CLIPS_QUICK if options.quick else CLIPS)
    with tempfile.TemporaryDirectory(prefix="parc-data-") as home:
        made, moved, drawn = (_run(part, home, clips) for part in ("make", "etl", "sample"))
    print(
        f"{clips} clips, {made['frames']} frames, {made['mb']:.0f} MB on disk, made in "
        f"{made['wall_s']:.0f} s; {moved['kept']:.0f} clips written in {moved['wall_s']:.0f} s; "
        f"loaded in {drawn['load_cpu_s']:.0f} CPU-s, {drawn['phases']} start times per frame"
    )
    parts = ", ".join(f"{name} {mb:.0f}" for name, mb in sorted(moved["peak_parts"].items()))
    print(f"etl peak, MB: {parts}")
    print_table("Data sets at size", [*_etl_rows(moved), *_sample_rows(drawn)])
    print_result(
        {
            "windows_per_s": drawn["windows_64"],
            "samples_per_s": drawn["upstream_64"],
            "etl_clips_per_s": clips / moved["wall_s"],
            "etl_peak_mb": moved["peak_mb"],
            "bank_mb": drawn["resident_mb"],
            "clips": clips,
        }
    )


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    options = parser(__doc__ or "")
    options.add_argument("--clips", type=int, default=0, help=f"clips of D (default {CLIPS})")
    options.add_argument("--part", choices=("make", "etl", "sample"), help=argparse.SUPPRESS)
    options.add_argument("--home", default="", help=argparse.SUPPRESS)
    return options.parse_args(arguments)


def _run(part: str, home: str, clips: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--part", part, "--home", home, "--clips", str(clips)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def _etl_rows(moved: dict[str, Any]) -> list[Row]:
    how = f"{moved['cpu_s']:.0f} CPU-s in {moved['processes']} processes, two CPUs"
    speed = moved["clips"] / moved["wall_s"]
    return [
        Row(name="etl", ours=speed, unit="clips/s (wall)", note=how),
        Row(
            name="etl per CPU-second",
            ours=moved["clips"] / moved["cpu_s"],
            unit="clips/CPU-s",
            note="start of Ray left out",
        ),
        Row(
            name="etl peak memory",
            ours=moved["peak_mb"],
            other=LIMIT_MB,
            label="limit",
            unit="MB",
            note="driver, daemons, workers and object store; shared pages once (each: "
            f"{moved['peak_rss_mb']:.0f} MB)",
        ),
    ]


def _sample_rows(drawn: dict[str, Any]) -> list[Row]:
    rows = [
        Row(
            name="sampling memory",
            ours=drawn["peak_mb"],
            other=LIMIT_MB,
            label="limit",
            unit="MB",
            note=f"most resident; {drawn['resident_mb']:.0f} MB once loaded",
        )
    ]
    for size in (64, 1024):
        note = f"one thread, batch {size}"
        rows.append(
            Row(
                name="raw windows",
                ours=drawn[f"windows_{size}"],
                other=PEER_WINDOWS,
                label="Ray Data, local shuffle (quoted)",
                unit="per CPU-s",
                note=note,
            )
        )
        rows += [
            Row(
                name=f"training samples, {profile}",
                ours=drawn[f"{profile}_{size}"],
                other=PEER_SAMPLES,
                label="published code, batch 64 (quoted)",
                unit="per CPU-s",
                note=note,
            )
            for profile in ("upstream", "base")
        ]
    return rows


def random_clip(character: Character, number: int) -> MotionClip:
    """A seeded walk along a bent path over random blocks; joints swing at random speeds."""
    rng = np.random.default_rng((20_260_101, number))
    frames = int(rng.integers(SHORTEST, LONGEST + 1))
    skeleton = character.skeleton
    time_s = np.arange(frames) / FPS
    heading = rng.uniform(-np.pi, np.pi) + np.sin(rng.uniform(0.1, 0.5) * time_s)
    step = rng.uniform(0.5, 1.5) / FPS * np.stack([np.cos(heading), np.sin(heading)], -1)
    xy = np.cumsum(step, axis=0) - step[0]
    height = 0.9 + 0.1 * np.sin(3.0 * time_s)
    swing = rng.uniform(0.5, 6.0, skeleton.num_dofs)
    phase = rng.uniform(0.0, 2 * np.pi, skeleton.num_dofs)
    dof = 0.3 * np.sin(time_s[:, None] * swing + phase)
    touch = np.sin(time_s[:, None] * 6.0 + np.arange(skeleton.num_bodies)) > 0.8
    cells = rng.integers(16, 33, 2)
    corner = xy.min(axis=0) - rng.uniform(0.5, 1.5, 2)
    heights = 0.2 * rng.integers(0, 4, cells)
    return MotionClip(
        clip_id=f"random-{number:06d}",
        frames=MotionFrames(
            root_pos=_tensor(np.concatenate([xy, height[:, None]], -1)),
            root_rot=yaw_quat(_tensor(heading)),
            dof=_tensor(dof),
            contacts=_tensor(touch),
        ),
        fps=FPS,
        terrain=Heightfield(heights=_tensor(heights), origin=_tensor(corner)),
        provenance=Provenance(source="random", class_name=f"kind{number % 7}"),
    )


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))


def make(options: argparse.Namespace) -> dict[str, Any]:
    """Write the data set part by part."""
    began, storage = time.monotonic(), Storage.from_uri(options.home).join("d")
    character = load_character("humanoid")
    parts, frames = [], 0
    for number, clips in enumerate(_chunks(character, options.clips)):
        parts.append(write_part(storage, f"part-{number:05d}.parquet", clips))
        frames += sum(clip.num_frames for clip in clips)
    Manifest(name="D", parts=tuple(parts), character_digest=character.digest).save(storage)
    size = sum(path.stat().st_size for path in storage.local_path().iterdir())
    return {"frames": frames, "mb": size / 1e6, "wall_s": time.monotonic() - began}


def _chunks(character: Character, count: int) -> Iterator[list[MotionClip]]:
    for start in range(0, count, CLIPS_PER_PART):
        stop = min(start + CLIPS_PER_PART, count)
        yield [random_clip(character, number) for number in range(start, stop)]


class Mirror:
    """The map of the benchmark; builds its character where it runs."""

    def __init__(self) -> None:
        """Load the character."""
        self._character = load_character("humanoid")

    def __call__(self, clips: list[MotionClip]) -> list[MotionClip]:
        """Mirror images."""
        from parc_ray.motion.mirror import mirror_clip

        return [mirror_clip(self._character, clip) for clip in clips]


def etl(options: argparse.Namespace) -> dict[str, Any]:
    """Read, filter, map, repartition and write; memory and CPU time of all processes."""
    import ray

    from parc_ray.data.etl import filter_clips, map_clips, read_dataset, repartition, write_dataset
    from parc_ray.data.etl_filter import ClipFilter

    torch.set_num_threads(1)
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    home = Storage.from_uri(options.home)
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=256 * 2**20,
        log_to_driver=False,
        logging_level=logging.ERROR,
        runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
    )
    began = time.monotonic()
    with TreeUsage() as usage:
        clips = filter_clips(read_dataset(home.join("d")), ClipFilter(min_s=MIN_SECONDS))
        clips = repartition(map_clips(clips, Mirror()), 128)
        digest = load_character("humanoid").digest
        manifest = write_dataset(clips, home.join("e"), "E", digest)
    wall_s = time.monotonic() - began
    ray.shutdown()
    assert Manifest.load(home.join("e"), FILE_NAME) == manifest
    return {
        "clips": options.clips,
        "kept": manifest.rows,
        "wall_s": wall_s,
        "cpu_s": usage.cpu_s,
        "peak_mb": usage.peak_mb,
        "peak_rss_mb": usage.peak_rss_mb,
        "processes": usage.processes,
        "peak_parts": usage.peak_parts,
    }


def sample(options: argparse.Namespace) -> dict[str, Any]:
    """Load the data set into memory and draw from it on one thread."""
    from algorithms.diffusion.batch import BatchMaker, estimate_stats
    from algorithms.diffusion.profiles import profile
    from parc_ray.data.bank import ClipBank

    torch.set_num_threads(1)
    character = load_character("humanoid")
    began = time.process_time()
    root, manifest = open_dataset(Storage.from_uri(options.home).join("d"))
    bank = ClipBank(iter_clips(root, manifest), character.skeleton)
    figures = {
        "load_cpu_s": time.process_time() - began,
        "resident_mb": resident_mb(),
        "phases": bank.phases,
    }
    rng = torch.Generator().manual_seed(0)
    for name in ("upstream", "base"):
        config = profile(name)
        config = replace(config, train=replace(config.train, stat_windows=4096))
        maker = BatchMaker(bank, character, config, estimate_stats(bank, character, config))
        for size in (64, 1024):
            figures[f"{name}_{size}"] = size / cpu_s(lambda m=maker, n=size: m.draw(rng, n))
    for size in (64, 1024):
        seconds = cpu_s(lambda n=size: bank.sample_windows(rng, n, 15))
        figures[f"windows_{size}"] = size / seconds
    return {**figures, "peak_mb": resident_mb(peak=True)}


if __name__ == "__main__":
    main()
