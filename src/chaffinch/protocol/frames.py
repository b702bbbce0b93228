"""Frame assembler: cuts a connection's byte stream into length-prefixed frames, in buffers lent to the transport.

Kafka's stream is a sequence of frames: an int32 size, then that many bytes. The transport takes a buffer, reads into it and reports the
number of bytes (asyncio's `BufferedProtocol`, or `socket.recv_into`), so received bytes are not copied.

Frames are in a rolling chunk: one read may bring many of them, and each is returned as a view. An incomplete frame at the chunk's end moves
to the beginning of the next chunk. That one has `CHUNK_BYTES` by default. It is larger after a read that filled its chunk, because more
bytes are waiting, and as large as the last frame if that exceeded a chunk. So small frames take few reads, and a large frame after one of
the same size takes one read and is not copied.

A connection without pending bytes holds no larger chunk than the default after `end_turn`. A buffer is reused when no view of it exists,
which the pool can check: a bytearray cannot be resized while views exist. So buffers need not be returned, and a view that is kept stays
valid.

An announced size may be false. Up to `EAGER_BYTES_MAX` the chunk gets the announced size at once. A larger frame's chunk grows with the
bytes received, by the factor `GROWTH`: that copies a fraction of the frame, and memory stays in proportion to the bytes received. The
`FrameBudget` that connections share limits the received bytes of all unfinished large frames. Announced bytes do not count, so that a peer
cannot lock others out with a few bytes. When chunks larger than the default reach the same limit, further ones start small.
"""

from __future__ import annotations

import sys
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from struct import Struct
from typing import Final

from chaffinch.protocol.violations import ProtocolViolation

FRAME_BYTES_MAX: Final = 100 * 1024 * 1024
"""Kafka's default of `socket.request.max.bytes`."""

CHUNK_BYTES: Final = 64 * 1024
"""Default chunk: about a hundred small requests, or four batches of 16 KiB, per read."""

BUSY_CHUNK_BYTES: Final = 256 * 1024
"""Chunk of a connection whose reads fill their chunk: the fixed cost of a read is a sixth of the time of batches of 16 KiB. Not the
default, because each of a thousand idle connections holds a chunk."""

EAGER_BYTES_MAX: Final = 2 * 1024 * 1024
"""Largest ordinary frame: a batch has 1 MiB by default."""

GROWTH: Final = 8
"""A frame of 100 MiB is copied twice, 18 MiB in all; an announced size gets at most eight times the bytes sent."""

POOL_BYTES_MAX: Final = 32 * 1024 * 1024
"""Largest total size of the buffers in a pool."""

POOL_BUFFERS_MAX: Final = 32
"""Largest number of buffers in a pool: each of them may be checked when one is lent."""

FREE_BYTES_MIN: Final = 4 * 1024
"""With less free space at the chunk's end a new one begins, so that reads do not become tiny."""

_SIZE: Final = Struct(">i")
# The first two bytes of a TLS ClientHello (RFC 8446, 5.1); as a frame size they mean 369 MB.
_TLS_HANDSHAKE: Final = 0x1603
# The first four bytes of HTTP requests; as a frame size they mean at least 1.2 GB.
_HTTP_METHODS: Final = {int.from_bytes(method): method.decode().strip() for method in (b"GET ", b"HEAD", b"POST", b"PUT ")}
_HTTP_ANSWER: Final = int.from_bytes(b"HTTP")
_NOTHING: Final = memoryview(b"")

assert FREE_BYTES_MIN < CHUNK_BYTES < BUSY_CHUNK_BYTES < EAGER_BYTES_MAX < POOL_BYTES_MAX
assert EAGER_BYTES_MAX < FRAME_BYTES_MAX


