"""Checkers of deliveries and commits of consumers in the quiet world. They compare facts only, like those of `checkers`."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from chaffinch.identifiers import TopicPartition
from simulation.checkers import Committed, Logs, visible
from simulation.consumers.history import CommitAttempt, History, Span
from simulation.log_reader import LogContents, LogRecord
from simulation.programs.programs import Fate, Ledger

Offsets = Mapping[TopicPartition, Sequence[int]]
"""The offsets a group must be given, ascending, by partition."""


def visible_offsets(history: History, logs: Logs) -> dict[TopicPartition, list[int]]:
    """Offsets of the current log contents that the group's isolation level shows."""
    return {
        tp: [record.offset for record in visible_to_group(history, log) if record.offset >= log.log_start_offset]
        for tp, log in logs.items()
    }


def visible_to_group(history: History, log: LogContents) -> list[LogRecord]:
    """Records of a log that the group's isolation level shows."""
    return visible(log) if history.is_committed_only else log.records


def records_are_delivered_in_order(history: History, logs: Logs, offsets: Offsets) -> Iterator[str]:
    """A member gets the records of a partition in order, without gaps from where it started, and no others.

    A compacted log may have lost records in the meantime, and any log its first ones: before or after their delivery.
    """
    for span in history.spans:
        delivered = [offset for offset, _ in span.records]
        if not delivered:
            continue
        name = f"{history.group}: {span.member}: {span.tp}"
        if span.start is None or delivered != sorted(set(delivered)) or delivered[0] < span.start:
            yield f"{name}: given out of order, from {span.start} on: {_misordered_part(delivered)}"
            continue
        due = _between(offsets[span.tp], span.start, delivered[-1] + 1)
        missing = sorted(set(due) - set(delivered))
        if missing:
            yield f"{name}: not given offsets {missing[:5]}, although {delivered[-1]} was, from {span.start} on"
        surplus = set(delivered) - set(due)
        if surplus and logs[span.tp].log_start_offset:
            surplus -= {record.offset for record in visible_to_group(history, logs[span.tp])}
        if surplus and not logs[span.tp].is_compacted:
            yield f"{name}: given offsets {sorted(surplus)[:5]}, which it may not see"
        yield from _wrong_records(name, span, logs[span.tp])


def _wrong_records(name: str, span: Span, log: LogContents) -> Iterator[str]:
    numbers = {record.offset: record.number for record in log.records}
    for offset, number in span.records:
        if numbers.get(offset, number) != number:
            yield f"{name}: given record {number} at offset {offset}, which has {numbers[offset]}"


def restricted_to(history: History, tps: Sequence[TopicPartition]) -> History:
    """The part of the history about these partitions."""
    spans = [span for span in history.spans if span.tp in tps]
    return replace(history, spans=spans, commits=[commit for commit in history.commits if commit.tp in tps])


def recreated_topics_are_read_from_the_start(history: History, topics: Sequence[Logs]) -> Iterator[str]:
    """A member that has read a topic and continues in a recreated one of that name gets it from the beginning and without gaps.

    `topics`: the logs of each topic, the oldest first. Later members may start anywhere: offsets committed late belong to another topic.
    """
    for span in history.spans:
        there = [[(record.offset, record.number) for record in visible_to_group(history, logs[span.tp])] for logs in topics]
        ends: set[tuple[int, int]] | None = None
        """The records, as (topic, index after it), that the member may just have read: the same record may be in several topics."""
        for delivered in span.records:
            if ends is None:
                ends = {(topic, index + 1) for topic, records in enumerate(there) for index, one in enumerate(records) if one == delivered}
            else:
                onward = ends | {(later, 0) for topic, _ in ends for later in range(topic + 1, len(there))}
                ends = {(topic, index + 1) for topic, index in onward if there[topic][index : index + 1] == [delivered]}
            if not ends:
                yield f"{history.group}: {span.member}: {span.tp}: given {delivered}, which neither comes next nor begins a new topic"
                break


def no_aborted_record_is_delivered(history: History, ledgers: Sequence[Ledger]) -> Iterator[str]:
    """With read_committed: no record of a transaction whose abort was confirmed is delivered, wherever the record is now."""
    if not history.is_committed_only:
        return
    sent = {number: entry for ledger in ledgers for number, entry in ledger.sent.items()}
    for span in history.spans:
        for offset, number in span.records:
            entry = sent.get(number)
            if entry is not None and entry.transaction is not None and entry.transaction.fate is Fate.ABORTED:
                yield f"{history.group}: {span.member}: {span.tp}: given record {number} at {offset}, whose transaction was aborted"


def every_record_is_delivered(history: History, offsets: Offsets, tps: Sequence[TopicPartition]) -> Iterator[str]:
    """Some member has processed each record; in a group that starts at the end, each record since the first commit."""
    for tp in tps:
        since = min((commit.offset for commit in history.commits if commit.tp == tp and commit.ended is not None), default=None)
        first = 0 if not history.begins_at_end else since
        if first is None:
            continue
        done = {offset for span in history.spans if span.tp == tp for offset, _ in span.records[: span.processed]}
        missing = sorted({offset for offset in offsets[tp] if offset >= first} - done)
        if missing:
            yield f"{history.group}: {tp}: no member processed offsets {missing[:5]}"


def only_processed_records_are_committed(history: History, offsets: Offsets) -> Iterator[str]:
    """A member commits no further than it has processed its records."""
    for commit in history.commits:
        span = commit.span
        if span is None or span.start is None:
            yield f"{history.group}: {commit.tp}: offset {commit.offset} was committed by a member without the partition"
            continue
        done = {offset for offset, _ in span.records[: commit.processed]}
        early = sorted(set(_between(offsets[commit.tp], span.start, commit.offset)) - done)
        if early:
            yield f"{history.group}: {span.member}: {commit.tp}: committed {commit.offset} before it was done with {early[:5]}"


