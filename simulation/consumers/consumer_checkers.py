"""What must hold of what consumers were given and committed, once everything is quiet. Facts only, as in `checkers`."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from chaffinch.identifiers import TopicPartition
from simulation.checkers import Committed, Logs, visible
from simulation.consumers.diaries import Commit, Diary, Span
from simulation.programs.programs import Fate, Ledger
from simulation.reading import LogContents, LogRecord

Offsets = Mapping[TopicPartition, Sequence[int]]
"""Of each partition, ascending: what a group has to be given."""


def offsets_of(diary: Diary, logs: Logs) -> dict[TopicPartition, list[int]]:
    """The offsets that the group's isolation level lets it see, of what is in the logs now."""
    return {place: [record.offset for record in seen(diary, log) if record.offset >= log.log_start_offset] for place, log in logs.items()}


def seen(diary: Diary, log: LogContents) -> list[LogRecord]:
    """What the group's isolation level lets it see of a log."""
    return visible(log) if diary.is_committed_only else log.records


def delivered_in_order(diary: Diary, logs: Logs, offsets: Offsets) -> Iterator[str]:
    """A member is given the records of a partition in order, from where it began and without gaps; and nothing else.

    A compacted log may have lost records since, and any log its first ones: before they were given, or after."""
    for span in diary.spans:
        given = [offset for offset, _ in span.records]
        if not given:
            continue
        name = f"{diary.group}: {span.member}: {span.place}"
        if span.start is None or given != sorted(set(given)) or given[0] < span.start:
            yield f"{name}: given out of order, from {span.start} on: {_around(given)}"
            continue
        due = _between(offsets[span.place], span.start, given[-1] + 1)
        missing = sorted(set(due) - set(given))
        if missing:
            yield f"{name}: not given offsets {missing[:5]}, although {given[-1]} was, from {span.start} on"
        surplus = set(given) - set(due)
        if surplus and logs[span.place].log_start_offset:
            surplus -= {record.offset for record in seen(diary, logs[span.place])}
        if surplus and not logs[span.place].is_compacted:
            yield f"{name}: given offsets {sorted(surplus)[:5]}, which it may not see"
        yield from _are_those(name, span, logs[span.place])


def _are_those(name: str, span: Span, log: LogContents) -> Iterator[str]:
    numbers = {record.offset: record.number for record in log.records}
    for offset, number in span.records:
        if numbers.get(offset, number) != number:
            yield f"{name}: given record {number} at offset {offset}, which has {numbers[offset]}"


def about(diary: Diary, places: Sequence[TopicPartition]) -> Diary:
    """What the diary says about these partitions."""
    spans = [span for span in diary.spans if span.place in places]
    return replace(diary, spans=spans, commits=[commit for commit in diary.commits if commit.place in places])


def new_topics_are_read_anew(diary: Diary, topics: Sequence[Logs]) -> Iterator[str]:
    """A member that has read from a topic, and goes on in the next of that name, is given that one from its beginning and without gaps.

    `topics`: the logs of each, the oldest first. Who comes later may begin anywhere: offsets committed late are those of another topic."""
    for span in diary.spans:
        there = [[(record.offset, record.number) for record in seen(diary, logs[span.place])] for logs in topics]
        ends: set[tuple[int, int]] | None = None
        """After which record of which topic the member may be: the same record may stand in several."""
        for given in span.records:
            if ends is None:
                ends = {(topic, index + 1) for topic, records in enumerate(there) for index, one in enumerate(records) if one == given}
            else:
                onward = ends | {(later, 0) for topic, _ in ends for later in range(topic + 1, len(there))}
                ends = {(topic, index + 1) for topic, index in onward if there[topic][index : index + 1] == [given]}
            if not ends:
                yield f"{diary.group}: {span.member}: {span.place}: given {given}, which neither comes next nor begins a new topic"
                break


def nothing_aborted_is_given(diary: Diary, ledgers: Sequence[Ledger]) -> Iterator[str]:
    """With read_committed: no record of a transaction whose abort was confirmed, wherever it is now."""
    if not diary.is_committed_only:
        return
    told = {number: entry for ledger in ledgers for number, entry in ledger.told.items()}
    for span in diary.spans:
        for offset, number in span.records:
            entry = told.get(number)
            if entry is not None and entry.transaction is not None and entry.transaction.fate is Fate.ABORTED:
                yield f"{diary.group}: {span.member}: {span.place}: given record {number} at {offset}, whose transaction was aborted"


def everything_is_given(diary: Diary, offsets: Offsets, places: Sequence[TopicPartition]) -> Iterator[str]:
    """Some member was done with each record; of a group that begins at the end, with each since something was committed."""
    for place in places:
        since = min((commit.offset for commit in diary.commits if commit.place == place and commit.ended is not None), default=None)
        first = 0 if not diary.begins_at_end else since
        if first is None:
            continue
        done = {offset for span in diary.spans if span.place == place for offset, _ in span.records[: span.processed]}
        missing = sorted({offset for offset in offsets[place] if offset >= first} - done)
        if missing:
            yield f"{diary.group}: {place}: nobody was done with offsets {missing[:5]}"


def commits_are_covered(diary: Diary, offsets: Offsets) -> Iterator[str]:
    """A member commits no further than it is done with what it was given."""
    for commit in diary.commits:
        span = commit.span
        if span is None or span.start is None:
            yield f"{diary.group}: {commit.place}: offset {commit.offset} was committed by a member without the partition"
            continue
        done = {offset for offset, _ in span.records[: commit.processed]}
        early = sorted(set(_between(offsets[commit.place], span.start, commit.offset)) - done)
        if early:
            yield f"{diary.group}: {span.member}: {commit.place}: committed {commit.offset} before it was done with {early[:5]}"


