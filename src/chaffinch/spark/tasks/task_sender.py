"""TaskSender: sends the rows of a task of the sink without transactions, with a producer (`at-least-once`, `none`; decision 41).

Bad rows become dead letters, as in the exactly-once sink (`row_check.py`). Good rows go through a producer of the process, which reports
rows that only the broker rejects. A task ends when every row has an outcome. A task attempt that dies, or runs twice, can write rows
twice.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from chaffinch.errors import KafkaException, TimeoutException, UnknownTopicOrPartitionException, codes
from chaffinch.errors.codes import Group
from chaffinch.identifiers import TopicPartition
from chaffinch.producer.producer import Producer
from chaffinch.producer.tables.result import SendTableResult
from chaffinch.records.columns import RecordColumns
from chaffinch.spark.commit.messages import Rejection, TaskOutcome
from chaffinch.spark.commit.push import RECORD_CODES
from chaffinch.spark.options import with_spark_names
from chaffinch.spark.refusals import Refusal, Remedy, refusal_of
from chaffinch.spark.snapshot import TopicSnapshot
from chaffinch.spark.tasks.plan import TaskPlan
from chaffinch.spark.tasks.row_check import BadRows, GoodRows, RowCheck, reason_of
from chaffinch.spark.tasks.staging import StagedWriter
from chaffinch.spark.worker_cache import LruCache

if TYPE_CHECKING:
    import pyarrow as pa

    from chaffinch.producer.futures import RecordFuture

CHUNKS_IN_FLIGHT_MAX = 4
"""Maximum number of chunks in flight. Their rows stay in memory until the outcome is known, because rejected rows become dead letters.
The same limit applies to chunks of dead letters."""
# Errors that concern a row, not the cluster.
ROW_CODES = RECORD_CODES | {codes.UNKNOWN_TOPIC_OR_PARTITION}

ProducerOptions = tuple[tuple[str, Any], ...]
_topic_ids: dict[ProducerOptions, dict[str, bytes]] = {}
"""Producer options -> topic -> id of the topic that the producer has written to."""
_producers: LruCache[ProducerOptions, Producer] = LruCache(lambda producer: producer.close(0))


def producer_for(options: ProducerOptions, topics: Sequence[TopicSnapshot] = ()) -> Producer:
    """The cached producer with these options; tasks of a worker use it one after another. Raises ConfigException.

    A producer that has written to a topic of the same name with a different id is replaced: without acknowledgements it would not notice
    that the topic was deleted, and its batches would be lost.
    """
    written = _topic_ids.setdefault(options, {})
    if any(written.setdefault(topic.topic, topic.topic_id) != topic.topic_id for topic in topics):
        forget_producer(options)
        written.update({topic.topic: topic.topic_id for topic in topics})
    with with_spark_names():
        return _producers.get(options, lambda: Producer(dict(options)))


def forget_producer(options: ProducerOptions) -> None:
    """Close the cached producer and drop its batches in flight: after an error the next task starts with a new producer."""
    _producers.forget(options)


@dataclass(frozen=True, slots=True, kw_only=True)
class _InFlight:
    """Records in flight. `rows`: their numbers in the task; None for dead letters."""

    future: RecordFuture[SendTableResult]
    columns: RecordColumns
    rows: npt.NDArray[np.int64] | None
    topic: str


class TaskSender:
    """Sends the rows of one task attempt. Call `run` once."""

    def __init__(self, plan: TaskPlan, producer: Producer, writer: StagedWriter, *, stops_at_bad_rows: bool) -> None:
        """`stops_at_bad_rows`: bad rows fail the batch, so nothing is sent after the first."""
        self._plan = plan
        self._producer = producer
        self._writer = writer
        self._stops_at_bad_rows = stops_at_bad_rows
        self._bad_rows = BadRows(plan, writer, self._send_dead_letters)
        self._in_flight: deque[_InFlight] = deque()
        self._dead_letters: deque[_InFlight] = deque()
        self._byte_count = 0

    def run(self, arrow_batches: Iterable[pa.RecordBatch]) -> TaskOutcome:
        """Send all rows and wait for their outcomes. Raises Refusal for an error that no row caused."""
        start_ns = time.monotonic_ns()
        check = RowCheck(self._plan, self._bad_rows)
        for good in check.good(arrow_batches):
            if not (self._stops_at_bad_rows and self._bad_rows.rejected_by_code):
                self._send(good)
        self._settle_all_but(0, self._in_flight)
        self._settle_all_but(0, self._dead_letters)
        self._writer.close()
        return replace(check.outcome(), sent_bytes=self._byte_count, sent_ms=(time.monotonic_ns() - start_ns) // 1_000_000)

    def _send(self, good: GoodRows) -> None:
        columns = good.columns if good.picked is None else good.columns.take(good.picked)
        self._in_flight.append(self._send_table(good.snapshot.topic, columns, good.partitions, good.rows))
        self._settle_all_but(CHUNKS_IN_FLIGHT_MAX, self._in_flight)

    def _send_dead_letters(self, records: RecordColumns, target: TopicSnapshot) -> None:
        partitions = records.murmur2_partitions(target.partition_count)
        partitions = np.where(partitions < 0, np.int32(self._plan.origin.first_partition % target.partition_count), partitions)
        self._dead_letters.append(self._send_table(target.topic, records, partitions, None))
        self._settle_all_but(CHUNKS_IN_FLIGHT_MAX, self._dead_letters)

    def _send_table(
        self, topic: str, columns: RecordColumns, partitions: npt.NDArray[np.int32], rows: npt.NDArray[np.int64] | None
    ) -> _InFlight:
        import pyarrow as pa

        from chaffinch.records.arrow_columns import to_arrow

        data = to_arrow(columns, has_text_keys=False)
        if not len(columns.header_key_data):
            data = data.drop_columns(["headers"])
        data = data.append_column("partition", pa.array(partitions, pa.int32()))
        self._byte_count += int(columns.sizes().sum())
        try:
            future = self._producer.send_table(topic, data)
        except KafkaException as error:
            raise refusal_of(error) from None
        return _InFlight(future=future, columns=columns, rows=rows, topic=topic)

    def _settle_all_but(self, count: int, in_flight: deque[_InFlight]) -> None:
        """Wait for the oldest, until `count` are left. Rows may become dead letters; rejected dead letters raise Refusal."""
        while len(in_flight) > count:
            self._settle(in_flight.popleft())

    def _settle(self, sent: _InFlight) -> None:
        """Wait for the outcome, at most `delivery.timeout.ms`. Rejected rows become dead letters."""
        result = sent.future.result()
        if not result.rejected_count:
            return
        errors = {row: _underlying_error(error) for row, error in sorted(result.errors().items())}
        for error in errors.values():
            if error.code is codes.UNKNOWN_TOPIC_OR_PARTITION and sent.topic == self._plan.options.topic:
                raise _topic_deleted(sent.topic)
            if error.code not in ROW_CODES:
                raise refusal_of(error)
        rejections = [
            Rejection(
                row=-1 if sent.rows is None else int(sent.rows[row]),
                topic_partition=error.topic_partition or TopicPartition(sent.topic, -1),
                code=error.code,
                message=reason_of(error.message),
            )
            for row, error in errors.items()
        ]
        if sent.rows is None:
            first = rejections[0]
            text = f"the dead letter topic itself refuses {len(rejections)} of {len(sent.columns)} dead letters for {first.topic_partition}"
            raise Refusal(Group.INVALID_CONFIGURATION, first.code.name, f"{text}: {first.message}; correct the topic's configuration")
        columns = sent.columns.take(np.array(list(errors), np.int64))
        self._byte_count -= int(columns.sizes().sum())
        handler = self._plan.handler
        self._bad_rows.add(columns, rejections, handler.rejected(columns, rejections) if handler else frozenset())


def _topic_deleted(topic: str) -> Refusal:
    """One error for all rows: their topic existed when the batch was planned. The next attempt plans again and checks the topic."""
    text = f"topic {topic!r} (option topic) was deleted, or created again with fewer partitions, while its rows were sent"
    return Refusal(Group.APPLICATION_RECOVERABLE, codes.UNKNOWN_TOPIC_OR_PARTITION.name, text, Remedy.AGAIN)


def _underlying_error(error: KafkaException) -> KafkaException:
    """The actual error: a wait for an unknown topic ends with a time-out, whose cause names the topic."""
    cause = error.__cause__
    return cause if isinstance(error, TimeoutException) and isinstance(cause, UnknownTopicOrPartitionException) else error
