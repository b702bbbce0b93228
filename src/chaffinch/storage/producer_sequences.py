"""What a partition knows of its producers: epochs, the last batches, open transactions.

Follows Kafka's `ProducerStateManager` and `ProducerAppendInfo` (KIP-98): the last five batches of a producer are remembered, so that a
batch sent again is recognised; a producer nobody knows may begin at any sequence; a marker with a higher epoch forgets the batches.
Nothing here checks records, and nothing is written: the log is the truth, and this is rebuilt from it.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.identifiers import NO_OFFSET, NO_TIMESTAMP, ProducerIdentity, sequence_add
from chaffinch.records.batch_header import ATTRIBUTE_LOG_APPEND_TIME, ATTRIBUTE_TRANSACTIONAL, BatchHeader
from chaffinch.storage.wall_time import WallTime

ROW_TIMES_ERROR_MS_MAX = 1000
"""Rows of a snapshot are kept until the wall clock was set by so much: they say when a producer was last used."""
BATCHES_REMEMBERED = 5
"""As many as a producer may have in flight (`max.in.flight.requests.per.connection` of an idempotent producer)."""
NO_EPOCH = -1


class StoredBatch(NamedTuple):
    """What a repeated batch is compared with, and answered from. `log_append_time_ms` is -1 where the producer set the time."""

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
    """A transaction whose marker has come. `last_offset` is the marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_commit: bool


class ProducerState:
    """One producer. `batches` in order of their offsets; `first_offset` of its open transaction, or -1.

    `last_used_ms` by the broker's steady time decides when it is idle; `last_timestamp` is that of its last record or marker, for tools.
    `row` is what a snapshot says of it, or None once that has changed.
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
        """-1 when no batch of this epoch is known, so that 0 comes next."""
        return self.batches[-1].last_sequence if self.batches else -1

    def set_epoch(self, epoch: int) -> None:
        """Another epoch numbers its batches anew."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches.clear()

    def rebuild_row(self, producer_id: int, wall: WallTime) -> str:
        """As JSON: a list of numbers, and among them one of lists. Written by hand, in a third of the time."""
        batches = ",".join([f"[{first},{last},{base},{end},{time}]" for first, last, base, end, time in self.batches])
        last_used_ms = wall.at(self.last_used_ms)
        numbers = f"{producer_id},{self.epoch},{self.coordinator_epoch},{last_used_ms},{self.first_offset}"
        self.row = f"[{numbers},[{batches}],{self.last_timestamp}]"
        return self.row


class _Expected(NamedTuple):
    """The lowest sequence with which a transaction wanted to begin here."""

    epoch: int
    sequence: int


class ProducerSequences:
    """All producers of one partition. `check` and `find_duplicate` only look; `append` and `complete` follow a write."""

    def __init__(self) -> None:
        self._expected: dict[int, _Expected] = {}
        self._states: dict[int, ProducerState] = {}
        self._rows_offset_ms = 0  # The wall clock's, when rows were last made all anew.
        self._ongoing: dict[int, int] = {}  # Producer id -> first offset; in order of the offsets, since transactions begin in that order.

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._states

    @property
    def first_ongoing_offset(self) -> int | None:
        """Where the oldest open transaction begins."""
        return next(iter(self._ongoing.values()), None)

    def has_ongoing(self, producer_id: int, epoch: int | None = None) -> bool:
        """Whether a transaction is open here; with `epoch`, whether this very epoch writes it."""
        return producer_id in self._ongoing and (epoch is None or self._states[producer_id].epoch == epoch)

    def has_marker(self, identity: ProducerIdentity) -> bool:
        """Whether the marker of transaction version 2 that brings this epoch was written, or one after it. What follows may be open.

        Nobody is let in under this epoch before it; as in Apache Kafka, which refuses the marker of an epoch that has something open.
        """
        state = self._states.get(identity.producer_id)
        return state is not None and state.epoch >= identity.epoch

    def states(self) -> Iterator[tuple[int, ProducerState]]:
        """Each producer id with what is known of it, to look at."""
        return iter(self._states.items())

    def ongoing(self) -> Iterator[OngoingTransaction]:
        """Open transactions, oldest first."""
        for producer_id, first_offset in self._ongoing.items():
            state = self._states[producer_id]
            yield OngoingTransaction(producer_id, state.epoch, first_offset, state.last_used_ms)

    def last_entries(self) -> dict[int, tuple[int, int | None]]:
        """Producer id -> (epoch, last offset of its last batch here, or None where only a marker has told its epoch)."""
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
        """A batch wants to begin a transaction here (Kafka: VerificationStateEntry). Until one does, none with a higher sequence may.

        Without this a producer nobody knows could lose its first batch to an error that passes, and have its second one stored before it.
        For identities that the coordinator vouches for; forgotten with the producer.
        """
        expected = self._expected.get(header.producer_id)
        if (
            expected is None
            or header.producer_epoch > expected.epoch
            or (header.producer_epoch == expected.epoch and header.base_sequence < expected.sequence)
        ):
            self._expected[header.producer_id] = _Expected(header.producer_epoch, header.base_sequence)

    def check(self, header: BatchHeader, *, unknown_begins_at_zero: bool = False) -> ProducerRefusal | None:
        """Whether a batch of a client may follow what is stored; None = it may. The order of the checks is Kafka's.

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
        """Whether a coordinator may end the transaction of `identity` here.

        `needs_higher_epoch`: markers of transaction version 2 have a higher epoch than the records (KIP-1228); the same one again is let
        through where nothing is open.
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
        """A batch of data with a producer id was written at `base_offset`; `header.base_offset` is not looked at."""
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
        """A marker with this timestamp was written at `offset`. None when there was nothing here to end."""
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
        """Take over producers of which nothing is known here, as they were earlier; what they had open then has ended since."""
        earlier.forget_ongoing()
        self._states = earlier._states | self._states

    def forget_ongoing(self) -> None:
        """Records are gone, and markers with them: what was open before may have ended. What is still open begins with its next record."""
        for producer_id in self._ongoing:
            state = self._states[producer_id]
            state.first_offset, state.row = NO_OFFSET, None
        self._ongoing.clear()

    def forget_idle(self, steady_ms: int, idle_ms_max: int) -> int:
        """Drop producers without an open transaction that were last seen `idle_ms_max` ago or earlier; returns how many."""
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
        """For a snapshot: one row per producer, as JSON. Times are the wall clock's: steady time ends with the process. Only those that
        wrote since the last time are made anew: there may be a hundred thousand."""
        if abs(wall.offset_ms - self._rows_offset_ms) >= ROW_TIMES_ERROR_MS_MAX:
            self._rows_offset_ms = wall.offset_ms
            for state in self._states.values():
                state.row = None
        return [state.row or state.rebuild_row(producer_id, wall) for producer_id, state in self._states.items()]

    @classmethod
    def from_rows(cls, rows: list[list[Any]], steady_ms: int) -> "ProducerSequences":
        """The inverse of `to_rows`, read as JSON, when a process starts, that is, while steady time is that of the wall clock. Nobody was
        last seen after `steady_ms`, even if the clock was set back since. Earlier versions wrote no last timestamps."""
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
            codes.INVALID_PRODUCER_EPOCH, f"{_name(header)} is fenced: epoch {state.epoch} of the same producer has written here since"
        )


def _name(header: BatchHeader) -> str:
    return f"producer {header.producer_id} epoch {header.producer_epoch}"
