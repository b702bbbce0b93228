"""Fetch: record batches from partitions, at once or when enough of them have come (`min_bytes`, `max_wait_ms`).

Every fetch is a full one: a client that asks for a session is told session id 0 and goes on naming its partitions (KIP-227).
Readers of committed records see what is below the last stable offset, and which transactions below it were aborted.
"""

from __future__ import annotations

from chaffinch.broker.core.broker_state import BrokerState, Result, Waiting
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.fault_script import Fault
from chaffinch.broker.core.leader_epochs import leadership_fault
from chaffinch.broker.core.topics import Partition
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.fetch import (
    READ_COMMITTED,
    AbortedTransaction,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from chaffinch.protocol.messages.produce import LeaderIdAndEpoch
from chaffinch.records import batch
from chaffinch.storage.file_system import StorageError
from chaffinch.storage.files import BytesLike

WAIT_MS_MAX = 600_000
"""Nobody waits longer for records, whatever the request says: connections idle for longer are closed."""


def handle(broker: BrokerState, event: RequestReceived, now_ms: int, fault: Fault | None) -> Result:
    request = event.request.message
    assert isinstance(request, FetchRequest)
    if request.session_id != 0:
        return FetchResponse(error_code=codes.FETCH_SESSION_ID_NOT_FOUND.number)
    for topic in request.topics:
        if broker.topics.get(topic.topic) is not None:
            broker.counters.add(topic.topic, "TotalFetchRequestsPerSec", len(topic.partitions))
    reader = _Reader(broker, request, event.node_id, fault)
    response = reader.read()
    if reader.is_enough or request.max_wait_ms <= 0:
        return reader.counted(response)

    def answer(_now_ms: int, is_last: bool) -> FetchResponse | None:
        again = _Reader(broker, request, event.node_id, fault)
        late = again.read()
        return again.counted(late) if is_last or again.is_enough else None

    return Waiting(
        deadline_ms=now_ms + min(request.max_wait_ms, WAIT_MS_MAX),
        keys=[TopicPartition(topic.topic, partition.partition) for topic in request.topics for partition in topic.partitions],
        answer=answer,
    )


class _Reader:
    """One try to answer. `is_enough`: there are `min_bytes`, or something that the client should hear at once."""

    def __init__(self, broker: BrokerState, request: FetchRequest, node_id: int, fault: Fault | None) -> None:
        self._broker = broker
        self._request = request
        self._node_id = node_id
        self._fault = fault
        self._bytes_left = min(max(request.max_bytes, 0), broker.settings["fetch.max.bytes"])
        self._bytes_read = 0
        self._has_error = False

    @property
    def is_enough(self) -> bool:
        return self._has_error or self._bytes_read >= self._request.min_bytes or not self._request.topics

    def read(self) -> FetchResponse:
        return FetchResponse(responses=[self._topic(topic) for topic in self._request.topics])

    def counted(self, response: FetchResponse) -> FetchResponse:
        """Count what an answer that is really sent carries."""
        for topic in response.responses:
            size = sum(_size(partition) for partition in topic.partitions)
            failed = sum(partition.error_code != 0 for partition in topic.partitions)
            if size:
                self._broker.counters.add(topic.topic, "BytesOutPerSec", size)
            if failed and self._broker.topics.get(topic.topic) is not None:
                self._broker.counters.add(topic.topic, "FailedFetchRequestsPerSec", failed)
        return response

    def _topic(self, topic: FetchTopic) -> FetchableTopicResponse:
        return FetchableTopicResponse(topic=topic.topic, partitions=[self._partition(topic.topic, asked) for asked in topic.partitions])

    def _partition(self, topic: str, asked: FetchPartition) -> PartitionData:
        if self._fault is not None and self._fault.covers(topic, asked.partition):
            return self._refused(asked, self._fault.error)
        partition = self._broker.topics.partition(topic, asked.partition)
        code = leadership_fault(partition, self._node_id, asked.current_leader_epoch)
        if partition is None or code is not codes.NONE:
            return self._refused(asked, code, partition)
        log = partition.log
        if not log.log_start_offset <= asked.fetch_offset <= log.high_watermark:
            return self._refused(asked, codes.OFFSET_OUT_OF_RANGE, partition)
        try:
            return self._data(partition, asked)
        except StorageError:
            return self._refused(asked, codes.KAFKA_STORAGE_ERROR, partition)

    def _data(self, partition: Partition, asked: FetchPartition) -> PartitionData:
        log = partition.log
        is_committed = self._request.isolation_level == READ_COMMITTED
        last_stable_offset = log.last_stable_offset
        upper = last_stable_offset if is_committed else log.high_watermark
        records: list[BytesLike] = []
        # The first batch of an answer comes even when it is larger than asked for, so that no client is stuck before it.
        may_exceed = self._bytes_read == 0
        bytes_max = min(asked.partition_max_bytes, self._bytes_left)
        if asked.fetch_offset < upper and (bytes_max > 0 or may_exceed):
            records = log.read(asked.fetch_offset, max(bytes_max, 0), upper_bound_offset=upper, at_least_one=may_exceed)
        size = sum(map(len, records))
        self._bytes_read += size
        self._bytes_left -= size
        return PartitionData(
            partition_index=asked.partition,
            high_watermark=log.high_watermark,
            last_stable_offset=last_stable_offset,
            log_start_offset=log.log_start_offset,
            aborted_transactions=_aborted(partition, asked.fetch_offset, upper, records) if is_committed else None,
            records=records,
        )

    def _refused(self, asked: FetchPartition, code: ErrorCode, partition: Partition | None = None) -> PartitionData:
        self._has_error = True
        answer = PartitionData(partition_index=asked.partition, error_code=code.number, high_watermark=-1, records=[])
        if partition is not None:
            answer.log_start_offset = partition.log.log_start_offset
            if code in (codes.NOT_LEADER_OR_FOLLOWER, codes.FENCED_LEADER_EPOCH):
                answer.current_leader = LeaderIdAndEpoch(leader_id=partition.replicas.leader, leader_epoch=partition.replicas.leader_epoch)
        return answer


def _size(answer: PartitionData) -> int:
    return sum(map(len, answer.records)) if isinstance(answer.records, list) else 0


def _aborted(partition: Partition, fetch_offset: int, upper: int, records: list[BytesLike]) -> list[AbortedTransaction]:
    """Aborted transactions with records among those read."""
    found = partition.log.aborted_transactions(fetch_offset, upper) if records else []
    if not found:
        return []
    end_offset = max(view.header.last_offset for part in records for view in batch.views(part)) + 1
    return [
        AbortedTransaction(producer_id=producer_id, first_offset=first_offset)
        for producer_id, first_offset in found
        if first_offset < end_offset
    ]
