"""``parc export``: clips of a data set as files of other programs, models of a run as a bundle."""

from __future__ import annotations

import argparse
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from parc_ray.character.character import character_files, load_character
from parc_ray.data.exporters import EXPORTERS, file_name
from parc_ray.data.manifest import FILE_NAME, Manifest, Part, open_dataset
from parc_ray.data.storage import Storage
from parc_ray.data.store import iter_parts, write_part
from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip, validate_clip
from parc_ray.tools.base import OneLineParser, name_of, require_target
from parc_ray.tools.runs import is_run, open_run

PARQUET = "parquet"


def run(argv: list[str]) -> None:
    """``parc export DATASET|RUN [--format FORMAT] --out DIR [--clip ID ...]``.

    A run becomes a bundle (:func:`export_run`). Clips of a data set are read and written part by
    part, so that memory does not grow with it.

    Raises:
        InputError: no data set, another character's, an unknown clip, or a target that is not
            empty or cannot be written.
    """
    options = arguments().parse_args(argv)
    if is_run(options.dataset):
        export_run(options)
        return
    if options.format is None:
        raise InputError(
            f"--format: missing; {', '.join([*EXPORTERS, PARQUET])} is needed for a data set; "
            "only a run directory goes without"
        )
    if options.iteration is not None:
        raise InputError("--iteration: is for a run directory; drop it")
    character = load_character(options.character or "humanoid")
    root, manifest = open_dataset(options.dataset)
    manifest.check_character(character.digest, options.dataset)
    wanted = list(dict.fromkeys(options.clip or []))
    count, seconds = 0, 0.0
    found: set[str] = set()
    parts: list[Part] = []
    with _whole_directory(options.out) as target:
        for clips in iter_parts(root, manifest):
            chosen = [clip for clip in clips if not wanted or clip.clip_id in wanted]
            for clip in chosen:
                validate_clip(clip, character)
            _require_new(chosen, found)
            if options.format != PARQUET:
                exporter = EXPORTERS[options.format]
                for clip in chosen:
                    data = exporter.encode(clip, character)
                    target.write_bytes_atomic(file_name(clip, exporter.suffix), data)
            elif chosen:
                parts.append(write_part(target, f"part-{len(parts):05d}.parquet", chosen))
            count += len(chosen)
            seconds += sum(clip.duration_s for clip in chosen)
        _require_all(wanted, found, manifest, options.dataset)
        if options.format == PARQUET:
            name = name_of(options.out, options.name)
            made = Manifest(
                name=name,
                iteration=manifest.iteration,
                parts=tuple(parts),
                parents=(*manifest.parents, manifest.name),
                character_digest=character.digest,
            )
            made.save(target, FILE_NAME)
    print(f"{options.out}: {count} clips, {seconds:.1f} s, as {options.format}")
    if options.format != PARQUET:
        print(f"not in these files: {EXPORTERS[options.format].left_out}")


def arguments() -> OneLineParser:
    """The command's options."""
    parser = OneLineParser(
        prog="parc export",
        description="Write the clips of a data set as files of other programs, or as parquet, a "
        "data set of its own; or bundle the models of a run, with its character and normalisers, "
        "into a directory or .zip for the runner, other programs and parc generate --from.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("dataset", metavar="DATASET|RUN", help="a data set, its manifest, or a run directory")
    add("--out", metavar="DIR", required=True, help="new or empty directory; of a run also a .zip")
    add("--format", choices=[*EXPORTERS, PARQUET], help="of a data set's files")
    add("--iteration", type=int, metavar="K", help="models of a run up to this one (all)")
    add("--clip", metavar="ID", nargs="+", help="only these clips (default: all)")
    add("--name", help="name of the data set, for parquet (default: that of the directory)")
    add(
        "--character", help="of a data set: humanoid (default), or an .xml with its .yaml beside it"
    )
    return parser


def export_run(options: argparse.Namespace) -> None:
    """The models of a run as a bundle.

    Raises:
        InputError: an option that is for data sets, no finished model, a target that exists or is
            no local path, or nothing that writes ONNX.
    """
    from parc_ray.deploy.bundle import bundle_files, trained_models, write_bundle
    from parc_ray.deploy.networks import require_exporter

    for name in ("format", "clip", "name", "character"):
        if getattr(options, name) is not None:
            raise InputError(f"--{name}: does not apply to a run directory; drop it")
    if "://" in options.out:
        raise InputError(
            f"--out: {options.out}; a local directory or .zip is allowed for a run; write it "
            "there and copy it"
        )
    out = Path(options.out)
    if out.exists():
        raise InputError(f"--out: {out} exists; a bundle is never written over; name another place")
    run_storage, config = open_run(options.dataset)
    models = trained_models(run_storage, config, options.iteration)
    require_exporter()
    character = load_character(config.character)
    files = bundle_files(config, character, character_files(config.character), models)
    write_bundle(files, out)
    size = sum(len(data) for data in files.values()) / 2**20
    made = ", ".join(f"{name} of {label}" for name, label in sorted(models.labels.items()))
    print(f"{out}: {made}; {len(files)} files, {size:.1f} MiB")


@contextmanager
def _whole_directory(out: str) -> Iterator[Storage]:
    """A directory to write to that appears at ``out`` when all is written, or not at all.

    Object stores have no renaming; there every file is whole, and the last comes last.
    """
    final = require_target(out)
    if not final.is_local:
        yield final
        return
    path = final.local_path()
    half = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        half.mkdir(parents=True)
        yield Storage.from_uri(half)
        os.replace(half, path)
    except OSError as error:
        raise InputError(
            f"--out: {path} cannot be written ({error.strerror or error}); a writable place with "
            "room is needed; choose another directory"
        ) from error
    finally:
        shutil.rmtree(half, ignore_errors=True)


def _require_new(clips: Sequence[MotionClip], found: set[str]) -> None:
    for clip in clips:
        if clip.clip_id in found:
            raise InputError(
                f"clip {clip.clip_id!r} appears twice in the data set; ids must differ; "
                "restore the data set"
            )
        found.add(clip.clip_id)


def _require_all(wanted: Sequence[str], found: set[str], manifest: Manifest, where: str) -> None:
    missing = [clip_id for clip_id in wanted if clip_id not in found]
    if missing:
        raise InputError(
            f"--clip: {', '.join(missing[:4])} not in {where} ({manifest.rows} clips); ids as "
            "'parc import' prints them are needed; correct the id"
        )
