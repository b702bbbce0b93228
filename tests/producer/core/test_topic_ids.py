"""Topic ids (KIP-516): a recreated topic is detected, and gets the unsent records in order."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from chaffinch.errors import Stored, TransactionAbortableException, codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.producer.core import events
from chaffinch.producer.core.exception_handler import RetriableResponse
from chaffinch.producer.core.partitioner import partition_of_key
from chaffinch.producer.core.refusals.batch_responses import TopicConfig
from chaffinch.protocol.messages.init_producer_id import InitProducerIdRequest
from chaffinch.protocol.messages.metadata import MetadataRequest
from tests.producer.core.rig import LOST, NOT_SENT, OK, ORDERS_0, ORDERS_1, TIMED_OUT, Answer, Rig, new_record

OLD, NEW = UUID(int=1), UUID(int=2)


def ids_sent(rig: Rig) -> list[int]:
    """Topic ids of the open requests."""
    return [request.message.topics[0].topic_id.int for request in rig.open]


@pytest.mark.parametrize(
    ("topic_id", "options", "transactions", "version"),
    [
        (OLD, {}, 2, 13),
        (OLD, {"enable.idempotence": False, "acks": 1}, 2, 13),
        (UUID(int=0), {}, 2, None),
        (OLD, {"transactional.id": "t"}, 0, 11),
        (OLD, {"transactional.id": "t"}, 1, 11),
        (OLD, {"transactional.id": "t"}, 2, 13),
        (UUID(int=0), {"transactional.id": "t"}, 2, 12),
    ],
    ids=[
        "ids",
        "not idempotent",
        "brokers without topic ids",
        "transactions of version 0",
        "in a transaction the broker would add partitions",
        "in a transaction the broker adds partitions",
        "in a transaction the broker adds partitions by name",
    ],
)
def test_produce_version_depends_on_topic_ids_and_transactions(
    topic_id: UUID, options: dict[str, object], transactions: int, version: int | None
) -> None:
    rig = Rig(options=options, topic_id=topic_id)
    rig.connect(transactions)
    if rig.core.transaction is not None:
        rig.call(events.InitTransactionsCalled, "init")
        rig.call(events.BeginTransactionCalled, "begin")
    rig.send("a")
    assert rig.open[0].version_max == version
    assert rig.open[0].message.topics[0].name == "orders"


@pytest.mark.parametrize("code", [codes.UNKNOWN_TOPIC_ID, codes.INCONSISTENT_TOPIC_ID])
def test_batches_in_flight_go_to_the_recreated_topic_at_once_in_order(code: ErrorCode) -> None:
    rig = Rig(options={"retry.backoff.ms": 10_000, "retry.backoff.max.ms": 10_000}, topic_id=OLD)
    rig.sleep(15_000)  # Since the last metadata request.
    rig.send("z")
    rig.answer(OK)
    for value in "abc":
        rig.send(value)
    assert ids_sent(rig) == [1, 1, 1]
    rig.topic_id = NEW
    rig.hold.add(MetadataRequest)
    for _ in "abc":
        rig.answer(Answer(code))
    assert rig.open == [], "the new topic is not known yet"
    rig.release()
    for _ in "abc":
        assert ids_sent(rig) == [2], "its broker has no state of the producer: one at a time"
        rig.answer(OK)
    assert rig.trace == ["z@0/0", *["a@1/0", "b@2/0", "c@3/0"] * 2]
    assert all(fate.isdigit() for fate in rig.fate("abc"))


def test_response_of_the_old_topic_does_not_count_for_the_new_one() -> None:
    rig = Rig(topic_id=OLD)
    rig.send("z")
    rig.answer(OK)
    rig.send("a")
    rig.topic_id = NEW
    rig.step(events.TopicRequested(topic="orders", is_stale=True))
    rig.sleep(2_000)
    rig.answer(OK)
    rig.send("b")
    rig.send("c")
    assert ids_sent(rig) == [2]
    rig.answer(OK)
    rig.send("d")
    assert rig.trace == ["z@0/0", "a@1/0", "b@2/0", "c@3/0", "d@4/0"]


@pytest.mark.parametrize("produce_version", [12, 13], ids=["by name", "by id"])
@pytest.mark.parametrize("outcome", [LOST, TIMED_OUT, Answer(codes.REQUEST_TIMED_OUT), Answer(codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND)])
@pytest.mark.parametrize("is_refreshed_first", [True, False], ids=["metadata first", "outcome first"])
def test_possibly_stored_batch_is_not_sent_to_the_new_topic(outcome: Answer | str, produce_version: int, is_refreshed_first: bool) -> None:
    rig = Rig(topic_id=OLD, produce_version=produce_version, options={"retry.backoff.ms": 2_000, "retry.backoff.max.ms": 2_000})
    rig.sleep(15_000)  # Since the last metadata request.
    rig.send("ab")
    rig.topic_id = NEW
    if is_refreshed_first:
        refresh_metadata(rig)
    rig.answer(outcome)
    if not isinstance(outcome, str):  # Such codes do not cause a metadata request (KIP-1050).
        refresh_metadata(rig)
    rig.sleep(30_000)
    assert rig.trace == ["ab@0/0"]
    assert rig.fate("ab") == ["UnknownTopicIdException possibly"] * 2
    rig.send("cd")
    assert (ids_sent(rig), rig.trace[-1]) == ([2], "cd@0/1"), "under a new epoch: the old sequences may be used"
    rig.answer(OK)
    assert rig.fate("cd") == ["0", "1"]


def test_batch_certainly_not_stored_goes_to_the_new_topic() -> None:
    rig = Rig(topic_id=OLD)
    rig.sleep(15_000)
    rig.send("ab")
    rig.topic_id = NEW
    rig.answer(NOT_SENT)
    rig.sleep(5_000)
    assert ids_sent(rig) == [2]
    rig.answer(OK)
    assert rig.fate("ab") == ["0", "1"]


def test_stale_metadata_does_not_count_as_recreation() -> None:
    rig = Rig(topic_id=OLD)
    rig.topic_id = NEW
    refresh_metadata(rig)
    rig.send("ab")
    rig.topic_id = OLD
    refresh_metadata(rig)
    rig.answer(LOST)
    rig.topic_id = NEW
    rig.sleep(15_000)
    rig.answer(OK)
    assert rig.fate("ab") == ["0", "1"]
    assert len([report for report in rig.reports if "created again" in report]) == 1


def test_recreated_topic_log_line_counts_records() -> None:
    rig = Rig(topic_id=OLD)
    rig.send("ab")
    rig.send("c")
    rig.topic_id, rig.partitions = NEW, 1
    refresh_metadata(rig)
    (line,) = rig.reports
    assert line == (
        "topic 'orders' was deleted and created again with 1 partition instead of 2: order per key starts again; "
        "the new topic gets 1 unsent record; partitions are chosen again unless the callers named them; "
        "2 records in flight: they fail as possibly stored if they get no response"
    )


def test_cached_topic_config_is_dropped_on_recreation() -> None:
    rig = Rig(topic_id=OLD)
    rig.core.response_handler._topic_configs["orders"] = TopicConfig(is_compacted=True, is_requested=True, received_ms=rig.steady_ms)
    rig.topic_id = NEW
    refresh_metadata(rig)
    assert "orders" not in rig.core.response_handler._topic_configs


@pytest.mark.parametrize("version", [1, 2])
def test_transaction_that_wrote_to_the_old_topic_must_be_aborted(version: int) -> None:
    rig = Rig(topic_id=OLD, options={"transactional.id": "t"})
    rig.connect(version, epoch=1)
    rig.call(events.InitTransactionsCalled, "init")
    rig.call(events.BeginTransactionCalled, "begin")
    rig.send("a")
    rig.answer(OK)
    rig.topic_id = NEW
    refresh_metadata(rig)
    error = rig.call(events.CommitCalled, "commit")
    assert isinstance(error, TransactionAbortableException)
    assert "deleted and created again" in str(error)
    assert rig.call(events.AbortCalled, "abort") == "done"
    assert rig.call(events.BeginTransactionCalled, "begin again") == "done"


@pytest.mark.parametrize("is_known_first", [True, False], ids=["metadata first", "refusal first"])
def test_record_refused_by_the_old_topic_fails_as_abortable(is_known_first: bool) -> None:
    rig = Rig(topic_id=OLD, options={"transactional.id": "t"})
    rig.connect(2, epoch=1)
    rig.call(events.InitTransactionsCalled, "init")
    rig.call(events.BeginTransactionCalled, "begin")
    rig.send("a")
    rig.answer(OK)
    rig.sleep(15_000)
    rig.send("b")
    rig.topic_id = NEW
    if is_known_first:
        refresh_metadata(rig)
    rig.answer(Answer(codes.UNKNOWN_TOPIC_ID))
    rig.sleep(1_000)
    assert [batch.values for batch in rig.sent] == ["a", "b"]
    error = rig.error("b")
    assert (type(error), error.stored) == (TransactionAbortableException, Stored.NO)
    assert error.message == "topic 'orders' was deleted and created again in this transaction: this batch is not sent to the new one"
    assert "not stored; abort the transaction" in str(error)
    assert rig.call(events.AbortCalled, "abort") == "done"
    assert rig.call(events.BeginTransactionCalled, "begin again") == "done"
    rig.send("c")
    rig.answer(OK)
    assert rig.call(events.CommitCalled, "commit") == "done"


def test_transaction_without_records_in_the_topic_goes_on() -> None:
    rig = Rig(topic_id=OLD, options={"transactional.id": "t"})
    rig.call(events.InitTransactionsCalled, "init")
    rig.call(events.BeginTransactionCalled, "begin")
    rig.topic_id = NEW
    refresh_metadata(rig)
    rig.send("a")
    rig.answer(OK)
    assert rig.call(events.CommitCalled, "commit") == "done"


class TestChangedPartitionCount:
    """The records `a` to `f` wait in partitions that the producer chose when the topic is recreated with another number of partitions."""

    def waiting(self, new_count: int, *, is_given: bool = False, **rig_options: Any) -> Rig:
        rig = Rig(topic_id=OLD, partitions=3, **rig_options)
        rig.hold.add(InitProducerIdRequest)
        for value in "abcdef":
            rig.append_to_partition_of_key(value, 3, is_given=is_given)
        rig.step(events.TimePassed())
        rig.topic_id, rig.partitions = NEW, new_count
        refresh_metadata(rig)
        return rig

    @pytest.mark.parametrize("new_count", [1, 2, 5])
    def test_records_go_to_the_new_partitions_of_their_keys(self, new_count: int) -> None:
        rig = self.waiting(new_count)
        rig.release()
        while rig.open:
            rig.answer(OK)
        assert sorted("".join(batch.values for batch in rig.sent)) == list("abcdef")
        for batch in rig.sent:
            assert {partition_of_key(value.encode(), new_count) for value in batch.values} == {batch.tp.partition}
        assert all(fate.isdigit() for fate in rig.fate("abcdef"))
        assert rig.core.accumulator.memory_unused == rig.core.accumulator.memory_bytes

    def test_records_with_a_given_partition_stay_when_others_of_the_batch_move(self) -> None:
        rig = Rig(topic_id=OLD, partitions=3)
        rig.hold.add(InitProducerIdRequest)
        chosen = next(value for value in "abcdef" if partition_of_key(value.encode(), 3) == 0 and partition_of_key(value.encode(), 2) == 1)
        given = next(value for value in "tuvwxyz" if partition_of_key(value.encode(), 2) == 1)
        rig.append(given, ORDERS_0)
        rig.append_to_partition_of_key(chosen, 3, is_given=False)
        rig.topic_id, rig.partitions = NEW, 2
        refresh_metadata(rig)
        rig.release()
        while rig.open:
            rig.answer(OK)
        assert {batch.values: batch.tp for batch in rig.sent} == {given: ORDERS_0, chosen: ORDERS_1}
        assert rig.fate(given + chosen) == ["0", "0"]

    def test_split_batch_releases_all_its_memory(self) -> None:
        rig = Rig(topic_id=OLD, partitions=3)
        rig.hold.add(InitProducerIdRequest)
        in_first = [value for value in map(chr, range(97, 123)) if partition_of_key(value.encode(), 3) == 0]
        stays, also_stays, moves = sorted(in_first, key=lambda value: partition_of_key(value.encode(), 2))[:3]
        for value, size in ((stays, 10), (also_stays, 21), (moves, 30)):
            rig.core.append(ORDERS_0, new_record(value.encode(), b"v" * size, value, None), rig.steady_ms)
        rig.topic_id, rig.partitions = NEW, 2
        refresh_metadata(rig)
        rig.release()
        while rig.open:
            rig.answer(OK)
        assert len({batch.tp for batch in rig.sent}) == 2
        assert rig.core.accumulator.memory_unused == rig.core.accumulator.memory_bytes

    def test_records_with_a_given_partition_that_is_gone_fail_at_once(self) -> None:
        rig = self.waiting(1, is_given=True)
        gone = [value for value in "abcdef" if partition_of_key(value.encode(), 3) > 0]
        assert gone
        assert rig.fate("".join(gone)) == ["UnknownTopicOrPartitionException no"] * len(gone)
        assert "there is no partition" in str(rig.error(gone[0]))

    def test_handler_decides_about_records_of_a_partition_that_is_gone(self) -> None:
        rig = self.waiting(1, is_given=True, handler_responses=dict.fromkeys("abcdef", RetriableResponse.RETRY))
        assert rig.handler_calls
        assert rig.fate("abcdef").count("open") == 6

    @pytest.mark.parametrize("answer", [Answer(codes.UNKNOWN_TOPIC_ID), NOT_SENT], ids=["refused", "not sent"])
    def test_unstored_batch_in_flight_moves_when_it_is_retried(self, answer: Answer | str) -> None:
        rig = Rig(topic_id=OLD, partitions=3)
        rig.append_to_partition_of_key("a", 3, is_given=False)
        rig.step(events.TimePassed())
        rig.topic_id, rig.partitions = NEW, 1
        refresh_metadata(rig)
        rig.answer(answer)
        rig.sleep(1_000)
        rig.answer(OK)
        assert rig.sent[-1].tp == ORDERS_0
        assert rig.fate("a") == ["0"]

    def test_innocents_waiting_for_a_new_sequence_move(self) -> None:
        rig = Rig(topic_id=OLD, partitions=3)
        first, culprit, innocent, behind = [value for value in map(chr, range(97, 123)) if partition_of_key(value.encode(), 3) == 2][:4]
        for values in (first, culprit + innocent, behind):
            for value in values:
                rig.append_to_partition_of_key(value, 3, is_given=False)
            rig.step(events.TimePassed())
            if values == first:
                rig.answer(OK)
        rig.answer(Answer(codes.INVALID_RECORD, [0]))
        assert rig.trace[1:] == [f"{culprit}{innocent}@1/0", f"{behind}@3/0"], "the innocent waits for the response to the batch behind it"
        rig.topic_id, rig.partitions = NEW, 1
        refresh_metadata(rig)
        assert rig.sent[-1].tp == ORDERS_0
        assert str(rig.sent[-1]) == f"{innocent}@0/0"
        rig.answer(Answer(codes.UNKNOWN_TOPIC_ID))
        while rig.open:
            rig.answer(OK)
        assert rig.fate(culprit + innocent + behind) == ["InvalidRecordException no", "0", "0"]
        assert rig.core.accumulator.memory_unused == rig.core.accumulator.memory_bytes

    @pytest.mark.parametrize(("chosen", "fate"), [(True, "0"), (False, "UnknownTopicOrPartitionException no")])
    def test_table_partitioned_before_the_change_moves_unless_partitions_were_given(self, chosen: bool, fate: str) -> None:
        rig = Rig(topic_id=OLD, partitions=3)
        rig.topic_id, rig.partitions = NEW, 1
        refresh_metadata(rig)
        assert rig.hand_over("a", tp=ORDERS_1, chosen=chosen) == [True]
        rig.step(events.TimePassed())
        if rig.open:
            rig.answer(OK)
        assert rig.fate("a") == [fate]

    def test_sticky_partition_is_forgotten(self) -> None:
        rig = Rig(topic_id=OLD, partitions=3)
        rig.core.choose_partition("orders", None, b"v", 3, 10)
        rig.topic_id = NEW
        refresh_metadata(rig)
        assert "orders" not in rig.core.partitioner._sticky

    def test_flush_waits_for_moved_records(self) -> None:
        rig = Rig(topic_id=OLD, partitions=3, options={"linger.ms": 60_000})
        rig.hold.add(InitProducerIdRequest)
        for value in "abcdef":
            rig.append_to_partition_of_key(value, 3, is_given=False)
        rig.step(events.FlushCalled(call="flush"))
        rig.topic_id, rig.partitions = NEW, 1
        refresh_metadata(rig)
        assert "flush" not in rig.calls
        rig.release()
        while rig.open:
            assert "flush" not in rig.calls
            rig.answer(OK)
        assert rig.calls["flush"] == "done"


def test_records_of_a_missing_partition_fail_and_the_others_go_on() -> None:
    rig = Rig(options={"delivery.timeout.ms": 30_000, "request.timeout.ms": 10_000}, topic_id=OLD)
    rig.send("a", ORDERS_0)
    rig.send("b", ORDERS_1)
    rig.topic_id, rig.partitions = NEW, 1
    rig.answer(Answer(codes.UNKNOWN_TOPIC_ID))
    rig.answer(Answer(codes.UNKNOWN_TOPIC_ID))
    rig.sleep(2_000)
    rig.answer(OK)
    assert rig.fate("ab") == ["0", "UnknownTopicOrPartitionException no"]


def refresh_metadata(rig: Rig) -> None:
    """Request metadata, and let 500 ms pass."""
    rig.step(events.TopicRequested(topic="orders", is_stale=True))
    rig.sleep(500)
