"""Errors of expired records: number of attempts, last cause, whether the record may be stored, and advice."""

from __future__ import annotations

from typing import Any

import pytest

from chaffinch.errors import KafkaException, TimeoutException, TransactionAbortableException, codes
from chaffinch.producer.core import events
from chaffinch.producer.core.batches import produce_requests
from chaffinch.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from tests.producer.core.rig import LOST, NOT_SENT, OK, TIMED_OUT, Answer, Rig

OPTIONS: dict[str, Any] = {"delivery.timeout.ms": 2_000, "request.timeout.ms": 1_000}
NOT_STORED, POSSIBLY_STORED = "not stored; it may be tried again", "possibly stored; if it is sent again, it may be stored twice"
REPLICAS = "NOT_ENOUGH_REPLICAS (1 in sync, 2 asked for)"


def expired(values: str, answers: list[Answer | str], **options: Any) -> KafkaException:
    rig = Rig(options=OPTIONS | options)
    if "transactional.id" in options:
        rig.call(events.InitTransactionsCalled, "init")
        rig.call(events.BeginTransactionCalled, "begin")
    rig.send(values)
    for answer in answers:
        rig.answer(answer)
        rig.sleep(400)
    rig.sleep(2_000)
    return rig.error(values[0])


@pytest.mark.parametrize(
    ("values", "answers", "text"),
    [
        ("ab", [], "2 records expired: no outcome within delivery.timeout.ms, 2000 ms; sent once; " + POSSIBLY_STORED),
        (
            "a",
            [Answer(codes.NOT_ENOUGH_REPLICAS, message="1 in sync, 2 asked for")] * 2 + [NOT_SENT],
            "1 record expired: no outcome within delivery.timeout.ms, 2000 ms; sent 3 times; "
            "the last error was NETWORK_EXCEPTION (127.0.0.1:9092: connection lost before the request was sent); " + POSSIBLY_STORED,
        ),
        (
            "a",
            [NOT_SENT],
            "the last error was NETWORK_EXCEPTION (127.0.0.1:9092: connection lost before the request was sent); " + POSSIBLY_STORED,
        ),
        ("a", [LOST], "sent 2 times; the last error was NETWORK_EXCEPTION (127.0.0.1:9092: connection lost after the request was sent); "),
        ("a", [TIMED_OUT], "sent 2 times; the last error was REQUEST_TIMED_OUT (127.0.0.1:9092: no answer in time); " + POSSIBLY_STORED),
    ],
)
def test_batch_in_flight_expires_with_attempts_and_cause(values: str, answers: list[Answer | str], text: str) -> None:
    error = expired(values, answers)
    assert isinstance(error, TimeoutException)
    assert str(error).startswith("Produce for orders-0: REQUEST_TIMED_OUT (7): ")
    assert text in str(error)


@pytest.mark.parametrize(
    ("code", "text"), [(codes.NOT_ENOUGH_REPLICAS, NOT_STORED), (codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND, POSSIBLY_STORED)]
)
def test_batch_in_backoff_expires_with_cause_and_stored(code: Any, text: str) -> None:
    backoff = {"retry.backoff.ms": 60_000, "retry.backoff.max.ms": 60_000}
    error = expired("a", [Answer(code, message="1 in sync, 2 asked for")], **backoff)
    assert f"sent once; the last error was {code.name} (1 in sync, 2 asked for); {text}" in str(error)
    assert error.__cause__ is not None


def test_batch_in_a_transaction_expires_as_abortable() -> None:
    answers: list[Answer | str] = [Answer(codes.NOT_ENOUGH_REPLICAS, message="1 in sync, 2 asked for")]
    error = expired("a", answers, **{"transactional.id": "t", "retry.backoff.ms": 60_000, "retry.backoff.max.ms": 60_000})
    assert isinstance(error, TransactionAbortableException)
    assert isinstance(error.__cause__, TimeoutException)
    assert f"the last error was {REPLICAS}; not stored; abort the transaction and go on" in str(error)


@pytest.mark.parametrize(
    ("hold", "answers", "stored"),
    [({AddPartitionsToTxnRequest}, [], "no"), (set(), [], "possibly"), (set(), [Answer(codes.NOT_ENOUGH_REPLICAS)], "no")],
    ids=["never sent", "under way", "waits to go again"],
)
def test_commit_after_an_expired_batch_fails(hold: set[type], answers: list[Answer | str], stored: str) -> None:
    """Whatever state the batch expires in, and even if its response arrives afterwards."""
    backoff = {"retry.backoff.ms": 60_000, "retry.backoff.max.ms": 60_000}
    rig = Rig(options=OPTIONS | backoff | {"transactional.id": "t"}, hold=hold)
    rig.call(events.InitTransactionsCalled, "init")
    rig.call(events.BeginTransactionCalled, "begin")
    rig.send("a")
    for answer in answers:
        rig.answer(answer)
    rig.sleep(2_000)
    assert rig.fate("a") == [f"TransactionAbortableException {stored}"]
    if rig.open:
        rig.answer(OK)
    assert isinstance(rig.call(events.CommitCalled, "commit"), TransactionAbortableException)


@pytest.mark.parametrize(("answer", "next_batch"), [(LOST, "b@0/1"), (Answer(codes.NOT_ENOUGH_REPLICAS), "b@0/0")])
def test_sequences_of_possibly_stored_records_are_not_reused(answer: Answer | str, next_batch: str) -> None:
    """The next transaction reuses the sequence only if the batch is certainly not stored."""
    backoff = {"retry.backoff.ms": 60_000, "retry.backoff.max.ms": 60_000}
    rig = Rig(options=OPTIONS | backoff | {"transactional.id": "t"})
    rig.call(events.InitTransactionsCalled, "init")
    rig.call(events.BeginTransactionCalled, "begin")
    rig.send("a")
    rig.answer(answer)
    rig.sleep(2_000)
    assert rig.call(events.AbortCalled, "abort") == "done"
    rig.call(events.BeginTransactionCalled, "begin again")
    rig.send("b")
    assert rig.trace == ["a@0/0", next_batch]


