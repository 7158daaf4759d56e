"""``parc export RUN`` and ``parc generate --from``: what is in a bundle and what it is good for."""

from __future__ import annotations

import json
import sys
import zipfile
from dataclasses import replace

import mujoco
import numpy as np
import pytest
import torch

pytest.importorskip("onnx", reason="bundles are written by onnx: pip install '.[export]'")
pytest.importorskip("onnxscript", reason="bundles are written by it: pip install '.[export]'")
pytest.importorskip("onnxruntime", reason="networks run by it: pip install '.[export]'")

import onnxruntime

from algorithms.ppo.policy import MlpPolicy
from envs.sims.base import SimConfig
from envs.sims.mujoco_model import ModelBuilder
from envs.sims.portable import portable_model
from parc_ray.config import ParcConfig
from parc_ray.config_io import from_yaml, to_yaml
from parc_ray.data.store import load_dataset
from parc_ray.deploy.bundle import write_bundle
from parc_ray.errors import InputError
from parc_ray.recipes import get_recipe
from parc_ray.stages.base import StageOutputs
from parc_ray.tools import export, generate_from
from tests.deploy.bundles import make_policy, save_random_generator
from tests.stages.helpers import run_body


def fake_run(folder, character, *, generator=True):
    """A run directory with finished trainings: one tracker in iteration 1, another in 2."""
    config = replace(get_recipe("smoke").with_iterations(2), storage=str(folder), name="run")
    config = replace(
        config, iterations=(config.iterations[0], replace(config.iterations[1], s=0.9))
    )
    root = folder / "run"
    root.mkdir()
    (root / "config.yaml").write_text(to_yaml(config))
    for iteration in (1, 2):
        policy, _ = make_policy(character, config.tracking, seed=iteration, gain=0.05)

        def train_tracker(run, policy=policy):
            policy.save(run.dir.local_path() / "policy.pt")
            return StageOutputs(paths={"tracker": "policy.pt"})

        run_body(root, "train-tracker", train_tracker, {}, config, iteration)

    def train_generator(run):
        path = run.dir.local_path() / "generator.pt"
        save_random_generator(path, character, config.generator)
        return StageOutputs(paths={"generator": "generator.pt"})

    if generator:
        run_body(root, "train-generator", train_generator, {}, config, 1)
    return root


@pytest.fixture(scope="module")
def bundle(tmp_path_factory, humanoid):
    """A zip of a whole run."""
    folder = tmp_path_factory.mktemp("bundle")
    fake_run(folder, humanoid)
    export.run([str(folder / "run"), "--out", str(folder / "run.zip")])
    return folder / "run.zip"


def test_it_holds_the_models_trained_last(bundle, humanoid):
    with zipfile.ZipFile(bundle) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    sheet = json.loads(files["bundle.json"])
    assert sheet["models"] == {
        "tracker": "it_02/train-tracker",
        "generator": "it_01/train-generator",
    }
    assert sheet["iterations"] == {"tracker": 2, "generator": 1}
    assert sheet["character"]["digest"] == humanoid.digest
    assert set(sheet["files"]) == set(files) - {"bundle.json"}
    policy = MlpPolicy.load(bundle.parent / "run/it_02/train-tracker/policy.pt")
    observation = torch.randn(4, policy.spec.actor_dim)
    (found,) = onnxruntime.InferenceSession(files["tracker.onnx"]).run(
        None, {"observation": observation.numpy()}
    )
    np.testing.assert_allclose(found, policy.act(observation).numpy(), atol=1e-5)
    assert b"generator.pt" in files["README.md"]


def test_what_cannot_be_exported_is_one_line(bundle, tmp_path, humanoid):
    root = str(bundle.parent / "run")
    with pytest.raises(InputError, match="never written over"):
        export.run([root, "--out", str(bundle)])
    with pytest.raises(InputError, match="--format: does not apply to a run"):
        export.run([root, "--format", "bvh", "--out", str(tmp_path / "x")])
    with pytest.raises(InputError, match="neither a generator nor a tracker"):
        export.run([root, "--iteration", "0", "--out", str(tmp_path / "x")])
    for uri in ("s3://bucket/run.zip", "gs://bucket/run"):
        with pytest.raises(InputError, match=f"--out: {uri}; a local directory or .zip"):
            export.run([root, "--out", uri])
    with pytest.raises(InputError, match="--character: does not apply to a run"):
        export.run([root, "--character", "humanoid", "--out", str(tmp_path / "x")])
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["onnx", "onnxscript"])
def test_without_the_exporter_no_model_is_loaded(bundle, tmp_path, monkeypatch, name):
    def load(*_):
        raise AssertionError("a model was loaded")

    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(MlpPolicy, "load", load)
    root = str(bundle.parent / "run")
    with pytest.raises(InputError, match=r"parc export RUN: .*parc-ray\[export\]"):
        export.run([root, "--out", str(tmp_path / "x")])


def test_the_portable_model_is_the_simulated_one(character):
    """Masses, servos, dampings and sensors survive the text."""
    config = SimConfig()
    xml, contact = portable_model(character, config)
    found = mujoco.MjModel.from_xml_string(xml)
    builder = ModelBuilder(character, config, 1)
    wanted = builder.build(np.array([[0, 0, -1, 5, 5, 1]], dtype=np.float32))
    for name in ("body_mass", "body_inertia", "dof_armature", "actuator_gainprm", "jnt_range"):
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), rtol=1e-5)
    for name in ("actuator_biasprm", "actuator_forcerange", "actuator_gear", "sensor_type"):
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), rtol=1e-5)
    assert found.opt.timestep == pytest.approx(wanted.opt.timestep, rel=1e-5)  # the runner sets it
    for name in ("iterations", "ls_iterations", "integrator", "solver", "cone"):
        assert getattr(found.opt, name) == getattr(wanted.opt, name)
    box = wanted.geom("terrain_0").id
    assert contact["contype"] == wanted.geom_contype[box]
    assert contact["conaffinity"] == wanted.geom_conaffinity[box]
    np.testing.assert_allclose(contact["friction"], wanted.geom_friction[box])
    np.testing.assert_allclose(contact["solref"], wanted.geom_solref[box])
    np.testing.assert_allclose(contact["solimp"], wanted.geom_solimp[box])


