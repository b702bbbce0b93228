"""The wall clock of a running server is set, or its machine sleeps: waits keep their length, and records have the new time."""

from __future__ import annotations

import pytest

from chaffinch import EmbeddedBroker
from chaffinch.runtime.clock import ManualClock
from tests.broker.batches import batch_of
from tests.broker.core.fetch_requests import fetch
from tests.broker.core_client import produce_request
from tests.broker.socket_client import SocketClient

WAIT_MS = 20_000
HOUR_MS = 3_600_000
STEPS = {"set forward": HOUR_MS, "set back": -HOUR_MS, "set back a little": -2, "asleep for a week": 168 * HOUR_MS}


@pytest.mark.parametrize("step_ms", STEPS.values(), ids=STEPS)
def test_clock_step_changes_times_but_no_waits(step_ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock(5_000_000)
    monkeypatch.setattr("chaffinch.runtime.clock.SystemClock", lambda: clock)
    with (
        EmbeddedBroker(topics=["orders", "other"], config={"log.message.timestamp.type": "LogAppendTime"}) as broker,
        SocketClient(broker.bootstrap_servers) as reader,
        SocketClient(broker.bootstrap_servers) as writer,
    ):
        server = broker._running
        reader.send(fetch(wait_ms=WAIT_MS), 11)
        while not broker._thread.call(lambda: bool(server.core._waits)):
            pass
        clock.advance(WAIT_MS // 2)
        clock.set_wall_clock(step_ms)
        writer.send(produce_request("other", batch_of(b"a")), 11)
        answer = writer.receive().responses[0].partition_responses[0]
        assert (answer.error_code, answer.log_append_time_ms) == (0, clock.wall_ms())

        def wake_up() -> float:
            """As the timer of the loop does; in how many seconds that wakes up again."""
            assert server._time._timer is not None
            server._time._timer.cancel()
            server._time._wake()
            seconds: float = server._time._timer.when() - server._time._loop.time()
            return seconds

        assert broker._thread.call(wake_up) <= WAIT_MS / 2 / 1000
        assert broker._thread.call(lambda: bool(server.core._waits))
        clock.advance(WAIT_MS // 2)
        broker._thread.call(wake_up)
        assert reader.receive().responses[0].partitions[0].error_code == 0


def test_idle_server_notices_a_clock_step_with_its_next_wake_up(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Without a single request: records have another age now, and chores go by that."""
    clock = ManualClock()
    monkeypatch.setattr("chaffinch.runtime.clock.SystemClock", lambda: clock)
    with EmbeddedBroker(topics=["orders"]) as broker:
        clock.advance(1)
        clock.set_wall_clock(HOUR_MS)
        broker._thread.call(broker._running._time._wake)
        assert broker._call(lambda core: core.state.wall.offset_ms) == HOUR_MS
    assert [record.getMessage() for record in caplog.records if "wall clock moved forward by 3600000 ms" in record.getMessage()]
