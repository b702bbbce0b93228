"""What must hold once everything is quiet: the network healed, the broker up, every transaction decided.

Each check gives one line per violation, naming the record, the partition and what was seen. They look at facts only: what callers were told
(`SentRecord`), what readers see, and what the logs hold. None of them knows how the cores work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Final
from uuid import UUID

from chaffinch.errors import KafkaException, Stored, UnknownTopicIdException, codes
from chaffinch.identifiers import TopicPartition
from chaffinch.producer.core.exception_handler import RetriableResponse
from simulation.log_reader import LogContents, LogRecord
from simulation.programs.programs import Fate, Ledger, SentRecord, Transaction
from simulation.queries.query import DEAD_LETTER_TOPIC, Query

Committed = Mapping[TopicPartition, Sequence[LogRecord]]
Logs = Mapping[TopicPartition, LogContents]


def logs_are_decided(logs: Logs) -> Iterator[str]:
    """No transaction is left open anywhere: readers of committed records see up to the end."""
    for topic_partition, log in logs.items():
        if log.last_stable_offset != log.log_end_offset:
            yield f"{topic_partition}: the last stable offset stays at {log.last_stable_offset}, the log ends at {log.log_end_offset}"


def compacted_records(ledgers: Sequence[Ledger], logs: Logs) -> frozenset[int]:
    """Records that compaction may have taken: acknowledged and not there, but a later one of their key is, or their transaction did not
    commit. So the last record of each key is never among them."""
    removed: set[int] = set()
    sent = {number: entry for ledger in ledgers for number, entry in ledger.sent.items()}
    last: dict[tuple[TopicPartition, bytes | None], int] = {}
    compacted = {topic_partition: log for topic_partition, log in logs.items() if log.is_compacted}
    present = {record.number for log in compacted.values() for record in log.records}
    for topic_partition, log in compacted.items():
        for record in visible(log):
            if record.number in sent:
                last[topic_partition, sent[record.number].record.key] = record.offset
    for number, entry in sent.items():
        tp = entry.record.topic_partition
        if entry.offsets and number not in present and tp in compacted:
            is_committed = entry.transaction is None or entry.transaction.fate is Fate.COMMITTED
            if not is_committed or entry.offsets[0] < last.get((tp, entry.record.key), -1):
                removed.add(number)
    return frozenset(removed)


def readers_agree(actor: str, committed: Committed, logs: Logs) -> Iterator[str]:
    """What Fetch gave to a reader of committed records is what the markers in the log say, in the order of the log.

    From a compacted log a reader may have got more: what was taken away since. And of what went at the beginning less, if it was late."""
    for topic_partition, records in committed.items():
        expected, start = visible(logs[topic_partition]), logs[topic_partition].log_start_offset
        if start:
            given = {record.offset for record in records}
            expected = [record for record in expected if record.offset >= start or record.offset in given]
        if logs[topic_partition].is_compacted:
            there = {record.offset for record in logs[topic_partition].records}
            records = [record for record in records if record.offset in there]
        if list(records) != expected:
            seen, due = {r.offset for r in records}, {r.offset for r in expected}
            yield (
                f"{actor}: {topic_partition}: read_committed differs from the markers: missing offsets {sorted(due - seen)[:5]}, "
                f"too many {sorted(seen - due)[:5]}"
            )


def visible(log: LogContents) -> list[LogRecord]:
    """The committed records of a log, worked out from its markers alone: a transaction ends at its producer's next marker."""
    found = []
    for record in log.records:
        if record.is_transactional:
            marker = next(
                (m for m in log.markers if m.offset > record.offset and m.identity.producer_id == record.identity.producer_id), None
            )
            if marker is None or not marker.is_commit:
                continue
        found.append(record)
    return found


def with_trimmed_records(committed: Committed, logs: Logs) -> dict[TopicPartition, list[LogRecord]]:
    """What a reader of committed records has got, and before it what had gone at the beginning of the logs."""
    found = {}
    for tp, records in committed.items():
        start = logs[tp].log_start_offset
        gone = [record for record in visible(logs[tp]) if record.offset < start] if start else []
        found[tp] = [*gone, *(record for record in records if record.offset >= start)]
    return found


