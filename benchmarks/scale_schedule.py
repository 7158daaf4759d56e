"""The loop on clusters that do not exist: real placement and pools, work that only sleeps.

Ray's cluster tools start nodes that say they have GPUs, and the real driver runs the plan of
``base`` over them with the settings that cluster/README.md gives for 1, 8 and 40 GPUs. Bodies of
stages are put in the place of the real ones: what they ask of Ray, actor by actor and learner by
learner, is what the config says, but an item sleeps for a share of what it costs in
``benchmarks/scale_model.py`` instead of being computed, so that two cores are enough.

What is looked at: every worker is where the config puts it and no GPU is lent out twice; a stage
takes as long as its queue of items and actors says (simulated apart from Ray, from the times at
which the actors stood); overlapping evaluations saves what the plan says; a pool that may grow does
so when a node joins; and nothing waits for ever.
"""

from __future__ import annotations

import heapq
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_enable_worker_prestart", "0")  # a process per fake CPU
os.environ.setdefault("RAY_prestart_worker_first_driver", "0")

import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group, remove_placement_group

from benchmarks import _common, scale_model
from parc_ray import dispatch
from parc_ray.arguments import override
from parc_ray.config import ParcConfig
from parc_ray.data.storage import Storage
from parc_ray.inputs import gather_inputs
from parc_ray.loop import run_stages
from parc_ray.plan import PlannedStage, plan
from parc_ray.recipes import get_recipe
from parc_ray.stages._items import Handover, ItemOutput, Operator, WorkItem
from parc_ray.stages.base import StageContext, StageOutputs, StageResult, StageRun, run_stage
from parc_ray.stages.pool import run_chain
from parc_ray.stages.registry import StageSpec, override_stage
from parc_ray.stages.streams import capacity

NODE_GPUS, NODE_CPUS = 8, 32
SHAPES = {
    1: "",
    8: "--resources.generator_workers 8 --resources.gpus_per_worker 1 --resources.generate_actors 8"
    " --resources.record_actors 8 --tracker.placement colocated --tracker.num_learners 8",
    40: "--resources.generator_workers 16 --resources.gpus_per_worker 1"
    " --resources.generate_actors 40 --resources.record_actors 40"
    " --tracker.placement colocated --tracker.num_learners 40",
}
"""Settings of cluster/README.md by number of GPUs; of 160 recorders on 40 GPUs a quarter."""
PLACES = (
    "--resources.places.record.node sim --resources.places.tracker.node sim "
    "--resources.places.evaluate.gpus 0"
)
APART = "--resources.generate_operators apart --resources.optimize_gpus 0"
ROUNDS = 4
"""Items per actor of a pool."""
GROWTH_ITEM_S = 5.0
"""Long enough for a node and its actors to come before all is done."""
LIMIT_S = 1500.0


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds that things sleep."""

    item: dict[str, float]
    """One item, by operator."""
    training: dict[str, float]
    """All of a training, shared out over its workers."""


def costs(item_s: float) -> Costs:
    """Shares of the model's costs: a roll-out takes ``item_s``, all else in proportion.

    Trainings, of hours in truth, take as long as three roll-outs on one worker.
    """
    units = scale_model.Units()
    rollout = 64 * units.rollout_candidate / units.candidates_kept_share
    scale = item_s / rollout
    record = max(0.3, scale * scale_model.PARC.clip_s * units.mpc_second)
    item = {
        "plan": 0.02,
        "roll-out": item_s,
        "optimise": scale * units.optimise_motion,
        "record": record,
        "evaluate": item_s,
    }
    return Costs(item=item, training={"train-generator": 3 * item_s, "train-tracker": 3 * item_s})


class SleepingStep:
    """An operator that takes its time and says where it was."""

    def __init__(self, seconds: float, last: bool) -> None:
        """The actor stands."""
        self.seconds, self.last, self.ready = seconds, last, time.time()

    def __call__(self, item: WorkItem, data: bytes) -> Handover | ItemOutput:
        """Sleep."""
        began = time.time()
        time.sleep(self.seconds)
        name = item.payload["operators"][len(data)]
        record = {f"{name}/{k}": v for k, v in self._where(began).items()}
        if self.last:
            return ItemOutput(record=record, motions=1)
        return Handover(data=data + b"x", record=record, motions=1)

    def _where(self, began: float) -> dict[str, Any]:
        me = {"ready": self.ready, "began": began, "ended": time.time(), "pid": os.getpid()}
        return {**me, **whereabouts()}


def whereabouts() -> dict[str, Any]:
    """Node and GPUs of this process."""
    context = ray.get_runtime_context()
    return {"node": context.get_node_id(), "gpus": context.get_accelerator_ids().get("GPU", [])}


def sleeping_work(context: StageContext, stage: PlannedStage, connect: Any = None) -> StageResult:
    """Stands for ``parc_ray.dispatch.work``: the same stage, asleep."""
    if connect is not None:
        connect()
    section = {"stage": stage.name, "iteration": stage.iteration}
    return run_stage(context, stage.name, section, gather_inputs(context, stage), _body)


def _body(run: StageRun) -> StageOutputs:
    config: ParcConfig = run.ctx.config
    table = costs(float(os.environ.get("PARC_SCHEDULE_ITEM_S", "1.0")))
    began = time.time()
    if run.name in table.training:
        found = _gang(run.name, config, table.training[run.name])
    elif run.name in ("generate", "record", "evaluate"):
        found = _pools(run, config, table)
    else:
        found = {}
    found |= {"began": began, "ended": time.time()}
    run.dir.write_json_atomic("schedule.json", found)
    outputs = {"train-generator": "generator", "generate": "motions", "train-tracker": "tracker"}
    outputs |= {"record": "recorded", "evaluate": "metrics", "report": "report"}
    return StageOutputs(paths={outputs.get(run.name, "dataset"): "schedule.json"})


def _pools(run: StageRun, config: ParcConfig, table: Costs) -> dict[str, Any]:
    """The stage's items through its pools, as the config sizes and places them."""
    resources = config.resources
    if run.name == "generate":
        chain = resources.generate_pools()
        together = chain.shared(capacity())
        pools = dict(chain.operators)
        size = chain.operators["roll-out"]
    else:
        pool = resources.recording_pool() if run.name == "record" else resources.testing_pool()
        pools, together, size = {run.name: pool}, pool, pool
    names = list(pools)
    operators = [
        Operator(
            name=name,
            make=SleepingStep,
            arguments={"seconds": table.item[name], "last": name == names[-1]},
            pool=pools[name],
        )
        for name in names
    ]
    items = [
        WorkItem(id=f"item-{n:04d}", payload={"operators": names})
        for n in range(ROUNDS * (size.most or size.actors))
    ]
    results = run_chain(
        run.dir, items, operators, run.name, together=together, queued=resources.queued_items
    )
    return {
        "apart": together is None,
        "operators": names,
        "records": [result.record for result in results],
    }


