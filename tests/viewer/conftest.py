"""A finished run whose models learnt nothing, shared by the tests of the viewer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.evaluation.runs import make_run, tiny_config


@pytest.fixture(scope="package")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tiny_config(tmp_path_factory.mktemp("viewer")))