def logs_survive_a_death(before: Logs, after: Logs) -> Iterator[str]:
    """A death of the broker with nothing under way changes no log; compaction may go on."""
    for topic_partition in sorted({*before, *after}):
        old, new = before.get(topic_partition), after.get(topic_partition)
        if old is not None and new is not None and old.is_compacted:
            old = replace(
                old,
                records=[record for record in old.records if record in new.records],
                markers=[marker for marker in old.markers if marker in new.markers],
            )
        if old != new:
            was, found = (None if log is None else (log.log_start_offset, log.log_end_offset) for log in (old, new))
            yield f"{topic_partition}: the log spanned {was}, after one more death of the quiet broker {found}"


def topics_survive_power_loss(before: Mapping[str, UUID], after: Mapping[str, UUID]) -> Iterator[str]:
    """A loss of power takes no topic whose creation was acknowledged, and gives none back, whatever flush.policy is."""
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            yield f"topic {name} was {before.get(name)}, after a loss of power {after.get(name)}"


def power_loss_takes_only_the_unflushed_end(before: Logs, after: Logs, flushed: Mapping[TopicPartition, int]) -> Iterator[str]:
    """With flush.policy=os a loss of power takes the end of a log that was not flushed, and nothing else. `flushed`: what is before.

    The broker that starts may have added markers. What is compacted away meanwhile has gone anywhere."""
    for tp, new in after.items():
        old = before[tp]
        start = max(old.log_start_offset, new.log_start_offset)
        left = [record for record in old.records if record.offset >= start and (not old.is_compacted or record in new.records)]
        found = [record for record in new.records if record.offset >= start]
        if found != left[: len(found)]:
            yield f"{tp}: after a loss of power {_first_difference(found, left)}"
        lost = [record.offset for record in left[len(found) :] if record.offset < flushed[tp]]
        if lost or new.log_end_offset < flushed[tp]:
            yield f"{tp}: up to {flushed[tp]} was flushed, a loss of power took {lost[:5]}, and it ends at {new.log_end_offset}"


def _first_difference(found: Sequence[LogRecord], expected: Sequence[LogRecord]) -> str:
    """Where two logs part."""
    at = next((at for at, (one, other) in enumerate(zip(found, expected, strict=False)) if one != other), len(expected))
    return f"it holds {found[at : at + 1]} where {expected[at : at + 1]} was"


def offsets_are_dense(logs: Logs) -> Iterator[str]:
    """Records and markers take every offset once, in order; at most once in a compacted log."""
    for topic_partition, log in logs.items():
        offsets = sorted([record.offset for record in log.records] + [marker.offset for marker in log.markers])
        expected = sorted(set(offsets)) if log.is_compacted else list(range(log.log_end_offset))
        if offsets != expected or (offsets and offsets[-1] >= log.log_end_offset):
            yield f"{topic_partition}: {len(offsets)} records and markers over {log.log_end_offset} offsets"


def sequences_ascend(logs: Logs) -> Iterator[str]:
    """Within one producer epoch a partition holds each sequence number once, ascending: none is used twice."""
    for topic_partition, log in logs.items():
        last: dict[tuple[int, int], int] = {}
        for record in log.records:
            if record.identity.producer_id < 0:
                continue
            before = last.get(record.identity)
            if before is not None and record.sequence <= before:
                yield f"{topic_partition}: offset {record.offset} has sequence {record.sequence} after {before}, producer {record.identity}"
            last[record.identity] = record.sequence


