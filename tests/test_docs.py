"""What the front pages say is true: commands, recipes, options, links, the test command of CI.

Here every example is understood, those inside sentences too; ``test_docs_run.py`` runs the blocks.
"""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
from pathlib import Path

import pytest

import parc_ray
from parc_ray import cli
from parc_ray.arguments import override, parse_run
from parc_ray.commands import TOOLS
from parc_ray.config_io import to_yaml
from parc_ray.plan import plan
from parc_ray.recipes import RECIPES, get_recipe

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
CI = (ROOT / ".ci" / "run").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_COMMAND = re.compile(r"(?<![\w-])((?:python run_parc\.py|python -m parc_ray\.cli|parc) [^`#\n]+)")
_PLACEHOLDER = re.compile(r"[\[\]]|\b(STAGE|COMMAND)\b")


def examples(page: Path) -> list[str]:
    """Command lines in the code of a page, without those that only show a form."""
    text = page.read_text()
    code = re.findall(r"^```[a-z]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    inline = [words for words in inline if not re.fullmatch(r"parc [a-z-]+", words)]  # by name only
    lines = [line for block in [*code, *inline] for line in block.splitlines()]
    found = [m[1].strip() for line in lines if (m := _COMMAND.search(line))]
    return [command for command in found if not _PLACEHOLDER.search(command)]


EXAMPLES = [(page.name, command) for page in PAGES for command in examples(page)]


def words_of(command: str) -> list[str]:
    """Arguments of ``parc`` that an example amounts to."""
    words = shlex.split(command)
    if words[0] == "parc":
        return words[1:]
    return ["run", *words[2:]] if words[1] == "run_parc.py" else words[3:]


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


@pytest.mark.parametrize(("page", "command"), EXAMPLES)
def test_every_example_is_understood(page, command, tmp_path, monkeypatch):
    """Commands and options exist, values fit, and a stage is one of the run's."""
    monkeypatch.chdir(tmp_path)
    name, *words = words_of(command)
    for word in words:
        if word.endswith("config.yaml"):
            Path(word).parent.mkdir(parents=True)
            Path(word).write_text(to_yaml(get_recipe("quick")))
    if name.startswith("-") or {"--help", "--help-config"} & set(words):
        with pytest.raises(SystemExit) as caught:
            cli.main([name, *words])
        assert caught.value.code == 0
    elif (name in TOOLS and not (name in ("evaluate", "record") and words[0].startswith("-"))) or (
        "--from" in words
    ):
        module = {"import": "import_data", "generate": "generate_from"}.get(name, name)
        parser = importlib.import_module(f"parc_ray.tools.{module.replace('-', '_')}").arguments()
        _, rest = parser.parse_known_args(words)
        assert name in ("optimize", "sweep", "generate") or not rest
        override(get_recipe("quick"), rest)
    else:
        config, options = parse_run("parc", words, stage=name != "run")
        if name != "run":
            stages = [s for s in plan(config) if s.name == name]
            assert len([s for s in stages if options.iteration in (None, s.iteration)]) == 1


def test_there_are_examples_of_every_command():
    shown = {words_of(command)[0] for page, command in EXAMPLES if page == "commands.md"}
    assert shown == set(cli.commands())
    table = (ROOT / "docs" / "commands.md").read_text()
    assert set(re.findall(r"\[`([a-z-]+)`\]\(#", table)) == set(cli.commands())


def test_commands_that_are_mentioned_exist():
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        for name in re.findall(r"`parc ([a-z][a-z-]+)[` ]", page.read_text()):
            assert name in cli.commands(), (page.name, name)
