"""``python -m parc_ray.runner BUNDLE CLIP.npz [CLIP.npz ...] [--out DIR]``."""

from __future__ import annotations

import argparse
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

from parc_ray.errors import InputError
from parc_ray.runner.bundle import Bundle
from parc_ray.runner.track import Tracked, Tracker


def main(argv: list[str] | None = None) -> int:
    """Track clips and print a line for each; the exit code is 2 for input that cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m parc_ray.runner", description=__doc__)
    parser.add_argument("bundle", metavar="BUNDLE", help="directory or zip of parc export RUN")
    parser.add_argument("clips", metavar="CLIP.npz", nargs="+", help="of parc export --format npz")
    parser.add_argument(
        "--out", metavar="DIR", help="write the simulated motions there, as CLIP.simulated.npz"
    )
    options = parser.parse_args(argv)
    try:
        targets = _targets(options.out, options.clips)
        tracker = Tracker(Bundle.open(options.bundle))
        for path, target in zip(options.clips, targets, strict=True):
            done = tracker.track(tracker.read(path))
            end = "completed" if done.completed else f"failed ({done.reason})"
            off = f"{done.body_error_m:.3f} m off"
            sys.stdout.write(f"{path}: {end}, {done.steps} of {done.of} steps, {off}\n")
            if target is not None:
                _save(done, target)
    except InputError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


def _targets(out: str | None, clips: Sequence[str]) -> list[Path] | list[None]:
    """Where each simulated motion goes; None where nothing is written.

    Raises:
        InputError: two motions would go to one file, or one to that of an input.
    """
    if out is None:
        return [None] * len(clips)
    targets = [Path(out) / f"{Path(path).stem}.simulated.npz" for path in clips]
    inputs = {Path(path).resolve() for path in clips}
    for number, (path, target) in enumerate(zip(clips, targets, strict=True)):
        if target in targets[:number]:
            first = clips[targets.index(target)]
            raise InputError(
                f"{first}, {path}: both would be written to {target}; track them one at a time, "
                "each with an --out of its own"
            )
        if target.resolve() in inputs:
            raise InputError(f"--out: {target} is an input; name another directory")
    return targets


def _save(done: Tracked, target: Path) -> None:
    """Write a motion, whole or not at all.

    Raises:
        InputError: the place cannot be written to.
    """
    half = target.with_name(f".{uuid.uuid4().hex[:8]}.npz")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            done.save(half)
            half.replace(target)
        finally:
            half.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(
            f"--out: {target} cannot be written ({error.strerror or error}); choose another place"
        ) from error


if __name__ == "__main__":
    sys.exit(main())
