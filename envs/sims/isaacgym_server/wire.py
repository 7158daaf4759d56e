"""Messages on the control socket: one byte for what happens every step, JSON for the rest.

A JSON message is its length (4 bytes, big-endian) and that many bytes of UTF-8. Closing the socket
is a message, too: the other side is gone.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

STEP = b"s"
"""To the server: set the rows that wait, advance by one control period, refresh the buffers."""
PING = b"p"
"""To the server: answer at once."""
DONE = b"d"
"""To the client: done; after a step the buffers are those of the new moment."""
FAILED = b"f"
"""To the client: a JSON message with the error follows, and the server ends."""
_LENGTH = struct.Struct(">I")


class GoneError(Exception):
    """The other side closed the socket."""


def receive(sock: socket.socket, count: int) -> bytes:
    """Exactly ``count`` bytes.

    Raises:
        GoneError: end of file before.
    """
    data = b""
    while len(data) < count:
        part = sock.recv(count - len(data))
        if not part:
            raise GoneError("the other side closed the connection")
        data += part
    return data


def send_json(sock: socket.socket, value: dict[str, Any]) -> None:
    """Send a JSON object."""
    data = json.dumps(value).encode("utf-8")
    sock.sendall(_LENGTH.pack(len(data)) + data)


def receive_json(sock: socket.socket) -> dict[str, Any]:
    """Receive a JSON object."""
    (length,) = _LENGTH.unpack(receive(sock, _LENGTH.size))
    return json.loads(receive(sock, length).decode("utf-8"))
