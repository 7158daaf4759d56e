"""Runs on an object store: what is refused, what a store that fails for a while does to them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pyarrow.fs as pafs
import pytest

from algorithms.diffusion.train import CHECKPOINT, _whole_copy
from algorithms.ppo.networks import NetSpec
from algorithms.ppo.policy import MlpPolicy
from algorithms.ppo.storage import METRICS, run_folder
from parc_ray import cli, loop
from parc_ray.data import patience
from parc_ray.data.digests import digest_name, write_digest
from parc_ray.data.patient_fs import patient
from parc_ray.data.storage import Storage
from parc_ray.errors import InputError
from parc_ray.lock import RunLock
from parc_ray.stages.registry import StageSpec, clear_overrides, override_stage
from tests import fakes
from tests.object_store import object_store


@pytest.fixture(autouse=True)
def _patient_again():
    """What one test gave up on is tried again in the next."""
    patience._given_up.clear()
    yield
    patience._given_up.clear()


@pytest.fixture(scope="module")
def store():
    with object_store("bucket") as store:
        yield store


@pytest.fixture
def fake_stages():
    fakes.install()
    yield
    clear_overrides()


@pytest.fixture
def short_waits(monkeypatch):
    """Pyarrow itself tries for about six seconds."""
    monkeypatch.setattr(patience, "WAITS_S", (0.1, 0.1))


def refused(capsys, storage: str, *more: str) -> str:
    """The only line of a driver that does not begin."""
    with pytest.raises(SystemExit) as caught:
        cli.main(["run", "--recipe", "smoke", "--name", "r", "--storage", storage, *more])
    output = capsys.readouterr()
    assert caught.value.code == 2, output.err
    lines = output.err.splitlines()
    assert len(lines) == 1, lines
    assert "Traceback" not in lines[0]
    return lines[0]


def test_a_bucket_that_does_not_exist(store, capsys):
    line = refused(capsys, store.uri("lacking/runs"))
    assert "s3://lacking/runs: there is no bucket 'lacking'" in line
    assert "make it, or correct the address" in line


class _Closed(BaseHTTPRequestHandler):
    """Answers as S3 does to requests that nobody signed, or that a stranger did."""

    def do_HEAD(self) -> None:
        self.send_response(403)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


class _Limited(BaseHTTPRequestHandler):
    """Answers as S3 does to rights on names that begin with ``runs/``; no object is there."""

    def do_HEAD(self) -> None:
        self.send_response(404 if self.path.startswith("/bucket/runs/") else 403)
        self.end_headers()

    def do_GET(self) -> None:
        allowed = "prefix=runs%2F" in self.path
        answer = b"<ListBucketResult><KeyCount>0</KeyCount></ListBucketResult>" if allowed else b""
        self.send_response(200 if allowed else 403)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def answering(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Options of an address whose server answers so."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = f"127.0.0.1%3A{server.server_address[1]}"
        yield f"endpoint_override={place}&scheme=http&region=us-east-1"
        server.shutdown()


def test_rights_on_the_runs_prefix_alone_are_enough(store):
    with answering(_Limited) as options:
        Storage.from_uri(f"s3://bucket/runs?{options}").require_reachable()
        with pytest.raises(InputError, match="s3://bucket/others: the object store refuses access"):
            Storage.from_uri(f"s3://bucket/others?{options}").require_reachable()
        # Ray makes directories, for which pyarrow looks at the bucket.
        patient(Storage.from_uri(f"s3://bucket/runs?{options}").filesystem).create_dir(
            "bucket/runs/a", recursive=True
        )


def test_credentials_that_are_missing(store, capsys, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with answering(_Closed) as options:
        line = refused(capsys, f"s3://bucket/runs?{options}")
    assert "s3://bucket/runs: the object store refuses access" in line
    assert "AWS_ACCESS_KEY_ID" in line


@pytest.mark.parametrize("address", ["s3://key:secret@bucket/runs", "s3://b/r?secret_key=x"])
def test_credentials_in_the_address(capsys, address):
    line = refused(capsys, address)
    assert "set credentials in the environment" in line
    assert "secret@" not in line


def test_a_store_that_does_not_answer(capsys):
    with object_store("bucket") as store:
        store.stop()
        line = refused(capsys, store.uri("bucket/runs"))
    assert "the object store does not answer" in line


def test_googles_store_is_asked_likewise(capsys):
    """All that is run of ``gs://`` here: addresses, and that nobody answers."""
    place = "endpoint_override=127.0.0.1%3A1&scheme=http&retry_limit_seconds=1"
    line = refused(capsys, f"gs://anonymous@bucket/runs?{place}")
    assert "gs://bucket/runs: the object store does not answer" in line


