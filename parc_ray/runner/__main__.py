"""``python -m parc_ray.runner BUNDLE CLIP.npz [CLIP.npz ...] [--out DIR]``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from parc_ray.errors import InputError
from parc_ray.runner.bundle import Bundle
from parc_ray.runner.track import Tracker


def main(argv: list[str] | None = None) -> int:
    """Track clips and print a line for each; the exit code is 2 for input that cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m parc_ray.runner", description=__doc__)
    parser.add_argument("bundle", metavar="BUNDLE", help="directory or zip of parc export RUN")
    parser.add_argument("clips", metavar="CLIP.npz", nargs="+", help="of parc export --format npz")
    parser.add_argument("--out", metavar="DIR", help="write the simulated motions there, .npz")
    options = parser.parse_args(argv)
    try:
        tracker = Tracker(Bundle.open(options.bundle))
        for path in options.clips:
            done = tracker.track(tracker.read(path))
            end = "completed" if done.completed else f"failed ({done.reason})"
            off = f"{done.body_error_m:.3f} m off"
            sys.stdout.write(f"{path}: {end}, {done.steps} of {done.of} steps, {off}\n")
            if options.out is not None:
                Path(options.out).mkdir(parents=True, exist_ok=True)
                done.save(Path(options.out) / Path(path).name)
    except InputError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
