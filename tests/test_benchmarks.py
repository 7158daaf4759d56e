"""Every benchmark ends with one JSON object of the figures that it promises."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks._common import Row, TreeUsage, cpu_s, print_result, print_table

ROOT = Path(__file__).resolve().parent.parent
PROMISED = {
    "data.py": (
        ["--quick", "--clips", "600"],
        {"windows_per_s", "samples_per_s", "etl_clips_per_s", "etl_peak_mb"},
    ),
    "generator.py": (
        ["--quick", "--train-steps", "2"],
        {"train_step_cpu_s", "train_step_penetration_cpu_s", "sample32_cpu_s"}
        | {"sample32_blend_cpu_s", "advance_realtime_s", "train_peak_rss_gb"},
    ),
    "tracker.py": (
        ["--quick"],
        {f"step_{task}_over_bare" for task in ("quick", "base", "upstream_layout", "upstream")}
        | {"backend_over_bare", "rllib_us", "ppo_steps_per_cpu_s", "ppo_over_bare"}
        | {"two_learners_over_one"},
    ),
    "viewer.py": (
        ["--quick", "--clips", "200"],
        {
            "view_open_s",
            "view_command_cpu_s",
            "view_scrub_hz",
            "view_scene_hz",
            "view_first_look_s",
        },
    ),
    "bridge.py": (
        ["--quick", "--envs", "256"],
        {"overhead_ms", "overhead_reset_ms", "overhead_bodies_ms", "overhead_bodies_reset_ms"}
        | {"handshake_us", "contact_ms"},
    ),
    "render.py": (
        ["--quick", "--seconds", "0.4"],
        {"mp4_wall_s", "mp4_cpu_s", "software_picture_cpu_s", "pictures"},
    ),
    "gpu.py": (
        ["--quick", "--device", "cpu", "--character", str(ROOT / "tests" / "assets" / "stool.xml")],
        {"copy_gb_s", "matmul_f32_tflops", "sim_flat_2_steps_s", "sim_boxes_2_steps_s"}
        | {"tracker_samples_s", "generator_train_windows_s", "generator_sample_windows_s"},
    ),
    "synthesis.py": (
        ["--tiny"],
        {f"{part}{n}_cpu_s" for part in ("path", "loss") for n in (16, 32, 40)}
        | {"opt_iter_cpu_s", "opt_motion_cpu_s"},
    ),
}
"""Options that make it short, and its figures; all of them positive."""


def marked(script: str):
    """Those of several minutes are not for CI."""
    return pytest.param(script, marks=pytest.mark.long) if script == "generator.py" else script


@pytest.mark.slow
@pytest.mark.parametrize("script", [marked(s) for s in sorted(PROMISED)])
def test_last_line_is_json_with_the_figures(script):
    options, names = PROMISED[script]
    command = [sys.executable, str(ROOT / "benchmarks" / script), *options]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=dict(os.environ), timeout=600
    )
    figures = json.loads(done.stdout.splitlines()[-1])
    assert names <= set(figures)
    assert all(figures[name] > 0 for name in names)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "option"),
    [
        ("chaos.py", "--work"),
        ("correction_study.py", "--work"),
        ("mpc.py", "--work"),
        ("scale.py", "--part"),
        ("scale_schedule.py", "--part"),
    ],
)
def test_scripts_start_as_their_pages_say(script, option):
    """From anywhere, with nothing on the path but what is installed."""
    plain = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, str(ROOT / "benchmarks" / script), "--help"]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=plain, cwd="/", timeout=300
    )
    assert option in done.stdout


def test_table_and_result(capsys):
    rows = [
        Row(name="fast", ours=200.0, other=50.0, label="peer", unit="1/s"),
        Row(name="alone", ours=3.0),
    ]
    print_table("Title", rows)
    print_result({"a": 1.23456, "b": 2})
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "Title"
    assert lines[3].split() == ["fast", "200", "50", "4", "1/s", "peer"]
    assert lines[4].split() == ["alone", "3"]
    assert json.loads(lines[-1]) == {"a": 1.2346, "b": 2.0}


def test_cpu_time_is_of_one_call():
    calls = []
    assert cpu_s(lambda: calls.append(sum(range(20_000))), seconds=0.01) > 0
    assert len(calls) >= 4


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="reads /proc, Linux only")
def test_memory_and_time_of_children_count():
    """A child that holds 60 MB and computes is seen in the sums of its parent."""
    code = "x = bytearray(60_000_000); sum(range(20_000_000)); import time; time.sleep(0.5)"
    with TreeUsage() as alone:
        pass
    with TreeUsage(interval_s=0.05) as usage:
        subprocess.run([sys.executable, "-c", code], check=True)
    assert usage.peak_mb > alone.peak_mb + 50
    assert usage.processes >= 2
    assert usage.cpu_s > 0.05
    assert sum(usage.peak_parts.values()) == pytest.approx(usage.peak_mb, rel=0.01)
    assert usage.peak_rss_mb >= usage.peak_mb - 1.0
