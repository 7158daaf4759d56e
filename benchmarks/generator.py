"""CPU time and memory of the motion generator, against the published code's reference figures.

    python benchmarks/generator.py [--quick] [--data DIR] [--generator FILE]

The reference figures were measured with the published code on the same kind of machine, one thread,
batch 64. Because a busy machine slows everything down, the published structure is also put together
from PyTorch's own layers (``reference_denoiser``) and timed in the same run, interleaved with ours.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Idle threads sleep: on a busy machine those that spin are counted as work.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch
from torch import Tensor, nn

from algorithms.diffusion.conditions import Conditions
from algorithms.diffusion.config import DiffusionConfig, SamplingConfig
from algorithms.diffusion.denoiser import Denoiser
from algorithms.diffusion.generator import DiffusionGenerator
from algorithms.diffusion.profiles import profile
from algorithms.diffusion.trainer import Trainer, private_randomness
from benchmarks import _common
from benchmarks.reference_denoiser import ReferenceDenoiser, sample_reference
from parc_ray.character.character import Character, load_character
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.character.rotations import heading_angle
from parc_ray.character.surface import place_points, surface_points
from parc_ray.config import DataConfig
from parc_ray.data.bank import ClipBank
from parc_ray.evaluation.metrics import body_distance, contact_loss, penetration_per_frame
from parc_ray.precision import Precision, bf16_is_native
from parc_ray.protocols import SampleRequest
from parc_ray.synthesis.config import RolloutConfig
from parc_ray.synthesis.rollout import generate_candidates
from parc_ray.terrain.generators import make_terrain
from parc_ray.terrain.spec import TerrainSpec
from parc_ray.tools.base import format_table
from parc_ray.tools.import_data import load_source

PUBLISHED = {"train": 1.38, "train_penetration": 5.6, "plain": 0.76, "blend": 1.65}
"""CPU-seconds of the published code, one thread: steps of batch 64, 32 windows at stride 5."""
ROOT = Path(__file__).resolve().parent.parent
WINDOWS, STRIDE, BLEND = 32, 5, 0.65
RSS_FLOOR_GB = 2.5


@dataclass(frozen=True)
class Setup:
    """What every measurement needs."""

    character: Character
    bank: ClipBank
    repeats: int


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print the tables and a last line of JSON."""
    options = arguments().parse_args(argv)
    torch.set_num_threads(1)
    character = load_character("humanoid")
    clips, _ = load_source(DataConfig(path=options.data), character)
    setup = Setup(character, ClipBank(clips, character.skeleton), 2 if options.quick else 7)
    if options.rss:
        print(peak_rss_gb(setup))
        return
    if options.rounding:
        print_rounding(setup, [DiffusionGenerator.load(f, character) for f in options.rounding])
        return
    steps = options.train_steps or (20 if options.quick else 150)
    rows, found = training_rows(setup)
    print(format_table(("training step, batch 64", *_COLUMNS), rows), flush=True)
    trained = [trained_generator(setup, name, steps) for name in ("upstream", "base")]
    if options.generator:
        trained.append(DiffusionGenerator.load(options.generator, character))
    rows = sampling_rows(setup, trained, found)
    columns = (f"{WINDOWS} windows, stride {STRIDE}", *_COLUMNS, "x0 RMS", "TPL", "TCL")
    print("\n" + format_table(columns, rows), flush=True)
    rows = advance_rows(setup, trained[1], found)
    print("\n" + format_table(("7 frames (0.233 s), one character", "CPU s", "limit"), rows))
    rss = float(
        subprocess.check_output([sys.executable, __file__, "--rss", "--data", options.data])
    )
    print(f"\npeak memory of batch-64 training, base: {rss:.2f} GB (limit {RSS_FLOOR_GB} GB)")
    _common.print_result({**found, "train_peak_rss_gb": rss})


_COLUMNS = ("CPU s", "2 threads", "published", "times", "structure here", "times ")


def arguments() -> argparse.ArgumentParser:
    """The options."""
    parser = _common.parser("CPU time and memory of the motion generator.")
    add = parser.add_argument
    add("--data", default=default_data(), metavar="DIR", help="motion clips (%(default)s)")
    add("--train-steps", type=int, metavar="N", help="training before samples are compared")
    add("--generator", metavar="FILE", help="a trained generator to measure as well")
    add(
        "--rounding",
        nargs="+",
        metavar="FILE",
        help="only say how far bfloat16 moves the samples of these generators, on any processor",
    )
    add("--rss", action="store_true", help=argparse.SUPPRESS)
    return parser


