"""Rules of style that a linter does not know."""

from __future__ import annotations

import ast
import re
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(
    [p for d in ("parc_ray", "algorithms", "envs") for p in (ROOT / d).rglob("*.py")]
    + [ROOT / "run_parc.py"]
)
IDS = [str(p.relative_to(ROOT)) for p in SOURCES]
HUMANOID_SIZES = {15, 28, 91, 304, 1312}
"""Bodies, dofs, features, surface points and observations of PARC's humanoid."""
SIZES_ALLOWED = {  # numbers that only look like sizes of the humanoid
    "parc_ray/recipes.py": HUMANOID_SIZES,
    "algorithms/diffusion/profiles.py": {15, 28},
    "algorithms/diffusion/config.py": {15},  # frames of a window; weight of a loss
    "algorithms/mpc/config.py": {15},  # control steps of look-ahead
    "parc_ray/terrain/local_grid.py": {15},  # grid points to each side
}


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = ast.parse(path.read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [n for n in ast.walk(tree) if isinstance(n, kinds)]


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


@pytest.mark.parametrize("path", SOURCES, ids=IDS)
def test_modules_and_functions_stay_short(path):
    assert len(path.read_text().splitlines()) <= 500
    long = [(f.name, length(f)) for f in functions(path) if length(f) > 80]
    assert not long


def test_most_modules_and_functions_are_much_shorter():
    assert statistics.median(len(p.read_text().splitlines()) for p in SOURCES) <= 150
    lengths = [length(f) for p in SOURCES for f in functions(p)]
    assert statistics.quantiles(lengths, n=10)[-1] <= 40


@pytest.mark.parametrize("path", SOURCES, ids=IDS)
def test_nothing_unpickles_freely(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        assert name not in {"pickle.load", "pickle.loads", "cloudpickle.loads", "cloudpickle.load"}
        if name == "torch.load":
            given = {k.arg: ast.unparse(k.value) for k in node.keywords}
            assert given.get("weights_only") == "True"
        if name in {"np.load", "numpy.load"}:
            assert all(k.arg != "allow_pickle" for k in node.keywords)


@pytest.mark.parametrize("path", SOURCES, ids=IDS)
def test_sizes_of_the_humanoid_are_derived(path):
    allowed = SIZES_ALLOWED.get(str(path.relative_to(ROOT)), set())
    found = [
        (node.value, node.lineno)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
        and type(node.value) is int
        and node.value in HUMANOID_SIZES - allowed
    ]
    assert not found


@pytest.mark.parametrize("path", SOURCES, ids=IDS)
def test_no_unfinished_or_printing_code(path):
    text = path.read_text()
    assert not re.search(r"\b(TODO|FIXME|XXX)\b", text)
    assert "NotImplementedError" not in text
    if path.name not in {"cli.py", "arguments.py"} and path.parent.name != "tools":
        calls = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call)]
        assert "print" not in {ast.unparse(c.func) for c in calls}
    definitions = (ast.FunctionDef, ast.ClassDef, ast.AnnAssign)
    if any(isinstance(n, definitions) for n in ast.parse(text).body):
        assert "from __future__ import annotations" in text


@pytest.mark.parametrize("path", SOURCES, ids=IDS)
def test_everything_is_annotated(path):
    for node in functions(path):
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        bare = [a.arg for a in arguments if a.annotation is None and a.arg not in ("self", "cls")]
        assert not bare, f"{node.name}: {bare}"
        assert node.returns is not None, node.name


def test_test_directories_are_packages():
    """Two test files of one name in different directories need it."""
    for path in (ROOT / "tests").rglob("test_*.py"):
        assert (path.parent / "__init__.py").exists(), path.parent
