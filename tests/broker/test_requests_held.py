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
from tests.broker.pretend_line import Clock, Line, Loop, produce_request

LIMIT = 1000 + 3 * REQUEST_BYTES

BROKEN = {
    "unknown API": bytes.fromhex("0000000a 03e7 0000 00000001 ffff"),
    "malformed body": bytes.fromhex("0000000e 0003 0001 00000001 ffff 7fffffff"),
    "too large": bytes.fromhex("7fffffff"),
    "too small": bytes.fromhex("00000000"),
}


pytestmark = pytest.mark.usefixtures("clock")


def test_who_waits_is_read_no_further_when_too_much_waits_in_all() -> None:
    held = QueuedRequestBytes(LIMIT)
    first, second = Line(held), Line(held)
    first.send(600)
    second.send(100)
    assert [line.transport.is_paused for line in (first, second)] == [False, False]
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


def test_who_is_answered_at_once_is_always_read() -> None:
    held = QueuedRequestBytes(LIMIT)
    greedy, quick = Line(held), Line(held)
    greedy.send(2 * LIMIT)
    quick.answers_at_once = True
    for _ in range(5):
        quick.send(2 * LIMIT)
    assert not quick.transport.is_paused
    assert greedy.transport.is_paused


def test_what_is_answered_or_gone_is_held_no_more() -> None:
    held = QueuedRequestBytes(LIMIT)
    answered, silent, gone = Line(held), Line(held), Line(held)
    for line in (answered, silent, gone):
        line.send(100)
    assert 300 < held.bytes_queued - 3 * REQUEST_BYTES < 600
    gone.peer.connection_lost(None)
    answered.answer()
    assert 100 < held.bytes_queued - REQUEST_BYTES < 200
    silent.complete_silently()
    assert held.bytes_queued == 0


@pytest.mark.parametrize("has_answers", [True, False])
def test_who_sends_without_end_is_read_on_in_the_next_turn(has_answers: bool) -> None:
    line = Line(QueuedRequestBytes(LIMIT))
    line.answers_at_once, line.answers_never = has_answers, not has_answers
    stream = line.request(30_000) * 80
    for turn in (1, 2):
        before = line.peer.bytes_received
        stream = line.pour(stream)
        assert TURN_BYTES_MAX < line.peer.bytes_received - before <= TURN_BYTES_MAX + BUSY_CHUNK_BYTES
        assert line.turns_begun == turn
        assert not line.written_at_turn_ends
        line.peer.end_turn()
        assert not line.transport.is_paused


def test_who_asks_for_much_at_once_is_answered_over_several_turns(clock: Clock) -> None:
    """It reads as fast as it is answered: others would have nothing until it had everything."""
    line = Line(QueuedRequestBytes(LIMIT), clock)
    line.answers_at_once, line.seconds_for_each = True, 0.4 * TURN_SECONDS_MAX
    line.feed(line.request(100) * 7)
    for turn, answered in enumerate((3, 6), start=1):
        assert (line.turns_begun, line.peer.requests_received, line.requests_done) == (turn, 7, answered)
        assert line.transport.is_paused, "what it asks for now would only wait"
        line.peer.end_turn()
    assert line.requests_done == 7
    assert not line.transport.is_paused
    line.peer.end_turn()
    assert line.turns_begun == 2


def test_a_turn_takes_its_time_from_its_own_beginning(clock: Clock) -> None:
    line = Line(QueuedRequestBytes(LIMIT), clock)
    line.answers_at_once, line.seconds_for_each = True, 0.4 * TURN_SECONDS_MAX
    for number in range(1, 9):
        line.send(100)
        line.peer.end_turn()
        assert (line.requests_done, line.turns_begun) == (number, 0)


def test_what_waits_for_its_turn_waits_for_its_client_to_read_too(clock: Clock) -> None:
    line = Line(QueuedRequestBytes(LIMIT), clock)
    line.answers_at_once, line.seconds_for_each = True, 0.4 * TURN_SECONDS_MAX
    line.feed(line.request(100) * 7)
    line.peer.pause_writing()
    line.peer.end_turn()
    assert line.requests_done == 3
    line.peer.resume_writing()
    line.peer.end_turn()
    assert line.requests_done == 6
    line.peer.end_turn()
    assert line.requests_done == 7
    assert not line.transport.is_paused


def test_nothing_is_begun_behind_a_request_that_waits(clock: Clock) -> None:
    """What is done at once, when it is answered, holds as much as any other requests do: what its client reads, and a turn's time."""
    line = Line(QueuedRequestBytes(1 << 30), clock)
    line.lets_wait = True
    line.feed(line.request(100) * 7)
    assert (len(line.waiting), line.peer.requests_received) == (1, 7)
    line.lets_wait, line.answers_at_once, line.seconds_for_each = False, True, 0.4 * TURN_SECONDS_MAX
    line.answer()
    assert not line.waiting, "the others' turn comes first"
    for done in (4, 7):
        line.peer.end_turn()
        assert line.requests_done == done


