"""Log lines of a waiting client, on a network that a manual clock drives."""

from __future__ import annotations

import errno
import io
import random
import sys
from typing import Any, cast

import pytest

from chaffinch.admin.options import ADMIN_TABLE
from chaffinch.cli.connection import open_client, warn
from chaffinch.client.addresses import Address
from chaffinch.client.backoff import Backoff
from chaffinch.client.connections import Disconnected, RequestFailed, ResponseReceived
from chaffinch.client.known_cluster import ADVERTISED_HINT
from chaffinch.client.sync_client import SyncClient
from chaffinch.client.wait_log import FIRST_LINE_MS, FIRST_PAUSE_MS, Wait, WaitLog
from chaffinch.errors import TimeoutException
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.fetch import FetchRequest
from chaffinch.protocol.messages.metadata import MetadataRequest
from chaffinch.runtime.clock import ManualClock
from tests.client.scripted_server import metadata

UNREACHABLE = Address("127.0.0.1", 9)


class FakeNetwork:
    """No response arrives, and each wait advances the clock; or every connection is refused immediately."""

    def __init__(self, clock: ManualClock, *, refuses: bool) -> None:
        self._clock = clock
        self._refuses = refuses
        self._events: list[Any] = []

    def send(self, address: Address, message: Any, token: Any, *, version_max: int | None, timeout_ms: int | None) -> None:
        if self._refuses:
            self._events.append(RequestFailed(address=address, token=token, reason="refused", was_sent=False))
            self._events.append(Disconnected(address=address, reason="refused"))

    def poll(self, wait_ms: int) -> list[Any]:
        events, self._events = self._events, []
        self._clock.advance(0 if events else wait_ms)
        return events

    def disconnect(self, address: Address, reason: str) -> None:
        self._events.append(Disconnected(address=address, reason=reason))

    def reset_connections(self) -> None: ...

    def close(self) -> None: ...


def use_network(client: SyncClient, network: FakeNetwork) -> None:
    client._network.close()
    client._network = cast(Any, network)


@pytest.mark.parametrize(
    ("refuses", "why"),
    [(True, "no broker reachable at 127.0.0.1:9092 (refused)"), (False, "no response from 127.0.0.1:9092 yet")],
    ids=["a dead port", "a broker that hangs"],
)
def test_long_wait_is_logged_with_growing_pauses(refuses: bool, why: str) -> None:
    clock = ManualClock()
    said: list[tuple[int, str]] = []
    steady = Backoff(initial_ms=1000, max_ms=1000)
    client = SyncClient(
        "127.0.0.1:9092",
        timeout_ms=70_000,
        clock=clock,
        reconnect_backoff=steady,
        rng=random.Random(1),
        on_wait=lambda text: said.append((clock.steady_ms(), text)),
    )
    use_network(client, FakeNetwork(clock, refuses=refuses))
    with pytest.raises(TimeoutException):
        client.refresh_metadata()
    assert len(said) == 3
    for (steady_ms, text), due_ms in zip(said, (2_500, 12_500, 32_500), strict=True):
        assert due_ms <= steady_ms <= due_ms + 500
        left_ms = 70_000 - steady_ms
        assert text == f"metadata request, for {steady_ms} ms: {why}; retrying for up to {left_ms} ms more"


class PartlyReachable(FakeNetwork):
    """The bootstrap address answers, and advertises another one, which refuses."""

    def send(self, address: Address, message: Any, token: Any, *, version_max: int | None, timeout_ms: int | None) -> None:
        if address.port == UNREACHABLE.port:
            super().send(address, message, token, version_max=version_max, timeout_ms=timeout_ms)
        else:
            answer = metadata({"t": 1}, {1: UNREACHABLE.port})
            self._events.append(ResponseReceived(address=address, token=token, message=answer))


def test_log_line_names_only_the_unreachable_advertised_address() -> None:
    clock = ManualClock()
    said: list[str] = []
    client = SyncClient("127.0.0.1:9092", clock=clock, rng=random.Random(1), on_wait=said.append)
    use_network(client, PartlyReachable(clock, refuses=True))
    with pytest.raises(TimeoutException) as raised:
        client.leader_request(TopicPartition("t", 0), MetadataRequest(topics=[]), timeout_ms=9_000)
    (line,) = said
    where = f"no broker reachable at 127.0.0.1:9 (refused; {ADVERTISED_HINT})"
    assert f": {where}; retrying for up to " in line
    assert where in str(raised.value)
    assert "9092" not in line


