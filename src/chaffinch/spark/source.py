"""The source: a batch read of topics, with the schema of Spark's Kafka source, columns straight from record batches to Arrow.

The planner resolves beginnings and ends once and makes one Spark partition of each Kafka partition; tasks fetch their range.
With `read_committed` the end is the last stable offset, so an open transaction is not waited for, and aborted ones are left out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSourceReader, InputPartition

from chaffinch.errors import ApiException, ConfigException, codes
from chaffinch.errors.codes import Group
from chaffinch.identifiers import OFFSET_EARLIEST, OFFSET_LATEST, TopicPartition
from chaffinch.spark.refusals import Refusal, invalid, refusal_of
from chaffinch.spark.source_options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from chaffinch.client.sync_client import SyncClient
    from chaffinch.protocol.messages.fetch import PartitionData
    from chaffinch.records.columns import RecordColumns

_log = logging.getLogger(__name__)

MAX_WAIT_MS = 500
ROWS_PER_ARROW_BATCH = 65_536
_ISOLATION = {"read_uncommitted": 0, "read_committed": 1}


@dataclass(frozen=True)
class TopicRange(InputPartition):
    """Offsets start to end-1 of one partition."""

    topic: str
    partition: int
    start: int
    end: int


class TopicReader(DataSourceReader):
    """Reads topics once, up to where they end when the read is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[TopicRange]:
        from chaffinch.spark.target import client_for

        try:
            client = client_for(self._options.client)
            return [found for where in self._assigned(client) if (found := self._range(client, where)).start < found.end]
        except ConfigException as error:
            raise invalid(error) from None
        except ApiException as error:
            raise refusal_of(error) from None

    def _assigned(self, client: SyncClient) -> list[TopicPartition]:
        options = self._options
        topics = list(options.topics or {where.topic for where in options.assignment})
        cluster = client.refresh_metadata(topics, timeout_ms=options.timeout_ms)
        for name in topics:
            if not cluster.partition_count(name):
                brokers = ", ".join(map(str, cluster.nodes.values()))
                raise Refusal(
                    Group.INVALID_CONFIGURATION,
                    codes.UNKNOWN_TOPIC_OR_PARTITION.name,
                    f"topic {name!r} (option {'subscribe' if options.topics else 'assign'}) does not exist on {brokers}; correct the name",
                )
        if options.topics:
            return [TopicPartition(name, number) for name in topics for number in range(cluster.partition_count(name) or 0)]
        for where in options.assignment:
            if where.partition >= (count := cluster.partition_count(where.topic) or 0):
                raise Refusal(
                    Group.INVALID_CONFIGURATION,
                    codes.UNKNOWN_TOPIC_OR_PARTITION.name,
                    f"partition {where.partition} of topic {where.topic!r} (option assign), which has {count}; correct the number",
                )
        return list(options.assignment)

    def _range(self, client: SyncClient, where: TopicPartition) -> TopicRange:
        start = self._options.starting.of(where, "startingOffsets")
        end = self._options.ending.of(where, "endingOffsets")
        latest = self._list_offset(client, where, OFFSET_LATEST)
        if start == OFFSET_EARLIEST:
            start = self._list_offset(client, where, OFFSET_EARLIEST)
        if end == OFFSET_LATEST:
            end = latest
        if end > latest or start > latest:
            end = min(end, latest)
            self._lost(
                f"{where} ends at offset {latest}, offsets {start} to {self._options.ending.of(where, 'endingOffsets')} were asked for"
            )
        return TopicRange(where.topic, where.partition, start, end)

    def _list_offset(self, client: SyncClient, where: TopicPartition, timestamp: int) -> int:
        from chaffinch.client.answers import raise_for
        from chaffinch.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

        request = ListOffsetsRequest(
            isolation_level=_ISOLATION[self._options.isolation_level],
            topics=[
                ListOffsetsTopic(name=where.topic, partitions=[ListOffsetsPartition(partition_index=where.partition, timestamp=timestamp)])
            ],
        )
        response = client.leader_request(where, request, timeout_ms=self._options.timeout_ms)
        raise_for(response)
        offset: int = response.topics[0].partitions[0].offset
        return offset

    def _lost(self, text: str) -> None:
        """Offsets that were asked for are not there: an error, or a line in the log, as failOnDataLoss says."""
        if self._options.fail_on_data_loss:
            raise Refusal(
                Group.INVALID_CONFIGURATION, codes.OFFSET_OUT_OF_RANGE.name, f"{text}; set failOnDataLoss=false to read what is left"
            )
        _log.warning("%s; reading what is left", text)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range."""
        from chaffinch.records.faults import RecordsError
        from chaffinch.spark.read_rows import batch_read
        from chaffinch.spark.target import client_for

        assert isinstance(partition, TopicRange)
        where = TopicPartition(partition.topic, partition.partition)
        try:
            for columns, timestamp_type in self._records(client_for(self._options.client), where, partition.start, partition.end):
                if len(columns):
                    yield batch_read(columns, where.topic, where.partition, timestamp_type, include_headers=self._options.include_headers)
        except ApiException as error:
            raise refusal_of(error) from None
        except RecordsError as error:
            raise Refusal(Group.APPLICATION_RECOVERABLE, codes.CORRUPT_MESSAGE.name, f"{where}: {error}") from None

    def _records(self, client: SyncClient, where: TopicPartition, position: int, end: int) -> Iterator[tuple[RecordColumns, int]]:
        """Records of the range batch by batch, with the batch's timestamp type."""
        from chaffinch.records.fetched import FetchedRecords

        while position < end:
            data = self._fetch(client, where, position)
            if codes.by_number(data.error_code) is codes.OFFSET_OUT_OF_RANGE:
                self._lost(f"{where} begins at offset {data.log_start_offset}, offset {position} was asked for")
                if data.log_start_offset <= position:
                    return
                position = data.log_start_offset
                continue
            aborted = [(found.producer_id, found.first_offset) for found in data.aborted_transactions or ()]
            before = position
            assert not isinstance(data.records, list), "records that were received are one buffer"
            records = FetchedRecords(data.records or b"", position, aborted=aborted)
            while position < end and (piece := records.read(ROWS_PER_ARROW_BATCH)) is not None:
                yield _before(piece.columns, end), int(piece.timestamp_type)
                position = records.position
            position = max(position, records.position)
            if position == before:
                raise Refusal(
                    Group.APPLICATION_RECOVERABLE,
                    codes.REQUEST_TIMED_OUT.name,
                    f"{where} gave nothing at offset {position}, offsets up to {end - 1} were there when the read was planned",
                )

    def _fetch(self, client: SyncClient, where: TopicPartition, position: int) -> PartitionData:
        from chaffinch.client.answers import raise_for
        from chaffinch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic

        options = self._options
        request = FetchRequest(
            max_wait_ms=MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=options.fetch_bytes_max,
            isolation_level=_ISOLATION[options.isolation_level],
            topics=[
                FetchTopic(
                    topic=where.topic,
                    partitions=[
                        FetchPartition(partition=where.partition, fetch_offset=position, partition_max_bytes=options.partition_bytes_max)
                    ],
                )
            ],
        )
        response = client.leader_request(where, request, timeout_ms=options.timeout_ms)
        data: PartitionData = response.responses[0].partitions[0]
        if codes.by_number(data.error_code) is not codes.OFFSET_OUT_OF_RANGE:
            raise_for(response)
        return data


def schema_read(given: Mapping[str, str]) -> str:
    """The schema of what is read, in Spark's own words. Raises Refusal for options that cannot be."""
    from chaffinch.spark.read_rows import read_schema

    return read_schema(include_headers=_options(given).include_headers)


def planned_reader(given: Mapping[str, str]) -> TopicReader:
    """What `spark.read` asks for. Raises Refusal."""
    return TopicReader(_options(given))


def planned_stream_reader(given: Mapping[str, str]) -> NoReturn:
    """What `spark.readStream` asks for. Raises Refusal."""
    raise invalid(ConfigException('streams cannot be read with this format yet: use the source of Spark, readStream.format("kafka")'))


def _options(given: Mapping[str, str]) -> SourceOptions:
    try:
        return SourceOptions.parse(given)
    except ConfigException as error:
        raise invalid(error) from None


def _before(columns: RecordColumns, end: int) -> RecordColumns:
    """The records whose offsets lie below `end`."""
    import numpy as np

    assert columns.offsets is not None, "records that were read have offsets"
    last = int(np.searchsorted(columns.offsets, end))
    return columns if last == len(columns) else columns.slice(0, last)
