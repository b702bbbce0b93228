"""The idempotent producer: `send` and `send_table` in turn, with culprits among the innocents, and each outcome written down once."""

from __future__ import annotations

import contextlib
from collections import deque
from concurrent.futures import Future
from functools import partial
from typing import Any

import pyarrow as pa

from chaffinch import Producer
from tests.soak.clients_process import BROKER_RECORD_BYTES_MAX, COMPACTED, NUMBERS_PER_LIFE, PLAIN, REQUEST_BYTES_MAX, Life, live

OUTSTANDING_MAX = 3000
SENDS_MAX, ROWS_MAX = 100, 600
CULPRIT_ROUNDS = 0.25
PAUSE_SECONDS_MAX = 0.25
FUTURE_MS = 10**14
"""A time in the year 5138."""
CULPRITS = {
    "null": ("InvalidCompactionKeyException",),
    "large": ("RecordTooLargeException",),
    "huge": ("RecordTooLargeException",),
    "late": ("InvalidTimestampException",),
}
"""Kind of culprit -> the classes that may reject it."""
VALUE_BYTES = {"large": BROKER_RECORD_BYTES_MAX + 5000, "huge": REQUEST_BYTES_MAX + 5000}


class Sender:
    """One life: rounds of records, and what came of them."""

    def __init__(self, life: Life) -> None:
        self._journal, self._rng = life.journal, life.rng
        self._number = life.number * NUMBERS_PER_LIFE
        self._producer = Producer(life.options(linger_ms=5, max_request_size=REQUEST_BYTES_MAX, metadata_max_age_ms=5000))
        self._outcomes: deque[tuple[int, Any, BaseException | None]] = deque()
        self._waiting: dict[int, Future[Any]] = {}
        self._tables: list[tuple[str, int, Future[Any]]] = []

    def round(self) -> None:
        topic, is_table = self._rng.choice((PLAIN, COMPACTED)), self._rng.random() < 0.3
        count = self._rng.randint(1, ROWS_MAX if is_table else SENDS_MAX)
        first, self._number = self._number, self._number + count
        kinds = [kind for kind in CULPRITS if kind != "null" or topic == COMPACTED]
        culprits = {}
        if self._rng.random() < CULPRIT_ROUNDS:
            culprits = {first + self._rng.randrange(count): self._rng.choice(kinds) for _ in range(self._rng.randint(1, 4))}
        self._journal.write("sent", topic, first, count, culprits)
        rows = [self._row(number, culprits.get(number, ""), topic) for number in range(first, first + count)]
        if is_table:
            table = pa.table(
                {
                    "key": pa.array([key for key, _, _ in rows], pa.binary()),
                    "value": pa.array([value for _, value, _ in rows], pa.binary()),
                    "timestamp": pa.array([time_ms for _, _, time_ms in rows], pa.timestamp("ms")),
                }
            )
            self._tables.append((topic, first, self._producer.send_table(topic, table)))
        else:
            for number, (key, value, time_ms) in enumerate(rows, first):
                self._waiting[number] = self._producer.send(
                    topic,
                    value,
                    key=key,
                    timestamp_ms=time_ms,
                    on_delivery=partial(self._note, number),
                )

    def _note(self, number: int, metadata: Any, error: BaseException | None) -> None:
        self._outcomes.append((number, metadata, error))

    def _row(self, number: int, kind: str, topic: str) -> tuple[bytes | None, bytes, int | None]:
        key = None if kind == "null" or (topic == PLAIN and number % 3 == 0) else b"%d" % number
        value = b"%d:%s:" % (number, kind.encode())
        return key, value.ljust(VALUE_BYTES.get(kind, 40 + number % 60), b"."), FUTURE_MS if kind == "late" else None

    def write_outcomes(self) -> int:
        """Those that have come; how many records wait for theirs."""
        acked: dict[tuple[str, int], list[tuple[int, int]]] = {}
        failed: list[tuple[int, str, str, str]] = []
        while self._outcomes:
            number, metadata, error = self._outcomes.popleft()
            future = self._waiting.pop(number, None)
            if future is None:
                self._journal.write("fault", f"record {number} was reported twice: {metadata} {error!r}")
            elif not future.done() or future.exception() is not error:
                self._journal.write("fault", f"record {number}: the callback got {error!r}, the future is {future!r}")
            if error is None:
                acked.setdefault((metadata.topic, metadata.partition), []).append((number, metadata.offset))
            else:
                failed.append((number, type(error).__name__, _stored(error), str(error)[:300]))
        tables, self._tables = self._tables, []
        for topic, first, future in tables:
            if not future.done():
                self._tables.append((topic, first, future))
                continue
            result = future.result()
            for row, partition, offset in zip(
                *(result.offsets.column(name).to_pylist() for name in ("row", "partition", "offset")), strict=True
            ):
                acked.setdefault((topic, partition), []).append((first + row, offset))
            failed += [(first + row, type(error).__name__, _stored(error), str(error)[:300]) for row, error in result.errors().items()]
        for (topic, partition), records in acked.items():
            self._journal.write("acked", topic, partition, records)
        if failed:
            self._journal.write("failed", failed)
        return len(self._waiting) + sum(ROWS_MAX for _ in self._tables)

    def close(self) -> None:
        self._producer.close()
        left = self.write_outcomes()
        self._journal.write("closed")
        if left:
            self._journal.write("fault", f"{len(self._waiting)} records and {len(self._tables)} tables have no outcome after close()")


def _stored(error: BaseException) -> str:
    return str(getattr(getattr(error, "stored", None), "value", "?"))


def run(life: Life) -> None:
    sender = Sender(life)
    with contextlib.closing(sender):
        while not life.stopping.is_set():
            if sender.write_outcomes() < OUTSTANDING_MAX:
                sender.round()
            life.pause(PAUSE_SECONDS_MAX)


if __name__ == "__main__":
    live(run)
