"""Streaming source: the reader that Spark calls. `offset_ranges.py` decides which offsets a micro-batch gets.

While a query runs, Spark has one reader in a separate process, which it calls for offsets and partitions. Tasks have another one, which
only reads. The checkpoint stores offsets like Spark's Kafka source: `{"orders":{"0":23}}`, the next offset to be read. It also stores
topic ids (`topic_ids.py`), so that offsets do not apply to a topic that was deleted and created again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from chaffinch.errors import ConfigException
from chaffinch.identifiers import TopicPartition
from chaffinch.runtime.clock import Clock, SystemClock
from chaffinch.spark.refusals import line_first
from chaffinch.spark.source.batch_reader import MESSAGE_VERSION, check_schema, rows_of, task_ranges
from chaffinch.spark.source.fetching import TopicRange
from chaffinch.spark.source.offset_ranges import backlog, clamp_to_available, limited, losses, ranges
from chaffinch.spark.source.options import SourceOptions
from chaffinch.spark.source.reports import refusals, report_loss
from chaffinch.spark.source.topic_offsets import from_checkpoint, to_checkpoint
from chaffinch.spark.task_facts import host
from chaffinch.spark.topic_ids import created_again, ids_of, loss
from chaffinch.spark.versions import SentToExecutors

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
    from pyspark.sql.types import StructType

    from chaffinch.spark.source.offset_ranges import Offsets
    from chaffinch.spark.source.topic_discovery import TopicDiscovery
    from chaffinch.spark.topic_ids import TopicIds
else:
    try:
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows, SupportsTriggerAvailableNow
    except ImportError:  # Before 4.2 Spark only requests the latest offset.
        SupportsTriggerAvailableNow = None

IS_LIMITED: bool = SupportsTriggerAvailableNow is not None
"""Whether this PySpark passes the start and the limit of a micro-batch to the source."""
_BASES: Any = (DataSourceStreamReader, SupportsTriggerAvailableNow) if IS_LIMITED else (DataSourceStreamReader,)

Json = dict[str, dict[str, int]]


class TopicStreamReader(SentToExecutors, *_BASES):  # type: ignore[misc]
    """Reads topics while a query runs."""

    _version = MESSAGE_VERSION

    def __init__(self, options: SourceOptions, clock: Clock | None = None) -> None:
        self._options = options
        self._clock = clock or SystemClock()
        self._discovery: TopicDiscovery | None = None
        self._latest: Offsets | None = None
        self._latest_ids: TopicIds = {}
        """Ids of the topics in `_latest`."""
        self._initial: Json | None = None
        self._first_end: Json | None = None
        """End of the first micro-batch, which starts at `_initial`; None before its partitions were requested."""
        self._refused: ConfigException | None = None
        """Why a query cannot start at the position of the options. A query with a checkpoint can continue: the checkpoint has its end."""
        self._is_first_batch_empty = False
        """The first micro-batch of the query is not planned yet, and must be empty."""
        self._is_ending = False
        self._target: tuple[Offsets, TopicIds] | None = None
        """End of a query with trigger(availableNow=True)."""
        self._absent: Sequence[str] = ()
        """Topics and partitions of the options that did not exist in the last metadata."""
        self._triggered_ms: int | None = None
        """Time of the last micro-batch to which minOffsetsPerTrigger applied."""
        self._reported: set[str] = set()

    # Start and end of a micro-batch.

    @line_first()
    def initialOffset(self) -> Json:
        """The start of a query without checkpoint.

        Spark requests it for the end of the first micro-batch and again for its tasks, and stores none of the results, so it is the same
        each time. If the start would change on a restart, because it is "latest", the first micro-batch is empty: Spark stores its end,
        from which the query continues.
        """
        if self._initial is None:
            with refusals():
                starts = self._start()
                self._initial = to_checkpoint(starts, self._get_discovery().ids)
                if self._latest is not None:
                    self._raise_refused()
            self._is_first_batch_empty = self._options.start_changes_on_restart
        return self._initial

    def _start(self) -> Offsets:
        discovery = self._get_discovery()
        wanted = discovery.partitions_at_start()
        try:
            starts = discovery.starts(wanted)
        except ConfigException as error:
            try:
                starts = discovery.earliest(wanted) | discovery.starts_found(wanted)
            except ConfigException:  # The second error would only concern partitions of the options.
                raise error from None
            self._refused = error
        first = discovery.earliest(wanted)
        if self._refused is None:
            starts |= {tp: first[tp] for tp in discovery.starting_at_earliest(wanted)}
        starts, lost = clamp_to_available(self._options.starting.option, starts, first, discovery.written(wanted))
        self._report(lost)
        return starts

    def _raise_refused(self) -> None:
        if self._refused is not None:
            raise self._refused

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit that Spark passes to `latestOffset`, unless a trigger reads everything."""
        options = self._options
        if options.trigger_offsets_max is not None:
            return ReadMaxRows(options.trigger_offsets_max)
        return ReadAllAvailable() if options.trigger_offsets_min is None else ReadMinRows(options.trigger_offsets_min)

    def prepareForTriggerAvailableNow(self) -> None:
        """The query ends at the latest offsets of the first call of `latestOffset`; `initialOffset` may be called earlier."""
        self._is_ending = True

    @line_first()
    def latestOffset(self, start: Json | None = None, limit: ReadLimit | None = None) -> Json:
        """The end of the next micro-batch, which starts at `start`. PySpark 4.1 passes neither start nor limit, and gets the latest
        offsets.
        """
        with refusals():
            self._raise_refused()
            before, ids_before = ({}, {}) if start is None else (from_checkpoint(start), ids_of(start))
            self._get_discovery().expect(before, ids_before)
            self._latest, self._latest_ids = latest, ids = self._target if self._target is not None else self._latest_now()
            self._target = (latest, ids) if self._is_ending else None
            is_first_batch_empty, self._is_first_batch_empty = self._is_first_batch_empty, False
            if is_first_batch_empty and self._initial is not None:
                return self._initial
            if start is None:
                self._report(self._absent)
                return to_checkpoint(latest, ids)
            before = self._without_deleted(before, ids_before, ids)
            end = self._end(before, latest, is_limited=limit is not None and not isinstance(limit, ReadAllAvailable))
            known = {**ids_before, **ids}
            # An empty batch adds the ids to a checkpoint of an earlier version: the topic may be idle until it is created again.
            has_ids = all(tp.topic in ids_before for tp in end if tp.topic in known)
            return start if end == before and has_ids else to_checkpoint(end, known)

    def reportLatestOffset(self) -> Json | None:
        """The latest offset that `lastProgress` shows."""
        return None if self._latest is None else to_checkpoint(self._latest)

    def _end(self, before: Offsets, latest: Offsets, *, is_limited: bool) -> Offsets:
        options, discovery = self._options, self._get_discovery()
        latest = {**latest, **self._beyond_last_stable(before, latest)}
        first_of_new = discovery.earliest(latest.keys() - before.keys())
        self._report([*losses(before, latest, first_of_new), *self._absent])
        if not is_limited:
            return latest
        start = first_of_new | {tp: before[tp] for tp in latest if tp in before}
        if not self._is_ending and not self._is_batch_due(backlog(start, latest)):
            return before
        return latest if options.trigger_offsets_max is None else limited(start, latest, options.trigger_offsets_max)

    def _beyond_last_stable(self, before: Offsets, latest: Offsets) -> Offsets:
        """Partitions that a run with read_uncommitted has read beyond their last stable offset: they keep their position, and are not
        truncated.
        """
        behind = [tp for tp in latest if latest[tp] < before.get(tp, 0)]
        written = self._get_discovery().written(behind)
        return {tp: before[tp] for tp in behind if before[tp] <= written[tp]}

    def _is_batch_due(self, count: int) -> bool:
        """Whether a micro-batch of this many offsets starts now. The first one of a run always does."""
        least, steady_ms = self._options.trigger_offsets_min, self._clock.steady_ms()
        if least is not None and count < least and self._triggered_ms is not None:
            is_overdue = steady_ms - self._triggered_ms >= self._options.trigger_delay_max_ms
            if not is_overdue:
                return False
        self._triggered_ms = steady_ms
        return True

    def _latest_now(self) -> tuple[Offsets, TopicIds]:
        found = self._get_discovery().partitions()
        self._absent = found.absent
        # Read before the offsets: if a topic is created again in between, its offsets count for the old id.
        ids = dict(self._get_discovery().ids)
        return self._get_discovery().latest(found.partitions), ids

    def _without_deleted(self, offsets: Offsets, ids: TopicIds, ids_now: TopicIds) -> dict[TopicPartition, int]:
        """Offsets of topics that still have these ids. The others are reported, and their partitions count as new."""
        recreated = created_again(ids, ids_now)
        lost = [loss(topic, *both) for topic, both in recreated.items() if any(tp.topic == topic for tp in offsets)]
        self._report(lost, rest="the new topic from its beginning")
        return {tp: offset for tp, offset in offsets.items() if tp.topic not in recreated}

    # Partitions of a micro-batch.

    @line_first()
    def partitions(self, start: Json, end: Json) -> Sequence[TopicRange]:
        """The ranges of a micro-batch. After a restart Spark calls this first, for the unfinished batch."""
        with refusals():
            before, after, discovery = from_checkpoint(start), from_checkpoint(end), self._get_discovery()
            ids_before, ids_after = ids_of(start), ids_of(end)
            self._is_first_batch_empty, self._refused = False, None
            is_first = start == self._initial and self._first_end in (None, end)
            if is_first:
                self._first_end = end
                # After a restart this is the current start, which can have partitions that the end lacks.
                before = {tp: min(offset, after[tp]) for tp, offset in before.items() if tp in after}
            discovery.expect(after, ids_after)
            existing = discovery.existing(after)
            # Nothing is read of a topic that was created again after planning; the next batch starts it.
            recreated = created_again(ids_after, discovery.ids)
            after = self._without_deleted(after, ids_after, discovery.ids)
            before = {tp: offset for tp, offset in before.items() if tp.topic not in recreated}
            before = self._without_deleted(before, ids_before, ids_after)
            remaining = {tp: offset for tp, offset in after.items() if tp in existing}
            if is_first:
                self._report(self._removed_since(remaining))
            first_of_new = discovery.earliest(remaining.keys() - before.keys())
            self._report(losses(before, remaining, first_of_new, expected=after))
            return task_ranges(ranges(before, remaining, first_of_new), self._options, discovery.ids)

    def _removed_since(self, first_end: Offsets) -> list[str]:
        """Partitions that have lost all records of a first micro-batch that an earlier run has planned.

        If it started at a time, only its end is known, so a removal of its first records cannot be detected.
        """
        if self._latest is not None or self._options.start_changes_on_restart or not self._options.starting.is_time:
            return []
        first = self._get_discovery().earliest(first_end)
        removed = (tp for tp in sorted(first) if 0 < first_end[tp] <= first[tp])
        return [f"{tp} begins at offset {first[tp]}: the first micro-batch ended at {first_end[tp]}" for tp in removed]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of one range."""
        with line_first():
            self.check_version(host())
            yield from rows_of(partition, self._options)

    def _get_discovery(self) -> TopicDiscovery:
        if self._discovery is None:
            from chaffinch.spark.source.topic_discovery import TopicDiscovery
            from chaffinch.spark.target import client_for

            self._discovery = TopicDiscovery(client_for(self._options.client), self._options)
        return self._discovery

    def _report(self, lost: Sequence[str], rest: str = "the remaining records") -> None:
        """Report each loss once; it is found again until the query has passed it."""
        for text in lost:
            if text not in self._reported:
                report_loss(text, fails=self._options.fail_on_data_loss, rest=rest)
                self._reported.add(text)


def planned_stream_reader(given: Mapping[str, str], schema: StructType) -> TopicStreamReader:
    """The reader of `spark.readStream`. Raises Refusal."""
    with refusals():
        options = SourceOptions.parse(given, is_stream=True)
        check_schema(schema, options)
        if not IS_LIMITED and (options.trigger_offsets_max or options.trigger_offsets_min):
            named = "maxOffsetsPerTrigger" if options.trigger_offsets_max else "minOffsetsPerTrigger"
            raise ConfigException(
                f"{named} needs PySpark 4.2 or newer, this is {pyspark.__version__}, which does not pass the start of a micro-batch "
                "to a source; leave it out"
            )
        return TopicStreamReader(options)
