"""What the server may be made of, and the stand-in against the public stubs."""

from __future__ import annotations

import ast
import os
import re
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.isaacgym_standin import HERE, python38

ROOT = Path(__file__).parents[3]
SERVER = ROOT / "envs" / "sims" / "isaacgym_server"


@pytest.mark.parametrize("path", sorted(SERVER.glob("*.py")), ids=lambda p: p.name)
def test_server_files_are_python_38_and_need_little(path):
    assert _unfit(path.read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "match x:\n    case 1:\n        pass",
        "import scipy.spatial",
        "from envs.sims import base",
        "from ..base import SimConfig",
        "name = text.removeprefix('a')",
        "Rows = list[int]",
        "both = dict() | dict()",
    ],
)
def test_what_the_server_could_not_run_is_found(line):
    assert _unfit("from __future__ import annotations\n" + line)


_NEWER = {"removeprefix", "removesuffix", "bit_count", "is_relative_to", "with_stem", "pairwise"}
_PLAIN = {"list", "dict", "tuple", "set", "type"}


def _unfit(text):
    """What Python 3.8 without the project lacks; f-strings with ``=`` it has."""
    try:
        tree = ast.parse(text, feature_version=(3, 8))
    except SyntaxError as error:
        return [str(error)]
    allowed = set(sys.stdlib_module_names) | {"numpy", "torch", "isaacgym"}
    found = []
    notes = {id(n) for top in ast.walk(tree) for note in _annotations(top) for n in ast.walk(note)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.split(".")[0] not in allowed]
        elif isinstance(node, ast.ImportFrom):
            outside = (node.module or "").split(".")[0] not in allowed
            if node.level > 1 or (node.level == 0 and outside):
                found.append(f"from {'.' * node.level}{node.module}")
        elif isinstance(node, ast.Attribute) and node.attr in _NEWER:
            found.append(node.attr)
        elif id(node) not in notes and _too_new(node):
            found.append(ast.unparse(node))
    return found


def _too_new(node):
    """Builtins with brackets (3.9) and ``|``, which the server's files have no other use for."""
    brackets = isinstance(node, ast.Subscript) and getattr(node.value, "id", "") in _PLAIN
    return brackets or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr))


def _annotations(node):
    """Annotations directly at a node: text only, by the import from ``__future__``."""
    notes = [getattr(node, name, None) for name in ("annotation", "returns")]
    return [note for note in notes if note is not None]


