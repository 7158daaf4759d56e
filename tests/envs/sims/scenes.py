"""One short play that shows what a simulator must be able to do: one scene per environment.

All scenes run side by side in one backend, so that slow engines pay for them once. The character
is ``tests/assets/stool.xml``, of which everything that the tests compare with is known by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from envs.sims.base import ContainedBackend, SimConfig
from parc_ray.character.character import Character, load_character
from parc_ray.protocols import SimState
from parc_ray.terrain.files import TerrainMap, save_map
from parc_ray.terrain.generators import TERRAINS, make_terrain
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.terrain.spec import TerrainSpec
from tests.envs.helpers import stand_state

STOOL = Path(__file__).parents[2] / "assets" / "stool.xml"
FRICTION = 0.5
STEPS = 24
GRAVITY = 9.81
CONFIG = SimConfig(friction=FRICTION, gains="critical")
WALL_X, WALL_HEIGHT, PILLAR_HEIGHT, RAISED = 1.0, 1.5, 0.8, 0.6
SLIDE_SPEED, WALL_SPEED, STEP_RAD = 2.5, 3.0, 0.3
AXLE_INERTIA = 0.05 + 0.4 * (800 * 4 / 3 * math.pi * 0.05**3) * 0.05**2
"""Armature and the wheel's sphere, kg m2: the seat is too heavy to matter (1e-4)."""


@contextmanager
def quick_kernels() -> Iterator[None]:
    """Warp compiles its kernels without optimising, which takes two thirds of the time."""
    import warp

    before = warp.config.optimization_level
    warp.config.optimization_level = 0
    yield
    warp.config.optimization_level = before


@dataclass(frozen=True)
class Case:
    """A backend of the registry and what it promises.

    Attributes:
        name: its name.
        exact: equal starts and targets give equal bits, whatever the other environments do.
        atol: how far states may differ where equality is asked for without that promise.
        prepare: sets up what the backend needs (a server, environment variables) for the tests.
        where: tells two ways of running one backend apart.
    """

    name: str
    exact: bool = True
    atol: float = 0.0
    prepare: Callable[[], AbstractContextManager[object]] = nullcontext
    where: str = ""

    def assert_alike(self, one: SimState, other: SimState) -> None:
        """Equal as far as the backend promises."""
        for name, value in vars(one).items():
            if self.exact:
                assert torch.equal(value, getattr(other, name)), name
            elif name != "contact_force":
                torch.testing.assert_close(value, getattr(other, name), atol=self.atol, rtol=0.0)


@dataclass(frozen=True)
class Scene:
    """What one environment plays: its terrain, where it starts, and its targets."""

    terrain: Heightfield
    height: float = 0.0
    """Of the soles above z = 0 at the start, metres."""
    xy: tuple[float, float] = (0.0, 0.0)
    velocity: tuple[float, float, float] = (0.0, 0.0, 0.0)
    goal: tuple[tuple[str, float], ...] = ()
    """Targets other than 0: name of the degree of freedom, rad."""


def _block(height: float, cells: tuple[slice, slice]) -> Heightfield:
    """Flat ground of 5 m with a block; cell (12, 12) of .2 m is centred on the origin."""
    heights = torch.zeros(25, 25)
    heights[cells] = height
    return Heightfield(heights=heights, origin=torch.tensor([-2.4, -2.4]), cell_size=0.2)


def _families(directory: Path) -> dict[str, Heightfield]:
    """One terrain of every family there is."""
    rng = np.random.default_rng(3)
    plain = TerrainSpec(kind="boxes", cells=(12, 12))
    island = TerrainMap(
        terrain=make_terrain(plain, rng), reachable=np.ones((12, 12), dtype=np.bool_)
    )
    save_map(directory / "map.npz", island)
    out = {}
    for kind in sorted(TERRAINS):
        spec = replace(plain, kind=kind, cells=(8, 8), map_cells=(20, 20))
        spec = replace(spec, file=replace(spec.file, path=str(directory / "map.npz")))
        out[kind] = make_terrain(spec, np.random.default_rng(5))
    return out


