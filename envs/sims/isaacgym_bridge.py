"""The client's side of the bridge: starts a server, shares memory with it, notices its end.

State goes through unnamed shared memory, what happens every step is one byte on a socket pair.
Neither has a name in a file system, so nothing is left behind however the two processes end.
Messages and layout: `envs.sims.isaacgym_server`.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from envs.sims.devices import assigned_gpu
from envs.sims.isaacgym_server.layout import PROTOCOL, buffer_table, map_buffers
from envs.sims.isaacgym_server.wire import (
    DONE,
    FAILED,
    PING,
    STEP,
    GoneError,
    receive_json,
    send_json,
)
from parc_ray.errors import InputError, SimulatorLostError

logger = logging.getLogger(__name__)

PYTHON = "PARC_ISAACGYM_PYTHON"
"""Environment variable: Python 3.8 that can import isaacgym and torch."""
PYTHONPATH = "PARC_ISAACGYM_PYTHONPATH"
"""Environment variable: import path of the server, in place of this process's own."""
STEP_S = "PARC_ISAACGYM_STEP_S"
"""Environment variable: longest time of a step, s; a property of the machine, like the others."""
_SERVER = Path(__file__).parent / "isaacgym_server"
_SHARED_MEMORY = Path("/dev/shm")
_OWN_SETTINGS = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
_LOG_LINES, _END_S, _STEP_S, _IMPORT_S = 12, 2.0, 4.0, 60.0


class Bridge:
    """One server process and the memory shared with it.

    Args:
        hello: settings of the simulation; `protocol` is added.
        terrain: arrays ``vertices``, ``triangles`` and ``start``.
        names: names of the bodies and of the dofs that the server must have.
        setup_s: longest time that the server may take to be ready, s.
        step_s: longest time of a step, s; a server that takes longer counts as hung. The first
            step may take ``setup_s``. None: the environment variable, else 4.

    Raises:
        InputError: no usable interpreter, or the server says what it lacks.
        SimulatorLostError: it ended or hung before it was ready.
    """

    def __init__(
        self,
        hello: Mapping[str, Any],
        terrain: Mapping[str, NDArray[Any]],
        names: tuple[tuple[str, ...], tuple[str, ...]],
        setup_s: float = 600.0,
        step_s: float | None = None,
    ) -> None:
        """Start the server and wait until it is ready."""
        python = interpreter()
        self.step_s = longest_step() if step_s is None else step_s
        self._patience_s = setup_s
        self._poll = select.poll()
        folder = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed by the finaliser)
        memory = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  (closed below)
        self._control, theirs = socket.socketpair()
        lifeline, their_lifeline = socket.socketpair()
        try:
            np.savez(
                memory,
                vertices=terrain["vertices"],
                triangles=terrain["triangles"],
                start=terrain["start"],
            )
            memory.flush()
            inherited = [theirs.fileno(), their_lifeline.fileno(), memory.fileno()]
            command = [python, str(_SERVER)]
            for name, descriptor in zip(("control", "lifeline", "memory"), inherited, strict=True):
                command += [f"--{name}", str(descriptor)]
            if threading.current_thread() is threading.main_thread():
                command += ["--killed-with-parent"]  # Linux means the thread that started it
            self.process = _spawn(command, inherited, self._log)
            for sock in (theirs, their_lifeline):
                sock.close()
            parts = (self.process, self._control, lifeline, self._log)
            self._finalizer = weakref.finalize(self, _end, *parts)
            self._poll.register(self._control, select.POLLIN)
            self._start(dict(hello), memory, names, setup_s)
        except BaseException:
            self.close()
            raise
        finally:
            memory.close()
            for sock in (theirs, their_lifeline):
                sock.close()

    def step(self) -> None:
        """Let the server read its buffers, advance by a control period and fill ours.

        Raises:
            SimulatorLostError: the server was killed, hangs, or ended by itself.
        """
        self._ask(STEP, max(self._patience_s, self.step_s))
        self._patience_s = self.step_s  # the first step may load and allocate a lot

    def ping(self) -> None:
        """Let the server answer at once; raises as `step`."""
        self._ask(PING, self.step_s)

    def close(self) -> None:
        """End the server."""
        if hasattr(self, "_finalizer"):
            self._finalizer()

    def _ask(self, message: bytes, seconds: float) -> None:
        try:
            self._control.send(message)
        except OSError as error:
            raise self._lost("is gone") from error
        self._answer(seconds)

    def _start(
        self,
        hello: dict[str, Any],
        memory: IO[bytes],
        names: tuple[tuple[str, ...], tuple[str, ...]],
        setup_s: float,
    ) -> None:
        """Exchange hellos, check what the server is, and map the memory."""
        self._control.settimeout(setup_s)
        try:
            send_json(self._control, {**hello, "protocol": PROTOCOL})
        except OSError as error:
            raise self._lost("ended at its start") from error
        self._answer(setup_s)
        try:
            self.about = receive_json(self._control)
        except (GoneError, OSError) as error:
            raise self._lost("said nothing of itself") from error
        self._control.settimeout(None)  # from here on only what was polled is read
        if self.about["protocol"] != PROTOCOL:
            raise InputError(
                f"Isaac Gym server: speaks version {self.about['protocol']} of the bridge, not "
                f"{PROTOCOL}; use one version of the project on both sides"
            )
        for kind, ours in zip(("body", "dof"), names, strict=True):
            theirs = self.about[f"{kind}_names"]
            if sorted(theirs) != sorted(ours):
                raise InputError(
                    f"Isaac Gym: made {kind} names {', '.join(theirs)} of the character, not "
                    f"{', '.join(ours)}; its importer does not understand this MJCF"
                )
        sizes = (hello["num_envs"], len(names[0]), len(names[1]))
        rows, size = buffer_table(*sizes, bool(hello["with_bodies"]))
        if (rows, size) != (self.about["buffers"], self.about["size"]):
            raise InputError("Isaac Gym server: lays the shared memory out in another way")
        self._memory, self.arrays = map_buffers(memory.fileno(), rows, size)
        about = [self.about[k] for k in ("pid", "python", "device")]
        logger.info("Isaac Gym server %d on Python %s simulates on %s", *about)
        if self.about["device"] == "cpu":
            logger.warning(
                "Isaac Gym found no GPU for it and simulates on the CPU, which is slow; a step of "
                "more than %g s counts as hung (%s)",
                self.step_s,
                STEP_S,
            )

    def _answer(self, seconds: float) -> None:
        """Wait for the server's byte.

        Raises:
            SimulatorLostError: see `step`.
            InputError: the server lacks a module.
        """
        if not self._poll.poll(1000.0 * seconds):
            raise self._lost(f"did not answer for {seconds:g} s ({STEP_S} sets the limit)")
        try:
            message = self._control.recv(1)
            if message == DONE:
                return
            if not message:
                raise GoneError("the other side closed the connection")
            self._control.settimeout(seconds)
            report = receive_json(self._control) if message == FAILED else {}
        except (GoneError, OSError) as error:
            raise self._lost("ended") from error
        error = report.get("error", "")
        if error.startswith(("ImportError", "ModuleNotFoundError")):
            self.close()
            raise InputError(f"{PYTHON}: {error}; docs/isaacgym.md says how to get it")
        logger.error("Isaac Gym server failed:\n%s", report.get("trace", repr(message)))
        raise self._lost(f"failed ({report.get('error', repr(message))})")

    def _lost(self, what: str) -> SimulatorLostError:
        """An error with the end of the server's log; the server, or what is left, is ended."""
        process = self.process
        status = process.poll()
        how = "" if status is None else f", exit status {status}"
        _kill(process)
        tail = self.log_tail()
        if tail:
            logger.error("last lines of the Isaac Gym server %d:\n%s", process.pid, tail)
        self.close()
        return SimulatorLostError(
            f"the Isaac Gym server (process {process.pid}) {what}{how}; a new one is started "
            "at the next step"
        )

    def log_tail(self) -> str:
        """Last lines that the server printed."""
        if self._log.closed:
            return ""
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_LINES:])


