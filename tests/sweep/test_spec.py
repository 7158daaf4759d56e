"""Sweep files: every mistake is one line before anything starts; the shipped ones are whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from parc_ray import cli
from parc_ray.config_io import config_hash
from parc_ray.errors import InputError
from parc_ray.evaluation.results import GENERATOR_FIGURES, TRACKER_FIGURES
from parc_ray.placement import PlaceConfig
from parc_ray.recipes import get_recipe
from parc_ray.sweep.capacity import trials_at_once, widest_stage
from parc_ray.sweep.overrides import apply_overrides
from parc_ray.sweep.sharing import shared_stages, stage_keys, trial_stages
from parc_ray.sweep.spec import load_spec
from parc_ray.tools.sweep import prepare

ROOT = Path(__file__).resolve().parent.parent.parent
SHIPPED = sorted((ROOT / "tune_configs").glob("*.yaml"))
WANTED = {
    "blend_generator",
    "blend_loop",
    "generator_loss",
    "penetration_loss",
    "tracker_reward",
    "contact_reward",
    "physics_correction",
    "continual",
    "frozen_tracker",
    "ddim_steps",
    "study_physics",
}


def sweep_file(tmp_path, text) -> str:
    path = tmp_path / "s.yaml"
    path.write_text(f"about: test\nrecipe: smoke\niterations: 1\n{text}")
    return str(path)


def prepared(tmp_path, text, **options):
    values = {"storage": str(tmp_path), "name": None, "data": None, "source": None, **options}
    return prepare(sweep_file(tmp_path, text), **values)


def test_all_sweeps_are_shipped_and_named_in_the_docs():
    assert {p.stem for p in SHIPPED} == WANTED
    page = (ROOT / "docs" / "sweeps.md").read_text()
    assert all(f"`{name}.yaml`" in page for name in WANTED)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_a_shipped_sweep_is_whole(path, tmp_path):
    sweep = prepare(str(path), str(tmp_path), None, None, None)
    assert len(sweep.trials) >= 2
    assert len({config_hash(replace(t.config, name="same")) for t in sweep.trials}) == len(
        sweep.trials
    )
    assert "it_00/augment" in {s.label for s in sweep.shared}
    known = {f"generator/{f.name}" for f in GENERATOR_FIGURES}
    for test in ("tracker", "tracker_reference"):
        known |= {f"{test}/{f.name}" for f in TRACKER_FIGURES}
    for plot in sweep.spec.plots:
        assert set(plot.figures) <= known
        over = plot.over or next(iter(sweep.spec.grid), "variant")
        assert all(over in trial.values for trial in sweep.trials)
    wall = [row.generator.wall_s for t in sweep.trials for row in t.config.iterations]
    assert wall == [None] * len(wall)  # results must not depend on how busy the machine is
    needs = [sweep.need(trial) for trial in sweep.trials]
    assert trials_at_once(needs, 4.0, 0.0, sweep.spec.concurrent) >= 1
    assert not list(tmp_path.iterdir())


def test_what_the_sweeps_vary_reaches_the_trials(tmp_path):
    def trials(name):
        found = prepare(str(ROOT / f"tune_configs/{name}.yaml"), str(tmp_path), None, None, None)
        return [t.config for t in found.trials], {s.label for s in found.shared}

    blends, shared = trials("blend_generator")
    assert [c.evaluation.s for c in blends] == [0.0, 0.25, 0.5, 0.65, 0.75, 1.0]
    assert "it_01/train-generator" in shared
    loops, _ = trials("blend_loop")
    assert all({row.s for row in c.iterations} == {c.evaluation.s} for c in loops)
    physics, _ = trials("physics_correction")
    assert [{row.correct for row in c.iterations} for c in physics] == [{True}, {False}]
    assert physics[1].synthesis.optimizer.iterations == 0
    penetration, _ = trials("penetration_loss")
    assert (
        penetration[0].generator.loss.penetration > penetration[1].generator.loss.penetration == 0
    )
    frozen, _ = trials("frozen_tracker")
    names = [[s.label for s in trial_stages(c, None)] for c in frozen]
    assert "it_02/train-tracker" in names[0]
    assert "it_02/train-tracker" not in names[1]
    strides, _ = trials("ddim_steps")
    assert all((c.generator.diffusion_steps - 1) % c.evaluation.stride == 0 for c in strides)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("grid: {evaluaton.s: [0.5]}", "did you mean 'evaluation.s'"),
        ("grid: {iterations.*.motion: [3]}", "did you mean 'iterations.*.motions'"),
        ("grid: {iterations.7.s: [0.5]}", "has no such value"),
        ("grid: {generator.loss: [1]}", "is a section"),
        ("grid: {evaluation.s: [2.0]}", "evaluation.s: 2.0 is out of range"),
        ("grid: {evaluation.s: [0.5, high]}", "evaluation.s"),
        ("grid: {evaluation.s: []}", "no value"),
        ("grid: {evaluation.s: [0.5, 0.5]}", "appears twice"),
        ("base: {d0.max_clip: 3}\ngrid: {evaluation.s: [0.5]}", "did you mean 'd0.max_clips'"),
        ("variants: {a: {carry.trackers: frozen}}", "did you mean 'carry.tracker'"),
        ("grd: {evaluation.s: [0.5]}", "did you mean 'grid'"),
        ("", "nothing to sweep"),
        ("grid: {evaluation.s: [0.5]}\nuntil: it_01/generat", "is no stage of the plan"),
        ("grid: {evaluation.s: [0.5]}\nprotocol: smal", "did you mean 'small'"),
        ("grid: {evaluation.s: [0.5]}\nscheduler: {kind: asha, reduction: 1}", "reduction"),
        ("grid: {evaluation.s: [0.5]}\nscheduler: {kind: asha}\nmeasure: last", "ASHA"),
        ("grid: {evaluation.s: [0.5]}\nconcurrent: 0", "concurrent: 0"),
        (
            "grid: {evaluation.s: [0.5]}\nscheduler: {kind: asha, metric: generator/tpl_ingrid}",
            "did you mean 'generator/tpl_in_grid'",
        ),
        (
            "grid: {evaluation.s: [0.5]}\nplots: [{figures: [generator/fwd]}]",
            "did you mean 'generator/fwd_m'",
        ),
        (
            "grid: {evaluation.s: [0.5]}\nplots: [{kind: trade-off, figures: [generator/fwd_m]}]",
            "a trade-off needs two figures",
        ),
    ],
)
def test_mistakes_are_one_line(tmp_path, text, said):
    with pytest.raises(InputError) as caught:
        prepared(tmp_path, text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["s.yaml"]


def test_wrong_words_on_the_command_line(tmp_path, capsys):
    path = sweep_file(tmp_path, "grid: {evaluation.s: [0.5]}")
    for words, said in (
        (["nothing.yaml"], "no such sweep file"),
        ([path, "--seeed", "3"], "did you mean --seed"),
        ([path, "--run", str(tmp_path)], "no run directory"),
    ):
        with pytest.raises(SystemExit) as caught:
            cli.main(["sweep", *words, "--storage", str(tmp_path / "out")])
        assert caught.value.code == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_dry_run_says_what_would_be_done_and_writes_nothing(tmp_path, capsys):
    path = sweep_file(tmp_path, "grid: {evaluation.s: [0.25, 0.5]}\nuntil: train-generator")
    with pytest.raises(SystemExit) as caught:
        cli.main(["sweep", path, "--storage", str(tmp_path / "out"), "--dry-run", "--seed", "5"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert "2 trials" in out
    assert "it_01/train-generator" in out
    assert out.count("tests only") == 2
    assert not (tmp_path / "out").exists()


def test_overrides_reach_all_entries_and_keep_the_rest():
    config = get_recipe("quick")
    changed = apply_overrides(
        config, {"iterations.*.s": 0.4, "iterations.1.motions": 3, "seed": 2}, "here"
    )
    assert [row.s for row in changed.iterations] == [0.4, 0.4]
    assert [row.motions for row in changed.iterations] == [config.iterations[0].motions, 3]
    back = apply_overrides(
        changed,
        {"iterations.*.s": 0.65, "iterations.1.motions": config.iterations[1].motions, "seed": 0},
        "here",
    )
    assert back == config


def test_a_grid_gives_all_combinations_with_variants(tmp_path):
    sweep = prepared(
        tmp_path,
        "grid: {evaluation.s: [0.5, 0.6], seed: [0, 1]}\n"
        "variants: {a: {}, b: {carry.tracker: frozen}}",
    )
    assert len(sweep.trials) == 8
    assert len({t.name for t in sweep.trials}) == 8
    assert {t.config.carry.tracker for t in sweep.trials if t.values["variant"] == "b"} == {
        "frozen"
    }
    assert sweep.trials[1].values == {"variant": "a", "evaluation.s": 0.5, "seed": 1}


# ---- shared stages -------------------------------------------------------------------------


def shared(*changes):
    config = get_recipe("smoke")
    return {
        s.label for s in shared_stages([apply_overrides(config, c, "t") for c in changes], None)
    }


def test_stages_before_the_first_difference_are_shared():
    early = {"it_00/augment", "it_00/record", "it_00/merge", "it_01/train-generator"}
    assert shared({}, {"iterations.0.candidates": 5}) == early
    assert shared({}, {"seed": 1}) == set()
    assert shared({}, {"d0.max_clips": 2}) == set()
    assert "it_02/record" in shared({}, {"evaluation.s": 0.3})
    later = shared({}, {"iterations.1.s": 0.3})
    assert "it_01/record" in later
    assert "it_02/generate" not in later


def test_a_stage_that_reads_something_else_is_another_one():
    """Its own settings are equal, but what it reads is not."""
    config = get_recipe("smoke")
    other = apply_overrides(config, {"d0.max_clips": 2}, "t")
    stages = trial_stages(config, None)
    mine, theirs = stage_keys(config, stages), stage_keys(other, stages)
    assert mine["it_02/merge"] != theirs["it_02/merge"]
    assert mine == stage_keys(config, stages)


def test_trainings_from_scratch_read_no_earlier_model():
    config = get_recipe("smoke")
    for key, stage in (("generator", "train-generator"), ("tracker", "train-tracker")):
        scratch = apply_overrides(config, {f"carry.{key}": "scratch"}, "t")
        for chosen, warm in ((config, True), (scratch, False)):
            found = {s.label: s for s in trial_stages(chosen, None)}
            assert ("warm_start" in found[f"it_02/{stage}"].inputs) == warm


def test_a_frozen_tracker_is_the_first_one():
    config = apply_overrides(get_recipe("smoke"), {"carry.tracker": "frozen"}, "t")
    found = {s.label: s for s in trial_stages(config, None)}
    assert "it_01/train-tracker" in found  # MPC corrects D0, so there is none before
    assert "it_02/train-tracker" not in found
    source = found["it_02/record"].inputs["tracker"]
    assert (source.iteration, source.stage) == (1, "train-tracker")


def test_until_keeps_what_leads_to_a_stage():
    config = get_recipe("smoke")
    labels = [s.label for s in trial_stages(config, "it_01/train-generator")]
    assert labels == ["it_00/augment", "it_00/record", "it_00/merge", "it_01/train-generator"]
    assert trial_stages(config, "train-generator")[-1].label == "it_02/train-generator"


# ---- how many at once ----------------------------------------------------------------------


def test_no_more_trials_than_the_widest_stage_fits():
    need = [(2.0, 0.0)] * 6
    assert trials_at_once(need, 7.9, 0.0, None) == 3
    assert trials_at_once(need, 100.0, 0.0, None) == 6
    assert trials_at_once(need, 8.0, 0.0, 2) == 2
    assert trials_at_once([(1.0, 1.0)] * 4, 16.0, 2.0, None) == 2
    with pytest.raises(InputError, match="a trial must fit"):
        trials_at_once(need, 1.9, 0.0, None)
    with pytest.raises(InputError, match=r"allowed is 1 to 3"):
        trials_at_once(need, 6.0, 0.0, 4)


def test_the_widest_stage_is_that_of_what_a_trial_runs():
    config = get_recipe("quick")
    resources = replace(
        config.resources, generator_workers=6, cpus_per_worker=1.0, generate_operators="together"
    )
    config = replace(config, resources=resources)
    assert widest_stage(config)[0] == pytest.approx(6 + 1.1)
    assert widest_stage(config, {"record"})[0] == pytest.approx(2 + 1.1)
    assert widest_stage(config, set())[0] == pytest.approx(2 + 1.1)
    gpus = replace(config, resources=replace(resources, gpus_per_worker=0.5))
    assert widest_stage(gpus)[1] == 3.0


def test_files_are_read_by_their_path(tmp_path):
    spec = load_spec(sweep_file(tmp_path, "grid: {evaluation.s: [0, 1]}"))
    assert spec.grid == {"evaluation.s": (0, 1)}


def test_places_count_for_the_widest_stage():
    """What a place lets its workers ask for and grow to is what trials could wait for."""
    config = get_recipe("smoke")
    places = replace(
        config.resources.places,
        record=PlaceConfig(cpus=3.0, gpus=0.5, most=5),
        augment=PlaceConfig(cpus=2.0),
    )
    wide = replace(config, resources=replace(config.resources, places=places))
    cpus, gpus = widest_stage(wide, ["record"])
    assert cpus == pytest.approx(5 * 3.0 + 1.1)
    assert gpus == pytest.approx(2.5)
    assert widest_stage(wide, ["augment"])[0] > widest_stage(config, ["augment"])[0]
