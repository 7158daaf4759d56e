"""``parc report``: a page about a run at any stage of its way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parc_ray import cli, loop
from parc_ray.character.character import load_character
from parc_ray.data.importers import import_path
from parc_ray.stages._datasets import save_manifest, write_clips
from parc_ray.stages.base import StageOutputs
from parc_ray.stages.registry import StageSpec, clear_overrides, override_stage
from tests.data import files
from tests.fakes import fake_config, install, section


@pytest.fixture
def begin(tmp_path, humanoid):
    """Runs the first stages of a run whose augment and record leave real clips behind."""
    (tmp_path / "motions").mkdir()
    for name in ("a", "b"):
        files.mimickit(tmp_path / "motions" / f"{name}.pkl", humanoid, frames=20)
    clips = import_path(tmp_path / "motions", humanoid)

    def stage(name, made, records=None):
        def body(run):
            parts = write_clips(run, made, name)
            save_manifest(run, name, parts, load_character("humanoid"))
            if records is not None:
                run.dir.write_json_atomic("records.json", records)
            metrics = {"attempted": 2.0, "corrected_mpc": 1.0, "seconds": 0.6}
            return StageOutputs(
                paths={"dataset": "manifest.json", "recorded": "manifest.json"}, metrics=metrics
            )

        return StageSpec(section=section, body=body, needs_ray=False)

    shared = {"corrector": "mpc", "seconds": clips[0].duration_s}
    records = [
        {**shared, "source_id": "a", "clip_id": "a", "whole": True},
        {**shared, "source_id": "b", "clip_id": None, "whole": False},
    ]
    install()
    override_stage("augment", stage("augment", clips))
    override_stage("record", stage("record", clips[:1], records))

    def run(count):
        config = fake_config(str(tmp_path / "runs"), name="r")
        config = replace(config, d0=replace(config.d0, correction="mpc"))
        loop.run_stages(config, loop.plan(config)[:count])
        return tmp_path / "runs" / "r"

    yield run
    clear_overrides()


def report(capsys, *argv) -> str:
    with pytest.raises(SystemExit) as caught:
        cli.main(["report", *map(str, argv)])
    output = capsys.readouterr()
    assert caught.value.code == 0, output.err
    return output.out


def test_after_the_first_stage(begin, capsys):
    run = begin(1)
    out = report(capsys, run)
    page = (run / "report.html").read_text()
    assert out.startswith(f"{run / 'report.html'}: 1 finished stages")
    assert "PARC run r" in page
    assert "before and after correction" not in page


def test_it_grows_with_the_run_and_leaves_its_stages_alone(begin, capsys, tmp_path):
    run = begin(2)
    stages = {p: p.read_bytes() for p in run.rglob("it_*/**/*") if p.is_file()}
    report(capsys, run)
    page = (run / "report.html").read_text()
    assert "initial clips before and after correction" in page
    assert "a: corrected by mpc, whole" in page
    assert "b: not corrected" in page
    assert page.count("data:image/png;base64,") + page.count("data:image/svg") >= 2
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert stages == {p: p.read_bytes() for p in run.rglob("it_*/**/*") if p.is_file()}
    out = report(capsys, run, "--out", tmp_path / "pages" / "mine.html")
    assert (tmp_path / "pages" / "mine.html").read_text() == page
    assert "2 finished stages" in out
