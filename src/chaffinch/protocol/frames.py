"""Length-prefixed frames, assembled in buffers that are lent to the transport.

Kafka's stream is a sequence of frames: an int32 size, then that many bytes. The transport asks for a buffer, reads into it and says
how much came (asyncio's `BufferedProtocol`, or `socket.recv_into`), so bytes are not copied on their way in.

Strategy. Frames lie in a rolling chunk: one read may bring many of them, and each is handed out as a view. What fits no more at the
chunk's end moves to the beginning of the next one. That is as large as the stream seems to need: `CHUNK_BYTES` as a rule; more after a
read that filled its chunk, for it has left more behind; and room for as large a frame as the last one was, if that exceeded a chunk. So
small frames take few reads, and each large frame that is as large as the one before comes in one read, and is not copied.

A connection from which nothing is pending holds no chunk larger than an ordinary one once `end_turn` was called. A buffer is used again
when nobody holds a view of it any more, which the pool can see: a bytearray cannot change its size while views exist. So nobody has to
give anything back, and a view that is kept stays valid for ever.

A size is only a claim. Up to `EAGER_BYTES_MAX` the chunk is made large enough at once; beyond it grows with what really arrives, by
`GROWTH` each time, which costs one copy of a fraction of the frame, and takes no more of the machine's memory than has arrived. What that
is of all unfinished large frames together is limited by the `FrameBudget` that connections share; claims cost nothing there, so that nobody
can lock others out with a few bytes. When chunks that are larger than ordinary ones amount to the same limit, further ones begin small.
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
"""The ordinary chunk: some hundred small requests, or four batches of 16 KiB, per read."""

BUSY_CHUNK_BYTES: Final = 256 * 1024
"""The same for a connection whose reads fill their chunk: what each read costs beside its bytes is a sixth of the time of batches of
16 KiB. Not for all, because a thousand idle connections hold a chunk each."""

EAGER_BYTES_MAX: Final = 2 * 1024 * 1024
"""Frames up to here are ordinary: a batch has 1 MiB by default."""

GROWTH: Final = 8
"""A frame of 100 MiB is copied twice, 18 MiB in all; a claim alone gets eight times what was sent."""

POOL_BYTES_MAX: Final = 32 * 1024 * 1024
"""What one pool keeps for reuse."""

POOL_BUFFERS_MAX: Final = 32
"""How many buffers one pool keeps: each of them may be looked at when one is lent."""

FREE_BYTES_MIN: Final = 4 * 1024
"""With less room at the chunk's end a new one begins, so that reads do not become tiny."""

_SIZE: Final = Struct(">i")
# The first two bytes of a TLS ClientHello (RFC 8446, 5.1), where a size of 369 MB would stand.
_TLS_HANDSHAKE: Final = 0x1603
# The first four bytes of requests for a web server, where a size of at least 1.2 GB would stand.
_HTTP_METHODS: Final = {int.from_bytes(method): method.decode().strip() for method in (b"GET ", b"HEAD", b"POST", b"PUT ")}
_HTTP_ANSWER: Final = int.from_bytes(b"HTTP")
_NOTHING: Final = memoryview(b"")

assert FREE_BYTES_MIN < CHUNK_BYTES < BUSY_CHUNK_BYTES < EAGER_BYTES_MAX < POOL_BYTES_MAX
assert EAGER_BYTES_MAX < FRAME_BYTES_MAX


