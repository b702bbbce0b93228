"""Checkers of the quiet world: the network is healed, the broker is up and every transaction is decided.

Each checker yields one line per violation with the record, the partition and the observation. They compare facts only: the outcomes callers
got (`SentRecord`), the records readers see, and the contents of the logs. None depends on how the cores work.
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
    """No transaction is open anywhere: the last stable offset is the end of the log."""
    for topic_partition, log in logs.items():
        if log.last_stable_offset != log.log_end_offset:
            yield f"{topic_partition}: the last stable offset stays at {log.last_stable_offset}, the log ends at {log.log_end_offset}"


def compacted_records(ledgers: Sequence[Ledger], logs: Logs) -> frozenset[int]:
    """Numbers of records that compaction may have removed: acknowledged and absent, but a later record of the key exists or their
    transaction did not commit. The last record of a key is therefore never among them."""
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
    """A read_committed reader got exactly the records that the markers in the log make visible, in log order.

    It may also have got records that compaction has since removed. If it was late, it may have missed trimmed records.
    """
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
    """The committed records of a log, derived from its markers alone: a transaction ends at its producer's next marker."""
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
    """The records a read_committed reader got, preceded by the visible records that were trimmed from the logs."""
    found = {}
    for tp, records in committed.items():
        start = logs[tp].log_start_offset
        gone = [record for record in visible(logs[tp]) if record.offset < start] if start else []
        found[tp] = [*gone, *(record for record in records if record.offset >= start)]
    return found


def logs_survive_a_death(before: Logs, after: Logs) -> Iterator[str]:
    """A broker death with nothing in flight changes no log, except for further compaction."""
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
    """A power loss removes no topic whose creation was acknowledged and brings back no deleted one, whatever flush.policy is."""
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            yield f"topic {name} was {before.get(name)}, after a loss of power {after.get(name)}"


def power_loss_takes_only_the_unflushed_end(before: Logs, after: Logs, flushed: Mapping[TopicPartition, int]) -> Iterator[str]:
    """With flush.policy=os a power loss removes only the end of a log, from the offset in `flushed` on.

    The starting broker may have added markers. Compaction may have removed records anywhere.
    """
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
    """Where two logs differ first."""
    at = next((at for at, (one, other) in enumerate(zip(found, expected, strict=False)) if one != other), len(expected))
    return f"it holds {found[at : at + 1]} where {expected[at : at + 1]} was"


def offsets_are_dense(logs: Logs) -> Iterator[str]:
    """Records and markers use every offset once, in order; in a compacted log at most once."""
    for topic_partition, log in logs.items():
        offsets = sorted([record.offset for record in log.records] + [marker.offset for marker in log.markers])
        expected = sorted(set(offsets)) if log.is_compacted else list(range(log.log_end_offset))
        if offsets != expected or (offsets and offsets[-1] >= log.log_end_offset):
            yield f"{topic_partition}: {len(offsets)} records and markers over {log.log_end_offset} offsets"


def sequences_ascend(logs: Logs) -> Iterator[str]:
    """Within one producer epoch, sequence numbers in a partition ascend and none is used twice."""
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
    """Each row of a query is visible exactly once: in its partition, or in the dead letters if it is bad. Rows that
    the handler drops are in neither."""
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
    """In each partition a query's rows are in the order of batches, tasks and rows, which is the order of their numbers."""
    mine = {row.number for row in query.rows()}
    for topic_partition, records in committed.items():
        if topic_partition.topic != DEAD_LETTER_TOPIC:
            numbers = [record.number for record in records if record.number in mine]
            if numbers != sorted(numbers):
                at = next(index for index in range(1, len(numbers)) if numbers[index] < numbers[index - 1])
                yield f"{query.name}: {topic_partition} has row {numbers[at]} after row {numbers[at - 1]}"


def dead_letter_files_are_complete(query: Query) -> Iterator[str]:
    """The Parquet file of each batch holds its bad rows and belongs to the driver that wrote the batch, if one was notified of that."""
    for batch_id, tasks in enumerate(query.batches):
        expected = sum(query.is_dead_letter(row) for rows in tasks for row in rows)
        found = query.dead_rows.get(batch_id, 0)
        if found != expected:
            yield f"{query.name}: the dead letter file of batch {batch_id} has {found} rows, expected {expected}"
        writer, owner = query.written_by.get(batch_id), query.dead_rows_of.get(batch_id)
        if found and writer not in (None, owner):
            yield f"{query.name}: the dead letter file of batch {batch_id} belongs to {owner}, the batch was written by {writer}"


# Outcomes reported to the users of producers --------------------------------------------------------------------------------------

