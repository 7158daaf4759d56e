"""Storage that fails for a while, for ever, or is full."""

from __future__ import annotations

import errno
import os

import pytest

from parc_ray.cli import guarded
from parc_ray.data import patience
from parc_ray.data.patience import StorageError, patiently
from parc_ray.data.storage import Storage


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


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_not_waited_for(waits, number):
    with pytest.raises(StorageError, match=r"run/x: no space is left .* make room"):
        patiently("run/x", failing(number))
    assert not waits


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
