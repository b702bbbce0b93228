"""Producer epochs and sequences, step by step: each table is the history of one producer in one partition, as in Kafka's
ProducerStateManager."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.identifiers import SEQUENCE_MODULUS, ProducerIdentity
from chaffinch.records.batch import BatchHeader, TimestampType
from chaffinch.records.batch_header import ATTRIBUTE_LOG_APPEND_TIME, ATTRIBUTE_TRANSACTIONAL
from chaffinch.storage.producer_sequences import CompletedTransaction, OngoingTransaction, ProducerSequences, StoredBatch
from chaffinch.storage.wall_time import WallTime

PRODUCER = 7
LAST = SEQUENCE_MODULUS - 1
STALE, GAP, STATE, COORDINATOR = (
    codes.INVALID_PRODUCER_EPOCH,
    codes.OUT_OF_ORDER_SEQUENCE_NUMBER,
    codes.INVALID_TXN_STATE,
    codes.TRANSACTION_COORDINATOR_FENCED,
)


def header(
    sequence: int, count: int = 1, *, epoch: int = 0, producer: int = PRODUCER, transactional: bool = False, attributes: int = 0
) -> BatchHeader:
    attributes |= ATTRIBUTE_TRANSACTIONAL if transactional else 0
    return BatchHeader(0, 49, -1, 2, 0, attributes, count - 1, 0, 1234, producer, epoch, sequence, count)


class Partition:
    """The sequences of one partition with its log's end."""

    def __init__(self) -> None:
        self.sequences = ProducerSequences()
        self.end = 0

    def send(self, batch: BatchHeader) -> ErrorCode | None:
        refusal = self.sequences.check(batch)
        if refusal is not None:
            assert str(batch.producer_id) in refusal.message
            return refusal.code
        self.sequences.append(batch, self.end, steady_ms=50)
        self.end += batch.last_offset_delta + 1
        return None

    def mark(self, *, epoch: int = 0, commit: bool = True, coordinator: int = 0) -> ErrorCode | CompletedTransaction | None:
        identity = ProducerIdentity(PRODUCER, epoch)
        refusal = self.sequences.check_marker(identity, coordinator)
        if refusal is not None:
            assert str(PRODUCER) in refusal.message
            return refusal.code
        self.end += 1
        return self.sequences.complete(
            identity, is_commit=commit, coordinator_epoch=coordinator, offset=self.end - 1, timestamp=1300, steady_ms=60
        )


# Per case: (sequence, count, epoch, expected code) one after the other.
LIVES = {
    "sequences follow each other": [(0, 3, 0, None), (3, 1, 0, None), (4, 2, 0, None)],
    "an unknown producer begins anywhere": [(17, 2, 3, None), (19, 1, 3, None)],
    "a gap": [(0, 3, 0, None), (4, 1, 0, GAP), (3, 1, 0, None)],
    "a partial overlap is not a duplicate": [(0, 3, 0, None), (2, 2, 0, GAP)],
    "a new epoch begins at 0": [(0, 3, 0, None), (3, 1, 1, GAP), (0, 1, 1, None), (1, 1, 1, None)],
    "an old epoch is fenced": [(0, 1, 4, None), (1, 1, 3, STALE), (0, 1, 3, STALE)],
    "an epoch of -1 is none and numbers nothing": [(5, 1, -1, None), (2, 1, -1, None), (7, 1, 0, None), (9, 1, 0, GAP)],
    "wrap at the last sequence": [(LAST, 1, 0, None), (0, 1, 0, None)],
    "wrap inside a batch": [(LAST - 1, 4, 0, None), (2, 1, 0, None)],
    "no sequence beyond the wrap": [(LAST, 1, 0, None), (1, 1, 0, GAP)],
}


@pytest.mark.parametrize("life", LIVES.values(), ids=LIVES.keys())
def test_sequences_of_one_producer_are_checked(life: list[tuple[int, int, int, ErrorCode | None]]) -> None:
    partition = Partition()
    for sequence, count, epoch, expected in life:
        assert partition.send(header(sequence, count, epoch=epoch)) is expected


def test_producers_are_independent() -> None:
    partition = Partition()
    assert partition.send(header(0, 5)) is None
    assert partition.send(header(90, producer=8)) is None
    assert partition.send(header(5)) is None
    assert len(partition.sequences) == 2
    assert 8 in partition.sequences


