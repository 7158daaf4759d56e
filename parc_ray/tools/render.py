"""``parc render``: films and film strips of motions, without a display."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parc_ray.character.character import Character, load_character
from parc_ray.config import ParcConfig
from parc_ray.data.manifest import FILE_NAME, Manifest, open_dataset
from parc_ray.data.storage import Storage
from parc_ray.data.store import read_clips
from parc_ray.errors import InputError
from parc_ray.evaluation.summary import summarise
from parc_ray.motion.clip import MotionClip, validate_clip
from parc_ray.stages.comparisons import KINEMATIC, comparisons_of
from parc_ray.stages.report import PICTURES_PER_ITERATION
from parc_ray.tools.base import OneLineParser
from parc_ray.tools.runs import is_run, open_run
from parc_ray.viewer.offscreen.film import Film, RendererFactory, pictures, strip
from parc_ray.viewer.offscreen.opengl import OpenGLRenderer, find_library, use_library
from parc_ray.viewer.offscreen.software import SoftwareRenderer
from parc_ray.viewer.offscreen.versions import Related, Version, film_of
from parc_ray.viewer.offscreen.video import (
    GIF_FPS,
    GIF_MAX_FPS,
    SUFFIXES,
    write_gif,
    write_mp4,
    write_png,
)

_MAX_SIDE, _MIN_SIDE = 3840, 32


@dataclass(frozen=True, kw_only=True, eq=False)
class _Job:
    """One film: a motion's versions."""

    name: str
    versions: list[Version]
    title: str


def run(argv: list[str]) -> None:
    """``parc render SOURCE [SOURCE ...] --out FILE|DIR [--clip ID ...] ...``.

    Raises:
        InputError: a source, clip, option or target that cannot be used, two motions of one file,
            or a renderer or encoder that is not there.
    """
    options = arguments().parse_args(argv)
    _check(options)
    character, jobs = _jobs(options)
    paths = _targets(options, jobs)
    rates = [_fps(options, path, job) for path, job in zip(paths, jobs, strict=True)]
    make = _renderer(options.renderer)
    for job, path, fps in zip(jobs, paths, rates, strict=True):
        begun = time.perf_counter()
        film = film_of(
            job.versions,
            character,
            size=tuple(options.size),
            fps=fps,
            title=job.title,
            overlaid=options.layout == "overlaid",
            azimuth_deg=options.azimuth,
            elevation_deg=options.elevation,
            distance_m=options.distance,
            start_s=options.start,
            end_s=None if options.seconds is None else options.start + options.seconds,
            supersample=options.supersample,
        )
        _require_pictures(film, options)
        count = _write(path, film, make, options.moments)
        took = time.perf_counter() - begun
        print(f"{path}: {count} pictures, {len(job.versions)} versions, in {took:.1f} s")


