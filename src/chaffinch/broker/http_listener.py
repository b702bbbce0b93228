"""A small HTTP/1.1 listener for people and programs that look after the broker: metrics and control. Not for its clients.

One request per connection; everything that a peer can make large or slow has a limit, and all of it runs on the broker's event loop between
the requests of clients. A route is a plain function from a request to a reply.
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
"""Further ones are answered with 503, whatever they ask for."""
REFUSED_MAX: Final = 32
"""So many are being told so at a time; others are closed at once."""
SECONDS_MAX: Final = 10.0
"""For a whole exchange: a peer that needs longer is cut off."""
LINGER_SECONDS: Final = 1.0
"""For the peer to close first: what it sends behind its request must not destroy the reply on its way."""

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
    """`path` without its query, decoded. Header names are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """What to answer. HEAD gets it without `body`."""

    status: int
    body: bytes
    content_type: str = TEXT


Route: TypeAlias = Callable[[Request], Awaitable[Reply]]
Exchange: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Refused(Exception):
    """A request that gets an error for an answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message


def check_host(request: Request, names: Iterable[str]) -> None:
    """Raises Refused for a request that may come from a web page in a browser on this machine, whose domain was made to point here."""
    header = request.headers.get("host", "")
    if not is_expected(header, names):
        raise Refused(403, f"Host {host_of(header)!r} is neither an address nor a name of this listener: use its address")


def json_reply(value: Any, status: int = 200) -> Reply:
    return Reply(status, json.dumps(value).encode() + b"\n", JSON)


class HttpListener:
    """One port, one route: `route` gets every request and raises Refused for those it does not know."""

    def __init__(self, listening: socket.socket, route: Route, log_rate_limited: LogRateLimited) -> None:
        self._listener = Listener(listening)
        self._route = route
        self._log_rate_limited = log_rate_limited
        self._served: set[asyncio.StreamWriter] = set()
        self._refused: set[asyncio.StreamWriter] = set()

    @classmethod
    async def start(cls, address: Address, route: Route, log_rate_limited: LogRateLimited) -> HttpListener:
        """Accept at `address`; `log_rate_limited` logs connections beyond the limit. Raises OSError, with the address in its text."""
        listener = cls(listening_socket(address), route, log_rate_limited)
        listener._listener.start(listener._new_connection)
        return listener

    def _new_connection(self) -> asyncio.BaseProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(limit=HEAD_BYTES_MAX), self._accepted)

    @property
    def port(self) -> int:
        return self._listener.port

    def close(self) -> None:
        """Accept no more, and cut what is not finished."""
        self._listener.close()
        for writer in self._served | self._refused:
            writer.transport.abort()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._served) < CONNECTIONS_MAX:
            await self._hold(self._served, reader, writer, self._exchange)
            return
        address = shown(writer.get_extra_info("peername"))
        text = f"connection from {address} to port {self.port} refused: there are {len(self._served)} already"
        self._log_rate_limited(f"too many connections to port {self.port}", address.rpartition(":")[0], text)
        if len(self._refused) < REFUSED_MAX:
            await self._hold(self._refused, reader, writer, _refuse)
        else:
            writer.transport.abort()

    async def _hold(
        self, those: set[asyncio.StreamWriter], reader: asyncio.StreamReader, writer: asyncio.StreamWriter, exchange: Exchange
    ) -> None:
        """One of `those` as long as it is there."""
        those.add(writer)
        try:
            async with asyncio.timeout(SECONDS_MAX):
                await exchange(reader, writer)
            async with asyncio.timeout(LINGER_SECONDS):
                writer.write_eof()
                while await reader.read(HEAD_BYTES_MAX):
                    pass
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass  # Whoever was there is gone, or too slow.
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
            reply = json_reply({"error": "the broker failed on this; its log says how"}, 500)
        await _send(writer, reply, has_body=method != "HEAD")


async def _refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Without a look at what is asked for: that may take its time."""
    error = f"this port has {CONNECTIONS_MAX} connections already: try again when one of them has ended"
    await _send(writer, json_reply({"error": error}, 503))


async def _received(reader: asyncio.StreamReader) -> Request:
    """The request, whole. Raises Refused for what is no HTTP or too large."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise Refused(413, f"the head of a request has at most {HEAD_BYTES_MAX} bytes") from None
    lines = head.decode("latin-1").split("\r\n")[:-2]
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1.") or not words[1].startswith("/"):
        raise Refused(400, "this is no HTTP/1.1 request")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, separator, value = line.partition(":")
        if not separator or not name or name != name.strip() or name.lower() in headers:
            raise Refused(400, "a header is malformed or there twice")
        headers[name.lower()] = value.strip()
    return Request(words[0], unquote(words[1].partition("?")[0]), headers, await _body(reader, headers))


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if "transfer-encoding" in headers:
        raise Refused(411, "a body needs a Content-Length")
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdecimal()):
        raise Refused(400, "Content-Length is no number")
    if len(length) > 9 or int(length) > BODY_BYTES_MAX:
        raise Refused(413, f"a body has at most {BODY_BYTES_MAX} bytes")
    return await reader.readexactly(int(length))


async def _send(writer: asyncio.StreamWriter, reply: Reply, *, has_body: bool = True) -> None:
    head = (
        f"HTTP/1.1 {reply.status} {_PHRASES[reply.status]}\r\nContent-Type: {reply.content_type}\r\n"
        f"Content-Length: {len(reply.body)}\r\nConnection: close\r\nCache-Control: no-store\r\n\r\n"
    )
    writer.write(head.encode("latin-1") + (reply.body if has_body else b""))
    # Until the peer has taken all of it: what it never reads is cut off with the exchange's time.
    writer.transport.set_write_buffer_limits(high=0)
    await writer.drain()