def members_start_at_committed_offsets(history: History) -> Iterator[str]:
    """A member starts at the last committed offset: any that may have been the last one while it looked it up.

    A commit without a response may be written at any time after it was sent, until a later generation of the group begins.
    """
    by_place: dict[TopicPartition, list[CommitAttempt]] = {}
    for commit in history.commits:
        if not commit.is_refused:
            by_place.setdefault(commit.tp, []).append(commit)
    for span in history.spans:
        if span.start is None:
            continue
        commits = by_place.get(span.tp, [])
        name = f"{history.group}: {span.member}: {span.tp}"
        certain = [commit for commit in commits if commit.ended is not None and commit.ended < span.began]
        if span.is_reset and certain:
            yield f"{name}: is reset, although {certain[-1].offset} was committed"
        elif not span.is_reset and not any(_may_be_read(commit, certain, span) for commit in commits):
            yield f"{name}: begins at {span.start}, committed were {[commit.offset for commit in certain[-3:]]}"


def members_start_at_the_end(history: History) -> Iterator[str]:
    """If nothing is committed and the group starts at the end, a member starts at an end that the partition had during its lookup."""
    for span in history.spans:
        if history.begins_at_end and span.is_reset and span.start is not None:
            low, high = span.ends
            if (low is not None and span.start < low) or (high is not None and span.start > high):
                yield f"{history.group}: {span.member}: {span.tp}: begins at {span.start}, the end lay between {low} and {high}"


def _may_be_read(commit: CommitAttempt, certain: Sequence[CommitAttempt], span: Span) -> bool:
    if commit.offset != span.start or commit.began > span.found:
        return False
    if any(later.generation > commit.generation >= 0 and not _joined_after(commit, later) for later in certain):
        return False
    ended = commit.ended
    return ended is None or not any(later.began > ended for later in certain)


def _joined_after(commit: CommitAttempt, other: CommitAttempt) -> bool:
    """Whether the member of `commit` joined only after `other` was answered. Its generation may then have the lower number: a generation
    that ends before SyncGroup is not written to disk, and a restarted coordinator uses its number again."""
    return commit.span is not None and other.ended is not None and commit.span.began > other.ended


def last_offset_is_committed(history: History, offsets: Offsets, committed: Mapping[TopicPartition, int | None]) -> Iterator[str]:
    """After the last member has left cleanly, nothing is left to read.

    A commit still in flight may be written after the last answered one and replace it: its member had given up that connection.
    """
    for tp, offset in committed.items():
        left = [other for other in offsets[tp] if other >= (offset or 0)]
        if left and not _was_overwritten(history, tp, offset, left[-1]):
            yield f"{history.group}: {tp}: committed is {offset}, offsets {left[:5]} come after it"


def _was_overwritten(history: History, tp: TopicPartition, offset: int | None, last: int) -> bool:
    """Whether a commit after the last offset was answered, and a commit of `offset` never was."""
    commits = [commit for commit in history.commits if commit.tp == tp and not commit.is_refused]
    ended = any(commit.offset > last for commit in commits if commit.ended is not None)
    return ended and any(commit.offset == offset for commit in commits if commit.ended is None)


def one_member_per_partition(history: History) -> Iterator[str]:
    """In one generation of the group a partition is assigned to one member."""
    for (generation, tp), members in sorted(history.members_of.items()):
        if len(members) > 1:
            yield f"{history.group}: {tp} has {len(members)} members in generation {generation}"


def records_are_transformed_once(
    history: History, made_from: Mapping[int, int], logs: Logs, committed: Committed, tps: Sequence[TopicPartition]
) -> Iterator[str]:
    """Exactly one record was written for each readable record, and none for others. Trimmed records may have been trimmed before they were
    read."""
    made = Counter(made_from[record.number] for records in committed.values() for record in records if record.number in made_from)
    due, gone = set[int](), set[int]()
    for tp in tps:
        for record in visible_to_group(history, logs[tp]):
            (due if record.offset >= logs[tp].log_start_offset else gone).add(record.number)
    for number in sorted((due | set(made)) - {number for number in gone if made[number] <= 1}):
        if made[number] != (number in due):
            yield f"{history.group}: of record {number} {made[number]} records were made, expected {int(number in due)}"


def fenced_members_commit_nothing(history: History) -> Iterator[str]:
    """A member fenced by a process with its group.instance.id commits nothing, unless it has joined again since that process started."""
    for commit in history.commits:
        if commit.span is None or commit.ended is None:
            continue
        member = commit.span.member
        own = [membership for membership in history.static_memberships if membership.member == member and membership.joined < commit.ended]
        for membership in history.static_memberships if own else ():
            is_later = membership.instance == own[-1].instance and membership.began > own[-1].joined
            if is_later and membership.member != member and membership.joined < commit.began:
                yield f"{history.group}: {member}: {commit.tp}: {commit.offset} was committed, although {membership.member} had fenced it"
                break


def _between(offsets: Sequence[int], start: int, stop: int) -> Sequence[int]:
    return offsets[bisect_left(offsets, start) : bisect_left(offsets, stop)]


def _misordered_part(delivered: Sequence[int]) -> list[int]:
    """The offsets around the place where the order is broken."""
    at = next((index for index in range(1, len(delivered)) if delivered[index] <= delivered[index - 1]), 1)
    return list(delivered[max(0, at - 2) : at + 3])
