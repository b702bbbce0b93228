"""The source of streams, as Spark calls it. Which offsets a micro-batch gets is decided in `offset_ranges.py`.

Spark keeps one reader in a process of its own for as long as a query runs; that one is asked for offsets and partitions. Tasks have
another, which only reads. Offsets lie in the checkpoint as those of Spark's Kafka source: `{"orders":{"0":23}}`, the next to be read; and
with them the ids of their topics (`topic_ids.py`), so that they do not count for a topic that was deleted and created again.
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
    except ImportError:  # Before 4.2 Spark asks for the latest offset only.
        SupportsTriggerAvailableNow = None

IS_LIMITED: bool = SupportsTriggerAvailableNow is not None
"""Whether this PySpark tells a source where a micro-batch starts, and how much it may have."""
_BASES: Any = (DataSourceStreamReader, SupportsTriggerAvailableNow) if IS_LIMITED else (DataSourceStreamReader,)

Json = dict[str, dict[str, int]]


class TopicStreamReader(SentToExecutors, *_BASES):  # type: ignore[misc]
    """Reads topics for as long as the query runs."""

    _version = MESSAGE_VERSION

    def __init__(self, options: SourceOptions, clock: Clock | None = None) -> None:
        self._options = options
        self._clock = clock or SystemClock()
        self._discovery: TopicDiscovery | None = None
        self._latest: Offsets | None = None
        self._latest_ids: TopicIds = {}
        """Of the topics in `_latest`."""
        self._initial: Json | None = None
        self._first_end: Json | None = None
        """Where the first micro-batch ends that starts at `_initial`; None before its tasks were asked for."""
        self._refused: ConfigException | None = None
        """Why a query cannot begin where options say. One that began before a partition came can go on: the checkpoint has its end."""
        self._is_first_batch_empty = False
        """The first micro-batch of a query is to be planned, and ends where it starts."""
        self._is_ending = False
        self._target: tuple[Offsets, TopicIds] | None = None
        """Where a query ends that reads what is there now."""
        self._absent: Sequence[str] = ()
        """What options name and nobody knows, as last heard."""
        self._triggered_ms: int | None = None
        """When the last micro-batch was let go that minOffsetsPerTrigger could have held back."""
        self._reported: set[str] = set()

    # Where a micro-batch begins and ends.

    @line_first()
    def initialOffset(self) -> Json:
        """Where a query without checkpoint starts. Spark asks for the end of the first micro-batch, and again for its tasks, and keeps
        none of the answers; so it gets the same one. Where a later start of the query would get another, because "latest" has moved, the
        first micro-batch has nothing in it: its end, which Spark keeps, is where the query starts."""
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
            except ConfigException:  # Which would speak of those partitions alone that options name.
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
        """What Spark hands back to `latestOffset`, except where a trigger wants everything."""
        options = self._options
        if options.trigger_offsets_max is not None:
            return ReadMaxRows(options.trigger_offsets_max)
        return ReadAllAvailable() if options.trigger_offsets_min is None else ReadMinRows(options.trigger_offsets_min)

    def prepareForTriggerAvailableNow(self) -> None:
        """The stream ends where the topics end when the latest offset is first asked for: the initial one may be asked for before."""
        self._is_ending = True

    @line_first()
    def latestOffset(self, start: Json | None = None, limit: ReadLimit | None = None) -> Json:
        """Where the next micro-batch ends that begins at `start`; PySpark 4.1 gives neither, and gets all there is."""
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
            # A checkpoint of an earlier version gets the ids by a batch without rows: the topic may be idle until it is created again.
            has_ids = all(tp.topic in ids_before for tp in end if tp.topic in known)
            return start if end == before and has_ids else to_checkpoint(end, known)

    def reportLatestOffset(self) -> Json | None:
        """What `lastProgress` shows as the latest offset."""
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
        """Partitions read beyond their last stable offset, by a run with read_uncommitted: they are where they were, not cut off."""
        behind = [tp for tp in latest if latest[tp] < before.get(tp, 0)]
        written = self._get_discovery().written(behind)
        return {tp: before[tp] for tp in behind if before[tp] <= written[tp]}

    def _is_batch_due(self, count: int) -> bool:
        """Whether a micro-batch of so many offsets is let go. The first one of a run always is."""
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
        ids = dict(self._get_discovery().ids)  # Before the offsets: those of a topic created after this are then taken for the old one's.
        return self._get_discovery().latest(found.partitions), ids

    def _without_deleted(self, offsets: Offsets, ids: TopicIds, ids_now: TopicIds) -> dict[TopicPartition, int]:
        """Offsets of topics that still have these ids. The others are reported; their partitions count as new ones."""
        recreated = created_again(ids, ids_now)
        lost = [loss(topic, *both) for topic, both in recreated.items() if any(tp.topic == topic for tp in offsets)]
        self._report(lost, rest="the new topic from its beginning")
        return {tp: offset for tp, offset in offsets.items() if tp.topic not in recreated}

    # What its tasks read.

    @line_first()
    def partitions(self, start: Json, end: Json) -> Sequence[TopicRange]:
        """The ranges of a micro-batch. After a restart this comes first, for the batch that was not finished."""
        with refusals():
            before, after, discovery = from_checkpoint(start), from_checkpoint(end), self._get_discovery()
            ids_before, ids_after = ids_of(start), ids_of(end)
            self._is_first_batch_empty, self._refused = False, None
            is_first = start == self._initial and self._first_end in (None, end)
            if is_first:
                self._first_end = end
                # After a restart it is where the query would start now, and knows partitions that the end has never heard of.
                before = {tp: min(offset, after[tp]) for tp, offset in before.items() if tp in after}
            discovery.expect(after, ids_after)
            existing = discovery.existing(after)
            # Of a topic that was created again after this was planned the batch has nothing; the next one begins it.
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
        """Partitions of which nothing is left of a first micro-batch that another run has planned. Of a time that it started with only
        its end is known: what is removed of its beginning, nobody can tell."""
        if self._latest is not None or self._options.start_changes_on_restart or not self._options.starting.is_time:
            return []
        first = self._get_discovery().earliest(first_end)
        recreated = (tp for tp in sorted(first) if 0 < first_end[tp] <= first[tp])
        return [f"{tp} begins at offset {first[tp]}: the first micro-batch ended at {first_end[tp]}" for tp in recreated]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range."""
        with line_first():
            self.check_version(host())
            yield from rows_of(partition, self._options)

    def _get_discovery(self) -> TopicDiscovery:
        if self._discovery is None:
            from chaffinch.spark.source.topic_discovery import TopicDiscovery
            from chaffinch.spark.target import client_for

            self._discovery = TopicDiscovery(client_for(self._options.client), self._options)
        return self._discovery

    def _report(self, lost: Sequence[str], rest: str = "what is left") -> None:
        """Each loss once: it shows again until it lies behind."""
        for text in lost:
            if text not in self._reported:
                report_loss(text, fails=self._options.fail_on_data_loss, rest=rest)
                self._reported.add(text)


def planned_stream_reader(given: Mapping[str, str], schema: StructType) -> TopicStreamReader:
    """What `spark.readStream` asks for. Raises Refusal."""
    with refusals():
        options = SourceOptions.parse(given, is_stream=True)
        check_schema(schema, options)
        if not IS_LIMITED and (options.trigger_offsets_max or options.trigger_offsets_min):
            named = "maxOffsetsPerTrigger" if options.trigger_offsets_max else "minOffsetsPerTrigger"
            raise ConfigException(
                f"{named} needs PySpark 4.2 or newer, this is {pyspark.__version__}, which does not tell a source where a micro-batch "
                "starts; leave it out"
            )
        return TopicStreamReader(options)
