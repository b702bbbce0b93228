"""Why batches wait: in the log after some seconds, and in the errors of records and calls that time out.

The first reason that holds counts: the cluster does not have the topic or partition, a broker refused the batch or did not answer, the
partition has no leader, its leader cannot be reached, a request is under way without an answer. A producer id and the steps of a
transaction are reported by `still_asking.py`; a batch behind others that are on their way has no reason of its own.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final

from chaffinch.client.wait_log import FIRST_LINE_MS, Wait, WaitLog, in_words
from chaffinch.errors import KafkaException, NetworkException, Stored, codes, exception_for
from chaffinch.identifiers import TopicPartition, counted
from chaffinch.producer.core.batches.accumulator import Accumulator
from chaffinch.producer.core.batches.batch import ProducerBatch
from chaffinch.producer.core.batches.outstanding import Outstanding
from chaffinch.producer.core.batches.partition_queues import PartitionQueues
from chaffinch.producer.core.effects import Effect, Report
from chaffinch.producer.core.refusals.reasons import Reasons
from chaffinch.producer.core.wiring import Wiring

# Batches are looked at no more often than this while some are old: with many partitions each look takes long.
LOOK_EVERY_MS: Final = 500
OUTAGE: Final = "outage"
"""The cause of all waits while the log says that no broker can be reached."""


class WaitingBatches:
    """`look` once in each round; `error` and `reason` say why, for exceptions."""

    def __init__(self, wiring: Wiring, accumulator: Accumulator, queues: PartitionQueues, reasons: Reasons, out: list[Effect]) -> None:
        self.log: Final = WaitLog()
        self._wiring = wiring
        self._accumulator = accumulator
        self._queues = queues
        self._outstanding = Outstanding(accumulator, queues)
        self._reasons = reasons
        self._out = out
        self._next_look_ms: int | None = None
        self._unknown_limit_ms = min(wiring.retry_unknown_ms, wiring.delivery_timeout_ms)

    def error(self, topic_partition: TopicPartition) -> KafkaException | None:
        """Why nothing can be sent to the partition now; None where nothing stands in the way."""
        wiring, cluster = self._wiring, self._wiring.cluster
        unknown = self._reasons.unknown_topic(*topic_partition, 0)
        if unknown is not None:
            return unknown
        partition = cluster.partition(topic_partition)
        if partition is None:
            return wiring.metadata.last_error
        address = cluster.leader_address(topic_partition)
        if address is None:
            nodes = ", ".join(map(str, sorted(cluster.nodes))) or "none"
            text = f"{topic_partition} has no leader: no node that has its records is running; nodes that run: {nodes}"
            return exception_for(
                codes.LEADER_NOT_AVAILABLE, message=text, topic_partition=topic_partition, stored=Stored.NO, api="Metadata"
            )
        if wiring.attempts.failures(address):
            text = f"its leader cannot be reached: {wiring.attempts.describe([address])}"
            return NetworkException(text, topic_partition=topic_partition, stored=Stored.NO)
        return None

    def error_of(self, batch: ProducerBatch) -> KafkaException | None:
        """Why this batch has no outcome."""
        unknown = self._reasons.unknown_topic(*batch.topic_partition, 0)
        return unknown or batch.last_error or self.error(batch.topic_partition)

    def reason(self) -> KafkaException | None:
        """Why some record has no outcome, of several the one that has waited for longest."""
        waits = sorted(self._waits(), key=lambda wait: wait[0])
        return next((error for _, _, error in waits if error is not None), None)

    def look(self, now_ms: int, oldest_ms: int | None, outage_since_ms: int | None) -> None:
        """Log the longest wait when that is due. `oldest_ms`: when the oldest batch was created. `outage_since_ms`: since when no broker
        can be reached, if the log has said that already."""
        first_ms = None if oldest_ms is None else oldest_ms + FIRST_LINE_MS
        if first_ms is None or now_ms < first_ms:
            wait, self._next_look_ms = None, first_ms
        elif self._next_look_ms is not None and now_ms < self._next_look_ms:
            return
        else:
            wait, self._next_look_ms = self._longest(outage_since_ms), now_ms + LOOK_EVERY_MS
        if wait is not None and now_ms >= wait.since_ms + FIRST_LINE_MS:
            line = self.log.line(wait, now_ms)
            if line is not None:
                self._out.append(Report(line))
        elif outage_since_ms is None:
            self.log.over()
        if wait is not None:
            self._next_look_ms = min(self.log.due_ms(wait.cause, wait.since_ms), now_ms + LOOK_EVERY_MS)

    @property
    def next_deadline_ms(self) -> int | None:
        """When to look again without an event."""
        return self._next_look_ms

    def _waits(self) -> Iterator[tuple[int, ProducerBatch | TopicPartition, KafkaException | None]]:
        """Of each partition what waits in front: since when, the batch if there is one, and why; without an error: it is in flight."""
        for topic_partition in self._outstanding.partitions():
            queue = self._queues.of(topic_partition)
            batch = next((batch for batch in (*queue.retries, *queue.returned, *queue.in_flight) if not batch.is_done), None)
            if batch is not None:
                error, is_in_flight = self.error_of(batch), batch in queue.in_flight
                refused_ms = batch.refused_since_ms
                since_ms = refused_ms if refused_ms is not None else queue.silent_since_ms(batch) if is_in_flight else batch.created_ms
                if error is not None or is_in_flight:
                    yield since_ms, batch, error
                continue
            ready_at_ms, error = self._accumulator.ready_at_ms(topic_partition), self.error(topic_partition)
            if error is not None and error.code is codes.UNKNOWN_TOPIC_OR_PARTITION:  # Lingering does not help.
                ready_at_ms = self._accumulator.queue_of(topic_partition).oldest_ms()
            if ready_at_ms is not None and error is not None:
                yield ready_at_ms, topic_partition, error

    def _longest(self, outage_since_ms: int | None) -> Wait | None:
        waits = list(self._waits())
        if not waits:
            return None
        since_ms, waiting, error = min(waits, key=lambda wait: wait[0])
        topic_partition = waiting.topic_partition if isinstance(waiting, ProducerBatch) else waiting
        address = self._wiring.cluster.leader_address(topic_partition)
        created_ms = waiting.created_ms if isinstance(waiting, ProducerBatch) else since_ms
        cause: Hashable = (topic_partition.topic, None if error is None else error.name)
        if outage_since_ms is not None:
            since_ms, cause = outage_since_ms, OUTAGE
            why = self._wiring.attempts.describe(self._wiring.known_addresses)
        else:
            why = "no answer yet" if error is None else in_words(error)
        is_unknown = error is not None and error.code is codes.UNKNOWN_TOPIC_OR_PARTITION
        limit_ms = self._unknown_limit_ms if is_unknown else self._wiring.delivery_timeout_ms
        return Wait(
            cause,
            f"{topic_partition}" if address is None else f"{topic_partition} at {address}",
            since_ms,
            why,
            f"{counted(self._outstanding.count(), 'record')} without an outcome",
            created_ms + limit_ms,
            "delivery.timeout.ms" if limit_ms == self._wiring.delivery_timeout_ms else "retry.unknown.topic.partition.ms",
        )
