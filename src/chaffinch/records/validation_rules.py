"""Validation rules for batches and records, each with its error code and counter, in order of precedence.

Pure functions: a rule checks one batch (or describes why one record broke it) and never raises. `validation.py` applies the rules of format
2, `old_formats/validation.py` those of formats 0 and 1; the loops over records are in `kernels/walk.py` and `kernels/messages.py`. A new
rule is a function and a row here, and a row in `tests/kips/rule_table.py`, which a test requires.

Sources: KIP-467 section 2 and its list of checks, KIP-135, and Kafka's `LogValidator.validateBatch`, `validateRecord` and
`UnifiedLog.analyzeAndValidateRecords`. Counters are the KIP's four, and our own for timestamps, sizes and sequences.

Differences from Apache Kafka:

- Inner offset deltas are checked, as the KIP requires.
- A client's batch that claims LogAppendTime is refused for every topic, as the KIP requires. Kafka accepts it for CreateTime topics and
  stores its records with unchecked timestamps.
- A client's delete horizon, and lengths below the -1 of null, are refused.
- Undefined codecs are INVALID_RECORD instead of a server error.
- All culprits of a message set are reported, by index. Kafka stops at the first and reports index 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.identifiers import TopicPartition
from chaffinch.records.batch_header import ATTRIBUTE_DELETE_HORIZON, CHECKED_POSITION, MAGIC, BatchView
from chaffinch.records.checksum import crc32c
from chaffinch.records.compression import Compression
from chaffinch.records.kernels_reference import messages
from chaffinch.records.kernels_reference.walk import KEY_MISSING, OFFSET_DELTA_WRONG, TIMESTAMP_WRONG
from chaffinch.records.old_formats.message_set import CODECS_OF_OLD_FORMATS, OLD_FORMATS, MessageSet
from chaffinch.records.validation_policy import Origin, ValidationPolicy

NO_KEY: Final = "NoKeyCompactedTopicRecordsPerSec"
INVALID_MAGIC: Final = "InvalidMagicNumberRecordsPerSec"
INVALID_CRC: Final = "InvalidMessageCrcRecordsPerSec"
NON_INCREASING_OFFSET: Final = "NonIncreasingOffsetRecordsPerSec"
INVALID_TIMESTAMP: Final = "InvalidTimestampRecordsPerSec"
TOO_LARGE: Final = "TooLargeBatchesPerSec"
INVALID_SEQUENCE: Final = "OutOfOrderSequenceBatchesPerSec"

_ALL = frozenset(Origin)
_LEADER = frozenset({Origin.CLIENT, Origin.COORDINATOR})
_CLIENT = frozenset({Origin.CLIENT})

_COMPRESSION_IDS = frozenset(map(int, Compression))

CODECS: Final = {0: CODECS_OF_OLD_FORMATS, 1: CODECS_OF_OLD_FORMATS, MAGIC: tuple(Compression)}
"""Record format -> its codecs."""


class AppliesTo(Enum):
    """The batches of a format to which a rule applies."""

    ALL = "all"
    PLAIN = "plain"
    COMPRESSED = "compressed"
    UNKNOWN = "of no known codec"
    """Neither; the contents cannot be read, so these are grouped with the plain ones."""

    def codecs(self, record_format: int) -> tuple[Compression, ...]:
        """The codecs of the format that this value covers."""
        by_where = {AppliesTo.ALL: CODECS[record_format], AppliesTo.COMPRESSED: CODECS[record_format][1:]}
        return by_where.get(self, (Compression.NONE,))


# --- rules about a batch: the first one broken is the answer -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BatchRule:
    """`broken` returns what is wrong, or None. It is called only for batches of these origins that passed the earlier rules."""

    broken: Callable[[BatchView, ValidationPolicy], str | None]
    code: ErrorCode
    counter: str | None
    origins: frozenset[Origin]
    formats: tuple[int, ...] = (MAGIC,)
    applies_to: AppliesTo = AppliesTo.ALL

    @property
    def name(self) -> str:
        return _rule_name(self.broken)


def _rule_name(broken: Callable[..., str | None]) -> str:
    return broken.__name__.replace("_", " ")


def magic_is_unknown(view: BatchView, policy: ValidationPolicy) -> str | None:
    magic = view.header.magic
    return None if 0 <= magic <= MAGIC else f"magic {magic}, formats are 0 to {MAGIC}"


def magic_is_old(view: BatchView, policy: ValidationPolicy) -> str | None:
    magic = view.header.magic
    return None if magic == MAGIC else f"magic {magic}, expected {MAGIC}"


def crc_is_wrong(view: BatchView, policy: ValidationPolicy) -> str | None:
    return None if view.crc_is_valid() else checksum_text(view)


def checksum_text(view: BatchView) -> str:
    return f"checksum {view.header.crc:08x}, its bytes have {crc32c(view.data[CHECKED_POSITION:]):08x}"


def is_too_large(view: BatchView, policy: ValidationPolicy) -> str | None:
    return None if view.size <= policy.batch_bytes_max else size_text(view.size, policy)


def base_offset_is_not_zero(view: BatchView, policy: ValidationPolicy) -> str | None:
    base_offset = view.header.base_offset
    return None if base_offset == 0 else f"base offset {base_offset}, expected 0 from a client"


def last_offset_is_negative(view: BatchView, policy: ValidationPolicy) -> str | None:
    delta = view.header.last_offset_delta
    return None if delta >= 0 else f"last offset delta {delta}, expected 0 or more"


def count_is_not_positive(view: BatchView, policy: ValidationPolicy) -> str | None:
    count = view.header.count
    return None if count > 0 else f"{count} records, a batch has at least 1"


def count_contradicts_offsets(view: BatchView, policy: ValidationPolicy) -> str | None:
    count, delta = view.header.count, view.header.last_offset_delta
    return None if count == delta + 1 else f"{count} records and a last offset delta of {delta}, expected {count - 1}"


def is_control(view: BatchView, policy: ValidationPolicy) -> str | None:
    return "it is a control batch, which only brokers write" if view.header.is_control else None


def has_a_delete_horizon(view: BatchView, policy: ValidationPolicy) -> str | None:
    """Compaction would interpret the base timestamp as the time from which the batch's tombstones may be removed: usually at once."""
    if not view.header.attributes & ATTRIBUTE_DELETE_HORIZON:
        return None
    return "it has a delete horizon (bit 6 of its attributes), which only compaction sets"