def _gang(name: str, config: ParcConfig, seconds: float) -> dict[str, Any]:
    """The workers of a training at once: what Ray Train and RLlib ask for, asleep."""
    resources, tracker = config.resources, config.tracker
    if name == "train-tracker" and tracker.placement == "local":
        began = time.time()  # the process that runs the stage is the one that learns
        time.sleep(seconds)
        return {"members": [whereabouts()], "asleep": time.time() - began, "expected": seconds}
    if name == "train-generator":
        count, bundle = resources.generator_workers, dict(resources.per_worker())
    else:
        count = max(1, tracker.num_learners)
        bundle = {"CPU": tracker.cpus_per_actor, "GPU": tracker.gpus_per_learner}
        bundle |= resources.places.tracker.custom()
    bundle = {key: value for key, value in bundle.items() if value > 0}
    group = placement_group([bundle] * count, strategy="PACK")
    custom = {key: value for key, value in bundle.items() if key not in ("CPU", "GPU")}
    actor = ray.remote(_Member).options(
        num_cpus=bundle.get("CPU", 0),
        num_gpus=bundle.get("GPU", 0),
        resources=custom,
        placement_group=group,
    )
    members = [actor.remote() for _ in range(count)]
    ready = ray.get([member.stand.remote() for member in members])
    began = time.time()
    ended = ray.get([member.work.remote(seconds / count) for member in members])
    remove_placement_group(group)
    return {"members": ready, "asleep": max(ended) - began, "expected": seconds / count}


class _Member:
    """A worker of a training."""

    def stand(self) -> dict[str, Any]:
        """It is there."""
        return whereabouts()

    def work(self, seconds: float) -> float:
        """Sleep; when it ended."""
        time.sleep(seconds)
        return time.time()


# What ought to come out --------------------------------------------------------------------------


def tandem(ready: Sequence[Sequence[float]], seconds: Sequence[float], items: int) -> float:
    """End of the last item in a line of queues, first come first served.

    Args:
        ready: when the actors of each operator stand, by operator.
        seconds: what an item takes, by operator.
        items: how many there are; all wait at the first operator from the start.
    """
    arrivals = [0.0] * items
    for free_from, cost in zip(ready, seconds, strict=True):
        free = list(free_from)
        heapq.heapify(free)
        ends = []
        for arrival in sorted(arrivals):
            end = max(arrival, heapq.heappop(free)) + cost
            heapq.heappush(free, end)
            ends.append(end)
        arrivals = ends
    return max(arrivals)


