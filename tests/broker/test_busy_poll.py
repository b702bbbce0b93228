"""A loop that stays awake, with a clock that tests move."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from chaffinch import EmbeddedBroker
from chaffinch.broker import connection_manager, connections, effect_runner
from chaffinch.broker.busy_poll import TURNS_ASLEEP_MAX, BusyPoll
from chaffinch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from chaffinch.protocol.messages.metadata import MetadataRequest
from chaffinch.runtime import loop
from tests.broker.batches import batch_of
from tests.broker.core_client import produce_request
from tests.broker.socket_client import SocketClient

LOOK_US, WORK_US = 2, 30


class Loop:
    """An event loop with one client, turn after turn."""

    def __init__(self, duration_us: int) -> None:
        self.us = 1000
        self.away_us = 500
        self.turns = 0
        self.tries: list[int] = []  # The turns after which it began to stay awake.
        self._ready: list[Callable[[], None]] = []
        self.poll = BusyPoll(
            duration_us, call_soon=self._ready.append, now_s=lambda: self.us / 1e6, worked_s=lambda: (self.us - self.away_us) / 1e6
        )

    @property
    def is_awake(self) -> bool:
        return bool(self._ready)

    def wait(self, us: int) -> None:
        """Time without a request."""
        until_us = self.us + us
        while self._ready and self.us < until_us:
            (look,) = self._ready
            self._ready.clear()
            self.us += LOOK_US
            look()
        self.us = until_us

    def turn(self, away_us: int = 0) -> bool:
        """A request and its answer; other processes had the processor for `away_us`. Returns whether the loop was awake when it came."""
        was_awake = self.is_awake
        self.us += WORK_US + away_us
        self.away_us += away_us
        self.poll.turn_ended()
        if self.is_awake and not was_awake:
            self.tries.append(self.turns)
        self.turns += 1
        return was_awake


def test_quick_client_finds_the_loop_awake() -> None:
    world = Loop(50)
    was_awake = []
    for _ in range(100):
        was_awake.append(world.turn())
        world.wait(20)
    assert was_awake == [False] + [True] * 99


@pytest.mark.parametrize(("duration_us", "gap_us", "is_met"), [(50, 40, True), (50, 60, False), (100, 60, True), (0, 1, False)])
def test_loop_stays_awake_for_the_configured_time(duration_us: int, gap_us: int, is_met: bool) -> None:
    world = Loop(duration_us)
    world.turn()
    world.wait(gap_us)
    assert world.turn() is is_met


# Microseconds between requests, for how many of them other processes have the processor, turns that a try takes.
FAILED_POLLS: Mapping[str, tuple[int, int, int]] = {
    "a request each millisecond": (1000, 0, 1),
    "a client on the same processor": (20, 10, 2),
}


@pytest.mark.parametrize(("gap_us", "away_us", "turns"), FAILED_POLLS.values(), ids=FAILED_POLLS)
def test_failed_polls_back_off(gap_us: int, away_us: int, turns: int) -> None:
    world = Loop(50)
    for _ in range(3000):
        world.turn(away_us)
        world.wait(gap_us)
    slept = [later - earlier - turns for earlier, later in zip(world.tries, world.tries[1:], strict=False)]
    assert slept[:9] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert set(slept[9:]) == {TURNS_ASLEEP_MAX}


def test_requests_in_the_same_read_do_not_count_as_success() -> None:
    world = Loop(50)
    for _ in range(3000):
        world.turn()
        world.turn()
        world.wait(1000)
    assert len(world.tries) < 40


def test_client_that_becomes_quick_is_noticed() -> None:
    world = Loop(50)
    for _ in range(1000):
        world.turn()
        world.wait(1000)
    was_awake = []
    for _ in range(TURNS_ASLEEP_MAX + 100):
        was_awake.append(world.turn())
        world.wait(20)
    assert was_awake[TURNS_ASLEEP_MAX + 1 :] == [True] * 99
    world.wait(1000)
    assert [world.turn() or world.is_awake for _ in range(2)] == [False, True], "one failed try, after many that succeeded"


def test_ended_poll_sleeps() -> None:
    world = Loop(50)
    world.turn()
    world.poll.end()
    world.wait(LOOK_US)
    assert not world.is_awake
    for _ in range(5):
        world.turn()
        assert not world.is_awake


class StandingClock:
    """A broker's loop whose time stands still: once awake it stays so until the time is over. `turns` counts those reported to it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.s = 0.0
        self.turns = 0
        clock = self

        class CountedPoll(BusyPoll):
            def __init__(self, duration_us: int, *, call_soon: Any, now_s: Any, worked_s: Any) -> None:
                super().__init__(duration_us, call_soon=call_soon, now_s=lambda: clock.s, worked_s=lambda: clock.s)

            def turn_ended(self) -> None:
                clock.turns += 1
                super().turn_ended()

        monkeypatch.setattr(connection_manager, "BusyPoll", CountedPoll)
        for part in (connections, effect_runner):  # Else a slow machine's turn ends before it had all requests.
            monkeypatch.setattr(part, "perf_counter", lambda: clock.s)


