"""Append path of Produce: validates one partition's batch and appends it to the log.

Order of the checks: slice, CRC, duplicate, size, batch header, replication (KIP-579, in-sync count), record rules, segment size (of the
batch as it is stored), transaction, producer epoch, sequence. A duplicate is detected before everything that can change with time or
configuration, so that a retry of a stored batch is never refused. (For this, size and CRC are swapped compared to Apache Kafka.) A refused
batch leaves no trace.

Message sets of formats 0 and 1, which Produce versions 0 to 2 may carry, take the same path without a producer and are stored as one batch
of format 2. These versions may also carry batches of format 2, as in Apache Kafka; later versions refuse message sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from chaffinch.broker.core.broker_state import BrokerState
from chaffinch.broker.core.refusal import disk_failure_message
from chaffinch.broker.core.replicas.acknowledgement import replication_fault
from chaffinch.broker.core.topics.registry import Partition
from chaffinch.broker.core.transactions.coordinator import NOT_WRITTEN
from chaffinch.errors import codes
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.primitives import Buffer
from chaffinch.records import batch
from chaffinch.records.batch import HEADER_BYTES, BatchHeader, BatchView
from chaffinch.records.batch_header import ATTRIBUTE_TRANSACTIONAL, LENGTH_END, MAGIC, MAGIC_POSITION, unpack_header
from chaffinch.records.compression import Compression
from chaffinch.records.errors import CorruptBatch, Fault
from chaffinch.records.old_formats.message_set import OLD_FORMATS, MessageSet, read_message_set
from chaffinch.records.old_formats.validation import check_set, convert
from chaffinch.records.validation import Origin, check_batch, check_records
from chaffinch.records.validation_result import Rejected, counted_once
from chaffinch.records.validation_rules import INVALID_CRC, INVALID_MAGIC, INVALID_SEQUENCE, batch_message, checksum_text
from chaffinch.storage.file_system import StorageError
from chaffinch.storage.partition_log import AppendResult

VERSION_WITH_BATCHES = 3
VERSION_WITH_ZSTD = 7
VERSION_WITH_ABORTABLE = 11
VERSION_WITH_IMPLICIT_ADD = 12
PLAIN_ATTRIBUTES = frozenset(codec | transactional for codec in Compression for transactional in (0, ATTRIBUTE_TRANSACTIONAL))
"""Attributes of ordinary batches: any codec, transactional or not, CreateTime, no control batch."""


@dataclass(slots=True, eq=False)
class AppendTerms:
    """Fields of a Produce request that apply to all its batches. Not frozen, because creating a frozen instance takes longer.

    `partitions_to_add`: added to the transaction, with one write, by the first batch that begins it; empty afterwards.
    """

    acks: int
    version: int
    transactional_id: str | None
    partitions_to_add: Sequence[TopicPartition] = ()


Outcome: TypeAlias = AppendResult | Rejected


def append(broker: BrokerState, partition: Partition, records: Buffer | None, terms: AppendTerms, steady_ms: int) -> Outcome:
    """Check one partition's records from a client and append them. Raises StorageError if the disk fails; nothing is stored then."""
    view = sliced(records, partition.topic_partition, terms)
    if not isinstance(view, BatchView):
        return view if isinstance(view, Rejected) else _append_set(broker, partition, view, terms, steady_ms)
    if not view.crc_is_valid():
        wrong = batch_message(partition.topic_partition, checksum_text(view))
        return Rejected(codes.CORRUPT_MESSAGE, wrong, counts=counted_once(INVALID_CRC))
    header, size = view.header, len(view.data)
    log, topic = partition.log, partition.topic
    has_producer = header.producer_id >= 0
    duplicate = _duplicate(broker, partition, header, terms) if has_producer else None
    if duplicate is not None:
        return duplicate
    policy, config = partition.policy, topic.config
    if not is_plainly_valid(header, size, policy.batch_bytes_max):
        rejected = check_batch(view, policy, Origin.CLIENT, crc_was_checked=True)
        if rejected is not None:
            return rejected
    if has_producer and not config.takes_idempotent_batches:
        wrong = (
            f"it has producer id {header.producer_id}, and the topic's message.format.version, below 0.11, does not support producer ids"
        )
        return Rejected(codes.UNSUPPORTED_FOR_MESSAGE_FORMAT, batch_message(partition.topic_partition, wrong))
    if config.in_sync_min > 1 and (rejected := replication_fault(broker, partition, terms.acks)) is not None:
        return rejected
    verdict = check_records(view, policy, Origin.CLIENT, broker.wall.at(steady_ms))
    if isinstance(verdict, Rejected):
        broker.bytes_handled += policy.decompressed_bytes_max if header.compression_id else size
        return verdict
    broker.bytes_handled += verdict.records_bytes
    if len(verdict.batch) > config.log.segment_bytes:
        return _larger_than_segment(len(verdict.batch), partition)
    if has_producer and (rejected := _producer_fault(broker, partition, header, terms, steady_ms)) is not None:
        return rejected
    stored = verdict.batch if verdict.is_rewritten else view
    result = log.append(stored, steady_ms=steady_ms, leader_epoch=partition.replicas.leader_epoch)
    broker.counters.add_stored(topic.name, verdict.count, size)
    broker.grown.append(partition)
    return result