@dataclass(frozen=True, kw_only=True)
class StageTimes:
    """One stage against what was foretold."""

    label: str
    actors: int
    measured_s: float
    """From the moment its first actor stood to the end of its last item."""
    foretold_s: float
    """The same by ``tandem``, from when its actors stood."""
    nodes: int


def stage_times(label: str, found: Mapping[str, Any], table: Costs) -> StageTimes:
    """Compare one stage."""
    if "members" in found:
        nodes = {member["node"] for member in found["members"]}
        return StageTimes(
            label=label,
            actors=len(found["members"]),
            measured_s=found["asleep"],
            foretold_s=found["expected"],
            nodes=len(nodes),
        )
    names = found["operators"]
    records = found["records"]
    rows = {
        n: [{k: r[f"{n}/{k}"] for k in ("ready", "pid", "node")} for r in records] for n in names
    }
    stood = {n: {row["pid"]: row["ready"] for row in rows[n]} for n in names}
    ended = max(r[f"{names[-1]}/ended"] for r in records)
    if found["apart"] or len(names) == 1:
        ready = [list(stood[n].values()) for n in names]
        seconds = [table.item[n] for n in names]
        first = min(min(times) for times in ready)
    else:  # one pool does everything
        ready = [list(stood[names[-1]].values())]
        seconds = [sum(table.item[n] for n in names)]
        first = min(ready[0])
    return StageTimes(
        label=label,
        actors=sum(len(times) for times in ready),
        measured_s=ended - first,
        foretold_s=tandem(ready, seconds, len(records)) - first,
        nodes=len({row["node"] for n in names for row in rows[n]}),
    )


def lent_twice(found: Mapping[str, Any]) -> list[str]:
    """GPUs that two processes of a stage had whole at once; shares are not looked at."""
    if "members" not in found:
        return []
    gpus = [(m["node"], gpu) for m in found["members"] for gpu in m["gpus"]]
    return [f"{node}/{gpu}" for node, gpu in set(gpus) if gpus.count((node, gpu)) > 1]


# Clusters ----------------------------------------------------------------------------------------


