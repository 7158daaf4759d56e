"""Config trees: round trips, hashes, differences, and messages for what is wrong."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field, replace
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parc_ray.arguments import override, parse_run
from parc_ray.config import (
    GeneratorBudget,
    IterationConfig,
    ParcConfig,
    TrackerBudget,
    run_differences,
)
from parc_ray.config_io import (
    canonical_json,
    config_hash,
    differences,
    flatten,
    from_plain,
    from_yaml,
    to_plain,
    to_yaml,
)
from parc_ray.errors import InputError
from parc_ray.recipes import RECIPES, get_recipe


@dataclass(frozen=True, kw_only=True)
class Leaf:
    number: float = 1.5
    count: int | None = None
    mode: Literal["a", "b"] = "a"
    flag: bool = False


@dataclass(frozen=True, kw_only=True)
class Tree:
    leaf: Leaf = field(default_factory=Leaf)
    leaves: tuple[Leaf, ...] = ()
    pair: tuple[int, float] = (1, 2.0)
    table: dict[str, Leaf] = field(default_factory=dict)
    text: str = "x"


leaves = st.builds(
    Leaf,
    number=st.floats(allow_nan=False),
    count=st.none() | st.integers(),
    mode=st.sampled_from(["a", "b"]),
    flag=st.booleans(),
)
words = st.text(st.characters(categories=["L", "N", "P", "Zs"]), max_size=8)
trees = st.builds(
    Tree,
    leaf=leaves,
    leaves=st.lists(leaves, max_size=3).map(tuple),
    pair=st.tuples(st.integers(), st.floats(allow_nan=False, allow_infinity=False)),
    table=st.dictionaries(words, leaves, max_size=3),
    text=words,
)


@given(trees)
def test_yaml_round_trip_gives_the_same_tree(tree):
    assert from_yaml(Tree, to_yaml(tree)) == tree
    assert from_plain(Tree, to_plain(tree)) == tree


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_builds_round_trips_and_has_its_own_hash(name):
    config = get_recipe(name)
    again = from_yaml(ParcConfig, to_yaml(config))
    assert again == config
    assert config_hash(again) == config_hash(config)
    assert len({config_hash(get_recipe(other)) for other in RECIPES}) == len(RECIPES)


def test_hash_is_of_sorted_compact_json():
    assert canonical_json({"b": (1, 2.0), "a": None}) == '{"a":null,"b":[1,2.0]}'
    # printf '{"a":null,"b":[1,2.0]}' | sha256sum
    expected = "05d3e48ab7087840"
    assert config_hash({"b": (1, 2.0), "a": None})[:16] == expected


def test_infinity_survives_json_and_yaml():
    tree = Tree(leaf=Leaf(number=math.inf))
    assert "Infinity" not in canonical_json(tree)
    assert from_yaml(Tree, to_yaml(tree)).leaf.number == math.inf


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("leef: {}", r"config\.leef: unknown key; did you mean 'leaf'\?"),
        ("leaf: {nunber: 1}", r"config\.leaf\.nunber: unknown key; did you mean 'number'\?"),
        ("leaf: {number: fast}", r"config\.leaf\.number: 'fast' is not of type float"),
        ("leaf: {mode: c}", r"config\.leaf\.mode: 'c' is not a choice; allowed: a, b"),
        ("leaf: {flag: 1}", r"config\.leaf\.flag: 1 is not of type bool"),
        ("leaf: {count: true}", r"config\.leaf\.count: True is not of type int"),
        ("leaves: [{number: 1}, {flagg: true}]", r"config\.leaves\.1\.flagg: unknown key"),
        ("pair: [1]", r"config\.pair: 1 values given; allowed is exactly 2"),
        ("leaf: 3", r"config\.leaf: 3 is not a section"),
        ("a: [", r"config: not a YAML file"),
    ],
)
def test_wrong_yaml_is_named_by_path(text, message):
    with pytest.raises(InputError, match=message):
        from_yaml(Tree, text)


def test_values_that_the_dataclass_rejects_are_one_line():
    with pytest.raises(InputError, match=r"iteration s: 2\.0 is out of range; allowed is 0 to 1"):
        from_plain(ParcConfig, {"iterations": [{"s": 2}]})


def test_differences_name_the_leaf_and_both_values():
    old = Tree(leaves=(Leaf(), Leaf()))
    new = replace(old, leaves=(Leaf(), Leaf(number=2.0)), text="y")
    assert differences(old, old) == []
    assert differences(old, new) == ["leaves.1.number: 1.5 -> 2.0", "text: 'x' -> 'y'"]
    shorter = differences(old, replace(old, leaves=(Leaf(),)))
    assert "leaves.1.number: 1.5 -> (absent)" in shorter


def test_every_config_field_is_documented():
    """A string literal stands directly below each field of the sections of this module."""
    import ast
    import inspect

    import parc_ray.config as module

    for node in ast.parse(inspect.getsource(module)).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for item, following in zip(node.body, [*node.body[1:], None], strict=True):
            if isinstance(item, ast.AnnAssign):
                assert isinstance(following, ast.Expr), f"{node.name}.{ast.unparse(item.target)}"


def test_dotted_overrides_change_only_what_they_name():
    config = get_recipe("smoke")
    words = ["--generator.train.steps", "7", "--iterations.1.terrain.cells", "5", "6"]
    changed = override(config, [*words, "--iterations.0.mirror", "True", "--d0.correction=none"])
    assert sorted(differences(config, changed)) == [
        "d0.correction: 'mpc' -> 'none'",
        f"generator.train.steps: {config.generator.train.steps} -> 7",
        "iterations.0.mirror: False -> True",
        f"iterations.1.terrain.cells: {list(config.iterations[1].terrain.cells)} -> [5, 6]",
    ]


def test_hyphens_and_underscores_are_the_same():
    config = get_recipe("smoke")
    assert override(config, ["--data.min-frames", "20"]).data.min_frames == 20


def test_override_can_set_and_clear_optional_values():
    config = override(get_recipe("quick"), ["--d0.tracker.wall_s", "None"])
    assert config.d0.tracker.wall_s is None
    assert override(config, ["--d0.tracker.wall_s", "3"]).d0.tracker.wall_s == 3.0


def test_every_leaf_of_a_recipe_is_an_option():
    """Setting any leaf to its own value gives the same config: no leaf is out of reach."""
    config = get_recipe("smoke")
    words = []
    for key, value in flatten(config).items():
        if value in ([], {}):
            continue
        values = value if isinstance(value, list) else [value]
        words += [f"--{key}", *(str(v) for v in _flat(values))]
    assert override(config, words) == config


def _flat(values):
    for value in values:
        yield from _flat(value) if isinstance(value, list) else [value]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--recipe", "quik"], "unknown recipe; did you mean 'quick'"),
        (["--generator.train.stepz", "3"], "did you mean --generator.train.steps"),
        (["--storag", "x"], "did you mean --storage"),
        (["--generator.train.steps", "many"], "--generator.train.steps: invalid literal"),
        (["--generator.train", "3"], "it is a section"),
        (["--d0.correction", "magic"], "'magic'"),
        (["--evaluation.s", "3"], "evaluation.s: 3.0 is out of range; allowed is 0 to 1"),
        (["quick"], "quick: unexpected word"),
        (["--iterations", "-1"], "--iterations: -1 is out of range"),
        (["--iterations", "two"], "invalid int value"),
        (["--name", "a/b"], "name: 'a/b' is out of range"),
        (["--config", "/nowhere.yaml"], "/nowhere.yaml is not a file"),
        (["--recipe", "quick", "--config", "x"], "both given"),
    ],
)
def test_wrong_arguments_are_one_line_with_the_remedy(argv, message):
    with pytest.raises(InputError) as caught:
        parse_run("parc run", argv)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_iterations_are_cut_or_the_last_row_repeated():
    rows = (IterationConfig(motions=1), IterationConfig(motions=2))
    config = replace(get_recipe("smoke"), iterations=rows)
    assert [r.motions for r in config.with_iterations(1).iterations] == [1]
    assert [r.motions for r in config.with_iterations(4).iterations] == [1, 2, 2, 2]
    assert config.with_iterations(0).iterations == ()


def test_config_file_and_usual_options(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(to_yaml(replace(get_recipe("smoke"), seed=5)))
    argv = ["--config", str(path), "--data", "d", "--storage", "s", "--name", "n", "--force"]
    config, options = parse_run("parc run", [*argv, "--iterations", "1"])
    assert (config.seed, config.data.path, config.storage, config.name) == (5, "d", "s", "n")
    assert options.force
    assert len(config.iterations) == 1


def test_a_run_continues_under_other_resources_and_more_iterations_only():
    config = get_recipe("smoke")
    stored = config.identity()
    more = config.with_iterations(4)
    elsewhere = replace(
        more, name="n", storage="s", resources=replace(config.resources, record_actors=7)
    )
    assert run_differences(stored, elsewhere) == []
    first = replace(config.iterations[0], tracker=TrackerBudget(samples=9))
    changed = replace(config, iterations=(first, *config.iterations[1:]))
    assert run_differences(stored, changed) == ["iterations.0.tracker.samples: 4096 -> 9"]
    assert run_differences(stored, replace(config, seed=3)) == ["seed: 0 -> 3"]


def test_paper_spells_out_its_four_iterations():
    rows = get_recipe("paper").iterations
    kinds = [(r.terrain.kind, r.motions, r.s, r.candidates) for r in rows]
    assert kinds == [
        ("boxes", 1000, 0.65, 64),
        ("boxes", 1000, 0.65, 64),
        ("slice", 2000, 0.65, 64),
        ("slice", 2000, 0.65, 64),
    ]
    assert all(r.terrain.cells == (16, 16) for r in rows)
    assert rows[2].terrain.map_cells == (100, 100)


def test_configs_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        get_recipe("smoke").seed = 3  # type: ignore[misc]


def test_settings_of_an_iteration_are_put_where_the_owners_read_them():
    config = get_recipe("smoke")
    row = replace(
        config.iterations[1],
        s=0.25,
        candidates=3,
        mirror=True,
        generator=GeneratorBudget(steps=11, wall_s=2.0),
        tracker=TrackerBudget(samples=12, wall_s=3.0),
    )
    config = replace(
        config,
        iterations=(config.iterations[0], row),
        d0=replace(config.d0, tracker=TrackerBudget(samples=13)),
    )
    generator = config.generator_for(2, seed=5)
    assert (generator.train.steps, generator.train.max_seconds) == (11, 2.0)
    assert (generator.train.seed, generator.sampling.blend) == (5, 0.25)
    tracker = config.tracker_for(2, seed=6)
    assert (tracker.samples, tracker.wall_s, tracker.seed) == (12, 3.0, 6)
    assert config.tracker_for(0, seed=6).samples == 13
    synthesis = config.synthesis_for(2)
    assert (synthesis.rollout.candidates, synthesis.mirror) == (3, True)


def test_strategy_of_iteration_0_is_that_of_d0():
    config = get_recipe("smoke")
    assert config.correction_for(0).strategy == "mpc"
    assert config.correction_for(1) == config.correction
    with pytest.raises(InputError, match=r"d0\.correction"):
        replace(config, d0=replace(config.d0, correction="none")).correction_for(0)
