"""How much is read: of who waits for answers, over all connections, and of who does not, in one turn; on pretend transports."""

from __future__ import annotations

import tracemalloc

import pytest

from chaffinch.broker.connections import (
    BYTES_WAITING_MAX,
    REQUEST_BYTES,
    REQUESTS_WAITING_MAX,
    TURN_BYTES_MAX,
    TURN_SECONDS_MAX,
    QueuedRequestBytes,
)
from chaffinch.protocol.client_connection import ClientConnection
from chaffinch.protocol.frames import BUSY_CHUNK_BYTES
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from chaffinch.protocol.messages.produce import ProduceRequest
from tests.broker.fake_connection import Clock, FakeConnection, Loop, produce_request

LIMIT = 1000 + 3 * REQUEST_BYTES

BROKEN = {
    "unknown API": bytes.fromhex("0000000a 03e7 0000 00000001 ffff"),
    "malformed body": bytes.fromhex("0000000e 0003 0001 00000001 ffff 7fffffff"),
    "too large": bytes.fromhex("7fffffff"),
    "too small": bytes.fromhex("00000000"),
}


pytestmark = pytest.mark.usefixtures("clock")


def test_waiting_connection_pauses_when_the_total_is_above_the_limit() -> None:
    held = QueuedRequestBytes(LIMIT)
    first, second = FakeConnection(held), FakeConnection(held)
    first.send(600)
    second.send(100)
    assert [connection.transport.is_paused for connection in (first, second)] == [False, False]
    second.send(400)
    assert second.transport.is_paused
    assert not first.transport.is_paused, "it has not sent more"
    first.send(1)
    assert first.transport.is_paused
    first.answer()
    first.answer()
    assert not first.transport.is_paused, "answered"
    assert second.transport.is_paused, "until its own answers, before which nothing that it sends could be done"
    second.answer()
    assert not second.transport.is_paused


def test_connection_answered_at_once_never_pauses() -> None:
    held = QueuedRequestBytes(LIMIT)
    greedy, quick = FakeConnection(held), FakeConnection(held)
    greedy.send(2 * LIMIT)
    quick.answers_at_once = True
    for _ in range(5):
        quick.send(2 * LIMIT)
    assert not quick.transport.is_paused
    assert greedy.transport.is_paused


def test_answered_and_closed_requests_are_released() -> None:
    held = QueuedRequestBytes(LIMIT)
    answered, silent, gone = FakeConnection(held), FakeConnection(held), FakeConnection(held)
    for connection in (answered, silent, gone):
        connection.send(100)
    assert 300 < held.bytes_queued - 3 * REQUEST_BYTES < 600
    gone.peer.connection_lost(None)
    answered.answer()
    assert 100 < held.bytes_queued - REQUEST_BYTES < 200
    silent.complete_silently()
    assert held.bytes_queued == 0


@pytest.mark.parametrize("has_answers", [True, False])
def test_endless_sender_is_read_in_turns(has_answers: bool) -> None:
    connection = FakeConnection(QueuedRequestBytes(LIMIT))
    connection.answers_at_once, connection.answers_never = has_answers, not has_answers
    stream = connection.request(30_000) * 80
    for turn in (1, 2):
        before = connection.peer.bytes_received
        stream = connection.pour(stream)
        assert TURN_BYTES_MAX < connection.peer.bytes_received - before <= TURN_BYTES_MAX + BUSY_CHUNK_BYTES
        assert connection.turns_begun == turn
        assert not connection.written_at_turn_ends
        connection.peer.end_turn()
        assert not connection.transport.is_paused


def test_many_requests_are_answered_over_several_turns(clock: Clock) -> None:
    """It reads as fast as it is answered: others would have nothing until it had everything."""
    connection = FakeConnection(QueuedRequestBytes(LIMIT), clock)
    connection.answers_at_once, connection.seconds_for_each = True, 0.4 * TURN_SECONDS_MAX
    connection.feed(connection.request(100) * 7)
    for turn, answered in enumerate((3, 6), start=1):
        assert (connection.turns_begun, connection.peer.requests_received, connection.requests_done) == (turn, 7, answered)
        assert connection.transport.is_paused, "what it asks for now would only wait"
        connection.peer.end_turn()
    assert connection.requests_done == 7
    assert not connection.transport.is_paused
    connection.peer.end_turn()
    assert connection.turns_begun == 2