def default_data() -> str:
    """Where the development data is."""
    shared = os.environ.get("PARC_SHARED_DATA", str(ROOT.parent / "shared" / "data"))
    return str(Path(shared) / "parc_clips")


def cpu_seconds(runs: Sequence[Callable[[], Any]], repeats: int) -> list[float]:
    """Least CPU time of each of several runs, which take turns so that all see the same load."""
    best = [float("inf")] * len(runs)
    for k in range(repeats + 1):
        for i, run in enumerate(runs):
            start = time.process_time()
            run()
            if k:  # the first turn warms up
                best[i] = min(best[i], time.process_time() - start)
    return best


def on_threads(run: Callable[[], Any], threads: int) -> Callable[[], Any]:
    """``run`` with another number of threads."""

    def other() -> None:
        torch.set_num_threads(threads)
        try:
            run()
        finally:
            torch.set_num_threads(1)

    return other


def forms() -> tuple[Precision, ...]:
    """Arithmetics that are timed: bfloat16 only where the processor has it."""
    return ("float32", "bfloat16") if bf16_is_native("cpu") else ("float32",)


def settings(name: str, *, penetration: bool, low: bool = False) -> DiffusionConfig:
    """A profile with or without the penetration and target losses, in float32 or bfloat16."""
    config = profile(name)
    weights = {"penetration": 15.0, "target": 0.02} if penetration else {}
    if not penetration:
        weights = {"penetration": 0.0, "target": 0.0}
    train = replace(config.train, stat_windows=2_048, precision="bfloat16" if low else "float32")
    return replace(config, loss=replace(config.loss, **weights), train=train)


def training_rows(setup: Setup) -> tuple[list[list[str]], dict[str, float]]:
    """Time of training steps; rows of the table, and the figures for the last line."""
    rows, found = [], {}
    for name in ("upstream", "base"):
        for penetration in (False, True):
            key = "train_penetration" if penetration else "train"
            kinds = forms()
            runs = [train_run(setup, name, penetration, form == "bfloat16") for form in kinds]
            peers = reference_train_run(setup, name, penetration)
            one = cpu_seconds([*runs, *peers], setup.repeats)
            two = cpu_seconds([on_threads(run, 2) for run in runs], setup.repeats)
            for k, form in enumerate(kinds):
                label = f"{name}, {'with' if penetration else 'without'} penetration, {form}"
                peer = PUBLISHED[key] if name == "upstream" else None
                rows.append(
                    [label, *compared(one[k], two[k], peer, one[-1] if peers else math.nan)]
                )
            if name == "upstream":
                label = "train_step_penetration_cpu_s" if penetration else "train_step_cpu_s"
                found[label] = round(one[0], 4)
    return rows, found


def compared(one: float, two: float, published: float | None, reference: float) -> list[str]:
    """Cells: times on one and two threads, the two peers and how many times faster than them."""
    quoted = [f"{published:.2f}", f"{published / one:.2f}"] if published else ["-", "-"]
    return [f"{one:.3f}", f"{two:.3f}", *quoted, f"{reference:.3f}", f"{reference / one:.2f}"]


def train_run(setup: Setup, name: str, penetration: bool, low: bool) -> Callable[[], Any]:
    """One training step, everything included."""
    config = settings(name, penetration=penetration, low=low)
    return Trainer(setup.bank, setup.character, config).train_step


