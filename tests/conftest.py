"""Fixtures of all tests: one thread, fixed seeds, the shared data, one Ray for the session."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path

# Before anything imports Ray or starts a thread pool (docs/design/ray.md, Settings).
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")
os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from parc_ray.character.character import Character, load_character

# No test measures wall time: the machine may do other things.
settings.register_profile("parc_ray", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("parc_ray")

ROOT = Path(__file__).resolve().parent.parent
ASSETS = ROOT / "tests" / "assets"


WITH_RAY = (
    "tests/algorithms/diffusion/test_train_ray.py",
    "tests/algorithms/ppo/test_placements.py",
    "tests/algorithms/ppo/test_train.py",
    "tests/data/test_etl.py",
    "tests/envs/sims/test_learning.py",
    "tests/envs/tracking/test_playback.py",
    "tests/integration/",
    "tests/stages/test_chain.py",
    "tests/stages/test_pool.py",
    "tests/stages/test_teacher_stage.py",
    "tests/sweep/test_sweep.py",
    "tests/test_benchmarks.py",
    "tests/test_cluster.py",
    "tests/test_correction_benchmarks.py",
    "tests/test_errors.py",
    "tests/test_lock.py",
    "tests/test_packaging.py",
    "tests/test_placement.py",
    "tests/test_scale_schedule.py",
    "tests/tools/test_info_cluster.py",
)
"""Tests with a Ray. They take turns in one of pytest-xdist's processes."""
WITH_RAY_ALONE = ("tests/test_docs_run.py",)
"""Files with a Ray in one test among many, which stay together."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with a Ray come first, since they take longest and one process takes them all.

    Raises:
        UsageError: a test has a Ray and its file is not listed above.
    """
    items.sort(key=lambda item: not item.nodeid.startswith(WITH_RAY))
    for item in items:
        ray = "ray_session" in getattr(item, "fixturenames", ())
        if ray and not item.nodeid.startswith((*WITH_RAY, *WITH_RAY_ALONE)):
            raise pytest.UsageError(f"{item.nodeid}: add its file to WITH_RAY in {__file__}")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Spread tests by file, those with a Ray as if they were one file."""
    return ByFile(config, log)


class ByFile(LoadScopeScheduling):
    """Files as units of work (marks of pytest-xdist are lost on pytest 9.2)."""

    def _split_scope(self, nodeid: str) -> str:
        return "ray" if nodeid.startswith(WITH_RAY) else nodeid.split("::")[0]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _fixed_seeds() -> None:
    """Every test starts from the same global random state, in whatever order tests run."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  (libraries that use the global generator)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _plain_logging() -> Iterator[None]:
    """`setup_logging` is for the process; what it changed is undone around every test.

    Before it, too: fixtures of a module run whole programs. `caplog` needs the propagation.
    """
    _undo_setup_logging()
    yield
    _undo_setup_logging()


def _undo_setup_logging() -> None:
    for name in ("parc_ray", "algorithms", "envs"):
        log = logging.getLogger(name)
        for handler in list(log.handlers):
            log.removeHandler(handler)
            handler.close()
        log.propagate = True
        log.setLevel(logging.NOTSET)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Directory of the development data; its tests are skipped where it is missing."""
    path = Path(os.environ.get("PARC_SHARED_DATA", ROOT.parent / "shared" / "data"))
    if not (path / "parc_clips").is_dir():
        pytest.skip(f"development data not found at {path}; set PARC_SHARED_DATA")
    return path.resolve()


@pytest.fixture(scope="session")
def humanoid() -> Character:
    """PARC's humanoid."""
    return load_character("humanoid")


@pytest.fixture(params=["humanoid", "waddler"])
def character(request: pytest.FixtureRequest) -> Character:
    """Every property must hold for both characters."""
    name = request.param
    return load_character(name if name == "humanoid" else ASSETS / f"{name}.xml")


@pytest.fixture
def person() -> Character:
    """PARC's humanoid beside a parametrised ``character``."""
    return load_character("humanoid")


@pytest.fixture
def waddler() -> Character:
    """The small second character."""
    return load_character(ASSETS / "waddler.xml")


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """A local Ray with four logical CPUs, shared by all tests that need one."""
    import ray

    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        object_store_memory=256 * 2**20,
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield
    ray.shutdown()