def rows_are_written_once(query: Query, committed: Committed) -> Iterator[str]:
    """Each row of a query is visible exactly once: in its partition, or, when it is bad, in the dead letters; left out rows are nowhere."""
    dead: Counter[int] = Counter()
    where: dict[int, list[TopicPartition]] = {}
    for topic_partition, records in committed.items():
        for record in records:
            if topic_partition.topic == DEAD_LETTER_TOPIC:
                dead[record.number] += 1
            else:
                where.setdefault(record.number, []).append(topic_partition)
    for row in query.rows():
        expected = [] if row.is_bad else [row.topic_partition]
        found = where.get(row.number, [])
        if found != expected:
            yield f"{query.name}: row {row.number} is in {_partition_names(found)}, expected {_partition_names(expected)}"
        if dead[row.number] != query.is_dead_letter(row):
            yield f"{query.name}: row {row.number} is in the dead letters {dead[row.number]} times, {'bad' if row.is_bad else 'innocent'}"


def rows_are_in_order(query: Query, committed: Committed) -> Iterator[str]:
    """A query's rows stand in each partition in the order of batches, tasks and rows, which is that of their numbers."""
    mine = {row.number for row in query.rows()}
    for topic_partition, records in committed.items():
        if topic_partition.topic != DEAD_LETTER_TOPIC:
            numbers = [record.number for record in records if record.number in mine]
            if numbers != sorted(numbers):
                at = next(index for index in range(1, len(numbers)) if numbers[index] < numbers[index - 1])
                yield f"{query.name}: {topic_partition} has row {numbers[at]} after row {numbers[at - 1]}"


def dead_letter_files_are_complete(query: Query) -> Iterator[str]:
    """The Parquet file of each batch holds its bad rows, and is of the driver that has written the batch, where one was told so."""
    for batch_id, tasks in enumerate(query.batches):
        expected = sum(query.is_dead_letter(row) for rows in tasks for row in rows)
        found = query.dead_rows.get(batch_id, 0)
        if found != expected:
            yield f"{query.name}: the dead letter file of batch {batch_id} has {found} rows, expected {expected}"
        writer, owner = query.written_by.get(batch_id), query.dead_rows_of.get(batch_id)
        if found and writer not in (None, owner):
            yield f"{query.name}: the dead letter file of batch {batch_id} is of {owner}, the batch was written by {writer}"


# What the users of producers were told ------------------------------------------------------------------------------------------------

RECORD_ERRORS: Final = frozenset({
    codes.INVALID_RECORD, codes.INVALID_TIMESTAMP, codes.INVALID_COMPACTION_KEY, codes.MESSAGE_TOO_LARGE, codes.RECORD_LIST_TOO_LARGE,
    codes.CORRUPT_MESSAGE, codes.INVALID_REQUEST,
})  # fmt: skip
"""Codes that say: this very record is at fault."""
EXCUSABLE_ERRORS: Final = frozenset({codes.REQUEST_TIMED_OUT, codes.NETWORK_EXCEPTION})
"""All that may befall a good record outside a transaction, while its topic is there."""
UNKNOWN_TOPIC: Final = frozenset({codes.UNKNOWN_TOPIC_OR_PARTITION, codes.UNKNOWN_TOPIC_ID})


def every_record_has_one_outcome(ledger: Ledger) -> Iterator[str]:
    """Each record has one outcome; only those of a killed producer may have none."""
    for number, sent in ledger.sent.items():
        count = len(sent.offsets) + len(sent.errors) + sent.drops
        if count > 1 or (count == 0 and not sent.is_orphan):
            yield f"{sent.sender}: record {number} has {count} outcomes: {sent.offsets} {[str(error) for error in sent.errors]}"