def test_turn_time_counts_from_its_own_start(clock: Clock) -> None:
    connection = FakeConnection(QueuedRequestBytes(LIMIT), clock)
    connection.answers_at_once, connection.seconds_for_each = True, 0.4 * TURN_SECONDS_MAX
    for number in range(1, 9):
        connection.send(100)
        connection.peer.end_turn()
        assert (connection.requests_done, connection.turns_begun) == (number, 0)


def test_request_awaiting_its_turn_waits_for_its_client_to_read(clock: Clock) -> None:
    connection = FakeConnection(QueuedRequestBytes(LIMIT), clock)
    connection.answers_at_once, connection.seconds_for_each = True, 0.4 * TURN_SECONDS_MAX
    connection.feed(connection.request(100) * 7)
    connection.peer.pause_writing()
    connection.peer.end_turn()
    assert connection.requests_done == 3
    connection.peer.resume_writing()
    connection.peer.end_turn()
    assert connection.requests_done == 6
    connection.peer.end_turn()
    assert connection.requests_done == 7
    assert not connection.transport.is_paused


def test_request_behind_a_waiting_one_is_not_started(clock: Clock) -> None:
    """What is done at once, when it is answered, holds as much as any other requests do: what its client reads, and a turn's time."""
    connection = FakeConnection(QueuedRequestBytes(1 << 30), clock)
    connection.lets_wait = True
    connection.feed(connection.request(100) * 7)
    assert (len(connection.waiting), connection.peer.requests_received) == (1, 7)
    connection.lets_wait, connection.answers_at_once, connection.seconds_for_each = False, True, 0.4 * TURN_SECONDS_MAX
    connection.answer()
    assert not connection.waiting, "the others' turn comes first"
    for done in (4, 7):
        connection.peer.end_turn()
        assert connection.requests_done == done


@pytest.mark.parametrize(("share_of_turn", "done_in_a_turn"), [(0.4, 3), (1.5, 1)])
def test_busy_connections_progress_equally(clock: Clock, share_of_turn: float, done_in_a_turn: int) -> None:
    """A turn takes its time from when it begins, not from when it was asked for: the others' turns came between."""
    loop, held = Loop(), QueuedRequestBytes(1 << 30)
    connections = [FakeConnection(held, clock, loop) for _ in range(3)]
    for connection in connections:
        connection.answers_at_once, connection.seconds_for_each = True, share_of_turn * TURN_SECONDS_MAX
        connection.feed(connection.request(100) * 30)
    for turn in range(1, 8):
        assert [connection.requests_done for connection in connections] == [turn * done_in_a_turn] * 3
        loop.turn()


def test_queued_request_does_not_wait_for_busy_connections(clock: Clock) -> None:
    loop, held = Loop(), QueuedRequestBytes(1 << 30)
    heavy, small = (FakeConnection(held, clock, loop) for _ in range(2))
    heavy.answers_at_once, heavy.seconds_for_each = True, 0.4 * TURN_SECONDS_MAX
    heavy.feed(heavy.request(100) * 60)
    small.lets_wait = True
    small.feed(small.request(100) * 2)
    loop.turn()
    small.answer()
    loop.turn()
    assert small.waiting, "its second request is begun"
    assert heavy.requests_done < 60


@pytest.mark.parametrize("acks", [0, -1])
def test_number_of_queued_requests_is_limited(acks: int) -> None:
    connection = FakeConnection(QueuedRequestBytes(1 << 30))
    connection.lets_wait = True
    connection.send(1)
    small = b"".join(ClientConnection("test", "test", "1").encode_request(ProduceRequest(acks=acks, topics=[]), 7)[1])
    while not connection.transport.is_paused:
        connection.feed(small)
    assert connection.peer.open_count == REQUESTS_WAITING_MAX + 1


