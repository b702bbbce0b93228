"""The small HTTP listener: the requests it accepts, and that no client can block the broker through it."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator

import pytest

from chaffinch.broker import http_listener
from chaffinch.broker.http_listener import HttpListener, Refused, Reply, Request
from chaffinch.broker.listeners import Address
from chaffinch.runtime.loop import LoopThread
from tests.broker.http_client import TIMEOUT_SECONDS, ask, exchange, parsed


async def echo(request: Request) -> Reply:
    if request.path == "/broken":
        raise RuntimeError("a mistake of ours")
    if request.path == "/large":
        return Reply(200, b"x" * (64 << 20))
    if request.path != "/echo":
        raise Refused(404, "nothing here")
    return Reply(200, f"{request.method} {request.path} ".encode() + request.body)


@pytest.fixture
def port() -> Iterator[int]:
    thread = LoopThread("http listener")
    listener = thread.run(HttpListener.start(Address(host="127.0.0.1", port=0), echo, record_line))
    yield listener.port
    thread.call(listener.close)
    thread.run(nothing())  # What was cut has ended.
    thread.close()


lines: list[tuple[str, str]] = []
"""What kind each is of, and what it says."""


def record_line(what: str, host: str, line: str) -> None:
    assert host == "127.0.0.1"
    lines.append((what, line))


async def nothing() -> None:
    pass


def test_request_gets_its_reply(port: int) -> None:
    answer = ask(port, "POST", "/ec%68o?more", b"body")
    assert (answer.status, answer.body) == (200, b"POST /echo body")
    assert answer.headers["connection"] == "close"
    assert ask(port, "HEAD", "/echo").body == b""


RAW = {
    "no HTTP": (b"\x00\x00\x00\x10nonsense nonsense\r\n\r\n", 400),
    "another version": (b"GET /echo HTTP/2.0\r\n\r\n", 400),
    "no path": (b"GET echo HTTP/1.1\r\n\r\n", 400),
    "a header without a colon": (b"GET /echo HTTP/1.1\r\nnonsense\r\n\r\n", 400),
    "a header with a space before its colon": (b"GET /echo HTTP/1.1\r\nHost : localhost\r\n\r\n", 400),
    "a header folded over two lines": (b"GET /echo HTTP/1.1\r\nx: a\r\n b: c\r\n\r\n", 400),
    "a path that looks like a broken address": (b"GET //[ HTTP/1.1\r\n\r\n", 404),
    "a header twice": (b"GET /echo HTTP/1.1\r\ncontent-length: 0\r\nContent-Length: 0\r\n\r\n", 400),
    "no length": (b"POST /echo HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n", 411),
    "a length that is none": (b"POST /echo HTTP/1.1\r\ncontent-length: -1\r\n\r\n", 400),
    "a large body": (b"POST /echo HTTP/1.1\r\ncontent-length: 65537\r\n\r\n", 413),
    "an endless number": (b"POST /echo HTTP/1.1\r\ncontent-length: " + b"9" * 5000 + b"\r\n\r\n", 413),
    "a large head": (b"GET /echo HTTP/1.1\r\nx: " + b"y" * 10_000 + b"\r\n\r\n", 413),
    "unknown": (b"GET /other HTTP/1.1\r\n\r\n", 404),
    "our mistake": (b"GET /broken HTTP/1.1\r\n\r\n", 500),
}


@pytest.mark.parametrize(("data", "status"), RAW.values(), ids=RAW)
def test_invalid_request_is_refused(port: int, data: bytes, status: int) -> None:
    answer = parsed(exchange(port, data))
    assert answer.status == status
    assert "error" in answer.value
    assert b"Traceback" not in answer.body
    assert ask(port, "GET", "/echo").status == 200


@pytest.mark.parametrize("data", [b"", b"GET /echo HT", b"POST /echo HTTP/1.1\r\ncontent-length: 10\r\n\r\nhalf"], ids=len)
def test_silent_client_is_disconnected(port: int, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(http_listener, "SECONDS_MAX", 0.05)
        assert exchange(port, data) == b""
    assert ask(port, "GET", "/echo").status == 200


def test_client_that_does_not_read_is_disconnected(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_listener, "SECONDS_MAX", 0.05)
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS) as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\n\r\n")
        monkeypatch.setattr(http_listener, "CONNECTIONS_MAX", 1)
        assert any(is_served(port) for _ in range(10_000)), "the only place is free again"


def is_served(port: int) -> bool:
    try:
        return ask(port, "GET", "/echo").status == 200
    except (ConnectionError, ValueError):  # Closed, before or while the request is being sent.
        return False


def test_large_reply_is_complete(port: int) -> None:
    assert len(ask(port, "GET", "/large").body) == 64 << 20


@pytest.fixture
def full(port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port, while it has as many connections as it serves."""
    monkeypatch.setattr(http_listener, "CONNECTIONS_MAX", 3)
    lines.clear()
    holding = [socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS) for _ in range(3)]
    try:
        assert any(not is_served(port) for _ in range(10_000)), "those who hold it are there"
        yield port
    finally:
        for connection in holding:
            connection.close()
    assert any(is_served(port) for _ in range(10_000))


def test_connection_above_the_limit_gets_503(full: int) -> None:
    lines.clear()
    answer = ask(full, "POST", "/echo", b"body")
    assert answer.status == 503
    assert answer.value == {"error": "this port already has 3 connections: try again later"}
    ((what, line),) = lines
    assert what == f"too many connections to port {full}", "those of other ports are of another kind"
    assert re.fullmatch(rf"connection from 127\.0\.0\.1:\d+ to port {full} refused: 3 connections are open already", line)


def test_number_of_concurrent_503_replies_is_limited(full: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_listener, "REFUSED_MAX", 0)
    lines.clear()
    assert exchange_or_reset(full, b"") == b""
    assert len(lines) == 1


def exchange_or_reset(port: int, data: bytes) -> bytes:
    try:
        return exchange(port, data)
    except ConnectionError:
        return b""


def test_body_of_a_refused_request_does_not_destroy_the_reply(port: int) -> None:
    head = b"POST /echo HTTP/1.1\r\ncontent-length: 1000000\r\n\r\n"
    assert parsed(exchange(port, head + b"x" * 1_000_000)).status == 413


def test_port_in_use_is_refused(port: int) -> None:
    thread = LoopThread("another")
    try:
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: "):
            thread.run(HttpListener.start(Address(host="127.0.0.1", port=port), echo, record_line))
    finally:
        thread.close()
