"""Each consumer checker against hand-made facts: valid ones give no line, each kind of invalid one gives the right line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from chaffinch.identifiers import ProducerIdentity, TopicPartition
from simulation.consumers import consumer_checkers
from simulation.consumers.history import CommitAttempt, History, Span, StaticMembership
from simulation.log_reader import LogContents, LogRecord, Marker
from simulation.programs.programs import Fate, Ledger, SentRecord, Transaction
from simulation.records import Record

TP = TopicPartition("plain", 0)
WRITER = ProducerIdentity(1, 0)
LOG = LogContents(
    records=[LogRecord(offset, 10 + offset, WRITER, offset, False) for offset in range(4)],
    markers=[],
    last_stable_offset=4,
    log_end_offset=4,
)
LOGS = {TP: LOG}
OFFSETS = {TP: [0, 1, 2, 3]}
TRIMMED = {TP: replace(LOG, log_start_offset=2)}


def span(*offsets: int, start: int = 0, began: int = 0, found: int = 100, processed: int | None = None, is_reset: bool = False) -> Span:
    records = [(offset, 10 + offset) for offset in offsets]
    done = len(records) if processed is None else processed
    return Span(member="m.1", tp=TP, began=began, start=start, found=found, is_reset=is_reset, records=records, processed=done)


def commit(
    offset: int, *, began: int = 1, ended: int | None = 2, by: Span | None = None, processed: int = 0, refused: bool = False
) -> CommitAttempt:
    return CommitAttempt(tp=TP, offset=offset, began=began, ended=ended, span=by, processed=processed, is_refused=refused)


def history(*facts: Span | CommitAttempt) -> History:
    found = History(group="g", is_committed_only=True)
    found.spans = [fact for fact in facts if isinstance(fact, Span)]
    found.commits = [fact for fact in facts if isinstance(fact, CommitAttempt)]
    return found


def at_end(start: int, *offsets: int, ends: tuple[int | None, int | None] = (None, None), commits: int | None = None) -> History:
    """Of a group that begins at the end: one member, and an offset that was committed."""
    found = history(replace(span(*offsets, start=start, is_reset=True), ends=ends), *(() if commits is None else (commit(commits),)))
    return replace(found, begins_at_end=True)


def ledger(fate: Fate) -> Ledger:
    transaction = Transaction(0, fate, [11])
    record = Record(number=11, topic_partition=TP, key=None, value=b"", timestamp_ms=0)
    return Ledger(
        name="p", sent={11: SentRecord(record=record, sender="p.1", serial=1, transaction=transaction)}, transactions=[transaction]
    )


def delivered(found: History, logs: dict[TopicPartition, LogContents] = LOGS) -> Iterator[str]:
    return consumer_checkers.records_are_delivered_in_order(found, logs, consumer_checkers.visible_offsets(found, logs))


def shared(*members: str) -> History:
    found = history()
    for member in members:
        found.assigned(3, member, [TP])
    return found


def overtaken(*static_memberships: StaticMembership, began: int = 30, ended: int | None = 31) -> Iterator[str]:
    """What m.1 committed, when these processes were members under one group.instance.id, one after the other."""
    found = history(FIRST, commit(2, by=FIRST, began=began, ended=ended))
    found.static_memberships = list(static_memberships)
    return consumer_checkers.fenced_members_commit_nothing(found)


def made(*pairs: tuple[int, int], tps: tuple[TopicPartition, ...] = (TP,), logs: dict[TopicPartition, LogContents] = LOGS) -> Iterator[str]:
    """`pairs`: number of a record made and visible, and of the one it was made from."""
    records = [LogRecord(index, number, WRITER, index, True) for index, (number, _) in enumerate(pairs)]
    return consumer_checkers.records_are_transformed_once(history(), dict(pairs), logs, {TopicPartition("counted", 0): records}, tps)


ALL = tuple((100 + number, number) for number in (10, 11, 12, 13))
FIRST = span(0, 1)
OLD, NEW = StaticMembership("i", "m.1", 0, 5), StaticMembership("i", "m.2", 10, 20)

GOOD: list[tuple[str, Callable[[], Iterator[str]]]] = [
    ("at the end", lambda: consumer_checkers.members_start_at_the_end(at_end(2, ends=(2, 3)))),
    ("at an unknown end", lambda: consumer_checkers.members_start_at_the_end(at_end(2))),
    ("since the end", lambda: consumer_checkers.every_record_is_delivered(at_end(2, 2, 3, commits=2), OFFSETS, [TP])),
    ("nothing committed", lambda: consumer_checkers.every_record_is_delivered(at_end(2), OFFSETS, [TP])),
    ("in order", lambda: delivered(history(span(1, 2, start=1), span(0, 1, 2, 3)))),
    ("aborted, not given", lambda: consumer_checkers.no_aborted_record_is_delivered(history(span(0)), [ledger(Fate.ABORTED)])),
    ("committed and given", lambda: consumer_checkers.no_aborted_record_is_delivered(history(span(0, 1)), [ledger(Fate.COMMITTED)])),
    ("everything", lambda: consumer_checkers.every_record_is_delivered(history(span(0, 1), span(1, 2, 3, start=1)), OFFSETS, [TP])),
    ("covered", lambda: consumer_checkers.only_processed_records_are_committed(history(FIRST, commit(2, by=FIRST, processed=2)), OFFSETS)),
    ("begins there", lambda: consumer_checkers.members_start_at_committed_offsets(history(commit(2), span(2, start=2, began=9)))),
    ("nothing committed", lambda: consumer_checkers.members_start_at_committed_offsets(history(span(0, is_reset=True)))),
    (
        "refused",
        lambda: consumer_checkers.members_start_at_committed_offsets(history(commit(2, refused=True), span(0, began=9, is_reset=True))),
    ),
    (
        "a response was lost",
        lambda: consumer_checkers.members_start_at_committed_offsets(
            history(commit(1, ended=None), commit(2, began=3, ended=4), span(1, start=1, began=9))
        ),
    ),
    (
        "commits during the lookup",
        lambda: consumer_checkers.members_start_at_committed_offsets(
            history(commit(1), commit(2, began=10, ended=20), span(1, start=1, began=9))
        ),
    ),
    ("the end", lambda: consumer_checkers.last_offset_is_committed(history(), OFFSETS, {TP: 4})),
    ("overwritten", lambda: consumer_checkers.last_offset_is_committed(history(commit(3, ended=None), commit(4)), OFFSETS, {TP: 3})),
    ("one member", lambda: consumer_checkers.one_member_per_partition(shared("a", "a"))),
    ("no other process", lambda: overtaken(OLD)),
    ("before it was overtaken", lambda: overtaken(OLD, NEW, began=19)),
    ("overtaken, but refused", lambda: overtaken(OLD, NEW, ended=None)),
    ("joined again", lambda: overtaken(OLD, NEW, StaticMembership("i", "m.1", 0, 25))),
    ("another instance", lambda: overtaken(OLD, NEW._replace(instance="j"))),
    ("made once", lambda: made(*ALL)),
    ("the next topic from its beginning", lambda: renewed((1, 11), (2, 12), (0, 13), (1, 14))),
    ("only the next topic", lambda: renewed((1, 14))),
    ("gone before it was given", lambda: delivered(history(span(0, 2, 3), span(2, 3)), TRIMMED)),
    ("gone before it was read", lambda: made(*ALL[1:], logs=TRIMMED)),
]


def renewed(*delivered: tuple[int, int]) -> Iterator[str]:
    """(offset, number) as given: of a topic with 10, 11, 12, 13, or of the next of its name, with 13, 14."""
    found = Span(member="m.1", tp=TP, began=0, start=0, found=1, records=list(delivered))
    new = replace(LOG, records=[LogRecord(0, 13, WRITER, 0, False), LogRecord(1, 14, WRITER, 1, False)])
    return consumer_checkers.recreated_topics_are_read_from_the_start(history(found), [LOGS, {TP: new}])


BAD: list[tuple[str, Callable[[], Iterator[str]]]] = [
    ("out of order, from 0 on: [1, 0]", lambda: delivered(history(span(1, 0)))),
    ("out of order", lambda: delivered(history(span(0, 0)))),
    ("out of order, from 2 on", lambda: delivered(history(span(1, 2, start=2)))),
    ("not given offsets [1]", lambda: delivered(history(span(0, 2)))),
    ("not given offsets [0]", lambda: delivered(history(span(1)))),
    ("given offsets [7]", lambda: delivered(history(span(0, 1, 2, 3, 7)))),
    (
        "given record 99 at offset 0",
        lambda: delivered(history(Span(member="m.1", tp=TP, began=0, start=0, found=1, records=[(0, 99)], processed=1))),
    ),
    (
        "whose transaction was aborted",
        lambda: consumer_checkers.no_aborted_record_is_delivered(history(span(0, 1)), [ledger(Fate.ABORTED)]),
    ),
    (
        "no member processed offsets [3]",
        lambda: consumer_checkers.every_record_is_delivered(history(span(0, 1, 2, 3, processed=3)), OFFSETS, [TP]),
    ),
    (
        "done with [1]",
        lambda: consumer_checkers.only_processed_records_are_committed(history(FIRST, commit(2, by=FIRST, processed=1)), OFFSETS),
    ),
    ("without the partition", lambda: consumer_checkers.only_processed_records_are_committed(history(commit(2)), OFFSETS)),
    (
        "is reset, although 2",
        lambda: consumer_checkers.members_start_at_committed_offsets(history(commit(2), span(0, began=9, is_reset=True))),
    ),
    (
        "begins at 1, committed were [2]",
        lambda: consumer_checkers.members_start_at_committed_offsets(history(commit(2), span(1, start=1, began=9))),
    ),
    (
        "begins at 1, committed were [1, 2]",
        lambda: consumer_checkers.members_start_at_committed_offsets(
            history(commit(1), commit(2, began=3, ended=4), span(1, start=1, began=9))
        ),
    ),
    ("begins at 1, the end lay between 2 and 3", lambda: consumer_checkers.members_start_at_the_end(at_end(1, ends=(2, 3)))),
    ("begins at 4, the end lay between None and 3", lambda: consumer_checkers.members_start_at_the_end(at_end(4, ends=(None, 3)))),
    ("no member processed offsets [3]", lambda: consumer_checkers.every_record_is_delivered(at_end(2, 2, commits=2), OFFSETS, [TP])),
    ("committed is 3, offsets [3]", lambda: consumer_checkers.last_offset_is_committed(history(), OFFSETS, {TP: 3})),
    ("committed is None", lambda: consumer_checkers.last_offset_is_committed(history(), OFFSETS, {TP: None})),
    ("committed is 3", lambda: consumer_checkers.last_offset_is_committed(history(commit(3), commit(4)), OFFSETS, {TP: 3})),
    ("committed is 3", lambda: consumer_checkers.last_offset_is_committed(history(commit(3, ended=None), commit(3)), OFFSETS, {TP: 3})),
    (
        "committed is 2",
        lambda: consumer_checkers.last_offset_is_committed(history(commit(2, ended=None, refused=True), commit(4)), OFFSETS, {TP: 2}),
    ),
    ("has 2 members in generation 3", lambda: consumer_checkers.one_member_per_partition(shared("a", "b"))),
    ("2 was committed, although m.2 had fenced it", lambda: overtaken(OLD, NEW)),
    ("2 was committed, although m.2 had fenced it", lambda: overtaken(OLD, NEW, NEW._replace(member="m.3", joined=25))),
    ("of record 13 0 records", lambda: made(*ALL[:3])),
    ("of record 10 2 records", lambda: made(*ALL, (200, 10))),
    ("given (1, 14), which neither", lambda: renewed((1, 11), (1, 14))),
    ("given (3, 13), which neither", lambda: renewed((1, 11), (3, 13))),
    ("given (0, 10), which neither", lambda: renewed((0, 13), (0, 10))),
    ("not given offsets [2]", lambda: delivered(history(span(0, 1, 3)), TRIMMED)),
    ("of record 12 0 records", lambda: made(ALL[3], logs=TRIMMED)),
    ("of record 10 2 records", lambda: made(*ALL, (200, 10), logs=TRIMMED)),
    ("of record 50 1 records", lambda: made(*ALL, (200, 50))),
]


@pytest.mark.parametrize("check", [check for _, check in GOOD], ids=[name for name, _ in GOOD])
def test_checker_accepts_valid_facts(check: Callable[[], Iterator[str]]) -> None:
    assert list(check()) == []


@pytest.mark.parametrize(("says", "check"), BAD, ids=[f"{number}: {says}" for number, (says, _) in enumerate(BAD)])
def test_checker_reports_violation(says: str, check: Callable[[], Iterator[str]]) -> None:
    (line,) = check()
    assert says in line


def test_visible_offsets_depend_on_isolation_level() -> None:
    """With read_committed what was committed; else all that is there."""
    undecided = LogContents(
        records=[LogRecord(0, 10, WRITER, 0, True), LogRecord(2, 12, WRITER, 1, True)],
        markers=[Marker(1, WRITER, False), Marker(3, WRITER, True)],
        last_stable_offset=4,
        log_end_offset=4,
    )
    found = history()
    assert consumer_checkers.visible_offsets(found, {TP: undecided}) == {TP: [2]}
    found.is_committed_only = False
    assert consumer_checkers.visible_offsets(found, {TP: undecided}) == {TP: [0, 2]}
