"""A few-step student of a trained generator.

The teacher's blended DDIM is a function of its noise: five steps, two branches each, one window.
The student, which starts from the teacher's weights, learns that function's result at every noise
level of its own few steps, in one branch with the past frames given: from x it predicts where the
teacher ends. Between its steps x moves as it will in use, along the DDIM step towards the student's
present answer, so that later steps learn to mend the earlier ones. Scored are the teacher's own
loss terms, with the teacher's window as the truth. (After consistency distillation, Song et al.
2023, and progressive distillation, Salimans and Ho 2022; PARC has nothing of this kind.)

Shapes: N windows, T frames, F features.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from algorithms.diffusion.batch import WindowSource, local_terrain
from algorithms.diffusion.chains import Chains, Items, join
from algorithms.diffusion.checkpoint import (
    GeneratorFile,
    load_generator,
    read_tensors,
    save_generator,
    write_atomically,
)
from algorithms.diffusion.config import DiffusionConfig, TrainConfig
from algorithms.diffusion.denoiser import Denoiser, insert_past
from algorithms.diffusion.ema import make_ema, update_ema
from algorithms.diffusion.generator import DiffusionGenerator
from algorithms.diffusion.losses import decode_pose, penetration_term, pose_terms, weigh_terms
from algorithms.diffusion.sampler import few_step_levels
from algorithms.diffusion.trainer import learning_rate, private_randomness
from parc_ray.character.character import Character
from parc_ray.character.surface import surface_points
from parc_ray.errors import InputError
from parc_ray.precision import PRECISIONS, Precision

log = logging.getLogger(__name__)

CHECKPOINT = "distill.pt"
STUDENT = "generator.pt"


@dataclass(frozen=True, kw_only=True)
class DistillConfig:
    """How a student is trained. PARC has none."""

    steps: int = 2
    """Evaluations of the network per window."""
    updates: int = 1_500
    """Optimiser steps."""
    batch_size: int = 64
    """Windows per optimiser step, and chains that the teacher continues."""
    uses: int = 2
    """Optimiser steps per batch that the teacher answers."""
    pool: int = 16
    """Latest batches that are drawn from."""
    depth: int = 6
    """Windows of a chain (``chains.Chains``)."""
    rewind: int = 5
    """Frames at the end of each window that are thrown away (plus one), as in roll-outs."""
    first_share: float = 0.1
    """Share of chains that begin without past frames, where the teacher begins from noise."""
    student_share: float = 0.5
    """Share of chains that go on from the student's window rather than the teacher's."""
    learning_rate: float = 5e-4
    """AdamW peak rate."""
    warmup_steps: int = 50
    """Steps of linear warm-up."""
    final_lr_fraction: float = 0.02
    """The rate falls to this fraction along a half cosine."""
    clip_norm: float = 5.0
    """Limit of the gradient norm."""
    ema_decay: float = 0.99
    """Decay of the averaged weights, which are the ones sampled from."""
    teacher_precision: Precision = "auto"
    """Arithmetic of the teacher; `auto`: bfloat16 where the processor has it."""
    report_every: int = 100
    """Optimiser steps between checkpoints and lines of the log."""
    torch_threads: int | None = None
    """Threads of PyTorch operators; None leaves them."""
    seed: int = 0
    """Seed of all draws."""

    def __post_init__(self) -> None:
        """Check ranges."""
        for name in ("steps", "batch_size", "uses", "pool", "depth", "report_every"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        _require(self.updates >= 0, "updates", self.updates, "0 or more")
        _require(self.rewind >= 0, "rewind", self.rewind, "0 or more frames")
        for name in ("first_share", "student_share"):
            _require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "0 to 1")
        for name in ("learning_rate", "clip_norm"):
            _require(getattr(self, name) > 0, name, getattr(self, name), "more than 0")
        known = self.teacher_precision in PRECISIONS
        _require(known, "teacher_precision", self.teacher_precision, " or ".join(PRECISIONS))

    def optimisation(self) -> TrainConfig:
        """The part that the training of a generator has as well."""
        return TrainConfig(
            steps=self.updates,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            warmup_steps=self.warmup_steps,
            final_lr_fraction=self.final_lr_fraction,
            clip_norm=self.clip_norm,
            ema_decay=self.ema_decay,
            ema_start=0,
            ema_ramp=True,
            seed=self.seed,
        )


def _require(ok: bool, name: str, value: object, allowed: str) -> None:
    if not ok:
        raise InputError(f"distill.{name}: {value!r} is not allowed; allowed is {allowed}.")


def student_config(teacher: DiffusionConfig, steps: int) -> DiffusionConfig:
    """The teacher's configuration with the few-step sampler and without dropout.

    Raises:
        InputError: more steps than noise levels, or a teacher that is a student itself.
    """
    if teacher.sampling.sampler != "ddim":
        raise InputError(
            "teacher: is a distilled generator; distil from the generator that training wrote."
        )
    net = replace(teacher.denoiser, dropout=0.0, attention_dropout=0.0)
    sampling = replace(teacher.sampling, sampler="few_step", steps=steps, precision="float32")
    return replace(teacher, denoiser=net, sampling=sampling)


class Distiller:
    """Trains a student; use inside ``private_randomness``."""

    def __init__(
        self,
        teacher: GeneratorFile,
        source: WindowSource,
        character: Character,
        config: DistillConfig,
        device: torch.device | None = None,
    ) -> None:
        """Build teacher, student and optimiser.

        Args:
            teacher: a trained generator; its sampling settings (stride, s) are what is learned.
            source: windows that chains begin from.
            character: whose motions they are.
            config: settings.
            device: of both networks; CPU by default.

        Raises:
            InputError: settings that do not fit the teacher.
        """
        self.config, self.file, self.character = config, teacher, character
        self.student_config = student_config(teacher.config, config.steps)
        self.device = device or torch.device("cpu")
        sampling = replace(teacher.config.sampling, precision=config.teacher_precision)
        self.teacher = DiffusionGenerator(teacher, character, sampling=sampling, device=self.device)
        if self.teacher.num_frames - 1 - config.rewind <= self.teacher.num_past:
            most = self.teacher.num_frames - self.teacher.num_past - 2
            _require(False, "rewind", config.rewind, f"0 to {most}, so that new frames are left")
        starts_from_data = teacher.config.sampling.start == "data"
        self.chains = Chains(
            source,
            self.teacher,
            config.batch_size,
            depth=config.depth,
            rewind=config.rewind,
            first_share=0.0 if starts_from_data else config.first_share,
        )
        grid = teacher.config.grid.shape
        self.student = Denoiser(self.student_config, self.teacher.layout.size, grid)
        self.student.load_state_dict(teacher.ema)
        self.student.to(self.device)
        self.train = config.optimisation()
        self.ema = make_ema(self.student, self.train)
        self.optimizer = torch.optim.AdamW(
            self.student.parameters(), lr=config.learning_rate, fused=True
        )
        self.points = surface_points(character, "minimal")
        self.rng = torch.Generator().manual_seed(config.seed)
        self.step, self.pool = 0, list[Items]()

    def update(self) -> dict[str, Tensor]:
        """One optimiser step; detached scalars of the loss and its terms.

        Raises:
            FloatingPointError: if loss or gradient are not finite; the weights are untouched.
        """
        if self.step % self.config.uses == 0:
            self._ask_teacher()
        pool = join(self.pool)
        pick = torch.randint(len(pool.clean), (self.config.batch_size,), generator=self.rng)
        self.student.train()
        loss, shares = self.loss(pool.select(pick.to(self.device)))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.student.parameters(), self.train.clip_norm)
        if not bool(torch.isfinite(loss.detach() + norm)):
            raise FloatingPointError("loss or gradient is not finite")
        rate = learning_rate(self.train, self.step, self.step / max(1, self.train.steps))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.step += 1
        update_ema(self.ema, self.student, self.step, self.train)
        return {"loss": loss.detach(), **shares, "grad_norm": norm.detach()}

    def loss(self, items: Items) -> tuple[Tensor, dict[str, Tensor]]:
        """Mean loss over the student's steps on N windows, and the last step's terms."""
        schedule, stats = self.teacher.schedule, self.teacher.stats
        cond, clean, x = items.conditions(), items.clean, items.noise
        levels = few_step_levels(schedule.steps - 1, self.config.steps)
        tokens = self.student.encode(cond)
        total, shares = x.new_zeros(()), dict[str, Tensor]()
        for level, after in zip(levels, [*levels[1:], None], strict=True):
            t = torch.full((len(x),), level, dtype=torch.long, device=x.device)
            given = insert_past(x, items.past, clean)
            made = self.student.denoise(given, t, tokens, clean, torch.ones_like(clean))
            made = insert_past(made, items.past, clean)
            loss, shares = self._score(stats.denormalise(made), items)
            total = total + loss / len(levels)
            if after is not None:
                of_x0, of_xt = schedule.ddim_coefficients(level, after)
                with torch.no_grad():
                    x = of_x0 * self.teacher.project(made.detach()) + of_xt * x
        return total, shares

    def _score(self, features: Tensor, items: Items) -> tuple[Tensor, dict[str, Tensor]]:
        """The teacher's loss terms between made features and the teacher's answer."""
        config, skeleton = self.student_config, self.character.skeleton
        pose = decode_pose(skeleton, features, config.rotations)
        with torch.no_grad():
            answer = self.teacher.stats.denormalise(items.answer)
            truth = decode_pose(skeleton, answer, config.rotations)
        terms = pose_terms(pose, truth, config.loss, 1.0 / config.fps)
        if config.loss.penetration:
            ground = local_terrain(items.heights, config.grid, config.terrain.max_height)
            depths = [penetration_term(p, self.points, ground, config.loss) for p in (pose, truth)]
            # Where the teacher goes too deep the student is asked to follow, no deeper.
            terms["penetration"] = (depths[0] - depths[1]).clamp_min(0.0)
        nowhere = torch.zeros_like(items.clean)
        return weigh_terms(terms, config.loss, nowhere, torch.ones_like(features[:, 0, 0]))

    @torch.no_grad()
    def _ask_teacher(self) -> None:
        """Add a batch to the pool, and let chains go on from what student or teacher made."""
        items = self.chains.items(self.rng)
        self.pool = [*self.pool, items][-self.config.pool :]
        windows = items.answer
        student = torch.rand(len(items.clean), generator=self.rng) < self.config.student_share
        if bool(student.any()):
            made = self.answers(items)
            windows = torch.where(student.to(self.device)[:, None, None], made, windows)
        self.chains.advance(self.rng, windows)

    def answers(self, items: Items) -> Tensor:
        """Windows (N, T, F) of the averaged student for the same past, conditions and noise."""
        net = self.ema.module
        assert isinstance(net, Denoiser)
        net.eval()
        schedule, x = self.teacher.schedule, items.noise
        levels = few_step_levels(schedule.steps - 1, self.config.steps)
        with torch.no_grad():
            tokens = net.encode(items.conditions())
            for level, after in zip(levels, [*levels[1:], None], strict=True):
                t = torch.full((len(x),), level, dtype=torch.long, device=x.device)
                given = insert_past(x, items.past, items.clean)
                made = net.denoise(given, t, tokens, items.clean, torch.ones_like(items.clean))
                of_x0, of_xt = schedule.ddim_coefficients(level, after)
                x = of_x0 * self.teacher.project(made) + of_xt * x
        return insert_past(x, items.past, items.clean)

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides how the distillation goes on."""
        return {
            "config": asdict(self.config),
            "teacher": self.file.config.to_dict(),
            "digest": self.character.digest,
            "step": self.step,
            "model": self.student.state_dict(),
            "ema": self.ema.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rng": self.rng.get_state(),
            "chains": self.chains.state_dict(),
            "pool": [vars(items) for items in self.pool],
            "teacher_weights": {k: v.float().sum() for k, v in self.file.ema.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict``.

        Raises:
            InputError: it was made with other settings or another teacher.
        """
        mine = self.state_dict()
        same = state["teacher"] == mine["teacher"] and state["digest"] == mine["digest"]
        sums, other = mine["teacher_weights"], state["teacher_weights"]
        same = same and sums.keys() == other.keys()
        if not same or any(not torch.equal(sums[k], other[k]) for k in sums):
            raise InputError(
                "checkpoint: belongs to another teacher; use another output directory."
            )
        for name, value in mine["config"].items():
            if name not in ("report_every", "torch_threads") and state["config"][name] != value:
                raise InputError(
                    f"distill.{name}: is {value!r}, but the checkpoint was made with "
                    f"{state['config'][name]!r}; use another output directory."
                )
        self.step = int(state["step"])
        self.student.load_state_dict(state["model"])
        self.ema.load_state_dict(state["ema"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.rng.set_state(state["rng"])
        self.chains.load_state_dict(state["chains"])
        self.pool = [Items(**part) for part in state["pool"]]

    def student_file(self) -> GeneratorFile:
        """The student as a generator file."""
        cpu = torch.device("cpu")
        return replace(
            self.file,
            config=self.student_config,
            ema={k: v.to(cpu) for k, v in self.ema.module.state_dict().items()},
            model={k: v.to(cpu) for k, v in self.student.state_dict().items()},
            step=self.step,
            optimizer=None,
        )


def distill(
    teacher: str | Path,
    source: WindowSource,
    character: Character,
    config: DistillConfig,
    out_dir: str | Path,
    *,
    device: str = "cpu",
    callback: Callable[[dict[str, float]], None] | None = None,
) -> Path:
    """Distil a generator into one that needs few evaluations and one branch.

    Args:
        teacher: generator file.
        source: windows of the data, for example a ``ClipBank``.
        character: whose motions they are.
        config: settings.
        out_dir: local directory for checkpoint and student; a distillation found there goes on.
        device: of both networks.
        callback: called with the means of the loss and its terms at every report.

    Returns:
        Path of the student, ``out_dir/generator.pt``, a generator file like any other.

    Raises:
        InputError: for a teacher, checkpoint or settings that do not fit.
        RuntimeError: if the loss stops being finite.
    """
    out = Path(out_dir)
    checkpoint = out / CHECKPOINT
    file = load_generator(Path(teacher))
    with private_randomness(config.seed, config.torch_threads):
        run = Distiller(file, source, character, config, torch.device(device))
        if checkpoint.exists():
            run.load_state_dict(read_tensors(checkpoint, "checkpoint"))
            log.info("distillation continues at step %d", run.step)
        sums: dict[str, float] = {}
        count = 0
        while run.step < config.updates:
            try:
                row = run.update()
            except FloatingPointError as error:
                raise RuntimeError(
                    f"distillation: {error} at step {run.step}; lower the learning rate."
                ) from None
            sums = {k: sums.get(k, 0.0) + float(v) for k, v in row.items()}
            count += 1
            if run.step % config.report_every == 0 or run.step == config.updates:
                write_atomically(run.state_dict(), checkpoint)
                means = {k: v / count for k, v in sums.items()}
                log.info("step %d: loss %.3f", run.step, means["loss"])
                if callback is not None:
                    callback({"step": float(run.step), **means})
                sums, count = {}, 0
    path = out / STUDENT
    save_generator(run.student_file(), path)
    return path