class TestDuplicates:
    def test_last_five_batches_are_duplicates(self) -> None:
        partition = Partition()
        for sequence in range(0, 14, 2):
            partition.send(header(sequence, 2))
        found = [partition.sequences.find_duplicate(header(sequence, 2)) for sequence in range(0, 16, 2)]
        assert found == [None, None, *(StoredBatch(at, at + 1, at, at + 1, -1) for at in range(4, 14, 2)), None]

    @pytest.mark.parametrize(
        "other",
        [header(0, 4), header(1, 2), header(0, 3, epoch=1), header(0, 3, producer=8)],
        ids=["longer", "overlap", "epoch", "producer"],
    )
    def test_duplicate_must_match_in_every_field(self, other: BatchHeader) -> None:
        partition = Partition()
        partition.send(header(0, 3))
        assert partition.sequences.find_duplicate(other) is None
        assert partition.sequences.find_duplicate(header(0, 3)) is not None

    def test_duplicate_is_found_across_the_sequence_wrap(self) -> None:
        partition = Partition()
        partition.send(header(LAST, 2))
        assert partition.sequences.find_duplicate(header(LAST, 2)) == StoredBatch(LAST, 0, 0, 1, -1)

    def test_duplicate_returns_its_log_append_time(self) -> None:
        partition = Partition()
        batch = header(0, attributes=ATTRIBUTE_LOG_APPEND_TIME)
        assert batch.timestamp_type is TimestampType.LOG_APPEND_TIME
        partition.send(batch)
        found = partition.sequences.find_duplicate(batch)
        assert found is not None
        assert found.log_append_time_ms == 1234


class TestTransactions:
    def test_a_transaction_opens_with_its_first_batch_and_ends_with_its_marker(self) -> None:
        partition = Partition()
        partition.send(header(0, 3, producer=8))
        partition.send(header(0, 2, transactional=True))
        partition.send(header(2, 2, transactional=True))
        assert list(partition.sequences.ongoing()) == [OngoingTransaction(PRODUCER, 0, 3, 50)]
        assert partition.sequences.has_ongoing(PRODUCER)
        assert not partition.sequences.has_ongoing(8)
        assert partition.sequences.first_ongoing_offset == 3
        assert partition.mark(commit=False) == CompletedTransaction(PRODUCER, 3, 7, False)
        assert partition.sequences.first_ongoing_offset is None

    def test_the_oldest_open_transaction_comes_first(self) -> None:
        partition = Partition()
        partition.send(header(0, producer=9, transactional=True))
        partition.send(header(0, transactional=True))
        partition.send(header(0, producer=8, transactional=True))
        assert [open_.producer_id for open_ in partition.sequences.ongoing()] == [9, PRODUCER, 8]
        partition.mark()
        assert [open_.producer_id for open_ in partition.sequences.ongoing()] == [9, 8]

    def test_sequences_continue_across_transactions_of_one_epoch(self) -> None:
        partition = Partition()
        assert partition.send(header(0, 2, transactional=True)) is None
        partition.mark()
        assert partition.send(header(0, 1, transactional=True)) is GAP
        assert partition.send(header(2, 1, transactional=True)) is None

    def test_marker_with_a_higher_epoch_resets_the_sequence(self) -> None:
        """Kafka's testOutOfSequenceAfterControlRecordEpochBump."""
        partition = Partition()
        partition.send(header(0, 2, transactional=True))
        assert partition.mark(epoch=1) == CompletedTransaction(PRODUCER, 0, 2, True)
        assert partition.send(header(2, transactional=True)) is STALE
        assert partition.send(header(2, epoch=1, transactional=True)) is GAP
        assert partition.send(header(0, epoch=1, transactional=True)) is None

    def test_marker_of_an_unknown_producer_sets_its_epoch(self) -> None:
        partition = Partition()
        assert partition.mark(epoch=3) is None
        assert partition.send(header(5, epoch=3)) is GAP
        assert partition.send(header(0, epoch=2)) is STALE
        assert partition.send(header(0, epoch=3)) is None

    def test_a_marker_without_data_completes_nothing(self) -> None:
        partition = Partition()
        partition.send(header(0))
        assert partition.mark(commit=False) is None

    def test_non_transactional_batch_inside_a_transaction_is_refused(self) -> None:
        partition = Partition()
        partition.send(header(0, transactional=True))
        assert partition.send(header(1)) is STATE
        partition.mark()
        assert partition.send(header(1)) is None

    @pytest.mark.parametrize(("epoch", "coordinator", "expected"), [(1, 5, STALE), (2, 4, COORDINATOR), (2, 5, None), (3, 6, None)])
    def test_stale_marker_is_refused(self, epoch: int, coordinator: int, expected: ErrorCode | None) -> None:
        partition = Partition()
        partition.mark(epoch=2, coordinator=5)
        assert partition.mark(epoch=epoch, coordinator=coordinator) is expected


