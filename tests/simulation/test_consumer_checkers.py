"""Each checker of consumers against facts made by hand: nothing to say about good ones, the right line about each kind of bad one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from chaffinch.identifiers import ProducerIdentity, TopicPartition
from simulation.consumers import consumer_checkers
from simulation.consumers.diaries import Commit, Diary, Span, Taking
from simulation.programs.programs import Fate, Ledger, Told, Transaction
from simulation.reading import LogContents, LogRecord, Marker
from simulation.records import Record

PLACE = TopicPartition("plain", 0)
WRITER = ProducerIdentity(1, 0)
LOG = LogContents(
    records=[LogRecord(offset, 10 + offset, WRITER, offset, False) for offset in range(4)],
    markers=[],
    last_stable_offset=4,
    log_end_offset=4,
)
LOGS = {PLACE: LOG}
OFFSETS = {PLACE: [0, 1, 2, 3]}
SHORTENED = {PLACE: replace(LOG, log_start_offset=2)}


def span(*offsets: int, start: int = 0, began: int = 0, found: int = 100, processed: int | None = None, is_reset: bool = False) -> Span:
    records = [(offset, 10 + offset) for offset in offsets]
    done = len(records) if processed is None else processed
    return Span(member="m.1", place=PLACE, began=began, start=start, found=found, is_reset=is_reset, records=records, processed=done)


def commit(
    offset: int, *, began: int = 1, ended: int | None = 2, by: Span | None = None, processed: int = 0, refused: bool = False
) -> Commit:
    return Commit(place=PLACE, offset=offset, began=began, ended=ended, span=by, processed=processed, is_refused=refused)


def diary(*facts: Span | Commit) -> Diary:
    found = Diary(group="g", is_committed_only=True)
    found.spans = [fact for fact in facts if isinstance(fact, Span)]
    found.commits = [fact for fact in facts if isinstance(fact, Commit)]
    return found


def at_end(start: int, *offsets: int, ends: tuple[int | None, int | None] = (None, None), commits: int | None = None) -> Diary:
    """Of a group that begins at the end: one member, and an offset that was committed."""
    found = diary(replace(span(*offsets, start=start, is_reset=True), ends=ends), *(() if commits is None else (commit(commits),)))
    return replace(found, begins_at_end=True)


def ledger(fate: Fate) -> Ledger:
    transaction = Transaction(0, fate, [11])
    record = Record(number=11, topic_partition=PLACE, key=None, value=b"", timestamp_ms=0)
    return Ledger(name="p", told={11: Told(record=record, sender="p.1", serial=1, transaction=transaction)}, transactions=[transaction])


def given(found: Diary, logs: dict[TopicPartition, LogContents] = LOGS) -> Iterator[str]:
    return consumer_checkers.delivered_in_order(found, logs, consumer_checkers.offsets_of(found, logs))


def shared(*members: str) -> Diary:
    found = diary()
    for member in members:
        found.assigned(3, member, [PLACE])
    return found


def overtaken(*takings: Taking, began: int = 30, ended: int | None = 31) -> Iterator[str]:
    """What m.1 committed, when these processes were members under one group.instance.id, one after the other."""
    found = diary(FIRST, commit(2, by=FIRST, began=began, ended=ended))
    found.takings = list(takings)
    return consumer_checkers.overtaken_members_commit_nothing(found)


def made(
    *pairs: tuple[int, int], places: tuple[TopicPartition, ...] = (PLACE,), logs: dict[TopicPartition, LogContents] = LOGS
) -> Iterator[str]:
    """`pairs`: number of a record made and visible, and of the one it was made from."""
    records = [LogRecord(index, number, WRITER, index, True) for index, (number, _) in enumerate(pairs)]
    return consumer_checkers.made_once(diary(), dict(pairs), logs, {TopicPartition("counted", 0): records}, places)


ALL = tuple((100 + number, number) for number in (10, 11, 12, 13))
FIRST = span(0, 1)
OLD, NEW = Taking("i", "m.1", 0, 5), Taking("i", "m.2", 10, 20)

GOOD: list[tuple[str, Callable[[], Iterator[str]]]] = [
    ("at the end", lambda: consumer_checkers.members_begin_at_the_end(at_end(2, ends=(2, 3)))),
    ("at the end, nobody knows where", lambda: consumer_checkers.members_begin_at_the_end(at_end(2))),
    ("since the end", lambda: consumer_checkers.everything_is_given(at_end(2, 2, 3, commits=2), OFFSETS, [PLACE])),
    ("nothing committed", lambda: consumer_checkers.everything_is_given(at_end(2), OFFSETS, [PLACE])),
    ("in order", lambda: given(diary(span(1, 2, start=1), span(0, 1, 2, 3)))),
    ("aborted, not given", lambda: consumer_checkers.nothing_aborted_is_given(diary(span(0)), [ledger(Fate.ABORTED)])),
    ("committed and given", lambda: consumer_checkers.nothing_aborted_is_given(diary(span(0, 1)), [ledger(Fate.COMMITTED)])),
    ("everything", lambda: consumer_checkers.everything_is_given(diary(span(0, 1), span(1, 2, 3, start=1)), OFFSETS, [PLACE])),
    ("covered", lambda: consumer_checkers.commits_are_covered(diary(FIRST, commit(2, by=FIRST, processed=2)), OFFSETS)),
    ("begins there", lambda: consumer_checkers.members_begin_where_committed(diary(commit(2), span(2, start=2, began=9)))),
    ("nothing committed", lambda: consumer_checkers.members_begin_where_committed(diary(span(0, is_reset=True)))),
    ("refused", lambda: consumer_checkers.members_begin_where_committed(diary(commit(2, refused=True), span(0, began=9, is_reset=True)))),
    (
        "an answer was lost",
        lambda: consumer_checkers.members_begin_where_committed(
            diary(commit(1, ended=None), commit(2, began=3, ended=4), span(1, start=1, began=9))
        ),
    ),
    (
        "commits meanwhile",
        lambda: consumer_checkers.members_begin_where_committed(diary(commit(1), commit(2, began=10, ended=20), span(1, start=1, began=9))),
    ),
    ("the end", lambda: consumer_checkers.the_end_is_committed(diary(), OFFSETS, {PLACE: 4})),
    ("overwritten", lambda: consumer_checkers.the_end_is_committed(diary(commit(3, ended=None), commit(4)), OFFSETS, {PLACE: 3})),
    ("one member", lambda: consumer_checkers.one_member_each(shared("a", "a"))),
    ("nobody else", lambda: overtaken(OLD)),
    ("before it was overtaken", lambda: overtaken(OLD, NEW, began=19)),
    ("overtaken, but refused", lambda: overtaken(OLD, NEW, ended=None)),
    ("joined again", lambda: overtaken(OLD, NEW, Taking("i", "m.1", 0, 25))),
    ("another instance", lambda: overtaken(OLD, NEW._replace(instance="j"))),
    ("made once", lambda: made(*ALL)),
    ("the next topic from its beginning", lambda: renewed((1, 11), (2, 12), (0, 13), (1, 14))),
    ("only the next topic", lambda: renewed((1, 14))),
    ("gone before it was given", lambda: given(diary(span(0, 2, 3), span(2, 3)), SHORTENED)),
    ("gone before it was read", lambda: made(*ALL[1:], logs=SHORTENED)),
]


def renewed(*given: tuple[int, int]) -> Iterator[str]:
    """(offset, number) as given: of a topic with 10, 11, 12, 13, or of the next of its name, with 13, 14."""
    found = Span(member="m.1", place=PLACE, began=0, start=0, found=1, records=list(given))
    new = replace(LOG, records=[LogRecord(0, 13, WRITER, 0, False), LogRecord(1, 14, WRITER, 1, False)])
    return consumer_checkers.new_topics_are_read_anew(diary(found), [LOGS, {PLACE: new}])


BAD: list[tuple[str, Callable[[], Iterator[str]]]] = [
    ("out of order, from 0 on: [1, 0]", lambda: given(diary(span(1, 0)))),
    ("out of order", lambda: given(diary(span(0, 0)))),
    ("out of order, from 2 on", lambda: given(diary(span(1, 2, start=2)))),
    ("not given offsets [1]", lambda: given(diary(span(0, 2)))),
    ("not given offsets [0]", lambda: given(diary(span(1)))),
    ("given offsets [7]", lambda: given(diary(span(0, 1, 2, 3, 7)))),
    (
        "given record 99 at offset 0",
        lambda: given(diary(Span(member="m.1", place=PLACE, began=0, start=0, found=1, records=[(0, 99)], processed=1))),
    ),
    ("whose transaction was aborted", lambda: consumer_checkers.nothing_aborted_is_given(diary(span(0, 1)), [ledger(Fate.ABORTED)])),
    (
        "nobody was done with offsets [3]",
        lambda: consumer_checkers.everything_is_given(diary(span(0, 1, 2, 3, processed=3)), OFFSETS, [PLACE]),
    ),
    ("done with [1]", lambda: consumer_checkers.commits_are_covered(diary(FIRST, commit(2, by=FIRST, processed=1)), OFFSETS)),
    ("without the partition", lambda: consumer_checkers.commits_are_covered(diary(commit(2)), OFFSETS)),
    ("begins anew, although 2", lambda: consumer_checkers.members_begin_where_committed(diary(commit(2), span(0, began=9, is_reset=True)))),
    (
        "begins at 1, committed were [2]",
        lambda: consumer_checkers.members_begin_where_committed(diary(commit(2), span(1, start=1, began=9))),
    ),
    (
        "begins at 1, committed were [1, 2]",
        lambda: consumer_checkers.members_begin_where_committed(diary(commit(1), commit(2, began=3, ended=4), span(1, start=1, began=9))),
    ),
    ("begins at 1, the end lay between 2 and 3", lambda: consumer_checkers.members_begin_at_the_end(at_end(1, ends=(2, 3)))),
    ("begins at 4, the end lay between None and 3", lambda: consumer_checkers.members_begin_at_the_end(at_end(4, ends=(None, 3)))),
    ("nobody was done with offsets [3]", lambda: consumer_checkers.everything_is_given(at_end(2, 2, commits=2), OFFSETS, [PLACE])),
    ("committed is 3, offsets [3]", lambda: consumer_checkers.the_end_is_committed(diary(), OFFSETS, {PLACE: 3})),
    ("committed is None", lambda: consumer_checkers.the_end_is_committed(diary(), OFFSETS, {PLACE: None})),
    ("committed is 3", lambda: consumer_checkers.the_end_is_committed(diary(commit(3), commit(4)), OFFSETS, {PLACE: 3})),
    ("committed is 3", lambda: consumer_checkers.the_end_is_committed(diary(commit(3, ended=None), commit(3)), OFFSETS, {PLACE: 3})),
    (
        "committed is 2",
        lambda: consumer_checkers.the_end_is_committed(diary(commit(2, ended=None, refused=True), commit(4)), OFFSETS, {PLACE: 2}),
    ),
    ("has 2 members in generation 3", lambda: consumer_checkers.one_member_each(shared("a", "b"))),
    ("2 was committed, although m.2 had overtaken it", lambda: overtaken(OLD, NEW)),
    ("2 was committed, although m.2 had overtaken it", lambda: overtaken(OLD, NEW, NEW._replace(member="m.3", taken=25))),
    ("of record 13 0 records", lambda: made(*ALL[:3])),
    ("of record 10 2 records", lambda: made(*ALL, (200, 10))),
    ("given (1, 14), which neither", lambda: renewed((1, 11), (1, 14))),
    ("given (3, 13), which neither", lambda: renewed((1, 11), (3, 13))),
    ("given (0, 10), which neither", lambda: renewed((0, 13), (0, 10))),
    ("not given offsets [2]", lambda: given(diary(span(0, 1, 3)), SHORTENED)),
    ("of record 12 0 records", lambda: made(ALL[3], logs=SHORTENED)),
    ("of record 10 2 records", lambda: made(*ALL, (200, 10), logs=SHORTENED)),
    ("of record 50 1 records", lambda: made(*ALL, (200, 50))),
]


@pytest.mark.parametrize("check", [check for _, check in GOOD], ids=[name for name, _ in GOOD])
def test_nothing_to_say_about_what_is_right(check: Callable[[], Iterator[str]]) -> None:
    assert list(check()) == []


@pytest.mark.parametrize(("says", "check"), BAD, ids=[f"{number}: {says}" for number, (says, _) in enumerate(BAD)])
def test_what_is_wrong_is_said(says: str, check: Callable[[], Iterator[str]]) -> None:
    (line,) = check()
    assert says in line


def test_what_a_group_may_see() -> None:
    """With read_committed what was committed; else all that is there."""
    undecided = LogContents(
        records=[LogRecord(0, 10, WRITER, 0, True), LogRecord(2, 12, WRITER, 1, True)],
        markers=[Marker(1, WRITER, False), Marker(3, WRITER, True)],
        last_stable_offset=4,
        log_end_offset=4,
    )
    found = diary()
    assert consumer_checkers.offsets_of(found, {PLACE: undecided}) == {PLACE: [2]}
    found.is_committed_only = False
    assert consumer_checkers.offsets_of(found, {PLACE: undecided}) == {PLACE: [0, 2]}