@pytest.fixture(params=["asyncio", "the fastest"])
def clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> StandingClock:
    if request.param == "asyncio":
        monkeypatch.setattr(loop, "new_loop", asyncio.new_event_loop)
    return StandingClock(monkeypatch)


def is_awake(broker: EmbeddedBroker, of: BusyPoll | None = None) -> bool:
    """After some turns of the loop."""
    for _ in range(3):
        broker._call(lambda core: None)
    return (of or broker._running._connection_manager._busy_poll)._is_awake


@pytest.mark.parametrize("policy", ["os", "always"])
def test_busy_polling_broker_serves_everything(clock: StandingClock, policy: str) -> None:
    config = {"flush.policy": policy, "socket.busy.poll.us": 50}
    with EmbeddedBroker(topics=["orders"], config=config) as broker, SocketClient(broker.bootstrap_servers) as client:
        assert is_awake(broker)
        requested = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)]
        assert (
            client.ask(FetchRequest(max_wait_ms=1, min_bytes=1, topics=[FetchTopic(topic="orders", partitions=requested)])).error_code == 0
        )
        with SocketClient(broker.bootstrap_servers) as other:
            assert other.ask(MetadataRequest(topics=None)).error_code == 0
        assert is_awake(broker)
        clock.s += 51e-6
        assert not is_awake(broker)


@pytest.mark.parametrize("policy", ["os", "always"])
def test_busy_poll_runs_once_per_response(clock: StandingClock, policy: str) -> None:
    config = {"flush.policy": policy, "socket.busy.poll.us": 50}
    with EmbeddedBroker(topics=["orders"], config=config) as broker, SocketClient(broker.bootstrap_servers) as client:
        for _ in range(5):
            client.ask(produce_request("orders", batch_of(b"a")))
        assert is_awake(broker)
        assert clock.turns == 6, "the greeting, too"


def test_requests_of_one_turn_share_a_sync_while_polling(clock: StandingClock, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"flush.policy": "always", "socket.busy.poll.us": 50}
    with EmbeddedBroker(topics=["orders"], config=config) as broker, SocketClient(broker.bootstrap_servers) as client:
        assert is_awake(broker)
        core = broker._running.core
        syncs: list[int] = []
        sync = core.sync

        def noting() -> None:
            syncs.append(1)
            sync()

        monkeypatch.setattr(core, "sync", noting)
        requests = [client.connection.encode_request(produce_request("orders", batch_of(b"a")))[1] for _ in range(20)]
        client.socket.sendall(b"".join(b"".join(parts) for parts in requests))
        assert {client.receive().responses[0].partition_responses[0].error_code for _ in range(20)} == {0}
        assert len(syncs) == 1


@pytest.mark.parametrize("kill", [False, True])
def test_restarted_broker_ends_its_busy_poll(clock: StandingClock, kill: bool) -> None:
    with EmbeddedBroker(config={"socket_busy_poll_us": "50"}) as broker:
        with SocketClient(broker.bootstrap_servers):
            assert is_awake(broker)
        ended = broker._running._connection_manager._busy_poll
        broker.restart(kill=kill)
        assert not is_awake(broker, ended)


def test_embedded_broker_does_not_busy_poll_by_default(clock: StandingClock) -> None:
    with EmbeddedBroker() as broker, SocketClient(broker.bootstrap_servers):
        assert not is_awake(broker)
