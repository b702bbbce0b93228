"""Each checker against hand-made facts: valid ones give no line, each kind of invalid one gives the right line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from chaffinch.errors import (
    InvalidRecordException,
    InvalidTimestampException,
    Stored,
    TimeoutException,
    UnknownTopicIdException,
    UnknownTopicOrPartitionException,
)
from chaffinch.identifiers import ProducerIdentity, TopicPartition
from chaffinch.producer.core.exception_handler import RetriableResponse
from chaffinch.spark.snapshot import TopicSnapshot
from simulation import checkers
from simulation.log_reader import LogContents, LogRecord, Marker
from simulation.programs.programs import Fate, Ledger, SentRecord, Transaction
from simulation.queries.query import Query, Row
from simulation.records import Fault, Record

TP, OTHER, DEAD = TopicPartition("plain", 0), TopicPartition("plain", 1), TopicPartition("dead", 0)
FIRST, SECOND = ProducerIdentity(1, 0), ProducerIdentity(2, 0)


def log(*records: LogRecord, markers: tuple[Marker, ...] = (), end: int | None = None, stable: int | None = None) -> LogContents:
    end = len(records) + len(markers) if end is None else end
    return LogContents(
        records=list(records), markers=list(markers), last_stable_offset=end if stable is None else stable, log_end_offset=end
    )


def compacted(one: LogContents) -> dict[TopicPartition, LogContents]:
    return {TP: replace(one, is_compacted=True)}


def removed_by_compaction(*entries: SentRecord, found: LogContents, transactions: tuple[Transaction, ...] = ()) -> set[int]:
    return set(checkers.compacted_records([ledger(*entries, transactions=transactions)], compacted(found)))


def at(
    offset: int, number: int, identity: ProducerIdentity = FIRST, sequence: int | None = None, *, is_transactional: bool = False
) -> LogRecord:
    return LogRecord(offset, number, identity, offset if sequence is None else sequence, is_transactional)


def sent(number: int, *outcomes: Any, serial: int | None = None, fault: Fault | None = None, **facts: Any) -> SentRecord:
    """`outcomes`: offsets and errors."""
    record = Record(number=number, topic_partition=TP, key=b"k", value=b"v", timestamp_ms=0, fault=fault)
    return SentRecord(
        record=record,
        sender="p.1",
        serial=number if serial is None else serial,
        offsets=[outcome for outcome in outcomes if isinstance(outcome, int)],
        errors=[outcome for outcome in outcomes if not isinstance(outcome, int)],
        **facts,
    )


def ledger(*entries: SentRecord, transactions: tuple[Transaction, ...] = ()) -> Ledger:
    return Ledger(name="p", sent={entry.record.number: entry for entry in entries}, transactions=list(transactions))


def unanswered(outcome: SentRecord, offset: int) -> Iterator[str]:
    """What is said of the group's `offset` after a commit, number 0, and one without an answer, number 7, which had `outcome` as its one
    record."""
    first = transaction(Fate.COMMITTED, has_offsets=True)
    second = transaction(Fate.COMMITTING, outcome.record.number, has_offsets=True, number=7)
    return checkers.offsets_follow_transactions(ledger(outcome, transactions=(first, second)), {}, offset)


def row(number: int, *, is_bad: bool = False) -> Row:
    return Row(number=number, topic_partition=TP, key=b"k", value=b"v", timestamp_ms=0, is_bad=is_bad)


def query(*rows: Row, **fields: Any) -> Query:
    target = TopicSnapshot(topic="dead", topic_id=bytes(16), partition_count=1)
    return Query(name="q", batches=[[list(rows)]], marker_partition=TP, dead_letter_target=target, **fields)


LOST = TimeoutException("late", stored=Stored.POSSIBLY)
DELETED = UnknownTopicIdException("created again", stored=Stored.POSSIBLY)
NOT_STORED = TimeoutException("late", stored=Stored.NO)
COMMIT, ABORT = Marker(2, FIRST, True), Marker(2, FIRST, False)
IN_TRANSACTION = (at(0, 7, is_transactional=True), at(1, 8, SECOND))


def transaction(fate: Fate, *records: int, has_offsets: bool = False, number: int = 0) -> Transaction:
    return Transaction(number, fate, list(records), has_offsets)


def logs(one: LogContents) -> dict[TopicPartition, LogContents]:
    return {TP: one}


TRIMMED = replace(log(at(0, 7), at(1, 8)), log_start_offset=1)


def blamed_unknown(*, handler_response: RetriableResponse | None = None, ended_ms: int = 99) -> Iterator[str]:
    """A record that failed after `ended_ms` because its topic was unknown; its producer has delivery.timeout.ms of 100."""
    error = UnknownTopicOrPartitionException("x", stored=Stored.NO)
    entry = sent(7, error, handler_response=handler_response, ended_ms=ended_ms)
    return checkers.only_culprits_are_blamed(replace(ledger(entry), delivery_timeout_ms=100), set())


GOOD: list[tuple[str, Callable[[], Iterator[str]]]] = [
    ("decided", lambda: checkers.logs_are_decided(logs(log(at(0, 7))))),
    ("survives", lambda: checkers.logs_survive_a_death(logs(log(at(0, 7))), logs(log(at(0, 7))))),
    ("dense", lambda: checkers.offsets_are_dense(logs(log(*IN_TRANSACTION, markers=(COMMIT,))))),
    ("sequences of two epochs", lambda: checkers.sequences_ascend(logs(log(at(0, 7), at(1, 8, FIRST._replace(epoch=1), 0))))),
    ("committed", lambda: checkers.readers_agree("r", {TP: list(IN_TRANSACTION)}, logs(log(*IN_TRANSACTION, markers=(COMMIT,))))),
    ("aborted", lambda: checkers.readers_agree("r", {TP: [IN_TRANSACTION[1]]}, logs(log(*IN_TRANSACTION, markers=(ABORT,))))),
    (
        "ends once",
        lambda: checkers.every_record_has_one_outcome(ledger(sent(7, 0), sent(8, LOST), sent(9, is_orphan=True), sent(10, drops=1))),
    ),
    ("dropped", lambda: checkers.only_culprits_are_blamed(ledger(sent(7, drops=1, fault=Fault.NULL_KEY)), set())),
    (
        "whole but for what was dropped",
        lambda: checkers.transactions_are_atomic(
            ledger(sent(7, 0), sent(8, drops=1), transactions=(transaction(Fate.COMMITTED, 7, 8),)), {TP: [at(0, 7)]}
        ),
    ),
    (
        "true",
        lambda: checkers.outcomes_match_the_logs(ledger(sent(7, 0), sent(8, LOST), sent(9, NOT_STORED)), logs(log(at(0, 7), at(1, 8)))),
    ),
    ("offset not reported", lambda: checkers.outcomes_match_the_logs(ledger(sent(7, -1)), logs(log(at(0, 7))))),
    ("blamed", lambda: checkers.only_culprits_are_blamed(ledger(sent(7, InvalidTimestampException("x"), fault=Fault.FUTURE)), set())),
    ("accused", lambda: checkers.only_culprits_are_blamed(ledger(sent(7, InvalidRecordException("x"))), {7})),
    ("the end lost", lambda: checkers.power_loss_takes_only_the_unflushed_end(logs(log(at(0, 7), at(1, 8))), logs(log(at(0, 7))), {TP: 1})),
    (
        "compacted since",
        lambda: checkers.power_loss_takes_only_the_unflushed_end(compacted(log(at(0, 7), at(1, 8))), logs(log(at(1, 8), end=2)), {TP: 2}),
    ),
    ("topics that stay", lambda: checkers.topics_survive_power_loss({"orders": UUID(int=1)}, {"orders": UUID(int=1)})),
    ("well in the end", lambda: checkers.final_records_are_acknowledged(ledger(sent(7, 0), sent(8, LOST)), {7, 9})),
    ("interrupted", lambda: checkers.final_records_are_acknowledged(ledger(sent(7, DELETED, was_interrupted=True)), {7})),
    ("in order", lambda: checkers.order_is_preserved(ledger(sent(7), sent(8)), logs(log(at(0, 7), at(1, 8))))),
    (
        "whole",
        lambda: checkers.transactions_are_atomic(
            ledger(sent(7, 0), sent(8, 1), transactions=(transaction(Fate.COMMITTED, 7, 8),)), {TP: [at(0, 7), at(1, 8)]}
        ),
    ),
    (
        "unknown, nothing",
        lambda: checkers.transactions_are_atomic(ledger(sent(7, 0), transactions=(transaction(Fate.COMMITTING, 7),)), {TP: []}),
    ),
    (
        "offset",
        lambda: checkers.offsets_follow_transactions(
            ledger(transactions=(transaction(Fate.COMMITTED, 7, has_offsets=True), transaction(Fate.ABORTED, has_offsets=True, number=1))),
            {},
            0,
        ),
    ),
    ("offsets of a commit without an answer, whose record was dropped: 7", lambda: unanswered(sent(7, drops=1), 7)),
    ("and the one before it", lambda: unanswered(sent(7, drops=1), 0)),
    ("the offset before a commit whose record is not visible", lambda: unanswered(sent(7, LOST), 0)),
    ("gaps of a compacted log", lambda: checkers.offsets_are_dense(compacted(log(at(0, 7), at(2, 8), end=4)))),
    ("compacted since", lambda: checkers.readers_agree("r", {TP: [at(0, 7), at(1, 8)]}, compacted(log(at(1, 8), end=2)))),
    ("compacted after", lambda: checkers.logs_survive_a_death(compacted(log(at(0, 7), at(1, 8))), compacted(log(at(1, 8), end=2)))),
    ("taken away", lambda: checkers.outcomes_match_the_logs(ledger(sent(7, 0)), compacted(log(end=1)), {7})),
    (
        "all but what is away",
        lambda: checkers.transactions_are_atomic(
            ledger(sent(7, 0), sent(8, 1), transactions=(transaction(Fate.COMMITTED, 7, 8),)), {TP: [at(1, 8)]}, {7}
        ),
    ),
    ("rows", lambda: checkers.rows_are_written_once(query(row(7), row(8, is_bad=True)), {TP: [at(0, 7)], DEAD: [at(0, 8)]})),
    ("rows in order", lambda: checkers.rows_are_in_order(query(row(7), row(8)), {TP: [at(0, 7), at(1, 8)]})),
    ("dead letter file", lambda: checkers.dead_letter_files_are_complete(query(row(7), row(8, is_bad=True), dead_rows={0: 1}))),
    (
        "dead letter file of whom",
        lambda: checkers.dead_letter_files_are_complete(
            query(row(8, is_bad=True), dead_rows={0: 1}, dead_rows_of={0: "q.1"}, written_by={0: "q.1"})
        ),
    ),
    ("no dead letter file", lambda: checkers.dead_letter_files_are_complete(query(row(7)))),
    (
        "went with its topic",
        lambda: checkers.outcomes_match_the_logs(ledger(sent(7, 1)), logs(log()), deleted=[logs(log(at(0, 8), at(1, 7)))]),
    ),
    (
        "in the topic and the next",
        lambda: checkers.outcomes_match_the_logs(ledger(sent(7, 0)), logs(log(at(0, 7))), deleted=[logs(log(at(3, 7)))]),
    ),
    ("while it was there", lambda: checkers.records_stay_in_their_topic(ledger(sent(7, 0, ended_ms=9)), [(9, logs(log(at(0, 7))))])),
    ("gone before it was read", lambda: checkers.readers_agree("r", {TP: [at(1, 8)]}, logs(TRIMMED))),
    ("gone since", lambda: checkers.readers_agree("r", {TP: [at(0, 7), at(1, 8)]}, logs(TRIMMED))),
    ("unknown, says the handler", lambda: blamed_unknown(handler_response=RetriableResponse.FAIL)),
    ("unknown for too long", lambda: blamed_unknown(ended_ms=100)),
    (
        "dropped, says the handler",
        lambda: checkers.only_culprits_are_blamed(ledger(sent(7, drops=1, handler_response=RetriableResponse.SWALLOW)), set()),
    ),
]

BAD: list[tuple[str, Callable[[], Iterator[str]]]] = [
    ("stays at 0", lambda: checkers.logs_are_decided(logs(log(at(0, 7), stable=0)))),
    ("spanned (0, 1), after", lambda: checkers.logs_survive_a_death(logs(log(at(0, 7))), logs(log()))),
    ("2 records and markers over 3", lambda: checkers.offsets_are_dense(logs(log(at(0, 7), at(2, 8), end=3)))),
    ("2 records and markers over 2", lambda: checkers.offsets_are_dense(compacted(log(at(1, 7), at(1, 8), end=2)))),
    ("missing offsets [1]", lambda: checkers.readers_agree("r", {TP: [at(0, 7)]}, compacted(log(at(1, 8), end=2)))),
    ("spanned (0, 2), after", lambda: checkers.logs_survive_a_death(compacted(log(at(1, 8), end=2)), compacted(log(at(0, 7), at(1, 8))))),
    ("has sequence 0 after 0", lambda: checkers.sequences_ascend(logs(log(at(0, 7), at(1, 8, sequence=0))))),
    (
        "missing offsets [0]",
        lambda: checkers.readers_agree("r", {TP: [IN_TRANSACTION[1]]}, logs(log(*IN_TRANSACTION, markers=(COMMIT,)))),
    ),
    ("too many [0]", lambda: checkers.readers_agree("r", {TP: list(IN_TRANSACTION)}, logs(log(*IN_TRANSACTION, markers=(ABORT,))))),
    ("too many [0]", lambda: checkers.readers_agree("r", {TP: list(IN_TRANSACTION)}, logs(log(*IN_TRANSACTION)))),
    ("has 2 outcomes", lambda: checkers.every_record_has_one_outcome(ledger(sent(7, 0, LOST)))),
    ("has 0 outcomes", lambda: checkers.every_record_has_one_outcome(ledger(sent(7)))),
    ("is not there", lambda: checkers.outcomes_match_the_logs(ledger(sent(7, 0)), logs(log()))),
    ("and is at 1", lambda: checkers.outcomes_match_the_logs(ledger(sent(7, 0)), logs(log(at(1, 7))))),
    ("stored 2 times", lambda: checkers.outcomes_match_the_logs(ledger(sent(7, LOST)), logs(log(at(0, 7), at(1, 7))))),
    ("for plain-0 is in", lambda: checkers.outcomes_match_the_logs(ledger(sent(7, LOST)), {OTHER: log(at(0, 7))})),
    ("failed as not stored", lambda: checkers.outcomes_match_the_logs(ledger(sent(7, NOT_STORED)), logs(log(at(0, 7))))),
    ("is bad, null key", lambda: checkers.outcomes_match_the_logs(ledger(sent(7, LOST, fault=Fault.NULL_KEY)), logs(log(at(0, 7))))),
    ("was dropped and is stored", lambda: checkers.outcomes_match_the_logs(ledger(sent(7, drops=1)), logs(log(at(0, 7))))),
    ("has 2 outcomes", lambda: checkers.every_record_has_one_outcome(ledger(sent(7, 0, drops=1)))),
    ("innocent and was dropped", lambda: checkers.only_culprits_are_blamed(ledger(sent(7, drops=1)), set())),
    ("is innocent", lambda: checkers.only_culprits_are_blamed(ledger(sent(7, InvalidTimestampException("x"))), set())),
    (
        "for something else",
        lambda: checkers.only_culprits_are_blamed(ledger(sent(7, InvalidTimestampException("x"), fault=Fault.NULL_KEY)), set()),
    ),
    ("sent later", lambda: checkers.order_is_preserved(ledger(sent(7), sent(8)), logs(log(at(0, 8), at(1, 7))))),
    (
        "1 of its 2 records",
        lambda: checkers.transactions_are_atomic(
            ledger(sent(7, 0), sent(8, 1), transactions=(transaction(Fate.COMMITTING, 7, 8),)), {TP: [at(0, 7)]}
        ),
    ),
    (
        "were not acknowledged",
        lambda: checkers.transactions_are_atomic(ledger(sent(7, LOST), transactions=(transaction(Fate.COMMITTED, 7),)), {TP: [at(0, 7)]}),
    ),
    (
        "(aborted): 1 of its 1",
        lambda: checkers.transactions_are_atomic(ledger(sent(7, 0), transactions=(transaction(Fate.ABORTED, 7),)), {TP: [at(0, 7)]}),
    ),
    (
        "the committed offset is 1",
        lambda: checkers.offsets_follow_transactions(
            ledger(transactions=(transaction(Fate.COMMITTED, 7, has_offsets=True), transaction(Fate.ABORTED, has_offsets=True, number=1))),
            {},
            1,
        ),
    ),
    ("is 7, its transactions allow [0]", lambda: unanswered(sent(7, LOST), 7)),
    ("is in plain-0, plain-0", lambda: checkers.rows_are_written_once(query(row(7)), {TP: [at(0, 7), at(1, 7)]})),
    ("is in no partition", lambda: checkers.rows_are_written_once(query(row(7)), {TP: []})),
    ("dead letters 0 times", lambda: checkers.rows_are_written_once(query(row(7, is_bad=True)), {TP: []})),
    ("dead letters 1 times, innocent", lambda: checkers.rows_are_written_once(query(row(7)), {TP: [at(0, 7)], DEAD: [at(0, 7)]})),
    ("is not there", lambda: checkers.outcomes_match_the_logs(ledger(sent(7, 1)), logs(log()), deleted=[logs(log(at(0, 8)))])),
    ("and is at 1", lambda: checkers.outcomes_match_the_logs(ledger(sent(7, 0)), logs(log()), deleted=[logs(log(at(1, 7)))])),
    (
        "stored 2 times",
        lambda: checkers.outcomes_match_the_logs(ledger(sent(7, LOST)), logs(log()), deleted=[logs(log(at(0, 7), at(1, 7)))]),
    ),
    ("failed as not stored", lambda: checkers.outcomes_match_the_logs(ledger(sent(7, NOT_STORED)), {}, deleted=[logs(log(at(0, 7)))])),
    ("missing offsets [1]", lambda: checkers.readers_agree("r", {TP: [at(0, 7)]}, logs(TRIMMED))),
    ("spanned (1, 2), after", lambda: checkers.logs_survive_a_death(logs(TRIMMED), logs(replace(TRIMMED, log_start_offset=0)))),
    ("was made 2 ms after", lambda: checkers.records_stay_in_their_topic(ledger(sent(7, 0, ended_ms=7)), [(9, logs(log(at(0, 7))))])),
    ("took [0]", lambda: checkers.power_loss_takes_only_the_unflushed_end(logs(log(at(0, 7), at(1, 8))), logs(log()), {TP: 1})),
    (
        "it ends at 1",
        lambda: checkers.power_loss_takes_only_the_unflushed_end(compacted(log(at(0, 7), at(1, 8))), logs(log(at(0, 7))), {TP: 2}),
    ),
    (
        "number=9",
        lambda: checkers.power_loss_takes_only_the_unflushed_end(logs(log(at(0, 7), at(1, 8))), logs(log(at(0, 7), at(1, 9))), {TP: 1}),
    ),
    ("after a loss of power None", lambda: checkers.topics_survive_power_loss({"orders": UUID(int=1)}, {})),
    ("topic orders was None", lambda: checkers.topics_survive_power_loss({}, {"orders": UUID(int=1)})),
    ("in the end, and failed", lambda: checkers.final_records_are_acknowledged(ledger(sent(7, LOST)), {7})),
    ("in the end, and failed", lambda: checkers.final_records_are_acknowledged(ledger(sent(7, DELETED)), {7})),
    ("in the end, and failed", lambda: checkers.final_records_are_acknowledged(ledger(sent(7, LOST, was_interrupted=True)), {7})),
    ("for no good reason", lambda: blamed_unknown()),
    ("for no good reason", lambda: blamed_unknown(handler_response=RetriableResponse.RETRY)),
    (
        "innocent and was dropped",
        lambda: checkers.only_culprits_are_blamed(ledger(sent(7, drops=1, handler_response=RetriableResponse.RETRY)), set()),
    ),
    ("has 0 rows, expected 1", lambda: checkers.dead_letter_files_are_complete(query(row(8, is_bad=True)))),
    ("has 2 rows, expected 1", lambda: checkers.dead_letter_files_are_complete(query(row(8, is_bad=True), dead_rows={0: 2}))),
    (
        "belongs to q.2, the batch was written by q.1",
        lambda: checkers.dead_letter_files_are_complete(
            query(row(8, is_bad=True), dead_rows={0: 1}, dead_rows_of={0: "q.2"}, written_by={0: "q.1"})
        ),
    ),
    ("has row 7 after row 8", lambda: checkers.rows_are_in_order(query(row(7), row(8)), {TP: [at(0, 8), at(1, 7)]})),
]


@pytest.mark.parametrize("check", [check for _, check in GOOD], ids=[name for name, _ in GOOD])
def test_checker_accepts_valid_facts(check: Callable[[], Iterator[str]]) -> None:
    assert list(check()) == []


@pytest.mark.parametrize(("says", "check"), BAD, ids=[says for says, _ in BAD])
def test_checker_reports_violation(says: str, check: Callable[[], Iterator[str]]) -> None:
    (line,) = check()
    assert says in line


def test_compaction_removes_only_superseded_records() -> None:
    """An older record of a key, or one of a transaction that did not commit; never the last of a key, never an unacknowledged one."""
    assert removed_by_compaction(sent(7, 0), sent(8, 1), found=log(at(1, 8), end=2)) == {7}
    assert removed_by_compaction(sent(7, 0), sent(8, 1), found=log(at(0, 7), end=2)) == set()
    assert removed_by_compaction(sent(7, 0), found=log(end=1)) == set()
    assert removed_by_compaction(sent(7, LOST), sent(8, 1), found=log(at(1, 8), end=2)) == set()
    aborted = transaction(Fate.ABORTED, 7)
    assert removed_by_compaction(sent(7, 0, transaction=aborted), found=log(end=1), transactions=(aborted,)) == {7}
    assert checkers.compacted_records([ledger(sent(7, 0), sent(8, 1))], logs(log(at(1, 8), end=2))) == set()


def test_trimmed_records_precede_read_records() -> None:
    with_trimmed_records = checkers.with_trimmed_records({TP: [at(0, 9), at(1, 8)], OTHER: [at(0, 5)]}, {TP: TRIMMED, OTHER: log(at(0, 5))})
    assert with_trimmed_records == {TP: [at(0, 7), at(1, 8)], OTHER: [at(0, 5)]}