MOVED = Answer(codes.NOT_LEADER_OR_FOLLOWER, message="it moved")


@pytest.mark.parametrize(
    ("retries", "answers", "text", "options"),
    [
        (0, [MOVED], "it moved; sent once, and retries=0 allows no more", {"enable.idempotence": False}),
        (2, [MOVED] * 3, "it moved; sent 3 times, and retries=2 allows no more", {}),
        (1, [MOVED, LOST], "connection lost after the request was sent; sent 2 times, and retries=1 allows no more", {}),
        (1, [MOVED, MOVED], "to be aborted: it moved; sent 2 times, and retries=1 allows no more", {"transactional.id": "t"}),
        (1, [LOST, NOT_SENT, LOST], "after the request was sent; sent 2 times, and retries=1 allows no more", {}),
        (0, [NOT_SENT, MOVED], "it moved; sent once, and retries=0 allows no more", {"enable.idempotence": False}),
        (1, [LOST, LOST], "after the request was sent; sent 2 times, and retries=1 allows no more", {"transactional.id": "t"}),
    ],
)
def test_last_failed_attempt_names_the_retries_option(
    retries: int, answers: list[Answer | str], text: str, options: dict[str, Any]
) -> None:
    rig = Rig(options={"delivery.timeout.ms": 20_000, "request.timeout.ms": 1_000, "retries": retries} | options)
    if "transactional.id" in options:
        rig.call(events.InitTransactionsCalled, "init")
        rig.call(events.BeginTransactionCalled, "begin")
    rig.send("a")
    for answer in answers:
        rig.answer(answer)
        rig.sleep(400)
    assert text in str(rig.error("a"))


def test_non_retriable_error_does_not_mention_retries() -> None:
    rig = Rig(options={"enable.idempotence": False, "retries": 0})
    rig.send("a")
    rig.answer(Answer(codes.TOPIC_AUTHORIZATION_FAILED))
    assert "retries" not in str(rig.error("a"))


STORAGE = "KAFKA_STORAGE_ERROR (no space left)"


@pytest.mark.parametrize(
    ("later_ms", "text"),
    [(0, "never sent; {}; not stored; it may be tried again"), (10, "sent once; {}; possibly stored; if it is sent again")],
)
def test_expired_batch_names_the_error_of_its_predecessor(later_ms: int, text: str) -> None:
    rig = Rig(options=OPTIONS | {"retry.backoff.ms": 60_000, "retry.backoff.max.ms": 60_000})
    rig.send("a")
    rig.sleep(later_ms)
    rig.append("b")
    rig.answer(Answer(codes.KAFKA_STORAGE_ERROR, message="no space left"))
    rig.sleep(2_000)  # The later batch is sent as soon as its predecessor has ended.
    assert f"sent once; the last error was {STORAGE}; possibly stored" in str(rig.error("a"))
    assert text.format(f"the last error of the preceding batch was {STORAGE}") in str(rig.error("b"))
    assert rig.error("b").__cause__ is not None


def test_expired_batch_does_not_name_a_written_predecessor() -> None:
    rig = Rig(options=OPTIONS)
    rig.send("a")
    rig.answer(Answer(codes.KAFKA_STORAGE_ERROR, message="no space left"))
    rig.sleep(400)
    rig.answer(OK)
    rig.send("b")
    rig.sleep(2_000)
    assert "sent once; possibly stored" in str(rig.error("b"))


def test_expired_batch_does_not_name_a_predecessor_that_ended_earlier() -> None:
    rig = Rig(options=OPTIONS | {"retry.backoff.ms": 60_000, "retry.backoff.max.ms": 60_000})
    rig.send("a")
    rig.answer(Answer(codes.KAFKA_STORAGE_ERROR, message="no space left"))
    rig.sleep(2_000)
    rig.sleep(1)
    rig.send("b")
    rig.sleep(2_000)
    assert "sent once; possibly stored" in str(rig.error("b"))


@pytest.mark.parametrize("lost", [LOST, NOT_SENT])
@pytest.mark.parametrize("is_large", [True, False])
def test_oversized_request_is_named_in_the_error(lost: str, is_large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(options=OPTIONS | {"retry.backoff.ms": 60_000, "retry.backoff.max.ms": 60_000})
    rig.send("a")
    size = rig.open[0].token.size
    monkeypatch.setattr(produce_requests, "FRAME_BYTES_MAX", size - is_large)
    rig.answer(lost)
    rig.sleep(2_000)
    is_named = is_large and lost == LOST  # A request that was never sent cannot have been too large.
    limit = f"a broker closes the connection above its socket.request.max.bytes, {size - 1} "
    text = f"{lost}; the request has {size} bytes of batches, and {limit}"
    assert (text in str(rig.error("a"))) is is_named
    assert ("socket.request.max.bytes" in str(rig.error("a"))) is is_named


@pytest.mark.parametrize(("option", "waits_ms"), [("linger.ms", 150_000), ("request.timeout.ms", 149_999)])
def test_default_delivery_timeout_covers_linger_and_request_timeout(option: str, waits_ms: int) -> None:
    rig = Rig(options={option: 150_000})
    rig.append("a")
    rig.step(events.TimePassed())
    rig.sleep(waits_ms)
    rig.answer(OK)
    assert rig.fates == {"a": 0}