def sequence_is_missing(view: BatchView, policy: ValidationPolicy) -> str | None:
    header = view.header
    if header.producer_id < 0 or header.base_sequence >= 0:
        return None
    return f"producer {header.producer_id} epoch {header.producer_epoch} sent base sequence {header.base_sequence}, expected 0 or more"


def codec_is_unknown(view: BatchView, policy: ValidationPolicy) -> str | None:
    codec = view.header.compression_id
    return None if codec in _COMPRESSION_IDS else f"compression codec {codec} does not exist, codecs are 0 to {max(_COMPRESSION_IDS)}"


CRC_RULE: Final = BatchRule(crc_is_wrong, codes.CORRUPT_MESSAGE, INVALID_CRC, _ALL)

BATCH_RULES: Final = (
    BatchRule(magic_is_unknown, codes.CORRUPT_MESSAGE, INVALID_MAGIC, _ALL),
    BatchRule(magic_is_old, codes.INVALID_RECORD, INVALID_MAGIC, _ALL, OLD_FORMATS),
    CRC_RULE,
    BatchRule(is_too_large, codes.MESSAGE_TOO_LARGE, TOO_LARGE, _LEADER),
    BatchRule(base_offset_is_not_zero, codes.INVALID_RECORD, NON_INCREASING_OFFSET, _CLIENT),
    BatchRule(last_offset_is_negative, codes.INVALID_RECORD, NON_INCREASING_OFFSET, _CLIENT),
    BatchRule(count_is_not_positive, codes.INVALID_RECORD, NON_INCREASING_OFFSET, _CLIENT),
    BatchRule(count_contradicts_offsets, codes.INVALID_RECORD, NON_INCREASING_OFFSET, _CLIENT),
    BatchRule(is_control, codes.INVALID_RECORD, NON_INCREASING_OFFSET, _CLIENT),
    BatchRule(has_a_delete_horizon, codes.INVALID_RECORD, None, _CLIENT),
    BatchRule(sequence_is_missing, codes.INVALID_RECORD, INVALID_SEQUENCE, _CLIENT),
    BatchRule(codec_is_unknown, codes.INVALID_RECORD, None, _LEADER, applies_to=AppliesTo.UNKNOWN),
)
"""In order. The check of the count against the offsets precedes every rule that uses the count."""

BATCH_RULES_BY_ORIGIN: Final = {origin: tuple(rule for rule in BATCH_RULES if origin in rule.origins) for origin in Origin}


# --- rules about a wrapper: the message of format 0 or 1 that holds the others, compressed ------------------------------------


@dataclass(frozen=True, slots=True)
class WrapperRule:
    """Like BatchRule. `count` is the number of decompressed messages, valid only for the content rules."""

    broken: Callable[[MessageSet, ValidationPolicy, int], str | None]
    code: ErrorCode
    counter: str | None
    formats: tuple[int, ...] = OLD_FORMATS
    applies_to: AppliesTo = AppliesTo.COMPRESSED

    @property
    def name(self) -> str:
        return _rule_name(self.broken)