def outcomes_match_the_logs(ledger: Ledger, logs: Logs, removed: Set[int] = frozenset(), deleted: Sequence[Logs] = ()) -> Iterator[str]:
    """Written: in its partition, once, at the offset told. Failed with stored=no: nowhere. Possibly, or orphaned: at most once.

    `removed`: see `compacted_records`. `deleted`: logs of topics that were deleted; what may be in one of them may be in the next of that
    name
    too, once."""
    each = [_locations(one) for one in (logs, *deleted)]
    for number, sent in ledger.sent.items():
        found = [tp for locations in each for tp in locations.get(number, ())]
        where = sent.record.topic_partition
        if any(topic_partition != where for topic_partition, _ in found):
            yield f"{sent.sender}: record {number} for {where} is in {found}"
        if len(found) > 1 and any(len(locations.get(number, ())) > 1 for locations in each):
            yield f"{sent.sender}: record {number} is stored {len(found)} times: {found}"
        if sent.offsets and not found and number not in removed:
            yield f"{sent.sender}: record {number} was acknowledged at {where} offset {sent.offsets[0]} and is not there"
        if sent.offsets and found and sent.offsets[0] not in (-1, *(offset for _, offset in found)):
            yield f"{sent.sender}: record {number} was acknowledged at offset {sent.offsets[0]} and is at {found[0][1]}"
        if sent.errors and sent.errors[0].stored is Stored.NO and found:
            yield f"{sent.sender}: record {number} failed as not stored and is in {found}: {sent.errors[0]!r}"
        if sent.errors and sent.errors[0].stored is Stored.YES and not found:
            yield f"{sent.sender}: record {number} failed as stored and is not there: {sent.errors[0]!r}"
        if sent.drops and found:
            yield f"{sent.sender}: record {number} was dropped and is stored at {found}"
        if sent.record.fault is not None and (found or sent.offsets):
            yield f"{sent.sender}: record {number} is bad, {sent.record.fault.value}, and is stored at {found}"


def final_records_are_acknowledged(ledger: Ledger, last: Set[int]) -> Iterator[str]:
    """What is sent when nothing has gone wrong for long is acknowledged, also in a topic that was gone. `last`: those records.

    The exception: a write that was interrupted may be in the topic of the id that its producer knew. It is not sent to the next topic."""
    for number in sorted(last & ledger.sent.keys()):
        sent = ledger.sent[number]
        is_of_former = sent.was_interrupted and any(isinstance(error, UnknownTopicIdException) for error in sent.errors)
        if not sent.offsets and sent.handler_response is None and not is_of_former:
            yield f"{sent.sender}: record {number} was sent to {sent.record.topic_partition} in the end, and failed: {sent.errors}"


def _locations(logs: Logs) -> Mapping[int, Sequence[tuple[TopicPartition, int]]]:
    """Where each record is."""
    locations: dict[int, list[tuple[TopicPartition, int]]] = {}
    for topic_partition, log in logs.items():
        for record in log.records:
            locations.setdefault(record.number, []).append((topic_partition, record.offset))
    return locations


def records_stay_in_their_topic(ledger: Ledger, made: Sequence[tuple[int, Logs]]) -> Iterator[str]:
    """No record is in a topic that was made after it had ended: what is still under way then is for the topic before.

    `made`: the logs of topics of the same name, with the time at which each was made."""
    for created_ms, logs in made:
        for topic_partition, log in logs.items():
            for record in log.records:
                sent = ledger.sent.get(record.number)
                if sent is not None and sent.ended_ms is not None and sent.ended_ms < created_ms:
                    late_ms = created_ms - sent.ended_ms
                    yield f"{sent.sender}: record {record.number} is in a {topic_partition} that was made {late_ms} ms after it had ended"


def only_culprits_are_blamed(ledger: Ledger, accused: Set[int]) -> Iterator[str]:
    """An error that blames the record itself comes for bad records only, with the code of what is wrong with them.

    `accused`: innocents that the broker itself has blamed.
    """
    for number, sent in ledger.sent.items():
        if sent.drops and sent.record.fault is None and number not in accused and sent.handler_response is not RetriableResponse.SWALLOW:
            yield f"{sent.sender}: record {number} is innocent and was dropped"
        for error in sent.errors:
            fault = sent.record.fault
            is_blamed = error.code in RECORD_ERRORS
            if is_blamed and fault is None and number not in accused:
                yield f"{sent.sender}: record {number} is innocent and was blamed: {error!r}"
            elif is_blamed and fault is not None and number not in accused and error.code not in fault.codes:
                yield f"{sent.sender}: record {number}, {fault.value}, was blamed for something else: {error!r}"
            elif sent.transaction is None and not is_blamed and not _is_excused(sent, error, ledger.delivery_timeout_ms):
                yield f"{sent.sender}: record {number} failed for no good reason: {error!r}"