def test_idle_producers_are_forgotten_but_not_their_transactions() -> None:
    partition = Partition()
    partition.send(header(0, producer=8))
    partition.send(header(0, transactional=True))
    assert partition.sequences.forget_idle(steady_ms=149, idle_ms_max=100) == 0
    assert partition.sequences.forget_idle(steady_ms=150, idle_ms_max=100) == 1
    assert 8 not in partition.sequences
    assert partition.sequences.has_ongoing(PRODUCER)
    assert partition.send(header(77, producer=8)) is None


def rows_of(sequences: ProducerSequences, wall_ahead_ms: int = 0) -> list[Any]:
    return [json.loads(row) for row in sequences.to_rows(WallTime(offset_ms=wall_ahead_ms))]


def test_snapshot_rows_restore_everything() -> None:
    partition = Partition()
    for sequence in range(7):
        partition.send(header(sequence, producer=9))
    partition.send(header(0, producer=12, transactional=True))
    partition.send(header(0, transactional=True))
    partition.mark(epoch=1, coordinator=3)
    partition.send(header(0, epoch=1, transactional=True))
    rows = rows_of(partition.sequences)
    back = ProducerSequences.from_rows(rows, steady_ms=70)
    assert rows_of(back) == rows
    assert list(back.ongoing()) == list(partition.sequences.ongoing())
    assert back.find_duplicate(header(4, producer=9)) == partition.sequences.find_duplicate(header(4, producer=9))


def test_a_snapshot_keeps_the_oldest_transaction_first() -> None:
    """Not the producer that was seen first: the last stable offset follows from the oldest transaction."""
    partition = Partition()
    partition.send(header(0, producer=9))
    partition.send(header(0, producer=8, transactional=True))
    partition.send(header(1, producer=9, transactional=True))
    back = ProducerSequences.from_rows(rows_of(partition.sequences), steady_ms=70)
    assert back.first_ongoing_offset == partition.sequences.first_ongoing_offset == 1


def test_snapshot_rows_store_last_seen_in_wall_time() -> None:
    """Steady time ends with the process. No producer was seen after the start of the next one, though the clock may have been set back."""
    partition = Partition()
    partition.send(header(0))
    rows = rows_of(partition.sequences, 1000)
    for steady_ms, is_idle in ((1149, False), (1150, True)):
        assert ProducerSequences.from_rows(rows, steady_ms=steady_ms).forget_idle(steady_ms, 100) == is_idle
    late = ProducerSequences.from_rows(rows, steady_ms=500)
    assert [late.forget_idle(steady_ms, 100) for steady_ms in (599, 600)] == [0, 1]


def test_rows_are_reused_until_the_producer_changes() -> None:
    """A hundred thousand producers of which few write: each snapshot wrote all of them again."""
    partition = Partition()
    partition.send(header(0, producer=9))
    partition.send(header(0, transactional=True))
    kept, before = partition.sequences.to_rows(WallTime())
    changes: list[Callable[[], object]] = [
        lambda: partition.send(header(1, transactional=True)),
        lambda: partition.sequences.forget_ongoing(),
        lambda: partition.send(header(2, transactional=True)),
        lambda: partition.mark(epoch=0),
        lambda: partition.mark(epoch=1, coordinator=3),
        lambda: partition.send(header(0, epoch=2)),
    ]
    for change in changes:
        change()
        other, now = partition.sequences.to_rows(WallTime(offset_ms=999))
        assert other is kept
        assert now != before
        assert rows_of(ProducerSequences.from_rows([json.loads(now)], steady_ms=2000)) == [json.loads(now)]
        assert partition.sequences.to_rows(WallTime(offset_ms=999))[1] is now
        before = now


def test_rows_follow_a_wall_clock_change() -> None:
    partition = Partition()
    partition.send(header(0))
    (before,) = rows_of(partition.sequences)
    for offset_ms, shown in ((999, 0), (1000, 1000), (5000, 5000), (4001, 5000), (4000, 4000)):
        (row,) = rows_of(partition.sequences, offset_ms)
        assert row[3] - before[3] == shown


