"""The trained generator as the other stages use it."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import torch
from torch import Tensor

from algorithms.diffusion.checkpoint import GeneratorFile, load_generator, save_generator
from algorithms.diffusion.conditions import Conditions
from algorithms.diffusion.config import DiffusionConfig, SamplingConfig
from algorithms.diffusion.denoiser import Denoiser
from algorithms.diffusion.sampler import sample_few_step, sample_windows
from algorithms.diffusion.schedule import NoiseSchedule
from algorithms.diffusion.targets import wanted_target
from parc_ray.character.character import Character
from parc_ray.errors import InputError
from parc_ray.motion.features import (
    CanonicalFrame,
    FeatureLayout,
    canonical_frame,
    from_canonical,
    pack,
    project,
    to_canonical,
    unpack,
)
from parc_ray.motion.frames import MotionFrames, cat_time
from parc_ray.protocols import SampleRequest
from parc_ray.terrain.local_grid import sample_local_heights

log = logging.getLogger(__name__)


class DiffusionGenerator:
    """Implements ``parc_ray.protocols.Generator`` with the averaged weights of a training.

    Attributes:
        num_frames: frames of a window.
        num_past: leading frames that are history.
        fps: frames per second.
    """

    def __init__(
        self,
        file: GeneratorFile,
        character: Character,
        *,
        sampling: SamplingConfig | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        """Build from the contents of a generator file.

        Args:
            file: weights, statistics and configuration.
            character: the character it was trained for.
            sampling: stride and blend coefficient; those of the file by default.
            device: where the network runs.

        Raises:
            InputError: for another character, or a stride that does not fit.
        """
        if file.character["digest"] != character.digest:
            raise InputError(
                f"generator: was trained for character {file.character['name']!r}, not "
                f"{character.name!r} (digests differ); use the character of the training."
            )
        config = file.config
        if sampling is not None:
            config = dataclasses.replace(config, sampling=sampling)
        self.config: DiffusionConfig = config
        self.file, self.character = file, character
        self.num_frames, self.num_past, self.fps = config.num_frames, config.num_past, config.fps
        self.device = torch.device(device)
        self.layout = FeatureLayout(character.skeleton, config.rotations)
        self.denoiser = Denoiser(config, self.layout.size, config.grid.shape)
        self.denoiser.load_state_dict(file.ema)
        self.denoiser.to(self.device).eval()
        self.schedule = NoiseSchedule(config.diffusion_steps).to(self.device)
        self.stats = file.stats.to(self.device)

    @classmethod
    def load(
        cls,
        path: str | Path,
        character: Character,
        *,
        blend: float | None = None,
        stride: int | None = None,
        device: str | torch.device = "cpu",
    ) -> DiffusionGenerator:
        """Read a generator file.

        Args:
            path: the file.
            character: the character it was trained for.
            blend: s (at the noisiest step), in place of the stored one; a distilled generator
                keeps the s it was distilled at.
            stride: DDIM stride, in place of the stored one; likewise.
            device: where the network runs.

        Raises:
            InputError: for a file, character or value that does not fit.
        """
        file = load_generator(Path(path))
        sampling = file.config.sampling
        if sampling.sampler == "few_step":
            for name, wanted in (("blend", blend), ("stride", stride)):
                stored = getattr(sampling, name)
                if wanted is not None and wanted != stored:
                    log.warning("%s: distilled at %s %g, not %g", path, name, stored, wanted)
            blend, stride = None, None
        if blend is not None:
            sampling = dataclasses.replace(sampling, blend=blend)
        if stride is not None:
            sampling = dataclasses.replace(sampling, stride=stride)
        return cls(file, character, sampling=sampling, device=device)

    def save(self, path: str | Path) -> None:
        """Write the generator file, with the present sampling settings."""
        save_generator(dataclasses.replace(self.file, config=self.config), Path(path))

    @torch.no_grad()
    def sample(self, request: SampleRequest, rng: torch.Generator) -> MotionFrames:
        """Generate world-frame windows.

        Args:
            request: N motions to continue or start, terrain and where to go.
            rng: CPU generator; the same state gives the same windows.

        Returns:
            (N, num_frames, ...) on the request's device; frames 0..num_past-1 are
            ``request.past`` where that is given. Without it, the window stands at the anchor:
            its frame ``num_past - 1`` is there with the anchor's heading; with
            ``sampling.start = "data"`` its past frames are some of the data, and their height
            follows from the ground at the anchor instead of the anchor's.

        Raises:
            ValueError: if ``request.past`` has another number of frames than ``num_past``.
        """
        home = request.anchor_pos.device
        n = request.anchor_pos.shape[0]
        if request.past is None and self.config.sampling.start == "data":
            request = dataclasses.replace(request, past=self._start(request, rng))
        frame = self.frame(request)
        past = None if request.past is None else self.past_features(request.past, frame)
        noise = torch.randn(n, self.num_frames, self.layout.size, generator=rng)
        x = self.windows(self.conditions(request, frame), past, noise.to(self.device))
        world = self.place(x, frame, home)
        if request.past is None:
            return world
        return cat_time([request.past, world.time(self.num_past)])

    @torch.no_grad()
    def windows(self, cond: Conditions, past: Tensor | None, noise: Tensor) -> Tensor:
        """Normalised windows (N, T, F) by the sampler of ``config.sampling``.

        Args:
            cond: conditions of N windows.
            past: (N, P, F) normalised past frames, or None.
            noise: (N, T, F) standard normal; the windows are a function of it.
        """
        settings = self.config.sampling
        if settings.sampler == "few_step":
            return sample_few_step(
                self.denoiser,
                self.schedule,
                cond,
                past,
                noise,
                steps=settings.steps,
                precision=settings.precision,
                project=self.project,
            )
        return sample_windows(
            self.denoiser,
            self.schedule,
            cond,
            past,
            noise,
            stride=settings.stride,
            blend=settings.blend,
            blend_end=settings.blend_end,
            blend_fade=settings.blend_fade,
            precision=settings.precision,
            project=self.project,
        )

    def place(self, x: Tensor, frame: CanonicalFrame, home: torch.device) -> MotionFrames:
        """World frames (N, T, ...) on ``home`` of normalised windows seen from ``frame``."""
        frames = unpack(self.layout, self.stats.denormalise(x))[0].to(home)
        frames.contacts = frames.contacts.clamp(0.0, 1.0)
        return from_canonical(frames, frame)

    def project(self, x: Tensor) -> Tensor:
        """Nearest consistent window: positions by kinematics, angles wrapped, contacts in [0, 1].

        Args:
            x: (N, T, F) normalised.
        """
        features = self.stats.denormalise(x)
        return self.stats.normalise(project(self.character.skeleton, self.layout, features))

    def _start(self, request: SampleRequest, rng: torch.Generator) -> MotionFrames:
        """Past frames of the data, at the anchors."""
        if self.file.starts is None:
            raise InputError(
                "sampling.start: is 'data', but the generator file holds no starts; train with "
                "train.start_windows above 0, or use 'noise'."
            )
        xy = request.anchor_pos[:, :2]
        ground = request.terrain.height_at(xy[:, None])[:, 0]
        frames = self.file.starts.draw(rng, self.layout, xy, ground, request.anchor_heading)
        return frames.to(request.anchor_pos.device)

    def frame(self, request: SampleRequest) -> CanonicalFrame:
        """Canonical frame of a request: of its past, or its anchor.

        Raises:
            ValueError: if the past has another number of frames than ``num_past``.
        """
        if request.past is not None:
            count = request.past.num_frames
            if count != self.num_past:
                raise ValueError(f"past has {count} frames; it must have {self.num_past}")
            return canonical_frame(request.past, self.config.reference)
        return CanonicalFrame(origin=request.anchor_pos, heading=request.anchor_heading)

    def past_features(self, past: MotionFrames, frame: CanonicalFrame) -> Tensor:
        """Normalised features (N, P, F) of the past frames."""
        x = pack(self.character.skeleton, to_canonical(past, frame), self.config.rotations).to(
            self.device
        )
        p = self.num_past
        return (x - self.stats.mean[:p]) / self.stats.std[:p]

    def conditions(self, request: SampleRequest, frame: CanonicalFrame) -> Conditions:
        """What the network is told of a request, on the network's device."""
        n = request.anchor_pos.shape[0]
        heights = sample_local_heights(
            self.config.grid, request.terrain, frame.origin, frame.heading
        )
        points = [request.target_w]
        if self.config.conditioning.second_target:
            points.append(request.target_w if request.second_w is None else request.second_w)
        offsets = [frame.xy_to_canonical(point) for point in points]
        target = wanted_target(self.config.conditioning, offsets, self.config.sampling.speed)
        yes = torch.ones(n, dtype=torch.bool)
        cond = Conditions(
            heights=heights,
            target=target,
            clean_past=yes,
            past_visible=yes,
            terrain_visible=yes,
            target_visible=yes,
        )
        return cond.to(self.device)
