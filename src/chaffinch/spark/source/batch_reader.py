"""Batch source: reads topics with the schema of Spark's Kafka source, as Arrow record batches.

The planner resolves start and end offsets once, and tasks fetch their ranges (`fetching.py`). With `read_committed` the end is the last
stable offset: the read does not wait for open transactions, and leaves aborted ones out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from chaffinch.errors import ConfigException
from chaffinch.protocol.primitives import ZERO_UUID
from chaffinch.spark.options import ClientOptions
from chaffinch.spark.refusals import Kind, line_first, worded_for
from chaffinch.spark.source.fetching import TopicRange, read_range
from chaffinch.spark.source.offset_ranges import OffsetRange, clamp_to_available, divided
from chaffinch.spark.source.options import SourceOptions, includes_headers
from chaffinch.spark.source.reports import refusals, report_loss
from chaffinch.spark.task_facts import host
from chaffinch.spark.versions import SentToExecutors, version_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from chaffinch.spark.source.offset_ranges import Offsets
    from chaffinch.spark.topic_ids import TopicIds

MESSAGE_VERSION: Final = version_of(SourceOptions, ClientOptions, TopicRange)


class TopicReader(SentToExecutors, DataSourceReader):
    """Reads topics once, up to their ends at planning time."""

    _version = MESSAGE_VERSION

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[TopicRange]:
        from chaffinch.spark.source.topic_discovery import TopicDiscovery
        from chaffinch.spark.target import client_for

        with line_first(), worded_for(Kind.BATCH), refusals():
            discovery = TopicDiscovery(client_for(self._options.client), self._options)
            wanted = discovery.partitions_at_start()
            # In this order, so that concurrent writes cannot put an end before its start.
            starts, ends = discovery.starts(wanted), discovery.ends(wanted)
            first, latest = discovery.earliest(wanted), discovery.latest(wanted)
            self._check_order(starts, ends, latest)
            from_earliest = discovery.starting_at_earliest(wanted)
            starts |= {tp: first[tp] for tp in from_earliest}
            written = discovery.written(wanted)
            starts, lost = clamp_to_available(self._options.starting.option, starts, first, written)
            # Ends given as offsets of existing records.
            after_open_transactions = {tp: end for tp, end in ends.items() if latest[tp] < end <= written[tp]}
            discovery.wait_until_readable(after_open_transactions)
            ends, lost_after_end = clamp_to_available(self._options.ending.option, ends, {}, {**latest, **after_open_transactions})
            for text in (*lost, *lost_after_end):
                report_loss(text, fails=self._options.fail_on_data_loss)
            offered = (OffsetRange(tp, starts[tp], ends[tp]) for tp in wanted)
            found = task_ranges(offered, self._options, discovery.ids)
            return [replace(part, is_start_required=part.start != starts[part.tp] or part.tp not in from_earliest) for part in found]

    def _check_order(self, starts: Offsets, ends: Offsets, latest: Offsets) -> None:
        """Raises ConfigException for an end before the start, unless the topic has lost these records."""
        for tp, start in starts.items():
            if ends[tp] < start <= latest[tp]:
                starting, ending = self._options.starting.option, self._options.ending.option
                text = f"{ending} ends {tp} at offset {ends[tp]}, before its start {start} of {starting}"
                raise ConfigException(f"{text}; choose an end that is not before it, or an earlier start")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of one range."""
        with line_first(), worded_for(Kind.BATCH):
            self.check_version(host())
            yield from rows_of(partition, self._options)


def task_ranges(found: Iterable[OffsetRange], options: SourceOptions, ids: TopicIds) -> list[TopicRange]:
    """The ranges of the tasks, for topics with these ids."""
    parts = divided(found, options.parts_min, options.part_offsets_max)
    return [TopicRange(tp.topic, tp.partition, start, end, topic_id=ids.get(tp.topic, ZERO_UUID)) for tp, start, end in parts]


def rows_of(partition: InputPartition, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Read the rows of a task. For an empty read Spark creates a partition of its own, which has no rows."""
    from chaffinch.spark.target import client_for

    if isinstance(partition, TopicRange):
        yield from read_range(client_for(options.client), partition, options)


def schema_read(given: Mapping[str, str]) -> str:
    """The schema of the source as Spark DDL. Raises Refusal for invalid options."""
    from chaffinch.spark.source.rows import read_schema

    with refusals():
        return read_schema(include_headers=includes_headers(given))


def check_schema(schema: StructType, options: SourceOptions) -> None:
    """Raises ConfigException for a user-specified schema that differs from the schema of the source."""
    from chaffinch.spark.source.rows import read_schema

    wanted = read_schema(include_headers=options.include_headers)
    if _normalized(schema.simpleString()) != _normalized(f"struct<{wanted}>"):
        raise ConfigException(f"the source always has the columns {wanted}; leave out schema(), which gave {schema.simpleString()}")


def _normalized(text: str) -> str:
    """A schema in one notation: Spark writes `key binary` or `key:binary`, and `timestamp_ltz` or `timestamp`."""
    return re.sub(r"[ :]|_ltz", "", text)


def planned_reader(given: Mapping[str, str], schema: StructType) -> TopicReader:
    """The reader of `spark.read`. Raises Refusal."""
    with refusals():
        options = SourceOptions.parse(given)
        check_schema(schema, options)
        return TopicReader(options)
