"""Producer state of one partition: epochs, the last batches, and open transactions.

Follows Kafka's `ProducerStateManager` and `ProducerAppendInfo` (KIP-98). The last five batches of a producer are remembered, so that a
repeated batch is recognised. An unknown producer may begin at any sequence. A marker with a higher epoch clears the batches. Records are
not checked here and nothing is written: the state is rebuilt from the log.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.identifiers import NO_OFFSET, NO_TIMESTAMP, ProducerIdentity, sequence_add
from chaffinch.records.batch_header import ATTRIBUTE_LOG_APPEND_TIME, ATTRIBUTE_TRANSACTIONAL, BatchHeader
from chaffinch.storage.wall_time import WallTime

ROW_TIMES_ERROR_MS_MAX = 1000
"""Snapshot rows are reused until the wall clock has been set by this much: they contain the time of last use."""
BATCHES_REMEMBERED = 5
"""As many as a producer may have in flight (`max.in.flight.requests.per.connection` of an idempotent producer)."""
NO_EPOCH = -1


class StoredBatch(NamedTuple):
    """A stored batch, which a repeated one is compared with and answered from. `log_append_time_ms` is -1 if the producer set the time."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    log_append_time_ms: int


class ProducerRefusal(NamedTuple):
    """Why a batch may not be appended."""

    code: ErrorCode
    message: str


class OngoingTransaction(NamedTuple):
    producer_id: int
    producer_epoch: int
    first_offset: int
    last_used_ms: int


