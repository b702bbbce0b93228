"""Who is closed for holding something without getting on: decided on pretend connections, with a clock that stands still."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chaffinch.broker.connection_watch import INTERVAL_MIN_S, RECORDS_MIN, ConnectionWatch

SETTINGS = {
    "connections.max.idle.ms": 600_000,
    "connections.max.unread.ms": 60_000,
    "connections.max.unfinished.ms": 60_000,
    "queued.max.response.bytes": 1000,
}


@dataclass
class FakePeer:
    connection_id: int = 1
    bytes_received: int = 0
    bytes_answered: int = 0
    requests_received: int = 0
    unsent_bytes: int = 0
    is_reading: bool = True
    is_finished: bool = False
    open_count: int = 0
    frames: Any = field(default_factory=lambda: SimpleNamespace(bytes_pending=0))


class Watch:
    """A watch and its clock; `reasons` are those of each look, every ten seconds."""

    def __init__(self, **settings: int) -> None:
        self.now = 0.0
        self.watch = ConnectionWatch({**SETTINGS, **{name.replace("_", "."): value for name, value in settings.items()}}, lambda: self.now)

    def output_pending(self, peer: FakePeer) -> list[Any]:
        return list(self.watch.output_pending(cast("Any", peer)))

    def look(self, peer: FakePeer) -> str | None:
        found = self.watch.sweep([cast("Any", peer)])
        return found[0][1] if found else None

    def seconds_until_closed(self, peer: FakePeer, **each_time: Any) -> tuple[float, str] | None:
        """When, and why. `each_time`: what is added to the peer's numbers before each look."""
        for _ in range(100):
            reason = self.look(peer)
            if reason is not None:
                return self.now, reason
            self.now += 10
            for name, change in each_time.items():
                setattr(peer, name, getattr(peer, name) + change)
        return None


def closed(peer: FakePeer, **each_time: Any) -> tuple[float, str] | None:
    return Watch().seconds_until_closed(peer, **each_time)


LIMITS = [name.replace(".", "_") for name in SETTINGS if name.endswith(".ms")]


@pytest.mark.parametrize("limit", LIMITS)
def test_check_interval_follows_the_shortest_limit(limit: str) -> None:
    """Four times within the shortest limit; one that is very short takes no processor for that."""
    none = dict.fromkeys(LIMITS, -1)
    found = {ms: Watch(**{**none, limit: ms}).watch.interval_s for ms in (-1, 0, 1, 399, 400, 2000, 2**63 - 1)}
    least = INTERVAL_MIN_S
    assert least == 0.1
    assert found == {-1: None, 0: least, 1: least, 399: least, 400: least, 2000: 0.5, 2**63 - 1: (2**63 - 1) / 4000}


def test_limit_of_0_closes_a_connection_idle_between_two_checks() -> None:
    peer = FakePeer()
    assert Watch(connections_max_idle_ms=0).seconds_until_closed(peer) == (10, "idle for more than 0 s")
    peer.frames.bytes_pending = 5
    assert Watch(connections_max_unfinished_ms=0).seconds_until_closed(peer) == (20, "a request has been incomplete for more than 0 s")
    unread = FakePeer(bytes_answered=9, unsent_bytes=9)
    assert Watch(connections_max_unread_ms=0).seconds_until_closed(unread) == (
        10,
        "9 bytes of responses have not been read for more than 0 s",
    )


def test_idle_connection_is_closed() -> None:
    assert closed(FakePeer()) == (610, "idle for more than 600 s")


@pytest.mark.parametrize("moves", [{"bytes_received": 1}, {"bytes_answered": 1}], ids=str)
def test_connection_with_traffic_is_not_idle(moves: dict[str, int]) -> None:
    """Sending counts too: a consumer that gets records and asks rarely is busy."""
    assert closed(FakePeer(), **moves) is None


def test_connection_waiting_for_a_response_is_not_idle() -> None:
    assert closed(FakePeer(open_count=1)) is None


def test_half_closed_connection_waiting_for_a_response_is_idle() -> None:
    """The client may be gone, and nothing reports that."""
    assert closed(FakePeer(open_count=1, is_finished=True)) == closed(FakePeer())


def test_connection_with_unread_responses_is_closed() -> None:
    assert closed(FakePeer(unsent_bytes=500)) == (70, "500 bytes of responses have not been read for more than 60 s")


