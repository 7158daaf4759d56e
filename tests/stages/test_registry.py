"""Stages are found by their files."""

from __future__ import annotations

import pytest

import parc_ray.stages
from parc_ray.errors import InputError
from parc_ray.stages.base import StageOutputs
from parc_ray.stages.registry import (
    StageSpec,
    clear_overrides,
    get_stage,
    override_stage,
    stage_names,
)


@pytest.fixture
def _folder(tmp_path, monkeypatch):
    """Stages in a folder of their own, beside the package's."""
    (tmp_path / "shake_hands.py").write_text(
        "from parc_ray.stages.base import StageOutputs\n"
        "from parc_ray.stages.registry import StageSpec\n"
        "STAGE = StageSpec(section=lambda c, i: i, body=lambda run: StageOutputs(paths={}))\n"
    )
    (tmp_path / "helper.py").write_text("NOT_A_STAGE = 1\n")
    monkeypatch.setattr(parc_ray.stages, "__path__", [*parc_ray.stages.__path__, str(tmp_path)])


@pytest.mark.usefixtures("_folder")
def test_a_stage_is_added_by_one_file():
    assert "shake-hands" in stage_names()
    assert not {"helper", "base", "registry"} & set(stage_names())
    assert get_stage("shake-hands").section(None, 3) == 3


def test_every_stage_there_is_can_be_loaded():
    for name in stage_names():
        assert isinstance(get_stage(name), StageSpec)


def test_an_unknown_stage_is_named_with_the_nearest():
    override_stage(
        "generate", StageSpec(section=lambda c, i: 0, body=lambda run: StageOutputs(paths={}))
    )
    try:
        with pytest.raises(InputError, match="did you mean 'generate'"):
            get_stage("genrate")
    finally:
        clear_overrides()