RECORD_ERRORS: Final = frozenset({
    codes.INVALID_RECORD, codes.INVALID_TIMESTAMP, codes.INVALID_COMPACTION_KEY, codes.MESSAGE_TOO_LARGE, codes.RECORD_LIST_TOO_LARGE,
    codes.CORRUPT_MESSAGE, codes.INVALID_REQUEST,
})  # fmt: skip
"""Codes that blame the record itself."""
EXCUSABLE_ERRORS: Final = frozenset({codes.REQUEST_TIMED_OUT, codes.NETWORK_EXCEPTION})
"""The only errors a good record outside a transaction may get while its topic exists."""
UNKNOWN_TOPIC: Final = frozenset({codes.UNKNOWN_TOPIC_OR_PARTITION, codes.UNKNOWN_TOPIC_ID})


def every_record_has_one_outcome(ledger: Ledger) -> Iterator[str]:
    """Each record has exactly one outcome; only records of a killed producer may have none."""
    for number, sent in ledger.sent.items():
        count = len(sent.offsets) + len(sent.errors) + sent.drops
        if count > 1 or (count == 0 and not sent.is_orphan):
            yield f"{sent.sender}: record {number} has {count} outcomes: {sent.offsets} {[str(error) for error in sent.errors]}"


def outcomes_match_the_logs(ledger: Ledger, logs: Logs, removed: Set[int] = frozenset(), deleted: Sequence[Logs] = ()) -> Iterator[str]:
    """Outcomes agree with the logs. Acknowledged records are stored once, in their partition, at the reported offset. Records failed with
    stored=no are stored nowhere. Records failed with stored=possibly, and those of killed producers, are stored at most once.

    `removed`: see `compacted_records`. `deleted`: logs of deleted topics. A record that may be in one of them may also be in the next topic
    of that name, once.
    """
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
    """Records sent long after the last fault are acknowledged, also in a topic that had been deleted. `last`: those records.

    Exception: an interrupted write may be in the topic whose id the producer knew. It is not sent to the next topic.
    """
    for number in sorted(last & ledger.sent.keys()):
        sent = ledger.sent[number]
        is_of_former = sent.was_interrupted and any(isinstance(error, UnknownTopicIdException) for error in sent.errors)
        if not sent.offsets and sent.handler_response is None and not is_of_former:
            yield f"{sent.sender}: record {number} was sent to {sent.record.topic_partition} in the end, and failed: {sent.errors}"


def _locations(logs: Logs) -> Mapping[int, Sequence[tuple[TopicPartition, int]]]:
    """The locations of each record."""
    locations: dict[int, list[tuple[TopicPartition, int]]] = {}
    for topic_partition, log in logs.items():
        for record in log.records:
            locations.setdefault(record.number, []).append((topic_partition, record.offset))
    return locations


def records_stay_in_their_topic(ledger: Ledger, made: Sequence[tuple[int, Logs]]) -> Iterator[str]:
    """No record is in a topic created after the record had its outcome: requests still in flight then are for the earlier topic.

    `made`: the logs of topics of the same name, each with its creation time.
    """
    for created_ms, logs in made:
        for topic_partition, log in logs.items():
            for record in log.records:
                sent = ledger.sent.get(record.number)
                if sent is not None and sent.ended_ms is not None and sent.ended_ms < created_ms:
                    late_ms = created_ms - sent.ended_ms
                    yield f"{sent.sender}: record {record.number} is in a {topic_partition} that was made {late_ms} ms after it had ended"


def only_culprits_are_blamed(ledger: Ledger, accused: Set[int]) -> Iterator[str]:
    """Only bad records fail with an error that blames the record, and with the code of their own fault.

    `accused`: good records that the broker itself has blamed.
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
    """Whether a good record may fail with this error. A record of an unknown topic fails only in one of these cases: the handler returns
    FAIL; its time is up; or the handler separates records of its batch and the batch may be stored. Otherwise it is retried."""
    if error.code in UNKNOWN_TOPIC and sent.ended_ms is not None:
        return (
            sent.handler_response is RetriableResponse.FAIL
            or error.stored is not Stored.NO
            or sent.ended_ms - sent.sent_ms >= delivery_timeout_ms
        )
    return error.code in EXCUSABLE_ERRORS


def order_is_preserved(ledger: Ledger, logs: Logs) -> Iterator[str]:
    """In each partition, records of one producer process are in the order in which they were sent."""
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
    """Transactions are atomic. Committed: every record is acknowledged and visible. Aborted or never ended: none is visible. Commit without
    a response: all or none."""
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
    """The group's committed offset is that of the last transaction with an offset whose records are visible."""
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
        yield f"{ledger.name}: the committed offset is {offset}, its transactions allow {sorted(possible, key=str)}"


def _expected_visible(ledger: Ledger, transaction: Transaction, removed: Set[int]) -> list[int]:
    """Records of the transaction that are visible if it committed: neither removed nor dropped by a handler."""
    return [number for number in transaction.records if number in ledger.sent and number not in removed and not ledger.sent[number].drops]


def _partition_names(found: Sequence[TopicPartition]) -> str:
    return ", ".join(map(str, found)) or "no partition"