def _duplicate(broker: BrokerState, partition: Partition, header: BatchHeader, terms: AppendTerms) -> AppendResult | None:
    """The position of an already stored batch of this producer, otherwise None. A batch that begins a transaction is announced to the
    log.
    """
    duplicate = partition.log.find_duplicate(header)
    if duplicate is not None:
        broker.counters.add(partition.topic.name, "TotalProduceRequestsPerSec")
        broker.counters.add(partition.topic.name, "DuplicateBatchesPerSec")
    elif begins_transaction(partition, header) and broker.transactions.is_current(terms.transactional_id, header.identity):
        partition.log.expect(header)
    return duplicate


def _append_set(broker: BrokerState, partition: Partition, message_set: MessageSet, terms: AppendTerms, steady_ms: int) -> Outcome:
    """Append a message set of format 0 or 1. Duplicates cannot be detected: these formats have no producer ids."""
    size = len(message_set.data)
    rejected = check_set(message_set, partition.policy) or replication_fault(broker, partition, terms.acks)
    if rejected is not None:
        return rejected
    verdict = convert(message_set, partition.policy, broker.wall.at(steady_ms))
    if isinstance(verdict, Rejected):
        broker.bytes_handled += partition.policy.decompressed_bytes_max if message_set.is_wrapper else size
        return verdict
    broker.bytes_handled += verdict.records_bytes
    converted = len(verdict.batch)
    if converted > partition.topic.config.log.segment_bytes:
        return _larger_than_segment(converted, partition)
    result = partition.log.append(verdict.batch, steady_ms=steady_ms, leader_epoch=partition.replicas.leader_epoch)
    broker.counters.add_stored(partition.topic.name, verdict.count, converted)
    broker.grown.append(partition)
    return result


def sliced(records: Buffer | None, tp: TopicPartition, terms: AppendTerms) -> BatchView | MessageSet | Rejected:
    """Slice a partition's records: exactly one batch, or one message set."""
    if records is None or len(records) < HEADER_BYTES:
        return _unsliced(records, tp, terms)
    header = unpack_header(records)
    if header.length + LENGTH_END != len(records) or header.magic != MAGIC:
        return _unsliced(records, tp, terms)
    if terms.version < VERSION_WITH_ZSTD and header.compression_id == Compression.ZSTD:
        wrong = f"zstd was sent in Produce version {terms.version}, it requires {VERSION_WITH_ZSTD} or later"
        return Rejected(codes.UNSUPPORTED_COMPRESSION_TYPE, batch_message(tp, wrong))
    return BatchView(records if isinstance(records, memoryview) else memoryview(records), header)


def _unsliced(records: Buffer | None, tp: TopicPartition, terms: AppendTerms) -> MessageSet | Rejected:
    """Handle bytes that are not one batch of format 2: a message set, or invalid data."""
    code, counter = codes.INVALID_RECORD, None
    if not records:
        return Rejected(code, batch_message(tp, "no bytes were sent, expected one batch"))
    try:
        if terms.version < VERSION_WITH_BATCHES and len(records) > MAGIC_POSITION and records[MAGIC_POSITION] in OLD_FORMATS:
            return read_message_set(records)
        wrong = f"{sum(1 for _ in batch.views(records))} batches were sent, format 2 allows one"
    except CorruptBatch as error:
        code, wrong = _SLICING_CODES.get(error.fault, code), str(error)
        if error.fault in _MAGIC_FAULTS:
            counter = INVALID_MAGIC
            wrong += f"; Produce version {terms.version} allows {'formats 0 to 2' if terms.version < VERSION_WITH_BATCHES else 'format 2'}"
    return Rejected(code, batch_message(tp, wrong), counts=counted_once(counter))


def is_plainly_valid(header: BatchHeader, size: int, batch_bytes_max: int) -> bool:
    """All batch rules of `records/validation_rules.py` as one expression, for headers of format 2: a fast path, since nearly all batches
    pass.

    If it returns True, `check_batch` passes (a property test verifies this); if False, `check_batch` decides.
    """
    return (
        header.base_offset == 0
        and 0 < header.count == header.last_offset_delta + 1
        and header.attributes in PLAIN_ATTRIBUTES
        and (header.producer_id < 0 or header.base_sequence >= 0)
        and size <= batch_bytes_max
    )


