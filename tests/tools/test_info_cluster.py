"""``parc info --cluster``: what nodes say of themselves, and what is said of what differs."""

from __future__ import annotations

import copy
import json

import pytest

from parc_ray import cluster
from parc_ray.cli import main
from parc_ray.data.storage import Storage
from parc_ray.errors import InputError
from parc_ray.tools import info, info_cluster
from parc_ray.tools.info_cluster import _read_probe, cluster_facts, cluster_text, problems
from parc_ray.versions import versions


@pytest.fixture(scope="module")
def facts(ray_session, tmp_path_factory):
    place = tmp_path_factory.mktemp("runs") / "new"
    found = cluster_facts("local", str(place))
    assert not place.exists()  # asked about, and left as it was
    return found


def test_one_local_node(facts):
    (node,) = facts["nodes"]
    assert node["resources"]["CPU"] == 4
    assert node["head"]
    assert node["versions"] == versions()
    assert node["storage"] is None
    assert node["simulators"]["mujoco_cpu"] is None
    assert facts["problems"] == []
    text = cluster_text(facts)
    assert "mujoco_cpu: runs here" in text
    assert text.endswith("no problems")
    json.dumps(facts)


def test_what_differs_is_a_problem_each(facts):
    other = copy.deepcopy(facts)
    (node,) = other["nodes"]
    lost = {"address": "10.0.0.9", "head": False, "resources": {}, "error": "no answer within 60 s"}
    node["versions"]["torch"] = "1.0"
    node["storage"] = "storage /x is another directory here"
    other["nodes"].append(lost)
    other["driver"]["storage"] = "storage /x cannot be written"
    said = problems(other)
    assert len(said) == 4
    assert any(f"torch 1.0, the driver has {versions()['torch']}" in s for s in said)
    assert "node 10.0.0.9: no answer within 60 s" in said
    assert cluster_text({**other, "problems": said}).count("\nproblem ") == 5


def test_a_node_that_mounts_something_else_is_seen(tmp_path):
    here, there = Storage.from_uri(tmp_path / "a"), Storage.from_uri(tmp_path / "b")
    here.write_bytes_atomic("probe", b"probe")
    assert _read_probe(here, "probe") is None
    assert "another directory" in str(_read_probe(there, "probe"))


def test_builds_of_one_version_are_no_problem(facts):
    other = copy.deepcopy(facts)
    other["nodes"][0]["versions"]["torch"] = versions()["torch"].partition("+")[0] + "+cu128"
    assert problems(other) == []


def test_what_others_put_into_the_storage_meanwhile_stays(ray_session, tmp_path, monkeypatch):
    place = tmp_path / "new"
    real = info_cluster._write_probe

    def beside_a_run(storage, probe):
        said = real(storage, probe)
        (place / "a_run").mkdir()
        (place / "a_run" / "config.yaml").write_text("")
        return said

    monkeypatch.setattr(info_cluster, "_write_probe", beside_a_run)
    monkeypatch.setattr(info_cluster, "node_facts", _answer)
    cluster_facts("local", str(place))
    assert [p.name for p in place.rglob("*")] == ["a_run", "config.yaml"]


def _answer(place: Storage, probe: str) -> dict[str, object]:
    return {"host": "h", "versions": versions(), "storage": None, "simulators": {}}


def test_without_a_cluster_none_is_started(monkeypatch, capsys, tmp_path):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(cluster, "connect", lambda resources: pytest.fail("connected"))
    with pytest.raises(SystemExit) as caught:
        main(["info", "--cluster"])
    assert caught.value.code == 2
    assert "--address: detect finds no Ray cluster" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["--cluster", "runs/x"], ["--storage", "x"], ["--cluster", "--verify"]]
)
def test_options_that_do_not_go_together(words):
    with pytest.raises(InputError, match="--cluster"):
        info.run(words)


def test_no_cluster_is_one_line(monkeypatch, capsys):
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)

    def refuse(**options):
        raise ConnectionError("nobody")

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(SystemExit) as caught:
        main(["info", "--cluster", "--address", "10.255.0.1:6379"])
    assert caught.value.code == 2
    assert "no Ray cluster answers at '10.255.0.1:6379'" in capsys.readouterr().err
