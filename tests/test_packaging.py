"""The wheel: builds, installs into a clean environment, imports, carries its data."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
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
    if name == "envs.sims.isaacgym_server.simulation":  # for Isaac Gym's own Python
        continue
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
    _submitted(python, tmp_path)


def _hears_interrupts() -> None:
    """A shell that starts tests in the background has them ignore SIGINT, and so their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _submitted(python: Path, tmp_path: Path) -> None:
    """``ray submit`` copies the one file and runs it elsewhere; its actors import the wheel."""
    elsewhere = tmp_path / "home"
    elsewhere.mkdir()
    shutil.copy(ROOT / "run_parc.py", elsewhere)
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "RAY_ADDRESS")}
    log = tmp_path / "driver.log"  # no pipe: what Ray started would hold it open
    with log.open("w") as stderr:
        driver = subprocess.Popen(
            [str(python), "run_parc.py", "--recipe", "smoke", "--resources.address", "local"],
            cwd=elsewhere,
            env=env | {"PARC_STORAGE": str(tmp_path / "shared")},
            stderr=stderr,
            preexec_fn=_hears_interrupts,
        )
    done = tmp_path / "shared/smoke/it_00/augment/_DONE.json"
    try:
        limit = time.monotonic() + 300.0
        while not done.exists() and driver.poll() is None and time.monotonic() < limit:
            time.sleep(0.2)
        driver.send_signal(signal.SIGINT)
        driver.wait(timeout=200.0)
    finally:
        driver.kill()
    said = log.read_text()
    assert done.exists(), said
    assert "the same command continues" in said
    assert driver.returncode == 1
    assert [p.name for p in elsewhere.iterdir()] == ["run_parc.py"]