def arguments() -> OneLineParser:
    """The command's options."""
    parser = OneLineParser(
        prog="parc render",
        description="Films (.mp4, .gif) and film strips (.png) of motions, without a display. One "
        "data set: its clips. Several: each motion in all of them beside each other, found by its "
        "id or by what it was made from. A run directory: the motions of its report, before and "
        "after correction.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("sources", metavar="SOURCE", nargs="+", help="data sets or manifests; or one run directory")
    add("--out", metavar="FILE|DIR", required=True, help="a file for one motion, else a directory")
    add("--format", choices=[s[1:] for s in SUFFIXES], help="of the files in a directory (mp4)")
    add("--clip", metavar="ID", nargs="+", help="only these motions (default: all)")
    add("--labels", metavar="TEXT", nargs="+", help="what the versions are called, in order")
    add("--layout", choices=["side", "overlaid"], default="side", help="(%(default)s)")
    add("--size", type=int, nargs=2, metavar="N", default=[1280, 480], help="pixels (1280 480)")
    add(
        "--fps",
        type=float,
        metavar="N",
        help=f"pictures per second (the motion's; GIF {GIF_FPS:g})",
    )
    add("--start", type=float, default=0.0, metavar="S", help="of the film, s (%(default)s)")
    add("--seconds", type=float, metavar="S", help="length (default: to the end)")
    add("--moments", type=int, default=8, metavar="N", help="pictures of a strip (%(default)s)")
    add("--azimuth", type=float, metavar="DEG", help="camera looks along x at 0, along y at 90")
    add("--elevation", type=float, metavar="DEG", help="negative looks down (-18)")
    add("--distance", type=float, metavar="M", help="camera to root (5.2 root heights)")
    add("--supersample", type=int, default=1, metavar="N", help="smoother edges (%(default)s)")
    add("--renderer", choices=["auto", "opengl", "software"], default="auto", help="(%(default)s)")
    add("--character", help="humanoid, or an .xml (default: the run's, of data sets humanoid)")
    return parser


def _check(options: argparse.Namespace) -> None:
    """Refuse values that would fail in the middle of a film."""
    if not _MIN_SIDE <= min(options.size) <= max(options.size) <= _MAX_SIDE:
        raise InputError(f"--size: {options.size}; {_MIN_SIDE} to {_MAX_SIDE} pixels are allowed")
    for name, low, high in (
        ("fps", 1.0, 120.0),
        ("seconds", 0.0, 3600.0),
        ("start", 0.0, 36000.0),
        ("moments", 1, 64),
        ("supersample", 1, 4),
        ("elevation", -89.0, 89.0),
        ("distance", 0.5, 100.0),
        ("azimuth", -360.0, 360.0),
    ):
        value = getattr(options, name)
        if value is not None and not low <= value <= high:
            raise InputError(f"--{name}: {value:g}; {low:g} to {high:g} is allowed")


def _jobs(options: argparse.Namespace) -> tuple[Character, list[_Job]]:
    """Who moves, and the films to make.

    Raises:
        InputError: sources that do not go together, another character's, an unknown motion, or
            none at all.
    """
    runs = [source for source in options.sources if is_run(source)]
    if runs and len(options.sources) > 1:
        raise InputError(
            f"{runs[0]}: a run directory stands alone; give data sets to compare, such as "
            f"{runs[0]}/it_01/generate"
        )
    if runs:
        storage, config = open_run(runs[0])
        character = load_character(options.character or config.character)
        jobs = _of_run(options, storage, config, character)
    else:
        character = load_character(options.character or "humanoid")
        jobs = _of_datasets(options, character)
    if not jobs:
        raise InputError(f"{options.sources[0]}: there is no motion to show; give another source")
    return character, jobs


def _of_run(
    options: argparse.Namespace, storage: Storage, config: ParcConfig, character: Character
) -> list[_Job]:
    """The motions of a run's report, before and after correction.

    Raises:
        InputError: they are another character's, or there are not as many labels as versions.
    """
    summary = summarise(storage, config.name)
    limit = None if options.clip else PICTURES_PER_ITERATION
    jobs = []
    for iteration in summary.iterations:
        for name in ("augment", "generate", "record"):
            place = f"it_{iteration:02d}/{name}/{FILE_NAME}"
            if summary.stage(iteration, name) is not None and storage.exists(place):
                manifest = Manifest.load(storage, place)
                manifest.check_character(character.digest, f"{options.sources[0]}/{place}")
        for found in comparisons_of(summary, storage, iteration, limit):
            labels = _labels(options, [KINEMATIC, found.label])
            versions = [Version(label=labels[0], clip=found.before)]
            if found.after is not None:
                versions.append(Version(label=labels[1], clip=found.after))
            jobs.append(_Job(name=found.before.clip_id, versions=versions, title=found.title))
    chosen = _chosen(options, [job.name for job in jobs])
    return [job for job in jobs if job.name in chosen]


def _of_datasets(options: argparse.Namespace, character: Character) -> list[_Job]:
    """The clips of one data set, or those of the first that have versions in the others.

    Raises:
        InputError: another character's, a chosen clip without a version, or wrong labels.
    """
    sets: list[Sequence[MotionClip]] = []
    for source in options.sources:
        root, manifest = open_dataset(source)
        manifest.check_character(character.digest, source)
        sets.append(read_clips(root, manifest))
    names = [_short_name(source) for source in options.sources]
    labels = _labels(options, names)
    chosen = _chosen(options, [clip.clip_id for clip in sets[0]])
    others = [Related(clips) for clips in sets[1:]]
    jobs = []
    for clip in sets[0]:
        if clip.clip_id not in chosen:
            continue
        found = [clips.to(clip.clip_id) for clips in others]
        pairs = zip(labels, [clip, *found], strict=True)
        versions = [Version(label=label, clip=c) for label, c in pairs if c is not None]
        for version in versions:
            validate_clip(version.clip, character)
        if options.clip and len(versions) < len(sets):
            lost = [s for s, c in zip(options.sources[1:], found, strict=True) if c is None]
            raise InputError(
                f"--clip: {clip.clip_id} has no version in {lost[0]}; one of that id or made from "
                "it is needed; leave that source out"
            )
        if len(sets) == 1 or len(versions) > 1:
            jobs.append(_Job(name=clip.clip_id, versions=versions, title=clip.clip_id))
    return jobs


def _chosen(options: argparse.Namespace, known: Sequence[str]) -> set[str]:
    """Ids of the motions to show.

    Raises:
        InputError: one that is not there.
    """
    missing = [name for name in options.clip or () if name not in known]
    if missing:
        raise InputError(
            f"--clip: {', '.join(missing[:4])} not among the {len(set(known))} motions of "
            f"{options.sources[0]}; ids as 'parc info' prints them are needed; correct the id"
        )
    return set(options.clip or known)


def _labels(options: argparse.Namespace, default: list[str]) -> list[str]:
    if options.labels is None:
        return default
    if len(options.labels) != len(default):
        raise InputError(
            f"--labels: {len(options.labels)} for {len(default)} versions; give each one"
        )
    return list(options.labels)


def _short_name(source: str) -> str:
    """The last two words of a path: enough to tell stages of a run apart."""
    parts = [p for p in source.split("/") if p not in ("", ".", "manifest.json")]
    return "/".join(parts[-2:])


def _targets(options: argparse.Namespace, jobs: Sequence[_Job]) -> list[Path]:
    """A file per motion.

    Raises:
        InputError: a file for several motions, an ending that is not written, or two motions of
            one file.
    """
    out = Path(options.out)
    if out.suffix:
        if out.suffix.lower() not in SUFFIXES:
            raise InputError(f"--out: {out}; {', '.join(SUFFIXES)} or a directory is allowed")
        if options.format not in (None, out.suffix.lower()[1:]):
            raise InputError(f"--format: {options.format} does not fit {out}; drop one of them")
        if len(jobs) != 1:
            raise InputError(
                f"--out: {out} is one file, but there are {len(jobs)} motions; choose one by "
                "--clip, or give a directory"
            )
        return [out]
    names = [job.name.replace("/", "__") for job in jobs]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise InputError(
                f"--out: {jobs[names.index(name)].name} and {jobs[number].name} would both be "
                f"written to {name}.{options.format or 'mp4'}; choose one by --clip, or rename one"
            )
    return [out / f"{name}.{options.format or 'mp4'}" for name in names]


def _fps(options: argparse.Namespace, path: Path, job: _Job) -> float:
    """Pictures per second.

    Raises:
        InputError: more than a GIF can show.
    """
    is_gif = path.suffix.lower() == ".gif"
    if options.fps is not None and is_gif and options.fps > GIF_MAX_FPS:
        raise InputError(
            f"--fps: {options.fps:g}; a .gif shows {GIF_MAX_FPS:g} pictures per second at most; "
            "lower it, or write .mp4"
        )
    if options.fps is not None:
        return options.fps
    return GIF_FPS if is_gif else float(np.clip(job.versions[0].clip.fps, 1, 60))


def _require_pictures(film: Film, options: argparse.Namespace) -> None:
    last = max(actor.end_s for panel in film.panels for actor in panel.actors)
    if options.start > last:
        raise InputError(f"--start: {options.start:g} s; the motion ends at {last:.2f} s; lower it")


def _renderer(wanted: str) -> RendererFactory:
    """The renderer, and a line that says which and why.

    Raises:
        InputError: OpenGL is asked for and does not work here.
    """
    if wanted == "software":
        print("renderer: software")
        return SoftwareRenderer
    library = find_library()
    if library is None and wanted == "opengl":
        raise InputError(
            "--renderer: neither EGL nor OSMesa draws here; install one (libegl1 or libosmesa6), "
            "or take --renderer software"
        )
    if library is None or (wanted == "auto" and not library.is_fast):
        why = "no EGL or OSMesa" if library is None else f"{library.name} is {library.device}"
        print(f"renderer: software ({why})")
        return SoftwareRenderer
    use_library(library.name)
    print(f"renderer: MuJoCo by {library.name}, {library.device}")
    return OpenGLRenderer


def _write(path: Path, film: Film, make: RendererFactory, moments: int) -> int:
    if path.suffix.lower() == ".png":
        write_png(path, strip(film, make, moments))
        return moments
    frames = pictures(film, make, film.times)
    if path.suffix.lower() == ".gif":
        return write_gif(path, frames, film.fps)
    return write_mp4(path, frames, film.fps)