def test_a_snapshot_of_an_earlier_version_is_read() -> None:
    """Without the last timestamp, which tools are shown: then it is when the producer was last seen."""
    row = [PRODUCER, 2, 0, 50, 4, [[0, 0, 4, 4, -1]]]
    back = ProducerSequences.from_rows([row], steady_ms=50)
    assert rows_of(back) == [[*row, 50]]
    assert [entry.first_offset for entry in back.ongoing()] == [4]


# (what wanted to begin: (sequence, epoch)...), then (sequence, epoch) that comes, and what it gets
BEGINNINGS = {
    "the very one": ([(3, 0)], (3, 0), None),
    "one behind it": ([(3, 0)], (4, 0), GAP),
    "one before it": ([(3, 0)], (2, 0), None),
    "the lowest counts": ([(3, 0), (1, 0), (2, 0)], (2, 0), GAP),
    "a higher epoch restarts": ([(1, 0), (5, 1)], (5, 1), None),
    "a lower epoch changes nothing": ([(5, 1), (0, 0)], (5, 1), None),
}


class TestBeginningsOfTransactions:
    """What Kafka keeps in a VerificationStateEntry."""

    @pytest.mark.parametrize(("expected_first", "comes", "expected"), BEGINNINGS.values(), ids=BEGINNINGS.keys())
    def test_expected_sequences_begin_a_transaction(
        self, expected_first: list[tuple[int, int]], comes: tuple[int, int], expected: ErrorCode | None
    ) -> None:
        partition = Partition()
        for sequence, epoch in expected_first:
            partition.sequences.expect(header(sequence, epoch=epoch, transactional=True))
        assert partition.send(header(comes[0], epoch=comes[1], transactional=True)) is expected

    def test_expectation_is_dropped_once_a_batch_is_stored(self) -> None:
        partition = Partition()
        partition.sequences.expect(header(3))
        assert [partition.send(header(sequence)) for sequence in (4, 3, 4)] == [GAP, None, None]

    def test_expectation_is_dropped_with_the_transaction(self) -> None:
        partition = Partition()
        partition.send(header(0, 3))
        partition.sequences.expect(header(2))
        assert partition.send(header(3)) is GAP
        partition.mark()
        assert partition.send(header(3)) is None

    def test_expectation_is_dropped_with_the_idle_producer(self) -> None:
        partition = Partition()
        partition.sequences.expect(header(3))
        partition.sequences.forget_idle(steady_ms=1000, idle_ms_max=10)
        assert partition.send(header(4)) is None

    def test_an_unknown_producer_of_version_2_begins_at_zero(self) -> None:
        partition = Partition()
        refusal = partition.sequences.check(header(1), unknown_begins_at_zero=True)
        assert refusal is not None
        assert refusal.code is GAP
        assert partition.sequences.check(header(0), unknown_begins_at_zero=True) is None
        partition.send(header(0))
        assert partition.sequences.check(header(1), unknown_begins_at_zero=True) is None
        partition.mark(epoch=1)
        assert partition.sequences.check(header(1, epoch=1), unknown_begins_at_zero=True) is not None

    def test_transaction_is_ongoing_only_in_its_epoch(self) -> None:
        partition = Partition()
        partition.send(header(0, transactional=True))
        assert partition.sequences.has_ongoing(PRODUCER, 0)
        assert not partition.sequences.has_ongoing(PRODUCER, 1)


class TestMarkersOfVersion2:
    @pytest.mark.parametrize(("epoch", "expected"), [(0, STALE), (1, None), (-1, STALE)])
    def test_an_open_transaction_needs_a_higher_epoch(self, epoch: int, expected: ErrorCode | None) -> None:
        partition = Partition()
        partition.send(header(0, transactional=True))
        refusal = partition.sequences.check_marker(ProducerIdentity(PRODUCER, epoch), 0, needs_higher_epoch=True)
        assert (refusal.code if refusal else None) is expected

    def test_repeated_marker_is_recognized(self) -> None:
        partition = Partition()
        partition.send(header(0, transactional=True))
        marker = ProducerIdentity(PRODUCER, 1)
        assert not partition.sequences.has_marker(marker)
        partition.mark(epoch=1)
        assert partition.sequences.has_marker(marker)
        assert partition.sequences.check_marker(marker, 0, needs_higher_epoch=True) is None
        partition.send(header(0, epoch=1))
        assert partition.sequences.has_marker(marker), "the next transaction begins behind it"
        partition.send(header(1, epoch=1, transactional=True))
        assert partition.sequences.has_marker(marker)