def test_sweeps_need_a_mounted_directory(tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["sweep", "any.yaml", "--storage", "s3://bucket/sweeps"])
    assert caught.value.code == 2
    assert "--storage: s3://bucket/sweeps is no mounted directory" in capsys.readouterr().err


def test_a_second_driver_is_refused(store, monkeypatch):
    import parc_ray.lock as module

    monkeypatch.setattr(module, "_SETTLE_REMOTE_S", 0.01)
    storage = Storage.from_uri(store.uri("bucket/locked"))
    with RunLock(storage), pytest.raises(InputError, match="another driver"), RunLock(storage):
        pass
    with RunLock(storage):
        pass


def outputs(storage: Storage) -> dict[str, dict[str, str]]:
    names = [n for n in storage.list(recursive=True) if n.endswith("_DONE.json")]
    made = {name: storage.read_json(name)["outputs"] for name in names}
    return {name: {k: a["sha256"] for k, a in made[name].items()} for name in made}


def test_a_loop_on_a_store_that_stops_and_starts_again(store, tmp_path, fake_stages, monkeypatch):
    """Its outputs are those of a loop on disk; the log and the scalars arrive."""
    monkeypatch.setattr(patience, "WAITS_S", (1.0,) * 20)
    local = fakes.fake_config(str(tmp_path))
    loop.run(local)
    expected = outputs(Storage.from_uri(tmp_path / local.name))

    def failing(run):
        store.stop()
        threading.Timer(8.0, store.start).start()
        return fakes.body(run)

    override_stage("generate", StageSpec(section=fakes.section, body=failing, needs_ray=False))
    config = replace(local, storage=store.uri("bucket/loop"))
    loop.run(config)
    run = Storage.from_uri(config.storage).join(config.name)
    assert outputs(run) == expected
    log = run.read_bytes("run.log").decode()
    assert "trying again in" in log
    assert "it_01/merge] done" in log
    assert "finished in" in log.splitlines()[-1]
    assert run.exists("logs/it_01/generate/scalars.csv")
    assert not run.exists("driver.json")
    again = loop.run(config)
    assert all(result.skipped for result in again.values())


@pytest.mark.slow  # pyarrow itself tries every call for six seconds
def test_a_store_that_stays_away_ends_the_loop_with_one_line(
    store, fake_stages, short_waits, capsys
):
    def failing(run):
        store.stop()
        return fakes.body(run)

    override_stage("augment", StageSpec(section=fakes.section, body=failing, needs_ray=False))
    config = fakes.fake_config(store.uri("bucket/away"))
    try:
        assert cli.guarded(lambda: list(loop.run(config)).clear()) == 1
    finally:
        store.start()
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: ")
    assert "what was finished is kept" in last


