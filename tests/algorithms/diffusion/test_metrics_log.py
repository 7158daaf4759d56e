"""Rows and events of a training that is cut off and goes on."""

from __future__ import annotations

import numpy as np
from tensorboardX.proto.event_pb2 import SessionLog

from algorithms.diffusion.metrics_log import MetricsLog, read_rows
from tests.algorithms.diffusion.test_guard import events


def test_what_was_flushed_is_in_the_files(tmp_path):
    """All of it at once: what was sent is what there is of a machine that was lost."""
    log = MetricsLog(tmp_path)
    for step in range(1, 41):
        log.write({"step": float(step), "loss": 1.0 / step})
    log.picture("samples", np.zeros((2, 3, 3), np.uint8), 40)
    log.flush()
    (file,) = (tmp_path / "tb").iterdir()
    found = [e for e in events(file.read_bytes()) if e.HasField("summary")]
    assert [e.step for e in found] == [*range(1, 41), 40]
    assert [e.summary.value[0].tag for e in found[39:]] == ["generator/loss", "generator/samples"]
    assert found[1].summary.value[0].simple_value == 0.5
    assert [r["step"] for r in read_rows(tmp_path / "metrics.jsonl")] == list(range(1, 41))
    log.close()
    log.close()


def test_a_resumed_log_drops_what_was_beyond_its_step(tmp_path):
    with MetricsLog(tmp_path) as log:
        for step in (1, 2, 3):
            log.write({"step": float(step), "loss": 0.0})
    (tmp_path / "tb").rename(tmp_path / "first")
    with MetricsLog(tmp_path, step=2) as log:
        assert log.last["step"] == 2
        log.write({"step": 3.0, "loss": 1.0})
    assert [r["loss"] for r in read_rows(tmp_path / "metrics.jsonl")] == [0.0, 0.0, 1.0]
    (file,) = (tmp_path / "tb").iterdir()
    (start,) = (e for e in events(file.read_bytes()) if e.HasField("session_log"))
    assert (start.step, start.session_log.status) == (3, SessionLog.START)
