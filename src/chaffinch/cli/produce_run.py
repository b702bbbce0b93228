"""One run of `chaffinch produce`: sends the pieces of an input, collects their outcomes, and reports the progress if interrupted."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chaffinch.admin.topics import Topic
from chaffinch.cli.display import print_error
from chaffinch.cli.rows.record_texts import PARTITION_MAX
from chaffinch.cli.rows.rejected import RejectedRows, rejected_table
from chaffinch.cli.rows.sources import Numbers, Piece
from chaffinch.errors import KafkaException, Stored, codes, exception_for
from chaffinch.errors.codes import Group
from chaffinch.identifiers import format_partitions, pluralize
from chaffinch.producer.producer import Producer
from chaffinch.producer.tables.columns import PARTITION
from chaffinch.records.errors import InvalidColumn
from chaffinch.runtime.clock import SystemClock

if TYPE_CHECKING:
    from chaffinch.producer.tables.result import SendTableResult

# Enough to keep the brokers busy while the next piece is read. Each piece stays in memory until its outcome is known.
PIECES_IN_FLIGHT_MAX: Final = 8


class Transaction(Enum):
    """State of the transaction that all rows are written in."""

    NONE = auto()
    OPEN = auto()
    ABORTED = auto()


class ProduceRun:
    """Sends one input. Outcomes are collected in the order of the pieces."""

    def __init__(self, producer: Producer, topic: str, bad: RejectedRows, show: Callable[[int], None]) -> None:
        self._producer = producer
        self._topic = topic
        self._bad = bad
        self._show = show
        self._clock = SystemClock()
        self._in_flight: deque[tuple[Piece, Future[SendTableResult]]] = deque()
        self._written = 0
        self._last = 0
        """Number of the last line or row up to which all outcomes are known."""
        self._current_piece: Piece | None = None
        self._transaction = Transaction.NONE

    def send(self, pieces: Iterator[Piece], *, stop_at_first_rejection: bool = False) -> int:
        """Send all pieces and return the number of rows written. `stop_at_first_rejection`: stop after a piece with a rejected row."""
        try:
            for piece in pieces:
                self._send(piece)
                if stop_at_first_rejection and self._bad.count:
                    break
        except KafkaException as error:
            # The rows before the broken input were sent; their number is where the user can continue.
            if type(error) is not KafkaException or stop_at_first_rejection:
                raise
            raise KafkaException(f"{error.message}; {self._finish()} rows before it were written") from None
        return self._finish()

    def _send(self, piece: Piece) -> None:
        self._bad.add_broken(piece.broken)
        if len(piece.table):
            self._current_piece = piece
            try:
                self._in_flight.append((piece, self._producer.send_table(self._topic, piece.table)))
            except InvalidColumn as error:
                raise KafkaException(f"{error}; --key-field NAME writes whole rows") from None
        self._current_piece = None
        self._show(piece.done)
        while self._in_flight and (len(self._in_flight) > PIECES_IN_FLIGHT_MAX or self._in_flight[0][1].done()):
            self._collect_outcome()

    def _finish(self) -> int:
        self._producer.flush()
        while self._in_flight:
            self._collect_outcome()
        return self._written

    def in_transaction(self, pieces: Iterator[Piece]) -> int:
        """Send all pieces in one transaction. A rejected row aborts it, and no row is written."""
        self._producer.init_transactions()
        self._producer.begin_transaction()
        self._transaction = Transaction.OPEN
        try:
            self.send(pieces, stop_at_first_rejection=True)
            if not self._bad.count:
                self._producer.commit_transaction()
                self._transaction = Transaction.NONE
                return self._written
        except BaseException:
            self._producer.abort_transaction()
            self._transaction = Transaction.ABORTED
            raise
        self._producer.abort_transaction()
        return 0

    def _collect_outcome(self) -> None:
        piece, future = self._in_flight[0]
        result = future.result()
        self._in_flight.popleft()
        self._written += result.written
        self._last = row_range(piece)[1]
        rejected = result.rejected
        if rejected.num_rows:
            # Rows that failed only because their transaction was aborted are not at fault; the cause is reported once.
            rejected = rejected.filter(pc.not_equal(rejected["group"], Group.TRANSACTION_ABORTABLE.value))
        self._bad.add(piece.table, piece.numbers, rejected, self._clock.wall_ms())

    def collect_done(self) -> None:
        """After an interruption: collect the outcomes that the producer knew when it was closed."""
        while self._in_flight and self._in_flight[0][1].done():
            self._collect_outcome()

    def describe_progress(self) -> str:
        """A text about the progress so far."""
        match self._transaction:
            case Transaction.ABORTED:
                return "transaction aborted, nothing written"
            case Transaction.OPEN:
                return "the transaction has not ended; the broker aborts it unless its commit had begun"
        open_pieces = [piece for piece, _ in self._in_flight] + ([self._current_piece] if self._current_piece is not None else [])
        return format_progress(self._written, self._bad, self._last, open_pieces)


def format_progress(written: int, bad: RejectedRows, last: int, open_pieces: Sequence[Piece]) -> str:
    """A text about an interrupted run. Outcomes are known up to line or row `last`; those of `open_pieces` are unknown."""
    count = f"{pluralize(written, 'row')} written" + (f", {bad.count} rejected" if bad.count else "")
    known = f" (input {bad.unit}s 1 to {last})" if last else ""
    if not open_pieces and not last:
        return "nothing written"
    if not open_pieces:
        return f"{count}{known}, later ones were not sent"
    first, last = row_range(open_pieces[0])[0], row_range(open_pieces[-1])[1]
    return f"{count}{known}, {bad.unit}s {first} to {last} may be written in part, later ones were not sent"


class Run(Protocol):
    """A run that can describe its progress."""

    def describe_progress(self) -> str: ...


@contextmanager
def report_interruption() -> Iterator[Callable[[Run], None]]:
    """On Ctrl-C or SIGTERM: print the progress as one line on stderr. An OSError (a full disk under the rejected file) gets it appended.

    Yields a function that registers the run.
    """
    runs: list[Run] = []
    try:
        yield runs.append
    except (KeyboardInterrupt, SystemExit):
        print_error(f"interrupted: {runs[0].describe_progress() if runs else 'nothing written'}")
        raise
    except OSError as error:
        if not runs:
            raise
        reason = error.strerror or str(error)
        raise KafkaException(f"{f'{error.filename}: ' if error.filename else ''}{reason}; {runs[0].describe_progress()}") from None


def row_range(piece: Piece) -> tuple[int, int]:
    """Numbers of the first and the last line or row of a piece that has rows."""
    numbers = [int(piece.numbers[0]), int(piece.numbers[-1]), *(row.number for row in piece.broken)]
    return min(numbers), max(numbers)


def reject_unknown_partitions(pieces: Iterator[Piece], topic: Topic, bad: RejectedRows) -> Iterator[Piece]:
    """The pieces without rows for partitions that `topic` does not have; those rows are added to `bad`.

    The producer would wait for such a partition to be created; a command that writes a file reports it at once.
    """
    clock = SystemClock()
    for piece in pieces:
        beyond = _rows_beyond(piece.table, len(topic.partitions))
        if not len(beyond):
            yield piece
            continue
        bad.add(piece.table, piece.numbers, _rejected(piece.table, topic, beyond), clock.wall_ms())
        kept = np.setdiff1d(np.arange(len(piece.table)), beyond)
        yield piece._replace(table=piece.table.take(pa.array(kept)), numbers=piece.numbers[kept])


def _rows_beyond(table: pa.Table, partition_count: int) -> Numbers:
    """Indices of rows whose partition number is too large. Other errors of the column are reported by the producer."""
    if PARTITION not in table.schema.names or not pa.types.is_integer(table.schema.field(PARTITION).type):
        return np.empty(0, np.int64)
    return np.flatnonzero(pc.fill_null(pc.greater_equal(table.column(PARTITION), partition_count), False).to_numpy())


def _rejected(table: pa.Table, topic: Topic, rows: Numbers) -> pa.Table:
    """These rows in the schema of `SendTableResult.rejected`."""
    available = format_partitions(len(topic.partitions))
    refused: list[tuple[int, int, KafkaException]] = []
    for row, number in zip(rows.tolist(), table.column(PARTITION).take(pa.array(rows)).to_pylist(), strict=True):
        error = exception_for(codes.UNKNOWN_TOPIC_OR_PARTITION, message=f"partition {number}: the topic has {available}", stored=Stored.NO)
        refused.append((row, min(number, PARTITION_MAX), error))
    return rejected_table(topic.name, refused)