class FrameBudget:
    """Limit on what has arrived of all large frames that are not complete. Shared by the connections of one thread."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_reserved = 0
        self.bytes_eager = 0
        """Chunks that are larger than ordinary ones."""

    def reserve(self, size: int) -> None:
        """Take `size` bytes; raises ProtocolViolation when they are not there."""
        if self.bytes_reserved + size > self.bytes_max:
            free = self.bytes_max - self.bytes_reserved
            raise ProtocolViolation(f"{size} more bytes of a frame refused: {free} of {self.bytes_max} are free for unfinished ones")
        self.bytes_reserved += size

    def release(self, size: int) -> None:
        """Give back what `reserve` took."""
        self.bytes_reserved -= size


class BufferPool:
    """Buffers that are used again once nobody looks at them. For the connections of one thread.

    `trusts_sizes`: whether what a peer claims of a large frame will come, as a broker's answers do. Then its memory is Python's own, which
    has it at hand: a consumer of tables reads a fifth more records a second.
    """

    def __init__(self, bytes_max: int = POOL_BYTES_MAX, *, trusts_sizes: bool = False) -> None:
        self.bytes_max = bytes_max
        self._mapped_from = sys.maxsize if trusts_sizes else EAGER_BYTES_MAX + 1
        self.bytes_pooled = 0
        self._buffers: list[bytearray | mmap] = []

    def lend(self, size: int) -> memoryview:
        """A writable view of `size` bytes with unspecified content."""
        # Sizes are rounded up so that frames of slightly different sizes can follow each other in one buffer.
        rounded = -(-size // CHUNK_BYTES) * CHUNK_BYTES
        # The last used one first, which the processor may still have at hand.
        for index in range(len(self._buffers) - 1, -1, -1):
            buffer = self._buffers[index]
            if rounded <= len(buffer) <= 2 * rounded and _has_no_views(buffer):
                # To the end: the list stays sorted by last use, and the oldest falls out first.
                self._buffers.append(self._buffers.pop(index))
                return memoryview(buffer)[:size]
        # A mapping takes the machine's memory page by page, as bytes come: what has not arrived of a large frame costs nothing.
        new = bytearray(rounded) if rounded < self._mapped_from else mmap(-1, rounded, flags=MAP_PRIVATE | MAP_ANONYMOUS)
        if rounded <= self.bytes_max:
            self._buffers.append(new)
            self.bytes_pooled += rounded
            while self.bytes_pooled > self.bytes_max or len(self._buffers) > POOL_BUFFERS_MAX:
                self.bytes_pooled -= len(self._buffers.pop(0))
        return memoryview(new)[:size]


def _has_no_views(buffer: bytearray | mmap) -> bool:
    """Whether no view of the buffer exists: only then can its size change."""
    try:
        if isinstance(buffer, mmap):
            buffer.resize(len(buffer))
        else:
            del buffer[-1:]
            buffer.append(0)
    except (BufferError, SystemError):  # The second where the system resizes no mapping: it is not used again then.
        return False
    return True


class FrameAssembler:
    """Cuts one connection's stream into frames.

    Call `get_buffer`, write n bytes at its beginning, call `buffer_updated(n)`. After a ProtocolViolation the stream has lost its
    frames: close the connection. `close` gives unfinished frames back to the budget.
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
        self._chunk_bytes = CHUNK_BYTES  # How large it should be.
        self.is_filled = False
        """Whether the last read filled what was lent for it."""
        self._start = 0  # Where the first unfinished frame begins in the chunk.
        self._stop = 0  # Where the bytes received so far end.
        self._need = 4  # The unfinished frame's bytes, prefix and all, as far as it is known.
        self._large = 0  # The same of a large frame that is unfinished, or was the last one and so is expected again.
        self._reserved = 0  # Bytes of an unfinished large frame, of the budget.
        self._eager = 0  # What the chunk has of the budget, being larger than an ordinary one.

    @property
    def bytes_pending(self) -> int:
        """Bytes received of a frame that is not complete."""
        return self._stop - self._start

    def get_buffer(self, size_hint: int = -1) -> memoryview:
        """Where the next bytes are to be written; never empty. The hint is ignored: the stream itself says what is needed."""
        end = len(self._chunk)
        if self._start + (self._large or self._need) > end or end - self._stop < FREE_BYTES_MIN or end > self._chunk_bytes:
            self._ensure_capacity()
        return self._chunk[self._stop : self._start + self._large] if self._large else self._chunk[self._stop :]

    def buffer_updated(self, count: int) -> list[memoryview]:
        """The frames that `count` more bytes completed, without their size prefixes.

        Raises ProtocolViolation for a size out of bounds; frames completed before it are in its `frames`.
        """
        chunk, start, stop = self._chunk, self._start, self._stop + count
        self._stop = stop
        if 4 <= count == stop - start and not self._large and stop < len(chunk) == CHUNK_BYTES:
            (size,) = _SIZE.unpack_from(chunk, start)
            if self._frame_bytes_min <= size == count - 4 <= self.frame_bytes_max:
                # One whole frame where nothing was pending, as from a client that waits for each answer: the same in fewer steps.
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
        """The transport holds no buffer now: one that is larger than ordinary is let go, unless a frame is unfinished in it."""
        if self._eager and self._start == self._stop:
            self._release_chunk()

    def close(self) -> None:
        """Forget an unfinished frame. Views handed out stay valid."""
        self._release()
        self._release_chunk()

    def __del__(self) -> None:
        self.close()

    def _ensure_capacity(self) -> None:
        """Begin a new chunk, unless this one will do. Ordinary large frames get all their room at once, larger ones as they come."""
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
        """The size of a chunk that is to have `size` bytes, as long as larger ones are not too many."""
        return size if self._budget.bytes_eager - self._eager + size <= self._budget.bytes_max else CHUNK_BYTES

    def _begin_chunk(self, size: int) -> None:
        """Begin a new chunk with the bytes of the unfinished frame."""
        count = self._stop - self._start
        pending: memoryview | bytes = self._chunk[self._start : self._stop]
        if count < FREE_BYTES_MIN:
            pending = bytes(pending)  # Then it may be the same buffer again, which the processor still has at hand.
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
        """Have the budget say whether so much of an unfinished large frame may be here."""
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
        text = f"frame of {size} bytes refused, allowed are {self._frame_bytes_min} to {self.frame_bytes_max}"
        if size >> 16 == _TLS_HANDSHAKE:
            text = "its first bytes are a TLS handshake: the client speaks TLS (its security.protocol), and this listener does not"
        elif size in _HTTP_METHODS:
            text = f"its first bytes are {_HTTP_METHODS[size]}, which looks like HTTP: this is Kafka's port, metrics are on --metrics"
        elif size == _HTTP_ANSWER:
            text = "its first bytes are HTTP: a web server answers there, no Kafka broker"
        self._reset()
        violation = ProtocolViolation(text)
        violation.frames = tuple(frames)
        raise violation

    def _reset(self) -> None:
        """Nothing of the rest is kept; a transport that goes on reading until it is closed gets room."""
        self.close()
        self._need, self._large, self._chunk_bytes = 4, 0, CHUNK_BYTES
