"""Three nodes on one machine: stages go where they are sent; nodes die in them and new ones join.

One run of the loop. Its trainings are sent to nodes that offer ``learn``, all that simulates and
generates to nodes that offer ``sim``. One node of each kind dies while its stage is at work, and a
new one takes its place.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parc_ray.config import ParcConfig
from parc_ray.config_io import from_yaml
from parc_ray.plan import plan
from tests.integration.runs import ROOT, RunFiles, command, environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="Linux only"),
]

WORDS = shlex.split(
    "--recipe smoke --iterations 1 --name r "
    "--augment.variants_per_clip 0 --augment.optimizer.iterations 10 "
    "--d0.max_clips 3 --d0.max_clip_s 1.0 --d0.min_tracked_s 0.5 --d0.correction mpc "
    "--iterations.0.motions 4 --iterations.0.max_terrains 4 --iterations.0.candidates 2 "
    "--iterations.0.generator.steps 240 --iterations.0.tracker.samples 2048 "
    "--generator.train.report_every 10 --generator.train.log_every 10 "
    "--synthesis.rollout.max_duration_s 1.3 --synthesis.optimizer.iterations 10 "
    "--correction.mpc.samples 12 --correction.mpc_max_s 1.0 "
    "--correction.mpc_stronger_retry False "
    "--evaluation.terrains 2 --evaluation.motions_per_terrain 2 "
    "--evaluation.max_duration_s 1.0 "
    "--evaluation.tracker_starts 1 --evaluation.tracker_random_starts 2 "
    "--resources.places.augment.node sim --resources.places.generate.node sim "
    "--resources.places.record.node sim --resources.places.evaluate.node sim "
    "--resources.places.generator.node learn --resources.places.tracker.node learn "
    "--resources.record_actors 1 --resources.overlap True"
)
LIMIT_S = 500.0
ACTORS = """
import json, sys, ray
from ray._private import state
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
found = [[a["ActorClassName"], a["Address"]["NodeID"]] for a in state.actors().values()]
print(json.dumps(found))
"""


class Nodes:
    """A cluster of this module's own; ``named`` says which node is which."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        quick = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500}
        quick["health_check_failure_threshold"] = 4
        self.cluster = Cluster(
            initialize_head=True, head_node_args=self._size(_system_config=quick)
        )
        self.named: dict[str, Any] = {"head": self.cluster.head_node}
        try:
            self.add("learn-1", "learn")
            self.add("sim-1", "sim")
        except BaseException:
            self.cluster.shutdown()
            raise

    @staticmethod
    def _size(**more: Any) -> dict[str, Any]:
        return {
            "num_cpus": 3,
            "object_store_memory": 100 * 2**20,
            "include_dashboard": False,
            **more,
        }

    def add(self, name: str, offers: str) -> None:
        self.named[name] = self.cluster.add_node(**self._size(resources={offers: 1}))

    def kill(self, name: str) -> None:
        self.cluster.remove_node(self.named[name], allow_graceful=False)

    def name_of(self, node_id: str) -> str:
        return next((n for n, node in self.named.items() if node.node_id == node_id), node_id)

    def actors(self) -> dict[str, set[str]]:
        """Names of nodes by class of all actors there ever were."""
        done = subprocess.run(
            [sys.executable, "-c", ACTORS, self.cluster.address],
            env=environment(),
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        )
        found: dict[str, set[str]] = {}
        for kind, node in json.loads(done.stdout.splitlines()[-1]):
            if node and set(node) != {"f"}:  # all f: was never placed
                found.setdefault(kind, set()).add(self.name_of(node))
        return found


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """With a folder of Ray's own: others on this machine neither find it nor are found."""
    folder = tempfile.mkdtemp(prefix="pn-", dir="/tmp")  # short: sockets' paths are limited
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        made = Nodes()
        yield made
        made.cluster.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def run(nodes: Nodes, tmp_path_factory: pytest.TempPathFactory) -> RunFiles:
    """The run, hit twice."""
    storage = tmp_path_factory.mktemp("nodes")
    log = storage / "driver.log"
    address = nodes.cluster.address
    words = [*WORDS, "--storage", str(storage), "--resources.address", address]
    run = RunFiles(storage / "r")
    with log.open("wb") as output:
        driver = subprocess.Popen(
            command(*words),
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    limit = time.monotonic() + LIMIT_S

    def wait(stage: str, file: str) -> None:
        while not list((run.path / stage).glob(file)):
            assert driver.poll() is None, log.read_text()[-6000:]
            assert time.monotonic() < limit, log.read_text()[-6000:]
            time.sleep(0.05)

    try:
        wait("it_00/record", "items/*.json")
        nodes.kill("sim-1")
        nodes.add("sim-2", "sim")
        wait("it_01/train-generator", "train/checkpoint_*")
        nodes.kill("learn-1")
        nodes.add("learn-2", "learn")
        code = driver.wait(max(1.0, limit - time.monotonic()))
        assert code == 0, log.read_text()[-6000:]
    finally:
        if driver.poll() is None:
            os.kill(driver.pid, signal.SIGKILL)
            driver.wait()
    return run


def test_every_stage_finished(run: RunFiles):
    config = from_yaml(ParcConfig, (run.path / "config.yaml").read_text())
    assert run.labels() == sorted(s.label for s in plan(config))


def test_stages_worked_where_they_were_sent_and_on_the_nodes_that_came(run: RunFiles, nodes: Nodes):
    actors = nodes.actors()  # Ray forgets where those were that died with their node
    pools = {n for kind, where in actors.items() if "MapWorker" in kind for n in where}
    assert pools - {"sim-1"} == {"sim-2"}
    trainers = {n for kind, where in actors.items() if "TrainWorker" in kind for n in where}
    assert trainers - {"learn-1"} == {"learn-2"}
    log = (run.path / "run.log").read_text()
    tracker = re.findall(r"\[it_01/train-tracker\] works on node (\w+)", log)
    assert [nodes.name_of(node) for node in tracker] == ["learn-2"]
    assert re.findall(r"\[it_01/evaluate\] works on node (\w+)", log)  # beside the driver


def test_data_sets_hold_what_the_markers_say(run: RunFiles):
    for label in ("it_00/record", "it_01/record"):
        marker = run.marker(label)
        clips = run.clips(label)  # compares every part's hash
        assert marker["metrics"]["corrected"] == len(clips)
        records = run.json(f"{label}/records.json")
        kept = {r["clip_id"] for r in records if r["clip_id"] is not None}
        assert {clip.clip_id for clip in clips} == kept
    for i in (0, 1):
        merged = run.clips(f"it_{i:02d}/merge")
        assert run.marker(f"it_{i:02d}/merge")["metrics"]["clips"] == len(merged) > 0
        assert len({clip.clip_id for clip in merged}) == len(merged)
    parts = run.manifest("it_01/merge").parts
    assert parts[: len(run.manifest("it_00/merge").parts)] == run.manifest("it_00/merge").parts
    assert not [p for p in run.path.rglob("*") if ".tmp" in p.name]
