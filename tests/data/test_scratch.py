"""Scratch directories: gone after their context, and after their process was killed."""

from __future__ import annotations

import subprocess
import sys
import tempfile

import pytest

from parc_ray.data.scratch import scratch


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_what_killed_processes_left_is_removed_and_nothing_else(place):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    with scratch("tracker") as first:
        (first / "ckpt").mkdir()
        (first / "ckpt" / "state.pt").write_bytes(b"x")
        owner, _, _ = first.name.split(".")
        left = place / f"{owner}.{dead.pid}.abc"
        kept = [
            place / f"{owner}.1.abc",  # of a living process
            place / f"{owner}.x.abc",
            place / f"parc-tracker-elsewhere.{dead.pid}.abc",
            place / f"{owner.replace('tracker', 'generator')}.{dead.pid}.abc",
        ]
        for directory in (left, *kept):
            directory.mkdir(parents=True)
            (directory / "file").write_bytes(b"y")
        with scratch("tracker") as second:
            assert not left.exists()
            assert first != second
            assert (first / "ckpt" / "state.pt").exists()
            assert all((directory / "file").exists() for directory in kept)
    assert not first.exists()
    assert not second.exists()