def _spawn(command: list[str], inherited: list[int], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a server that has these descriptors and writes to ``log``.

    Raises:
        InputError: the interpreter cannot be run.
    """
    try:
        return subprocess.Popen(
            command,
            pass_fds=inherited,
            env=server_environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise InputError(f"{PYTHON}: {command[0]} cannot be run ({error.strerror})") from error


def interpreter() -> str:
    """Path of the server's Python.

    Raises:
        InputError: the variable is not set or names no executable file.
    """
    lack = missing_interpreter()
    if lack is not None:
        raise InputError(lack)
    return os.environ[PYTHON]


def longest_step() -> float:
    """Longest time of a step, s: what the environment variable says, else 4.

    Raises:
        InputError: it says no positive number.
    """
    said = os.environ.get(STEP_S) or str(_STEP_S)
    try:
        seconds = float(said)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < float("inf"):
        raise InputError(f"{STEP_S}: '{said}' is no time; allowed are seconds above 0; change it")
    return seconds


def missing_interpreter() -> str | None:
    """Why no server can be started here, in one sentence; None where one can be tried."""
    path = os.environ.get(PYTHON)
    if not path:
        return (
            f"{PYTHON} is not set; it must name a Python 3.8 that has isaacgym and torch "
            "(docs/isaacgym.md)"
        )
    if not (os.path.isfile(path) and os.access(path, os.X_OK)):
        return (
            f"{PYTHON}: {path} is no executable file; it must name a Python 3.8 (docs/isaacgym.md)"
        )
    return None


def failed_import() -> str | None:
    """Why the interpreter cannot import the package, in one sentence; None where it can."""
    path = interpreter()
    with tempfile.TemporaryFile() as log:
        try:
            process = _spawn([path, "-c", "import sys, isaacgym"], [], log)
        except InputError as error:
            return str(error)
        try:
            status = process.wait(_IMPORT_S)
        except subprocess.TimeoutExpired:
            return f"{PYTHON}: {path} did not import isaacgym within {_IMPORT_S:g} s"
        finally:
            _kill(process)
            process.wait()
        log.seek(0)
        said = log.read().decode(errors="replace").strip().splitlines()
    if status == 0:
        return None
    last = said[-1].strip() if said else f"exit status {status}"
    return f"{PYTHON}: {path} cannot import isaacgym ({last}); docs/isaacgym.md says how to get it"


def server_environment() -> dict[str, str]:
    """This process's environment without its own Python's settings, and with one GPU."""
    environment = {k: v for k, v in os.environ.items() if k not in _OWN_SETTINGS}
    path = os.environ.get(PYTHONPATH)
    if path:
        environment["PYTHONPATH"] = path
    gpu = assigned_gpu()
    if gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = gpu
    return environment


def _end(
    process: subprocess.Popen[bytes],
    control: socket.socket,
    lifeline: socket.socket,
    log: IO[bytes],
) -> None:
    """Close what the server waits on, and kill it where it does not end by that."""
    control.close()
    lifeline.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)
    _kill(process)
    process.wait()
    log.close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the server and, where a script started the interpreter, that too: all of its session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
