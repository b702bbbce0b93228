"""Small HTTP/1.1 listener for operators and tools (metrics and control), not for Kafka clients.

It serves one request per connection. Everything that a peer can make large or slow has a limit, since all of it runs on the broker's event
loop between the requests of clients. A route is an async function from a request to a reply.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

from chaffinch.broker.listeners import Address, Listener, LogRateLimited, listening_socket, shown
from chaffinch.runtime.exposure import host_of, is_expected

LOG = logging.getLogger("chaffinch.broker")

HEAD_BYTES_MAX: Final = 8 << 10
BODY_BYTES_MAX: Final = 64 << 10
CONNECTIONS_MAX: Final = 32
"""Further connections receive status 503, whatever they request."""
REFUSED_MAX: Final = 32
"""Connections that receive status 503 at the same time; beyond this they are closed immediately."""
SECONDS_MAX: Final = 10.0
"""Time limit of a whole exchange; slower peers are disconnected."""
LINGER_SECONDS: Final = 1.0
"""How long the peer may take to close first: unread input would make the kernel reset the connection and destroy the reply."""

JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"

_PHRASES = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    411: "Length Required",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request. `path` is decoded and has no query. Header names are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP reply. For HEAD, `body` is not sent."""

    status: int
    body: bytes
    content_type: str = TEXT


Route: TypeAlias = Callable[[Request], Awaitable[Reply]]
Exchange: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Refused(Exception):
    """The request is answered with an error status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message


def check_host(request: Request, names: Iterable[str]) -> None:
    """Raises Refused if the Host header names a foreign domain: a web page in a browser on this machine may use a domain that was made to
    point here.
    """
    header = request.headers.get("host", "")
    if not is_expected(header, names):
        raise Refused(403, f"Host {host_of(header)!r} is neither an address nor a name of this listener: use its address")


def json_reply(value: Any, status: int = 200) -> Reply:
    return Reply(status, json.dumps(value).encode() + b"\n", JSON)


class HttpListener:
    """An HTTP listener on one port. `route` handles every request and raises Refused for unknown ones."""

    def __init__(self, listening: socket.socket, route: Route, log_rate_limited: LogRateLimited) -> None:
        self._listener = Listener(listening)
        self._route = route
        self._log_rate_limited = log_rate_limited
        self._served: set[asyncio.StreamWriter] = set()
        self._refused: set[asyncio.StreamWriter] = set()

    @classmethod
    async def start(cls, address: Address, route: Route, log_rate_limited: LogRateLimited) -> HttpListener:
        """Start accepting at `address`; `log_rate_limited` logs refused connections. Raises OSError with the address in its text."""
        listener = cls(listening_socket(address), route, log_rate_limited)
        listener._listener.start(listener._new_connection)
        return listener

    def _new_connection(self) -> asyncio.BaseProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(limit=HEAD_BYTES_MAX), self._accepted)

    @property
    def port(self) -> int:
        return self._listener.port

    def close(self) -> None:
        """Stop accepting and abort unfinished exchanges."""
        self._listener.close()
        for writer in self._served | self._refused:
            writer.transport.abort()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._served) < CONNECTIONS_MAX:
            await self._hold(self._served, reader, writer, self._exchange)
            return
        address = shown(writer.get_extra_info("peername"))
        text = f"connection from {address} to port {self.port} refused: {len(self._served)} connections are open already"
        self._log_rate_limited(f"too many connections to port {self.port}", address.rpartition(":")[0], text)
        if len(self._refused) < REFUSED_MAX:
            await self._hold(self._refused, reader, writer, _refuse)
        else:
            writer.transport.abort()

    async def _hold(
        self, those: set[asyncio.StreamWriter], reader: asyncio.StreamReader, writer: asyncio.StreamWriter, exchange: Exchange
    ) -> None:
        """Run an exchange; the connection counts among `those` until it ends."""
        those.add(writer)
        try:
            async with asyncio.timeout(SECONDS_MAX):
                await exchange(reader, writer)
            async with asyncio.timeout(LINGER_SECONDS):
                writer.write_eof()
                while await reader.read(HEAD_BYTES_MAX):
                    pass
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass  # The peer has disconnected or is too slow.
        finally:
            those.discard(writer)
            writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method = ""
        try:
            request = await _received(reader)
            method = request.method
            reply = await self._route(request)
        except Refused as refused:
            reply = json_reply({"error": refused.message}, refused.status)
        except (OSError, asyncio.IncompleteReadError):
            raise
        except Exception:
            LOG.exception("the broker failed on an HTTP request")
            reply = json_reply({"error": "internal error; see the broker's log"}, 500)
        await _send(writer, reply, has_body=method != "HEAD")


async def _refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reply without reading the request, which might take long."""
    error = f"this port already has {CONNECTIONS_MAX} connections: try again later"
    await _send(writer, json_reply({"error": error}, 503))


async def _received(reader: asyncio.StreamReader) -> Request:
    """Read a complete request. Raises Refused if it is not HTTP or too large."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise Refused(413, f"the request line and headers exceed {HEAD_BYTES_MAX} bytes") from None
    lines = head.decode("latin-1").split("\r\n")[:-2]
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1.") or not words[1].startswith("/"):
        raise Refused(400, "this is not an HTTP/1.1 request")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, separator, value = line.partition(":")
        if not separator or not name or name != name.strip() or name.lower() in headers:
            raise Refused(400, "a header is malformed or repeated")
        headers[name.lower()] = value.strip()
    return Request(words[0], unquote(words[1].partition("?")[0]), headers, await _body(reader, headers))


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if "transfer-encoding" in headers:
        raise Refused(411, "a body requires a Content-Length")
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdecimal()):
        raise Refused(400, "Content-Length is not a number")
    if len(length) > 9 or int(length) > BODY_BYTES_MAX:
        raise Refused(413, f"the body exceeds {BODY_BYTES_MAX} bytes")
    return await reader.readexactly(int(length))


async def _send(writer: asyncio.StreamWriter, reply: Reply, *, has_body: bool = True) -> None:
    head = (
        f"HTTP/1.1 {reply.status} {_PHRASES[reply.status]}\r\nContent-Type: {reply.content_type}\r\n"
        f"Content-Length: {len(reply.body)}\r\nConnection: close\r\nCache-Control: no-store\r\n\r\n"
    )
    writer.write(head.encode("latin-1") + (reply.body if has_body else b""))
    # Wait until the peer has received everything; the exchange's time limit ends this for a peer that does not read.
    writer.transport.set_write_buffer_limits(high=0)
    await writer.drain()
