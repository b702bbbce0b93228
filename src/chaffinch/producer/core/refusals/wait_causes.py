"""Causes of waits: why callers of `send` and batches wait, as errors and for the log.

A caller waits for memory, a topic, or a broker. The cause of a batch's wait is the first that holds: the topic or partition is unknown, a
broker refused the batch or did not respond, the partition has no leader, or its leader cannot be reached.
"""

from __future__ import annotations

from collections.abc import Iterator

from chaffinch.client.wait_log import in_words
from chaffinch.errors import (
    BufferExhaustedException,
    KafkaException,
    NetworkException,
    Stored,
    TimeoutException,
    UnknownTopicOrPartitionException,
    codes,
    exception_for,
)
from chaffinch.errors.copies import copy_for_raise
from chaffinch.identifiers import TopicPartition, pluralize
from chaffinch.producer.core.batches.batch import ProducerBatch
from chaffinch.producer.core.batches.outstanding import Outstanding
from chaffinch.producer.core.context import ProducerContext
from chaffinch.producer.core.retrying_request import RetryingRequest


class WaitCauses:
    """Builds errors from the current state. `retrying_request`: that of InitProducerId, or of the transaction."""

    def __init__(self, context: ProducerContext, outstanding: Outstanding, retrying_request: RetryingRequest) -> None:
        self.authentication_error: tuple[KafkaException, int] | None = None
        """The last failed login and its time; None after a successful one."""
        self._context = context
        self._outstanding = outstanding
        self._retrying_request = retrying_request

    def memory_timeout(self, size: int, waited_ms: int, tp: TopicPartition | None, why: KafkaException | None) -> KafkaException:
        """The error of a caller that waited too long for memory. `why`: why the records that hold the memory have no outcome."""
        accumulator = self._outstanding.accumulator
        text = f"{size} bytes do not fit: buffer.memory is {accumulator.memory_bytes}, {accumulator.memory_unused} free"
        reason = "" if why is None else f"; the records that hold it wait because of {in_words(why)}"
        error = BufferExhaustedException(f"{text}; waited for {waited_ms} ms{reason}", topic_partition=tp, stored=Stored.NO)
        error.__cause__ = why
        return error

    def topic_error(self, topic: str, received_since_ms: int) -> KafkaException | None:
        """A final error of the topic, or a failed login, that was received at or after a time; None if there is none."""
        if self.authentication_error is not None and self.authentication_error[1] >= received_since_ms:
            return copy_for_raise(self.authentication_error[0])
        state = self._context.cluster.topic(topic)
        if state is None or state.code is codes.NONE or state.code.is_retriable or state.received_ms < received_since_ms:
            return None
        return exception_for(state.code, topic_partition=TopicPartition(topic, -1), stored=Stored.NO, api="Metadata")

    def unknown_topic(self, topic: str, partition: int | None, received_since_ms: int) -> UnknownTopicOrPartitionException | None:
        """The error of an unknown topic or partition, if metadata received at or after a time says so."""
        state = self._context.cluster.topic(topic)
        if state is None or state.received_ms < received_since_ms:
            return None
        if state.code is codes.UNKNOWN_TOPIC_OR_PARTITION:
            what = f"no broker knows the topic {topic!r}"
        elif partition is not None and 0 < state.partition_count <= partition:
            what = f"topic {topic!r} has {pluralize(state.partition_count, 'partition')}, there is no partition {partition}"
        else:
            return None
        tp = TopicPartition(topic, -1 if partition is None else partition)
        return UnknownTopicOrPartitionException(what, topic_partition=tp, stored=Stored.NO, api="Metadata")

    def callback_cannot_wait(self, topic: str, partition: int | None) -> KafkaException:
        """The error of a `send` within a callback for an unknown topic: its own thread would receive the metadata."""
        what = f"topic {topic!r}" if partition is None else f"partition {partition} of topic {topic!r}"
        text = f"{what} is not known yet, and a callback cannot wait for it: call partitions_for({topic!r}) beforehand"
        return TimeoutException(text, stored=Stored.NO)

    def topic_timeout(self, topic: str, partition: int | None, waited_ms: int) -> KafkaException:
        """The error of a caller that waited too long for a topic or partition."""
        metadata, count = self._context.metadata, self._context.cluster.partition_count(topic)
        cause: KafkaException | None
        if metadata.last_error is not None or self._context.cluster.updated_ms is None:
            tried = self._context.attempts.describe(self._context.known_addresses, waited_ms)
            what, cause = f"no metadata for topic {topic!r}: {tried}", metadata.last_error
        elif count is not None and partition is not None:
            what = f"topic {topic!r} has {pluralize(count, 'partition')}, there is no partition {partition}; waited for {waited_ms} ms"
            cause = UnknownTopicOrPartitionException(topic_partition=TopicPartition(topic, partition), stored=Stored.NO)
        else:
            what = f"no broker knows the topic {topic!r}; waited for {waited_ms} ms; create it, or correct the name"
            cause = UnknownTopicOrPartitionException(f"topic {topic!r}", stored=Stored.NO)
        error = TimeoutException(what, stored=Stored.NO)
        error.__cause__ = cause
        return error

    # Causes of batches.

    def error(self, topic_partition: TopicPartition) -> KafkaException | None:
        """Why nothing can be sent to the partition now; None if something can."""
        context, cluster = self._context, self._context.cluster
        unknown = self.unknown_topic(*topic_partition, 0)
        if unknown is not None:
            return unknown
        partition = cluster.partition(topic_partition)
        if partition is None:
            return context.metadata.last_error
        address = cluster.leader_address(topic_partition)
        if address is None:
            nodes = ", ".join(map(str, sorted(cluster.nodes))) or "none"
            text = f"{topic_partition} has no leader: no node that has its records is running; running nodes: {nodes}"
            return exception_for(
                codes.LEADER_NOT_AVAILABLE, message=text, topic_partition=topic_partition, stored=Stored.NO, api="Metadata"
            )
        if context.attempts.failures(address):
            text = f"its leader cannot be reached: {context.attempts.describe([address])}"
            return NetworkException(text, topic_partition=topic_partition, stored=Stored.NO)
        return None

    def error_of(self, batch: ProducerBatch) -> KafkaException | None:
        """Why this batch has no outcome."""
        unknown = self.unknown_topic(*batch.topic_partition, 0)
        return unknown or batch.last_error or self.error(batch.topic_partition)

    def batch_cause(self) -> KafkaException | None:
        """The cause of the batch that has waited longest."""
        waits = sorted(self.waits(), key=lambda wait: wait[0])
        return next((error for _, _, error in waits if error is not None), None)

    def general_cause(self) -> KafkaException | None:
        """The cause that holds up all batches, if known: the last error of a metadata, InitProducerId or transaction request."""
        return self._context.metadata.last_error or self._retrying_request.last_error

    def cause(self) -> KafkaException | None:
        """Why outstanding records have no outcome: the cause of a batch, otherwise the general one."""
        return self.batch_cause() or self.general_cause()

    def waits(self) -> Iterator[tuple[int, ProducerBatch | TopicPartition, KafkaException | None]]:
        """The first wait of each partition: its start, the batch (or the partition, if the batch is unsent), and its cause.

        The cause is None for a batch in flight.
        """
        accumulator = self._outstanding.accumulator
        for topic_partition in self._outstanding.partitions():
            queue = self._outstanding.queue(topic_partition)
            batch = next((batch for batch in (*queue.retries, *queue.returned, *queue.in_flight) if not batch.is_abandoned), None)
            if batch is not None:
                error, is_in_flight = self.error_of(batch), batch in queue.in_flight
                refused_ms = batch.refused_since_ms
                since_ms = refused_ms if refused_ms is not None else queue.silent_since_ms(batch) if is_in_flight else batch.created_ms
                if error is not None or is_in_flight:
                    yield since_ms, batch, error
                continue
            ready_at_ms, error = accumulator.ready_at_ms(topic_partition), self.error(topic_partition)
            if error is not None and error.code is codes.UNKNOWN_TOPIC_OR_PARTITION:  # Lingering does not help.
                ready_at_ms = accumulator.queue_of(topic_partition).oldest_ms()
            if ready_at_ms is not None and error is not None:
                yield ready_at_ms, topic_partition, error
