"""What a zstd frame says it holds, for those who need room for it.

A frame begins: magic number u32 | descriptor u8 | window u8 unless it is one segment | dictionary id, 0 to 4 bytes | content size, 0 to 8
bytes. Descriptor: bits 7 and 6 the size of the content size, bit 5 one segment, bits 1 and 0 that of the dictionary id; all little-endian
(RFC 8878, section 3.1.1.1).
"""

from __future__ import annotations

from typing import Final

_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_DESCRIPTOR_POSITION: Final = 4
_ONE_SEGMENT: Final = 0b0010_0000
_DICTIONARY_BYTES: Final = (0, 1, 2, 4)
_SIZE_BYTES: Final = (0, 2, 4, 8)
# A content size of two bytes counts from here: smaller ones have a field of one byte.
_TWO_BYTES_FROM: Final = 256


def content_size(data: bytes | bytearray | memoryview) -> int | None:
    """How many bytes the first frame claims to hold; None where it does not say, or there is no such frame. No more than a claim."""
    view = memoryview(data)
    if len(view) <= _DESCRIPTOR_POSITION or bytes(view[:_DESCRIPTOR_POSITION]) != _MAGIC:
        return None
    descriptor = view[_DESCRIPTOR_POSITION]
    is_one_segment = bool(descriptor & _ONE_SEGMENT)
    size_bytes = _SIZE_BYTES[descriptor >> 6] or int(is_one_segment)
    start = _DESCRIPTOR_POSITION + 1 + (not is_one_segment) + _DICTIONARY_BYTES[descriptor & 0b11]
    field = view[start : start + size_bytes]
    if not size_bytes or len(field) < size_bytes:
        return None
    return int.from_bytes(field, "little") + (_TWO_BYTES_FROM if size_bytes == 2 else 0)
