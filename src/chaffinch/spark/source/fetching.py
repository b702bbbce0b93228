"""Fetching of an offset range of one partition: unpacks record batches while the next request is in flight.

A response without records does not mean that the range is empty: a new leader or a quota can cause it. The request is repeated until
`kafka.default.api.timeout.ms` have passed without progress; then the end of the partition shows whether records are left. Missing
records are reported as data loss (`reports.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

from pyspark.sql.datasource import InputPartition

from chaffinch.errors import UnknownTopicIdException, UnknownTopicOrPartitionException, codes
from chaffinch.errors.codes import Group
from chaffinch.identifiers import OFFSET_EARLIEST, OFFSET_LATEST, TopicPartition
from chaffinch.protocol.primitives import ZERO_UUID
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.source.reports import POLL_MS, SourceWaits, refusals, report_loss
from chaffinch.spark.topic_ids import created_again, loss

if TYPE_CHECKING:
    import pyarrow as pa

    from chaffinch.client.pending_request import PendingRequest
    from chaffinch.client.sync_client import SyncClient
    from chaffinch.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionData
    from chaffinch.records.fetched import Piece
    from chaffinch.spark.source.options import SourceOptions

MAX_WAIT_MS: Final = 500
PAUSE_MS: Final = 50
"""Pause after a response without records, which a broker can send immediately."""
ROWS_PER_ARROW_BATCH: Final = 65_536
FETCH_BYTES_MIN: Final = 64 << 10
LAST_VERSION: Final = 18
"""Largest version of Fetch requests. From version 13 they identify a topic by its id."""
RECORD_BYTES_GUESS: Final = 1 << 10
"""Assumed record size before any record of the partition is read."""


@dataclass(frozen=True)
class TopicRange(InputPartition):
    """Offsets `start` to `end`-1 of one partition of the topic with this id, which is zero if brokers have none.
    Unless `is_start_required`, `start` was the first offset at planning time, and a later removal of records there is not a loss.
    """

    topic: str
    partition: int
    start: int
    end: int
    is_start_required: bool = True
    topic_id: UUID = ZERO_UUID

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


def read_range(client: SyncClient, wanted: TopicRange, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Read the rows of a range, as record batches of `rows.read_schema`. Raises Refusal."""
    from chaffinch.records.errors import RecordsError
    from chaffinch.spark.source.rows import batch_read
    from chaffinch.spark.source.topic_discovery import TopicDiscovery

    tp = wanted.tp
    with refusals():
        try:
            for piece in _pieces(client, wanted, options):
                if len(piece.columns):
                    yield batch_read(
                        piece.columns, tp.topic, tp.partition, int(piece.timestamp_type), include_headers=options.include_headers
                    )
        except UnknownTopicIdException:
            if (present := _current_topic_id(client, wanted, options)) == wanted.topic_id:
                raise
            text = f"{loss(wanted.topic, wanted.topic_id, present)}; offsets up to {wanted.end - 1} of {tp} were to be read"
            report_loss(
                text, fails=options.fail_on_data_loss, rest="the remaining records; a stream then reads the new topic from its beginning"
            )
        except UnknownTopicOrPartitionException:
            if TopicDiscovery(client, options).existing([tp]):
                raise
            text = f"{tp} is missing, deleted after the read was planned: offsets up to {wanted.end - 1} were to be read"
            report_loss(text, fails=options.fail_on_data_loss)
        except RecordsError as error:
            raise Refusal(Group.APPLICATION_RECOVERABLE, codes.CORRUPT_MESSAGE.name, f"{tp}: {error}") from None


def _current_topic_id(client: SyncClient, wanted: TopicRange, options: SourceOptions) -> UUID:
    """The current id of the topic of this name. Several brokers are queried if it differs, because one may have stale metadata."""
    from chaffinch.spark.source.topic_discovery import TopicDiscovery

    discovery = TopicDiscovery(client, options)
    discovery.expect([wanted.tp], {wanted.topic: wanted.topic_id})
    discovery.existing([wanted.tp])
    return discovery.ids[wanted.topic]