def _above(terrain: Heightfield) -> float:
    """Highest ground within half a metre of the origin, metres."""
    reach = torch.linspace(-0.5, 0.5, 11)
    points = torch.stack(torch.meshgrid(reach, reach, indexing="ij"), dim=-1)
    return float(terrain.height_at(points).max())


def make_scenes(directory: Path) -> dict[str, Scene]:
    """All scenes by name; one per terrain family among them, named ``on_<family>``."""
    flat = Heightfield.flat((8, 8))
    # Cells 17 and up begin at 17 * .2 - 2.4 - .1 = .9 m.
    wall = _block(WALL_HEIGHT, (slice(17, None), slice(None)))
    pillar = _block(PILLAR_HEIGHT, (slice(10, 15), slice(10, 15)))
    scenes = {
        "stand": Scene(flat),
        "stand_raised": Scene(Heightfield.flat((8, 8), height=RAISED), height=RAISED),
        "fall": Scene(flat, height=30.0, velocity=(0.5, -0.25, 1.0)),
        "servo": Scene(flat, height=40.0, goal=(("axle", STEP_RAD),)),
        "legs": Scene(flat, height=50.0, goal=(("left_hip_x", -0.6), ("right_hip_x", 0.6))),
        "slide": Scene(flat, velocity=(SLIDE_SPEED, 0.0, 0.0)),
        "wall": Scene(wall, velocity=(WALL_SPEED, 0.0, 0.0)),
        "no_wall": Scene(flat, velocity=(WALL_SPEED, 0.0, 0.0)),
        "pillar": Scene(pillar, height=PILLAR_HEIGHT + 0.3),
        "no_pillar": Scene(flat, height=PILLAR_HEIGHT + 0.3),
    }
    for kind, terrain in _families(directory).items():
        scenes[f"on_{kind}"] = Scene(terrain, height=_above(terrain) + 0.1)
    return scenes


@dataclass
class Stage:
    """A backend with all scenes loaded, and what happened when they were played once."""

    case: Case
    sim: ContainedBackend
    character: Character
    scenes: dict[str, Scene]
    before: SimState
    played: SimState
    """(N, STEPS, ...)."""

    def index(self, name: str) -> int:
        """Environment (and terrain) of a scene."""
        return list(self.scenes).index(name)

    def play(self, name: str) -> SimState:
        """States (STEPS, ...) of a scene."""
        return self.played.index(self.index(name))

    def dof(self, name: str) -> int:
        """Index of a degree of freedom."""
        return self.character.skeleton.dof_names.index(name)

    def restart(self) -> None:
        """Put every environment at the start of its scene."""
        ids = torch.arange(len(self.scenes))
        self.sim.set_state(ids, ids, self.before)

    def targets(self) -> Tensor:
        """(N, D) targets of the scenes."""
        return _targets(self.character, self.scenes)


def _start(character: Character, scenes: Sequence[Scene]) -> SimState:
    state = stand_state(character, len(scenes))
    for row, scene in enumerate(scenes):
        state.root_pos[row, :2] = torch.tensor(scene.xy)
        state.root_pos[row, 2] += scene.height
        state.root_lin_vel[row] = torch.tensor(scene.velocity)
    return state


def _targets(character: Character, scenes: dict[str, Scene]) -> Tensor:
    out = torch.zeros(len(scenes), character.skeleton.num_dofs)
    for row, scene in enumerate(scenes.values()):
        for name, value in scene.goal:
            out[row, character.skeleton.dof_names.index(name)] = value
    return out


def set_stage(
    case: Case,
    make: Callable[..., ContainedBackend],
    directory: Path,
) -> Stage:
    """Open a backend and play all scenes once.

    Args:
        case: the backend.
        make: `envs.sims.registry.make_backend`.
        directory: for the map of family ``file``.
    """
    character = load_character(STOOL)
    scenes = make_scenes(directory)
    terrains = [scene.terrain for scene in scenes.values()]
    sim = make(case.name, character, len(scenes), terrains, CONFIG)
    start = _start(character, list(scenes.values()))
    ids = torch.arange(len(scenes))
    sim.set_state(ids, ids, start)
    plan = _targets(character, scenes)[:, None].expand(-1, STEPS, -1)
    return Stage(case, sim, character, scenes, start, sim.rollout(plan))