def test_timeout_of_the_caller_is_no_hint_about_an_advertised_address() -> None:
    clock = ManualClock()
    client = SyncClient("127.0.0.1:9092", clock=clock, rng=random.Random(1))
    use_network(client, PartlyReachable(clock, refuses=False))
    with pytest.raises(TimeoutException):
        client.leader_request(TopicPartition("t", 0), MetadataRequest(topics=[]), timeout_ms=9_000)
    assert client._attempts.reason(Address("127.0.0.1", UNREACHABLE.port)) == ""


def test_max_wait_of_the_request_is_not_logged() -> None:
    clock = ManualClock()
    said: list[int] = []
    client = SyncClient("127.0.0.1:9092", clock=clock, rng=random.Random(1), on_wait=lambda text: said.append(clock.steady_ms()))
    use_network(client, FakeNetwork(clock, refuses=False))
    with pytest.raises(TimeoutException):
        client.request(FetchRequest(max_wait_ms=5_000, min_bytes=1, topics=[]), timeout_ms=7_400)
    assert said == []
    with pytest.raises(TimeoutException):
        client.request(FetchRequest(max_wait_ms=5_000, min_bytes=1, topics=[]), timeout_ms=9_000)
    assert [steady_ms - 7_400 for steady_ms in said] == [7_500]


def test_many_long_calls_are_logged_as_rarely_as_one() -> None:
    clock = ManualClock()
    said: list[int] = []
    client = SyncClient("127.0.0.1:9092", clock=clock, rng=random.Random(1), on_wait=lambda text: said.append(clock.steady_ms()))
    use_network(client, FakeNetwork(clock, refuses=False))
    for _ in range(10):
        with pytest.raises(TimeoutException):
            client.request(MetadataRequest(topics=[]), timeout_ms=5_000)
    assert said == [FIRST_LINE_MS, FIRST_LINE_MS + FIRST_PAUSE_MS, FIRST_LINE_MS + 3 * FIRST_PAUSE_MS]


def test_commands_log_waits_to_stderr_only(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    with open_client(ADMIN_TABLE.parse({"bootstrap.servers": "127.0.0.1:9092", "default.api.timeout.ms": 5_000})) as client:
        monkeypatch.setattr(client, "_clock", clock)
        use_network(client, FakeNetwork(clock, refuses=True))
        with pytest.raises(TimeoutException):
            client.refresh_metadata()
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("chaffinch: metadata request, for ")


def test_full_stderr_does_not_end_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    clock = ManualClock()
    monkeypatch.setattr(sys, "stderr", Full())
    warn("this was left out")
    with open_client(ADMIN_TABLE.parse({"bootstrap.servers": "127.0.0.1:9092", "default.api.timeout.ms": 5_000})) as client:
        monkeypatch.setattr(client, "_clock", clock)
        use_network(client, FakeNetwork(clock, refuses=True))
        with pytest.raises(TimeoutException):
            client.refresh_metadata()


def test_pauses_between_lines_about_one_cause_grow_to_a_minute() -> None:
    wait_log, lines = WaitLog(), []
    for steady_ms in range(0, 200_000, 100):
        if wait_log.line(Wait("unreachable", "t-0 at h:1", 0, "refused", "1 record waits", 120_000, "delivery.timeout.ms"), steady_ms):
            lines.append(steady_ms)
    assert lines == [2_500, 12_500, 32_500, 72_500, 132_500, 192_500]


def test_another_cause_is_logged_without_the_pause_of_the_first() -> None:
    wait_log = WaitLog()
    assert wait_log.line(Wait("a", "a", 0, "why"), 2_500)
    assert wait_log.line(Wait("b", "b", 2_400, "why"), 4_899) is None
    assert wait_log.line(Wait("b", "b", 2_400, "why"), 4_900)


@pytest.mark.parametrize("is_over", [True, False])
def test_the_same_cause_starts_again_once_nothing_was_waited_for(is_over: bool) -> None:
    wait_log = WaitLog()
    assert wait_log.line(Wait("a", "a", 0, "why"), 2_500)
    if is_over:
        wait_log.over()
    assert (wait_log.line(Wait("a", "a", 3_000, "why"), 5_500) is not None) == is_over


def test_a_wait_without_a_limit_says_so() -> None:
    assert Wait("a", "poll of t-0", 1_000, "no leader", "the consumer waits").line(4_000) == (
        "poll of t-0, for 3000 ms: no leader; the consumer waits, retrying without a limit"
    )