@pytest.mark.parametrize(("share_of_turn", "done_in_a_turn"), [(0.4, 3), (1.5, 1)])
def test_those_who_ask_for_much_get_on_in_step(clock: Clock, share_of_turn: float, done_in_a_turn: int) -> None:
    """A turn takes its time from when it begins, not from when it was asked for: the others' turns came between."""
    loop, held = Loop(), QueuedRequestBytes(1 << 30)
    lines = [Line(held, clock, loop) for _ in range(3)]
    for line in lines:
        line.answers_at_once, line.seconds_for_each = True, share_of_turn * TURN_SECONDS_MAX
        line.feed(line.request(100) * 30)
    for turn in range(1, 8):
        assert [line.requests_done for line in lines] == [turn * done_in_a_turn] * 3
        loop.turn()


def test_what_waits_behind_an_answer_does_not_wait_for_those_who_ask_for_much(clock: Clock) -> None:
    loop, held = Loop(), QueuedRequestBytes(1 << 30)
    heavy, small = (Line(held, clock, loop) for _ in range(2))
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
def test_so_many_requests_wait_behind_an_answer_and_no_more(acks: int) -> None:
    line = Line(QueuedRequestBytes(1 << 30))
    line.lets_wait = True
    line.send(1)
    small = b"".join(ClientConnection("test", "test", "1").encode_request(ProduceRequest(acks=acks, topics=[]), 7)[1])
    while not line.transport.is_paused:
        line.feed(small)
    assert line.peer.open_count == REQUESTS_WAITING_MAX + 1


def test_what_waits_behind_an_answer_is_not_read_before_it_is_done() -> None:
    """Read it may take forty times the room. At most one request of a connection that waits is."""
    line = Line(QueuedRequestBytes(1 << 30))
    line.lets_wait = True
    line.send(1)
    many_small = MetadataRequest(topics=[MetadataRequestTopic(name="")] * 50_000)
    data = b"".join(ClientConnection("test", "test", "1").encode_request(many_small, 4)[1])
    tracemalloc.start()
    line.feed(data * 2)
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert line.peer.requests_received == 3
    assert len(line.peer.frames.open_requests) == 1
    assert line.peer.open_count == 3
    assert taken < 3 * len(data) * 2, "while the buffer grows there are two of it"


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_what_came_before_a_broken_request_is_done_first(clock: Clock, broken: bytes) -> None:
    """Also what waits for its turn. Nothing behind it is done."""
    line = Line(QueuedRequestBytes(LIMIT), clock)
    line.answers_at_once, line.seconds_for_each = True, 0.4 * TURN_SECONDS_MAX
    line.feed(line.request(100) * 7 + broken + line.request(100))
    for done in (3, 6):
        assert (line.requests_done, line.violations) == (done, [])
        line.peer.end_turn()
    assert (line.requests_done, len(line.violations)) == (7, 1)
    line.feed(line.request(100))
    line.peer.end_turn()
    assert (line.requests_done, len(line.violations), line.peer.open_count) == (7, 1, 0)


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_a_broken_request_waits_for_the_answer_before_it(broken: bytes) -> None:
    line = Line(QueuedRequestBytes(LIMIT))
    line.lets_wait = True
    line.feed(line.request(100) * 2 + broken)
    line.feed(line.request(100))
    line.lets_wait, line.answers_at_once = False, True
    assert (line.requests_done, line.violations) == (0, [])
    line.answer()
    line.peer.end_turn()
    assert (line.requests_done, len(line.violations)) == (2, 1)
    assert line.peer.open_count == 0


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_who_is_gone_before_its_broken_request_is_reached_leaves_nothing(broken: bytes) -> None:
    held = QueuedRequestBytes(LIMIT)
    line = Line(held)
    line.lets_wait = True
    line.feed(line.request(100) * 2 + broken)
    assert held.bytes_queued > 200
    line.peer.connection_lost(None)
    assert (line.violations, held.bytes_queued, line.peer.open_count) == ([], 0, 0)
    assert (line.budget.bytes_reserved, line.budget.bytes_eager) == (0, 0)


def test_the_rest_of_a_frame_that_was_refused_takes_no_memory_until_that_is_reached() -> None:
    line = Line(QueuedRequestBytes(1 << 30))
    line.budget.bytes_max = 400_000
    line.lets_wait = True
    line.send(1)
    tracemalloc.start()
    line.feed((1 << 20).to_bytes(4, "big") + bytes(500_000))
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert (line.violations, line.peer.open_count) == ([], 2)
    assert taken < 100_000