def _is_excused(sent: SentRecord, error: KafkaException, delivery_timeout_ms: int) -> bool:
    """Whether an error may befall a good record. That nobody knows its topic ends it when the handler says so, or time is up, or, where
    the handler wants records of the batch apart from others, when it may be stored: else it is tried again."""
    if error.code in UNKNOWN_TOPIC and sent.ended_ms is not None:
        return (
            sent.handler_response is RetriableResponse.FAIL
            or error.stored is not Stored.NO
            or sent.ended_ms - sent.sent_ms >= delivery_timeout_ms
        )
    return error.code in EXCUSABLE_ERRORS


def order_is_preserved(ledger: Ledger, logs: Logs) -> Iterator[str]:
    """Records of one producer process stand in each partition in the order in which they were sent."""
    for topic_partition, log in logs.items():
        last: dict[str, SentRecord] = {}
        for record in log.records:
            sent = ledger.sent.get(record.number)
            if sent is not None:
                before = last.get(sent.sender)
                if before is not None and sent.serial < before.serial:
                    yield f"{sent.sender}: {topic_partition} has record {record.number} after {before.record.number}, which was sent later"
                last[sent.sender] = sent


def transactions_are_atomic(ledger: Ledger, committed: Committed, removed: Set[int] = frozenset()) -> Iterator[str]:
    """Committed: every record acknowledged and visible. Aborted or never ended: none visible. Commit without an answer: all or none."""
    seen = {record.number for records in committed.values() for record in records}
    for transaction in ledger.transactions:
        name = f"{ledger.name}: transaction {transaction.number} ({transaction.fate.value})"
        numbers = _expected_visible(ledger, transaction, removed)
        visible_ones = [number for number in numbers if number in seen]
        unacknowledged = [number for number in numbers if not ledger.sent[number].offsets]
        if transaction.fate is Fate.COMMITTED:
            if unacknowledged:
                yield f"{name}: its records {unacknowledged[:5]} were not acknowledged"
            if len(visible_ones) != len(numbers):
                yield f"{name}: {len(visible_ones)} of its {len(numbers)} records are visible"
        elif transaction.fate is Fate.COMMITTING:
            if len(visible_ones) not in (0, len(numbers)):
                yield f"{name}: {len(visible_ones)} of its {len(numbers)} records are visible"
        elif visible_ones:
            yield f"{name}: {len(visible_ones)} of its {len(numbers)} records are visible"


def offsets_follow_transactions(ledger: Ledger, committed: Committed, offset: int | None, removed: Set[int] = frozenset()) -> Iterator[str]:
    """The group's committed offset is that of the last transaction that brought one and whose records are visible."""
    seen = {record.number for records in committed.values() for record in records}
    possible: set[int | None] = {None}
    for transaction in ledger.transactions:
        if not transaction.has_offsets or transaction.fate in (Fate.ABORTED, Fate.OPEN):
            continue
        if transaction.fate is Fate.COMMITTED or seen.intersection(transaction.records):
            possible = {transaction.number}
        elif not _expected_visible(ledger, transaction, removed):
            possible.add(transaction.number)
    if offset not in possible:
        yield f"{ledger.name}: the committed offset is {offset}, its transactions say {sorted(possible, key=str)}"


def _expected_visible(ledger: Ledger, transaction: Transaction, removed: Set[int]) -> list[int]:
    """Its records that are visible if it is committed: neither away nor dropped by a handler."""
    return [number for number in transaction.records if number in ledger.sent and number not in removed and not ledger.sent[number].drops]


def _partition_names(found: Sequence[TopicPartition]) -> str:
    return ", ".join(map(str, found)) or "no partition"
