"""Validation of message sets of formats 0 and 1, and their conversion to one batch of format 2.

Pure functions, like `validation.py`. One compiled pass validates and measures, another writes; only a set with culprits is read again. Each
culprit is reported by its index in the set, or in the contents of the compressed message.

Conversion keeps keys, values, timestamps (-1 in format 0) and the codec, unless the topic's configuration requires another one.
"""

from __future__ import annotations

import numpy as np

from chaffinch.errors import codes
from chaffinch.records import kernels, validation_result
from chaffinch.records.batch_codec import write_header
from chaffinch.records.batch_header import ATTRIBUTE_LOG_APPEND_TIME, BATCH_BYTES_MAX, HEADER_BYTES, TimestampType
from chaffinch.records.byte_columns import Bytes, Int64s
from chaffinch.records.compression import Compression, CompressionError, compress
from chaffinch.records.errors import CorruptBatch, Fault
from chaffinch.records.kernels_reference import messages
from chaffinch.records.old_formats.message_set import MessageSet, unwrapped
from chaffinch.records.validation_policy import ValidationPolicy
from chaffinch.records.validation_result import Accepted, Rejected, RuleViolation, counted_once, rejected
from chaffinch.records.validation_rules import (
    CONTENT_RULES,
    RULE_BY_MESSAGE_REASON,
    TOO_LARGE,
    WRAPPER_RULES,
    WrapperRule,
    batch_message,
    size_text,
)

_NO_INT64S = np.empty(0, np.int64)
_NO_BYTES = np.empty(0, np.uint8)

_UNSLICED = frozenset({Fault.MESSAGE_SIZE, Fault.BATCH_MAGIC})
"""Faults of plain messages reported as CORRUPT_MESSAGE, like batches that cannot be sliced; in a wrapper all faults are INVALID_RECORD."""


def check_set(message_set: MessageSet, policy: ValidationPolicy) -> Rejected | None:
    """Check the rules about a compressed message as a whole; plain ones have none. Cheap except for the CRC."""
    return _first_broken(WRAPPER_RULES, message_set, policy, 0) if message_set.is_wrapper else None


def convert(message_set: MessageSet, policy: ValidationPolicy, wall_ms: int) -> Accepted | Rejected:
    """Check the rules about messages, for a set that passed `check_set`, and convert it to a batch of format 2. `wall_ms`: the broker's
    clock.
    """
    try:
        data = np.frombuffer(unwrapped(message_set, policy.decompressed_bytes_max), np.uint8)
    except CompressionError as error:
        return Rejected(codes.INVALID_RECORD, batch_message(policy.topic_partition, str(error)))
    summary = np.empty(messages.SUMMARY_LENGTH, np.int64)
    fault = Fault(_walk(message_set, data, policy, wall_ms, _NO_INT64S, _NO_BYTES, _NO_INT64S, summary))
    count, position, culprit_count = summary[: messages.CULPRITS + 1].tolist()
    if fault:
        code = codes.CORRUPT_MESSAGE if fault in _UNSLICED and not message_set.is_wrapper else codes.INVALID_RECORD
        corrupt = CorruptBatch(fault, count, position, f"{len(data)} bytes of messages")
        return Rejected(code, batch_message(policy.topic_partition, str(corrupt)))
    if culprit_count:
        found = _find(message_set, data, policy, wall_ms, min(culprit_count, validation_result.CULPRITS_MAX))
        return rejected(found, culprit_count, count, policy, wall_ms)
    wrong = _first_broken(CONTENT_RULES, message_set, policy, count) if message_set.is_wrapper else None
    return wrong or _converted(message_set, data, policy, wall_ms, summary)


def _first_broken(rules: tuple[WrapperRule, ...], message_set: MessageSet, policy: ValidationPolicy, count: int) -> Rejected | None:
    for rule in rules:
        wrong = rule.broken(message_set, policy, count) if message_set.magic in rule.formats else None
        if wrong is not None:
            return Rejected(rule.code, batch_message(policy.topic_partition, wrong), counts=counted_once(rule.counter))
    return None


def _walk(
    message_set: MessageSet,
    data: Bytes,
    policy: ValidationPolicy,
    wall_ms: int,
    indices: Int64s,
    reasons: Bytes,
    seen: Int64s,
    summary: Int64s,
) -> int:
    """Run `walk_messages`; returns its fault and fills the summary."""
    return kernels.choose(len(data) // messages.MESSAGE_BYTES_MIN).walk_messages(
        data,
        message_set.magic,
        message_set.is_wrapper,
        message_set.is_wrapper and message_set.claims_append_time,
        *policy.timestamp_bounds(wall_ms),
        policy.is_compacted,
        policy.batch_bytes_max,
        indices,
        reasons,
        seen,
        summary,
    )


def _find(message_set: MessageSet, data: Bytes, policy: ValidationPolicy, wall_ms: int, culprit_count: int) -> list[RuleViolation]:
    """The first culprits; an earlier walk has counted them."""
    indices, seen = np.empty(culprit_count, np.int64), np.empty(culprit_count, np.int64)
    reasons = np.empty(culprit_count, np.uint8)
    _walk(message_set, data, policy, wall_ms, indices, reasons, seen, np.empty(messages.SUMMARY_LENGTH, np.int64))
    seen[reasons == messages.MAGIC_DIFFERS] |= message_set.magic << 8
    found = zip(indices.tolist(), reasons.tolist(), seen.tolist(), strict=True)
    return [(index, RULE_BY_MESSAGE_REASON[reason], value) for index, reason, value in found]


def _converted(message_set: MessageSet, data: Bytes, policy: ValidationPolicy, wall_ms: int, summary: Int64s) -> Accepted | Rejected:
    count, max_timestamp = int(summary[messages.COUNT]), int(summary[messages.MAX_TIMESTAMP])
    base_timestamp, size = int(summary[messages.BASE_TIMESTAMP]), int(summary[messages.CONVERTED_BYTES])
    codec = message_set.codec if policy.compression is None else policy.compression
    attributes = int(codec)
    if policy.timestamp_type is TimestampType.LOG_APPEND_TIME:
        attributes |= ATTRIBUTE_LOG_APPEND_TIME
        max_timestamp = wall_ms
    if codec is Compression.NONE and HEADER_BYTES + size > min(policy.batch_bytes_max, BATCH_BYTES_MAX):
        return _too_large(HEADER_BYTES + size, policy)
    payload = np.empty(size, np.uint8)
    end = kernels.choose(count).convert_messages(data, message_set.magic, base_timestamp, payload, 0)
    assert end == size, f"{end} bytes written, {size} measured"
    out = bytearray(HEADER_BYTES)
    out += compress(codec, payload.data, policy.compression_level)
    if len(out) > policy.batch_bytes_max:
        return _too_large(len(out), policy)
    write_header(out, attributes, count, (base_timestamp, max_timestamp))
    return Accepted(out, max_timestamp, count, size, is_rewritten=True)


def _too_large(size: int, policy: ValidationPolicy) -> Rejected:
    wrong = f"converted to format 2, {size_text(size, policy)}"
    return Rejected(codes.MESSAGE_TOO_LARGE, batch_message(policy.topic_partition, wrong), counts=((TOO_LARGE, 1),))
