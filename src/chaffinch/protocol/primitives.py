"""Wire types of the Kafka protocol: kinds of fields, their widths, values and versions.

Only descriptions and the varint functions; `encoder.py` and `decoder.py` compile them to functions. Source: Kafka protocol guide, "Protocol
Primitive Types"; KIP-482 for the compact forms and tagged fields. Every integer is big-endian. A variable type has two forms. Before a
message's flexible versions its length is an int16 (strings) or int32 (bytes, records, arrays) with -1 for null. From them on it is an
unsigned varint of length + 1 with 0 for null.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias
from uuid import UUID

from chaffinch.records.file_slice import Part

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Input of decoding and output of encoding: bytes-like, one-dimensional, one byte per item."""

Records: TypeAlias = Buffer | list[Buffer] | list[Part] | None
"""A `records` field: a memoryview when decoded; when encoded also several consecutive parts, sent without copying."""

ZERO_UUID: Final = UUID(int=0)
"""Kafka's "no topic id"."""

UVARINT_BYTES_MAX: Final = 5
"""An unsigned varint of 32 bits takes at most five bytes (KIP-482)."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """A type of constant width; `code` is its letter in the `struct` module."""

    name: str
    code: str
    width: int
    default: Any
    minimum: int | float | None = None
    maximum: int | float | None = None


@dataclass(frozen=True, slots=True)
class Variable:
    """A string or a run of bytes. `prefix` is the letter of its length in versions that are not flexible."""

    name: str
    prefix: str
    default: Any


@dataclass(frozen=True, slots=True)
class Array:
    """A sequence of one type; decoded as a list."""

    element: Fixed | Variable | type[Structure]

    @property
    def name(self) -> str:
        """As in Kafka's message descriptions: `[]int32`."""
        return f"[]{self.element.__name__ if isinstance(self.element, type) else self.element.name}"


@dataclass(frozen=True, slots=True)
class Struct:
    """One nested structure. Null (for tagged fields: absent) is None."""

    message: type[Structure]

    @property
    def name(self) -> str:
        """Name of the structure."""
        return self.message.__name__


Kind: TypeAlias = Fixed | Variable | Array | Struct


@dataclass(slots=True, eq=False)
class Field:
    """One field in all versions of its message.

    It exists in versions since..until, may be null from `nullable_since` on and is a tagged field from `tagged_since` on.
    `essential`: a value other than the default must not be dropped silently when the version lacks the field.
    """

    name: str
    kind: Kind
    since: int
    until: int
    nullable_since: int | None
    tag: int | None
    tagged_since: int
    default: Any
    essential: bool

    def exists_in(self, version: int) -> bool:
        """Whether this version carries the field at all."""
        return self.since <= version <= self.until

    def is_nullable_in(self, version: int) -> bool:
        """Whether null is a legal value in this version."""
        return self.nullable_since is not None and version >= self.nullable_since

    def is_tagged_in(self, version: int) -> bool:
        """Whether the field travels in the tagged section (KIP-482) of this version."""
        return self.tag is not None and version >= self.tagged_since


class Structure:
    """Description of a message class for the compilers: its fields in order, and the first version with compact lengths and tags."""

    __slots__ = ()
    FIELDS: ClassVar[tuple[Field, ...]]
    FLEXIBLE_SINCE: ClassVar[int]


def _signed(name: str, code: str, width: int) -> Fixed:
    return Fixed(name, code, width, 0, -(1 << (8 * width - 1)), (1 << (8 * width - 1)) - 1)


Bool: Final = Fixed("bool", "?", 1, False)
Int8: Final = _signed("int8", "b", 1)
Int16: Final = _signed("int16", "h", 2)
Int32: Final = _signed("int32", "i", 4)
Int64: Final = _signed("int64", "q", 8)
Float64: Final = Fixed("float64", "d", 8, 0.0)
Uuid: Final = Fixed("uuid", "16s", 16, ZERO_UUID)
String: Final = Variable("string", "h", "")
Bytes: Final = Variable("bytes", "i", b"")
RecordsType: Final = Variable("records", "i", None)


def uvarint(value: int) -> bytes:
    """Encode an unsigned varint (KIP-482; 7 bits per byte, low bits first). `value` is 0 or positive."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_uvarint(data: Buffer, position: int) -> tuple[int, int]:
    """Decode an unsigned varint: (value, position after it).

    Raises IndexError when the bytes end within it and ValueError when it does not fit 32 bits.
    """
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift == 7 * UVARINT_BYTES_MAX:
            raise ValueError("varint is longer than 5 bytes")
    if value > 0xFFFF_FFFF:
        raise ValueError(f"varint {value} does not fit 32 bits")
    return value, position
