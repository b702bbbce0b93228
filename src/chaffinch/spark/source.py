"""The source: a batch read of topics, with the schema of Spark's Kafka source, columns straight from record batches to Arrow.

The planner resolves beginnings and ends once and makes one Spark partition of each Kafka partition; tasks fetch their range.
With `read_committed` the end is the last stable offset, so an open transaction is not waited for, and aborted ones are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSourceReader, InputPartition

from chaffinch.errors import ConfigException, codes
from chaffinch.errors.codes import Group
from chaffinch.identifiers import OFFSET_EARLIEST, OFFSET_LATEST, TopicPartition
from chaffinch.spark.fetching import read_range
from chaffinch.spark.refusals import Refusal, invalid
from chaffinch.spark.source_errors import refusals, report_loss
from chaffinch.spark.source_options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from chaffinch.client.sync_client import SyncClient

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

        with refusals():
            client = client_for(self._options.client)
            return [found for where in self._assigned(client) if (found := self._range(client, where)).start < found.end]

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
            asked = self._options.ending.of(where, "endingOffsets")
            text = f"{where} ends at offset {latest}, offsets {start} to {asked} were asked for"
            report_loss(text, fails=self._options.fail_on_data_loss)
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

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range. Spark makes up a partition of its own where there is none."""
        from chaffinch.spark.target import client_for

        if isinstance(partition, TopicRange):
            yield from read_range(client_for(self._options.client), partition, self._options)


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
