"""Few-step students against their teacher, on random terrains.

    python benchmarks/few_step.py TEACHER [--student FILE ...] [--updates N] [--data DIR]

Ten terrains, eight motions each, none filtered (the protocol of ``generator_study_parts``).
Students that are not given are distilled here with 1, 2 and 4 steps. CPU time is that of roll-outs
of one character, everything included, per advance of seven frames (0.233 s of motion).
The last line is JSON.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from algorithms.diffusion.distill import DistillConfig, distill
from algorithms.diffusion.generator import DiffusionGenerator
from benchmarks import _common
from benchmarks.generator_study_parts import (
    EVALUATION_SEED,
    TERRAINS,
    data_energy,
    default_data,
    load_clips,
    roll_out_figures,
    test_protocol,
    with_sampling,
)
from parc_ray.character.character import Character, load_character
from parc_ray.data.bank import ClipBank
from parc_ray.stages._rollouts import plan_terrains
from parc_ray.synthesis.rollout import generate_candidates
from parc_ray.tools.base import format_table

STEPS = (1, 2, 4)
COMPARED = ("fwd_m", "tpl", "energy_ratio")
"""What may differ by a quarter from the teacher at stride 5."""
TOLERANCE, LIMIT_S = 0.25, 0.05


def main(argv: Sequence[str] | None = None) -> None:
    """Distil where needed, roll out, print the table and a last line of JSON."""
    options = arguments().parse_args(argv)
    torch.set_num_threads(1)
    character = load_character("humanoid")
    train, _ = load_clips(options.data, character)
    energy = data_energy(train)
    teacher = DiffusionGenerator.load(options.teacher, character)
    last = teacher.config.diffusion_steps - 1
    cases = [
        (f"teacher, stride {stride}", with_sampling(teacher, stride=stride))
        for stride in (5, 10, 20)
        if last % stride == 0
    ]
    students = options.student
    if not students:
        bank = ClipBank(train, character.skeleton)
        students = [distilled(options, bank, character, n) for n in STEPS]
    for path in students:
        student = DiffusionGenerator.load(path, character)
        steps = student.config.sampling.steps
        cases.append((f"student, {steps} step{'s' * (steps > 1)}", student))
    report(cases, character, energy)


def arguments() -> argparse.ArgumentParser:
    """The options."""
    parser = _common.parser("Few-step students against their teacher, on random terrains.")
    add = parser.add_argument
    add("teacher", metavar="TEACHER", help="generator file")
    add("--student", nargs="*", default=[], metavar="FILE", help="students; else distilled here")
    add("--updates", type=int, metavar="N", help="of each distillation")
    add("--out", default="runs/few_step", metavar="DIR", help="of the students (%(default)s)")
    add("--data", default=default_data(), metavar="DIR", help="motion clips (%(default)s)")
    return parser


def distilled(
    options: argparse.Namespace, bank: ClipBank, character: Character, steps: int
) -> Path:
    """A student of ``steps`` steps in a directory of its own; found there, it is not made again."""
    config = DistillConfig(steps=steps)
    updates = options.updates or (60 if options.quick else config.updates)
    config = replace(config, updates=updates, torch_threads=1)
    began = time.process_time()
    path = distill(options.teacher, bank, character, config, Path(options.out) / f"steps_{steps}")
    print(f"distilled, {steps} steps: {time.process_time() - began:.0f} CPU s", flush=True)
    return path


def report(
    cases: Sequence[tuple[str, DiffusionGenerator]], character: Character, energy: float
) -> None:
    """Measure every generator and compare with the first one."""
    names = ("fwd_m", "tpl", "tcl", "hjf_percent", "energy_ratio", "finished")
    rows, result = [], {}
    base: dict[str, float] = {}
    for label, generator in cases:
        found = roll_out_figures(generator, character, energy)
        found["advance_s"] = advance_cpu_s(generator, character)
        base = base or found
        apart = max(abs(found[name] / base[name] - 1.0) for name in COMPARED)
        verdict = "yes" if apart <= TOLERANCE and found["advance_s"] < LIMIT_S else "no"
        cells = [f"{found[name]:.3g}" for name in names]
        rows.append([label, *cells, f"{found['advance_s']:.4f}", f"{100 * apart:.0f}%", verdict])
        key = label.replace(", ", "_").replace(" ", "_")
        result[f"{key}_advance_s"] = found["advance_s"]
        result[f"{key}_apart"] = apart
        print(rows[-1], file=sys.stderr, flush=True)
    titles = ("FWD (m)", "TPL (m)", "TCL (m)", "%HJF", "energy", "finished", "CPU s")
    print(format_table(("", *titles, "apart", "within"), rows))
    print(
        f"apart: greatest change of FWD, TPL, energy from the first row (limit {TOLERANCE:.0%});\n"
        f"CPU s per advance of one character (limit {LIMIT_S} s); energy relative to the data's."
    )
    _common.print_result(result)


def advance_cpu_s(generator: DiffusionGenerator, character: Character) -> float:
    """CPU time of one character's roll-out per window, the second of two roll-outs."""
    spec, synthesis = test_protocol()
    batch = plan_terrains(spec, synthesis, range(TERRAINS), EVALUATION_SEED)
    planned = batch.planned[0]
    assert planned.path.points is not None
    # Neither arrival nor a fall ends it: every roll-out has the same number of windows.
    changes: dict[str, Any] = {
        "candidates": 1,
        "done_radius_m": 1e-6,
        "lost_margin_m": 1e6,
        "fall_depth_m": 1e6,
    }
    cfg = replace(synthesis.rollout, **changes)
    spent = []
    for _ in range(3):
        began = time.process_time()
        made = generate_candidates(
            generator, [planned.terrain], [planned.path.points], character, cfg, 0
        )
        spent.append((time.process_time() - began) / made[0].windows)
    return min(spent)


if __name__ == "__main__":
    main()