def _pieces(client: SyncClient, wanted: TopicRange, options: SourceOptions) -> Iterator[Piece]:
    from chaffinch.records.fetched import FetchedRecords, whole_batches

    tp, position, end = wanted.tp, wanted.start, wanted.end
    is_start_required = wanted.is_start_required
    fetcher = PartitionFetcher(client, wanted, options)
    deadline, waits = client.deadline(options.timeout_ms, f"reading {tp}"), SourceWaits()
    while position < end:
        data = fetcher.fetch(position, end)
        if codes.by_number(data.error_code) is codes.OFFSET_OUT_OF_RANGE:
            position = min(_position_after_out_of_range(client, tp, position, end, options, is_start_required=is_start_required), end)
            continue
        assert not isinstance(data.records, list), "records that were received are one buffer"
        received = data.records or b""
        is_start_required |= bool(received)
        before, after = position, whole_batches(received)[0] or position
        fetcher.add_sizes(len(received), after - before)
        if before < after < end:
            fetcher.prefetch(after, end)
        aborted = [(found.producer_id, found.first_offset) for found in data.aborted_transactions or ()]
        records = FetchedRecords(received, position, aborted=aborted)
        while position < end and (piece := records.read(min(ROWS_PER_ARROW_BATCH, end - position))) is not None:
            yield piece._replace(columns=piece.columns.below(end))
            position = records.position
            fetcher.receive()
        position = max(position, records.position)
        if position > before:
            waits.over()
            deadline = client.deadline(options.timeout_ms, f"reading {tp}")
        elif deadline.is_over and data.high_watermark <= position and _is_end(client, tp, position, options):
            _report_end(tp, position, end, options)
            return
        elif deadline.is_over:
            text = f"{tp} returned no record at offset {position} for {deadline.waited_ms} ms; offsets up to {end - 1} existed when the"
            raise Refusal(Group.APPLICATION_RECOVERABLE, codes.REQUEST_TIMED_OUT.name, f"{text} read was planned")
        else:
            waits.log(deadline, f"the leader returns no record at offset {position}, and its high watermark is {data.high_watermark}")
            fetcher.pause()
    fetcher.check_id()


def _position_after_out_of_range(
    client: SyncClient, tp: TopicPartition, position: int, end: int, options: SourceOptions, *, is_start_required: bool
) -> int:
    """The next position after OFFSET_OUT_OF_RANGE: the first existing offset, or the end."""
    from chaffinch.admin.offsets import list_offsets

    first = list_offsets(client, {tp: OFFSET_EARLIEST}, timeout_ms=options.timeout_ms)[tp]
    if first > position:
        if not is_start_required:
            return first
        report_loss(f"{tp} begins at offset {first}, offset {position} was requested", fails=options.fail_on_data_loss)
        return first
    _report_end(tp, position, end, options)
    return end


def _is_end(client: SyncClient, tp: TopicPartition, position: int, options: SourceOptions) -> bool:
    """Whether the partition ends at `position`: it was truncated, or deleted and created again. Only checked after the deadline, because
    a new leader may first report too small an end offset.
    """
    from chaffinch.admin.offsets import list_offsets

    return list_offsets(client, {tp: OFFSET_LATEST}, timeout_ms=options.timeout_ms)[tp] <= position


def _report_end(tp: TopicPartition, position: int, end: int, options: SourceOptions) -> None:
    text = f"{tp} ends before offset {position}, offsets up to {end - 1} existed when the read was planned"
    report_loss(text, fails=options.fail_on_data_loss)


@dataclass(frozen=True, slots=True)
class _Prefetch:
    position: int
    exchange: PendingRequest


