"""The wheel: builds, installs into a clean environment, imports, carries its data."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CHECK = """
import importlib, pkgutil, sys, pathlib
site = pathlib.Path(sys.argv[1]).resolve()
names = []
for top in ("parc_ray", "algorithms", "envs"):
    package = importlib.import_module(top)
    assert pathlib.Path(package.__file__).resolve().is_relative_to(site), package.__file__
    names += [m.name for m in pkgutil.walk_packages(package.__path__, top + ".")]
for name in names:
    importlib.import_module(name)
from parc_ray.character.character import load_character
assert load_character("humanoid").skeleton.num_bodies == 15
from importlib import metadata, resources
assert metadata.version("parc-ray")
assert (resources.files("parc_ray.evaluation") / "templates").is_dir()
print(len(names))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """A wheel built from a copy of the tracked and new sources, so that no build folder is left."""
    target = tmp_path_factory.mktemp("dist")
    source = tmp_path_factory.mktemp("source")
    for name in ("parc_ray", "algorithms", "envs", "pyproject.toml", "README.md", "LICENSE"):
        subprocess.run(["cp", "-r", str(ROOT / name), str(source)], check=True)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(target)]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(target.glob("*.whl"))


@pytest.mark.slow
def test_the_wheel_holds_the_packages_their_data_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {n.split("/")[0] for n in names if ".dist-info" not in n}
    assert tops == {"parc_ray", "algorithms", "envs"}
    for file in ("assets/humanoid.xml", "assets/humanoid.yaml"):
        assert f"parc_ray/character/{file}" in names
    assert any(n.startswith("parc_ray/evaluation/templates/") for n in names)
    assert any(n.endswith("licenses/LICENSE") for n in names)
    on_disk = {str(p.relative_to(ROOT)) for top in tops for p in (ROOT / top).rglob("*.py")}
    assert on_disk <= set(names)


@pytest.mark.slow
def test_the_wheel_installs_and_imports_in_a_clean_environment(wheel, tmp_path):
    """Only this package is installed; its dependencies are seen through a .pth file."""
    home = tmp_path / "env"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--no-deps", "--no-index", str(wheel)]
    done = subprocess.run(install, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = home / "lib" / version / "site-packages"
    (site / "zz_dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    run = [str(python), "-c", CHECK, str(site)]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > 50
    script = subprocess.run([str(home / "bin" / "parc"), "info"], capture_output=True, text=True)
    assert script.returncode == 0, script.stderr
    assert "parc-ray" in script.stdout
