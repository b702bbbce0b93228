"""Compression codecs of record batches: gzip, snappy, lz4, zstd. The only importer of cramjam.

The output is readable by Apache Kafka's Java client: one gzip member; snappy in the block framing of the xerial library (as Java writes
it); an lz4 frame of independent 64 KiB blocks (Java refuses dependent ones); one zstd frame. The input may be anything that existing
clients write: several gzip members, snappy with the framing or raw, any lz4 frame, several zstd frames.

Decompression is bounded. The output goes into a buffer of at most `bytes_max` bytes and the codecs stop at its end, so a decompression bomb
costs one such buffer, whatever it claims. The first buffer has the size that the data states, or an estimate. While it is too small,
decompression is repeated with one several times as large. Unused space is released.

Not here: which codec a topic uses (`validation.py`), and the bits of the batch header (`batch_header.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from struct import Struct
from typing import Final

import cramjam
import numpy as np

from chaffinch.records import kernels
from chaffinch.records.errors import RecordsError
from chaffinch.records.kernels_reference import snappy

Buffer = bytes | bytearray | memoryview


class Compression(IntEnum):
    """Codec numbers in bits 0 to 2 of a batch's attributes (Kafka's `CompressionType`)."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class CompressionError(RecordsError):
    """Base class of decompression errors: invalid bytes, or too many of them."""

    def __init__(self, codec: Compression, *details: object) -> None:
        super().__init__(codec, *details)
        self.codec = codec

    @property
    def codec_name(self) -> str:
        return self.codec.name.lower()


