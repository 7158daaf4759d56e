"""Three nodes on one machine: stages go where they are sent; nodes die in them and new ones join.

One run of the loop. Its trainings are sent to nodes that offer ``learn``, all that simulates and
generates to nodes that offer ``sim``. The node of a stage dies while it is at work, and a new one
takes its place: in two stages, or (``long``) in every stage that works on nodes. ``merge`` and
``report`` work in the driver alone; its death in them is in ``test_kill``.
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
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from parc_ray.config import ParcConfig
from parc_ray.config_io import from_yaml
from parc_ray.plan import plan
from tests.integration.processes import descendants
from tests.integration.runs import ROOT, RunFiles, command, environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2400),
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
LONGER = shlex.split("--augment.variants_per_clip 1 --iterations.0.tracker.samples 8192")
"""So that stages which are hit are not over too soon."""
LIMIT_S = 1800.0
AT_WORK = "an actor at work"
TWO = [
    ("it_00/record", "items/*.json", "sim"),
    ("it_01/train-generator", "train/checkpoint_*", "learn"),
]
EACH = [
    ("it_00/augment", AT_WORK, "sim"),
    ("it_00/record", "items/*.json", "sim"),
    ("it_01/train-generator", "train/checkpoint_*", "learn"),
    ("it_01/generate", AT_WORK, "sim"),
    ("it_01/train-tracker", "LATEST", "learn"),
    ("it_01/record", AT_WORK, "sim"),
    ("it_01/evaluate", AT_WORK, "sim"),
]
"""Stage, the sign after which its node dies (a file of its, or an actor of a pool on that node that
is at an item), and what kind of node that is."""
ACTORS = """
import json, sys, ray
from ray._private import state
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
found = [[a["ActorClassName"], a["Address"]["NodeID"]] for a in state.actors().values()]
print(json.dumps(found))
"""


class Nodes:
    """A cluster of this module's own; ``named`` says which node is which: ``sim-1``, ``sim-2``."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        quick = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500}
        quick["health_check_failure_threshold"] = 4
        self.cluster = Cluster(
            initialize_head=True, head_node_args=self._size(_system_config=quick)
        )
        self.named: dict[str, Any] = {"head": self.cluster.head_node}
        self.count: Counter[str] = Counter()
        try:
            self.add("learn")
            self.add("sim")
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

    def newest(self, kind: str) -> str:
        return f"{kind}-{self.count[kind]}"

    def add(self, kind: str) -> None:
        node = self.cluster.add_node(**self._size(resources={kind: 1}))
        self.count[kind] += 1
        self.named[self.newest(kind)] = node

    def replace(self, kind: str) -> None:
        """Kill the newest of a kind; another comes."""
        self.cluster.remove_node(self.named[self.newest(kind)], allow_graceful=False)
        self.add(kind)

    def at_work(self, kind: str) -> bool:
        """Whether an actor of a pool on the newest of a kind is at an item."""
        raylet = self.named[self.newest(kind)].all_processes["raylet"][0].process.pid
        return any(_is_at_item(pid) for pid in descendants(raylet))

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


def _is_at_item(pid: int) -> bool:
    try:
        title = Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False
    return "MapBatches(" in title and ".submit" in title


