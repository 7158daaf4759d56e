"""Every code block of the documentation has a rule, and those that can be run are run.

Commands run in this process, page by page, in the order of the page, in a directory that has what
the pages speak of: motions, a data set, maps, and a finished run whose models learnt nothing.
Trainings are those of the stand-ins of ``tests.fakes``: driver, settings, inputs, markers and locks
are the real ones. tests/integration/test_smoke.py runs ``--recipe smoke`` with its real stages.
"""

from __future__ import annotations

import builtins
import json
import re
import shlex
import shutil
import threading
import tomllib
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trimesh
import yaml
from PIL import Image

from envs.sims.registry import BACKENDS
from parc_ray import cli, cluster, loop
from parc_ray.arguments import parse_run
from parc_ray.character.character import Character, load_character
from parc_ray.config import ResourcesConfig
from parc_ray.data.importers import import_path
from parc_ray.data.retarget.joint_map import parse_joint_map
from parc_ray.data.store import load_dataset, save_dataset
from parc_ray.plan import plan
from parc_ray.runner.__main__ import main as runner
from parc_ray.stages import _operators
from parc_ray.stages._rollouts import load_generator_bytes
from parc_ray.stages.pool import PoolConfig
from parc_ray.stages.registry import clear_overrides, stage_names
from parc_ray.terrain.files import TerrainMap, save_map
from parc_ray.terrain.generators import TERRAINS
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.tools import demo, export, view
from tests.data import files
from tests.data.test_elevation import write_tiff
from tests.documented import ROOT, RULES, Unit, rule_of, units
from tests.envs.helpers import WADDLER, sway_clip
from tests.evaluation.runs import make_run, tiny_config, write_generator
from tests.evaluation.test_sim_to_sim import OnIce
from tests.fakes import install
from tests.synthesis.helpers import Glider
from tests.viewer.helpers import generated, recorded

UNITS = units()
RUN = [unit for unit in UNITS if (rule := rule_of(unit)) is not None and rule.how == "run"]
SHELL = [unit for unit in RUN if unit.kind in ("", "bash")]
PAGES = list(dict.fromkeys(unit.page for unit in SHELL))
REPLACED = {
    "it01_t00003_c002": "sway",
    "--backend mujoco_warp": f"--backend {OnIce.name}",
    "--data sample": "--data my_motions",
}
"""An id that the tiny run has, a simulator without a compiler, motions without the network."""
SHORTER = {
    "demo": ["--seconds", "2", "--segment", "1", "--candidates", "2", "--iterations", "1"],
    "distill": ["--updates", "2", "--batch-size", "4"],
    "evaluate": ["--protocol", "run", "--random-starts", "2"],
    "generate": ["--motions", "1", "--synthesis.optimizer.iterations", "2"],
    "optimize": ["--iterations", "2"],
    "record": ["--clips", "1", "--starts", "2"],
    "render": ["--seconds", "0.1", "--size", "96", "64", "--renderer", "software"],
    "sweep": ["--dry-run"],
    "view": ["--port", "0"],
}
"""Added to a command's words, so that it ends within seconds."""


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.where)
def test_every_block_has_a_rule(unit: Unit):
    rule = rule_of(unit)
    assert rule is not None, (
        f"{unit.where}: {unit.text.splitlines()[0]!r}: no rule of tests/documented.py covers it; "
        "let test_docs_run.py run it, or say which test does, or why it is parsed only"
    )
    assert bool(rule.why) == (rule.how == "")
    if rule.how not in ("", "run"):
        assert (ROOT / rule.how).is_file()


def test_every_rule_is_used():
    unused = set(RULES) - {rule_of(unit) for unit in UNITS}
    assert not unused