def reference_train_run(setup: Setup, name: str, penetration: bool) -> list[Callable[[], Any]]:
    """The same with the network of PyTorch's own layers; batches, losses and optimiser are ours.

    Empty for networks that have parts it lacks.
    """
    trainer = Trainer(setup.bank, setup.character, settings(name, penetration=penetration))
    if not has_reference(trainer.denoiser):
        return []
    net = ReferenceDenoiser(trainer.denoiser, trainer.config)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-5)

    def step() -> None:
        net.train()
        batch = trainer.batches.draw(trainer.rng, trainer.share)
        loss, _ = trainer.objective(net, batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()

    return [step]


def has_reference(network: Denoiser) -> bool:
    """Whether ``ReferenceDenoiser`` has all parts of a network."""
    return network.anchor is None and network.near is None


def trained_generator(setup: Setup, name: str, steps: int) -> DiffusionGenerator:
    """A generator trained for a moment, so that its samples are motions of a kind."""
    config = settings(name, penetration=name == "base", low=bf16_is_native("cpu"))
    train = replace(config.train, steps=steps, learning_rate=1e-3, warmup_steps=5, ema_decay=0.9)
    with private_randomness(0, 1):
        trainer = Trainer(setup.bank, setup.character, replace(config, train=train))
        while not trainer.finished():
            trainer.train_step()
    return DiffusionGenerator(trainer.generator_file(), setup.character)


@dataclass(frozen=True)
class Inputs:
    """Past, conditions and noise of 32 windows that continue the data."""

    request: SampleRequest
    cond: Conditions
    past: Tensor
    noise: Tensor


def inputs(setup: Setup, generator: DiffusionGenerator) -> Inputs:
    """The same windows for every generator."""
    rng = torch.Generator().manual_seed(11)
    windows = setup.bank.sample_windows(rng, WINDOWS, generator.num_frames)
    past = windows.frames.time(0, generator.num_past)
    request = SampleRequest(
        past=past,
        anchor_pos=past.root_pos[:, -1],
        anchor_heading=heading_angle(past.root_rot[:, -1]),
        terrain=setup.bank.terrains.index_select(windows.terrain_ids),
        target_w=windows.target_pos[:, :2],
    )
    frame = generator.frame(request)
    noise = torch.randn(WINDOWS, generator.num_frames, generator.layout.size, generator=rng)
    return Inputs(
        request,
        generator.conditions(request, frame),
        generator.past_features(past, frame),
        noise,
    )


def with_sampling(generator: DiffusionGenerator, **changes: Any) -> DiffusionGenerator:
    """The same weights with other sampling settings."""
    sampling: SamplingConfig = replace(generator.config.sampling, **changes)
    return DiffusionGenerator(generator.file, generator.character, sampling=sampling)


def sampling_rows(
    setup: Setup, generators: Sequence[DiffusionGenerator], found: dict[str, float]
) -> list[list[str]]:
    """Time and deviation of sampled windows; fills the figures for the last line."""
    rows = []
    for name, generator in zip(("upstream", "base", "given"), generators, strict=False):
        given = inputs(setup, generator)
        for blend, key in ((0.0, "plain"), (BLEND, "blend")):
            makers = [
                with_sampling(generator, blend=blend, stride=STRIDE, precision=form)
                for form in forms()
            ]
            runs = [partial(m.windows, given.cond, given.past, given.noise) for m in makers]
            peers = reference_run(generator, given, blend)
            one = cpu_seconds([*runs, *peers], setup.repeats)
            two = cpu_seconds([on_threads(run, 2) for run in runs], setup.repeats)
            results = [run() for run in runs]
            for k, form in enumerate(forms()):
                peer = PUBLISHED[key] if name == "upstream" else None
                cells = compared(one[k], two[k], peer, one[-1] if peers else math.nan)
                quality = deviation(setup, generator, given, results[0], results[k])
                rows.append([f"{name}, {key}, {form}", *cells, *quality])
            if name == "upstream":
                found["sample32_cpu_s" if key == "plain" else "sample32_blend_cpu_s"] = round(
                    one[0], 4
                )
                if "bfloat16" in forms():
                    found[f"sample32_{key}_bf16_cpu_s"] = round(one[1], 4)
    return rows


def print_rounding(setup: Setup, generators: Sequence[DiffusionGenerator]) -> None:
    """Deviation of bfloat16's windows from float32's, without timing: emulation is slow."""
    rows = []
    for number, generator in enumerate(generators, start=1):
        given = inputs(setup, generator)
        for blend in (0.0, BLEND):
            exact, low = (
                with_sampling(generator, blend=blend, stride=STRIDE, precision=form).windows(
                    given.cond, given.past, given.noise
                )
                for form in ("float32", "bfloat16")
            )
            cells = deviation(setup, generator, given, exact, low)
            rows.append([f"generator {number}, s = {blend:g}", *cells])
    print(format_table((f"{WINDOWS} windows, stride {STRIDE}", "x0 RMS", "TPL", "TCL"), rows))


def reference_run(
    generator: DiffusionGenerator, given: Inputs, blend: float
) -> list[Callable[[], Any]]:
    """Sampling with PyTorch's own layers; empty for networks that have parts it lacks."""
    if not has_reference(generator.denoiser):
        return []
    net = ReferenceDenoiser(generator.denoiser, generator.config).eval()
    return [
        lambda: sample_reference(
            net,
            generator.schedule,
            given.cond,
            given.past,
            given.noise,
            stride=STRIDE,
            blend=blend,
            project=generator.project,
        )
    ]


def deviation(
    setup: Setup, generator: DiffusionGenerator, given: Inputs, exact: Tensor, other: Tensor
) -> list[str]:
    """RMS difference of normalised windows (new frames), and TPL and TCL relative to float32's."""
    p = generator.num_past
    rms = float((other - exact)[:, p:].square().mean().sqrt())
    tpl, tcl = window_losses(setup, generator, given, other)
    tpl_exact, tcl_exact = window_losses(setup, generator, given, exact)
    change = (
        f"{100 * (a / max(b, 1e-9) - 1):+.1f}%" for a, b in ((tpl, tpl_exact), (tcl, tcl_exact))
    )
    return [f"{rms:.1e}", *change]


def window_losses(
    setup: Setup, generator: DiffusionGenerator, given: Inputs, x: Tensor
) -> tuple[float, float]:
    """TPL and TCL (m) of normalised windows on their terrains, summed over windows."""
    frame = generator.frame(given.request)
    frames = generator.place(x, frame, torch.device("cpu"))
    skeleton, bodies = setup.character.skeleton, surface_points(setup.character, "full")
    placed = place_points(
        bodies, *fk_from_dof(skeleton, frames.root_pos, frames.root_rot, frames.dof)
    )
    terrain = given.request.terrain
    tpl = penetration_per_frame(placed, terrain).sum()
    distance = body_distance(placed, bodies, terrain, off_grid="free")
    return float(tpl), float(contact_loss(distance, frames.contacts).sum())


def advance_rows(
    setup: Setup,
    generator: DiffusionGenerator,
    found: dict[str, float],
    duration_s: float = 8.0,
) -> list[list[str]]:
    """Whole roll-outs of one character: CPU time per window of seven new frames."""
    terrain = make_terrain(TerrainSpec(kind="paths"), np.random.default_rng(3))
    low = terrain.origin + 1.0
    path = torch.stack([torch.cat([low + 0.4 * k, torch.zeros(1)]) for k in range(12)])
    cfg = RolloutConfig(
        candidates=1,
        max_duration_s=duration_s,
        done_radius_m=1e-6,
        lost_margin_m=1e6,
        fall_depth_m=1e6,
    )
    cases: list[tuple[str, dict[str, Any]]] = [
        (f"stride {STRIDE}, blended", {"stride": STRIDE, "blend": BLEND}),
        *((f"few-step, {n}", {"sampler": "few_step", "steps": n}) for n in (1, 2, 4)),
    ]
    rows = []
    for label, changes in cases:
        maker = with_sampling(generator, **changes)
        windows = [0]

        def run(maker: DiffusionGenerator = maker, windows: list[int] = windows) -> None:
            out = generate_candidates(maker, [terrain], [path], setup.character, cfg, 0)
            windows[0] = out[0].windows

        (total,) = cpu_seconds([run], setup.repeats)
        rows.append([label, f"{total / windows[0]:.4f}", "0.05"])
        key = "advance_stride5_s" if "blend" in changes else f"advance_{changes['steps']}_step_s"
        found[key] = round(total / windows[0], 4)
    found["advance_realtime_s"] = found["advance_2_step_s"]
    return rows


def peak_rss_gb(setup: Setup) -> float:
    """Peak resident memory (GB) of this process after three training steps of ``base``."""
    config = replace(profile("base"), train=replace(profile("base").train, torch_threads=1))
    with private_randomness(0, 1):
        trainer = Trainer(setup.bank, setup.character, config)
        for _ in range(3):
            trainer.train_step()
    return _common.resident_mb(peak=True) / 1e3


if __name__ == "__main__":
    main()
