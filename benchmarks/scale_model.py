"""What PARC costs at its own size and at a hundred times it: a model from measured unit costs.

``python benchmarks/scale_model.py`` prints the tables of docs/scale.md. Every unit cost is a figure
of docs/results or docs/design, one thread on a CPU; where none was measured it is arithmetic, and
its note says so.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

FPS = 30
FRAME_BYTES = 4 * (7 + 28 + 15)
"""Root position and rotation, joints, contacts, as float32."""
REPLAY_BYTES = 4 * 28
"""PD targets of a recorded clip, per frame."""
COMPRESSED = 0.8
"""Share of the raw bytes that Parquet with zstd keeps; assumed, float32 hardly shrinks."""
GRADIENT_GB = 4 * 11e6 / 1e9
"""Of actor and critic with layers of 2048, 1024 and 512 on 1,312 observations, float32."""
MINIBATCH = 8192
"""Samples of one learner between two all-reduces, each of which sends the gradient twice."""
TERRAIN_BYTES = 4 * 16 * 16 + 4 * 6 * 64
"""Heights of a terrain cut to its path, and its boxes."""


@dataclass(frozen=True, kw_only=True)
class Units:
    """CPU-seconds of one unit of work on one core, and where the figure is from."""

    augment_variant: float = 3.0
    """Optimiser on one variant of a clip, as in generation below."""
    train_step: float = 0.46
    """A step of 64 windows, profile ``base``, float32 (docs/results/generator_speed.md)."""
    rollout_candidate: float = 463.4 / 576
    """A candidate of at most 6 s, profile ``base`` (docs/results/generate.md)."""
    candidates_kept_share: float = 32 / 36
    """Motions kept per terrain tried (the same run)."""
    optimise_motion: float = 85.1 / 34
    """200 steps of the optimiser (the same run)."""
    sim_step: float = 171e-6
    """A control step of one environment, MuJoCo, one thread: 155 to 187 us
    (docs/design/physics.md)."""
    learn_step_small: float = 5 * 9e-6
    """Five passes of 512-256 in bfloat16 over a sample (docs/design/physics.md)."""
    learn_step_large: float = 5 * 790e-6
    """Five passes of three layers of 2048 over a sample (docs/design/physics.md)."""
    mpc_second: float = 7.3
    """Correction of a second of motion by MPC, as `quick` does (docs/results/quick.md: 174.3 CPU-s
    for 24 s; base settings take 18 to 25, docs/results/correction)."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much of everything a run has."""

    name: str
    mocap_min: float = 14.0
    """Initial motion, minutes."""
    variations: int = 50
    """Spatial variants per clip, the clip itself included."""
    clip_s: float = 6.0
    """Length of an initial clip and of a generated motion, s (assumed)."""
    motions: tuple[int, ...] = (1000, 1000, 2000, 2000)
    """Kept motions by iteration, before mirroring."""
    candidates: int = 64
    generator_steps: float = 2_000_000
    """Per iteration."""
    tracker_samples: float = 1e10
    """Over all iterations."""
    large_network: bool = True
    mpc_share: float = 0.2
    """Of the motions, those that the tracker fails on and MPC is asked for (assumed)."""
    evaluation_motions: int = 3200
    """Test motions of an iteration."""

    def times(self, factor: int) -> Size:
        """The same with ``factor`` times the motion, the motions, the samples and the steps."""
        return replace(
            self,
            name=f"{factor} times it",
            mocap_min=self.mocap_min * factor,
            motions=tuple(n * factor for n in self.motions),
            tracker_samples=self.tracker_samples * factor,
            generator_steps=self.generator_steps * math.sqrt(factor),
        )


PARC = Size(name="PARC's own size")
HUNDRED = PARC.times(100)


@dataclass(frozen=True, kw_only=True)
class StageCost:
    """One kind of stage over the whole run."""

    name: str
    cpu_h: float
    parallel: float
    """Workers beyond which more do not help: items, or what a batch can be shared out to."""
    moved_gb: float
    """Bytes that cross the network."""


