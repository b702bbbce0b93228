"""One HTTP exchange over a socket of our own, so that a test can send whatever bytes it wants."""

from __future__ import annotations

import json
import socket
from typing import Any, NamedTuple

TIMEOUT_SECONDS = 60.0


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def value(self) -> Any:
        return json.loads(self.body)


def exchange(port: int, data: bytes) -> bytes:
    """Send bytes; what comes back until the other side sends no more."""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS) as connection:
        connection.sendall(data)
        received = bytearray()
        while part := connection.recv(1 << 20):
            received += part
        return bytes(received)


def parsed(data: bytes) -> Answer:
    if not data:
        raise ValueError("nothing came back")
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    assert len(body) in (0, int(headers["content-length"]))
    return Answer(int(first.split()[1]), headers, body)


def ask(port: int, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    """`headers` with underscores for hyphens."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"host": f"127.0.0.1:{port}", "content-type": "application/json", "content-length": str(len(data))}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
    return parsed(exchange(port, f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + data))
