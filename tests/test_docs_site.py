"""The documentation as a site: it builds, and its pages' links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent


def pages(nav: Any) -> list[str]:
    """Paths in a navigation tree."""
    if isinstance(nav, str):
        return [nav]
    values = nav.values() if isinstance(nav, dict) else nav
    return [page for value in values for page in pages(value)]


NAV = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])


def test_the_site_builds_strictly(tmp_path):
    pytest.importorskip("mkdocs", reason="mkdocs is not installed (extra 'docs')")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for page in NAV:
        name = page.removesuffix("index.md").removesuffix(".md")
        assert (tmp_path / name / "index.html").stat().st_size > 1000


@pytest.mark.parametrize("page", NAV)
def test_links_of_pages_lead_somewhere(page):
    path = ROOT / "docs" / page
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    targets = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", text)
    targets += re.findall(r'<img src="(?!https?:)([^"]+)"', text)
    assert all((path.parent / target).exists() for target in targets), [
        target for target in targets if not (path.parent / target).exists()
    ]
