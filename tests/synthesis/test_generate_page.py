"""The page of generated motions: figures, rejections by family, and what it is made from."""

from __future__ import annotations

import csv
from dataclasses import replace

import pytest

from benchmarks import synthesis_generate as page
from parc_ray.data.storage import Storage
from parc_ray.data.store import save_dataset
from parc_ray.errors import InputError
from parc_ray.motion.clip import Provenance
from parc_ray.stages.base import StageResult
from tests.synthesis.helpers import walk_clip

OPTIONS = ["--generator", "g.pt", "--motions", "2", "--candidates", "3", "--difficulty", "0.4"]


def options(tmp_path):
    return page._options([*OPTIONS, "--work", str(tmp_path / "runs"), "--out", str(tmp_path)])


def made(character, number, before, after):
    """A finished clip on terrain ``number`` and its mirror image, by name."""
    clip = walk_clip(character, f"it01_t{number:05d}_c000", seconds=1.0)
    values = dict(zip(page.WHEN, (before, after), strict=True))
    metrics = {f"{name}_{w}": v for name, _ in page.FIGURES for w, v in values.items()}
    clip = replace(
        clip,
        path_nodes=clip.frames.root_pos[[0, -1]].clone(),
        metrics={**metrics, "kin_iterations": 200.0, "hesitation_frames": 0.0},
        provenance=Provenance(source="synthetic", seeds={"terrain": number}),
    )
    return [clip, replace(clip, clip_id=f"{clip.clip_id}_m")]


@pytest.fixture
def run(tmp_path, humanoid):
    """A finished stage: two motions on three terrains, one of which had no path."""
    storage = Storage.from_uri(tmp_path / "runs" / "generate")
    stage = storage.join("it_01/generate")
    clips = [*made(humanoid, 0, 8.0, 1.0), *made(humanoid, 2, 4.0, 0.2)]
    save_dataset(stage, "M1", clips, humanoid.digest)
    families = [{"0": "gaps", "1": "walls"}, {"2": "gaps"}]
    stage.write_json_atomic("records.json", [{"families": f} for f in families])
    tables = {
        "rejections.csv": (
            "terrain,candidate,reason",
            "0,1,unfinished: 0.5 of the path against 1",
            "2,0,unfinished: 0.1 of the path against 1",
            "1,,no path: too high",
            "0,2,contact: 40 m against 30",
        ),
        "throughput.csv": (
            "operator,items,motions,cpu_s,wall_share",
            "plan,2,2,10,0.1",
            "roll-out,2,2,26,0.9",
        ),
    }
    for name, lines in tables.items():
        stage.write_bytes_atomic(name, "\n".join(lines).encode())
    return storage


def test_the_page_tells_means_rates_and_reasons(tmp_path, run):
    asked = options(tmp_path)
    result = StageResult(
        name="generate",
        iteration=1,
        outputs={},
        inputs={},
        metrics={"candidates": 6.0, "candidates_finished": 4.0},
        config_hash="",
        seconds=1.0,
        cpu_seconds=1.0,
    )
    figures = page.write_page(run, page.settings(asked), result, tmp_path, asked)
    assert figures["motions"] == 2
    assert figures["motions_per_cpu_h"] == pytest.approx(2 / 36 * 3600)
    assert figures["tpl_before"] == pytest.approx(6.0)
    assert figures["tpl_ratio"] == pytest.approx(6.0 / 0.6)
    text = (tmp_path / "generate.md").read_text()
    assert "| family | terrains | kept | unfinished | contact | no path |" in text
    assert "| gaps | 2 | 2 | 2 | 1 | 0 |" in text
    assert "| walls | 1 | 0 | 0 | 0 | 1 |" in text
    assert "| all | 3 | 2 | 2 | 1 | 1 |" in text
    assert "| TPL (m) | 6 (6) | 0.6 (0.6) |" in text
    with (tmp_path / "generate" / "motions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(r["terrain"], r["family"], r["tpl_after"]) for r in rows] == [
        ("0", "gaps", "1"),
        ("2", "gaps", "0.2"),
    ]


def test_settings_are_those_of_base_but_for_what_is_asked(tmp_path):
    config = page.settings(options(tmp_path))
    row = config.iterations[0]
    assert (row.motions, row.candidates, row.terrain.kind) == (2, 3, "mixed")
    assert row.terrain.difficulty == 0.4
    assert config.synthesis.rollout.max_duration_s == 6.0
    assert config.resources.gpus_per_worker == 0
    with pytest.raises(InputError, match="--generator"):
        page.install(str(tmp_path / "none.pt"))
