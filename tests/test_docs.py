"""What the front pages say is true: commands, recipes, options, links, the test command of CI."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import parc_ray
from parc_ray.arguments import override, parse_run
from parc_ray.recipes import RECIPES, get_recipe

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
CI = (ROOT / ".ci" / "run").read_text()


def test_make_targets_that_are_named_exist():
    targets = set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z]+)\b(?=[ `\n]*(?:#|`|\n))", README + CONTRIBUTING))
    assert {"run", "test", "check"} <= named <= targets


def test_ci_runs_the_readmes_test_command_and_the_checks():
    assert "make test" in README
    for command in ("make test", "ruff check .", "ruff format --check .", "pyright"):
        assert re.search(rf"^{re.escape(command)}", CI, re.MULTILINE), command
    assert subprocess.run(["bash", "-n", str(ROOT / ".ci" / "run")]).returncode == 0
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def test_the_table_of_recipes_is_complete():
    table = re.findall(r"^\| `([a-z]+)` \|", README, re.MULTILINE)
    assert table == list(RECIPES)


def test_options_in_the_readme_exist():
    dotted = re.findall(r"`(--[a-z_0-9]+(?:\.[a-z_0-9]+)+) ([0-9.]+)`", README)
    assert dotted
    for name, value in dotted:
        override(get_recipe("quick"), [name, value])
    usage = re.search(r"^python run_parc\.py (\[--recipe.*)$", README, re.MULTILINE)
    assert usage is not None
    for option in re.findall(r"\[(--[a-z]+) ", usage[1]):
        argv = [option, {"--iterations": "1", "--recipe": "smoke"}.get(option, "x")]
        parse_run("run_parc.py", argv)


def test_relative_links_lead_somewhere():
    for page in (README, CONTRIBUTING):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page):
            assert (ROOT / target).exists(), target


def test_the_changelog_speaks_of_this_version():
    assert f"## {parc_ray.__version__} " in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("name", ["LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md"])
def test_front_pages_are_there(name):
    assert len((ROOT / name).read_text()) > 300


def test_registries_that_the_contributing_page_names_exist():
    rows = re.findall(r"`([A-Z_]+)` in `([^`]+)`", CONTRIBUTING)
    rows += [
        (name, "parc_ray/recipes.py") for name in re.findall(r"`([A-Z]+)` there", CONTRIBUTING)
    ]
    assert len(rows) >= 3
    for name, path in rows:
        assert re.search(rf"^{name}\b", (ROOT / path).read_text(), re.MULTILINE), (name, path)
    for path in re.findall(r"`((?:parc_ray|envs)/[a-z_/]+\.py)`", CONTRIBUTING):
        assert (ROOT / path).exists(), path
