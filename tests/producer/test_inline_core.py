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


def quiet(records: str = "a", **options: Any) -> Rig:
    """A producer that has sent these records, one after the other, and has nothing to do."""
    rig = Rig(options=options)
    for offset, value in enumerate(records):
        rig.send(value)
        rig.answer(Answer(base_offset=offset))
    assert rig.core.is_idle
    return rig


def packed(rig: Rig, value: str = "x") -> InlineRequest | None:
    inline = InlineCore(rig.core)
    target = inline.target_for(ORDERS_0, rig.steady_ms)
    if target is None:
        return None
    content = value.encode()
    return inline.prepare(target, content, content, TIMESTAMP_MS, record_size(content, content, ()), rig.steady_ms)


def departed(rig: Rig, value: str = "x") -> InlineRequest:
    inline_request = packed(rig, value)
    assert inline_request is not None
    inline_request.futures.append(value)
    InlineCore(rig.core).begin(inline_request)
    return inline_request


def adopted(rig: Rig) -> SendRequest:
    """The core has a turn: what is on its way is its own."""
    request = InlineCore(rig.core).adopt(rig.steady_ms)
    assert request is not None
    rig._take(request)
    rig.step(events.TimePassed())
    return request


def is_told(rig: Rig, inline_request: InlineRequest, offset: int = 9) -> None:
    InlineCore(rig.core).written(inline_request, lambda _: offset, rig.steady_ms)


def numbers(inline_request: InlineRequest) -> tuple[int, int, int]:
    """Producer id, epoch and sequence of the encoded batch."""
    (view,) = record_batch.views(bytes(inline_request.data))
    assert view.crc_is_valid()
    return view.header.producer_id, view.header.producer_epoch, view.header.base_sequence


TAKES: list[tuple[str, dict[str, Any], bool]] = [
    ("nothing lingers", {"linger.ms": 0}, True),
    ("without idempotence a lost acknowledgement is a second record", {"enable.idempotence": False}, False),
    ("acks=0 has no answer", {"enable.idempotence": False, "acks": "0"}, False),
    ("records linger", {"linger.ms": 1}, False),
    ("batches are compressed", {"compression.type": "lz4"}, False),
    ("in transactions", {"transactional.id": "t"}, False),
]


@pytest.mark.parametrize(("options", "takes"), [row[1:] for row in TAKES], ids=[row[0] for row in TAKES])
def test_producers_with_inline_send(options: dict[str, Any], takes: bool) -> None:
    assert Rig(options=options).core.allows_inline_send is takes


def held(rig: Rig) -> None:
    rig.send("bc")
    rig.answer(Answer(codes.INVALID_RECORD))


def lost(rig: Rig) -> None:
    rig.send("b")
    rig.answer(LOST)


REFUSED: list[tuple[str, Callable[[Rig], Any]]] = [
    ("a record waits", lambda rig: rig.append("b")),
    ("a batch waits", lambda rig: rig.hand_over("bc")),
    ("a batch is in flight", lambda rig: rig.send("b")),
    ("a batch goes again", lost),
    ("numbering is to restart", held),
    ("the partition has no leader", lambda rig: rig.core.context.cluster.forget("orders")),
    ("the leader is to be left alone", lambda rig: rig.core.context.attempts.throttled(BROKER, rig.steady_ms + 1)),
]