def test_slow_reader_is_not_closed() -> None:
    assert closed(FakePeer(unsent_bytes=10_000, bytes_answered=10_000), unsent_bytes=-1) is None


def test_progress_restarts_the_unread_time() -> None:
    watch, peer = Watch(), FakePeer(unsent_bytes=500)
    for _ in range(6):
        assert watch.look(peer) is None
        watch.now += 10
    peer.unsent_bytes = 499
    assert watch.seconds_until_closed(peer) == (130, "499 bytes of responses have not been read for more than 60 s")


def test_incomplete_request_is_closed_despite_new_bytes() -> None:
    peer = FakePeer()
    peer.frames.bytes_pending = 5
    assert closed(peer, bytes_received=1) == (80, "a request has been incomplete for more than 60 s")


def test_completed_requests_restart_the_unfinished_time() -> None:
    peer = FakePeer()
    peer.frames.bytes_pending = 5
    assert closed(peer, bytes_received=100, requests_received=1) is None


def test_incomplete_request_that_the_broker_does_not_read_is_kept() -> None:
    peer = FakePeer(is_reading=False, open_count=1)
    peer.frames.bytes_pending = 5
    assert closed(peer) is None
    peer.is_reading = True
    assert closed(peer) is not None


def test_negative_limits_close_nothing() -> None:
    watch = Watch(connections_max_idle_ms=-1, connections_max_unread_ms=-1, connections_max_unfinished_ms=-1)
    assert watch.watch.interval_s is None
    peer = FakePeer(unsent_bytes=5)
    peer.frames.bytes_pending = 5
    assert watch.seconds_until_closed(peer) is None


def test_default_check_interval_is_15_seconds() -> None:
    assert Watch().watch.interval_s == 15
    assert Watch(connections_max_idle_ms=400).watch.interval_s == 0.1


class TestUnreadTotal:
    def test_longest_unread_connection_is_closed_first(self) -> None:
        watch = Watch()
        first, second, third = (FakePeer(connection_id=number, unsent_bytes=400) for number in (1, 2, 3))
        assert watch.output_pending(first) == watch.output_pending(second) == []
        assert watch.output_pending(third) == [first]
        first.unsent_bytes = 0
        third.unsent_bytes = 900
        assert watch.output_pending(third) == [second]
        third.unsent_bytes = 1001
        assert watch.output_pending(third) == [third]

    def test_connection_that_read_everything_is_counted_as_new(self) -> None:
        watch = Watch()
        first, second = (FakePeer(connection_id=number, unsent_bytes=600) for number in (1, 2))
        assert watch.output_pending(first) == []
        first.unsent_bytes = 0
        assert watch.output_pending(second) == []
        first.unsent_bytes = 600
        assert watch.output_pending(first) == [second]

    def test_closed_connection_is_forgotten(self) -> None:
        watch = Watch()
        first, second = (FakePeer(connection_id=number, unsent_bytes=600) for number in (1, 2))
        watch.output_pending(first)
        watch.watch.forget(cast("Any", first))
        assert watch.output_pending(second) == []
        assert not watch.watch._seen

    def test_other_connections_are_not_read_below_the_limit(self) -> None:
        """Or a thousand slow readers would cost each answer a thousand looks."""
        watch = Watch()
        peers_read = []

        class CountingPeer(FakePeer):
            @property
            def unsent_bytes(self) -> int:
                peers_read.append(self.connection_id)
                return 1

            @unsent_bytes.setter
            def unsent_bytes(self, size: int) -> None:
                pass

        for number in range(500):
            assert watch.output_pending(CountingPeer(connection_id=number)) == []
        assert len(peers_read) == 500


def test_records_max_decreases_with_unread_bytes() -> None:
    watch = Watch(queued_max_response_bytes=800 << 20)
    assert watch.watch.records_max() == 100 << 20
    peers = [FakePeer(connection_id=number, unsent_bytes=160 << 20) for number in range(5)]
    for peer, left in zip(peers, (80, 60, 40, 20), strict=False):
        assert watch.output_pending(peer) == []
        assert watch.watch.records_max() == left << 20
    assert watch.output_pending(peers[4]) == []
    assert watch.watch.records_max() == RECORDS_MIN
    for peer in peers:
        peer.unsent_bytes = 0
    assert watch.watch.records_max() == 100 << 20, "they have read"
