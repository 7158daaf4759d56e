"""``d0.correction: tracker``: variants are what is tracked, and their recordings are D0."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from algorithms.ppo.networks import NetSpec
from algorithms.ppo.policy import MlpPolicy
from envs.sims.replay import replay_clip
from envs.tracking.rollouts import EpisodeRunner
from parc_ray.character.character import load_character
from parc_ray.config import DataConfig, ParcConfig
from parc_ray.data.manifest import Manifest
from parc_ray.data.storage import Storage
from parc_ray.data.store import read_clips, save_dataset
from parc_ray.plan import plan
from parc_ray.recipes import get_recipe
from parc_ray.stages import augment, merge, record
from parc_ray.stages._trackers import make_factory
from parc_ray.stages.base import StageOutputs, StageRun
from parc_ray.stages.train_tracker import training_clips
from parc_ray.synthesis.config import AugmentConfig, ClassRecipe, OptimizerConfig
from parc_ray.tools.info_data import dataset_facts
from tests.envs.helpers import sway_clip
from tests.stages.helpers import run_body


@pytest.fixture
def here(monkeypatch):
    """Work items run in this process, without Ray."""
    original = record.run_items

    def inline(directory, items, make_worker, arguments, pool, label):
        alone = replace(pool, actors=0)
        return original(directory, items, make_worker, arguments, alone, label)

    for module in (augment, record):
        monkeypatch.setattr(module, "run_items", inline)


@pytest.fixture
def config(tmp_path, humanoid) -> ParcConfig:
    """Two variants of a swaying person, who is easily followed."""
    clip = sway_clip(humanoid, 31, "sway", amplitude=0.05)
    told = replace(clip.provenance, take="take7", licence="CC-BY-4.0", source="made: sway")
    save_dataset(tmp_path / "data", "one", [replace(clip, provenance=told)], humanoid.digest)
    smoke = get_recipe("smoke")
    return replace(
        smoke,
        data=DataConfig(path=str(tmp_path / "data")),
        augment=AugmentConfig(
            variants_per_clip=2,
            min_length_s=0.8,
            recipes={"sway": ClassRecipe(kind="none", heading_deg=90.0)},
            ik_iterations=2,
            optimizer=OptimizerConfig(iterations=3, w_body_constraint=0.0),
        ),
        d0=replace(smoke.d0, correction="tracker", keep_uncorrected=False),
        correction=replace(smoke.correction, strategy="mpc", min_segment_s=0.5),
    )


def play_back(run: StageRun) -> StageOutputs:
    """Instead of a training: a policy whose actions are zero, so that joints follow the clips."""
    config: ParcConfig = run.ctx.config
    character = load_character(config.character)
    clips = training_clips(run, character)
    factory = make_factory(character, config.sim, config.simulator)
    runner = EpisodeRunner(character, clips, config.tracking, factory, 1)
    size, dofs = runner.task.builder.layout.size, character.skeleton.num_dofs
    runner.close()
    policy = MlpPolicy(NetSpec(obs_dim=size, action_dim=dofs, hidden=(4,), activation="relu"))
    for tensor in policy.actor.parameters():
        tensor.data.zero_()
    policy.notes["clips"] = [clip.clip_id for clip in clips]
    policy.save(run.dir.local_path("policy.pt"))
    return StageOutputs(paths={"tracker": "policy.pt"}, rows={"tracker": 1})


def test_recordings_of_variants_by_the_tracker_are_d0(tmp_path, humanoid, config, here):
    run = tmp_path / "run"
    storage = Storage.from_uri(run)
    made = run_body(run, "augment", augment.STAGE.body, {}, config, 0)
    varied = read_clips(storage, Manifest.load(storage, "it_00/augment/manifest.json"))
    names = {"sway", "sway_a000", "sway_a001"}
    assert {clip.clip_id for clip in varied} == names

    stages = {stage.name: stage for stage in plan(config) if stage.iteration == 0}
    assert list(stages) == ["augment", "train-tracker", "record", "merge"]
    assert stages["train-tracker"].inputs == {"motions": stages["record"].inputs["motions"]}
    motions = made.outputs["dataset"]
    trained = run_body(run, "train-tracker", play_back, {"motions": motions}, config, 0)
    policy = MlpPolicy.load(run / "it_00/train-tracker/policy.pt")
    assert set(policy.notes["clips"]) == names

    inputs = {"motions": motions, "tracker": trained.outputs["tracker"]}
    recorded = run_body(run, "record", record.STAGE.body, inputs, config, 0)
    assert recorded.metrics["corrected_tracker"] == 3.0
    assert recorded.metrics["mpc_attempts"] == 0.0
    records = json.loads((run / "it_00/record/records.json").read_text())
    assert {r["source_id"]: r["corrector"] for r in records} == dict.fromkeys(names, "tracker")

    inputs = {"motions": recorded.outputs["recorded"]}
    run_body(run, "merge", merge.STAGE.body, inputs, config, 0)
    d0 = Manifest.load(storage, "it_00/merge/manifest.json")
    assert (d0.name, d0.iteration, d0.parents) == ("D0", 0, ())
    assert [part.path for part in d0.parts] == ["it_00/record/recorded-0000.parquet"]
    clips = {clip.provenance.parents: clip for clip in read_clips(storage, d0)}
    assert set(clips) == {(name,) for name in names}
    seeds = {clip.clip_id: clip.provenance.seeds for clip in varied}
    for (parent,), clip in clips.items():
        told = clip.provenance
        assert (told.maker, told.take, told.licence) == ("tracker", "take7", "CC-BY-4.0")
        assert told.hashes["tracker"] == policy.digest
        assert told.seeds == seeds[parent]
        assert clip.replay is not None
        states = replay_clip(humanoid, clip.replay, config.sim)
        assert (states.root_pos + clip.replay.offset).equal(clip.frames.root_pos)
    facts = dataset_facts(str(run / "it_00/merge"), verify=True)
    assert facts["lineage"]["made"]["0 tracker"]["clips"] == 3
    assert list(facts["sources"]) == ["made: sway [CC-BY-4.0]"]