class FrameBudget:
    """Limit on the received bytes of all unfinished large frames. Shared by the connections of one thread."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_reserved = 0
        self.bytes_eager = 0
        """Bytes of chunks larger than the default."""

    def reserve(self, size: int) -> None:
        """Reserve `size` bytes; raises ProtocolViolation if they are not free."""
        if self.bytes_reserved + size > self.bytes_max:
            free = self.bytes_max - self.bytes_reserved
            raise ProtocolViolation(f"{size} more bytes of a frame refused: {free} of {self.bytes_max} are free for unfinished ones")
        self.bytes_reserved += size

    def release(self, size: int) -> None:
        """Release reserved bytes."""
        self.bytes_reserved -= size


class BufferPool:
    """Pool of receive buffers that are reused once no view of them exists. For the connections of one thread.

    `trusts_sizes`: whether the announced bytes of large frames will arrive, as in a broker's responses. Then Python allocates their memory,
    which is faster: a consumer of tables reads a fifth more records a second.
    """

    def __init__(self, bytes_max: int = POOL_BYTES_MAX, *, trusts_sizes: bool = False) -> None:
        self.bytes_max = bytes_max
        self._mapped_from = sys.maxsize if trusts_sizes else EAGER_BYTES_MAX + 1
        self.bytes_pooled = 0
        self._buffers: list[bytearray | mmap] = []

    def lend(self, size: int) -> memoryview:
        """A writable view of `size` bytes with unspecified content."""
        # Sizes are rounded up so that frames of slightly different sizes can share one buffer.
        rounded = -(-size // CHUNK_BYTES) * CHUNK_BYTES
        # Most recently used first: it may still be in the processor's cache.
        for index in range(len(self._buffers) - 1, -1, -1):
            buffer = self._buffers[index]
            if rounded <= len(buffer) <= 2 * rounded and _has_no_views(buffer):
                # Moved to the end: the list is sorted by last use, and the oldest is dropped first.
                self._buffers.append(self._buffers.pop(index))
                return memoryview(buffer)[:size]
        # A mapping allocates memory page by page as bytes arrive: the missing part of a large frame costs nothing.
        new = bytearray(rounded) if rounded < self._mapped_from else mmap(-1, rounded, flags=MAP_PRIVATE | MAP_ANONYMOUS)
        if rounded <= self.bytes_max:
            self._buffers.append(new)
            self.bytes_pooled += rounded
            while self.bytes_pooled > self.bytes_max or len(self._buffers) > POOL_BUFFERS_MAX:
                self.bytes_pooled -= len(self._buffers.pop(0))
        return memoryview(new)[:size]


def _has_no_views(buffer: bytearray | mmap) -> bool:
    """Whether no view of the buffer exists: only then can it be resized."""
    try:
        if isinstance(buffer, mmap):
            buffer.resize(len(buffer))
        else:
            del buffer[-1:]
            buffer.append(0)
    except (BufferError, SystemError):  # SystemError: the system cannot resize mappings. Do not reuse it.
        return False
    return True


class FrameAssembler:
    """Cuts one connection's stream into frames.

    Call `get_buffer`, write n bytes at its beginning, call `buffer_updated(n)`. After a ProtocolViolation the frame boundaries are lost:
    close the connection. `close` returns the bytes of unfinished frames to the budget.
    """

    def __init__(
        self,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        *,
        frame_bytes_min: int = 0,
        budget: FrameBudget | None = None,
        pool: BufferPool | None = None,
    ) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._frame_bytes_min = frame_bytes_min
        self._budget = budget or FrameBudget(sys.maxsize)
        self._pool = pool or BufferPool(2 * EAGER_BYTES_MAX)
        self._chunk = _NOTHING
        self._chunk_bytes = CHUNK_BYTES  # Target size.
        self.is_filled = False
        """Whether the last read filled its buffer."""
        self._start = 0  # Where the first unfinished frame begins in the chunk.
        self._stop = 0  # Where the bytes received so far end.
        self._need = 4  # Size of the unfinished frame with its prefix, as far as known.
        self._large = 0  # Size of an unfinished large frame, or of the last one, since the next may have the same.
        self._reserved = 0  # Bytes of an unfinished large frame reserved from the budget.
        self._eager = 0  # Bytes of the chunk counted in the budget if it is larger than the default.

    @property
    def bytes_pending(self) -> int:
        """Received bytes of an incomplete frame."""
        return self._stop - self._start

    def get_buffer(self, size_hint: int = -1) -> memoryview:
        """Buffer for the next bytes; never empty. The hint is ignored: the stream itself determines the size."""
        end = len(self._chunk)
        if self._start + (self._large or self._need) > end or end - self._stop < FREE_BYTES_MIN or end > self._chunk_bytes:
            self._ensure_capacity()
        return self._chunk[self._stop : self._start + self._large] if self._large else self._chunk[self._stop :]

    def buffer_updated(self, count: int) -> list[memoryview]:
        """The frames completed by `count` more bytes, without their size prefixes.

        Raises ProtocolViolation for a size out of bounds; its `frames` are those completed before.
        """
        chunk, start, stop = self._chunk, self._start, self._stop + count
        self._stop = stop
        if 4 <= count == stop - start and not self._large and stop < len(chunk) == CHUNK_BYTES:
            (size,) = _SIZE.unpack_from(chunk, start)
            if self._frame_bytes_min <= size == count - 4 <= self.frame_bytes_max:
                # Fast path for exactly one whole frame, as from a client that waits for each response.
                self._start = stop
                self._chunk_bytes = CHUNK_BYTES
                self.is_filled = False
                return [chunk[start + 4 : stop]]
        self.is_filled = stop == len(chunk) or stop == start + self._large
        frames: list[memoryview] = []
        need = 4
        while stop - start >= 4:
            (size,) = _SIZE.unpack_from(chunk, start)
            if not self._frame_bytes_min <= size <= self.frame_bytes_max:
                self._refuse(size, frames)
            end = start + 4 + size
            if end > stop:
                need = end - start
                break
            frames.append(chunk[start + 4 : end])
            start = end
        self._start, self._need = start, need
        last = need if need > CHUNK_BYTES or not frames else len(frames[-1]) + 4
        if CHUNK_BYTES < last < EAGER_BYTES_MAX:
            self._large = last
            self._chunk_bytes = -(-last // CHUNK_BYTES) * CHUNK_BYTES
        else:
            self._large = 0
            self._chunk_bytes = BUSY_CHUNK_BYTES if stop == len(chunk) else CHUNK_BYTES
        if self._reserved or need > CHUNK_BYTES:
            self._account(frames)
        if self._eager:
            self.end_turn()
        return frames

    def end_turn(self) -> None:
        """Called when the transport holds no buffer: release a chunk larger than the default, unless it has an unfinished frame."""
        if self._eager and self._start == self._stop:
            self._release_chunk()

    def close(self) -> None:
        """Forget an unfinished frame. Views handed out stay valid."""
        self._release()
        self._release_chunk()

    def __del__(self) -> None:
        self.close()

    def _ensure_capacity(self) -> None:
        """Begin a new chunk if needed. Ordinary large frames get their full size at once, larger ones grow."""
        rest, need = len(self._chunk) - self._start, self._need
        if need <= CHUNK_BYTES:
            size = self._chunk_bytes if self._chunk_bytes == CHUNK_BYTES else self._affordable(self._chunk_bytes)
            if size != rest:
                self._begin_chunk(size)
        elif need > rest:
            size = self._affordable(max(self._chunk_bytes, min(need, EAGER_BYTES_MAX)))
            if self._stop == len(self._chunk):
                size = max(size, min(need, GROWTH * (self._stop - self._start)))
            if size > rest:
                self._begin_chunk(size)

    def _affordable(self, size: int) -> int:
        """`size`, or the default if the budget for larger chunks is used up."""
        return size if self._budget.bytes_eager - self._eager + size <= self._budget.bytes_max else CHUNK_BYTES

    def _begin_chunk(self, size: int) -> None:
        """Begin a new chunk with the bytes of the unfinished frame."""
        count = self._stop - self._start
        pending: memoryview | bytes = self._chunk[self._start : self._stop]
        if count < FREE_BYTES_MIN:
            pending = bytes(pending)  # The buffer, still in the processor's cache, may then be reused.
        self._release_chunk()
        self._chunk = self._pool.lend(size)
        self._chunk[:count] = pending
        self._stop = count
        if size > CHUNK_BYTES:
            self._eager = min(size, EAGER_BYTES_MAX)
            self._budget.bytes_eager += self._eager

    def _release_chunk(self) -> None:
        self._budget.bytes_eager -= self._eager
        self._eager = self._start = self._stop = 0
        self._chunk = _NOTHING

    def _account(self, frames: list[memoryview]) -> None:
        """Reserve the received bytes of an unfinished large frame from the budget."""
        self._release()
        if self._need <= CHUNK_BYTES:
            return
        arrived = self._stop - self._start - 4
        try:
            self._budget.reserve(arrived)
        except ProtocolViolation as violation:
            self._reset()
            violation.frames = tuple(frames)
            raise
        self._reserved = arrived

    def _release(self) -> None:
        self._budget.release(self._reserved)
        self._reserved = 0

    def _refuse(self, size: int, frames: list[memoryview]) -> None:
        text = f"frame of {size} bytes refused, allowed: {self._frame_bytes_min} to {self.frame_bytes_max}"
        if size >> 16 == _TLS_HANDSHAKE:
            text = "its first bytes are a TLS handshake: the client speaks TLS (its security.protocol), and this listener does not"
        elif size in _HTTP_METHODS:
            text = f"its first bytes are {_HTTP_METHODS[size]}, which looks like HTTP: this is Kafka's port, metrics are on --metrics"
        elif size == _HTTP_ANSWER:
            text = "its first bytes are HTTP: the peer is a web server, not a Kafka broker"
        self._reset()
        violation = ProtocolViolation(text)
        violation.frames = tuple(frames)
        raise violation

    def _reset(self) -> None:
        """Drop the remaining bytes; a transport that reads on until it is closed still gets a buffer."""
        self.close()
        self._need, self._large, self._chunk_bytes = 4, 0, CHUNK_BYTES