def test_what_comes_behind_a_frame_of_no_size_is_dropped_turn_by_turn() -> None:
    """Only so can the broker learn, behind an answer that takes long, that the client is gone."""
    held = QueuedRequestBytes(1 << 30)
    line = Line(held)
    line.lets_wait = True
    stream = line.request(100) + bytes(16 * TURN_BYTES_MAX)
    line.feed(stream[:200_000])
    before = held.bytes_queued
    for _ in range(3):
        stream = line.pour(stream)
        line.loop.turn()
        assert not line.transport.is_paused
    assert held.bytes_queued == before
    assert line.peer.open_count == 2


def test_an_answer_to_another_request_ends_no_wait(clock: Clock) -> None:
    """With flush.policy=always it comes after the turn in which the next request began to wait."""
    line = Line(QueuedRequestBytes(1 << 30), clock)
    line.send(100)
    line.lets_wait = True
    line.feed(line.request(100) * 2)
    assert len(line.waiting) == 2
    line.answer()
    line.peer.end_turn()
    assert len(line.waiting) == 1, "the one that waits, and nothing behind it"


def test_a_turn_ends_at_once_with_what_leaves_nothing_behind() -> None:
    """And first the answers leave: what the server has to do at its end can wait."""
    line = Line(QueuedRequestBytes(LIMIT))
    line.answers_at_the_end = True
    line.send(100)
    assert line.transport.written
    assert line.written_at_turn_ends == [line.transport.written]
    line.feed(line.request(100)[:50])
    assert len(line.written_at_turn_ends) == 2, "no more is there, whatever will come"
    assert line.turns_begun == 0


def test_what_waited_for_its_client_to_read_begins_a_turn() -> None:
    """At whose end the server looks for what the core waits for now."""
    line = Line(QueuedRequestBytes(LIMIT))
    line.peer.pause_writing()
    line.feed(line.request(100))
    assert not line.waiting
    line.peer.resume_writing()
    assert line.waiting
    assert line.turns_begun == 1


@pytest.mark.parametrize(("request_bytes", "in_flight"), [(240_000, 5), (16_500, 63)])
def test_a_producer_is_answered_while_half_of_its_requests_are_still_to_be_read(request_bytes: int, in_flight: int) -> None:
    line = Line(QueuedRequestBytes(1 << 30))
    line.answers_never = True
    line.pour(produce_request(request_bytes) * in_flight)
    assert in_flight / 3 < line.peer.requests_received < in_flight * 2 / 3, "the turn ends, and with it the wait of the first answers"


def test_small_requests_without_answers_behind_one_that_waits_count_for_what_they_take_in_memory() -> None:
    line = Line(QueuedRequestBytes(1 << 30))
    line.send(1)
    small = b"".join(ClientConnection("test", "test", "1").encode_request(ProduceRequest(acks=0, topics=[]), 3)[1])
    while not line.transport.is_paused:
        line.feed(small)
    assert len(line.waiting) <= BYTES_WAITING_MAX // REQUEST_BYTES


def test_who_sent_large_requests_and_is_idle_holds_no_large_buffer() -> None:
    line = Line(QueuedRequestBytes(1 << 30))
    line.answers_never = True
    line.feed(2 * produce_request(200_000))
    line.peer.get_buffer(-1)  # The transport looks for more, and nothing comes.
    assert line.budget.bytes_eager >= 200_000
    line.peer.end_turn()
    assert line.budget.bytes_eager == 0


def test_a_large_request_takes_as_many_turns_as_other_bytes() -> None:
    line = Line(QueuedRequestBytes(1 << 30))
    stream = (64 * TURN_BYTES_MAX).to_bytes(4, "big") + bytes(64 * TURN_BYTES_MAX)
    for turn in (1, 2):
        stream = line.pour(stream)
        assert line.turns_begun == turn
        line.peer.end_turn()
        assert not line.transport.is_paused


def test_behind_a_waiting_request_without_an_answer_little_is_read() -> None:
    """It does not stand among the open requests, and is waited for all the same."""
    line = Line(QueuedRequestBytes(1 << 30))
    line.lets_wait = True
    while not line.transport.is_paused:
        line.feed(produce_request(100_000))
        line.peer.end_turn()
        assert line.peer.bytes_received < 2 * BYTES_WAITING_MAX, "read without end"
    assert len(line.waiting) == 1, "the others are not begun"
    line.lets_wait, turns_begun = False, line.turns_begun
    line.complete_silently()
    assert line.turns_begun == turns_begun + 1, "no more bytes come that would begin those behind it"
    line.answers_never = True
    line.peer.end_turn()
    assert not line.peer._backlog
    assert not line.transport.is_paused
