"""Length-prefixed frames, assembled in buffers that are lent to the transport.

Kafka's stream is a sequence of frames: an int32 size, then that many bytes. The transport asks for a buffer, reads into it and says
how much came (asyncio's `BufferedProtocol`, or `socket.recv_into`), so bytes are not copied on their way in.

Strategy. Small frames share a rolling chunk: one read may bring many of them, and each is handed out as a view. A read that fills its
chunk has left more behind, so the next chunk is a larger one, until a read leaves room. A frame that exceeds `CHUNK_BYTES` gets a buffer
of exactly its size, so that `records` can stay a view of it; only what arrived together with its first bytes (less than a chunk) is
copied. A buffer is used again when nobody holds a view of it any more, which the pool can see: a bytearray cannot change its size while
views exist. So nobody has to give anything back, and a view that is kept stays valid for ever.

A size is only a claim. Up to `EAGER_BYTES_MAX` the buffer is allocated at once; a larger one grows with what really arrives, by
`GROWTH` each time, which costs one copy of a fraction of the frame. What has arrived of all unfinished large frames together is limited by
the `FrameBudget` that connections share; claims cost nothing there, so that nobody can lock others out with a few bytes. When buffers that
were allocated for claims amount to the same limit, further ones begin small.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from chaffinch.protocol.violations import ProtocolViolation

FRAME_BYTES_MAX: Final = 100 * 1024 * 1024
"""Kafka's default of `socket.request.max.bytes`."""

CHUNK_BYTES: Final = 64 * 1024
"""The rolling buffer: some hundred small requests, or four batches of 16 KiB, per read."""

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

ROOM_BYTES_MIN: Final = 4 * 1024
"""With less room at the chunk's end a new one begins, so that reads do not become tiny."""

_SIZE: Final = Struct(">i")

assert ROOM_BYTES_MIN < CHUNK_BYTES < BUSY_CHUNK_BYTES < EAGER_BYTES_MAX < POOL_BYTES_MAX
assert EAGER_BYTES_MAX < FRAME_BYTES_MAX