@dataclass
class Story:
    """A run and what happened to it."""

    run: RunFiles
    kills: list[tuple[str, str, str]]
    first: Counter[str]
    """Number of the newest node of each kind when it began."""
    seen: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    """Markers that were there when a node died."""
    items: dict[Path, tuple[int, int]] = field(default_factory=dict)
    """Items that were done when the node of their stage died."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(TWO, id="two"), pytest.param(EACH, id="each", marks=pytest.mark.long)],
)
def story(
    nodes: Nodes, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Story:
    """The run, hit in some of its stages or in all."""
    storage = tmp_path_factory.mktemp("nodes")
    log = storage / "driver.log"
    address = nodes.cluster.address
    words = [*WORDS, "--storage", str(storage), "--resources.address", address]
    words += LONGER if request.param is EACH else []
    run = RunFiles(storage / "r")
    story = Story(run, request.param, Counter(nodes.count))
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

    def begun(stage: Path, sign: str, kind: str) -> bool:
        if sign != AT_WORK:
            return bool(list(stage.glob(sign)))
        return (stage / "_STARTED.json").exists() and nodes.at_work(kind)

    try:
        for label, sign, kind in story.kills:
            stage = run.path / label
            while not begun(stage, sign, kind):
                assert driver.poll() is None, log.read_text()[-6000:]
                assert time.monotonic() < limit, log.read_text()[-6000:]
                time.sleep(0.05)
            story.seen |= run.markers()
            story.items |= _written(stage.glob("items/*.json"))
            assert not (stage / "_DONE.json").exists(), f"{label} was over too soon"
            nodes.replace(kind)
        code = driver.wait(max(1.0, limit - time.monotonic()))
        assert code == 0, log.read_text()[-6000:]
    finally:
        if driver.poll() is None:
            os.kill(driver.pid, signal.SIGKILL)
            driver.wait()
    return story


def _written(files: Iterator[Path]) -> dict[Path, tuple[int, int]]:
    """When and as which file each was written."""
    return {p: (p.stat().st_mtime_ns, p.stat().st_ino) for p in files}


def test_every_stage_finished_and_nothing_finished_was_done_again(story: Story):
    run = story.run
    config = from_yaml(ParcConfig, (run.path / "config.yaml").read_text())
    assert run.labels() == sorted(s.label for s in plan(config))
    markers = run.markers()
    assert {label: markers[label] for label in story.seen} == story.seen
    assert _written(iter(story.items)) == story.items
    assert story.items


def test_stages_worked_where_they_were_sent_and_on_the_nodes_that_came(story: Story, nodes: Nodes):
    died = Counter(kind for _, _, kind in story.kills)
    last = {kind: f"{kind}-{story.first[kind] + died[kind]}" for kind in ("sim", "learn")}
    actors = nodes.actors()  # Ray forgets where those were that died with their node
    pools = {n for kind, where in actors.items() if "MapWorker" in kind for n in where}
    assert last["sim"] in pools
    assert {name.partition("-")[0] for name in pools} == {"sim"}
    trainers = {n for kind, where in actors.items() if "TrainWorker" in kind for n in where}
    assert f"learn-{story.first['learn'] + 1}" in trainers  # the training's first node died
    assert {name.partition("-")[0] for name in trainers} == {"learn"}
    log = (story.run.path / "run.log").read_text()
    tracker = re.findall(r"\[it_01/train-tracker\] works on node (\w+)", log)
    hit = sum(label == "it_01/train-tracker" for label, _, _ in story.kills)
    assert len(tracker) == 1 + hit
    assert nodes.name_of(tracker[-1]) == last["learn"]
    assert re.findall(r"\[it_01/evaluate\] works on node (\w+)", log)  # beside the driver


def test_data_sets_hold_what_the_markers_say(story: Story):
    run = story.run
    for label in ("it_00/augment", "it_01/generate", "it_00/record", "it_01/record"):
        clips = run.clips(label)  # compares every part's hash
        (output,) = (o for o in run.marker(label)["outputs"].values() if "manifest" in o["path"])
        assert output["rows"] == len(clips) == len({clip.clip_id for clip in clips}) > 0
    for label in ("it_00/record", "it_01/record"):
        records = run.json(f"{label}/records.json")
        kept = {r["clip_id"] for r in records if r["clip_id"] is not None}
        assert {clip.clip_id for clip in run.clips(label)} == kept
        assert run.marker(label)["metrics"]["corrected"] == len(kept)
    for i in (0, 1):
        merged = run.clips(f"it_{i:02d}/merge")
        assert run.marker(f"it_{i:02d}/merge")["metrics"]["clips"] == len(merged) > 0
        assert len({clip.clip_id for clip in merged}) == len(merged)
    parts = run.manifest("it_01/merge").parts
    assert parts[: len(run.manifest("it_00/merge").parts)] == run.manifest("it_00/merge").parts
    assert not [p for p in run.path.rglob("*") if ".tmp" in p.name]


def test_a_pool_grows_onto_a_node_that_is_added(nodes: Nodes, tmp_path: Path):
    """Its items wait for a second actor, for which the first node has no room."""
    old = nodes.newest("sim")
    module = [sys.executable, "-m", "tests.integration.growing"]
    log = tmp_path / "log"
    with log.open("wb") as output:
        work = subprocess.Popen(
            [*module, nodes.cluster.address, str(tmp_path), "sim"],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        limit = time.monotonic() + 300.0
        while not list(tmp_path.glob("met/*")):
            assert work.poll() is None, log.read_text()[-6000:]
            assert time.monotonic() < limit, log.read_text()[-6000:]
            time.sleep(0.05)
        nodes.add("sim")
        code = work.wait(300.0)
    finally:
        if work.poll() is None:
            os.kill(work.pid, signal.SIGKILL)
            work.wait()
    assert code == 0, log.read_text()[-6000:]
    records = [json.loads(p.read_text())["record"] for p in tmp_path.glob("stage/items/*.json")]
    assert len(records) == 4
    assert {nodes.name_of(r["node"]) for r in records} == {old, nodes.newest("sim")}
