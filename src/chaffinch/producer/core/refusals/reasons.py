"""Why a caller of `send` cannot go on: no memory, no topic, or nobody to ask."""

from __future__ import annotations

from chaffinch.client.wait_log import in_words
from chaffinch.errors import (
    BufferExhaustedException,
    KafkaException,
    Stored,
    TimeoutException,
    UnknownTopicOrPartitionException,
    codes,
    exception_for,
)
from chaffinch.errors.again import again
from chaffinch.identifiers import TopicPartition, counted
from chaffinch.producer.core.batches.accumulator import Accumulator
from chaffinch.producer.core.wiring import Wiring


class Reasons:
    """Errors made of what is known at the moment."""

    def __init__(self, wiring: Wiring, accumulator: Accumulator) -> None:
        self.refused_login: tuple[KafkaException, int] | None = None
        """A broker did not let us in, and when; None after one that did."""
        self._wiring = wiring
        self._accumulator = accumulator

    def no_memory(self, size: int, waited_ms: int, place: TopicPartition | None, why: KafkaException | None) -> KafkaException:
        """The error of a caller that waited for memory too long. `why`: why the records that hold it have no outcome."""
        text = f"{size} bytes do not fit: buffer.memory is {self._accumulator.memory_bytes}, {self._accumulator.memory_unused} free"
        reason = "" if why is None else f"; the records that hold it wait because of {in_words(why)}"
        error = BufferExhaustedException(f"{text}; waited for {waited_ms} ms{reason}", topic_partition=place, stored=Stored.NO)
        error.__cause__ = why
        return error

    def topic_error(self, topic: str, heard_since_ms: int) -> KafkaException | None:
        """Why the topic cannot be used, if a broker said so at or after a time and it is no use to wait; or does not let us in at all."""
        if self.refused_login is not None and self.refused_login[1] >= heard_since_ms:
            return again(self.refused_login[0])
        state = self._wiring.cluster.topic(topic)
        if state is None or state.code is codes.NONE or state.code.is_retriable or state.heard_ms < heard_since_ms:
            return None
        return exception_for(state.code, topic_partition=TopicPartition(topic, -1), stored=Stored.NO, api="Metadata")

    def unknown_topic(self, topic: str, partition: int | None, heard_since_ms: int) -> UnknownTopicOrPartitionException | None:
        """The error of a topic, or a partition of it, that nobody knows, if brokers said so at or after a time."""
        state = self._wiring.cluster.topic(topic)
        if state is None or state.heard_ms < heard_since_ms:
            return None
        if state.code is codes.UNKNOWN_TOPIC_OR_PARTITION:
            what = f"no broker knows the topic {topic!r}"
        elif partition is not None and 0 < state.partition_count <= partition:
            what = f"topic {topic!r} has {counted(state.partition_count, 'partition')}, there is no partition {partition}"
        else:
            return None
        place = TopicPartition(topic, -1 if partition is None else partition)
        return UnknownTopicOrPartitionException(what, topic_partition=place, stored=Stored.NO, api="Metadata")

    def cannot_wait(self, topic: str, partition: int | None) -> KafkaException:
        """The error of who sends within a callback: the thread that would hear of the topic is his own."""
        what = f"topic {topic!r}" if partition is None else f"partition {partition} of topic {topic!r}"
        text = f"{what} is not known yet, and a callback cannot wait for it: ask partitions_for({topic!r}) before"
        return TimeoutException(text, stored=Stored.NO)

    def waited_in_vain(self, topic: str, partition: int | None, waited_ms: int) -> KafkaException:
        """The error of a caller that waited for a topic or partition too long."""
        metadata, count = self._wiring.metadata, self._wiring.cluster.partition_count(topic)
        cause: KafkaException | None
        if metadata.last_error is not None or self._wiring.cluster.updated_ms is None:
            tried = self._wiring.attempts.describe(self._wiring.known_addresses, waited_ms)
            what, cause = f"nothing is known of topic {topic!r}: {tried}", metadata.last_error
        elif count is not None and partition is not None:
            what = f"topic {topic!r} has {counted(count, 'partition')}, there is no partition {partition}; waited for {waited_ms} ms"
            cause = UnknownTopicOrPartitionException(topic_partition=TopicPartition(topic, partition), stored=Stored.NO)
        else:
            what = f"no broker knows the topic {topic!r}; asked for {waited_ms} ms; create it, or correct the name"
            cause = UnknownTopicOrPartitionException(f"topic {topic!r}", stored=Stored.NO)
        error = TimeoutException(what, stored=Stored.NO)
        error.__cause__ = cause
        return error