class FakeCluster:
    """A head without GPUs, and nodes of up to eight."""

    def __init__(self, gpus: int, more: int = 0) -> None:
        """Start it; ``more`` nodes may be added later."""
        self.cluster = Cluster(
            initialize_head=True, head_node_args=self._node(num_cpus=NODE_CPUS // 2)
        )
        self.sims: set[str] = set()
        for first in range(0, gpus, NODE_GPUS):
            self.grow(min(NODE_GPUS, gpus - first))

    @staticmethod
    def _node(**more: Any) -> dict[str, Any]:
        return {"object_store_memory": 80 * 2**20, "include_dashboard": False, **more}

    def grow(self, gpus: int) -> None:
        """Add a node with GPUs and simulators."""
        node = self.cluster.add_node(
            **self._node(num_cpus=NODE_CPUS, num_gpus=gpus, resources={"sim": 1})
        )
        self.sims.add(node.node_id)

    def __enter__(self) -> FakeCluster:
        """Connect this process."""
        ray.init(address=self.cluster.address, logging_level=logging.ERROR, log_to_driver=False)
        return self

    def __exit__(self, *_: object) -> None:
        """End everything."""
        ray.shutdown()
        self.cluster.shutdown()


def config_for(gpus: int, storage: str, name: str, iterations: int, more: str = "") -> ParcConfig:
    """``base`` on so many GPUs."""
    config = get_recipe("base").with_iterations(iterations)
    config = replace(config, storage=storage, name=name, d0=replace(config.d0, correction="none"))
    return override(config, [*SHAPES[gpus].split(), *PLACES.split(), *more.split()])


def run_asleep(config: ParcConfig, *labels: str) -> dict[str, dict[str, Any]]:
    """Run the plan, or those stages of it; what each one noted, by label."""
    stages = [stage for stage in plan(config) if not labels or stage.label in labels]
    run_stages(config, stages)
    home = Storage.from_uri(config.storage).join(config.name)
    return {stage.label: home.read_json(f"{stage.label}/schedule.json") for stage in stages}


def compare(found: Mapping[str, dict[str, Any]], item_s: float) -> list[StageTimes]:
    """Every stage that took time against what was foretold; GPUs that were lent twice end it."""
    table = costs(item_s)
    timed = {k: v for k, v in found.items() if "members" in v or "records" in v}
    for label, stage in timed.items():
        twice = lent_twice(stage)
        if twice:
            raise RuntimeError(f"{label}: two learners had the same GPU ({', '.join(twice)})")
    return [stage_times(label, stage, table) for label, stage in timed.items()]


def overlapped(gpus: int, storage: str) -> tuple[float, float]:
    """Seconds of the first evaluation, and how many of them other stages worked beside it.

    Told from one run: how long processes take to start on this machine, and how much longer when
    two stages start them at once, is nothing of the cluster that is simulated.
    """
    words = "--resources.overlap True"
    found = run_asleep(config_for(gpus, storage, f"overlap-{gpus}", 2, words))
    own = found.pop("it_01/evaluate")
    beside = sum(
        max(0.0, min(own["ended"], other["ended"]) - max(own["began"], other["began"]))
        for other in found.values()
    )
    return own["ended"] - own["began"], beside


def grown(fake: FakeCluster, gpus: int, storage: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Actors that rolled out once a node with as many GPUs again had joined."""
    words = f"{APART} --resources.generate_actors {gpus} --resources.optimize_actors 2 "
    words += f"--resources.gpus_per_worker 1 --resources.places.generate.most {2 * gpus} "
    words += "--resources.places.generator.gpus 0"
    config = config_for(1, storage, "grown", 1, words)
    home = Storage.from_uri(storage).join("grown")

    before = ("it_00/augment", "it_00/merge", "it_01/train-generator")
    with ThreadPoolExecutor(max_workers=1) as beside:  # nodes are added by the main thread only
        running = beside.submit(run_asleep, config, *before, "it_01/generate")
        while not running.done() and not home.list("it_01/generate/items"):
            time.sleep(0.2)
        fake.grow(gpus)
        found = running.result()
    return len({r["roll-out/pid"] for r in found["it_01/generate"]["records"]}), found


def report(title: str, rows: Sequence[StageTimes]) -> None:
    """Print stages against their forecasts."""
    _common.print_table(
        title,
        [
            _common.Row(
                name=row.label,
                ours=row.measured_s,
                other=row.foretold_s,
                label="foretold",
                unit="s",
                note=f"{row.actors} workers on {row.nodes} nodes",
            )
            for row in rows
        ],
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Run the loop on every fake cluster and compare."""
    parser = _common.parser((__doc__ or "").splitlines()[0])
    parser.add_argument("--gpus", type=int, nargs="+", choices=sorted(SHAPES), metavar="N")
    parser.add_argument("--part", choices=["all", "loop", "growth"], default="all")
    parser.add_argument("--item-s", type=float, metavar="S", help="a roll-out's sleep (2; quick 1)")
    options = parser.parse_args(argv)
    sizes = options.gpus or ([1] if options.quick else [1, 8, 40])
    item_s = options.item_s or (1.0 if options.quick else 2.0)
    os.environ["PARC_SCHEDULE_ITEM_S"] = str(item_s)
    dispatch.work = sleeping_work
    for stage in ("augment", "train-tracker"):
        override_stage(stage, StageSpec(section=lambda config, iteration: {}, body=_body))
    signal.alarm(int(LIMIT_S))  # what waits for ever ends here, with a traceback of nothing
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="parc-schedule-") as storage:
        for gpus in sizes if options.part != "growth" else ():
            with FakeCluster(gpus) as fake:
                config = config_for(gpus, storage, f"calm-{gpus}", 1)
                found = run_asleep(config)
                rows = compare(found, item_s)
                report(f"{gpus} GPUs on {len(fake.sims)} nodes, one stage after the other", rows)
                require_places(found, fake)
                late = [r.measured_s / r.foretold_s for r in rows]
                figures[f"late_{gpus}"] = max(late)
                if gpus < 40:
                    whole, beside = overlapped(gpus, storage)
                    figures[f"overlapped_share_{gpus}"] = beside / whole
                    print(f"overlap: {beside:.1f} of an evaluation's {whole:.1f} s beside others")
        if options.part != "loop":
            item_s = max(item_s, GROWTH_ITEM_S)
            os.environ["PARC_SCHEDULE_ITEM_S"] = str(item_s)
            with FakeCluster(2) as fake:
                actors, found = grown(fake, 2, storage)
                report("A pool of 2 to 4 actors, a node joins", compare(found, item_s))
                figures["grown_to"] = actors
    _common.print_result(figures)


def require_places(found: Mapping[str, dict[str, Any]], fake: FakeCluster) -> None:
    """End with an error where a worker of a stage that belongs to ``sim`` was elsewhere."""
    for label, stage in found.items():
        if label.endswith(("/record", "/train-tracker")):
            nodes = [m["node"] for m in stage.get("members", [])]
            nodes += [r["record/node"] for r in stage.get("records", [])]
            if not set(nodes) <= fake.sims:
                raise RuntimeError(f"{label}: worked outside the nodes that offer sim")


if __name__ == "__main__":
    main()
