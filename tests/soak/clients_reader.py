"""A consumer of the group READERS_GROUP: what it has read is written down before it is committed.

This one polls records and commits automatically; `clients_table_reader.py` polls tables and commits itself. Now and then a reader leaves
the group and joins again, so that partitions move.
"""

from __future__ import annotations

import itertools
import time
import zlib
from collections.abc import Iterable, Iterator

from chaffinch import Consumer, TopicPartition, errors
from tests.soak.clients_process import PARTITIONS, READERS_GROUP, SESSION_OPTIONS, Life, live

SESSION_SECONDS = (10.0, 30.0)
"""How long a reader stays in the group at a time."""
READ_SECONDS_MAX = 0.5
Rows = Iterable[tuple[str, int, int, bytes | None]]


def digest(values: Iterable[bytes | None]) -> int:
    """Of the values of records, in their order."""
    found = 0
    for value in values:
        found = zlib.crc32(b"-" if value is None else b"+" + value, found)
    return found


class Reader:
    """One membership, from joining to leaving."""

    def __init__(self, life: Life, is_table: bool) -> None:
        self._life, self._journal, self._is_table = life, life.journal, is_table
        self._last: dict[TopicPartition, int] = {}
        self._consumer = Consumer(
            life.options(
                group_id=READERS_GROUP,
                partition_assignment_strategy="cooperative-sticky",
                isolation_level="read_committed",
                enable_auto_commit=not is_table,
                auto_commit_interval_ms=500,
                auto_offset_reset="earliest",
                **SESSION_OPTIONS,
                metadata_max_age_ms=5000,
            )
        )
        self._consumer.subscribe(list(PARTITIONS), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)

    def _assigned(self, tps: list[TopicPartition]) -> None:
        self._journal.write("assigned", len(tps))
        for tp in tps:
            self._last.pop(tp, None)

    def _revoked(self, tps: list[TopicPartition]) -> None:
        if self._is_table:
            self._commit(asynchronous=False)

    def _lost(self, tps: list[TopicPartition]) -> None:
        self._journal.write("lost", len(tps))

    def read_until(self, end_s: float) -> bool:
        """Whether it ended because it shall."""
        while time.monotonic() < end_s:
            try:
                rows = self._polled()
                self._write(rows)
                if self._is_table and rows:
                    self._commit(asynchronous=self._life.rng.random() < 0.5)
                if not rows and self._life.stopping.is_set() and self._is_at_end():
                    return True
            except errors.InvalidConfigurationException:
                raise
            except errors.KafkaException as error:
                self._journal.write("error", f"{type(error).__name__}: {error}"[:300])
        return False

    def _polled(self) -> list[tuple[str, int, int, bytes | None]]:
        if not self._is_table:
            return [(record.topic, record.partition, record.offset, record.value) for record in self._consumer.poll(READ_SECONDS_MAX)]
        table = self._consumer.poll_table(READ_SECONDS_MAX)
        return list(zip(*(table.column(name).to_pylist() for name in ("topic", "partition", "offset", "value")), strict=True))

    def _write(self, rows: Rows) -> None:
        for (topic, partition), group in itertools.groupby(rows, key=lambda row: row[:2]):
            found = list(group)
            tp, offsets = TopicPartition(topic, partition), [row[2] for row in found]
            ordered = [self._last.get(tp, -1), *offsets]
            if any(second <= first for first, second in itertools.pairwise(ordered)):
                self._journal.write("fault", f"{tp}: offsets {offsets[:3]}...{offsets[-3:]} after {ordered[0]} are out of order")
            self._last[tp] = offsets[-1]
            self._journal.write("read", topic, partition, list(_runs(offsets)), digest(row[3] for row in found))

    def _commit(self, *, asynchronous: bool) -> None:
        try:
            self._consumer.commit(asynchronous=asynchronous)
        except errors.KafkaException as error:
            self._journal.write("error", f"commit: {type(error).__name__}: {error}"[:300])

    def _is_at_end(self) -> bool:
        assignment = self._consumer.assignment()
        ends = self._consumer.end_offsets(assignment)
        return bool(assignment) and all(self._consumer.position(tp) >= end for tp, end in ends.items())

    def close(self) -> None:
        self._consumer.close()


def _runs(offsets: list[int]) -> Iterator[tuple[int, int]]:
    """Offsets in order as (first, last) of those without a gap."""
    first = last = offsets[0]
    for offset in offsets[1:]:
        if offset != last + 1:
            yield first, last
            first = offset
        last = offset
    yield first, last


def read(life: Life, *, is_table: bool) -> None:
    """Join, read, leave, again and again."""
    is_done = False
    while not is_done:
        reader = Reader(life, is_table)
        is_done = reader.read_until(time.monotonic() + life.rng.uniform(*SESSION_SECONDS))
        reader.close()


def run(life: Life) -> None:
    read(life, is_table=False)


if __name__ == "__main__":
    live(run)