def test_pages_show_no_other_kinds_of_blocks():
    assert {unit.kind for unit in UNITS} <= {"", "bash", "python", "yaml"}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, humanoid: Character) -> Path:
    """What the pages speak of."""
    home = tmp_path_factory.mktemp("docs") / "home"
    (home / "my_motions").mkdir(parents=True)
    files.mimickit(home / "my_motions" / "walk.pkl", humanoid)
    (walk,) = import_path(home / "my_motions", humanoid)
    own = generated(humanoid, "walk")
    sets = {"data/mine": walk, "data/mine_fitted": walk, "data/raw": own, "data/fitted": own}
    sets |= {"data/recorded": recorded(humanoid, own), "runs/my_data": walk, "runs/sample": walk}
    sets |= {"viewer/queue": own, "viewer/clips": own}
    for place, clip in sets.items():
        save_dataset(home / place, Path(place).name, [clip], humanoid.digest)
    record = {"source_id": "sway", "clip_id": "sway", "corrector": "tracker", "seconds": 1.0}
    record |= {"whole": True, "start_frame": 0, "end_frame": 30, "attempts": [], "failures": []}
    for name in ("quick", "paper"):
        run = make_run(tiny_config(home / "runs", 2, name))
        (run / "it_01/record/records.json").write_text(json.dumps([record]))
    write_generator(home / "generator.pt", humanoid, 0)
    export.run([str(home / "runs/quick"), "--out", str(home / "quick.zip")])
    (home / "tune_configs").symlink_to(ROOT / "tune_configs")
    (home / "docs/images/terrains").mkdir(parents=True)
    _maps(home)
    return home


def _maps(home: Path) -> None:
    """Maps and scans: nearly level ground of some metres."""
    ground = Heightfield(heights=torch.zeros(60, 60), origin=torch.tensor([-12.0, -12.0]))
    save_map(home / "scan.npz", TerrainMap(terrain=ground, reachable=np.ones((60, 60), bool)))
    box = trimesh.creation.box(extents=(8.0, 6.0, 0.4))
    box.export(home / "scan.ply")
    metres_z_up = np.array([[1, 0, 0, 0], [0, 0, 1, 0], [0, -1, 0, 0], [0, 0, 0, 1]], float)
    box.apply_transform(metres_z_up).apply_scale(1000.0)
    box.export(home / "yard.obj")
    rows = np.add.outer(np.arange(40), np.arange(40)).astype(np.uint16)
    Image.fromarray(rows).save(home / "crater.png")
    write_tiff(home / "hill.tif", 0.01 * rows.astype(np.float32), scale=(0.5, 0.5, 0.0))