class PayloadUnreadable(CompressionError):
    """The payload is truncated, damaged, or followed by extra bytes. `reason` is a fragment for people."""

    def __init__(self, codec: Compression, reason: str) -> None:
        super().__init__(codec, reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the {self.codec_name} payload cannot be decompressed: {self.reason}"


class PayloadTooLarge(CompressionError):
    """The payload decompresses to more than `bytes_max` bytes. The excess is unknown: decompression stopped there."""

    def __init__(self, codec: Compression, bytes_max: int) -> None:
        super().__init__(codec, bytes_max)
        self.bytes_max = bytes_max

    def __str__(self) -> str:
        return f"the {self.codec_name} payload decompresses to more than {self.bytes_max} bytes"


class UnknownCompression(RecordsError):
    """A codec name that does not exist."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"compression {self.name!r} does not exist; allowed: {', '.join(codec.name.lower() for codec in Compression)}"


GZIP_LEVEL_DEFAULT: Final = -1
"""Value of Kafka's `compression.gzip.level` for the codec's own default."""


def from_name(name: str) -> Compression:
    """The codec named `name` in options (`compression.type`), in upper or lower case. Raises UnknownCompression."""
    try:
        return Compression[name.upper()]
    except KeyError:
        raise UnknownCompression(name) from None


def compress(codec: Compression, data: Buffer, level: int | None = None) -> Buffer:
    """`data` compressed. `level` is in the codec's own scale (gzip 1 to 9 or -1, lz4 1 to 17, zstd 1 to 22; snappy has none), None its
    default.

    NONE returns `data` itself.
    """
    return _COMPRESS[codec](data, level)


def decompress(codec: Compression, data: Buffer, bytes_max: int) -> memoryview:
    """`data` decompressed, at most `bytes_max` bytes; for NONE a view of `data`.

    Raises PayloadTooLarge or PayloadUnreadable, and never allocates more than `bytes_max` bytes for the output.
    """
    if codec is Compression.NONE:
        if len(data) > bytes_max:
            raise PayloadTooLarge(codec, bytes_max)
        return memoryview(data)
    if codec is Compression.SNAPPY:
        return _snappy_decompress(data, bytes_max)
    return _stream_decompress(codec, data, bytes_max)


# --- gzip, lz4, zstd: the output's size is not known beforehand ----------------------------------------------------------

_DECOMPRESS_INTO: Final[dict[Compression, Callable[[Buffer, Buffer], int]]] = {
    Compression.GZIP: cramjam.gzip.decompress_into,
    Compression.LZ4: cramjam.lz4.decompress_into,
    Compression.ZSTD: cramjam.zstd.decompress_into,
}

_GUESS_BYTES_MIN = 64 * 1024
_GUESS_FACTOR = 16
"""The first estimate is this many times the input: only very repetitive records, whose inputs are small, compress better."""
_GROWTH_FACTOR = 8
"""Each further estimate is this many times the previous one, so that failed attempts are a small part of the work."""

_OUTPUT_FULL = "failed to write whole buffer"
"""cramjam's error if the output does not fit (from Rust's `Write::write_all`); a test checks it."""


def _stream_decompress(codec: Compression, data: Buffer, bytes_max: int) -> memoryview:
    for size in _sizes(codec, data, bytes_max):
        output = np.empty(size, np.uint8)
        try:
            written = _DECOMPRESS_INTO[codec](data, output.data)
        except cramjam.DecompressionError as error:
            if str(error) != _OUTPUT_FULL:
                raise PayloadUnreadable(codec, str(error)) from None
        else:
            # Many small batches are kept at the same time, so release the unused space. Nothing else refers to this memory.
            output.resize(written, refcheck=False)
            return output.data
    raise PayloadTooLarge(codec, bytes_max)


def _sizes(codec: Compression, data: Buffer, bytes_max: int) -> Iterator[int]:
    """Output sizes to try, in order; the last is `bytes_max`."""
    claimed = zstd_content_size(data) if codec is Compression.ZSTD else None
    size = max(_GUESS_BYTES_MIN, _GUESS_FACTOR * len(data)) if claimed is None else claimed
    while size < bytes_max:
        yield size
        size = max(size, 1) * _GROWTH_FACTOR
    yield bytes_max


def _gzip_compress(data: Buffer, level: int | None) -> Buffer:
    return memoryview(cramjam.gzip.compress(data, None if level == GZIP_LEVEL_DEFAULT else level))


_LZ4_LEVEL_FAST: Final = 1


def _lz4_compress(data: Buffer, level: int | None) -> Buffer:
    # cramjam's default is its slow, dense encoder at 60 MB/s; Java's default is the fast one.
    fast = _LZ4_LEVEL_FAST if level is None else level
    compressor = cramjam.lz4.Compressor(level=fast, content_checksum=False, block_linked=False)
    compressor.compress(bytes(data))  # Other buffers are not accepted here.
    return memoryview(compressor.finish())


def _zstd_compress(data: Buffer, level: int | None) -> Buffer:
    return memoryview(cramjam.zstd.compress(data, level))


# --- snappy: every block begins with its own decompressed size -----------------------------------------------------------

XERIAL_MAGIC: Final = snappy.MAGIC
"""First bytes of the framing (xerial's `SnappyCodec.MAGIC_HEADER_BYTES`); two int32 follow, the version and the oldest reader's."""
XERIAL_BLOCK_BYTES: Final = 32 * 1024
"""Uncompressed bytes per block, the default of xerial's `SnappyOutputStream`."""

_XERIAL_HEADER = XERIAL_MAGIC + Struct(">ii").pack(1, 1)
_BLOCK_SIZE = Struct(">i")


def _snappy_compress(data: Buffer, level: int | None) -> Buffer:
    del level  # The codec has none.
    framed = bytearray(_XERIAL_HEADER)
    view = memoryview(data)
    for start in range(0, len(view), XERIAL_BLOCK_BYTES):
        block = cramjam.snappy.compress_raw(view[start : start + XERIAL_BLOCK_BYTES])
        framed += _BLOCK_SIZE.pack(len(block))
        framed += memoryview(block)
    return framed


def _snappy_decompress(data: Buffer, bytes_max: int) -> memoryview:
    """Two passes over the blocks: the first adds up the claimed sizes, the second fills one buffer of exactly that size."""
    view = memoryview(data)
    blocks = _xerial_blocks(view) if _is_framed(view, 0) else [view]
    if blocks is None:
        return _many_snappy_blocks(view, bytes_max)
    sizes = [_snappy_block_size(block) for block in blocks]
    size = sum(sizes)
    if size > bytes_max:
        raise PayloadTooLarge(Compression.SNAPPY, bytes_max)
    output = np.empty(size, np.uint8).data
    position = 0
    for block, block_size in zip(blocks, sizes, strict=True):
        try:
            # The size at the head of a block is a claim; the codec checks it against its output.
            cramjam.snappy.decompress_raw_into(block, output[position : position + block_size])
        except cramjam.DecompressionError as error:
            raise PayloadUnreadable(Compression.SNAPPY, str(error)) from None
        position += block_size
    return output


_BLOCKS_MAX_PER_KIB: Final = 1
_BLOCKS_MAX_BASE: Final = 64
"""Streams with more blocks are decompressed by one loop over all of them. Real writers use blocks of 32 KiB."""


def _many_snappy_blocks(view: memoryview, bytes_max: int) -> memoryview:
    output = np.empty(min(bytes_max, snappy.EXPANSION_MAX * len(view)), np.uint8)
    written = kernels.choose(len(view) // snappy.SIZE_BYTES).unframe_snappy(np.frombuffer(view, np.uint8), output)
    if written == snappy.OUTPUT_FULL and len(output) == bytes_max:
        raise PayloadTooLarge(Compression.SNAPPY, bytes_max)
    if written < 0:
        raise PayloadUnreadable(Compression.SNAPPY, _SNAPPY_REASONS[written])
    return output[:written].data


_SNAPPY_REASONS: Final = {
    snappy.HEADER_CUT_SHORT: "a frame header is cut short",
    snappy.TRAILING_BYTES: "bytes follow the last block",
    snappy.BLOCK_SIZE_WRONG: "a block is empty, or larger than the remaining bytes",
    snappy.NO_SIZE: "a block does not begin with its size",
    snappy.DAMAGED: "a block is damaged, or does not hold what it claims",
    snappy.OUTPUT_FULL: "a block claims more than its bytes can hold",
}


def _is_framed(view: memoryview, position: int) -> bool:
    return view[position : position + len(XERIAL_MAGIC)].tobytes() == XERIAL_MAGIC


def _xerial_blocks(view: memoryview) -> list[memoryview] | None:
    """The raw snappy blocks of a framed stream; None if there are very many. The frame header may repeat, in concatenated streams.

    Version numbers are ignored: some writers use the other byte order, and Java reads those too.
    """
    blocks: list[memoryview] = []
    blocks_max = _BLOCKS_MAX_BASE + _BLOCKS_MAX_PER_KIB * len(view) // 1024
    position = 0
    while position < len(view):
        if _is_framed(view, position):
            position += snappy.HEADER_BYTES
            if position > len(view):
                raise PayloadUnreadable(Compression.SNAPPY, "the frame header is cut short")
            continue
        if len(view) - position < _BLOCK_SIZE.size:
            raise PayloadUnreadable(Compression.SNAPPY, f"{len(view) - position} bytes follow the last block")
        (size,) = _BLOCK_SIZE.unpack_from(view, position)
        position += _BLOCK_SIZE.size
        if not 0 < size <= len(view) - position:
            raise PayloadUnreadable(Compression.SNAPPY, f"a block of {size} bytes, {len(view) - position} are left")
        if len(blocks) == blocks_max:
            return None
        blocks.append(view[position : position + size])
        position += size
    return blocks


def _snappy_block_size(block: memoryview) -> int:
    """The decompressed size at the head of a raw block: a little-endian varint of at most five bytes (snappy's format_description)."""
    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            if size >= 2**32:
                break
            return size
        shift += 7
    raise PayloadUnreadable(Compression.SNAPPY, "a block does not begin with its size")


_COMPRESS: Final[dict[Compression, Callable[[Buffer, int | None], Buffer]]] = {
    Compression.NONE: lambda data, level: data,
    Compression.GZIP: _gzip_compress,
    Compression.SNAPPY: _snappy_compress,
    Compression.LZ4: _lz4_compress,
    Compression.ZSTD: _zstd_compress,
}


# A zstd frame begins: magic number u32 | descriptor u8 | window u8 unless it is one segment | dictionary id, 0 to 4 bytes | content size,
# 0 to 8 bytes. Descriptor: bits 7 and 6 the size of the content size, bit 5 one segment, bits 1 and 0 that of the dictionary id; all
# little-endian (RFC 8878, section 3.1.1.1).
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_DESCRIPTOR_POSITION: Final = 4
_ONE_SEGMENT: Final = 0b0010_0000
_DICTIONARY_BYTES: Final = (0, 1, 2, 4)
_SIZE_BYTES: Final = (0, 2, 4, 8)
# A content size of two bytes counts from here: smaller ones have a field of one byte.
_TWO_BYTES_FROM: Final = 256


def zstd_content_size(data: Buffer) -> int | None:
    """Claimed size of the first zstd frame; None if it states none, or there is no such frame."""
    view = memoryview(data)
    if len(view) <= _DESCRIPTOR_POSITION or bytes(view[:_DESCRIPTOR_POSITION]) != _ZSTD_MAGIC:
        return None
    descriptor = view[_DESCRIPTOR_POSITION]
    is_one_segment = bool(descriptor & _ONE_SEGMENT)
    size_bytes = _SIZE_BYTES[descriptor >> 6] or int(is_one_segment)
    start = _DESCRIPTOR_POSITION + 1 + (not is_one_segment) + _DICTIONARY_BYTES[descriptor & 0b11]
    field = view[start : start + size_bytes]
    if not size_bytes or len(field) < size_bytes:
        return None
    return int.from_bytes(field, "little") + (_TWO_BYTES_FROM if size_bytes == 2 else 0)
