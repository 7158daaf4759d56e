"""The code blocks of the documentation, and what becomes of each: run, run elsewhere, or parsed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "cluster" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
)
_FENCE = re.compile(r"^([ ]*)```([a-z]*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_SHELL = ("", "bash")


@dataclass(frozen=True)
class Unit:
    """A line of a shell block, or a whole block of another kind.

    Attributes:
        page: path below the root.
        line: number of its first line there.
        kind: what stands behind the fence.
        text: without comments at the end of a shell line.
    """

    page: str
    line: int
    kind: str
    text: str

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Rule:
    """What becomes of the units that a pattern finds.

    Attributes:
        pattern: searched in a unit's text.
        how: "run" (tests/test_docs_run.py), a test that does the same, or "" for parsed only.
        why: the reason, for what is parsed only.
        page: only on pages whose path begins so.
    """

    pattern: str
    how: str = "run"
    why: str = ""
    page: str = ""

    def covers(self, unit: Unit) -> bool:
        """Whether it is about a unit."""
        on_page = unit.page.startswith(self.page)
        return on_page and re.search(self.pattern, unit.text, re.MULTILINE) is not None


RULES = (
    # What is no command.
    Rule(r"^ initial clips ──", "", "a drawing"),
    Rule(r"^# fps: 30\n", "", "the head of a table, cut short; its columns are compared"),
    Rule(r"^python run_parc\.py \[", "", "the form of the command; its options are looked up"),
    Rule(r"^#!/bin/sh\n", "", "needs Isaac Gym, which is on no package registry"),
    # What needs a machine, an account or a package that no test has.
    Rule(r"^(conda|tar|pip install).*", "", "Isaac Gym's own Python", "docs/isaacgym.md"),
    Rule(r"^PARC_TEST_REAL_ISAACGYM=1 ", "", "needs Isaac Gym; paths are looked up"),
    Rule(r"^(ray|docker|kubectl|sbatch) |\bray job ", "", "needs a cluster; the words are parsed"),
    Rule(r"^cd (cluster$|\S+ && ray )", "", "needs a cluster; the words are parsed"),
    Rule(r"^parc info --cluster", "tests/tools/test_info_cluster.py"),
    # What installs; CI's own .ci/run does it on a bare machine.
    Rule(r"^pip install ", "", "installs; extras and packages are looked up"),
    Rule(r"^python -m venv ", "", "makes an environment, as `make` does"),
    Rule(r"^\. \.venv/bin/activate$", "", "enters an environment, as `make` does"),
    Rule(r"^python -m pytest$", "", "runs this test"),
    Rule(r"^make (run|test|check)\b", "", "half an hour and more; targets are looked up"),
    # What takes CPU-hours: the pages of results say how their figures were made.
    Rule(r"^(parc|python benchmarks/)", "", "hours, on data of its own", "docs/results/"),
    Rule(r"^python benchmarks/", "tests/test_benchmarks.py"),
    # What needs files that only others have, or the network.
    Rule(r"^parc import-model ", "tests/tools/test_import_model.py"),
    Rule(r"^parc import sample ", "tests/tools/test_import_data.py"),
    # What runs in processes of its own, where no stand-in is.
    Rule(r"--resources\.overlap True$", "tests/integration/test_nodes.py"),
    # Everything else is run.
    Rule(r"^(parc|python run_parc\.py|python -m parc_ray\.runner) "),
    Rule(r"^(from|import) .*"),
    Rule(r"^name: (mine|waddler)$"),
)


def units() -> list[Unit]:
    """All code of all pages, in order."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in _FENCE.finditer(text):
            indent, kind, body = match.groups()
            line = text.count("\n", 0, match.start()) + 2
            rows = [row.removeprefix(indent) for row in body.splitlines()]
            name = str(page.relative_to(ROOT))
            block = "\n".join(rows)
            whole = kind not in _SHELL or re.match(r"#!| initial clips|# fps", block)
            if whole:
                found.append(Unit(name, line, kind, block))
                continue
            for number, row in enumerate(rows):
                words = re.sub(r"\s+#\s.*$", "", row).strip()
                if words:
                    found.append(Unit(name, line + number, kind, words))
    return found


def rule_of(unit: Unit) -> Rule | None:
    """The first rule that covers a unit."""
    return next((rule for rule in RULES if rule.covers(unit)), None)