@pytest.fixture
def home(template: Path, tmp_path: Path, monkeypatch, humanoid) -> Path:
    """A copy of its own, as the working directory; nobody waits, nothing long is started."""
    shutil.copytree(template, tmp_path / "home", symlinks=True)
    monkeypatch.chdir(tmp_path / "home")
    monkeypatch.setenv("PARC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cluster, "connect", lambda resources: None)
    monkeypatch.setattr(cluster, "require_gpus", lambda demands: None)  # of recipe base
    monkeypatch.setattr(cluster, "driver_has", lambda wanted: True)
    inline = PoolConfig(actors=0, threads=1)
    monkeypatch.setattr(ResourcesConfig, "pool", lambda self, actors, **options: inline)
    monkeypatch.setitem(BACKENDS, OnIce.name, OnIce)
    glider = types.SimpleNamespace(load=lambda *a, **k: Glider(humanoid, speed=3.0))
    monkeypatch.setattr(demo, "DiffusionGenerator", glider)
    monkeypatch.setattr(_operators, "load_generator_bytes", _gliding)
    monkeypatch.setattr(view, "threading", types.SimpleNamespace(Event=_Interrupted))
    return tmp_path / "home"


def _gliding(content: bytes, character: Character, *more: Any) -> tuple[Glider, str]:
    """The generator's file is read, but what it makes of noise would not be kept."""
    _, digest = load_generator_bytes(content, character, *more)
    return Glider(character, speed=3.0), digest


class _Interrupted:
    """Ctrl-C, as soon as the page is served."""

    def wait(self) -> None:
        assert any(thread.is_alive() for thread in threading.enumerate())
        raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_commands_run_in_the_order_of_the_page(page: str, home: Path, capsys):
    if any(unit.text.startswith("parc view") for unit in SHELL if unit.page == page):
        pytest.importorskip("viser", reason="extra 'view' is not installed")
    for unit in (u for u in SHELL if u.page == page):
        text = unit.text
        for ours, theirs in REPLACED.items():
            text = text.replace(ours, theirs)
        code = _execute(shlex.split(text))
        told = capsys.readouterr()
        assert code == 0, f"{unit.where}: {unit.text}\nended with {code}: {told.err[-2000:]}"


def _execute(words: list[str]) -> int:
    """A command in this process; its exit code."""
    if words[:3] == ["python", "-m", "parc_ray.runner"]:
        return runner(words[3:])
    name, *rest = words[1:] if words[0] == "parc" else ["run", *words[2:]]
    if name == "run" or (name in stage_names() and _is_stage(name, rest)):
        return _train(name, rest)
    _make_way(rest)
    return _main([name, *rest, *_shorter(name, rest)])


def _is_stage(name: str, rest: list[str]) -> bool:
    return rest[0].startswith("--") and not {"--from", "--dry-run"} & set(rest)


def _shorter(name: str, rest: list[str]) -> list[str]:
    if name == "import":  # of motions that learnt nothing some fail their checks
        return ["--skip-bad"] if rest[0].startswith("runs/quick") else []
    if name == "render" and "png" in rest:
        return SHORTER[name][2:]
    return SHORTER.get(name, [])


def _train(name: str, rest: list[str]) -> int:
    """The loop, or a stage after those that come before it, with stand-ins for the stages."""
    storage = "loops" if "--storage" not in rest else rest.pop(rest.index("--storage") + 1)
    rest = [word.replace("runs/mine/", "loops/mine/") for word in rest if word != "--storage"]
    if "--help-config" in rest:
        return _main([name, *rest])
    if "--config" not in rest:
        rest += ["--storage", "loops" if storage == "runs" else storage]
        rest += [] if "--data" in rest else ["--data", "my_motions"]
    install()
    try:
        if name != "run":
            config, options = parse_run("parc", rest, stage=True)
            stages = plan(config)
            fits = [s.name == name and options.iteration in (None, s.iteration) for s in stages]
            loop.run_stages(config, stages[: fits.index(True)])
        return _main([name, *rest])
    finally:
        clear_overrides()


def _make_way(rest: list[str]) -> None:
    """What an earlier example of the page wrote to the same place is put aside."""
    if "--out" in rest:
        out = Path(rest[rest.index("--out") + 1])
        if out.exists() and "viewer" not in rest:
            out.rename(out.with_name(f"{out.name}_before_{len(list(out.parent.iterdir()))}"))


def _main(words: list[str]) -> int:
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    return int(caught.value.code or 0)


def _python(start: str) -> Unit:
    (found,) = [u for u in RUN if u.kind == "python" and start in u.text]
    return found


def _exec(unit: Unit, said: list[str] | None = None) -> dict[str, object]:
    """A Python block as a program of its own."""

    def tell(*values: object, **_: object) -> None:
        if said is not None:
            said.append(" ".join(map(str, values)))

    space: dict[str, object] = {"__builtins__": {**vars(builtins), "print": tell}}
    exec(compile(unit.text, unit.where, "exec"), space)
    return space


@pytest.mark.slow
def test_python_blocks_run(home: Path, humanoid: Character, monkeypatch):
    said: list[str] = []
    _exec(_python("manifest, clips = load_dataset"), said)
    assert said[-1].split()[1] == "2"
    _exec(_python("pandas"), said)
    assert "walk" in said[-1]
    export.run(["data/mine", "--format", "npz", "--out", "clips"])
    _exec(_python("parc_ray.runner"), said)
    assert re.fullmatch(r"(True|False) \d+ .*", said[-1])
    ramp = _exec(_python("def ramp_terrain"))["ramp_terrain"]
    assert isinstance(ramp, Callable)
    monkeypatch.setitem(TERRAINS, "ramp", ramp)
    assert _main(["terrain", "ramp", "--picture", "ramp.png"]) == 0
    assert Path("ramp.png").stat().st_size > 1000


@pytest.mark.slow
def test_the_block_on_large_data_sets_runs(home: Path, humanoid: Character, ray_session):
    said: list[str] = []
    _exec(_python("read_dataset"), said)
    assert said[-1].startswith("1 clips")
    manifest, _ = load_dataset("runs/mirrored")
    assert manifest.rows == 1


def test_all_python_blocks_are_among_these():
    assert len([u for u in UNITS if u.kind == "python"]) == 5


def test_yaml_blocks_are_read_by_their_readers(tmp_path):
    blocks = {u.page: u.text for u in UNITS if u.kind == "yaml"}
    assert set(blocks) == {"docs/characters.md", "docs/data.md"}
    made = parse_joint_map(blocks["docs/data.md"], "joint_map.yaml")
    assert made.name == "mine"
    whole = yaml.safe_load(Path(WADDLER).with_suffix(".yaml").read_text())
    for key, value in yaml.safe_load(blocks["docs/characters.md"]).items():
        if isinstance(value, dict):
            assert set(value) <= set(whole[key])
            whole[key] |= value
        else:
            whole[key] = value
    shutil.copy(WADDLER, tmp_path / "waddler.xml")
    (tmp_path / "waddler.yaml").write_text(yaml.safe_dump(whole))
    assert load_character(tmp_path / "waddler.xml").name == "waddler"


def test_the_table_that_is_shown_has_the_columns_of_ours(tmp_path, humanoid):
    (shown,) = [u.text for u in UNITS if u.text.startswith("# fps")]
    save_dataset(tmp_path / "set", "set", [sway_clip(humanoid, 4, "walk")], humanoid.digest)
    export.run([str(tmp_path / "set"), "--format", "csv", "--out", str(tmp_path / "out")])
    lines = (tmp_path / "out/walk.csv").read_text().splitlines()
    head = next(line for line in lines if not line.startswith("#")).split(",")
    names = shown.splitlines()[1].split(",")
    assert set(names) - {"..."} <= set(head)
    assert names[: names.index("...")] == head[: names.index("...")]


def test_words_that_need_a_cluster_are_parsed():
    drivers = 0
    for unit in UNITS:
        found = re.search(r"(?:run_parc\.py|slurm\.sh) (.*)$", unit.text, re.MULTILINE)
        rule = rule_of(unit)
        if found and rule is not None and "cluster" in rule.why:
            words = shlex.split(found[1])
            if "--" in words:
                words = words[words.index("--") + 1 :]
            parse_run("run_parc.py", words)
            drivers += 1
        for name in re.findall(r"\bcluster/[\w./]+|(?<= )cluster\.yaml", unit.text):
            assert (ROOT / "cluster" / name.removeprefix("cluster/")).exists(), unit.where
    assert drivers >= 5


def test_what_is_installed_and_looked_up_is_there():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for unit in UNITS:
        for name in re.findall(r"pip install .*'(?:\.|parc-ray)\[(\w+)\]'", unit.text):
            assert name in project["optional-dependencies"], unit.where
        for path in re.findall(r"\b(?:tests|benchmarks)/[\w/]+\.py", unit.text):
            assert (ROOT / path).is_file(), unit.where
        if found := re.search(r"python (benchmarks/\w+\.py) (.*)", unit.text):
            sources = [ROOT / found[1], *(ROOT / "benchmarks").glob("_*.py")]
            stem = (ROOT / found[1]).stem
            sources += (ROOT / "benchmarks").glob(f"{stem}_*.py")
            text = "".join(path.read_text() for path in sources)
            for option in re.findall(r"--[a-z-]+", found[2]):
                assert f'"{option}"' in text, (unit.where, option)
