"""InlineCore: when a record may be sent inline, its sequence number, and the same outcome as a batch has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chaffinch.errors import codes
from chaffinch.identifiers import SEQUENCE_MODULUS
from chaffinch.producer.core import events
from chaffinch.producer.core.batches.accumulator import record_size
from chaffinch.producer.core.effects import SendRequest, WakeCallers
from chaffinch.producer.inline_send import InlineCore, InlineRequest
from chaffinch.records import batch as record_batch
from tests.producer.core.rig import BROKER, LOST, OK, ORDERS_0, ORDERS_1, Answer, Rig

TIMESTAMP_MS = 1_700_000_000_000


def idle_rig(records: str = "a", **options: Any) -> Rig:
    """An idle producer that has sent these records one after the other."""
    rig = Rig(options=options)
    for offset, value in enumerate(records):
        rig.send(value)
        rig.answer(Answer(base_offset=offset))
    assert rig.core.is_idle
    return rig


def prepare(rig: Rig, value: str = "x") -> InlineRequest | None:
    inline = InlineCore(rig.core)
    target = inline.target_for(ORDERS_0, rig.steady_ms)
    if target is None:
        return None
    content = value.encode()
    return inline.prepare(target, content, content, TIMESTAMP_MS, record_size(content, content, ()), rig.steady_ms)


def begin(rig: Rig, value: str = "x") -> InlineRequest:
    inline_request = prepare(rig, value)
    assert inline_request is not None
    inline_request.futures.append(value)
    InlineCore(rig.core).begin(inline_request)
    return inline_request


def adopt(rig: Rig) -> SendRequest:
    """The core adopts the inline request in flight, and has a round."""
    request = InlineCore(rig.core).adopt(rig.steady_ms)
    assert request is not None
    rig._take(request)
    rig.step(events.TimePassed())
    return request


def written(rig: Rig, inline_request: InlineRequest, offset: int = 9) -> None:
    InlineCore(rig.core).written(inline_request, lambda _: offset, rig.steady_ms)


def numbers(inline_request: InlineRequest) -> tuple[int, int, int]:
    """Producer id, epoch and sequence of the encoded batch."""
    (view,) = record_batch.views(bytes(inline_request.data))
    assert view.crc_is_valid()
    return view.header.producer_id, view.header.producer_epoch, view.header.base_sequence


ENABLED: list[tuple[str, dict[str, Any], bool]] = [
    ("nothing lingers", {"linger.ms": 0}, True),
    ("without idempotence a retry may store the record twice", {"enable.idempotence": False}, False),
    ("acks=0 has no response", {"enable.idempotence": False, "acks": "0"}, False),
    ("records linger", {"linger.ms": 1}, False),
    ("batches are compressed", {"compression.type": "lz4"}, False),
    ("in transactions", {"transactional.id": "t"}, False),
]


@pytest.mark.parametrize(("options", "is_enabled"), [row[1:] for row in ENABLED], ids=[row[0] for row in ENABLED])
def test_producers_with_inline_send(options: dict[str, Any], is_enabled: bool) -> None:
    assert Rig(options=options).core.allows_inline_send is is_enabled


def hold_partition(rig: Rig) -> None:
    rig.send("bc")
    rig.answer(Answer(codes.INVALID_RECORD))


def lose_batch(rig: Rig) -> None:
    rig.send("b")
    rig.answer(LOST)


REFUSED: list[tuple[str, Callable[[Rig], Any]]] = [
    ("a record waits", lambda rig: rig.append("b")),
    ("a batch waits", lambda rig: rig.hand_over("bc")),
    ("a batch is in flight", lambda rig: rig.send("b")),
    ("a batch is retried", lose_batch),
    ("a new epoch is needed", hold_partition),
    ("the partition has no leader", lambda rig: rig.core.context.cluster.forget("orders")),
    ("the leader throttles the client", lambda rig: rig.core.context.attempts.throttled(BROKER, rig.steady_ms + 1)),
]


@pytest.mark.parametrize("fault", [row[1] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_record_is_not_sent_inline(fault: Callable[[Rig], Any]) -> None:
    rig = idle_rig()
    assert prepare(rig) is not None
    fault(rig)
    assert prepare(rig) is None


def test_first_record_of_a_producer_id_is_not_sent_inline() -> None:
    """The first batch obtains the producer id, and the broker then has its state."""
    assert prepare(Rig()) is None


def test_batch_of_another_partition_does_not_block() -> None:
    rig = idle_rig()
    rig.append("b", ORDERS_1)
    assert prepare(rig) is not None


def test_each_inline_record_has_the_next_sequence() -> None:
    rig, seen = idle_rig("ab"), []
    for _ in range(3):
        inline_request = begin(rig)
        seen.append(numbers(inline_request))
        written(rig, inline_request)
    rig.send("c")
    assert [sequence for _, _, sequence in seen] == [2, 3, 4]
    assert {(producer_id, epoch) for producer_id, epoch, _ in seen} == {tuple(rig.core.identity.current)}
    assert rig.trace == ["a@0/0", "b@1/0", "c@5/0"]


@pytest.mark.parametrize("path", [written, lambda rig, _: (adopt(rig), rig.answer(OK))], ids=["written", "adopt"])
def test_sequences_wrap(path: Callable[[Rig, InlineRequest], Any]) -> None:
    rig = idle_rig()
    rig.core.outstanding.queue(ORDERS_0)._sequence_next = SEQUENCE_MODULUS - 1
    inline_request = begin(rig)
    assert numbers(inline_request)[2] == SEQUENCE_MODULUS - 1
    path(rig, inline_request)
    assert numbers(begin(rig))[2] == 0


ENDS: list[tuple[str, Any, str]] = [
    ("written", Answer(base_offset=7), "7"),
    ("refused", Answer(codes.INVALID_RECORD), "InvalidRecordException no"),
]


@pytest.mark.parametrize(("answer", "fate"), [row[1:] for row in ENDS], ids=[row[0] for row in ENDS])
def test_adopted_record_completes_like_a_batch(answer: Any, fate: str) -> None:
    rig = idle_rig()
    begin(rig)
    adopt(rig)
    assert rig.fate("x") == ["open"]
    assert rig.trace[1:] == ["x@1/0"]
    rig.answer(answer)
    assert rig.fate("x") == [fate]
    assert rig.core.is_idle


def test_lost_response_of_an_inline_record_is_retried() -> None:
    """It is retried under its sequence number, and records sent in the meantime follow it."""
    rig = idle_rig()
    begin(rig)
    rig.append("b")
    adopt(rig)
    assert rig.trace[1:] == ["x@1/0", "b@2/0"]
    rig.answer(LOST)
    rig.answer(LOST)
    rig.sleep(500)
    rig.answer(OK)
    assert rig.trace[3:] == ["x@1/0", "b@2/0"]


def test_inline_record_has_its_own_position() -> None:
    """Returned batches are sorted by position."""
    rig = idle_rig()
    inline_request = begin(rig)
    rig.append("b")
    adopt(rig)
    assert (
        [batch.position for batch in rig.core.outstanding.queue(ORDERS_0).in_flight]
        == [inline_request.position, inline_request.position + 1]
        == [1, 2]
    )


def test_completed_inline_request_is_not_adopted() -> None:
    """Its caller was interrupted after the future was completed, before the rest of the bookkeeping."""
    rig = idle_rig()
    free = rig.core.accumulator.memory_free
    inline_request = begin(rig)
    inline_request.target.queue.complete_inline(inline_request.futures, lambda _: 9, rig.steady_ms)
    assert InlineCore(rig.core).adopt(rig.steady_ms) is None
    assert (rig.core.is_idle, rig.core.inline_request, rig.core.accumulator.memory_free) == (True, None, free)
    assert numbers(begin(rig))[2] == 2


def test_inline_request_is_adopted_once() -> None:
    rig = idle_rig()
    begin(rig)
    adopt(rig)
    assert InlineCore(rig.core).adopt(rig.steady_ms) is None
    assert rig.core.outstanding_count == 1


def written_by_sender(rig: Rig) -> None:
    begin(rig)
    adopt(rig)
    rig.answer(OK)


PATHS: list[tuple[str, Callable[[Rig], Any]]] = [
    ("written", lambda rig: written(rig, begin(rig))),
    ("adopt", written_by_sender),
]


@pytest.mark.parametrize("path", [row[1] for row in PATHS], ids=[row[0] for row in PATHS])
def test_memory_and_metrics_equal_those_of_a_batch(path: Callable[[Rig], Any]) -> None:
    ordinary, inline = idle_rig(), idle_rig()
    ordinary.send("x")
    assert ordinary.core.outstanding_count == 1
    ordinary.answer(OK)
    free = inline.core.accumulator.memory_free
    path(inline)
    assert (inline.core.accumulator.memory_free, inline.core.outstanding_count) == (free, 0)
    assert inline.core.context.counts == ordinary.core.context.counts


@pytest.mark.parametrize("path", [row[1] for row in PATHS], ids=[row[0] for row in PATHS])
def test_topic_used_inline_is_not_forgotten(path: Callable[[Rig], Any]) -> None:
    options: dict[str, Any] = {"metadata.max.age.ms": 10_000, "metadata.max.idle.ms": 5_000}
    rig = idle_rig(**options)
    rig.sleep(8_000)
    path(rig)
    rig.sleep(2_000)
    assert [topic.name for topic in rig.requests[-1].topics] == ["orders"]


def test_inline_request_in_flight_holds_memory_and_counts() -> None:
    rig = idle_rig()
    free = rig.core.accumulator.memory_free
    inline_request = begin(rig)
    assert (rig.core.accumulator.memory_free, rig.core.outstanding_count) == (free - inline_request.size, 1)


OTHERS: list[tuple[str, Callable[[Rig, InlineRequest], Any]]] = [
    ("watched future", lambda _, inline_request: inline_request.futures.watched.append(0)),
    ("memory waiter", lambda rig, _: rig.core.memory_wait_began()),
]


@pytest.mark.parametrize("add_waiter", [row[1] for row in OTHERS], ids=[row[0] for row in OTHERS])
def test_watched_futures_are_completed_by_the_core(add_waiter: Callable[[Rig, InlineRequest], Any]) -> None:
    rig = idle_rig()
    inline_request = begin(rig)
    add_waiter(rig, inline_request)
    assert not InlineCore(rig.core).written(inline_request, lambda _: 9, rig.steady_ms)
    assert (inline_request.is_complete, inline_request.futures.outcome, rig.core.inline_request) == (False, None, inline_request)


def test_memory_waiter_is_woken_by_a_finished_inline_send() -> None:
    rig = idle_rig()
    inline_request = begin(rig)
    inline_request.target.queue.complete_inline(inline_request.futures, lambda _: 9, rig.steady_ms)
    rig.core.memory_wait_began()
    InlineCore(rig.core).adopt(rig.steady_ms)
    assert WakeCallers() in rig.core.handle(events.TimePassed(), rig.steady_ms)
