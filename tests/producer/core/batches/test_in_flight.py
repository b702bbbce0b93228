"""PartitionQueue: which batch of a partition may be sent when, and with which sequence and epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chaffinch.identifiers import NO_PRODUCER, SEQUENCE_MODULUS, ProducerIdentity, TopicPartition
from chaffinch.producer.core.batches.batch import ProducerBatch
from chaffinch.producer.core.batches.in_flight import PartitionQueue
from chaffinch.records.batch import encode, read_header
from chaffinch.records.columns import RecordColumns

ORDERS_0 = TopicPartition("orders", 0)
FIRST, SECOND = ProducerIdentity(7, 0), ProducerIdentity(7, 1)


def batch(position: int, count: int = 2) -> ProducerBatch:
    columns = RecordColumns.from_lists(None, [b"v"] * count, [0] * count)
    return ProducerBatch(
        topic_partition=ORDERS_0,
        outcome_sink=None,
        rows=np.arange(count),
        timestamps=columns.timestamps,
        data=encode(columns),
        created_ms=0,
        position=position,
        memory_bytes=100,
    )


def queue_of(*waiting: ProducerBatch, **more: Any) -> tuple[PartitionQueue, list[ProducerBatch]]:
    queue = PartitionQueue(ORDERS_0, **{"is_idempotent": True, **more})
    return queue, list(waiting)


def send(queue: PartitionQueue, waiting: list[ProducerBatch], identity: ProducerIdentity = FIRST) -> ProducerBatch:
    found = queue.next_batch(0, identity, lambda: waiting.pop(0) if waiting else None)
    assert found is not None
    return found


def acknowledge_one(queue: PartitionQueue) -> None:
    queue.acknowledged(send(queue, [batch(-2)]), 0)


def test_sequences_are_written_into_the_bytes_and_continue() -> None:
    queue, waiting = queue_of(batch(0), batch(2))
    acknowledge_one(queue)
    first, second = send(queue, waiting), send(queue, waiting)
    assert [read_header(b.data).base_sequence for b in (first, second)] == [2, 4]
    assert read_header(first.data).identity == FIRST


def test_sequences_wrap() -> None:
    queue, waiting = queue_of(batch(0, 5), batch(5, 5))
    acknowledge_one(queue)
    queue._sequence_next = SEQUENCE_MODULUS - 3
    assert send(queue, waiting).base_sequence == SEQUENCE_MODULUS - 3
    assert send(queue, waiting).base_sequence == 2


def test_sequence_taken_back_across_the_wrap() -> None:
    queue, waiting = queue_of(batch(0, 5), batch(5, 5), is_transactional=True)
    acknowledge_one(queue)
    queue._sequence_next = SEQUENCE_MODULUS - 3
    first, second = send(queue, waiting), send(queue, waiting)
    queue.failed(second, is_unstored=True)
    queue.failed(first, is_unstored=True)
    assert send(queue, [batch(10)]).base_sequence == SEQUENCE_MODULUS - 3


class TestPassedSequences:
    """A broker without the producer's state accepted batches behind one that is refused later."""

    @pytest.mark.parametrize("order", [(1, 2), (2, 1)], ids=["in order", "the last one first"])
    def test_passed_sequences_are_not_reused(self, order: tuple[int, int]) -> None:
        queue, waiting = queue_of(batch(0), batch(2), batch(4))
        acknowledge_one(queue)
        sent = [send(queue, waiting) for _ in range(3)]
        for index in order:
            queue.acknowledged(sent[index], 0)
        queue.replace(sent[0], [])
        assert queue.needs_epoch(FIRST)

    def test_sequences_between_passed_ones_are_not_reused(self) -> None:
        queue, waiting = queue_of(batch(0), batch(2), batch(4))
        acknowledge_one(queue)
        first, second, third = (send(queue, waiting) for _ in range(3))
        queue.acknowledged(third, 0)
        queue.acknowledged(first, 0)
        queue.replace(second, [])
        assert queue.needs_epoch(FIRST)

    def test_passed_sequences_are_reset_by_a_new_epoch(self) -> None:
        """The returned batch precedes the acknowledged one and is refused once more: its sequence is the next one all the same."""
        queue, waiting = queue_of(batch(0), batch(2))
        acknowledge_one(queue)
        first, second = send(queue, waiting), send(queue, waiting)
        queue.acknowledged(second, 0)
        queue.replace(first, [batch(0)])
        resent = send(queue, [], SECOND)
        queue.replace(resent, [batch(1, 1)])
        assert not queue.needs_epoch(SECOND)
        assert send(queue, [], SECOND).base_sequence == 0

    def test_acknowledged_batch_before_the_refused_one_needs_no_epoch(self) -> None:
        queue, waiting = queue_of(batch(0), batch(2))
        acknowledge_one(queue)
        first, second = send(queue, waiting), send(queue, waiting)
        queue.acknowledged(first, 0)
        queue.replace(second, [])
        assert not queue.needs_epoch(FIRST)


