"""Errors of the records package: faults in the bytes of a batch, invalid columns, and the exceptions for both.

The compiled loops and their reference implementations return a `Fault` (an integer, with a record index and a byte position); the functions
that call them raise exceptions. Every error of `chaffinch.records` is a `RecordsError`: code that reads external bytes catches only that
class.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any

from chaffinch.public_names import exported_from
from chaffinch.settings import shortened, shown_value


class Fault(IntEnum):
    """Inconsistencies in the bytes of a batch, in the order in which a reader meets the fields.

    Values up to 18 are for format 2; messages of formats 0 and 1 have further ones where their layout differs.
    """

    NONE = 0
    BATCH_LENGTH = 1
    BATCH_CUT_SHORT = 2
    BATCH_MAGIC = 3
    BATCH_MAGIC_OLD = 4
    RECORD_COUNT = 5
    PAYLOAD = 6
    RECORD_LENGTH = 7
    RECORD_CUT_SHORT = 8
    TIMESTAMP_DELTA = 9
    OFFSET_DELTA = 10
    KEY_LENGTH = 11
    VALUE_LENGTH = 12
    HEADER_COUNT = 13
    HEADER_KEY_LENGTH = 14
    HEADER_VALUE_LENGTH = 15
    RECORD_LENGTH_UNUSED = 16
    TRAILING_BYTES = 17
    CONTROL_RECORD = 18
    MESSAGE_SIZE = 19
    MESSAGE_CUT_SHORT = 20
    MESSAGE_KEY_LENGTH = 21
    MESSAGE_VALUE_LENGTH = 22
    MESSAGE_TIMESTAMP = 23


FAULT_TEXTS: dict[Fault, str] = {
    Fault.NONE: "nothing is wrong",
    Fault.BATCH_LENGTH: "the batch length is negative or below the size of a batch header",
    Fault.BATCH_CUT_SHORT: "the batch length goes beyond the available bytes",
    Fault.BATCH_MAGIC: "the magic byte is not 0, 1 or 2",
    Fault.BATCH_MAGIC_OLD: "the magic byte says format 0 or 1, and only format 2 is read here",
    Fault.RECORD_COUNT: "the record count is negative or larger than the payload can hold",
    Fault.PAYLOAD: "the payload cannot be decompressed",
    Fault.RECORD_LENGTH: "the record length is not a varint, or negative",
    Fault.RECORD_CUT_SHORT: "the record length goes beyond the payload",
    Fault.TIMESTAMP_DELTA: "the timestamp delta is not a varint within the record",
    Fault.OFFSET_DELTA: "the offset delta is not a varint within the record",
    Fault.KEY_LENGTH: "the key length is not a varint, below -1, or goes beyond the record",
    Fault.VALUE_LENGTH: "the value length is not a varint, below -1, or goes beyond the record",
    Fault.HEADER_COUNT: "the header count is not a varint, negative, or larger than the record can hold",
    Fault.HEADER_KEY_LENGTH: "a header's key length is not a varint, negative, or goes beyond the record",
    Fault.HEADER_VALUE_LENGTH: "a header's value length is not a varint, below -1, or goes beyond the record",
    Fault.RECORD_LENGTH_UNUSED: "the record's fields end before its length says",
    Fault.TRAILING_BYTES: "bytes follow the last record",
    Fault.CONTROL_RECORD: "the batch is not a control batch with one well-formed record",
    Fault.MESSAGE_SIZE: "the message size is negative or below that of an empty message",
    Fault.MESSAGE_CUT_SHORT: "the message size goes beyond the available bytes",
    Fault.MESSAGE_KEY_LENGTH: "the key length is below -1, or goes beyond the message",
    Fault.MESSAGE_VALUE_LENGTH: "the value length is below -1, or goes beyond the message",
    Fault.MESSAGE_TIMESTAMP: "the message ends within its timestamp",
}


class RecordsError(Exception):
    """Base class of all errors about data in `chaffinch.records`. Compares by class and arguments, and can be pickled."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.args == other.args

    def __hash__(self) -> int:
        return hash((type(self), self.args))


class CorruptBatch(RecordsError):
    """Bytes that are not a record batch.

    `fault` is the field and the reason. `record_index` (0-based within the batch) and `position` (in bytes: within the buffer for batch
    faults, within the decompressed payload for record faults) are the location; each is None if unknown.
    """

    def __init__(self, fault: Fault, record_index: int | None = None, position: int | None = None, detail: str = "") -> None:
        super().__init__(fault, record_index, position, detail)
        self.fault = fault
        self.record_index = record_index
        self.position = position
        self.detail = detail

    def __str__(self) -> str:
        where = "" if self.record_index is None else f"record {self.record_index}, "
        where += "" if self.position is None else f"byte {self.position}: "
        return f"{where}{FAULT_TEXTS[self.fault]}" + (f" ({self.detail})" if self.detail else "")


class BatchTooLarge(RecordsError):
    """Records that do not fit into a batch of format 2, whose length is a 32-bit number."""

    def __init__(self, size_bytes: int, size_bytes_max: int) -> None:
        super().__init__(size_bytes, size_bytes_max)
        self.size_bytes = size_bytes
        self.size_bytes_max = size_bytes_max

    def __str__(self) -> str:
        return f"a batch of {self.size_bytes} bytes is larger than the format allows, {self.size_bytes_max} bytes"


@exported_from("chaffinch")
class InvalidColumn(RecordsError, ValueError):
    """A column that cannot be converted to records: its name, its type or value, and what is allowed.

    It is a ValueError, as for other arguments of `send` that can never be valid.
    """

    def __init__(self, column: str, seen: Any, allowed: Iterable[str] | str) -> None:
        allowed_text = allowed if isinstance(allowed, str) else ", ".join(allowed)
        # A column's type text contains all its field names.
        self.seen = seen if isinstance(seen, str) else shortened(str(seen))
        super().__init__(column, self.seen, allowed_text)
        self.column = column
        self.allowed = allowed_text

    def __str__(self) -> str:
        return f"column {shown_value(self.column)} is {self.seen}; allowed: {self.allowed}"
