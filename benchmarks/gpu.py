"""What a GPU does: simulation, tracker and generator beside the device's own limits.

    python benchmarks/gpu.py [--device cuda|cpu] [--quick] [--parts limits sim tracker generator]

Never run on a GPU so far; ``--device cpu --quick`` only shows that every part runs. Limits are
measured in the same run: what the device copies and multiplies at most. ``sim`` steps MuJoCo Warp
under random targets over environment counts and terrains; its limit is the rate at which the device
could read and write the state of every solver step once. ``tracker`` samples and learns with the
preset ``base``, without RLlib (whose cost ``tracker.py`` tells); its observations are computed on
the CPU. ``generator`` trains and samples with the profile ``base``; its limit is the rate of matrix
products. Times are by the clock, after a warm-up that compiles kernels and is not counted. What
does not fit into ``--minutes`` is left out and said. The last line is JSON.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("OMP_NUM_THREADS", "4")

import torch

from algorithms.diffusion.generator import DiffusionGenerator
from algorithms.diffusion.profiles import profile
from algorithms.diffusion.trainer import Trainer, private_randomness
from algorithms.ppo.config import PRESETS
from algorithms.ppo.module import ActorCritic, model_config
from algorithms.ppo.networks import NetSpec
from algorithms.ppo.rollout import Sampler
from algorithms.ppo.runner import box_space
from algorithms.ppo.sizes import EnvSizes
from algorithms.ppo.update import Updater, make_optimiser
from benchmarks import _common
from benchmarks._common import Row
from envs.sims.base import SimConfig
from envs.sims.mujoco_warp import MujocoWarpBackend
from envs.tracking import config as tasks
from envs.tracking.env import VectorTrackingEnv
from parc_ray.character.character import Character, load_character
from parc_ray.character.rotations import heading_angle
from parc_ray.data.bank import ClipBank
from parc_ray.motion.clip import MotionClip, Provenance
from parc_ray.motion.frames import MotionFrames
from parc_ray.protocols import SampleRequest, SimState
from parc_ray.terrain.generators import make_terrains
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.terrain.spec import TerrainSpec

PARTS = ("limits", "sim", "tracker", "generator")
SIM_S, TRACKER_S, GENERATOR_S = 40.0, 90.0, 60.0
"""Most that one simulation, the tracker and the generator are expected to take, s."""
FPS = 30.0


@dataclass
class Bench:
    """What is measured on, how much of it, and how long it may take."""

    device: torch.device
    quick: bool
    character: Character
    ends: float
    kept: float = 0.0
    """Seconds before that which belong to parts that come later."""
    found: dict[str, float] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    @property
    def envs(self) -> tuple[int, ...]:
        """Environment counts of the simulation."""
        return (2,) if self.quick else (256, 1024, 4096, 8192)

    @property
    def seconds(self) -> float:
        """Time to measure each figure for."""
        return 0.2 if self.quick else 4.0

    def fits(self, what: str, seconds: float) -> bool:
        """Whether there is time for something; what does not fit is noted."""
        if self.quick or time.monotonic() + seconds < self.ends - self.kept:
            return True
        self.left_out.append(what)
        return False

    def rate(self, work: Callable[[], object], warm: int = 2) -> float:
        """Calls of ``work`` per second, by the clock, all kernels finished."""
        for _ in range(warm):
            work()
        self.wait()
        began, calls = time.monotonic(), 0
        while calls < 1 or time.monotonic() - began < self.seconds:
            work()
            calls += 1
            self.wait()
        return calls / (time.monotonic() - began)

    def wait(self) -> None:
        """Until the device is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print the tables and a last line of JSON."""
    options = arguments().parse_args(argv)
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("no CUDA device; --device cpu --quick shows that the script runs")
    if options.device == "cpu" and options.quick:
        import warp

        warp.config.optimization_level = 0  # compiles in two thirds of the time
    bench = Bench(
        device=torch.device(options.device),
        quick=options.quick,
        character=load_character(options.character),
        ends=time.monotonic() + 60.0 * options.minutes,
    )
    name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    print(f"{name}; {bench.character.name}" + (", quick" if bench.quick else ""))
    work = {"limits": limits, "sim": simulation, "tracker": tracker, "generator": generator}
    needs = {"tracker": TRACKER_S, "generator": GENERATOR_S}
    for number, part in enumerate(options.parts):
        bench.kept = sum(needs.get(later, 0.0) for later in options.parts[number + 1 :])
        _common.print_table(part, list(work[part](bench)))
    if bench.left_out:
        print(f"\nleft out, no time: {', '.join(bench.left_out)}")
    _common.print_result(bench.found)


def arguments() -> argparse.ArgumentParser:
    """The options."""
    parser = _common.parser("Simulation, tracker and generator on a GPU.")
    add = parser.add_argument
    add("--device", choices=("cuda", "cpu"), default="cuda", help="(%(default)s)")
    add("--parts", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    add("--character", default="humanoid", metavar="NAME", help="or a file (%(default)s)")
    add("--minutes", type=float, default=7.5, metavar="M", help="all told (%(default)s)")
    return parser


# Limits ------------------------------------------------------------------------------------------


def limits(bench: Bench) -> Iterator[Row]:
    """What the device copies, and multiplies in float32 and bfloat16."""
    megabytes = 16 if bench.quick else 2048
    source = torch.ones(megabytes * 2**18, device=bench.device)
    target = torch.empty_like(source)
    moved = 2 * source.nbytes * bench.rate(lambda: target.copy_(source))
    bench.found["copy_gb_s"] = moved / 1e9
    yield Row(name="copy, read and written", ours=moved / 1e9, unit="GB/s", note=f"{megabytes} MB")
    size = 256 if bench.quick else 8192
    for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        a = torch.randn(size, size, device=bench.device, dtype=dtype)
        b = torch.randn(size, size, device=bench.device, dtype=dtype)
        out = torch.empty_like(a)
        rate = 2 * size**3 * bench.rate(lambda a=a, b=b, out=out: torch.matmul(a, b, out=out))
        bench.found[f"matmul_{name}_tflops"] = rate / 1e12
        yield Row(name=f"matrix product, {name}", ours=rate / 1e12, unit="Tflop/s", note=f"{size}")


# Simulation --------------------------------------------------------------------------------------


def simulation(bench: Bench) -> Iterator[Row]:
    """Environment steps per second over terrains and counts."""
    copy = bench.found.get("copy_gb_s")
    for kind in ("flat", "boxes") if bench.quick else ("flat", "boxes", "rubble"):
        for count in bench.envs:
            if not bench.fits(f"sim {kind} {count}", SIM_S):
                continue
            terrains = make_terrains(TerrainSpec(kind=kind), min(count, 64), seed=0)
            backend = MujocoWarpBackend(bench.character, count, _sim(bench))
            backend.load_terrains(terrains)
            row = _steps(bench, backend, terrains, kind, copy)
            backend.close()
            yield row


def _sim(bench: Bench) -> SimConfig:
    return SimConfig(device=bench.device.type)


def _steps(
    bench: Bench,
    backend: MujocoWarpBackend,
    terrains: Sequence[Heightfield],
    kind: str,
    copy_gb_s: float | None,
) -> Row:
    """One count on one kind of terrain."""
    count, skeleton = backend.num_envs, bench.character.skeleton
    ids = torch.arange(count)
    ground = torch.stack([t.height_at(torch.zeros(2)) for t in terrains])[ids % len(terrains)]
    start = _standing(bench.character, ground)
    rng = torch.Generator().manual_seed(0)
    plan = 0.2 * torch.randn(8, count, skeleton.num_dofs, generator=rng)
    turn = iter(range(10**9))

    def step() -> None:
        k = next(turn)
        if k % 30 == 0:  # falls and gets up again, as episodes do
            backend.set_state(ids, ids % len(terrains), start)
        backend.step(plan[k % 8].to(backend.device))

    rate = count * bench.rate(step)
    bench.found[f"sim_{kind}_{count}_steps_s"] = rate
    boxes = max(len(b) for b in backend.boxes)
    state = 4 * (3 * (7 + 6 + 2 * skeleton.num_dofs) + 6 * boxes)
    limit = copy_gb_s * 1e9 / (2 * state * backend.config.substeps) if copy_gb_s else None
    note = f"{boxes} boxes, {1e6 / rate:.2f} us a step, room grown {backend.growths} times"
    name = f"{kind}, {count} environments"
    return Row(name=name, ours=rate, other=limit, label="state copies", unit="steps/s", note=note)


def _standing(character: Character, ground: torch.Tensor) -> SimState:
    """The rest pose on ground heights (N,)."""
    n, skeleton = len(ground), character.skeleton
    pos = torch.zeros(n, 3)
    pos[:, 2] = ground + character.stand_height
    return SimState(
        root_pos=pos,
        root_rot=torch.tensor([[0.0, 0.0, 0.0, 1.0]]).repeat(n, 1),
        root_lin_vel=torch.zeros(n, 3),
        root_ang_vel=torch.zeros(n, 3),
        dof_pos=torch.zeros(n, skeleton.num_dofs),
        dof_vel=torch.zeros(n, skeleton.num_dofs),
        contact_force=torch.zeros(n, skeleton.num_bodies, 3),
    )


# Tracker -----------------------------------------------------------------------------------------


def tracker(bench: Bench) -> Iterator[Row]:
    """Samples per second, sampling and learning in turn, and the share of each."""
    count, horizon = (4, 4) if bench.quick else (4096, 32)
    if not bench.fits("tracker", TRACKER_S):
        return
    task = tasks.base()
    env = VectorTrackingEnv(
        bench.character, _clips(bench.character, 8), count, task, _sim(bench), "mujoco_warp"
    )
    samples = count * horizon
    knobs = PRESETS["base"]().replace(
        num_envs=count, horizon=horizon, minibatch=max(samples // 4, 1), normaliser_warmup=0
    )
    knobs = EnvSizes.of(env).apply(knobs)
    spec = NetSpec(
        obs_dim=env.obs_dim,
        action_dim=env.action_dim,
        hidden=knobs.hidden,
        activation=knobs.activation,
        residual=knobs.residual,
        blocks=knobs.blocks,
        privileged_dims=knobs.privileged_dims,
        normaliser_skip=knobs.normaliser_skip,
    )
    module = ActorCritic(
        observation_space=box_space(env.obs_dim),
        action_space=box_space(env.action_dim),
        inference_only=False,
        model_config=model_config(spec, knobs),
    ).to(bench.device)
    updater = Updater(module, make_optimiser(module, knobs), knobs)
    sampler = Sampler(env, horizon, 0, bench.device)
    spent = {"sample": 0.0, "learn": 0.0}

    def iteration() -> None:
        began = time.monotonic()
        rollout, _ = sampler.run(module)
        bench.wait()
        sampled = time.monotonic()
        updater.update(rollout)
        bench.wait()
        spent["sample"] += sampled - began
        spent["learn"] += time.monotonic() - sampled

    rate = samples * bench.rate(iteration, warm=1 if bench.quick else 2)
    env.close()
    share = spent["learn"] / sum(spent.values())
    bench.found["tracker_samples_s"] = rate
    bench.found["tracker_learning_share"] = share
    sim = bench.found.get(f"sim_flat_{count}_steps_s")
    yield Row(
        name=f"{count} environments x {horizon}", ours=rate, other=sim, label="simulation alone",
        unit="samples/s", note=f"learning takes {100 * share:.0f} %",
    )  # fmt: skip


def _clips(character: Character, count: int) -> list[MotionClip]:
    """Motions that sway and glide over flat ground; enough for speed, nothing to learn from."""
    clips = []
    for number in range(count):
        t = torch.arange(121) / FPS
        phase = torch.linspace(0.0, 3.0 + number, character.skeleton.num_dofs)
        pos = torch.zeros(len(t), 3)
        pos[:, 0] = 0.1 * number * t
        pos[:, 2] = character.stand_height
        contacts = torch.zeros(len(t), character.skeleton.num_bodies)
        contacts[:, list(character.feet)] = 1.0
        frames = MotionFrames(
            pos,
            torch.tensor([0.0, 0.0, 0.0, 1.0]).repeat(len(t), 1),
            0.15 * torch.sin(2.0 * t[:, None] + phase),
            contacts,
        )
        clips.append(
            MotionClip(
                clip_id=f"sway{number}", frames=frames, fps=FPS,
                terrain=Heightfield.flat((32, 32)), provenance=Provenance(class_name="sway"),
            )
        )  # fmt: skip
    return clips


# Generator ---------------------------------------------------------------------------------------


def generator(bench: Bench) -> Iterator[Row]:
    """Training steps and sampled windows per second, beside the rate of matrix products."""
    if not bench.fits("generator", GENERATOR_S):
        return
    batch, windows = (4, 2) if bench.quick else (512, 512)
    config = profile("tiny" if bench.quick else "base")
    config = replace(config, train=replace(config.train, batch_size=batch, stat_windows=256))
    clips = _clips(bench.character, 4)
    bank = ClipBank(clips, bench.character.skeleton)
    with private_randomness(0, 1):
        trainer = Trainer(bank, bench.character, config, device=bench.device)
        rate = bench.rate(trainer.train_step)
    bench.found["generator_train_windows_s"] = rate * batch
    weights = sum(p.numel() for p in trainer.denoiser.parameters())
    peak = bench.found.get("matmul_bf16_tflops")
    made = DiffusionGenerator(trainer.generator_file(), bench.character, device=bench.device)
    flops = 6.0 * weights * made.num_frames * batch * rate / 1e12
    yield Row(
        name=f"training, batch {batch}", ours=flops, other=peak, label="matrix products, bf16",
        unit="Tflop/s", note=f"{rate * batch:,.0f} windows/s; 6 x {weights / 1e6:.1f} M weights",
    )  # fmt: skip
    request = _request(bank, made, windows)
    rng = torch.Generator().manual_seed(0)
    sampled = windows * bench.rate(lambda: made.sample(request, rng))
    bench.found["generator_sample_windows_s"] = sampled
    seconds = sampled * (made.num_frames - made.num_past) / made.fps
    yield Row(
        name=f"sampling, {windows} windows", ours=seconds, other=1.0, label="real time, one",
        unit="motion s/s", note=f"{sampled:,.0f} windows/s",
    )  # fmt: skip


def _request(bank: ClipBank, made: DiffusionGenerator, windows: int) -> SampleRequest:
    """Windows that continue the clips."""
    drawn = bank.sample_windows(torch.Generator().manual_seed(11), windows, made.num_frames)
    past = drawn.frames.time(0, made.num_past)
    return SampleRequest(
        past=past,
        anchor_pos=past.root_pos[:, -1],
        anchor_heading=heading_angle(past.root_rot[:, -1]),
        terrain=bank.terrains.index_select(drawn.terrain_ids),
        target_w=drawn.target_pos[:, :2],
    )


if __name__ == "__main__":
    main()