def test_only_the_lowest_retry_is_sent_and_only_with_nothing_in_flight() -> None:
    queue, waiting = queue_of(batch(0), batch(2), batch(4))
    acknowledge_one(queue)
    first, second, _ = send(queue, waiting), send(queue, waiting), send(queue, waiting)
    queue.retry(second, 0)
    queue.retry(first, 0)
    assert not queue.accepts_batch(0, FIRST)
    queue.acknowledged(queue.in_flight[0], 0)
    assert queue.accepts_batch(0, FIRST)
    assert send(queue, waiting) is first
    assert not queue.accepts_batch(0, FIRST)


def test_retry_waits_for_its_backoff() -> None:
    queue, waiting = queue_of(batch(0))
    queue.retry(send(queue, waiting), 100)
    assert not queue.accepts_batch(99, FIRST)
    assert queue.accepts_batch(100, FIRST)


def test_held_partition_drains_and_then_needs_an_epoch() -> None:
    queue, waiting = queue_of(batch(0), batch(2), batch(4))
    acknowledge_one(queue)
    first, second = send(queue, waiting), send(queue, waiting)
    queue.failed(first)
    assert not queue.accepts_batch(0, FIRST)
    assert not queue.needs_epoch(FIRST)
    queue.acknowledged(second, 0)
    assert queue.needs_epoch(FIRST)
    assert not queue.accepts_batch(0, FIRST)
    assert not queue.needs_epoch(SECOND), "the epoch has been raised already"
    assert send(queue, waiting, SECOND).base_sequence == 0


def test_new_epoch_waits_for_responses_of_the_old_one() -> None:
    queue, waiting = queue_of(batch(0), batch(2))
    acknowledge_one(queue)
    first = send(queue, waiting)
    assert not queue.accepts_batch(0, SECOND)
    queue.acknowledged(first, 0)
    second = send(queue, waiting, SECOND)
    assert (second.identity, second.base_sequence) == (SECOND, 0)


def test_new_epoch_allows_one_batch_until_it_is_acknowledged() -> None:
    """As under the first epoch: the broker may not have it, and would accept the second batch before the first."""
    queue, waiting = queue_of(batch(0), batch(2), batch(4))
    acknowledge_one(queue)
    first = send(queue, waiting)
    queue.acknowledged(first, 0)
    second = send(queue, waiting, SECOND)
    assert not queue.accepts_batch(0, SECOND)
    queue.acknowledged(second, 0)
    send(queue, waiting, SECOND)
    assert queue.accepts_batch(0, SECOND)


def test_returned_batches_keep_their_order() -> None:
    queue, waiting = queue_of(batch(0), batch(2), batch(4))
    acknowledge_one(queue)
    first, second = send(queue, waiting), send(queue, waiting)
    queue.renumber(second, is_expected=True)
    queue.replace(first, first.halves())
    positions = []
    for _ in range(4):
        sent = send(queue, waiting, SECOND)
        queue.acknowledged(sent, 0)
        positions.append(sent.position)
    assert positions == [0, 1, 2, 4]


def test_without_idempotence_no_sequences_and_no_hold() -> None:
    queue, waiting = queue_of(batch(0), batch(2), limit=1, is_idempotent=False)
    first = send(queue, waiting, NO_PRODUCER)
    assert not first.has_sequence
    assert not queue.accepts_batch(0, NO_PRODUCER)
    queue.failed(first)
    assert not queue.is_held
    assert send(queue, waiting, NO_PRODUCER).position == 2


def test_dropped_retry_needs_a_new_epoch() -> None:
    queue, waiting = queue_of(batch(0))
    queue.retry(send(queue, waiting), 0)
    assert len(queue.drop_waiting()) == 1
    assert queue.needs_epoch(FIRST)
    assert send(queue, [batch(2)], SECOND).base_sequence == 0


def test_acknowledging_an_unknown_batch_raises() -> None:
    queue, _ = queue_of()
    with pytest.raises(AssertionError, match="not under way"):
        queue.acknowledged(batch(0), 0)


def test_recreated_topic_keeps_no_batch_after_its_outcome() -> None:
    queue, waiting = queue_of(batch(0), batch(2), batch(4), batch(6))
    acknowledge_one(queue)
    stored, failed, waits = (send(queue, waiting) for _ in range(3))
    queue.retry(waits, 0)
    queue.producer_state_lost(is_topic_new=True)
    queue.acknowledged(stored, 0)
    queue.failed(failed)
    assert queue.drop_waiting() == [waits]
    assert not queue.batches()
    assert not [name for name in queue.__slots__ if isinstance(value := getattr(queue, name), list) and value]


def test_batch_sent_to_the_recreated_topic_keeps_its_sequence() -> None:
    """It was sent to the topic id, and may be stored there."""
    queue, waiting = queue_of(batch(0), batch(2))
    acknowledge_one(queue)
    first, second = send(queue, waiting), send(queue, waiting)
    second.possibly_stored = True
    queue.acknowledged(first, 0)
    queue.producer_state_lost(is_topic_new=True)
    queue.retry(second, 0)
    assert send(queue, []) is second
    queue.retry(second, 0)
    queue._hold(first, is_unstored=True)
    assert (queue.retries, second.base_sequence) == ([second], 4)