def _larger_than_segment(size: int, partition: Partition) -> Rejected:
    wrong = f"a batch of {size} bytes, segment.bytes allows {partition.topic.config.log.segment_bytes} bytes"
    return Rejected(codes.RECORD_LIST_TOO_LARGE, batch_message(partition.topic_partition, wrong))


def _producer_fault(broker: BrokerState, partition: Partition, header: BatchHeader, terms: AppendTerms, steady_ms: int) -> Rejected | None:
    """Check transaction, epoch and sequence, in this order."""
    begins = begins_transaction(partition, header)
    if begins and (rejected := _verification_fault(broker, partition, header, terms, steady_ms)) is not None:
        return rejected
    refused = partition.log.check_producer(header, unknown_begins_at_zero=begins and terms.version >= VERSION_WITH_IMPLICIT_ADD)
    if refused is None:
        return None
    message = batch_message(partition.topic_partition, refused.message)
    return Rejected(refused.code, message, counts=counted_once(_SEQUENCE_COUNTERS.get(refused.code)))


def begins_transaction(partition: Partition, header: BatchHeader) -> bool:
    """Whether a batch is the first of its transaction in the partition."""
    return header.attributes & ATTRIBUTE_TRANSACTIONAL != 0 and not partition.log.has_ongoing_transaction(
        header.producer_id, header.producer_epoch
    )


def _verification_fault(
    broker: BrokerState, partition: Partition, header: BatchHeader, terms: AppendTerms, steady_ms: int
) -> Rejected | None:
    """For the first batch of a transaction in this partition: check that the coordinator has this partition in the transaction (KIP-890,
    `AddPartitionsToTxnManager`).

    From version 12 on the partition is added here. Raises StorageError.
    """
    adds = terms.version >= VERSION_WITH_IMPLICIT_ADD
    if adds:
        tps, terms.partitions_to_add = terms.partitions_to_add or [partition.topic_partition], ()
        try:
            code = broker.transactions.add_partitions(terms.transactional_id or "", header.identity, tps, steady_ms)
        except StorageError as error:
            message = disk_failure_message(f"transactional id {terms.transactional_id}")
            logged = f"{NOT_WRITTEN.name}: the coordinator cannot write its journal: {error}"
            return Rejected(codes.NOT_ENOUGH_REPLICAS, f"{NOT_WRITTEN.name}: {message}", logged=logged)
    elif broker.settings["transaction.partition.verification.enable"]:
        code = broker.transactions.verify(terms.transactional_id, header.identity, partition.topic_partition)
    else:
        return None
    if code is codes.NONE:
        broker.transactions.sync()
        return None
    producer = f"producer {header.producer_id} epoch {header.producer_epoch}"
    if code is codes.PRODUCER_FENCED:
        return Rejected(codes.INVALID_PRODUCER_EPOCH, f"{producer} of transactional id {terms.transactional_id!r} is fenced")
    if code is codes.CONCURRENT_TRANSACTIONS:
        # Older clients retry code 19, and without looking for another leader.
        repeated = code if adds else codes.NOT_ENOUGH_REPLICAS
        return Rejected(repeated, f"{code.name}: the previous transaction of {producer} is still being completed")
    if code is codes.TRANSACTION_ABORTABLE:
        message = f"{partition.topic_partition} was not added to the open transaction of {producer}"
        return Rejected(code if terms.version >= VERSION_WITH_ABORTABLE else codes.INVALID_TXN_STATE, message)
    return Rejected(code, f"{producer} is not the producer of transactional id {terms.transactional_id!r}")


_SLICING_CODES = {
    Fault.BATCH_LENGTH: codes.CORRUPT_MESSAGE,
    Fault.BATCH_MAGIC: codes.CORRUPT_MESSAGE,
    Fault.BATCH_MAGIC_OLD: codes.INVALID_RECORD,
    Fault.BATCH_CUT_SHORT: codes.INVALID_RECORD,
}
"""Error codes for a batch that cannot be sliced: 2 for invalid headers, as in Apache Kafka, 87 for missing bytes."""

_MAGIC_FAULTS = frozenset({Fault.BATCH_MAGIC, Fault.BATCH_MAGIC_OLD})

_SEQUENCE_COUNTERS = {
    codes.OUT_OF_ORDER_SEQUENCE_NUMBER: INVALID_SEQUENCE,
    codes.INVALID_PRODUCER_EPOCH: INVALID_SEQUENCE,
}
