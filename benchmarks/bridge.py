"""What the bridge to Isaac Gym costs beside the engine.

    python benchmarks/bridge.py [--quick] [--envs N] [--python PATH] [--real]

Without ``--real`` the engine is the tests' stand-in, which simulates nothing here: what is left is
what every engine would pay. The overhead of a step is the time of ``step`` less the time that the
server spent in the engine's own calls: writing targets and rows that are reset, telling the server,
its copies to and from the shared memory, and turning its rows into our state. It is told as
processor time of both processes, which work in turn, so that it does not depend on what else the
machine does; and by the clock, which on a busy machine also tells how long each waits for a core.
The handshake is one byte there and one back, by the clock. The last line is JSON.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from benchmarks import _common
from benchmarks._common import Row
from envs.sims.base import SimConfig
from envs.sims.isaacgym import IsaacGymBackend
from envs.sims.terrain_contact import TerrainContact
from parc_ray.character.character import Character, load_character
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.terrain.heightfield import Heightfield
from tests.isaacgym_standin import standin

STEP_MS, HANDSHAKE_US, RESET_SHARE = 2.0, 30.0, 0.01
FLAT = Heightfield.flat((16, 16))


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print the table and a last line of JSON."""
    parser = _common.parser("What the bridge to Isaac Gym costs beside the engine.")
    parser.add_argument("--envs", type=int, default=4096, metavar="N", help="(%(default)s)")
    parser.add_argument("--python", default=sys.executable, help="of the server (%(default)s)")
    parser.add_argument("--real", action="store_true", help="the engine of PARC_ISAACGYM_PYTHON")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    has_torch = options.python == sys.executable
    place = nullcontext() if options.real else standin(options.python, torch=has_torch, idle=True)
    steps = 100 if options.quick else 400
    character = load_character("humanoid")
    with place:
        found = bridge_costs(character, options.envs, steps)
    found["contact_ms"] = contact_cost(character, options.envs, 5 if options.quick else 20)
    engine = "Isaac Gym" if options.real else "an engine that does nothing"
    _common.print_table(f"bridge to {engine}, N = {options.envs}", rows_of(found))
    _common.print_result(found)


def bridge_costs(character: Character, num_envs: int, steps: int) -> dict[str, float]:
    """Overheads in ms and the handshake in microseconds."""
    found: dict[str, float] = {}
    for name, self_collision in (("", False), ("bodies_", True)):
        config = SimConfig(self_collision=self_collision)
        backend = IsaacGymBackend(character, num_envs, config)
        backend.load_terrains([FLAT])
        resets = max(1, round(RESET_SHARE * num_envs))
        for kind, count in (("", 0), ("reset_", resets)):
            processor, clock = overhead_ms(backend, steps, count)
            found[f"overhead_{name}{kind}ms"] = processor
            found[f"overhead_{name}{kind}clock_ms"] = clock
        if not name:
            found["handshake_us"] = handshake_us(backend, 20 * steps)
        backend.close()
    return found


def overhead_ms(backend: IsaacGymBackend, steps: int, resets: int) -> tuple[float, float]:
    """Medians of a step's time less the engine's, ms: processor time, and by the clock.

    ``resets`` environments are set before each step.
    """
    targets = torch.zeros(backend.num_envs, backend.character.skeleton.num_dofs)
    start, ids = backend.state().index(slice(0, resets)), torch.arange(resets)
    arrays = bridge_of(backend).arrays
    server = (~bridge_of(backend).process.pid << 3) | 2  # its processor clock (Linux)
    spent = []
    for _ in range(steps + 5):
        wall, cpu = time.perf_counter(), time.process_time() + time.clock_gettime(server)
        if resets:
            backend.set_state(ids, torch.zeros_like(ids), start)
        backend.step(targets)
        cpu = time.process_time() + time.clock_gettime(server) - cpu
        wall = time.perf_counter() - wall
        engine = arrays["sim_cpu_seconds"][0], arrays["sim_seconds"][0]
        spent.append((cpu - engine[0], wall - engine[1]))
    processor, clock = 1e3 * np.median(spent[5:], axis=0)
    return float(processor), float(clock)


def handshake_us(backend: IsaacGymBackend, count: int) -> float:
    """Median time from a byte sent to a byte received, microseconds."""
    return 1e6 * median_s(bridge_of(backend).ping, count)


def bridge_of(backend: IsaacGymBackend):
    """The backend's bridge."""
    if backend._bridge is None:
        raise RuntimeError("the backend has no server")
    return backend._bridge


def contact_cost(character: Character, num_envs: int, count: int) -> float:
    """Telling the terrain's forces apart while all stand on both feet, ms of processor time."""
    contact = TerrainContact(character, [FLAT], 3.0)
    skeleton, feet = character.skeleton, np.array(character.feet)
    pos = torch.tensor([[0.0, 0.0, character.stand_height]])
    rot, dof = torch.tensor([[0.0, 0.0, 0.0, 1.0]]), torch.zeros(1, skeleton.num_dofs)
    body_pos, body_rot = fk_from_dof(skeleton, pos, rot, dof)
    force = torch.zeros(num_envs, skeleton.num_bodies, 3)
    force[:, list(character.feet), 2] = 250.0
    pose = np.tile(torch.cat((body_pos, body_rot), dim=-1)[0, feet].numpy(), (num_envs, 1))
    env, body = np.repeat(np.arange(num_envs), len(feet)), np.tile(feet, num_envs)
    args = (force, env, body, pose, np.zeros(len(env), dtype=np.intp))
    return 1e3 * median_s(lambda: contact.keep_terrain(*args), count, time.process_time)


def median_s(
    work: Callable[[], object], count: int, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Median seconds of a call."""
    spent = []
    for _ in range(count):
        began = clock()
        work()
        spent.append(clock() - began)
    return float(np.median(spent))


def rows_of(found: dict[str, float]) -> list[Row]:
    """The table."""
    note = f"{RESET_SHARE:.0%} of the environments are reset before each step"
    return [
        Row(name="step", ours=found["overhead_ms"], other=STEP_MS, label="limit", unit="ms"),
        Row(
            name="step, resets",
            ours=found["overhead_reset_ms"],
            other=STEP_MS,
            label="limit",
            unit="ms",
            note=note,
        ),
        Row(
            name="step, self-collision",
            ours=found["overhead_bodies_ms"],
            other=STEP_MS,
            label="limit",
            unit="ms",
            note="bodies that are touched are sent, too; nobody is",
        ),
        Row(
            name="handshake",
            ours=found["handshake_us"],
            other=HANDSHAKE_US,
            label="limit",
            unit="us",
        ),
        Row(
            name="forces of the terrain",
            ours=found["contact_ms"],
            unit="ms",
            note="self-collision: both feet of everybody on the ground; not the bridge's",
        ),
    ]


if __name__ == "__main__":
    main()
