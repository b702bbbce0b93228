"""Recreated topics: handling of outstanding records when a topic was deleted and created again under its name.

A topic is identified by its id (Metadata 10, Apache Kafka 2.8). When metadata contains an id that was never seen for a name:

- Records that were not sent, or are certainly not stored, are sent to the new topic. If its number of partitions differs, a new partition
  is chosen for each record whose caller named none; order per key starts again.
- Records whose caller named a partition that the new topic does not have fail, unless an exception handler decides about them (KIP-1038).
- A batch that may be stored in the old topic is never sent to the new one: it fails as possibly stored.
- A transaction that has sent records to the old topic must be aborted, because a commit would not contain them. Its returned batches are
  not sent to the new topic, which would lack the earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from uuid import UUID

import numpy as np

from chaffinch.errors import KafkaException, Stored, TransactionAbortableException, UnknownTopicOrPartitionException
from chaffinch.identifiers import TopicPartition, format_partitions, pluralize
from chaffinch.producer.core.batches.batch import Move, ProducerBatch
from chaffinch.producer.core.batches.in_flight import PartitionQueue
from chaffinch.producer.core.batches.outstanding import Outstanding
from chaffinch.producer.core.completer import BatchCompleter
from chaffinch.producer.core.context import ProducerContext
from chaffinch.producer.core.effects import Report
from chaffinch.producer.core.exception_handler import Question
from chaffinch.producer.core.partitioner import Availability, Partitioner
from chaffinch.producer.core.produce_response_handler import ProduceResponseHandler
from chaffinch.producer.core.refusals.errors import lost_with_topic_error
from chaffinch.protocol.primitives import ZERO_UUID


class RecreatedTopics:
    """Moves or fails the outstanding records of recreated topics.

    `metadata_received` is called after each metadata response, `settle` once in each round.
    """

    def __init__(
        self,
        context: ProducerContext,
        outstanding: Outstanding,
        completer: BatchCompleter,
        response_handler: ProduceResponseHandler,
        partitioner: Partitioner,
        availability: Availability,
    ) -> None:
        self._context = context
        self._transaction = context.transaction
        self._outstanding = outstanding
        self._completer = completer
        self._response_handler = response_handler
        self._partitioner = partitioner
        self._availability = availability
        self._known_ids: dict[str, set[UUID]] = {}
        """All ids seen for each name: a lagging broker may respond with an earlier one."""
        self._counts: dict[str, int] = {}
        """Partition counts of the last metadata response."""
        self._misplaced: dict[TopicPartition, None] = {}
        self._resized: set[str] = set()
        """Topics that were recreated with a different number of partitions: batches in flight may have to move when they come back."""
        self._has_moved = False

    def metadata_received(self, topics: Iterable[str]) -> None:
        """Metadata of these topics has arrived."""
        counts = {topic: count for topic in topics if (count := self._context.cluster.partition_count(topic)) is not None}
        recreated = {topic for topic in counts if self._is_recreated(topic)}
        self._outstanding.note_topics(recreated)
        for topic, count in counts.items():
            old_count, self._counts[topic] = self._counts.get(topic, count), count
            if topic in recreated:
                self._handle_recreated(topic, old_count, count)

    def _is_recreated(self, topic: str) -> bool:
        """Whether the topic was deleted and created again: its id is new, although the name was known before."""
        topic_id = self._context.cluster.topic_id(topic)
        if topic_id is None or topic_id == ZERO_UUID:
            return False
        known = self._known_ids.setdefault(topic, set())
        is_recreated = bool(known) and topic_id not in known
        known.add(topic_id)
        return is_recreated

    def _handle_recreated(self, topic: str, old_count: int, new_count: int) -> None:
        self._response_handler.forget_topic_config(topic)
        self._partitioner.forget(topic)
        in_flight = sum(batch.count for queue in self._queues_of(topic) for batch in queue.in_flight if not batch.is_abandoned)
        failed = self._fail_possibly_stored(topic)
        unsent = self._count(topic) - in_flight
        must_abort = self._transaction is not None and self._transaction.has_sent_to(topic)
        if must_abort:
            text = f"topic {topic!r} was deleted and created again in this transaction: the records written to it are lost"
            error = TransactionAbortableException(text, topic_partition=TopicPartition(topic, -1), stored=Stored.NO, api="Metadata")
            self._completer.fail_transaction(error)
            self._fail_unstored(topic)
        if new_count != old_count:
            self._resized.add(topic)
            self._move(topic, [tp for tp in self._outstanding.partitions() if tp.topic == topic], new_count, takes_waiting=True)
        self._context.out.append(Report(_log_text(topic, old_count, new_count, 0 if must_abort else unsent, in_flight, failed)))

    def appended(self, topic_partition: TopicPartition) -> bool:
        """A ready-made batch was appended to this partition. Returns whether it must move, because the recreated topic has fewer."""
        count = self._context.cluster.partition_count(topic_partition.topic)
        is_misplaced = topic_partition.topic in self._resized and count is not None and count <= topic_partition.partition
        if is_misplaced:
            self._misplaced[topic_partition] = None
        return is_misplaced

    def settle(self) -> bool:
        """Move batches of resized topics that are no longer in flight since the last round, or were appended to a missing partition.

        Only batches that are certainly not stored move. Returns whether records have moved to other partitions since the last round.
        """
        settled_partitions, misplaced, self._misplaced = self._response_handler.take_settled_partitions(), self._misplaced, {}
        for topic_partition in settled_partitions | misplaced:
            count = self._context.cluster.partition_count(topic_partition.topic)
            if topic_partition.topic in self._resized and count is not None:
                self._move(topic_partition.topic, [topic_partition], count, takes_waiting=topic_partition in misplaced)
        has_moved, self._has_moved = self._has_moved, False
        return has_moved

    def _queues_of(self, topic: str) -> list[PartitionQueue]:
        return [queue for queue in self._outstanding.busy() if queue.topic_partition.topic == topic]

    def _count(self, topic: str) -> int:
        return sum(self._outstanding.count_of(tp) for tp in self._outstanding.partitions() if tp.topic == topic)

    def _fail_possibly_stored(self, topic: str) -> int:
        """Fail the batches that wait for a retry and may be stored in the old topic. Returns the number of records."""
        count = 0
        for queue in self._queues_of(topic):
            for batch in [batch for batch in queue.retries if batch.possibly_stored]:
                count += batch.count
                self._response_handler.fail_of_deleted_topic(batch)
        return count

    def _fail_unstored(self, topic: str) -> None:
        """Fail the transaction's batches that wait for a retry: their sequence numbers continue those of lost batches."""
        for queue in self._queues_of(topic):
            for batch in list(queue.retries):
                self._completer.end(batch, lost_with_topic_error(batch), is_unstored=True)

    def _move(self, topic: str, topic_partitions: list[TopicPartition], count: int, *, takes_waiting: bool) -> None:
        """Choose new partitions for the records that are certainly not stored. `takes_waiting`: including those in the accumulator."""
        taken: list[ProducerBatch] = []
        for topic_partition in sorted(topic_partitions):
            taken += self._outstanding.queue(topic_partition).take_unstored()
            while takes_waiting and (batch := self._outstanding.accumulator.take(topic_partition)) is not None:
                taken.append(batch)
        for batch in taken:
            self._repartition(batch, count)
        self._has_moved |= bool(taken)

    def _repartition(self, batch: ProducerBatch, count: int) -> None:
        try:
            parts = list(self._parts(batch, count))
        except Exception as failure:  # The application's partitioner raised, on the sender thread: only these records may fail.
            error = KafkaException(
                f"the partitioner could not choose a partition again: {failure}", topic_partition=batch.topic_partition, stored=Stored.NO
            )
            error.__cause__ = failure
            self._completer.fail(batch, error)
            return
        if batch not in parts:
            batch.move(Move.END)
        self._completer.release(batch.memory_bytes - sum(part.memory_bytes for part in parts))
        for part in parts:
            if part.topic_partition.partition < count or Question.UNKNOWN_TOPIC in self._context.questions:
                self._outstanding.accumulator.put_back(part)
            else:
                self._completer.fail(part, self._completer.as_record_error(_gone(part.topic_partition, count)))

    def _parts(self, batch: ProducerBatch, count: int) -> Iterator[ProducerBatch]:
        """Split the batch by the new partitions of its records: the batch itself if they stay together."""
        topic, old = batch.topic_partition
        chosen = np.full(batch.count, batch.chosen) if isinstance(batch.chosen, bool) else batch.chosen
        if not chosen.any():
            yield batch
            return
        columns = batch.decode()
        found = self._partitioner.choose_for_columns(
            topic, columns, count, self._availability.partitions(topic), self._partitioner.batch_bytes
        )
        partitions = np.where(chosen, found, old)
        for partition in np.unique(partitions).tolist():
            mask = partitions == partition
            if mask.all():
                batch.topic_partition = TopicPartition(topic, partition)
                yield batch
            else:
                data = self._outstanding.accumulator.encode_rows(columns.take(np.flatnonzero(mask)))
                yield batch.part(mask, data, TopicPartition(topic, partition))


def _gone(topic_partition: TopicPartition, count: int) -> KafkaException:
    topic, partition = topic_partition
    text = f"topic {topic!r} was created again with {format_partitions(count)}: there is no partition {partition} any more"
    return UnknownTopicOrPartitionException(text, topic_partition=topic_partition, stored=Stored.NO, api="Metadata")


def _log_text(topic: str, old_count: int, new_count: int, unsent: int, in_flight: int, failed: int) -> str:
    """The log line about a topic that was created again."""
    text = f"topic {topic!r} was deleted and created again"
    if new_count != old_count:
        text += f" with {pluralize(new_count, 'partition')} instead of {old_count}"
    text += ": order per key starts again"
    if unsent:
        moved_text = "; partitions are chosen again unless the callers named them" if new_count != old_count else ""
        text += f"; the new topic gets {pluralize(unsent, 'unsent record')}{moved_text}"
    if failed:
        text += f"; {pluralize(failed, 'record')} may be stored in the old topic: they fail as possibly stored"
    if in_flight:
        text += f"; {pluralize(in_flight, 'record')} in flight: they fail as possibly stored if they get no response"
    return text
