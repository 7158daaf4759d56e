"""``parc export RUN`` and ``parc generate --from``: what is in a bundle and what it is good for."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace

import mujoco
import numpy as np
import onnxruntime
import pytest
import torch

from algorithms.ppo.policy import MlpPolicy
from envs.sims.base import SimConfig
from envs.sims.mujoco_model import ModelBuilder
from envs.sims.portable import portable_model
from parc_ray.config_io import to_yaml
from parc_ray.data.store import load_dataset
from parc_ray.errors import InputError
from parc_ray.recipes import get_recipe
from parc_ray.stages.base import StageOutputs
from parc_ray.tools import export, generate_from
from tests.deploy.bundles import make_policy, save_random_generator
from tests.stages.helpers import run_body


def fake_run(folder, character, *, generator=True):
    """A run directory with finished trainings: one tracker in iteration 1, another in 2."""
    config = replace(get_recipe("smoke"), storage=str(folder), name="run")
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
    assert not any(tmp_path.iterdir())


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