QUICK = ("--motions", "1", "--candidates", "2", "--synthesis.optimizer.iterations", "3")


def test_motions_come_from_a_bundle_and_are_repeatable(bundle, tmp_path, humanoid, capsys):
    for name in ("a", "b"):
        generate_from.run(["--from", str(bundle), "--out", str(tmp_path / name), *QUICK])
    assert "1 clips" in capsys.readouterr().out
    (_, one), (_, two) = (load_dataset(tmp_path / name) for name in ("a", "b"))
    assert one[0].clip_id == two[0].clip_id
    assert torch.equal(one[0].frames.dof, two[0].frames.dof)
    assert one[0].provenance.maker == "generate"
    manifest, _ = load_dataset(tmp_path / "a")
    assert manifest.character_digest == humanoid.digest


@pytest.fixture
def planned(monkeypatch):
    """The row with which terrains would be planned; nothing is generated."""
    rows = []

    class Planned(Exception):  # noqa: N818
        """Enough."""

    def plan(row, synthesis, seed):
        rows.append((row, synthesis))
        raise Planned

    def ask(*words):
        with pytest.raises(Planned):
            generate_from.run(list(words))
        return rows[-1]

    monkeypatch.setattr(generate_from, "PlanStep", plan)
    return ask


def test_settings_are_those_of_the_iteration_that_trained_it(bundle, tmp_path, planned):
    """The generator is of iteration 1 of 2; the config's rows differ."""
    words = ("--from", str(bundle), "--out", str(tmp_path / "x"))
    config = from_yaml(ParcConfig, zipfile.ZipFile(bundle).read("config.yaml").decode(), "x")
    assert len(config.iterations) == 2
    assert config.iterations[0].s != config.iterations[1].s
    assert planned(*words)[0].s == config.iterations[0].s
    row, _ = planned(*words, "--iterations.0.terrain.kind", "stairs")
    assert row.terrain.kind == "stairs"
    _, synthesis = planned(*words, "--synthesis.optimizer.iterations", "7")
    assert synthesis.optimizer.iterations == 7


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--iterations.1.terrain.kind", "stairs"],
            r"--iterations\.1\.terrain\.kind: changes",
        ),
        (["--iterations.1.terrain.kind=stairs"], r"kind: changes nothing.*of iteration 1,"),
        (["--seeds", "3"], "--seeds: unknown option"),
        (["--generator.train.batch-size", "3"], "--generator.train.batch-size: changes nothing"),
    ],
)
def test_settings_that_change_nothing_are_refused(bundle, tmp_path, words, message):
    with pytest.raises(InputError, match=message):
        generate_from.run(["--from", str(bundle), "--out", str(tmp_path / "x"), *words])


def rewritten(bundle, path, change):
    """A bundle with another sheet; ``change`` gets it and the files."""
    with zipfile.ZipFile(bundle) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    sheet = json.loads(files.pop("bundle.json"))
    change(sheet, files)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("bundle.json", json.dumps(sheet))
        for name, data in files.items():
            archive.writestr(name, data)
    return str(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s, f: s["files"].pop("config.yaml"), "config.yaml missing; export the run again"),
        (lambda s, f: s["files"].pop("character.xml"), "character.xml missing"),
        (lambda s, f: s.pop("iterations"), "iterations.generator is missing"),
        (lambda s, f: s["iterations"].update(generator=9), "iterations.generator: 9; 1 to 2"),
    ],
)
def test_a_bundle_that_lacks_something_is_one_line(bundle, tmp_path, change, message):
    path = rewritten(bundle, tmp_path / "b.zip", change)
    with pytest.raises(InputError, match=message):
        generate_from.run(["--from", path, "--out", str(tmp_path / "x")])


@pytest.mark.parametrize("name", ["b", "b.zip"])
def test_nothing_is_left_of_a_bundle_that_could_not_be_written(tmp_path, monkeypatch, name):
    """And the next try is not in its way."""
    files = {"a": b"1", "b": b"2"}

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("parc_ray.deploy.bundle.Path.write_bytes", full)
        patch.setattr("parc_ray.deploy.bundle.zipfile.ZipFile.writestr", full)
        with pytest.raises(InputError, match="No space left"):
            write_bundle(files, tmp_path / name)
    assert list(tmp_path.iterdir()) == []
    write_bundle(files, tmp_path / name)
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_bundles_without_a_generator_do_not_generate(tmp_path, humanoid):
    root = fake_run(tmp_path, humanoid, generator=False)
    export.run([str(root), "--out", str(tmp_path / "bundle")])
    words = ["--from", str(tmp_path / "bundle"), "--out", str(tmp_path / "x")]
    with pytest.raises(InputError, match="holds no generator"):
        generate_from.run(words)
    with pytest.raises(InputError, match="is no bundle"):
        generate_from.run(["--from", str(tmp_path / "none"), *words[2:]])
    with pytest.raises(InputError, match="--motions: 0"):
        generate_from.run([*words, "--motions", "0"])
    assert not (tmp_path / "x").exists()