def costs(size: Size, units: Units | None = None) -> list[StageCost]:
    """CPU-hours, width and traffic of every kind of stage over all iterations."""
    u = units or Units()
    iterations = len(size.motions)
    variants = size.mocap_min * 60 / size.clip_s * size.variations
    made = sum(size.motions)
    seconds = made * size.clip_s
    terrains = made / u.candidates_kept_share
    learn = u.learn_step_large if size.large_network else u.learn_step_small
    mpc_s = size.mpc_share * (seconds + variants * size.clip_s)
    data_gb = storage_gb(size)
    gradients_gb = 5 * size.tracker_samples / MINIBATCH * 2 * GRADIENT_GB * size.large_network
    tests = iterations * size.evaluation_motions
    rollout = u.rollout_candidate * size.clip_s / 6.0

    def stage(name: str, cpu_s: float, parallel: float, moved_gb: float) -> StageCost:
        return StageCost(name=name, cpu_h=cpu_s / 3600, parallel=parallel, moved_gb=moved_gb)

    return [
        stage("augment", variants * u.augment_variant, variants, data_gb["variants"]),
        stage(
            "train-generator",
            iterations * size.generator_steps * u.train_step,
            64,
            iterations * data_gb["data set"],
        ),
        stage(
            "generate: roll-out",
            terrains * size.candidates * rollout,
            min(size.motions),
            data_gb["motions"],
        ),
        stage(
            "generate: optimise", made * u.optimise_motion, min(size.motions), data_gb["motions"]
        ),
        stage(
            "train-tracker: simulate",
            size.tracker_samples * u.sim_step,
            2048,
            0.0,
        ),
        stage("train-tracker: learn", size.tracker_samples * learn, 256, gradients_gb),
        stage("record: MPC", mpc_s * u.mpc_second, variants, data_gb["recorded"]),
        stage("evaluate", tests * rollout, size.evaluation_motions, 0.0),
    ]


def storage_gb(size: Size) -> dict[str, float]:
    """What lies on storage at the end, GB (models, a few GB, left out)."""
    variants = size.mocap_min * 60 / size.clip_s * size.variations
    frames = size.clip_s * FPS
    plain = COMPRESSED * frames * FRAME_BYTES + TERRAIN_BYTES
    recorded = COMPRESSED * frames * (FRAME_BYTES + REPLAY_BYTES) + TERRAIN_BYTES
    made = 2 * sum(size.motions)  # mirror images too
    return {
        "variants": variants * plain / 1e9,
        "motions": made * plain / 1e9,
        "recorded": (variants + made) * recorded / 1e9,
        "data set": (variants + made) * recorded / 1e9,
    }


def bottleneck(size: Size) -> StageCost:
    """The stage that takes longest on as many cores as it can use, up to ten thousand."""
    return max(costs(size), key=lambda c: c.cpu_h / min(c.parallel, 10_000))


def table(sizes: tuple[Size, ...] = (PARC, HUNDRED)) -> str:
    """The tables of docs/scale.md, in Markdown."""
    names = [c.name for c in costs(sizes[0])]
    head = " | ".join(f"{s.name}, CPU-h | GB moved" for s in sizes)
    lines = [f"| stage | {head} | width |", "|---" * (2 + 2 * len(sizes)) + "|"]
    by_size = [{c.name: c for c in costs(size)} for size in sizes]
    for name in names:
        cells = [
            f"{_figure(found[name].cpu_h)} | {_figure(found[name].moved_gb)}" for found in by_size
        ]
        width = ", ".join(dict.fromkeys(_figure(found[name].parallel) for found in by_size))
        lines.append(f"| {name} | {' | '.join(cells)} | {width} |")
    sums = [f"{_figure(sum(c.cpu_h for c in found.values()))} | " for found in by_size]
    lines.append(f"| all | {' | '.join(sums)} | |")
    lines += ["", "| storage at the end | " + " | ".join(f"{s.name}, GB" for s in sizes) + " |"]
    lines.append("|---" * (1 + len(sizes)) + "|")
    held = [storage_gb(size) for size in sizes]
    for key in ("variants", "motions", "recorded"):
        lines.append(f"| {key} | " + " | ".join(f"{_figure(h[key])}" for h in held) + " |")
    return "\n".join(lines)


def _figure(value: float) -> str:
    """Two figures, as 3,400."""
    if value < 10:
        return f"{value:.2g}"
    digits = max(0, math.floor(math.log10(value)) - 1)
    return f"{round(value, -digits):,.0f}"


def main() -> None:
    print(table())
    print()
    for size in (PARC, HUNDRED):
        found = bottleneck(size)
        print(f"{size.name}: {found.name}, {_figure(found.cpu_h / min(found.parallel, 1e4))} h")
    total = {s.name: sum(c.cpu_h for c in costs(s)) for s in (PARC, HUNDRED)}
    print(json.dumps({"parc_cpu_h": total[PARC.name], "hundred_cpu_h": total[HUNDRED.name]}))


if __name__ == "__main__":
    main()
