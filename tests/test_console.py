"""Log lines and the numbers in them."""

from __future__ import annotations

import logging

import pytest

from parc_ray.console import format_metrics, format_seconds, setup_logging
from parc_ray.errors import InputError


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.94, "59.9 s"), (185, "3 min 05 s"), (7800, "2 h 10 min")],
)
def test_durations(seconds, text):
    assert format_seconds(seconds) == text


def test_metrics_on_one_line():
    shown = format_metrics({"clips": 12.0, "loss": 0.123456, "fwd": None}, limit=3)
    assert shown == "clips 12, loss 0.1235, fwd undefined"
    assert format_metrics({"a": 1.0, "b": 2.0}, limit=1) == "a 1, ..."


def test_logging_goes_to_stderr_and_file_once(tmp_path, capsys):
    for _ in range(2):
        setup_logging(file=tmp_path / "a" / "run.log")
    logging.getLogger("parc_ray.x").info("hello")
    logging.getLogger("algorithms.ppo").info("there")
    logging.getLogger("somebody.else").warning("quiet")
    err = capsys.readouterr().err
    assert err.count("hello") == 1
    assert (tmp_path / "a/run.log").read_text().count("there") == 1
    assert "quiet" not in (tmp_path / "a/run.log").read_text()


def test_input_errors_are_one_line_whatever_they_are_built_from():
    assert str(InputError("a:\n  b;   c")) == "a: b; c"


def test_a_test_that_follows_is_heard_by_caplog(caplog):
    """Whatever ran before: `tests/conftest.py` undoes what `setup_logging` leaves."""
    for name in ("parc_ray.x", "algorithms.ppo", "envs.sims"):
        logging.getLogger(name).warning("heard")
    assert caplog.text.count("heard") == 3
