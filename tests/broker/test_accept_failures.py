"""What the log says while the system refuses to accept connections: once what to do, then counts at growing intervals."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
import ssl
from unittest import mock

import pytest

from chaffinch.broker.listeners import COUNT_SECONDS_MAX, RETRY_SECONDS, AcceptFailures, Address, Listener, Tls, listening_socket


def refusal(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def lines_of(failures: AcceptFailures, begin: float, seconds: int) -> list[str]:
    """Those of refusals that come one per try, for so long."""
    tries = [begin + number * RETRY_SECONDS for number in range(seconds)]
    lines = [failures.line(9092, refusal(errno.EMFILE), now) for now in tries]
    return [line for line in lines if line is not None]


def test_first_line_names_the_limit_and_later_lines_count() -> None:
    first, *others = lines_of(AcceptFailures(), 0, 3600)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert "port 9092: Too many open files" in first
    assert f"the limit of this process is {limit}" in first
    assert "ulimit -n" in first
    assert all("ulimit" not in line for line in others)
    assert len(others) < 3600 / (COUNT_SECONDS_MAX / 2) + 5
    counts = [int(line.split(": ")[2].split()[0]) for line in others]
    assert counts[:4] == [2, 4, 8, 16]
    assert 3600 - COUNT_SECONDS_MAX < 1 + sum(counts) <= 3600, "no count is lost, but for those of the last line that is still to come"


def test_limit_is_named_again_after_a_pause() -> None:
    failures = AcceptFailures()
    begun = lines_of(failures, 0, 10)
    assert lines_of(failures, 9 + COUNT_SECONDS_MAX, 10) == begun
    assert not any("ulimit" in line for line in lines_of(failures, 20 + COUNT_SECONDS_MAX, 10)), "ten seconds are none"


@pytest.mark.parametrize("number", [errno.ENFILE, errno.ENOBUFS])
def test_other_errors_do_not_name_the_process_limit(number: int) -> None:
    line = AcceptFailures().line(9092, refusal(number), 0)
    assert line is not None
    assert os.strerror(number) in line
    assert "ulimit" not in line


class RefusingLoop:
    """Has a clock that stands where it is set, and forgets what is asked of it."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def remove_reader(self, _socket: object) -> None: ...

    def call_later(self, _seconds: float, _function: object) -> None: ...


def test_listener_rate_limits_its_lines(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    loop = RefusingLoop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    listener = Listener(listening_socket(Address(host="127.0.0.1", port=0)))
    with listener._socket, monkeypatch.context() as refusing:
        refusing.setattr(listener, "_socket", mock.Mock(accept=mock.Mock(side_effect=refusal(errno.EMFILE))))
        for second in range(60):
            loop.now = second * RETRY_SECONDS
            listener._accept()
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 5, texts
    assert "ulimit -n" in texts[0]


def test_handshake_without_a_descriptor_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def log_refusal(_: socket.socket) -> socket.socket:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def connected() -> tuple[bytes, int, list[str]]:
        failed: list[str] = []
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls = Tls(context=context, handshake_seconds=60.0, failed=lambda address, reason: failed.append(reason))
        listener = Listener(listening_socket(Address(host="127.0.0.1", port=0)), tls)
        listener.start(asyncio.Protocol)
        monkeypatch.setattr(socket.socket, "dup", log_refusal)
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        found = await asyncio.wait_for(reader.read(), 30)
        writer.close()
        kept = len(listener._shaking_hands)
        listener.close()
        return found, kept, failed

    assert asyncio.run(connected()) == (b"", 0, ["[Errno 24] Too many open files"])