def wrapper_crc_is_wrong(message_set: MessageSet, policy: ValidationPolicy, count: int) -> str | None:
    if message_set.crc_is_valid():
        return None
    return f"the compressed message has checksum {message_set.crc:08x}, its bytes have {message_set.computed_crc():08x}"


def wrapper_is_too_large(message_set: MessageSet, policy: ValidationPolicy, count: int) -> str | None:
    size = message_set.message_size
    return None if size <= policy.batch_bytes_max else size_text(size, policy)


def wrapper_is_not_alone(message_set: MessageSet, policy: ValidationPolicy, count: int) -> str | None:
    after = len(message_set.data) - message_set.message_size
    return None if not after else f"{after} bytes follow the compressed message, which must come alone"


def wrapper_codec_is_unknown(message_set: MessageSet, policy: ValidationPolicy, count: int) -> str | None:
    codec = message_set.codec_id
    if codec in CODECS_OF_OLD_FORMATS:
        return None
    return f"compression codec {codec}, format {message_set.magic} allows codecs 0 to {max(CODECS_OF_OLD_FORMATS)}"


def wrapper_lacks_a_value(message_set: MessageSet, policy: ValidationPolicy, count: int) -> str | None:
    return None if message_set.wrapped is not None else "the compressed message has no value, or lengths that do not fill it"


def wrapper_is_empty(message_set: MessageSet, policy: ValidationPolicy, count: int) -> str | None:
    return None if count else "the compressed message contains 0 messages, expected at least 1"


def wrapper_offset_is_wrong(message_set: MessageSet, policy: ValidationPolicy, count: int) -> str | None:
    """The compressed message has the offset of its last message. Some clients leave it 0, which Kafka accepts too."""
    if message_set.offset == 0 or message_set.offset >= count - 1:
        return None
    return f"offset {message_set.offset} of a compressed message that holds {count}, expected {count - 1}"


WRAPPER_RULES: Final = (
    WrapperRule(wrapper_crc_is_wrong, codes.CORRUPT_MESSAGE, INVALID_CRC),
    WrapperRule(wrapper_is_too_large, codes.MESSAGE_TOO_LARGE, TOO_LARGE),
    WrapperRule(wrapper_codec_is_unknown, codes.INVALID_RECORD, None, applies_to=AppliesTo.UNKNOWN),
    WrapperRule(wrapper_is_not_alone, codes.INVALID_RECORD, None),
    WrapperRule(wrapper_lacks_a_value, codes.INVALID_RECORD, None),
)
"""In order, before decompression."""

CONTENT_RULES: Final = (
    WrapperRule(wrapper_is_empty, codes.INVALID_RECORD, NON_INCREASING_OFFSET),
    WrapperRule(wrapper_offset_is_wrong, codes.INVALID_RECORD, NON_INCREASING_OFFSET, formats=(1,)),
)
"""In order, after the messages were read without a fault. Offsets of format 0 mean nothing before a broker assigns them."""


# --- rules about a record: every record that breaks one is a culprit, under the first it breaks ---------------------------


@dataclass(frozen=True, slots=True)
class RecordRule:
    """`template` describes a record whose value `seen` broke the rule: a format string, or a function called like `text`. `short_text`
    contains no values.
    """

    code: ErrorCode
    counter: str | None
    template: str | Callable[[int, ValidationPolicy, int], str]
    short_text: str
    formats: tuple[int, ...] = (0, 1, MAGIC)
    applies_to: AppliesTo = AppliesTo.ALL

    def text(self, seen: int, policy: ValidationPolicy, wall_ms: int) -> str:
        if not isinstance(self.template, str):
            return self.template(seen, policy, wall_ms)
        return self.template.format(seen=seen, low=seen & 0xFF, high=seen >> 8, bytes_max=policy.batch_bytes_max)

    @property
    def name(self) -> str:
        return self.short_text


def size_text(size: int, policy: ValidationPolicy) -> str:
    return f"a batch of {size} bytes, max.message.bytes allows {policy.batch_bytes_max} bytes"


def _timestamp_text(seen: int, policy: ValidationPolicy, wall_ms: int) -> str:
    if seen > wall_ms:
        distance, option, limit = f"{seen - wall_ms} ms ahead of", "message.timestamp.after.max.ms", policy.timestamp_after_max_ms
    else:
        distance, option, limit = f"{wall_ms - seen} ms behind", "message.timestamp.before.max.ms", policy.timestamp_before_max_ms
    return f"timestamp {seen} ms is {distance} the broker, {option} allows {limit} ms"


