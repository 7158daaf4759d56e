"""Stage bodies that take no time: deterministic, resumable, and able to kill their own process.

Also drivers: ``python -m tests.fakes STORAGE KILL...`` runs one iteration with these bodies once
per KILL, each time in a new process, and prints the exit codes. KILL is ``LABEL:POINT``, such as
``it_01/generate:within``, where the process kills itself with signal 9, or empty. Each body appends
its label to ``executions.log`` in the run directory when it ends.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import traceback
from dataclasses import replace

from parc_ray.config import ParcConfig
from parc_ray.recipes import get_recipe
from parc_ray.stages.base import StageOutputs, StageRun
from parc_ray.stages.registry import StageSpec, override_stage

OUTPUTS = {
    "augment": "dataset",
    "train-generator": "generator",
    "generate": "motions",
    "train-tracker": "tracker",
    "record": "recorded",
    "merge": "dataset",
    "evaluate": "metrics",
    "report": "report",
}
PARTS = 3
KILL_ENV = "PARC_TEST_KILL"


def body(run: StageRun) -> StageOutputs:
    """Write three parts that depend on seed, config section and inputs; skip those that exist."""
    label = run.ctx.stage_path(run.name)
    _kill(label, "before")
    known = "".join(f"{key}={a.sha256};" for key, a in sorted(run.inputs.items()))
    for index in range(PARTS):
        name = f"out/part-{index}.txt"
        if not run.dir.exists(name):
            text = f"{run.name} {run.seed} {run.section} {known} {index}"
            digest = hashlib.sha256(text.encode()).hexdigest()
            run.dir.write_bytes_atomic(name, digest.encode())
            run.scalars.add("parts", float(index), index)
        if index == 1:
            _kill(label, "within")
    if run.ctx.run.is_local:
        with (run.ctx.run.local_path() / "executions.log").open("a") as file:
            file.write(f"{label}\n")
    return StageOutputs(
        paths={OUTPUTS[run.name]: "out"},
        rows={OUTPUTS[run.name]: PARTS},
        metrics={"parts": float(PARTS), "undefined": float("nan")},
    )


def section(config: ParcConfig, iteration: int) -> object:
    """What decides a fake stage: the iteration's motions."""
    return {"motions": config.row(iteration).motions if iteration else 0}


def install(*names: str) -> None:
    """Put fakes in the place of the named stages, or of all."""
    for name in names or OUTPUTS:
        override_stage(name, StageSpec(section=section, body=body, needs_ray=False))


def fake_config(storage: str, *, iterations: int = 1, **changes: object) -> ParcConfig:
    """The smoke recipe with a tracker correcting D0, in ``storage``."""
    config = get_recipe("smoke").with_iterations(iterations)
    config = replace(config, storage=storage, d0=replace(config.d0, correction="tracker"))
    return replace(config, **changes)


def _kill(label: str, point: str) -> None:
    if os.environ.get(KILL_ENV) == f"{label}:{point}":
        os.kill(os.getpid(), signal.SIGKILL)


def _after_marker(label: str) -> None:
    """Arrange for a kill right after ``_DONE.json`` of a stage was written."""
    from parc_ray.data.storage import Storage

    original = Storage.write_json_atomic

    def wrapped(self: Storage, path: str, value: object) -> None:
        original(self, path, value)
        if path == "_DONE.json" and str(self).endswith(label):
            os.kill(os.getpid(), signal.SIGKILL)

    Storage.write_json_atomic = wrapped  # type: ignore[method-assign]


def _drive(storage: str, kill: str) -> int:
    """Run the loop in a child process; its exit status, negative for a signal."""
    from parc_ray.loop import run

    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        os.environ[KILL_ENV] = kill
        install()
        if kill.endswith(":after"):
            _after_marker(kill.removesuffix(":after"))
        run(fake_config(storage))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    print(json.dumps([_drive(sys.argv[1], kill) for kill in sys.argv[2:]]))
