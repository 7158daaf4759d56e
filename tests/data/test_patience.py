"""Storage that fails for a while, for ever, or is full."""

from __future__ import annotations

import errno
import os
import threading

import pytest

from parc_ray.cli import guarded
from parc_ray.data import patience
from parc_ray.data.patience import StorageError, patiently
from parc_ray.data.storage import Storage


@pytest.fixture(autouse=True)
def _patient_again():
    """What one test gave up on is tried again in the next."""
    patience._given_up.clear()
    yield
    patience._given_up.clear()


@pytest.fixture
def waits(monkeypatch) -> list[float]:
    """Pauses that were made; none takes time."""
    made: list[float] = []
    monkeypatch.setattr(patience.time, "sleep", made.append)
    return made


def failing(*numbers: int):
    """A call that fails with each of these errors in turn, then gives 7."""
    left = list(numbers)

    def call() -> int:
        if left:
            number = left.pop(0)
            raise OSError(number, os.strerror(number))
        return 7

    return call


def test_a_call_is_repeated_with_growing_pauses(waits):
    assert patiently("p", failing(errno.EIO, errno.ESTALE, errno.ETIMEDOUT)) == 7
    assert waits == sorted(waits)
    assert len(waits) == 3


def test_it_ends_with_one_line_that_says_what_to_do(waits):
    with pytest.raises(StorageError, match=r"run/x: storage failed 8 times .* is kept; .*continue"):
        patiently("run/x", failing(*[errno.EIO] * 99))
    assert tuple(waits) == patience.WAITS_S


def test_after_giving_up_nobody_waits_again_until_a_call_succeeds(waits):
    for name, said in (("x", "storage failed 8 times"), ("y", "storage still fails")):
        with pytest.raises(StorageError, match=f"run/{name}: {said} .* is kept"):
            patiently(f"run/{name}", failing(*[errno.EIO] * 99))
    assert tuple(waits) == patience.WAITS_S
    assert patiently("run/z", failing()) == 7
    assert patiently("run/z", failing(errno.EIO, errno.EIO)) == 7
    assert len(waits) == len(patience.WAITS_S) + 2


def test_a_thread_that_gave_up_leaves_the_main_thread_patient(waits):
    said: list[str] = []

    def beat() -> None:
        for _ in range(2):
            with pytest.raises(StorageError) as caught:
                patiently("driver.json", failing(*[errno.EIO] * 99))
            said.append(str(caught.value))

    def in_a_thread() -> None:
        thread = threading.Thread(target=beat)
        thread.start()
        thread.join()

    in_a_thread()
    assert "failed 8 times" in said[0]
    assert "still fails" in said[1]  # its own next beat is asked for once
    assert patiently("run/x", failing(errno.EIO, errno.EIO)) == 7
    with pytest.raises(StorageError, match="failed 8 times"):
        patiently("run/x", failing(*[errno.EIO] * 99))
    said.clear()
    in_a_thread()  # on the way out nobody waits
    assert all("still fails" in line for line in said)
    assert len(said) == 2


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_not_waited_for(waits, number):
    with pytest.raises(StorageError, match=r"run/x: no space is left .* make room"):
        patiently("run/x", failing(number))
    assert not waits


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_full_disk_under_a_library_is_one_line(capsys, wrapped):
    """A file that nobody asks ``patiently`` to write: a log, a digest, TensorBoard's."""

    def work() -> None:
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/tb/events")
        if wrapped:
            raise RuntimeError("a worker failed") from full
        raise full

    assert guarded(work) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: runs/tb/events: no space is left")
    assert said.count("\n") == 1


def test_other_errors_of_files_keep_their_traceback():
    def work() -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), "runs/tb/events")

    with pytest.raises(PermissionError):
        guarded(work)


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES, errno.EISDIR])
def test_what_cannot_pass_is_raised_at_once(waits, number):
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        patiently("run/x", failing(number))
    assert not isinstance(caught.value, StorageError)
    assert not waits


def test_words_of_object_stores(waits):
    class Busy:
        calls = 0

        def __call__(self) -> int:
            Busy.calls += 1
            if Busy.calls < 3:
                raise OSError("When reading key: AWS Error NETWORK_CONNECTION during GetObject")
            return 1

    assert patiently("s3:b/k", Busy()) == 1
    assert len(waits) == 2
    with pytest.raises(OSError, match="ACCESS_DENIED"):
        patiently("s3:b/k", lambda: (_ for _ in ()).throw(OSError("AWS Error ACCESS_DENIED")))


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path, waits, monkeypatch):
    storage = Storage.from_uri(tmp_path)
    storage.write_bytes_atomic("a", b"old")
    real, fails = os.fsync, [errno.EIO, errno.EIO]

    def fsync(handle: int) -> None:
        if fails:
            number = fails.pop()
            raise OSError(number, os.strerror(number))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    storage.write_bytes_atomic("a", b"new")
    assert storage.read_bytes("a") == b"new"
    assert len(waits) == 2
    fails[:] = [errno.ENOSPC]
    with pytest.raises(StorageError, match="no space is left"):
        storage.write_bytes_atomic("a", b"newer")
    assert storage.read_bytes("a") == b"new"
    assert os.listdir(tmp_path) == ["a"]


def test_the_command_line_prints_one_line_and_exits_with_1(capsys):
    def work() -> None:
        raise RuntimeError("a stage failed") from StorageError("run/x: no space is left; make room")

    assert guarded(work) == 1
    assert capsys.readouterr().err == "error: run/x: no space is left; make room\n"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_checkpoint_on_a_full_or_failing_disk_leaves_the_old_one(
    tmp_path, waits, monkeypatch, number
):
    """Both trainings' files; the disk comes back in time where it only fails."""
    from algorithms.diffusion.checkpoint import read_tensors, write_atomically
    from algorithms.ppo.checkpoint import load_state, save_state

    writers = {"g.pt": write_atomically, "t.pt": lambda c, p: save_state(p, c)}
    for name, write in writers.items():
        path = tmp_path / name
        write({"step": 1}, path)
        real, fails = os.fsync, [number]

        def fsync(handle: int, fails: list[int] = fails, real=real) -> None:
            if fails:
                raise OSError(fails.pop(), "disk")
            real(handle)

        monkeypatch.setattr(os, "fsync", fsync)
        if number == errno.ENOSPC:
            with pytest.raises(StorageError, match=f"{name}: no space is left"):
                write({"step": 2}, path)
        else:
            write({"step": 2}, path)
        monkeypatch.setattr(os, "fsync", real)
        found = read_tensors(path, "file") if name == "g.pt" else load_state(path)
        assert found["step"] == (1 if number == errno.ENOSPC else 2)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(writers)