def test_no_requirement_is_called_isaacgym():
    """The name is free on the registry: whoever takes it would run code on every machine."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    wanted = [*project["dependencies"], *(r for extra in extras for r in extra)]
    names = [re.match(r"[A-Za-z0-9._-]+", r)[0].lower().replace("_", "-") for r in wanted]
    assert "isaacgym" not in names
    assert "isaac-gym" not in names


# The stand-in against the public stubs -----------------------------------------------------------


def _classes(path):
    text = path.read_text().replace("def lambda(", "def lambda_(")  # a slip of the stubs
    return {n.name: n for n in ast.parse(text).body if isinstance(n, ast.ClassDef)}


def _stubs():
    for folder in sys.path:
        path = Path(folder) / "isaacgym-stubs" / "gymapi.pyi"
        if path.is_file():
            return _classes(path)
    raise AssertionError("isaacgym-stubs is one of the development requirements")


def test_without_packages_for_python_38_its_tests_are_skipped_soon(monkeypatch, tmp_path):
    base = tmp_path / "python3.8"
    base.write_text("#!/bin/sh\nexec sleep 600\n")
    base.chmod(0o755)
    assert python38._INSTALL_S <= 85.0
    monkeypatch.setattr(python38, "_INSTALL_S", 1.0)
    monkeypatch.setattr(python38, "_CACHE", tmp_path)
    monkeypatch.setattr(python38, "_FAILED", [])
    monkeypatch.setattr(python38, "find_python", lambda: str(base))
    for _ in range(2):
        with pytest.raises(pytest.skip.Exception, match=r"cannot be installed.*timed out"):
            python38.prepared_python()
        monkeypatch.setattr(python38.subprocess, "run", None)  # not tried again
    assert list(tmp_path.iterdir()) == [base]


def test_the_stand_in_has_no_call_that_the_engine_lacks():
    ours = _classes(HERE / "isaacgym" / "gymapi.py")["Gym"]
    theirs = {n.name: n for n in _stubs()["Gym"].body if isinstance(n, ast.FunctionDef)}
    calls = [n for n in ours.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")]
    assert len(calls) > 25
    for call in calls:
        assert call.name in theirs
        if theirs[call.name].args.vararg is None:
            assert len(call.args.args) == len(theirs[call.name].args.args), call.name
            assert len(call.args.defaults) == len(theirs[call.name].args.defaults), call.name


def test_the_stand_in_has_no_field_that_the_engine_lacks():
    found = 0
    stubs = _stubs()
    for name, node in _classes(HERE / "isaacgym" / "_structs.py").items():
        for line in node.body:
            if isinstance(line, ast.Assign) and isinstance(line.value, ast.Dict) and name in stubs:
                fields = {n.target.id for n in stubs[name].body if isinstance(n, ast.AnnAssign)}
                ours = {key.value for key in line.value.keys}
                assert ours <= fields, name
                found += len(ours)
    assert found > 25


def test_everything_the_server_calls_is_in_the_stubs():
    stubs = _stubs()
    gym = {n.name for n in stubs["Gym"].body if isinstance(n, ast.FunctionDef)}
    text = (SERVER / "simulation.py").read_text()
    called = set(re.findall(r"\bgym\.([a-z_]+)\(", text))
    assert len(called) > 20
    assert called <= gym
    assert find_spec("isaacgym") is None, "the tests must not find a real package in this process"


def test_the_stand_in_refuses_what_would_do_harm(tmp_path):
    """Import after torch; wrong types; a second indexed call; late actors; old tensors."""
    import subprocess

    script = tmp_path / "script.py"
    script.write_text(_HABITS)
    path = os.pathsep.join([str(HERE), str(HERE / "no_torch")])
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("all as expected\n")


_HABITS = '''
import sys
sys.modules["torch"] = None
try:
    import isaacgym
except ImportError as error:
    assert "before isaacgym" in str(error)
else:
    raise AssertionError("imported after torch")
del sys.modules["torch"]
from isaacgym import gymapi, gymtorch
import numpy as np
import torch

def refused(kind, call, *args):
    try:
        call(*args)
    except kind:
        return
    raise AssertionError(call)

gym, params = gymapi.acquire_gym(), gymapi.SimParams()
refused(AttributeError, setattr, params, "solver_type", 1)
refused(TypeError, setattr, params.physx, "max_gpu_contact_pairs", 8e6)
params.up_axis, params.gravity = gymapi.UP_AXIS_Z, gymapi.Vec3(0, 0, -10.0)
params.dt, params.substeps = 1.0 / 30, 4
sim = gym.create_sim(0, -1, gymapi.SIM_PHYSX, params)
square = np.float32([[-9, -9, 0], [9, -9, 0], [9, 9, 0], [-9, 9, 0]])
mesh = gymapi.TriangleMeshParams()
mesh.nb_vertices, mesh.nb_triangles = 4, 2
faces = np.uint32([0, 1, 2, 0, 2, 3])
refused(TypeError, gym.add_triangle_mesh, sim, square.reshape(-1), faces.astype(int), mesh)
gym.add_triangle_mesh(sim, square.reshape(-1), faces, mesh)
with open("ball.xml", "w") as file:
    file.write("""<mujoco><worldbody><body name='ball'><freejoint/>
    <geom type='sphere' size='.1' pos='.3 0 0'/><body name='arm'>
    <joint name='hinge' axis='0 1 0' range='-90 90'/><geom type='sphere' size='.1' pos='0 0 .5'/>
    </body></body></worldbody></mujoco>""")
asset = gym.load_asset(sim, ".", "ball.xml", gymapi.AssetOptions())
pose, zero = gymapi.Transform(), gymapi.Vec3()
pose.p = gymapi.Vec3(0, 0, 5.0)
for group in range(2):
    env = gym.create_env(sim, zero, zero, 1)
    gym.create_actor(env, asset, pose, "ball", group, 0, 0)
refused(RuntimeError, gym.acquire_actor_root_state_tensor, sim)
gym.prepare_sim(sim)
refused(RuntimeError, gym.create_actor, env, asset, pose, "late", 9, 0, 0)
root = gymtorch.wrap_tensor(gym.acquire_actor_root_state_tensor(sim))
assert not root.numpy().any(), "old until refreshed"
gym.refresh_actor_root_state_tensor(sim)
assert root.numpy()[0, 2] == 5.0 and root.numpy()[0, 6] == 1.0, "xyzw"
rows, ids = root.numpy().copy(), np.array([1])
rows[:, 2] = 3.0
rows[:, 12] = 2.0  # turns about z; the origin rests where the velocity of the centre says so
rows[:, 8] = 2.0 * gym.get_actor_rigid_body_properties(env, 0)[0].com.x
root.numpy()[:] = rows
given = gymtorch.unwrap_tensor(root)
index = lambda kind: gymtorch.unwrap_tensor(torch.from_numpy(ids.astype(kind)))
refused(TypeError, gym.set_actor_root_state_tensor_indexed, sim, given, index(np.int64), 1)
assert gym.set_actor_root_state_tensor_indexed(sim, given, index(np.int32), 1)
refused(RuntimeError, gym.set_actor_root_state_tensor_indexed, sim, given, index(np.int32), 1)
gym.refresh_actor_root_state_tensor(sim)
assert root.numpy()[1, 2] == 5.0, "old until simulated"
gym.simulate(sim)
gym.refresh_actor_root_state_tensor(sim)
assert root.numpy()[1, 2] == 5.0, "old until fetched"
gym.fetch_results(sim, True)
assert root.numpy()[1, 2] == 5.0, "old until refreshed"
gym.refresh_actor_root_state_tensor(sim)
z = root.numpy()[:, 2]
assert 4.9 < z[0] < 5.0 and 2.9 < z[1] < 3.0, "one row was set"
assert abs(root.numpy()[1, 1]) < 0.01, "velocity of the centre of mass"
bad = torch.from_numpy(np.full(2, np.nan, dtype=np.float32))
refused(FloatingPointError, gym.set_dof_position_target_tensor, sim, gymtorch.unwrap_tensor(bad))
flipped = np.uint32([0, 2, 1, 0, 3, 2])
from isaacgym._model import boxes_of
assert len(boxes_of(square, faces.reshape(-1, 3))) == 1
assert len(boxes_of(square, flipped.reshape(-1, 3))) == 0, "solid from the front alone"
print("all as expected")
'''