def test_queued_requests_are_not_decoded_before_their_turn() -> None:
    """Read it may take forty times the room. At most one request of a connection that waits is."""
    connection = FakeConnection(QueuedRequestBytes(1 << 30))
    connection.lets_wait = True
    connection.send(1)
    many_small = MetadataRequest(topics=[MetadataRequestTopic(name="")] * 50_000)
    data = b"".join(ClientConnection("test", "test", "1").encode_request(many_small, 4)[1])
    tracemalloc.start()
    connection.feed(data * 2)
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert connection.peer.requests_received == 3
    assert len(connection.peer.frames.open_requests) == 1
    assert connection.peer.open_count == 3
    assert taken < 3 * len(data) * 2, "while the buffer grows there are two of it"


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_requests_before_a_broken_one_are_processed_first(clock: Clock, broken: bytes) -> None:
    """Also what waits for its turn. Nothing behind it is done."""
    connection = FakeConnection(QueuedRequestBytes(LIMIT), clock)
    connection.answers_at_once, connection.seconds_for_each = True, 0.4 * TURN_SECONDS_MAX
    connection.feed(connection.request(100) * 7 + broken + connection.request(100))
    for done in (3, 6):
        assert (connection.requests_done, connection.violations) == (done, [])
        connection.peer.end_turn()
    assert (connection.requests_done, len(connection.violations)) == (7, 1)
    connection.feed(connection.request(100))
    connection.peer.end_turn()
    assert (connection.requests_done, len(connection.violations), connection.peer.open_count) == (7, 1, 0)


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_broken_request_waits_for_earlier_responses(broken: bytes) -> None:
    connection = FakeConnection(QueuedRequestBytes(LIMIT))
    connection.lets_wait = True
    connection.feed(connection.request(100) * 2 + broken)
    connection.feed(connection.request(100))
    connection.lets_wait, connection.answers_at_once = False, True
    assert (connection.requests_done, connection.violations) == (0, [])
    connection.answer()
    connection.peer.end_turn()
    assert (connection.requests_done, len(connection.violations)) == (2, 1)
    assert connection.peer.open_count == 0


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_connection_lost_before_its_broken_request_leaves_nothing(broken: bytes) -> None:
    held = QueuedRequestBytes(LIMIT)
    connection = FakeConnection(held)
    connection.lets_wait = True
    connection.feed(connection.request(100) * 2 + broken)
    assert held.bytes_queued > 200
    connection.peer.connection_lost(None)
    assert (connection.violations, held.bytes_queued, connection.peer.open_count) == ([], 0, 0)
    assert (connection.budget.bytes_reserved, connection.budget.bytes_eager) == (0, 0)


def test_rest_of_a_refused_frame_takes_no_memory() -> None:
    connection = FakeConnection(QueuedRequestBytes(1 << 30))
    connection.budget.bytes_max = 400_000
    connection.lets_wait = True
    connection.send(1)
    tracemalloc.start()
    connection.feed((1 << 20).to_bytes(4, "big") + bytes(500_000))
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert (connection.violations, connection.peer.open_count) == ([], 2)
    assert taken < 100_000


def test_bytes_behind_an_empty_frame_are_dropped_in_turns() -> None:
    """Only so can the broker learn, behind an answer that takes long, that the client is gone."""
    held = QueuedRequestBytes(1 << 30)
    connection = FakeConnection(held)
    connection.lets_wait = True
    stream = connection.request(100) + bytes(16 * TURN_BYTES_MAX)
    connection.feed(stream[:200_000])
    before = held.bytes_queued
    for _ in range(3):
        stream = connection.pour(stream)
        connection.loop.turn()
        assert not connection.transport.is_paused
    assert held.bytes_queued == before
    assert connection.peer.open_count == 2