class CompletedTransaction(NamedTuple):
    """A transaction ended by its marker. `last_offset` is the marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_commit: bool


class ProducerState:
    """One producer. `batches` in order of their offsets; `first_offset` of its open transaction, or -1.

    `last_used_ms` is steady time and decides when it is idle. `last_timestamp` is that of its last record or marker, for tools. `row` is
    its snapshot row, or None after a change.
    """

    __slots__ = ("batches", "coordinator_epoch", "epoch", "first_offset", "last_timestamp", "last_used_ms", "row")

    def __init__(self, epoch: int, last_used_ms: int) -> None:
        self.epoch = epoch
        self.coordinator_epoch = NO_EPOCH
        self.last_used_ms = last_used_ms
        self.last_timestamp = NO_TIMESTAMP
        self.first_offset = NO_OFFSET
        self.batches: list[StoredBatch] = []
        self.row: str | None = None

    @property
    def last_sequence(self) -> int:
        """-1 if no batch of this epoch is known, so that 0 comes next."""
        return self.batches[-1].last_sequence if self.batches else -1

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch; a new epoch clears the batches, whose sequences restart."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches.clear()

    def rebuild_row(self, producer_id: int, wall: WallTime) -> str:
        """The snapshot row as JSON: a list of numbers and one list of lists. Formatted by hand, in a third of the time."""
        batches = ",".join([f"[{first},{last},{base},{end},{time}]" for first, last, base, end, time in self.batches])
        last_used_ms = wall.at(self.last_used_ms)
        numbers = f"{producer_id},{self.epoch},{self.coordinator_epoch},{last_used_ms},{self.first_offset}"
        self.row = f"[{numbers},[{batches}],{self.last_timestamp}]"
        return self.row


class _Expected(NamedTuple):
    """The lowest sequence with which a transaction may begin here."""

    epoch: int
    sequence: int


class ProducerSequences:
    """All producers of one partition. `check` and `find_duplicate` are read-only; `append` and `complete` follow a write."""

    def __init__(self) -> None:
        self._expected: dict[int, _Expected] = {}
        self._states: dict[int, ProducerState] = {}
        self._rows_offset_ms = 0  # Offset of the wall clock when all rows were last rebuilt.
        self._ongoing: dict[int, int] = {}  # Producer id -> first offset; in order of the offsets, since transactions begin in that order.

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._states

    @property
    def first_ongoing_offset(self) -> int | None:
        """First offset of the oldest open transaction."""
        return next(iter(self._ongoing.values()), None)

    def has_ongoing(self, producer_id: int, epoch: int | None = None) -> bool:
        """Whether a transaction of the producer is open here; with `epoch`, whether this epoch wrote it."""
        return producer_id in self._ongoing and (epoch is None or self._states[producer_id].epoch == epoch)

    def has_marker(self, identity: ProducerIdentity) -> bool:
        """Whether the marker of transaction version 2 with this epoch, or a later one, was written. A later transaction may be open.

        No batch with this epoch is accepted before that marker. Apache Kafka likewise refuses the marker of an epoch with an open
        transaction.
        """
        state = self._states.get(identity.producer_id)
        return state is not None and state.epoch >= identity.epoch

    def states(self) -> Iterator[tuple[int, ProducerState]]:
        """Producer ids and states, read-only."""
        return iter(self._states.items())

    def ongoing(self) -> Iterator[OngoingTransaction]:
        """Open transactions, oldest first."""
        for producer_id, first_offset in self._ongoing.items():
            state = self._states[producer_id]
            yield OngoingTransaction(producer_id, state.epoch, first_offset, state.last_used_ms)

    def last_entries(self) -> dict[int, tuple[int, int | None]]:
        """Producer id -> (epoch, last offset of its last batch here, or None if only a marker holds its epoch)."""
        return {
            producer_id: (state.epoch, state.batches[-1].last_offset if state.batches else None)
            for producer_id, state in self._states.items()
        }

    def find_duplicate(self, header: BatchHeader) -> StoredBatch | None:
        """The stored batch with the same producer, epoch, first and last sequence, if it is one of the last five."""
        state = self._states.get(header.producer_id)
        if state is None or state.epoch != header.producer_epoch:
            return None
        first_sequence = header.base_sequence
        for batch in state.batches:
            if batch.first_sequence == first_sequence and batch.last_sequence == header.last_sequence:
                return batch
        return None

    def expect(self, header: BatchHeader) -> None:
        """Record that a batch will begin a transaction here (Kafka: VerificationStateEntry). Until then a higher sequence may not begin
        one.

        Without this, an unknown producer could lose its first batch to a transient error and have its second one stored before it. Call it
        for identities that the coordinator has verified. The note is dropped together with the producer.
        """
        expected = self._expected.get(header.producer_id)
        if (
            expected is None
            or header.producer_epoch > expected.epoch
            or (header.producer_epoch == expected.epoch and header.base_sequence < expected.sequence)
        ):
            self._expected[header.producer_id] = _Expected(header.producer_epoch, header.base_sequence)

    def check(self, header: BatchHeader, *, unknown_begins_at_zero: bool = False) -> ProducerRefusal | None:
        """Check whether a client's batch may follow the stored ones; None if it may. The order of the checks is Kafka's.

        `unknown_begins_at_zero`: a producer without batches here must begin with sequence 0 (first batch of a transaction in version 2).
        """
        state = self._states.get(header.producer_id)
        if state is not None and header.producer_epoch < state.epoch:
            return self._fenced(header, state)
        if unknown_begins_at_zero and header.base_sequence != 0 and (state is None or not state.batches):
            return ProducerRefusal(
                codes.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"{_name(header)} sent sequence {header.base_sequence} first; in transaction version 2 it must be 0",
            )
        expected = self._expected.get(header.producer_id)
        if expected is not None and header.base_sequence > expected.sequence:
            return ProducerRefusal(
                codes.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"{_name(header)} sent sequence {header.base_sequence} while its transaction is to begin with {expected.sequence}",
            )
        if state is None:
            return None
        batches = state.batches
        next_sequence = sequence_add(batches[-1].last_sequence, 1) if batches and header.producer_epoch == state.epoch else 0
        if header.base_sequence != next_sequence and state.epoch != NO_EPOCH:
            return ProducerRefusal(
                codes.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"{_name(header)} sent sequence {header.base_sequence} where {next_sequence} must follow "
                f"(epoch {state.epoch} is stored up to sequence {state.last_sequence})",
            )
        if state.first_offset != NO_OFFSET and not header.is_transactional:
            return ProducerRefusal(
                codes.INVALID_TXN_STATE,
                f"{_name(header)} sent a batch outside its transaction, which is open since offset {state.first_offset}",
            )
        return None

    def check_marker(
        self, identity: ProducerIdentity, coordinator_epoch: int, *, needs_higher_epoch: bool = False
    ) -> ProducerRefusal | None:
        """Check whether a coordinator may end the transaction of `identity` here.

        `needs_higher_epoch`: markers of transaction version 2 have a higher epoch than the records (KIP-1228). A repeated marker with the
        same epoch is accepted if nothing is open.
        """
        state = self._states.get(identity.producer_id)
        if state is None:
            return None
        is_late = needs_higher_epoch and identity.epoch == state.epoch and state.first_offset != NO_OFFSET
        if identity.epoch < state.epoch or is_late:
            return ProducerRefusal(
                codes.INVALID_PRODUCER_EPOCH,
                f"marker for producer {identity.producer_id} has epoch {identity.epoch}, epoch {state.epoch} is stored",
            )
        if coordinator_epoch < state.coordinator_epoch:
            return ProducerRefusal(
                codes.TRANSACTION_COORDINATOR_FENCED,
                f"marker for producer {identity.producer_id} comes from coordinator epoch {coordinator_epoch}, "
                f"epoch {state.coordinator_epoch} is stored",
            )
        return None

    def append(self, header: BatchHeader, base_offset: int, steady_ms: int) -> None:
        """Record a data batch with a producer id, written at `base_offset`; `header.base_offset` is ignored."""
        state = self._states.get(header.producer_id)
        if state is None:
            state = self._states[header.producer_id] = ProducerState(header.producer_epoch, steady_ms)
        if self._expected:
            self._expected.pop(header.producer_id, None)
        if header.producer_epoch != state.epoch:
            state.set_epoch(header.producer_epoch)
        state.row = None
        state.last_used_ms = steady_ms
        state.last_timestamp = header.max_timestamp
        batches = state.batches
        if len(batches) == BATCHES_REMEMBERED:
            del batches[0]
        is_log_append_time = header.attributes & ATTRIBUTE_LOG_APPEND_TIME
        batches.append(
            StoredBatch(
                header.base_sequence,
                header.last_sequence,
                base_offset,
                base_offset + header.last_offset_delta,
                header.max_timestamp if is_log_append_time else NO_TIMESTAMP,
            )
        )
        if header.attributes & ATTRIBUTE_TRANSACTIONAL and state.first_offset == NO_OFFSET:
            state.first_offset = base_offset
            self._ongoing[header.producer_id] = base_offset

    def complete(
        self, identity: ProducerIdentity, *, is_commit: bool, coordinator_epoch: int, offset: int, timestamp: int, steady_ms: int
    ) -> CompletedTransaction | None:
        """Record a marker with this timestamp, written at `offset`. Returns the transaction that it ends, or None."""
        state = self._states.get(identity.producer_id)
        if state is None:
            state = self._states[identity.producer_id] = ProducerState(identity.epoch, steady_ms)
        state.set_epoch(identity.epoch)
        state.row = None
        state.coordinator_epoch = coordinator_epoch
        state.last_used_ms = steady_ms
        state.last_timestamp = timestamp
        self._expected.pop(identity.producer_id, None)
        first_offset, state.first_offset = state.first_offset, NO_OFFSET
        if self._ongoing.pop(identity.producer_id, None) is None:
            return None
        return CompletedTransaction(identity.producer_id, first_offset, offset, is_commit)

    def add_unknown(self, earlier: "ProducerSequences") -> None:
        """Add producers unknown here in their earlier state; their open transactions have ended by now."""
        earlier.forget_ongoing()
        self._states = earlier._states | self._states

    def forget_ongoing(self) -> None:
        """Forget open transactions after records were lost: their markers may be lost too. A transaction still open begins with its next
        record.
        """
        for producer_id in self._ongoing:
            state = self._states[producer_id]
            state.first_offset, state.row = NO_OFFSET, None
        self._ongoing.clear()

    def forget_idle(self, steady_ms: int, idle_ms_max: int) -> int:
        """Drop producers without an open transaction, last used at least `idle_ms_max` ago; returns how many."""
        idle = [
            producer_id
            for producer_id, state in self._states.items()
            if state.first_offset == NO_OFFSET and steady_ms - state.last_used_ms >= idle_ms_max
        ]
        for producer_id in idle:
            del self._states[producer_id]
        for producer_id in [producer_id for producer_id in self._expected if producer_id not in self._states]:
            del self._expected[producer_id]
        return len(idle)

    def to_rows(self, wall: WallTime) -> list[str]:
        """Snapshot rows, one JSON row per producer. Times are wall time, because steady time ends with the process.

        Only producers that wrote since the last call get a new row: there may be a hundred thousand.
        """
        if abs(wall.offset_ms - self._rows_offset_ms) >= ROW_TIMES_ERROR_MS_MAX:
            self._rows_offset_ms = wall.offset_ms
            for state in self._states.values():
                state.row = None
        return [state.row or state.rebuild_row(producer_id, wall) for producer_id, state in self._states.items()]

    @classmethod
    def from_rows(cls, rows: list[list[Any]], steady_ms: int) -> "ProducerSequences":
        """The inverse of `to_rows`, read as JSON at process start, when steady time equals wall time.

        Times of last use are limited to the current time, because the clock may have been set back. Rows of earlier versions lack the last
        timestamp.
        """
        sequences = cls()
        for producer_id, epoch, coordinator_epoch, last_used_ms, first_offset, batches, *later in rows:
            state = sequences._states[producer_id] = ProducerState(epoch, min(last_used_ms, steady_ms))
            state.coordinator_epoch = coordinator_epoch
            state.first_offset = first_offset
            state.batches = [StoredBatch(*batch) for batch in batches]
            state.last_timestamp = later[0] if later else last_used_ms
        ongoing = ((state.first_offset, producer_id) for producer_id, state in sequences._states.items() if state.first_offset != NO_OFFSET)
        sequences._ongoing = {producer_id: first_offset for first_offset, producer_id in sorted(ongoing)}
        return sequences

    def _fenced(self, header: BatchHeader, state: ProducerState) -> ProducerRefusal:
        return ProducerRefusal(
            codes.INVALID_PRODUCER_EPOCH, f"{_name(header)} is fenced: epoch {state.epoch} of the same producer has written here"
        )


def _name(header: BatchHeader) -> str:
    return f"producer {header.producer_id} epoch {header.producer_epoch}"
