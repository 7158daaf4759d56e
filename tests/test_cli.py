"""The command line as a person meets it: exit codes, one line, no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from parc_ray import cli
from parc_ray.errors import InputError
from parc_ray.stages.registry import clear_overrides
from tests.fakes import install

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def _fakes():
    install()
    yield
    clear_overrides()


def call(capsys, *argv):
    with pytest.raises(SystemExit) as caught:
        cli.main(list(argv))
    output = capsys.readouterr()
    return caught.value.code, output.out, output.err


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["rum"], "did you mean 'run'?"),
        (["train-trackr"], "did you mean 'train-tracker'?"),
        (["run", "--recipe", "smokey"], "did you mean 'smoke'?"),
        (["run", "--generator.trian.steps", "1"], "did you mean --generator.train.steps?"),
        (["run", "--recipe", "smoke", "--data", "/nowhere"], "/nowhere does not exist"),
        (["record"], "stage record of this run exists in iterations 0, 1, 2; give one"),
        (["record", "--iteration", "9"], "--iteration: 9;"),
        (["record", "--iteration", "1"], "is not finished; run `parc"),
        (["info", "/nowhere"], "no run directory"),
        (["info", "a", "b"], "unrecognized arguments"),
    ],
)
def test_wrong_input_is_one_line_and_code_2(capsys, tmp_path, argv, expected):
    if argv[0] in ("run", "record"):
        argv = [*argv, "--storage", str(tmp_path)]
    code, out, err = call(capsys, *argv)
    assert code == 2
    assert out == ""
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert expected in lines[0]
    assert "Traceback" not in err


def test_run_continues_and_info_tells(capsys, tmp_path):
    common = ["--recipe", "smoke", "--storage", str(tmp_path), "--iterations", "1"]
    assert call(capsys, "augment", *common)[0] == 0
    code, out, _ = call(capsys, "info", str(tmp_path / "smoke"))
    assert code == 0
    assert "it_00/augment" in out
    assert "it_01/generate             to do" in out
    assert call(capsys, "run", *common)[0] == 0
    code, out, _ = call(capsys, "info", "--json", str(tmp_path / "smoke"))
    stages = json.loads(out)["stages"]
    assert code == 0
    assert all(state.startswith("done in") for state in stages.values())


def test_help_names_every_command_and_version_is_printed(capsys):
    code, out, _ = call(capsys, "--help")
    assert code == 0
    assert {"run", "info", "generate", "record"} <= {
        line.split()[0] for line in out.splitlines() if line.strip()
    }
    import parc_ray

    assert call(capsys, "--version")[1].strip() == parc_ray.__version__


def test_help_of_run_and_of_the_config(capsys):
    code, out, _ = call(capsys, "run", "--help")
    assert code == 0
    assert "--help-config" in out
    code, out, _ = call(capsys, "run", "--help-config")
    assert code == 0
    assert "--generator.train.steps" in out
    assert "Optimiser steps" in out


def test_other_errors_keep_their_traceback(monkeypatch):
    def broken():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        cli.guarded(broken)


def test_an_input_error_from_a_ray_worker_is_recognised(capsys):
    class TaskError(Exception):
        cause = InputError("clip a.pkl: NaN in root_pos; finite numbers are allowed; repair it")

    def work():
        raise TaskError("long remote traceback")

    assert cli.guarded(work) == 2
    assert capsys.readouterr().err.startswith("error: clip a.pkl: NaN in root_pos")


def test_an_interrupt_says_how_to_continue(capsys):
    def work():
        raise KeyboardInterrupt

    assert cli.guarded(work) == 1
    assert "same command continues" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["run_parc.py"], ["-m", "parc_ray.cli", "run"]])
def test_the_scripts_exit_with_code_2_as_well(command):
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, *command, "--recipe", "nope"]
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "unknown recipe" in done.stderr
