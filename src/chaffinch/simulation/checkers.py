"""What must hold once everything is quiet: the network healed, the broker up, every transaction decided.

Each check gives one line per violation, naming the record, the partition and what was seen. They look at facts only: what callers were told
(`Told`), what readers see, and what the logs hold. None of them knows how the cores work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from chaffinch.identifiers import TopicPartition
from chaffinch.simulation.queries import DEAD_LETTER_TOPIC, Query
from chaffinch.simulation.reading import LogContents, Stored

Committed = Mapping[TopicPartition, Sequence[Stored]]
Logs = Mapping[TopicPartition, LogContents]


def logs_are_decided(logs: Logs) -> Iterator[str]:
    """No transaction is left open anywhere: readers of committed records see up to the end."""
    for topic_partition, log in logs.items():
        if log.last_stable_offset != log.log_end_offset:
            yield f"{topic_partition}: the last stable offset stays at {log.last_stable_offset}, the log ends at {log.log_end_offset}"


def readers_agree(committed: Committed, logs: Logs) -> Iterator[str]:
    """What Fetch gives to readers of committed records is what the markers in the log say, in the order of the log."""
    for topic_partition, records in committed.items():
        expected = visible(logs[topic_partition])
        if list(records) != expected:
            seen, wanted = {r.offset for r in records}, {r.offset for r in expected}
            yield (
                f"{topic_partition}: read_committed differs from the markers: missing offsets {sorted(wanted - seen)[:5]}, "
                f"too many {sorted(seen - wanted)[:5]}"
            )


def visible(log: LogContents) -> list[Stored]:
    """The committed records of a log, worked out from its markers alone: a transaction ends at its producer's next marker."""
    found = []
    for record in log.records:
        if record.is_transactional:
            marker = next(
                (m for m in log.markers if m.offset > record.offset and m.identity.producer_id == record.identity.producer_id), None
            )
            if marker is None or not marker.is_commit:
                continue
        found.append(record)
    return found


def logs_survive(before: Logs, after: Logs) -> Iterator[str]:
    """A death of the broker with nothing under way changes no log."""
    for topic_partition in sorted({*before, *after}):
        if before.get(topic_partition) != after.get(topic_partition):
            ends = [logs[topic_partition].log_end_offset if topic_partition in logs else None for logs in (before, after)]
            yield f"{topic_partition}: the log ended at {ends[0]}, after one more death of the quiet broker at {ends[1]}"


def offsets_are_dense(logs: Logs) -> Iterator[str]:
    """Records and markers take every offset once, in order."""
    for topic_partition, log in logs.items():
        offsets = sorted([record.offset for record in log.records] + [marker.offset for marker in log.markers])
        if offsets != list(range(log.log_end_offset)):
            yield f"{topic_partition}: {len(offsets)} records and markers over {log.log_end_offset} offsets"


def sequences_run_on(logs: Logs) -> Iterator[str]:
    """Within one producer epoch a partition holds each sequence number once, ascending: none is used twice."""
    for topic_partition, log in logs.items():
        last: dict[tuple[int, int], int] = {}
        for record in log.records:
            if record.identity.producer_id < 0:
                continue
            before = last.get(record.identity)
            if before is not None and record.sequence <= before:
                yield f"{topic_partition}: offset {record.offset} has sequence {record.sequence} after {before}, producer {record.identity}"
            last[record.identity] = record.sequence


def rows_are_written_once(query: Query, committed: Committed) -> Iterator[str]:
    """Each row of a query is visible exactly once: in its partition, or, when it is bad, in the dead letters."""
    dead: Counter[int] = Counter()
    where: dict[int, list[TopicPartition]] = {}
    for topic_partition, records in committed.items():
        for record in records:
            if topic_partition.topic == DEAD_LETTER_TOPIC:
                dead[record.number] += 1
            else:
                where.setdefault(record.number, []).append(topic_partition)
    for row in query.rows():
        expected = [] if row.is_bad else [row.topic_partition]
        found = where.get(row.number, [])
        if found != expected:
            yield f"{query.name}: row {row.number} is in {_places(found)}, expected {_places(expected)}"
        if dead[row.number] != row.is_bad:
            yield f"{query.name}: row {row.number} is in the dead letters {dead[row.number]} times, {'bad' if row.is_bad else 'innocent'}"


def rows_are_in_order(query: Query, committed: Committed) -> Iterator[str]:
    """A query's rows stand in each partition in the order of batches, tasks and rows, which is that of their numbers."""
    mine = {row.number for row in query.rows()}
    for topic_partition, records in committed.items():
        if topic_partition.topic != DEAD_LETTER_TOPIC:
            numbers = [record.number for record in records if record.number in mine]
            if numbers != sorted(numbers):
                place = next(index for index in range(1, len(numbers)) if numbers[index] < numbers[index - 1])
                yield f"{query.name}: {topic_partition} has row {numbers[place]} after row {numbers[place - 1]}"


def _places(found: Sequence[TopicPartition]) -> str:
    return ", ".join(map(str, found)) or "no partition"
