"""``parc import``: refusals by name, repair, the report; ``parc info`` of what came of it."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from parc_ray import cli
from parc_ray.data.duplicates import Overlap
from parc_ray.data.manifest import Manifest
from parc_ray.data.storage import Storage
from parc_ray.data.store import extend, load_dataset, save_dataset, write_part
from parc_ray.motion.clip import Provenance
from parc_ray.motion.mirror import mirror_frames
from parc_ray.tools import import_report
from tests.data import files
from tests.motion.motions import make_clip

NAN = float("nan")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    path = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr(import_report, "cache_dir", lambda: path)
    return path


def call(capsys, *argv):
    """Exit code, standard output and error output of a command."""
    with pytest.raises(SystemExit) as caught:
        cli.main([str(word) for word in argv])
    output = capsys.readouterr()
    return caught.value.code, output.out, output.err


def set_frames(rows, columns, value):
    def change(data):
        block = np.array(data["frames"])
        block[rows, columns] = value
        data["frames"] = block

    return change


@pytest.fixture
def folder(tmp_path, humanoid):
    """One good motion, one that repair can mend, two that nothing can, one that is short."""
    path = tmp_path / "motions"
    path.mkdir()
    files.mimickit(path / "good.pkl", humanoid)
    files.mimickit(path / "gap.pkl", humanoid, change=set_frames(slice(5, 8), 9, NAN))
    files.mimickit(path / "teleport.pkl", humanoid, change=set_frames(slice(20, None), 0, 40.0))
    files.parc_ms(path / "cut.pkl", humanoid)
    (path / "cut.pkl").write_bytes((path / "cut.pkl").read_bytes()[:-50])
    files.mimickit(path / "short.pkl", humanoid, frames=6)
    return path


def test_all_files_that_fail_are_named_at_once(folder, tmp_path, capsys):
    code, out, err = call(capsys, "import", folder, "--out", tmp_path / "set")
    assert code == 2
    assert out == ""
    assert len(err.splitlines()) == 1
    assert "3 of 5 motions cannot be used" in err
    for words in ("cut.pkl: ", "gap.pkl: frames: NaN", "teleport.pkl: clip 'teleport': fails"):
        assert words in err
    assert "root_speed" in err
    assert "good.pkl" not in err
    assert not (tmp_path / "set").exists()


def test_check_tells_everything_and_then_fails(folder, tmp_path, capsys):
    report = tmp_path / "seen.csv"
    code, out, err = call(capsys, "import", folder, "--check", "--report", report)
    assert code == 2
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[2:3]] == ["good"]
    assert sum(line.startswith("refused: ") for line in lines) == 3
    assert sum(line.startswith("left out: ") for line in lines) == 1
    assert "3 of 5 motions" in err
    rows = {row["clip"].split("/")[-1]: row for row in csv.DictReader(report.open())}
    assert {name: row["verdict"] for name, row in rows.items()} == {
        "good": "ok",
        "cut.pkl": "fail",
        "gap.pkl": "fail",
        "teleport.pkl": "fail",
        "short.pkl": "short",
    }
    assert "root_speed" in rows["teleport.pkl"]["reason"]
    assert float(rows["good"]["foot_slide"]) == pytest.approx(1.0, abs=0.4)
    content = json.loads((tmp_path / "seen.json").read_text())
    assert content["totals"]["clips"] == 1
    assert len(content["clips"]) == 5


def test_skip_bad_imports_the_rest_and_lists_it(folder, tmp_path, capsys):
    code, out, _ = call(capsys, "import", folder, "--out", tmp_path / "set", "--skip-bad")
    assert code == 0
    assert [clip.clip_id for clip in load_dataset(tmp_path / "set")[1]] == ["good"]
    assert out.count("refused: ") == 3
    content = json.loads((tmp_path / "set" / "import_report.json").read_text())
    assert [c["verdict"] for c in content["clips"]] == ["ok", "fail", "fail", "fail", "short"]


def test_repair_mends_and_says_so_everywhere(folder, tmp_path, capsys):
    words = ("--out", tmp_path / "set", "--skip-bad", "--repair", "--licence", "CC0-1.0")
    code, out, err = call(capsys, "import", folder, *words)
    assert code == 0
    clips = {clip.clip_id: clip for clip in load_dataset(tmp_path / "set")[1]}
    assert set(clips) == {"gap", "good"}
    change = "joint head: 3 frames interpolated"
    assert f"repaired: gap: {change}" in out
    assert change in clips["gap"].provenance.notes
    assert {clip.provenance.licence for clip in clips.values()} == {"CC0-1.0"}
    rows = {r["clip"]: r for r in csv.DictReader((tmp_path / "set/import_report.csv").open())}
    assert rows["gap"]["repairs"] == change
    assert "report: " in err
    code, out, _ = call(capsys, "info", "--json", tmp_path / "set")
    assert json.loads(out)["checks"]["repaired"] == 1


def test_a_check_alone_leaves_its_report_in_the_cache(tmp_path, humanoid, capsys, cache):
    files.mimickit(tmp_path / "walk.pkl", humanoid)
    code, _, err = call(capsys, "import", tmp_path / "walk.pkl", "--check")
    assert code == 0
    written = sorted((cache / "checks").iterdir())
    assert [p.suffix for p in written] == [".csv", ".json"]
    assert f"report: {cache}/checks/{written[0].name}" in err
    code, _, err = call(
        capsys, "import", tmp_path / "walk.pkl", "--check", "--report", tmp_path / "no/x.csv"
    )
    assert code == 2
    assert "--report" in err


def test_a_check_that_refuses_leaves_its_report_too(folder, capsys, cache):
    code, _, err = call(capsys, "import", folder, "--check")
    assert code == 2
    (table,) = (cache / "checks").glob("*.csv")
    rows = list(csv.DictReader(table.open()))
    assert sum(row["verdict"] == "fail" for row in rows) == 3
    assert err.count("error: ") == 1


def test_what_was_passed_over_is_told(tmp_path, humanoid, capsys):
    files.mimickit(tmp_path / "walk.pkl", humanoid)
    (tmp_path / "half.npz").write_bytes(b"PK\x03\x04")
    (tmp_path / "list.csv").write_text("a,b\n1,2\n")
    (tmp_path / "README.md").write_text("hello")
    code, out, _ = call(capsys, "import", tmp_path, "--check")
    assert code == 0
    (line,) = [line for line in out.splitlines() if line.startswith("passed over: ")]
    assert line.startswith("passed over: 2 files")
    assert "half.npz" in line
    assert "list.csv" in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--out", ""), "--out DIR is needed"),
        (("--check", "--report", "."), "is a directory"),
        (("--check", "--cell-size", "1e9"), "cell_size"),
        (("--check", "--cell-size", "nan"), "cell_size: nan"),
        (("--check", "--unroll-s", "nan"), "unroll_s: nan"),
        (("--check", "--unroll-s", "1e12"), "unroll_s: 1e+12"),
    ],
)
def test_wrong_options_get_one_line(tmp_path, humanoid, capsys, words, said):
    files.mimickit(tmp_path / "walk.pkl", humanoid, loop=1)
    code, out, err = call(capsys, "import", tmp_path / "walk.pkl", *words)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert said in err


def test_the_remedy_is_that_of_the_cause(tmp_path, humanoid, capsys):
    def in_millimetres(data):
        data["frames"] = np.array(data["frames"]) * np.where(np.arange(34) < 3, 300.0, 1.0)

    files.mimickit(tmp_path / "walk.pkl", humanoid, change=in_millimetres)
    code, _, err = call(capsys, "import", tmp_path / "walk.pkl", "--check")
    assert code == 2
    assert "positions are metres" in err


def test_copies_are_pointed_out(tmp_path, humanoid, capsys):
    folder = tmp_path / "two"
    folder.mkdir()

    def swing(data):
        block = np.array(data["frames"])
        t = np.arange(len(block))[:, None] / 30
        block[:, 6:] = 0.3 * np.sin(3 * t + np.arange(block.shape[1] - 6))
        data["frames"] = block

    for name in ("a", "b"):
        files.mimickit(folder / f"{name}.pkl", humanoid, change=swing)
    _, out, _ = call(capsys, "import", folder, "--check", "--min-frames", "2")
    assert out.count("overlap: ") == 1
    assert "overlap: a: 100% in b (100% the other way)" in out


def test_mirror_images_are_pointed_out_and_stand_in_the_report(tmp_path, humanoid, capsys):
    folder = tmp_path / "two"
    folder.mkdir()
    t = torch.arange(60)[:, None] / 30.0
    dof = 0.3 * torch.sin(3 * t + torch.arange(humanoid.skeleton.num_dofs))
    still = make_clip(humanoid, 60).frames
    swing = replace(still, dof=dof)
    for name, frames in (("left", swing), ("right", mirror_frames(humanoid, swing))):

        def put(data, dof=frames.dof):
            block = np.array(data["frames"])
            block[:, 6:] = dof.numpy()
            data["frames"] = block

        files.mimickit(folder / f"{name}.pkl", humanoid, frames=60, change=put)
    report = tmp_path / "seen.csv"
    _, out, _ = call(capsys, "import", folder, "--check", "--report", report)
    lines = [line for line in out.splitlines() if "mirrored in" in line]
    assert lines == ["overlap: left: 100% mirrored in right (100% the other way)"]
    told = {row["clip"]: row["overlaps"] for row in csv.DictReader(report.open())}
    assert "100% mirrored in right" in told["left"]
    assert "100% mirrored in left" in told["right"]


def test_many_copies_take_twenty_lines():
    names = [f"c{n:02d}" for n in range(8)]
    every = [
        Overlap(first=a, second=b, share=0.9 if a < b else 0.4, mirrored=False)
        for a in names
        for b in names
        if a != b
    ]
    lines = import_report.remarks([], sorted(every, key=lambda o: -o.share))
    assert len(lines) == 21
    assert lines[0] == "overlap: c00: 90% in c01 (40% the other way)"
    assert lines[-1] == "overlap: 8 more pairs, all of them in the report"


# ---- parc info ------------------------------------------------------------------------------


@pytest.fixture
def grown(tmp_path, humanoid):
    """D1 of a run: two initial clips, one of them corrected, and two of iteration 1."""

    def clip(name, **told):
        return replace(make_clip(humanoid, clip_id=name), provenance=Provenance(**told))

    run = Storage.from_uri(tmp_path / "run")
    mocap = {"source": "BVH: walk.bvh", "licence": "CC-BY-4.0", "class_name": "walk"}
    first = [
        clip("walk_rec", **mocap, maker="tracker", parents=("walk",)),
        clip("climb", source="x.pkl", class_name="climb", notes="terrain inferred, levels 0.00 m"),
    ]
    made = {"source": "generator", "licence": "that of D0", "class_name": "generated_boxes"}
    second = [
        clip(f"g{n}", **made, maker="tracker", iteration=1, parents=("walk_rec",)) for n in (1, 2)
    ]
    second[1].metrics.update(tpl=0.5, check_penetration=0.05)
    d0 = Manifest(
        name="D0",
        parts=(write_part(run, "it_00/a.parquet", first),),
        character_digest=humanoid.digest,
    )
    d1 = extend(d0, [write_part(run, "it_01/b.parquet", second)], "D1")
    d1.save(run, "it_01/merge/manifest.json")
    return tmp_path / "run" / "it_01" / "merge" / "manifest.json"


def test_info_tells_of_a_data_set(grown, capsys):
    code, out, _ = call(capsys, "info", "--json", "--verify", grown)
    assert code == 0
    facts = json.loads(out)
    assert (facts["name"], facts["iteration"], facts["clips"]) == ("D1", 1, 4)
    assert facts["seconds"] == pytest.approx(4.0)  # 31 frames each
    shares = {name: round(c["share"], 6) for name, c in facts["classes"].items()}
    assert shares == pytest.approx({"walk": 1 / 3, "climb": 1 / 3, "generated_boxes": 1 / 3})
    assert facts["classes"]["generated_boxes"]["clips"] == 2
    lineage = facts["lineage"]
    assert lineage["data_sets"] == ["D0", "D1"]
    assert {k: v["clips"] for k, v in lineage["made"].items()} == {
        "0 import": 1,
        "0 tracker": 1,
        "1 tracker": 2,
    }
    assert (lineage["parents_in_set"], lineage["parents_outside"]) == (1, 1)
    assert lineage["generations"] == 2
    assert {k: v["clips"] for k, v in facts["licences"].items()} == {
        "CC-BY-4.0": 1,
        "that of D0": 2,
        "unknown": 1,
    }
    assert "BVH: walk.bvh [CC-BY-4.0]" in facts["sources"]
    assert facts["terrain"]["inferred"]["clips"] == 1
    assert facts["terrain"]["given"]["clips"] == 3
    assert facts["checks"]["verdicts"] == {"unchecked": 3, "warn": 1}
    assert facts["checks"]["by_check"] == {"penetration": {"warn": 1}}
    assert facts["metrics"]["tpl"] == {"clips": 1, "mean": 0.5, "max": 0.5}
    stored = facts["storage"]
    root = grown.parents[2]
    sizes = sum(p.stat().st_size for p in root.rglob("*.parquet"))
    assert (stored["parts"], stored["bytes"], stored["hashes_verified"]) == (2, sizes, True)
    assert stored["schema_versions"] == {"2": 2}


def test_info_prints_the_same_as_text(grown, capsys):
    code, out, _ = call(capsys, "info", grown.parent)
    assert code == 0
    for words in ("data set D1 of iteration 1: 4 clips", "lineage: D1 <- D0", "CC-BY-4.0"):
        assert words in out
    assert "hashes not verified (--verify)" in out
    assert "checks: 3 unchecked, 1 warn" in out or "checks: 1 warn, 3 unchecked" in out


def test_info_notices_changed_and_missing_parts(grown, capsys):
    part = grown.parents[2] / "it_01" / "b.parquet"
    data = bytearray(part.read_bytes())
    data[60] ^= 1
    part.write_bytes(bytes(data))
    code, _, err = call(capsys, "info", "--verify", grown)
    assert code == 2
    assert "sha256" in err
    part.unlink()
    code, _, err = call(capsys, "info", grown)
    assert code == 2
    assert "b.parquet: part of the data set does not exist" in err
    code, _, err = call(capsys, "info", "--verify")
    assert code == 2
    assert "--verify" in err


def test_info_of_an_empty_data_set(tmp_path, humanoid, capsys):
    save_dataset(tmp_path / "set", "none", [], humanoid.digest)
    code, out, _ = call(capsys, "info", tmp_path / "set")
    assert code == 0
    assert "data set none of iteration 0: 0 clips, 0.0 s" in out
