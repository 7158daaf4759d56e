"""Ten seeded kills of random processes during one run of the recipe `smoke`, which has to finish.

``python benchmarks/chaos.py --seed 0`` starts the driver, kills a process of its family every few
seconds (actors, workers, Ray's own servers, the driver itself) and starts the driver again whenever
it has ended before the run has. At the end the run's markers, manifests and parts have to agree.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _common
from parc_ray.config import ParcConfig
from parc_ray.config_io import from_yaml
from parc_ray.data.manifest import Manifest
from parc_ray.data.storage import Storage
from parc_ray.data.store import read_clips
from parc_ray.plan import plan

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 1800.0


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=10, metavar="N", help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="(%(default)s)")
    parser.add_argument(
        "--work",
        type=Path,
        metavar="DIR",
        help="storage (default: temporary, kept when something is wrong)",
    )
    parser.add_argument("--wait", type=float, nargs=2, default=(4.0, 16.0), metavar="S")
    parser.add_argument("options", nargs="*", help="of the run, after --")
    options = parser.parse_args(argv)
    work: Path = options.work or Path(tempfile.mkdtemp(prefix="parc-chaos-"))
    work.mkdir(parents=True, exist_ok=True)
    try:
        killed, starts = torment(work, options)
        clips = check(work / "smoke")
    except BaseException:
        print(f"what there is of the run stays in {work}", file=sys.stderr)
        raise
    if options.work is None:
        shutil.rmtree(work)
    for name, count in sorted(killed.items()):
        print(f"killed {count} x {name}")
    _common.print_result({"kills": sum(killed.values()), "driver_starts": starts, "clips": clips})


def torment(work: Path, options: argparse.Namespace) -> tuple[Counter[str], int]:
    """Run to the end; what was killed, and how often the driver was started."""
    dice = random.Random(options.seed)
    killed: Counter[str] = Counter()
    starts = 0
    limit = time.monotonic() + LIMIT_S
    command = [sys.executable, str(ROOT / "run_parc.py"), "--recipe", "smoke"]
    command += ["--storage", str(work), "--resources.address", "local", *options.options]
    env = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    env["RAY_AUTH_MODE"] = "disabled"
    while True:
        starts += 1
        with (work / "driver.log").open("ab") as log:
            driver = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        family: dict[int, str] = {}
        try:
            while driver.poll() is None and time.monotonic() < limit:
                pause = dice.uniform(*options.wait) if sum(killed.values()) < options.kills else 5.0
                try:
                    driver.wait(pause)
                except subprocess.TimeoutExpired:
                    family |= {pid: _start(pid) for pid in _common._tree(driver.pid)}
                    at_work = any(_common._name(pid).startswith("ray::") for pid in family)
                    if at_work and sum(killed.values()) < options.kills:
                        killed[_kill_one(driver.pid, dice)] += 1
        finally:  # also when this benchmark is interrupted
            if driver.poll() is None:
                family |= {pid: _start(pid) for pid in _common._tree(driver.pid)}
            driver.kill()
            code = driver.wait()
            _end(family)
        print(f"start {starts}: ended with {code}, {sum(killed.values())} killed", flush=True)
        if code == 0:
            return killed, starts
        if time.monotonic() > limit:
            raise SystemExit(f"not finished within {LIMIT_S:g} s; see {work / 'driver.log'}")


def _kill_one(driver: int, dice: random.Random) -> str:
    """Kill a process of the driver's family, every kind of them as likely; its kind."""
    kinds: dict[str, list[int]] = {}
    for pid in sorted(_common._tree(driver)):
        kind = _common._name(pid).partition("::")[0]
        kinds.setdefault("driver" if pid == driver else kind, []).append(pid)
    name = dice.choice(sorted(kinds))
    victim = dice.choice(kinds[name])
    try:
        os.kill(victim, signal.SIGKILL)
    except ProcessLookupError:
        return "gone already"
    return name


def _start(pid: int) -> str:
    """What tells a process from a later one with the same number; empty once it is gone."""
    stat = _common._stat(pid)
    return stat[19] if stat and stat[0] != "Z" else ""


def _end(family: dict[int, str]) -> None:
    """End what is left of a driver's family: Ray's servers outlive it by a minute."""
    time.sleep(2.0)
    for pid, began in family.items():
        if began and _start(pid) == began:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def check(run: Path) -> int:
    """Markers of all stages, manifests and parts agree; clips of the last data set.

    Raises:
        SystemExit: they do not.
    """
    storage = Storage.from_uri(run)
    config = from_yaml(ParcConfig, (run / "config.yaml").read_text())
    stages = plan(config)
    missing = [s.label for s in stages if not (run / s.label / "_DONE.json").exists()]
    count, held = 0, []
    for k in range(len(config.iterations) + 1):
        marker = json.loads((run / f"it_{k:02d}/merge/_DONE.json").read_text())
        clips = read_clips(storage, Manifest.load(storage, f"it_{k:02d}/merge/manifest.json"))
        ids = [clip.clip_id for clip in clips]
        count = len(ids)
        if marker["metrics"]["clips"] != count or len(set(ids)) != count:
            missing.append(f"D{k} holds {count} clips, its marker says {marker['metrics']}")
        if ids[: len(held)] != held:
            missing.append(f"D{k} does not begin with the clips of D{k - 1}")
        held = ids
    if missing:
        raise SystemExit(f"the run is not whole: {'; '.join(missing)}")
    return count


if __name__ == "__main__":
    main()
