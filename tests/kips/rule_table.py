"""KIP-467's list as a table: one line per rule, each for every record format and codec that has the rule.

Read a line as: rule, what is written -> code of the partition, culprits with their codes, counters that move. Nothing of it is stored.
What is written stands for itself in any format: dictionaries of what differs from an ordinary record, and of what its batch (the
batch header of format 2, the compressed message of formats 0 and 1) says besides. `cases()` multiplies the lines out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.records import validation_rules as rules
from chaffinch.records.compression import Compression
from tests.support import raw_batches, raw_messages
from tests.support.raw_batches import NOW_MS

HOUR_MS = 3_600_000
RECORD, KEY, TIME, CRC, SIZE = (
    codes.INVALID_RECORD,
    codes.INVALID_COMPACTION_KEY,
    codes.INVALID_TIMESTAMP,
    codes.CORRUPT_MESSAGE,
    codes.MESSAGE_TOO_LARGE,
)
NO_KEY = "NoKeyCompactedTopicRecordsPerSec"
MAGIC = "InvalidMagicNumberRecordsPerSec"
INVALID_CRC = "InvalidMessageCrcRecordsPerSec"
OFFSET = "NonIncreasingOffsetRecordsPerSec"
TIMESTAMP = "InvalidTimestampRecordsPerSec"
TOO_LARGE = "TooLargeBatchesPerSec"
SEQUENCE = "OutOfOrderSequenceBatchesPerSec"

COMPACT = {"cleanup_policy": "compact"}
SMALL = {"max_message_bytes": "70"}
Fields = Mapping[str, Any]
A: Fields = {}
B: Fields = {}
C: Fields = {}


@dataclass(frozen=True, kw_only=True)
class Line:
    """`rule`: its name in `ALL_RULES`. `records`: what differs from an ordinary one. `batch`: the same for what holds them. `says`: words
    of the message, by which it was this rule and no other."""

    rule: str
    code: ErrorCode
    says: str
    records: Sequence[Fields] = (A, B, C)
    batch: Fields = field(default_factory=dict)
    culprits: Mapping[int, ErrorCode] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)
    topic: Mapping[str, Any] = field(default_factory=dict)


def batch_line(rule: str, code: ErrorCode, counter: str | None, batch: Fields, says: str, **more: Any) -> Line:
    return Line(rule=rule, code=code, says=says, batch=batch, counters={} if counter is None else {counter: 1}, **more)


_OTHER_MAGIC = "other"
_ID = {"producer_id": 5, "producer_epoch": 0}

LINES = (
    # Batches of format 2: the first rule that is broken is the answer, and no single record is at fault.
    batch_line("magic is unknown", CRC, MAGIC, {"magic": 3}, "magic 3"),
    batch_line("magic is old", RECORD, MAGIC, {}, "allows format 2"),
    batch_line("crc is wrong", CRC, INVALID_CRC, {"crc": 0xDEADBEEF}, "checksum deadbeef, its bytes have"),
    batch_line("is too large", SIZE, TOO_LARGE, {}, "max.message.bytes allows 70", topic=SMALL),
    batch_line("base offset is not zero", RECORD, OFFSET, {"base_offset": 1}, "base offset 1"),
    batch_line("last offset is negative", RECORD, OFFSET, {"last_offset_delta": -1}, "last offset delta -1"),
    batch_line("count is not positive", RECORD, OFFSET, {"count": 0, "last_offset_delta": 0}, "0 records"),
    batch_line("count contradicts offsets", RECORD, OFFSET, {"count": 3, "last_offset_delta": 1}, "3 records and a last offset delta of 1"),
    batch_line("is control", RECORD, OFFSET, {"attributes": 0b10_0000}, "control batch"),
    batch_line("has a delete horizon", RECORD, None, {"attributes": 0b100_0000}, "delete horizon"),
    batch_line("sequence is missing", RECORD, SEQUENCE, _ID, "base sequence -1"),
    batch_line("codec is unknown", RECORD, None, {"attributes": 5}, "codec 5"),
    # The compressed message of formats 0 and 1.
    batch_line("wrapper crc is wrong", CRC, INVALID_CRC, {"crc": 0xDEADBEEF}, "has checksum deadbeef"),
    batch_line("wrapper is too large", SIZE, TOO_LARGE, {}, "max.message.bytes allows 30", topic={"max_message_bytes": "30"}),
    batch_line("wrapper is not alone", RECORD, None, {"more": {}}, "bytes follow"),
    batch_line("wrapper codec is unknown", RECORD, None, {"attributes": 4}, "codec 4"),
    batch_line("wrapper lacks a value", RECORD, None, {"value_length": -1}, "no value"),
    batch_line("wrapper is empty", RECORD, OFFSET, {}, "0 messages", records=()),
    batch_line("wrapper offset is wrong", RECORD, OFFSET, {"offset": 1}, "offset 1 of a compressed message that holds 3"),
    # Records: every one that breaks a rule is a culprit, each is counted.
    Line(rule="compressed among others", says="codec 1, expected 0", code=RECORD, records=(A, {"attributes": 1}, C), culprits={1: RECORD}),
    Line(
        rule="another magic",
        says="in the set's first message",
        code=RECORD,
        records=(A, {"magic": _OTHER_MAGIC}, {"magic": _OTHER_MAGIC}),
        culprits={1: RECORD, 2: RECORD},
        counters={MAGIC: 2},
    ),
    Line(
        rule="wrong checksum",
        says="checksum 00000007",
        code=CRC,
        records=({"crc": 7}, B, {"crc": 8}),
        culprits={0: CRC, 2: CRC},
        counters={INVALID_CRC: 2},
    ),
    Line(
        rule="message too large",
        says="max.message.bytes allows 70 bytes",
        code=SIZE,
        records=(A, {"value": bytes(99)}, C),
        culprits={1: SIZE},
        counters={TOO_LARGE: 1},
        topic=SMALL,
    ),
    Line(
        rule="wrong offset delta",
        says="offset delta 0",
        code=RECORD,
        records=(A, {"offset": 0}, C),
        culprits={1: RECORD},
        counters={OFFSET: 1},
    ),
    Line(
        rule="wrong relative offset",
        says="offset delta 2",
        code=RECORD,
        records=(A, {"offset": 2}, {"offset": 1}),
        culprits={1: RECORD, 2: RECORD},
        counters={OFFSET: 2},
    ),
    Line(
        rule="null key, the topic is compacted and needs one",
        says="null key",
        code=KEY,
        records=({"key": None}, B, {"key": None}),
        culprits={0: KEY, 2: KEY},
        counters={NO_KEY: 2},
        topic=COMPACT,
    ),
    Line(
        rule="timestamp out of range",
        says="3600001 ms ahead of the broker",
        code=TIME,
        records=({"ahead_ms": HOUR_MS}, {"ahead_ms": HOUR_MS + 1}, {"ahead_ms": -1}),
        culprits={1: TIME},
        counters={TIMESTAMP: 1},
    ),
    Line(
        rule="timestamp type LogAppendTime, expected CreateTime from a client",
        says="timestamp type LogAppendTime",
        code=TIME,
        batch={"attributes": 0b1000},
        culprits={0: TIME, 1: TIME, 2: TIME},
        counters={TIMESTAMP: 3},
    ),
)


@dataclass(frozen=True, kw_only=True)
class InconsistentBytes:
    """Bytes that contradict themselves though every checksum is right: `record` says how. `says`: words of the message."""

    name: str
    formats: Sequence[int]
    record: Fields
    code_of_plain: ErrorCode = RECORD
    says: str = ""


INCONSISTENT_BYTES = (
    InconsistentBytes(name="record length one too large", formats=(2,), record={"length_off_by": 1}),
    InconsistentBytes(name="record length one too small", formats=(2,), record={"length_off_by": -1}),
    InconsistentBytes(name="record length far too large", formats=(2,), record={"length_off_by": 1000}),
    InconsistentBytes(name="record length negative", formats=(2,), record={"length_off_by": -1000}),
    InconsistentBytes(name="header key null", formats=(2,), record={"headers": [(None, b"x")]}),
    InconsistentBytes(name="size negative", formats=(0, 1), record={"size_off_by": -(2**31)}, code_of_plain=CRC),
    InconsistentBytes(name="size far too large", formats=(0, 1), record={"size_off_by": 1000}),
    InconsistentBytes(name="key length too large", formats=(0, 1), record={"key_length": 1000}),
    InconsistentBytes(name="key length largest", formats=(0, 1), record={"key_length": 2**31 - 1}),
    InconsistentBytes(name="value length one too large", formats=(0, 1), record={"value_length": 6}),
    InconsistentBytes(name="value length one too small", formats=(0, 1), record={"value_length": 4}),
    InconsistentBytes(name="value length null", formats=(0, 1), record={"value_length": -1}),
    # Below the -1 of null: Apache Kafka stores them, and a client of librdkafka never gets past them.
    *(
        InconsistentBytes(name=f"{name} length {length}", formats=formats, record=record, says=f"{name} length is {says}below -1")
        for length in (-2, -7, -(2**31))
        for name, formats, record, says in (
            ("key", (2,), {"key": length}, "not a varint, "),
            ("value", (2,), {"value": length}, "not a varint, "),
            ("header's value", (2,), {"headers": [(b"h", length)]}, "not a varint, "),
            ("key", (0, 1), {"key": None, "key_length": length}, ""),
            ("value", (0, 1), {"value": None, "value_length": length}, ""),
        )
    ),
)


@dataclass(frozen=True)
class Case:
    """One line in one format under one codec."""

    line: Line
    record_format: int
    codec: Compression

    @property
    def name(self) -> str:
        return f"{self.line.rule} [format {self.record_format}, {self.codec.name.lower()}]"

    @property
    def data(self) -> bytes:
        return written(self.record_format, self.codec, self.line.records, self.line.batch)

    @property
    def version(self) -> int:
        """Formats 0 and 1 come in Produce 2, unless it is the rule that they may not come later."""
        return 2 if self.record_format < 2 and self.line.rule != "magic is old" else 9


def cases() -> Iterator[Case]:
    """Every line in every format and codec that has its rule."""
    by_name = {rule.name: rule for rule in rules.ALL_RULES}
    for line in LINES:
        rule = by_name[line.rule]
        for record_format in rule.formats:
            yield from (Case(line, record_format, codec) for codec in rule.applies_to.codecs(record_format))


def inconsistent_cases() -> Iterator[tuple[InconsistentBytes, int, Compression]]:
    """Every inconsistency in every format that can contain it, under every codec."""
    for case in INCONSISTENT_BYTES:
        for record_format in case.formats:
            yield from ((case, record_format, codec) for codec in rules.CODECS[record_format])


def written(record_format: int, codec: Compression, records: Sequence[Fields], batch: Fields) -> bytes:
    """The records as a client would write them, but for what the dictionaries say."""
    if record_format == 2:
        return _batch(codec, records, batch)
    batch = dict(batch)
    extra = raw_messages.message(magic=record_format) if "more" in batch and batch.pop("more") is not None else b""
    if codec is Compression.NONE:
        # What a compressed message would say of all, plain ones say each for itself.
        messages = [_message(record_format, index, {**batch, **changes}) for index, changes in enumerate(records)]
        return b"".join(messages) + extra
    messages = [_message(record_format, index, changes) for index, changes in enumerate(records)]
    return raw_messages.wrapper(messages, codec, magic=record_format, **batch) + extra


def _batch(codec: Compression, records: Sequence[Fields], batch: Fields) -> bytes:
    made = []
    for index, changes in enumerate(records):
        changes = dict(changes)
        ahead_ms, offset = changes.pop("ahead_ms", 0), changes.pop("offset", index)
        made.append(raw_batches.record(offset, timestamp_delta=ahead_ms, **changes))
    return bytes(raw_batches.raw_batch(made, compression=codec, **batch))


def _message(record_format: int, index: int, changes: Fields) -> bytes:
    changes = dict(changes)
    timestamp = NOW_MS + changes.pop("ahead_ms", 0)
    magic = changes.pop("magic", record_format)
    magic = 1 - record_format if magic == _OTHER_MAGIC else magic
    return raw_messages.message(**{"magic": magic, "offset": index, "timestamp": timestamp, **changes})
