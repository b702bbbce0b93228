"""Batch validation: whether a batch may be stored, and if not, which of its records are culprits (KIP-467 and KIP-135).

Pure functions: a batch, the topic's policy, the origin and the time go in, `Accepted` or `Rejected` comes out. Bad data never raises.
Rules, codes and counters are in `validation_rules.py`. The broker checks epochs, sequences and replicas, and maps errors for old clients.

One pass of a compiled loop accepts nearly every batch. For the others a second pass finds the fault. A third pass collects the culprits
if there are many, or if the batch is small. Only culprits create Python objects.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from chaffinch.errors import codes
from chaffinch.errors.exceptions import Culprit
from chaffinch.records import kernels, validation_result
from chaffinch.records.batch_codec import decompressed_payload, encode
from chaffinch.records.batch_header import (
    ATTRIBUTE_COMPRESSION,
    ATTRIBUTE_LOG_APPEND_TIME,
    BATCH_BYTES_MAX,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    BatchHeader,
    BatchView,
    TimestampType,
    write_crc,
)
from chaffinch.records.byte_columns import Bytes, Int64s
from chaffinch.records.columns import RecordColumns, measure
from chaffinch.records.compression import Compression, CompressionError, compress
from chaffinch.records.errors import CorruptBatch, Fault
from chaffinch.records.kernels_reference import walk
from chaffinch.records.single_stream import check_portable
from chaffinch.records.validation_policy import Origin, ValidationPolicy
from chaffinch.records.validation_result import (
    CULPRITS_WITH_MESSAGE_MAX,
    Accepted,
    Rejected,
    RuleViolation,
    counted_once,
    culprits_of,
    rejected,
)
from chaffinch.records.validation_rules import (
    BATCH_RULES_BY_ORIGIN,
    CRC_RULE,
    KEY_RULE,
    RECORD_SIZE_RULE,
    RULE_BY_REASON,
    TIMESTAMP_RULE,
    TIMESTAMP_TYPE_RULE,
    TOO_LARGE,
    RecordRule,
    batch_message,
    size_text,
)

__all__ = [
    "CULPRITS_WITH_MESSAGE_MAX",
    "Accepted",
    "Origin",
    "Rejected",
    "ValidationPolicy",
    "check_batch",
    "check_records",
    "validate",
    "validate_columns",
]

_INT64, _UINT8 = np.dtype(np.int64), np.dtype(np.uint8)
_REPLICATION, _LOG_APPEND_TIME = Origin.REPLICATION, TimestampType.LOG_APPEND_TIME  # Looked up once: access to enum members is slow.
_NO_INT64S = np.empty(0, _INT64)

Terms: TypeAlias = tuple[int, int, int, int, bool, bool]
Culprits: TypeAlias = tuple[Int64s, Bytes, Int64s]
_NO_CULPRITS: Culprits = (_NO_INT64S, np.empty(0, _UINT8), _NO_INT64S)
_SHORT_BYTES_MAX = 16 * 1024
"""Up to this size a second walk costs less than allocating arrays that the first one rarely needs."""
_FIRST_WALK_CULPRITS_MAX = 256
"""Capacity for culprits in the first walk over a larger batch."""


def validate(
    view: BatchView, policy: ValidationPolicy, origin: Origin, wall_ms: int, *, crc_was_checked: bool = False
) -> Accepted | Rejected:
    """Check one sliced batch against every rule. `wall_ms`: the broker's clock, ms since 1970.

    `crc_was_checked` skips the CRC if the caller has checked it.
    """
    return check_batch(view, policy, origin, crc_was_checked=crc_was_checked) or check_records(view, policy, origin, wall_ms)


def check_batch(view: BatchView, policy: ValidationPolicy, origin: Origin, *, crc_was_checked: bool = False) -> Rejected | None:
    """Check the rules about the batch as a whole: cheap except for the CRC, and without reading records."""
    for rule in BATCH_RULES_BY_ORIGIN[origin]:
        if rule is CRC_RULE and crc_was_checked:
            continue
        wrong = rule.broken(view, policy)
        if wrong is not None:
            return Rejected(rule.code, batch_message(policy.topic_partition, wrong), counts=counted_once(rule.counter))
    return None


def check_records(view: BatchView, policy: ValidationPolicy, origin: Origin, wall_ms: int) -> Accepted | Rejected:
    """Check the rules about records, for a batch that passed `check_batch`. Batches from a leader are accepted unchanged, since it
    checked them.
    """
    header = view.header
    if origin is _REPLICATION:
        return Accepted(view.data, header.max_timestamp, header.count, len(view.data) - HEADER_BYTES)
    try:
        if header.attributes & ATTRIBUTE_COMPRESSION:
            records = np.frombuffer(decompressed_payload(view, policy.decompressed_bytes_max), _UINT8)
            check_portable(header.compression, view.payload)
        else:
            records = np.frombuffer(view.data, _UINT8, -1, HEADER_BYTES)
    except CompressionError as error:
        return Rejected(codes.INVALID_RECORD, batch_message(policy.topic_partition, str(error)))
    count, size = header.count, len(records)
    # The count is a claim: limit it to what the bytes can hold.
    loops = kernels.choose(min(count, size // walk.RECORD_BYTES_MIN))
    terms = _terms(header, policy, wall_ms)
    valid_count, valid_bytes, max_timestamp = loops.walk_valid(records, *terms)
    if valid_count == count and valid_bytes == size:
        return _accepted(view, records, policy, wall_ms, max_timestamp)
    culprits = _culprit_arrays(_FIRST_WALK_CULPRITS_MAX) if size > _SHORT_BYTES_MAX else _NO_CULPRITS
    fault, record_index, position, culprit_count = _walk(loops, records, terms, culprits)
    if fault:
        detail = f"{count} records announced, {size} bytes of them"
        corrupt = CorruptBatch(Fault(fault), record_index, position, detail)
        return Rejected(codes.INVALID_RECORD, batch_message(policy.topic_partition, str(corrupt)))
    listed_count = min(culprit_count, validation_result.CULPRITS_MAX)
    if listed_count > len(culprits[0]):
        culprits = _culprit_arrays(listed_count)
        _walk(loops, records, terms, culprits)
    return rejected(_rule_violations(header, listed_count, culprits), culprit_count, header.count, policy, wall_ms)


def validate_columns(
    columns: RecordColumns, policy: ValidationPolicy, wall_ms: int, *, compression: Compression = Compression.NONE, level: int | None = None
) -> tuple[Culprit, ...]:
    """The culprits among records not sent yet, as a broker with this policy and clock would report them.

    In addition to the broker's record rules: a record that exceeds `max.message.bytes` even alone, in a batch compressed with
    `compression`. This rule comes first, as a broker checks a batch's size before its records.
    """
    rules: list[RecordRule | None] = [None, RECORD_SIZE_RULE, KEY_RULE, TIMESTAMP_RULE]
    seen = columns.timestamps.copy()
    broken = np.zeros(columns.count, np.uint8)
    timestamp_min, timestamp_max = policy.timestamp_bounds(wall_ms)
    is_outside = (columns.timestamps < timestamp_min) | (columns.timestamps > timestamp_max)
    broken[is_outside & (columns.timestamps != walk.NO_TIMESTAMP)] = rules.index(TIMESTAMP_RULE)
    if policy.is_compacted and columns.key_valid is not None:
        broken[columns.key_valid == 0] = rules.index(KEY_RULE)
    for index in np.flatnonzero(columns.sizes() + HEADER_BYTES > policy.batch_bytes_max).tolist():
        size = _size_alone(columns.slice(index, index + 1), compression, level)
        if size > policy.batch_bytes_max:
            broken[index], seen[index] = rules.index(RECORD_SIZE_RULE), size
    indices = np.flatnonzero(broken)
    found = zip(indices.tolist(), broken[indices].tolist(), seen[indices].tolist(), strict=True)
    return culprits_of([(index, rule, value) for index, at, value in found if (rule := rules[at])], columns.count, policy, wall_ms)


# --- the records of a batch ------------------------------------------------------------------------------------------------


def _terms(header: BatchHeader, policy: ValidationPolicy, wall_ms: int) -> Terms:
    """Arguments of both walks, in addition to the records: see `kernels_reference/walk.py`."""
    if header.attributes & ATTRIBUTE_LOG_APPEND_TIME:
        return header.count, header.base_timestamp, 1, 0, False, policy.is_compacted  # An empty range: every record is a culprit.
    timestamp_min, timestamp_max = policy.timestamp_bounds(wall_ms)
    return header.count, header.base_timestamp, timestamp_min, timestamp_max, True, policy.is_compacted


def _walk(loops: kernels.Loops, records: Bytes, terms: Terms, culprits: Culprits) -> tuple[int, int, int, int]:
    """(fault, record index, position, culprits), as described for the summary in `kernels_reference/walk.py`."""
    summary = np.empty(walk.SUMMARY_LENGTH, _INT64)
    fault = loops.walk(records, *terms, *culprits, summary)
    record_index, position, culprit_count, _ = summary.tolist()
    return fault, record_index, position, culprit_count


def _culprit_arrays(culprit_count: int) -> Culprits:
    """Output arrays of a walk for this many culprits: indices, reasons, and values seen."""
    return np.empty(culprit_count, _INT64), np.empty(culprit_count, _UINT8), np.empty(culprit_count, _INT64)


def _rule_violations(header: BatchHeader, culprit_count: int, culprits: Culprits) -> list[RuleViolation]:
    """The first culprits found by a walk, each with the rule that it breaks."""
    indices, reasons, seen = (column[:culprit_count] for column in culprits)
    claims_append_time = header.attributes & ATTRIBUTE_LOG_APPEND_TIME
    rules = {**RULE_BY_REASON, walk.TIMESTAMP_WRONG: TIMESTAMP_TYPE_RULE} if claims_append_time else RULE_BY_REASON
    found = zip(indices.tolist(), reasons.tolist(), seen.tolist(), strict=True)
    return [(index, rules[reason], value) for index, reason, value in found]


def _size_alone(record: RecordColumns, compression: Compression, level: int | None) -> int:
    """Size of a batch with only this record."""
    size = HEADER_BYTES + measure(record, int(record.timestamps[0]), _NO_INT64S)
    if compression is Compression.NONE or size > BATCH_BYTES_MAX:
        return size
    return len(encode(record, compression=compression, level=level))


def _accepted(view: BatchView, records: Bytes, policy: ValidationPolicy, wall_ms: int, max_timestamp: int) -> Accepted | Rejected:
    """The batch in the form that the topic's configuration requires.

    Records are never rewritten. With LogAppendTime the header's largest timestamp applies to all of them; another codec stores the same
    record bytes. A wrong largest timestamp in a CreateTime header is corrected, as in Kafka, because look-ups by time rely on it.
    """
    header, target = view.header, policy.compression
    attributes = header.attributes
    if target is not None:
        attributes = attributes & ~ATTRIBUTE_COMPRESSION | target
    if policy.timestamp_type is _LOG_APPEND_TIME:
        attributes |= ATTRIBUTE_LOG_APPEND_TIME
        max_timestamp = wall_ms
    if attributes == header.attributes and max_timestamp == header.max_timestamp:
        return Accepted(view.data, max_timestamp, header.count, len(records))
    out = bytearray(HEADER_BYTES)
    if target is None or target == header.compression_id:
        out += view.payload
    else:
        out += compress(target, records.data, policy.compression_level)
        if len(out) > policy.batch_bytes_max:
            wrong = f"recompressed with {target.name.lower()}, {size_text(len(out), policy)}"
            return Rejected(codes.MESSAGE_TOO_LARGE, batch_message(policy.topic_partition, wrong), counts=((TOO_LARGE, 1),))
    HEADER.pack_into(out, 0, *header._replace(length=len(out) - LENGTH_END, attributes=attributes, max_timestamp=max_timestamp))
    write_crc(out)
    return Accepted(out, max_timestamp, header.count, len(records), is_rewritten=True)