def test_response_to_another_request_ends_no_wait(clock: Clock) -> None:
    """With flush.policy=always it comes after the turn in which the next request began to wait."""
    connection = FakeConnection(QueuedRequestBytes(1 << 30), clock)
    connection.send(100)
    connection.lets_wait = True
    connection.feed(connection.request(100) * 2)
    assert len(connection.waiting) == 2
    connection.answer()
    connection.peer.end_turn()
    assert len(connection.waiting) == 1, "the one that waits, and nothing behind it"


def test_turn_without_remaining_work_ends_at_once() -> None:
    """And first the answers leave: what the server has to do at its end can wait."""
    connection = FakeConnection(QueuedRequestBytes(LIMIT))
    connection.answers_at_the_end = True
    connection.send(100)
    assert connection.transport.written
    assert connection.written_at_turn_ends == [connection.transport.written]
    connection.feed(connection.request(100)[:50])
    assert len(connection.written_at_turn_ends) == 2, "no more is there, whatever will come"
    assert connection.turns_begun == 0


def test_request_that_waited_for_its_client_to_read_starts_a_turn() -> None:
    """At whose end the server looks for what the core waits for now."""
    connection = FakeConnection(QueuedRequestBytes(LIMIT))
    connection.peer.pause_writing()
    connection.feed(connection.request(100))
    assert not connection.waiting
    connection.peer.resume_writing()
    assert connection.waiting
    assert connection.turns_begun == 1


@pytest.mark.parametrize(("request_bytes", "in_flight"), [(240_000, 5), (16_500, 63)])
def test_turn_ends_before_all_in_flight_requests_are_read(request_bytes: int, in_flight: int) -> None:
    connection = FakeConnection(QueuedRequestBytes(1 << 30))
    connection.answers_never = True
    connection.pour(produce_request(request_bytes) * in_flight)
    assert in_flight / 3 < connection.peer.requests_received < in_flight * 2 / 3, "the turn ends, and with it the wait of the first answers"


def test_queued_acks_0_requests_count_with_their_memory() -> None:
    connection = FakeConnection(QueuedRequestBytes(1 << 30))
    connection.send(1)
    small = b"".join(ClientConnection("test", "test", "1").encode_request(ProduceRequest(acks=0, topics=[]), 3)[1])
    while not connection.transport.is_paused:
        connection.feed(small)
    assert len(connection.waiting) <= BYTES_WAITING_MAX // REQUEST_BYTES


def test_idle_connection_holds_no_large_buffer() -> None:
    connection = FakeConnection(QueuedRequestBytes(1 << 30))
    connection.answers_never = True
    connection.feed(2 * produce_request(200_000))
    connection.peer.get_buffer(-1)  # The transport looks for more, and nothing comes.
    assert connection.budget.bytes_eager >= 200_000
    connection.peer.end_turn()
    assert connection.budget.bytes_eager == 0


def test_large_request_is_read_in_turns() -> None:
    connection = FakeConnection(QueuedRequestBytes(1 << 30))
    stream = (64 * TURN_BYTES_MAX).to_bytes(4, "big") + bytes(64 * TURN_BYTES_MAX)
    for turn in (1, 2):
        stream = connection.pour(stream)
        assert connection.turns_begun == turn
        connection.peer.end_turn()
        assert not connection.transport.is_paused


def test_reading_pauses_behind_a_waiting_acks_0_request() -> None:
    """It does not stand among the open requests, and is waited for all the same."""
    connection = FakeConnection(QueuedRequestBytes(1 << 30))
    connection.lets_wait = True
    while not connection.transport.is_paused:
        connection.feed(produce_request(100_000))
        connection.peer.end_turn()
        assert connection.peer.bytes_received < 2 * BYTES_WAITING_MAX, "read without end"
    assert len(connection.waiting) == 1, "the others are not begun"
    connection.lets_wait, turns_begun = False, connection.turns_begun
    connection.complete_silently()
    assert connection.turns_begun == turns_begun + 1, "no more bytes come that would begin those behind it"
    connection.answers_never = True
    connection.peer.end_turn()
    assert not connection.peer._backlog
    assert not connection.transport.is_paused