class PartitionFetcher:
    """Sends Fetch requests for one partition to its leader, at most one of them as a prefetch.

    A prefetch that fails or returns an error is discarded: `fetch` sends the request again, with retries.
    """

    def __init__(self, client: SyncClient, wanted: TopicRange, options: SourceOptions) -> None:
        self._client = client
        self._where = wanted.tp
        self._topic_id = wanted.topic_id
        self._is_by_name = False
        """The leader uses a version without topic ids."""
        self._options = options
        self._prefetch: _Prefetch | None = None
        self._bytes_seen = 0
        self._offsets_seen = 0

    def prefetch(self, position: int, end: int) -> None:
        """Send the request for the next records without waiting for the response."""
        leader = self._client.cluster.leader_address(self._where)
        if leader is not None:
            with self._client.lock:
                exchange = self._client.start(self._request(position, end), leader, version_max=self._version_max)
                self._prefetch = _Prefetch(position, exchange)

    def receive(self) -> None:
        """Read received bytes, so that the broker can continue sending."""
        if self._prefetch is not None and self._prefetch.exchange.outcome is None:
            with self._client.lock:
                self._client.pump(0)

    def pause(self) -> None:
        with self._client.lock:
            self._client.pump(PAUSE_MS)

    def add_sizes(self, byte_count: int, offset_count: int) -> None:
        """Record the size of a response, to limit the next request to what the range needs."""
        self._bytes_seen += byte_count
        self._offsets_seen += offset_count

    def fetch(self, position: int, end: int) -> PartitionData:
        """The response of the leader from `position`, with code NONE or OFFSET_OUT_OF_RANGE. Raises ApiException."""
        from chaffinch.client.response_errors import raise_for

        prefetch, self._prefetch = self._prefetch, None
        if prefetch is not None and prefetch.position == position and (data := self._prefetched(prefetch.exchange)) is not None:
            return data
        response = self._client.leader_request(
            self._where,
            self._request(position, end),
            timeout_ms=self._options.timeout_ms,
            version_max=self._version_max,
            topic_id=self._topic_id,
        )
        data = self._only_partition(response)
        if codes.by_number(data.error_code) is not codes.OFFSET_OUT_OF_RANGE:
            raise_for(response)
        return data

    def _prefetched(self, exchange: PendingRequest) -> PartitionData | None:
        from chaffinch.client.connections import ResponseReceived

        deadline, waits = self._client.deadline(self._options.timeout_ms, f"reading {self._where}"), SourceWaits()
        with self._client.lock:
            while exchange.outcome is None and not deadline.is_over:
                self._client.pump(min(deadline.left_ms, POLL_MS))
                waits.log(deadline, f"no response from {exchange.address} yet")
        if not isinstance(exchange.outcome, ResponseReceived) or exchange.outcome.message.error_code:
            return None
        data = self._only_partition(exchange.outcome.message)
        return None if data.error_code else data

    def check_id(self) -> None:
        """Raises UnknownTopicIdException if records were fetched by name (brokers 2.8 to 3.0) and the name now has a different id."""
        if self._is_by_name and self._topic_id != ZERO_UUID:
            topic = self._where.topic
            present = self._client.refresh_metadata([topic], timeout_ms=self._options.timeout_ms).topic_id(topic)
            if created_again({topic: self._topic_id}, {topic: present or ZERO_UUID}):
                raise UnknownTopicIdException(topic_partition=self._where, api="Fetch")

    @property
    def _version_max(self) -> int | None:
        return None if self._topic_id == ZERO_UUID else LAST_VERSION

    def _only_partition(self, response: FetchResponse) -> PartitionData:
        topic = response.responses[0]
        self._is_by_name |= topic.topic_id == ZERO_UUID
        return topic.partitions[0]

    def _request(self, position: int, end: int) -> FetchRequest:
        from chaffinch.protocol.messages.fetch import ISOLATION_LEVELS, FetchPartition, FetchRequest, FetchTopic

        options, tp = self._options, self._where
        wanted = bytes_wanted(end - position, self._bytes_seen, self._offsets_seen, options.partition_bytes_max)
        partition = FetchPartition(partition=tp.partition, fetch_offset=position, partition_max_bytes=wanted)
        return FetchRequest(
            max_wait_ms=MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=options.fetch_bytes_max,
            isolation_level=ISOLATION_LEVELS[options.isolation_level],
            topics=[FetchTopic(topic=tp.topic, topic_id=self._topic_id, partitions=[partition])],
        )


def bytes_wanted(offset_count: int, bytes_seen: int, offsets_seen: int, bytes_max: int) -> int:
    """Bytes to request for this many offsets: by the average size so far plus a quarter, at most `bytes_max`."""
    guess = offset_count * RECORD_BYTES_GUESS if not offsets_seen else offset_count * bytes_seen * 5 // (offsets_seen * 4)
    return min(max(guess, FETCH_BYTES_MIN), bytes_max)
