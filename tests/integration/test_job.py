"""``ray job submit --working-dir . -- python run_parc.py``, as the README has it, on a local head.

What is uploaded is small; the driver runs from the copy; the run is where ``--storage`` says.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from parc_ray.config import ParcConfig
from parc_ray.config_io import from_yaml
from parc_ray.plan import plan
from tests.integration.processes import descendants, end, survivors
from tests.integration.runs import ROOT, RunFiles, environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc"),
]
pytest.importorskip("aiohttp_cors", reason="jobs need Ray's dashboard: pip install 'ray[default]'")

RAY = [sys.executable, "-m", "ray.scripts.scripts"]
WORDS = shlex.split(
    "--recipe smoke --iterations 1 --name job --iterations.0.correct False "
    "--augment.variants_per_clip 0 --d0.max_clips 2 --d0.max_clip_s 1.0 --d0.min_tracked_s 0.5 "
    "--d0.correction none --iterations.0.motions 1 --iterations.0.max_terrains 1 "
    "--iterations.0.candidates 2 --iterations.0.generator.steps 10 "
    "--synthesis.rollout.max_duration_s 1.0 --synthesis.optimizer.iterations 5 "
    "--evaluation.terrains 1 --evaluation.motions_per_terrain 1 --evaluation.max_duration_s 1.0 "
    "--resources.generate_actors 1"
)
LIMIT_S = 300.0
UPLOAD_MB = 16.0


def _outside() -> dict[str, str]:
    """An environment in which only the upload and what is installed can be imported."""
    folder = str(Path(sys.executable).parent)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return {k: v for k, v in environment().items() if k != "PYTHONPATH"} | {"PATH": path}


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture(scope="module")
def head() -> Iterator[tuple[str, Path]]:
    """The dashboard's address of a head with its own folder, and that folder."""
    folder = Path(tempfile.mkdtemp(prefix="pj-", dir="/tmp"))  # short: sockets' paths are limited
    port = _free_port()
    options = ["--num-cpus=4", "--object-store-memory=100000000", "--disable-usage-stats"]
    options += ["--port=0", "--dashboard-agent-listen-port=0", f"--dashboard-port={port}"]
    options += [f"--ray-client-server-port={_free_port()}"]
    log = folder / "start.log"
    with log.open("wb") as output:
        start = subprocess.Popen(
            [*RAY, "start", "--head", "--block", *options],
            env=_outside() | {"RAY_TMPDIR": str(folder)},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        address = f"http://127.0.0.1:{port}"
        _wait_for(address, start, log)
        yield address, folder
    finally:
        family = descendants(start.pid)  # at a TERM it would wait half a minute for idle actors
        os.kill(start.pid, signal.SIGKILL)
        start.wait(60.0)
        end(list(family))
        survivors(family, 20.0)
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(address: str, start: subprocess.Popen[bytes], log: Path) -> None:
    limit = time.monotonic() + 120.0
    while True:
        try:
            with urllib.request.urlopen(f"{address}/api/version", timeout=5.0):
                return
        except (urllib.error.URLError, OSError):
            assert start.poll() is None, log.read_text()
            assert time.monotonic() < limit, log.read_text()
            time.sleep(0.2)


def test_the_readmes_job_runs_to_its_end(head: tuple[str, Path], tmp_path: Path):
    address, folder = head
    assert (
        "ray job submit --working-dir . -- python run_parc.py" in (ROOT / "README.md").read_text()
    )
    submit = ["job", "submit", "--address", address, "--working-dir", "."]
    done = subprocess.run(
        [*RAY, *submit, "--", "python", "run_parc.py", *WORDS, "--storage", str(tmp_path)],
        cwd=ROOT,
        env=_outside() | {"RAY_ADDRESS": address},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    run = RunFiles(tmp_path / "job")
    config = from_yaml(ParcConfig, (run.path / "config.yaml").read_text())
    assert run.labels() == sorted(s.label for s in plan(config))
    assert run.marker("it_01/merge")["metrics"]["clips"] == len(run.clips("it_01/merge")) > 0
    (copy,) = {p.resolve() for p in _uploads(folder)}
    files = [p for p in copy.rglob("*") if p.is_file()]
    tops = {p.relative_to(copy).parts[0] for p in files}
    assert {"run_parc.py", "parc_ray", "algorithms", "envs"} <= tops
    assert not tops & {".git", ".venv", "runs", "artifacts", "build", "dist"}
    assert sum(p.stat().st_size for p in files) < UPLOAD_MB * 1e6


def _uploads(folder: Path) -> list[Path]:
    """Copies of the working directory; ``parc_ray.inputs`` knows where these lie."""
    found = folder.glob("ray/session_*/runtime_resources/working_dir_files/_ray_pkg_*")
    return [p for p in found if p.is_dir()]