@pytest.mark.parametrize("happens", [row[1] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_when_a_record_goes_the_ordinary_way(happens: Callable[[Rig], Any]) -> None:
    rig = quiet()
    assert packed(rig) is not None
    happens(rig)
    assert packed(rig) is None


def test_the_first_of_an_identity_goes_the_ordinary_way() -> None:
    """So there is one, and the broker knows it."""
    assert packed(Rig()) is None


def test_batch_of_another_partition_does_not_block() -> None:
    rig = quiet()
    rig.append("b", ORDERS_1)
    assert packed(rig) is not None


def test_each_goes_under_the_next_sequence() -> None:
    rig, seen = quiet("ab"), []
    for _ in range(3):
        inline_request = departed(rig)
        seen.append(numbers(inline_request))
        is_told(rig, inline_request)
    rig.send("c")
    assert [sequence for _, _, sequence in seen] == [2, 3, 4]
    assert {(producer_id, epoch) for producer_id, epoch, _ in seen} == {tuple(rig.core.identity.current)}
    assert rig.trace == ["a@0/0", "b@1/0", "c@5/0"]


@pytest.mark.parametrize("way", [is_told, lambda rig, _: (adopted(rig), rig.answer(OK))], ids=["written", "adopted"])
def test_sequences_wrap(way: Callable[[Rig, InlineRequest], Any]) -> None:
    rig = quiet()
    rig.core.outstanding.queue(ORDERS_0)._sequence_next = SEQUENCE_MODULUS - 1
    inline_request = departed(rig)
    assert numbers(inline_request)[2] == SEQUENCE_MODULUS - 1
    way(rig, inline_request)
    assert numbers(departed(rig))[2] == 0


ENDS: list[tuple[str, Any, str]] = [
    ("written", Answer(base_offset=7), "7"),
    ("refused", Answer(codes.INVALID_RECORD), "InvalidRecordException no"),
]


@pytest.mark.parametrize(("answer", "fate"), [row[1:] for row in ENDS], ids=[row[0] for row in ENDS])
def test_what_is_adopted_ends_as_any_batch(answer: Any, fate: str) -> None:
    rig = quiet()
    departed(rig)
    adopted(rig)
    assert rig.fate("x") == ["open"]
    assert rig.trace[1:] == ["x@1/0"]
    rig.answer(answer)
    assert rig.fate("x") == [fate]
    assert rig.core.is_idle


def test_an_answer_that_is_lost() -> None:
    """It is retried under its sequence number, and records sent in the meantime follow it."""
    rig = quiet()
    departed(rig)
    rig.append("b")
    adopted(rig)
    assert rig.trace[1:] == ["x@1/0", "b@2/0"]
    rig.answer(LOST)
    rig.answer(LOST)
    rig.sleep(500)
    rig.answer(OK)
    assert rig.trace[3:] == ["x@1/0", "b@2/0"]


def test_it_has_a_position_of_its_own() -> None:
    """Batches that come back are put in the order of their positions."""
    rig = quiet()
    inline_request = departed(rig)
    rig.append("b")
    adopted(rig)
    assert (
        [batch.position for batch in rig.core.outstanding.queue(ORDERS_0).in_flight]
        == [inline_request.position, inline_request.position + 1]
        == [1, 2]
    )


def test_what_is_over_is_not_adopted() -> None:
    """Its caller was interrupted when its future was done, and had not come to the rest."""
    rig = quiet()
    free = rig.core.accumulator.memory_free
    inline_request = departed(rig)
    inline_request.target.queue.complete_inline(inline_request.futures, lambda _: 9, rig.steady_ms)
    assert InlineCore(rig.core).adopt(rig.steady_ms) is None
    assert (rig.core.is_idle, rig.core.inline_request, rig.core.accumulator.memory_free) == (True, None, free)
    assert numbers(departed(rig))[2] == 2


def test_it_is_adopted_once() -> None:
    rig = quiet()
    departed(rig)
    adopted(rig)
    assert InlineCore(rig.core).adopt(rig.steady_ms) is None
    assert rig.core.outstanding_count == 1


def written_by_sender(rig: Rig) -> None:
    departed(rig)
    adopted(rig)
    rig.answer(OK)


WAYS: list[tuple[str, Callable[[Rig], Any]]] = [
    ("written", lambda rig: is_told(rig, departed(rig))),
    ("adopted", written_by_sender),
]


@pytest.mark.parametrize("way", [row[1] for row in WAYS], ids=[row[0] for row in WAYS])
def test_memory_and_metrics_are_those_of_the_ordinary_way(way: Callable[[Rig], Any]) -> None:
    ordinary, inline = quiet(), quiet()
    ordinary.send("x")
    assert ordinary.core.outstanding_count == 1
    ordinary.answer(OK)
    free = inline.core.accumulator.memory_free
    way(inline)
    assert (inline.core.accumulator.memory_free, inline.core.outstanding_count) == (free, 0)
    assert inline.core.context.counts == ordinary.core.context.counts


@pytest.mark.parametrize("way", [row[1] for row in WAYS], ids=[row[0] for row in WAYS])
def test_its_topic_is_not_forgotten(way: Callable[[Rig], Any]) -> None:
    options: dict[str, Any] = {"metadata.max.age.ms": 10_000, "metadata.max.idle.ms": 5_000}
    rig = quiet(**options)
    rig.sleep(8_000)
    way(rig)
    rig.sleep(2_000)
    assert [topic.name for topic in rig.requests[-1].topics] == ["orders"]


def test_on_its_way_it_holds_memory_and_counts() -> None:
    rig = quiet()
    free = rig.core.accumulator.memory_free
    inline_request = departed(rig)
    assert (rig.core.accumulator.memory_free, rig.core.outstanding_count) == (free - inline_request.size, 1)


OTHERS: list[tuple[str, Callable[[Rig, InlineRequest], Any]]] = [
    ("who waits in another way", lambda _, inline_request: inline_request.futures.watched.append(0)),
    ("who waits for memory", lambda rig, _: rig.core.memory_wait_began()),
]


@pytest.mark.parametrize("waits", [row[1] for row in OTHERS], ids=[row[0] for row in OTHERS])
def test_watched_futures_are_completed_by_the_core(waits: Callable[[Rig, InlineRequest], Any]) -> None:
    rig = quiet()
    inline_request = departed(rig)
    waits(rig, inline_request)
    assert not InlineCore(rig.core).written(inline_request, lambda _: 9, rig.steady_ms)
    assert (inline_request.is_complete, inline_request.futures.outcome, rig.core.inline_request) == (False, None, inline_request)


def test_memory_waiter_is_woken_by_a_finished_inline_send() -> None:
    rig = quiet()
    inline_request = departed(rig)
    inline_request.target.queue.complete_inline(inline_request.futures, lambda _: 9, rig.steady_ms)
    rig.core.memory_wait_began()
    InlineCore(rig.core).adopt(rig.steady_ms)
    assert WakeCallers() in rig.core.handle(events.TimePassed(), rig.steady_ms)
