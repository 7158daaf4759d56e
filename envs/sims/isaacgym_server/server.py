"""The server's loop: hello, then one step per byte until the client is gone.

It ends with its client: the control socket is then at its end, and a thread of its own waits on a
second one, so that also a server in the middle of a step does. On Linux the system kills it with
its parent, whatever the engine does.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import platform
import signal
import socket
import threading
import traceback
from typing import Any

import numpy as np

from .layout import PROTOCOL, buffer_table, map_buffers
from .wire import DONE, FAILED, PING, STEP, GoneError, receive, receive_json, send_json

_PR_SET_PDEATHSIG = 1


def main(argv: list[str] | None = None) -> int:
    """Serve one client; exit status 0 when it left, 1 after an error (which it was told)."""
    parser = argparse.ArgumentParser(prog="isaacgym_server", description=__doc__)
    for name in ("control", "lifeline", "memory"):
        parser.add_argument("--" + name, type=int, required=True, help="inherited descriptor")
    parser.add_argument("--killed-with-parent", action="store_true", help="by the system")
    options = parser.parse_args(argv)
    if options.killed_with_parent:
        _be_killed_with_parent()
    control = socket.socket(fileno=options.control)
    lifeline = socket.socket(fileno=options.lifeline)
    threading.Thread(target=_die_with_client, args=(lifeline,), daemon=True).start()
    try:
        serve(control, options.memory)
    except (GoneError, BrokenPipeError, ConnectionResetError):
        return 0
    except Exception as error:  # everything is told to the client, which decides
        _tell(control, error)
        return 1
    return 0


def serve(control: socket.socket, memory: int) -> None:
    """Answer one client until it is gone."""
    hello = receive_json(control)
    if hello.get("protocol") != PROTOCOL:
        raise RuntimeError(
            "the client speaks version {} of the bridge, this server {}; use one version of the "
            "project on both sides".format(hello.get("protocol"), PROTOCOL)
        )
    with os.fdopen(os.dup(memory), "rb") as file:
        file.seek(0)
        with np.load(file) as terrain:
            vertices, triangles = terrain["vertices"], terrain["triangles"]
            start = terrain["start"]

    from .simulation import Simulation  # imports isaacgym: an error of it is told like any other

    simulation = Simulation(hello, vertices, triangles, start)
    sizes = (len(simulation.body_names), len(simulation.dof_names))
    rows, size = buffer_table(simulation.num_envs, *sizes, bool(hello["with_bodies"]))
    os.ftruncate(memory, size)
    _, arrays = map_buffers(memory, rows, size)
    for array in arrays.values():
        array[...] = 0
    control.sendall(DONE)
    send_json(control, _answer(simulation, rows, size))
    while True:
        message = receive(control, 1)
        if message == STEP:
            simulation.step(arrays)
        elif message != PING:
            raise RuntimeError(f"message {message!r} is unknown")
        control.sendall(DONE)


def _answer(simulation: Any, rows: list[dict[str, Any]], size: int) -> dict[str, Any]:
    """The server's hello: what it runs on and how the memory is laid out."""
    return {
        "protocol": PROTOCOL,
        "pid": os.getpid(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "device": simulation.device,
        "body_names": simulation.body_names,
        "dof_names": simulation.dof_names,
        "root_com": simulation.root_com(),
        "buffers": rows,
        "size": size,
    }


def _tell(control: socket.socket, error: Exception) -> None:
    """Send an error, if somebody is left to hear it."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        control.sendall(FAILED)
        send_json(control, {"error": f"{type(error).__name__}: {error}", "trace": text})
    except OSError:
        pass


def _be_killed_with_parent() -> None:
    """Let Linux kill this process with its parent, also where the engine hangs and holds the GIL.

    Elsewhere, and where the C library cannot be called, the lifeline's thread is all there is.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _die_with_client(lifeline: socket.socket) -> None:
    """Wait for the end of the client and end at once, whatever the engine does."""
    try:
        while lifeline.recv(1):
            pass
    finally:
        os._exit(0)
