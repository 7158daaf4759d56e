"""The floors of the architecture, read from the imports of every module."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OWN = ("parc_ray", "algorithms", "envs")

# Longest prefix wins. 0 mathematics of motion and terrain; 1 data, synthesis, learners, worlds;
# 2 what binds them and what stages share; 3 the driver and the command line.
FLOORS = {
    "parc_ray": 0,
    "parc_ray.errors": 0,
    "parc_ray.character": 0,
    "parc_ray.motion": 0,
    "parc_ray.terrain": 0,
    "parc_ray.protocols": 0,
    "parc_ray.precision": 0,
    "parc_ray.data": 1,
    "parc_ray.synthesis": 1,
    "envs": 1,
    "algorithms": 1,
    "parc_ray.correction": 2,
    "parc_ray.stages": 2,
    "parc_ray.evaluation": 2,
    "parc_ray.config": 2,
    "parc_ray.config_io": 2,
    "parc_ray.placement": 2,
    "parc_ray.pool_config": 2,
    "parc_ray.scalars": 2,
    "parc_ray.driver_record": 2,
    "parc_ray.console": 2,
    "parc_ray.versions": 2,
    "parc_ray.cluster": 2,
    "parc_ray.demands": 2,
    "parc_ray.runner": 0,
    "parc_ray.deploy": 3,
    "parc_ray.recipes": 3,
    "parc_ray.plan": 3,
    "parc_ray.lock": 3,
    "parc_ray.inputs": 3,
    "parc_ray.faults": 3,
    "parc_ray.hosting": 3,
    "parc_ray.dispatch": 3,
    "parc_ray.loop": 3,
    "parc_ray.run_log": 3,
    "parc_ray.tools": 3,
    "parc_ray.sweep": 3,
    "parc_ray.arguments": 3,
    "parc_ray.commands": 3,
    "parc_ray.cli": 3,
    "parc_ray.viewer": 3,
    "parc_ray.viewer.offscreen": 2,  # the report's film strips
    "run_parc": 3,
}
RUNNER_LIBRARIES = {"numpy", "onnxruntime", "mujoco"}  # and neither torch nor Ray
FLOOR_0_LIBRARIES = {"torch", "numpy", "scipy", "yaml"}  # yaml: the file beside a character's MJCF
SEPARATE = {  # floor 1 packages that are handed to each other, and never import each other
    "envs": ("algorithms", "parc_ray.synthesis"),
    "algorithms": ("envs", "parc_ray.synthesis"),
    "parc_ray.data": ("envs", "algorithms"),
    "parc_ray.synthesis": ("envs", "algorithms"),
}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    paths = [p for package in OWN for p in sorted((ROOT / package).rglob("*.py"))]
    return {module_name(p): p for p in [*paths, ROOT / "run_parc.py"]}


@cache
def imports(path: Path) -> set[str]:
    """Absolute names of all modules a file imports, also inside functions."""
    found: set[str] = set()
    package = (
        module_name(path) if path.name == "__init__.py" else module_name(path).rpartition(".")[0]
    )
    known = modules()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*up, base] if base else up)
            names = {f"{base}.{alias.name}" for alias in node.names}
            found |= {n if n in known else base for n in names}
    return found


def matching(name: str, prefixes: list[str]) -> str | None:
    hits = [p for p in prefixes if name == p or name.startswith(p + ".")]
    return max(hits, key=len) if hits else None


def floor(name: str) -> int:
    prefix = matching(name, list(FLOORS))
    if prefix is None or (prefix == "parc_ray" and name != "parc_ray"):
        raise AssertionError(f"{name} has no floor; give it one in tests/test_floors.py")
    return FLOORS[prefix]


@pytest.mark.parametrize("name", modules())
def test_no_module_imports_from_a_higher_floor(name):
    own = [i for i in imports(modules()[name]) if i.split(".")[0] in OWN]
    higher = [i for i in own if floor(i) > floor(name)]
    assert not higher, f"{name} (floor {floor(name)}) imports {higher}"


@pytest.mark.parametrize("name", [n for n in modules() if floor(n) == 0])
def test_floor_0_uses_torch_numpy_and_scipy_only(name):
    outside = {i.split(".")[0] for i in imports(modules()[name])} - set(OWN)
    allowed = RUNNER_LIBRARIES if matching(name, ["parc_ray.runner"]) else FLOOR_0_LIBRARIES
    assert outside <= allowed | set(sys.stdlib_module_names)


@pytest.mark.parametrize("package", SEPARATE)
def test_floor_1_packages_are_handed_to_each_other(package):
    for name, path in modules().items():
        if matching(name, [package]):
            wrong = [i for i in imports(path) if matching(i, list(SEPARATE[package]))]
            assert not wrong, f"{name} imports {wrong}"


def test_environments_do_not_import_a_simulator_outside_sims():
    for name, path in modules().items():
        if not matching(name, ["envs.sims", "parc_ray.viewer", "parc_ray.runner"]):
            assert "mujoco" not in {i.split(".")[0] for i in imports(path)}, name


def test_the_reader_of_imports_sees_every_form(tmp_path):
    """The test's own eyes: relative, nested and aliased imports."""
    path = ROOT / "parc_ray" / "data" / "_example.py"
    tree = ast.parse("def f():\n    from parc_ray import loop\n    import ray.data as d")
    assert len([n for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom))]) == 2
    assert module_name(path) == "parc_ray.data._example"
    assert "parc_ray.loop" in imports(ROOT / "parc_ray" / "cli.py")
    with pytest.raises(AssertionError, match="has no floor"):
        floor("parc_ray.something_new")