def members_begin_where_committed(diary: Diary) -> Iterator[str]:
    """Where a member begins is the last offset committed: any that may have been the last one while it asked.

    A commit without an answer may be written at any time after it was sent, until a later generation of the group begins."""
    by_place: dict[TopicPartition, list[Commit]] = {}
    for commit in diary.commits:
        if not commit.is_refused:
            by_place.setdefault(commit.place, []).append(commit)
    for span in diary.spans:
        if span.start is None:
            continue
        commits = by_place.get(span.place, [])
        name = f"{diary.group}: {span.member}: {span.place}"
        certain = [commit for commit in commits if commit.ended is not None and commit.ended < span.began]
        if span.is_reset and certain:
            yield f"{name}: begins anew, although {certain[-1].offset} was committed"
        elif not span.is_reset and not any(_may_be_read(commit, certain, span) for commit in commits):
            yield f"{name}: begins at {span.start}, committed were {[commit.offset for commit in certain[-3:]]}"


def members_begin_at_the_end(diary: Diary) -> Iterator[str]:
    """Where nothing is committed and the group begins at the end: one that the partition had while the member asked."""
    for span in diary.spans:
        if diary.begins_at_end and span.is_reset and span.start is not None:
            low, high = span.ends
            if (low is not None and span.start < low) or (high is not None and span.start > high):
                yield f"{diary.group}: {span.member}: {span.place}: begins at {span.start}, the end lay between {low} and {high}"


def _may_be_read(commit: Commit, certain: Sequence[Commit], span: Span) -> bool:
    if commit.offset != span.start or commit.began > span.found:
        return False
    if any(later.generation > commit.generation >= 0 and not _joined_after(commit, later) for later in certain):
        return False
    ended = commit.ended
    return ended is None or not any(later.began > ended for later in certain)


def _joined_after(commit: Commit, other: Commit) -> bool:
    """Whether a member committed that joined only after the other commit was answered. Then its generation may have the lower number: one
    that ends before SyncGroup is written down nowhere, and a coordinator that comes back gives its number again."""
    return commit.span is not None and other.ended is not None and commit.span.began > other.ended


def the_end_is_committed(diary: Diary, offsets: Offsets, committed: Mapping[TopicPartition, int | None]) -> Iterator[str]:
    """After the last member left in order, nothing is left to read.

    A commit that lay in the network may be written after it, over the last that was answered: its member had given up that connection."""
    for place, offset in committed.items():
        left = [other for other in offsets[place] if other >= (offset or 0)]
        if left and not _was_overwritten(diary, place, offset, left[-1]):
            yield f"{diary.group}: {place}: committed is {offset}, offsets {left[:5]} come after it"


def _was_overwritten(diary: Diary, place: TopicPartition, offset: int | None, last: int) -> bool:
    """Whether a commit after the last offset was answered, and a commit of `offset` never."""
    commits = [commit for commit in diary.commits if commit.place == place and not commit.is_refused]
    ended = any(commit.offset > last for commit in commits if commit.ended is not None)
    return ended and any(commit.offset == offset for commit in commits if commit.ended is None)


def one_member_each(diary: Diary) -> Iterator[str]:
    """In one generation of the group a partition is given to one member."""
    for (generation, place), members in sorted(diary.members_of.items()):
        if len(members) > 1:
            yield f"{diary.group}: {place} has {len(members)} members in generation {generation}"


def made_once(
    diary: Diary, made_from: Mapping[int, int], logs: Logs, committed: Committed, places: Sequence[TopicPartition]
) -> Iterator[str]:
    """Of each record that could be read there is one record that was made from it, and of no other. What is gone may have gone before."""
    made = Counter(made_from[record.number] for records in committed.values() for record in records if record.number in made_from)
    due, gone = set[int](), set[int]()
    for place in places:
        for record in seen(diary, logs[place]):
            (due if record.offset >= logs[place].log_start_offset else gone).add(record.number)
    for number in sorted((due | set(made)) - {number for number in gone if made[number] <= 1}):
        if made[number] != (number in due):
            yield f"{diary.group}: of record {number} {made[number]} records were made, expected {int(number in due)}"


def overtaken_members_commit_nothing(diary: Diary) -> Iterator[str]:
    """Who was overtaken by a process with its group.instance.id commits no more, unless it has joined again since that one began."""
    for commit in diary.commits:
        if commit.span is None or commit.ended is None:
            continue
        member = commit.span.member
        own = [taking for taking in diary.takings if taking.member == member and taking.taken < commit.ended]
        for taking in diary.takings if own else ():
            is_later = taking.instance == own[-1].instance and taking.began > own[-1].taken
            if is_later and taking.member != member and taking.taken < commit.began:
                yield f"{diary.group}: {member}: {commit.place}: {commit.offset} was committed, although {taking.member} had overtaken it"
                break


def _between(offsets: Sequence[int], start: int, stop: int) -> Sequence[int]:
    return offsets[bisect_left(offsets, start) : bisect_left(offsets, stop)]


def _around(given: Sequence[int]) -> list[int]:
    """Where the order is broken."""
    place = next((index for index in range(1, len(given)) if given[index] <= given[index - 1]), 1)
    return list(given[max(0, place - 2) : place + 3])