class FrameBudget:
    """Limit on what has arrived of all large frames that are not complete. Shared by the connections of one thread."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_reserved = 0
        self.bytes_eager = 0
        """Buffers allocated for claims of frames that are not complete."""

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
    """Buffers that are used again once nobody looks at them. For the connections of one thread."""

    def __init__(self, bytes_max: int = POOL_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.bytes_kept = 0
        self._kept: list[bytearray] = []

    def lend(self, size: int) -> memoryview:
        """A writable view of `size` bytes with unspecified content."""
        # Sizes are rounded up so that frames of slightly different sizes can follow each other in one buffer.
        rounded = -(-size // CHUNK_BYTES) * CHUNK_BYTES
        for index, buffer in enumerate(self._kept):
            if rounded <= len(buffer) <= 2 * rounded and _is_unseen(buffer):
                # To the end: the list stays sorted by last use, and the oldest falls out first.
                self._kept.append(self._kept.pop(index))
                return memoryview(buffer)[:size]
        buffer = bytearray(rounded)
        if rounded <= self.bytes_max:
            self._kept.append(buffer)
            self.bytes_kept += rounded
            while self.bytes_kept > self.bytes_max or len(self._kept) > POOL_BUFFERS_MAX:
                self.bytes_kept -= len(self._kept.pop(0))
        return memoryview(buffer)[:size]


def _is_unseen(buffer: bytearray) -> bool:
    """Whether no view of the buffer exists: only then can its size change."""
    try:
        del buffer[-1:]
    except BufferError:
        return False
    buffer.append(0)
    return True


class FrameAssembler:
    """Cuts one connection's stream into frames.

    Call `get_buffer`, write n bytes at its beginning, call `buffer_updated(n)`. After a ProtocolViolation the stream has lost its
    frames: close the connection. `close` gives unfinished frames back to the budget.
    """

    def __init__(
        self, frame_bytes_max: int = FRAME_BYTES_MAX, *, budget: FrameBudget | None = None, pool: BufferPool | None = None
    ) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._budget = budget
        self._pool = pool or BufferPool(2 * EAGER_BYTES_MAX)
        self._chunk = memoryview(b"")
        self._chunk_bytes = CHUNK_BYTES  # How large it should be.
        self._start = 0  # Where the first unfinished frame begins in the chunk.
        self._stop = 0  # Where the bytes received so far end.
        self._large: memoryview | None = None  # The body of a large frame, or as much of it as there is room for yet.
        self._large_size = 0
        self._large_filled = 0
        self._large_reserved = 0
        self._large_eager = 0

    @property
    def bytes_pending(self) -> int:
        """Bytes received of a frame that is not complete."""
        return 4 + self._large_filled if self._large is not None else self._stop - self._start

    def get_buffer(self, size_hint: int = -1) -> memoryview:
        """Where the next bytes are to be written; never empty. The hint is ignored: the stream itself says what is needed."""
        if self._large is not None:
            return self._large[self._large_filled :]
        if len(self._chunk) - self._stop < ROOM_BYTES_MIN and len(self._chunk) - self._start < CHUNK_BYTES:
            self._roll()
        return self._chunk[self._stop :]

    def buffer_updated(self, count: int) -> list[memoryview]:
        """The frames that `count` more bytes completed, without their size prefixes.

        Raises ProtocolViolation for a negative or too large size; frames completed before it are in its `frames`.
        """
        if self._large is not None:
            return self._large_updated(self._large, count)
        chunk, start, stop = self._chunk, self._start, self._stop + count
        self._stop = stop
        self._chunk_bytes = CHUNK_BYTES if stop < len(chunk) else BUSY_CHUNK_BYTES
        frames: list[memoryview] = []
        while stop - start >= 4:
            (size,) = _SIZE.unpack_from(chunk, start)
            end = start + 4 + size
            if end > stop or size < 0:
                self._start = start
                self._begin(size, frames)
                return frames
            if size > self.frame_bytes_max:
                self._refuse(size, frames)
            frames.append(chunk[start + 4 : end])
            start = end
        self._start = start
        if len(chunk) > self._chunk_bytes:
            self._roll()
        return frames

    def close(self) -> None:
        """Forget an unfinished frame. Views handed out stay valid."""
        self._release()
        self._chunk = memoryview(b"")
        self._start = self._stop = 0

    def __del__(self) -> None:
        self.close()

    def _release(self) -> None:
        if self._large is not None and self._budget is not None:
            self._budget.release(self._large_reserved)
            self._budget.bytes_eager -= self._large_eager
        self._large_reserved = self._large_eager = 0
        self._large = None

    def _large_updated(self, large: memoryview, count: int) -> list[memoryview]:
        self._large_filled += count
        if self._large_filled == self._large_size:
            self._release()
            return [large]
        self._reserve(count)
        if self._large_filled < len(large):
            return []
        self._large = self._pool.lend(min(GROWTH * len(large), self._large_size))
        self._large[: len(large)] = large
        return []

    def _reserve(self, count: int) -> None:
        if self._budget is None:
            return
        try:
            self._budget.reserve(count)
        except ProtocolViolation:
            self._release()  # At once, so that one connection is refused and not all that come in the same moment.
            raise
        self._large_reserved += count

    def _begin(self, size: int, frames: list[memoryview]) -> None:
        """An unfinished frame of `size` bytes lies at the end of the received bytes: make sure that its rest has a place."""
        if not 0 <= size <= self.frame_bytes_max:
            self._refuse(size, frames)
        end = self._start + 4 + size
        if size + 4 > CHUNK_BYTES:
            self._begin_large(size, frames)
            end, self._chunk_bytes = self._start, CHUNK_BYTES
        if end > len(self._chunk) or len(self._chunk) > self._chunk_bytes:
            self._roll()

    def _begin_large(self, size: int, frames: list[memoryview]) -> None:
        arrived = self._stop - self._start - 4
        try:
            self._reserve(arrived)
        except ProtocolViolation as violation:
            violation.frames = tuple(frames)
            raise
        large = self._pool.lend(self._first_size(size))
        large[:arrived] = self._chunk[self._start + 4 : self._stop]
        self._large, self._large_size, self._large_filled = large, size, arrived
        self._start = self._stop

    def _first_size(self, size: int) -> int:
        """How much to allocate for a claim before more of it arrives; always more than there can be by now."""
        eager = min(size, EAGER_BYTES_MAX)
        if self._budget is None:
            return eager
        if self._budget.bytes_eager + eager > self._budget.bytes_max:
            return min(size, CHUNK_BYTES)
        self._budget.bytes_eager += eager
        self._large_eager = eager
        return eager

    def _refuse(self, size: int, frames: list[memoryview]) -> None:
        violation = ProtocolViolation(f"frame of {size} bytes refused, allowed are 0 to {self.frame_bytes_max}")
        violation.frames = tuple(frames)
        raise violation

    def _roll(self) -> None:
        """Begin a new chunk with the bytes of the unfinished frame."""
        pending = self._chunk[self._start : self._stop]
        self._chunk = self._pool.lend(self._chunk_bytes)
        self._chunk[: len(pending)] = pending
        self._start, self._stop = 0, len(pending)