_OFFSET = "offset delta {seen}, expected its index within the batch"
_NO_KEY = "null key, the topic is compacted and needs one"
_TIMESTAMP_TYPE = "timestamp type LogAppendTime, expected CreateTime from a client"

COMPRESSION_RULE: Final = RecordRule(
    codes.INVALID_RECORD, None, "codec {seen}, expected 0: a compressed message comes alone", "compressed among others", OLD_FORMATS
)
# The expected magic is in the second byte, the actual one in the lowest.
MAGIC_RULE: Final = RecordRule(
    codes.INVALID_RECORD, INVALID_MAGIC, "magic {low}, expected {high} as in the set's first message", "another magic", OLD_FORMATS
)
MESSAGE_CRC_RULE: Final = RecordRule(
    codes.CORRUPT_MESSAGE, INVALID_CRC, "checksum {seen:08x}, which does not match its bytes", "wrong checksum", OLD_FORMATS
)
MESSAGE_SIZE_RULE: Final = RecordRule(
    codes.MESSAGE_TOO_LARGE,
    TOO_LARGE,
    "{seen} bytes, max.message.bytes allows {bytes_max} bytes",
    "message too large",
    OLD_FORMATS,
    AppliesTo.PLAIN,
)
OFFSET_RULE: Final = RecordRule(codes.INVALID_RECORD, NON_INCREASING_OFFSET, _OFFSET, "wrong offset delta", (MAGIC,))
INNER_OFFSET_RULE: Final = RecordRule(
    codes.INVALID_RECORD, NON_INCREASING_OFFSET, _OFFSET, "wrong relative offset", (1,), AppliesTo.COMPRESSED
)
KEY_RULE: Final = RecordRule(codes.INVALID_COMPACTION_KEY, NO_KEY, _NO_KEY, _NO_KEY)
TIMESTAMP_RULE: Final = RecordRule(codes.INVALID_TIMESTAMP, INVALID_TIMESTAMP, _timestamp_text, "timestamp out of range", (1, MAGIC))
TIMESTAMP_TYPE_RULE: Final = RecordRule(codes.INVALID_TIMESTAMP, INVALID_TIMESTAMP, _TIMESTAMP_TYPE, _TIMESTAMP_TYPE, (1, MAGIC))
RECORD_SIZE_RULE: Final = RecordRule(
    codes.MESSAGE_TOO_LARGE,
    TOO_LARGE,
    "alone it makes a batch of {seen} bytes, max.message.bytes allows {bytes_max} bytes",
    "too large for any batch",
)
"""For a record not sent yet: a broker sees only batches."""

RULE_BY_REASON: Final = {OFFSET_DELTA_WRONG: OFFSET_RULE, KEY_MISSING: KEY_RULE, TIMESTAMP_WRONG: TIMESTAMP_RULE}
"""Reason reported by `walk` -> the rule. Its numbers ascend in order of precedence. Inner compression, inner magic and inner CRC, which
precede them, exist only in formats 0 and 1."""

RULE_BY_MESSAGE_REASON: Final = {
    messages.INNER_COMPRESSION: COMPRESSION_RULE,
    messages.MAGIC_DIFFERS: MAGIC_RULE,
    messages.CRC_WRONG: MESSAGE_CRC_RULE,
    messages.MESSAGE_TOO_LARGE: MESSAGE_SIZE_RULE,
    messages.OFFSET_WRONG: INNER_OFFSET_RULE,
    messages.NO_KEY: KEY_RULE,
    messages.TIMESTAMP_TYPE_WRONG: TIMESTAMP_TYPE_RULE,
    messages.TIMESTAMP_OUTSIDE: TIMESTAMP_RULE,
}
"""Reason reported by `walk_messages` -> the rule, in order of precedence."""

RECORD_RULES: Final = (*dict.fromkeys((*RULE_BY_MESSAGE_REASON.values(), OFFSET_RULE, *RULE_BY_REASON.values())),)
ALL_RULES: Final[tuple[BatchRule | WrapperRule | RecordRule, ...]] = (*BATCH_RULES, *WRAPPER_RULES, *CONTENT_RULES, *RECORD_RULES)
"""All rules that a broker applies."""


def batch_message(topic_partition: TopicPartition, wrong: str) -> str:
    return f"batch for {topic_partition} rejected: {wrong}"


def record_message_infix(topic_partition: TopicPartition, count: int) -> str:
    """The part of a message between a record's index and its error: the same for all records of a batch."""
    return f" of {count} for {topic_partition} rejected: "