def test_a_trackers_checkpoints_outlive_its_machine(store):
    place = Storage.from_uri(store.uri("bucket/tracker"))
    policy = MlpPolicy(NetSpec(obs_dim=2, action_dim=1, hidden=(3,), activation="relu"))
    with run_folder(place, keep=1) as folder:
        first = folder.root
        for iteration in (5, 10, 15):
            folder.log(iteration, {"x": float(iteration)})
            policy.notes = {"score": iteration}
            folder.keep_best(policy)
            folder.save(iteration, {"iteration": iteration}, policy)
        folder.log(16, {"x": 16.0})
    assert not first.exists()
    assert place.list_dirs() == ["ckpt_000010", "ckpt_000015"]
    for damaged, newest in ((None, "ckpt_000015"), ("ckpt_000015", "ckpt_000010")):
        if damaged is not None:
            place.write_bytes_atomic(f"{damaged}/state.pt", b"x")
        with run_folder(place, keep=1) as folder:
            found = folder.newest()
            assert found is not None
            assert found.name == newest
            iteration = int(newest[-6:])
            folder.restore(iteration)
            assert MlpPolicy.load(folder.root / "best.pt").notes == {"score": iteration}
            rows = [json.loads(s) for s in (folder.root / METRICS).read_text().splitlines()]
            assert rows[-1]["iteration"] == iteration
    with run_folder(place, keep=1) as folder:
        folder.publish(policy)
    with place.fetched("policy.pt") as file:
        assert MlpPolicy.load(file).digest == policy.digest


def test_a_damaged_checkpoint_of_ray_train_is_passed_over(store, tmp_path):
    """One without its hash, whose upload was cut off, as well."""
    home = Storage.from_uri(store.uri("bucket/train"))
    for number in range(3):
        (tmp_path / CHECKPOINT).write_bytes(b"weights %d" % number)
        write_digest(tmp_path / CHECKPOINT)
        for name in (CHECKPOINT, digest_name(CHECKPOINT)):
            data = (tmp_path / name).read_bytes()
            home.write_bytes_atomic(f"checkpoint_{number}/{name}", data)
    newest = SimpleNamespace(
        path=f"{home.root}/checkpoint_2", filesystem=patient(home.filesystem)
    )  # as Ray Train's

    def found() -> bytes | None:
        with _whole_copy(newest) as file:
            return None if file is None else file.read_bytes()

    assert found() == b"weights 2"
    home.write_bytes_atomic(f"checkpoint_2/{CHECKPOINT}", b"weights x")
    assert found() == b"weights 1"
    home.delete(f"checkpoint_1/{digest_name(CHECKPOINT)}")
    assert found() == b"weights 0"
    home.delete(f"checkpoint_0/{CHECKPOINT}")
    assert found() is None


def test_rays_own_files_wait_for_the_store(store, tmp_path, monkeypatch):
    """As Ray Train uses it: folders copied both ways, small files, old folders removed."""
    monkeypatch.setattr(patience, "WAITS_S", (1.0,) * 20)
    place = Storage.from_uri(store.uri("bucket/ray"))
    filesystem = patient(place.filesystem)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "checkpoint.pt").write_bytes(b"weights" * 1000)
    local = pafs.LocalFileSystem()
    store.stop()
    timer = threading.Timer(8.0, store.start)
    timer.start()
    target = f"{place.root}/checkpoint_1"
    pafs.copy_files(
        str(tmp_path / "a"), target, source_filesystem=local, destination_filesystem=filesystem
    )
    timer.join()
    assert place.read_bytes("checkpoint_1/checkpoint.pt") == b"weights" * 1000
    (tmp_path / "b").mkdir()
    pafs.copy_files(
        target, str(tmp_path / "b"), source_filesystem=filesystem, destination_filesystem=local
    )
    assert (tmp_path / "b" / "checkpoint.pt").read_bytes() == b"weights" * 1000
    with filesystem.open_output_stream(f"{place.root}/state.json") as stream:
        stream.write(b"{")
        stream.write(b"}")
        assert not place.exists("state.json")  # nothing before all of it
    assert place.read_bytes("state.json") == b"{}"
    filesystem.delete_dir(target)
    assert place.list_dirs() == []
    assert filesystem == patient(place.filesystem)
