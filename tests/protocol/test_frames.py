"""Frames: different arrivals of bytes, limits, and reuse of buffers."""

from __future__ import annotations

import random
import resource
import ssl
from mmap import mmap
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chaffinch.protocol.frames import (
    BUSY_CHUNK_BYTES,
    CHUNK_BYTES,
    EAGER_BYTES_MAX,
    GROWTH,
    POOL_BUFFERS_MAX,
    BufferPool,
    FrameAssembler,
    FrameBudget,
)
from chaffinch.protocol.violations import ProtocolViolation
from tests.support.traced_memory import traced

STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    return int(STATM.read_text().split()[1]) * resource.getpagesize()


def framed(*bodies: bytes) -> bytes:
    return b"".join(len(body).to_bytes(4, "big", signed=True) + body for body in bodies)


def feed(assembler: FrameAssembler, data: bytes, read_bytes_max: int = 1 << 30) -> list[memoryview]:
    """What a transport does: ask for a buffer, fill as much of it as there is data."""
    frames = []
    view = memoryview(data)
    while view:
        buffer = assembler.get_buffer(-1)
        assert len(buffer) > 0
        count = min(len(buffer), len(view), read_bytes_max)
        buffer[:count] = view[:count]
        frames += assembler.buffer_updated(count)
        assert assembler.is_filled == (count == len(buffer))
        view = view[count:]
    return frames


SIZES = [0, 1, 3, 5, 1000, CHUNK_BYTES - 5, CHUNK_BYTES - 4, CHUNK_BYTES - 3, CHUNK_BYTES, 200_000, EAGER_BYTES_MAX, EAGER_BYTES_MAX + 1]


def body(size: int) -> bytes:
    return random.Random(size).randbytes(size)


class TestArrivals:
    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize("before", [0, 1, 5000, CHUNK_BYTES - 100])
    def test_whole_frame_between_others_is_read(self, size: int, before: int) -> None:
        bodies = [body(before), body(size), body(77)]
        assembler = FrameAssembler()
        assert feed(assembler, framed(*bodies)) == bodies
        assert assembler.bytes_pending == 0

    @pytest.mark.parametrize("size", [size for size in SIZES if size <= 200_000])
    def test_frames_arriving_byte_by_byte_are_read(self, size: int) -> None:
        bodies = [body(size), body(7)]
        assert feed(FrameAssembler(), framed(*bodies), read_bytes_max=1 if size < 5000 else 997) == bodies

    @pytest.mark.parametrize("size", SIZES)
    def test_trailing_bytes_stay_pending(self, size: int) -> None:
        assembler = FrameAssembler()
        assert feed(assembler, framed(body(size)) + b"\0\0\0") == [body(size)]
        assert assembler.bytes_pending == 3
        assert feed(assembler, b"\2ab") == [b"ab"]

    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(st.integers(0, 3000) | st.integers(CHUNK_BYTES - 8, CHUNK_BYTES + 8) | st.integers(190_000, 200_000), max_size=12),
        st.integers(1, 300_000),
        st.sampled_from([0, CHUNK_BYTES, 3 * CHUNK_BYTES, 1 << 30]),
    )
    @example([200_000, 200_000], 300_000, 0)
    def test_frames_of_any_size_in_any_pieces_are_read(self, sizes: list[int], read_bytes_max: int, eager_bytes_free: int) -> None:
        budget = FrameBudget(1 << 30)
        budget.bytes_eager = taken = budget.bytes_max - eager_bytes_free
        bodies = [body(size) for size in sizes]
        assembler = FrameAssembler(budget=budget)
        assert feed(assembler, framed(*bodies), max(read_bytes_max, sum(sizes) // 200)) == bodies
        assert (budget.bytes_reserved, budget.bytes_eager, assembler.bytes_pending) == (0, taken, 0)

    def test_get_buffer_changes_nothing(self) -> None:
        assembler = FrameAssembler()
        assembler.get_buffer(-1)[:3] = b"\0\0\0"
        assembler.get_buffer(1 << 20)
        assert assembler.buffer_updated(3) == []
        assembler.get_buffer(-1)
        assembler.get_buffer(-1)[:3] = b"\2ab"
        assert assembler.buffer_updated(3) == [b"ab"]

    def test_frame_that_fits_is_not_moved(self) -> None:
        assembler = FrameAssembler()
        data = framed(body(CHUNK_BYTES - 4))
        feed(assembler, data[:-10])
        first = assembler.get_buffer()
        assert assembler.get_buffer().obj is first.obj
        assert feed(assembler, data[-10:]) == [data[4:]]


SMALL = framed(body(18_000))
PENDING_BYTES = CHUNK_BYTES % len(SMALL)
"""How much of the fourth one a read of `CHUNK_BYTES` brings."""


class TestBusyConnections:
    """Reads that fill their chunk make the next one larger; what an idle connection holds stays small."""

    def busy(self, pool: BufferPool) -> FrameAssembler:
        assembler = FrameAssembler(pool=pool)
        assert len(assembler.get_buffer()) == CHUNK_BYTES
        assert len(feed(assembler, (4 * SMALL)[:CHUNK_BYTES])) == 3
        assert len(assembler.get_buffer()) == BUSY_CHUNK_BYTES - PENDING_BYTES
        return assembler

    def test_chunk_stays_large_while_reads_fill_it(self) -> None:
        assembler = self.busy(BufferPool())
        stream = 20 * SMALL
        assert feed(assembler, stream[PENDING_BYTES:BUSY_CHUNK_BYTES]) == 14 * [body(18_000)]
        assert len(assembler.get_buffer()) == BUSY_CHUNK_BYTES - BUSY_CHUNK_BYTES % len(SMALL)

    @pytest.mark.parametrize(
        "last",
        [b"", SMALL[:3], SMALL[:10_000], framed(bytes(CHUNK_BYTES - 4))[:-1], framed(body(200_000))[:70_000]],
        ids=["nothing", "part of a size", "part of a frame", "nearly a chunk", "part of a large frame"],
    )
    def test_partial_read_shrinks_the_chunk(self, last: bytes) -> None:
        pool = BufferPool()
        assembler = self.busy(pool)
        assert len(feed(assembler, (5 * SMALL)[PENDING_BYTES:] + last)) == 5
        assert assembler.bytes_pending == len(last)
        assert len(assembler.get_buffer()) <= CHUNK_BYTES or len(last) > CHUNK_BYTES
        kept = pool.bytes_pooled
        pool.lend(BUSY_CHUNK_BYTES)
        assert pool.bytes_pooled == kept, "the larger chunk is free for others"

    def test_large_frame_shrinks_the_chunk(self) -> None:
        pool = BufferPool()
        assembler = self.busy(pool)
        feed(assembler, (5 * SMALL)[PENDING_BYTES:] + framed(body(400_000))[: BUSY_CHUNK_BYTES - 5 * len(SMALL)])
        assert len(assembler.get_buffer()) == 400_000 - (BUSY_CHUNK_BYTES - 5 * len(SMALL)) + 4
        kept = pool.bytes_pooled
        pool.lend(BUSY_CHUNK_BYTES)
        assert pool.bytes_pooled == kept


def reads(assembler: FrameAssembler, stream: bytes) -> list[int]:
    """How large each read is when all is there, and the handler of a frame keeps no view of it."""
    counts = []
    while stream:
        buffer = assembler.get_buffer()
        counts.append(min(len(buffer), len(stream)))
        buffer[: counts[-1]] = stream[: counts[-1]]
        del buffer
        stream = stream[counts[-1] :]
        assembler.buffer_updated(counts[-1])
    return counts


LARGE = framed(body(200_000))


class TestLargeFrames:
    """After a large frame another one of its size is expected; what comes instead is as welcome."""

    @pytest.mark.parametrize(
        ("then", "expected"),
        [
            (3 * LARGE, 3 * [len(LARGE)]),
            (LARGE + framed(body(190_000)) + LARGE, [len(LARGE), len(LARGE), 190_000 + 4]),
            (framed(body(199_990)) + 2 * LARGE, [len(LARGE), len(LARGE) - 10, len(LARGE)]),
            (framed(body(199_999)) + 2 * LARGE, [len(LARGE), len(LARGE) - 2, 1, len(LARGE)]),
            (framed(body(203_000)) + 2 * framed(body(203_000)), [len(LARGE), 3000, 203_004, 203_004]),
            (framed(body(1_000_000)) * 2, [len(LARGE), 1_000_004 - len(LARGE), 1_000_004]),
            (3 * SMALL + LARGE, [len(LARGE), 3 * len(SMALL)]),
            (SMALL + 4 * SMALL, [5 * len(SMALL)]),
            (framed(body(EAGER_BYTES_MAX)), [len(LARGE), EAGER_BYTES_MAX - len(LARGE), 4]),
        ],
        ids=[
            "same",
            "smaller",
            "a little smaller",
            "by a byte smaller",
            "a little larger",
            "much larger",
            "small ones before",
            "small ones",
            "very large",
        ],
    )
    def test_reads_after_a_large_frame(self, then: bytes, expected: list[int]) -> None:
        assembler = FrameAssembler()
        reads(assembler, LARGE)
        assert reads(assembler, then) == expected

    def test_released_buffer_frees_budget_for_the_next_frame(self) -> None:
        budget = FrameBudget(4 * CHUNK_BYTES)
        assembler = FrameAssembler(budget=budget)
        assert reads(assembler, LARGE + framed(body(190_000)) + LARGE)[-2:] == [len(LARGE), 190_000 + 4]

    def test_large_frames_reuse_one_buffer(self) -> None:
        pool = BufferPool()
        assembler = FrameAssembler(pool=pool)
        reads(assembler, 2 * LARGE)
        kept = pool.bytes_pooled
        reads(assembler, 20 * LARGE + framed(body(199_000)) + 20 * LARGE)
        assert pool.bytes_pooled == kept

    @pytest.mark.parametrize(
        "stream", [LARGE, 2 * LARGE, 9 * SMALL + LARGE, LARGE + SMALL], ids=["one", "two", "behind small ones", "before one"]
    )
    @pytest.mark.parametrize("is_asked_for_more", [False, True])
    def test_idle_connection_holds_no_large_buffer(self, stream: bytes, is_asked_for_more: bool) -> None:
        budget, pool = FrameBudget(1 << 30), BufferPool()
        assembler = FrameAssembler(budget=budget, pool=pool)
        feed(assembler, stream)
        if is_asked_for_more:
            assembler.get_buffer()
        assembler.end_turn()
        assert budget.bytes_eager == 0
        kept = pool.bytes_pooled
        pool.lend(len(LARGE))
        assert pool.bytes_pooled == kept
        assert feed(assembler, LARGE) == [LARGE[4:]]

    def test_end_of_turn_keeps_the_unfinished_frame(self) -> None:
        assembler = FrameAssembler()
        feed(assembler, LARGE + LARGE[:100_000])
        assembler.end_turn()
        assert assembler.bytes_pending == 100_000
        assert feed(assembler, LARGE[100_000:]) == [LARGE[4:]]

    def test_large_buffer_over_budget_is_replaced_by_a_chunk(self) -> None:
        budget = FrameBudget(10 * len(LARGE))
        assembler = FrameAssembler(budget=budget)
        reads(assembler, LARGE)
        budget.bytes_eager = budget.bytes_max
        assert len(assembler.get_buffer()) == CHUNK_BYTES
        assert feed(assembler, LARGE + LARGE) == [LARGE[4:], LARGE[4:]]
        assert budget.bytes_eager == budget.bytes_max


class TestViews:
    def test_frames_are_writable_views(self) -> None:
        for size in (100, CHUNK_BYTES, EAGER_BYTES_MAX + 1):
            (frame,) = feed(FrameAssembler(), framed(body(size)))
            frame[:4] = b"base"
            assert bytes(frame[:4]) == b"base"

    def test_a_kept_view_stays_valid_while_others_reuse_buffers(self) -> None:
        assembler = FrameAssembler()
        kept = []
        for number in range(200):
            for frame in feed(assembler, framed(bytes([number]) * 40_000)):
                if number % 3 == 0:
                    kept.append((number, frame[100:200]))
        assert all(view == bytes([number]) * 100 for number, view in kept)

    def test_a_large_frame_is_read_into_place(self) -> None:
        assembler = FrameAssembler()
        data = framed(body(500_000))
        assert feed(assembler, data[: CHUNK_BYTES // 2]) == []
        buffer = assembler.get_buffer()
        assert len(buffer) == len(data) - CHUNK_BYTES // 2
        buffer[:] = data[CHUNK_BYTES // 2 :]
        (frame,) = assembler.buffer_updated(len(buffer))
        assert frame == data[4:]
        buffer[0] ^= 0xFF
        assert frame != data[4:]


class TestLimits:
    @pytest.mark.parametrize("size", [-1, -(1 << 31), 1001, (1 << 31) - 1])
    @pytest.mark.parametrize("read_bytes_max", [1, 1 << 20])
    def test_a_size_out_of_range_names_both_numbers(self, size: int, read_bytes_max: int) -> None:
        data = framed(b"good") + size.to_bytes(4, "big", signed=True) + b"rest"
        assembler = FrameAssembler(1000)
        with pytest.raises(ProtocolViolation, match=rf"frame of {size} bytes refused, allowed: 0 to 1000") as caught:
            feed(assembler, data, read_bytes_max)
        assert caught.value.frames == ((b"good",) if read_bytes_max > 1 else ())

    def test_a_complete_frame_above_the_limit_is_refused_too(self) -> None:
        assert feed(FrameAssembler(1000), framed(body(1000))) == [body(1000)]
        with pytest.raises(ProtocolViolation, match="frame of 1001 bytes refused"):
            feed(FrameAssembler(1000), framed(body(1001)))

    def test_frame_below_the_minimum_is_refused(self) -> None:
        for data in (framed(b"1234567"), framed(b"12345678", b"1234567")):
            with pytest.raises(ProtocolViolation, match="frame of 7 bytes refused, allowed: 8 to 1000"):
                feed(FrameAssembler(1000, frame_bytes_min=8), data)
        assert feed(FrameAssembler(1000, frame_bytes_min=8), framed(b"12345678")) == [b"12345678"]

    @pytest.mark.parametrize("refused", [(1 << 30).to_bytes(4, "big"), framed(body(400_000))[:-1]])
    def test_refused_frame_holds_no_memory_until_close(self, refused: bytes) -> None:
        budget = FrameBudget(300_000)
        assembler = FrameAssembler(1_000_000, budget=budget)
        with pytest.raises(ProtocolViolation):
            feed(assembler, framed(b"good") + refused)
        assert (budget.bytes_eager, budget.bytes_reserved, assembler.bytes_pending) == (0, 0, 0)
        assert len(assembler.get_buffer()) == CHUNK_BYTES

    def test_buffer_is_available_after_a_refusal_that_filled_the_chunk(self) -> None:
        """A transport may ask for a buffer once more before it gets the close."""
        assembler = FrameAssembler(1000)
        beginning = framed(b"good") + (2000).to_bytes(4, "big")
        with pytest.raises(ProtocolViolation) as caught:
            feed(assembler, beginning + body(len(assembler.get_buffer()) - len(beginning)))
        room = assembler.get_buffer()
        assert len(room) > 0
        room[:] = bytes(len(room))
        assert [*map(bytes, caught.value.frames)] == [b"good"]

    def test_tls_client_hello_is_recognized(self) -> None:
        hello = ssl.MemoryBIO()
        with pytest.raises(ssl.SSLWantReadError):
            ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), hello, server_hostname="b").do_handshake()
        with pytest.raises(ProtocolViolation, match=r"the client speaks TLS .*, and this listener does not"):
            feed(FrameAssembler(), hello.read())

    @pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT"])
    def test_http_request_is_recognized(self, method: str) -> None:
        with pytest.raises(ProtocolViolation, match=rf"first bytes are {method}, which looks like HTTP: .*metrics are on --metrics"):
            feed(FrameAssembler(), f"{method} /metrics HTTP/1.1\r\n\r\n".encode())

    def test_http_response_is_recognized(self) -> None:
        with pytest.raises(ProtocolViolation, match="its first bytes are HTTP: the peer is a web server, not a Kafka broker"):
            feed(FrameAssembler(), b"HTTP/1.1 400 Bad Request\r\n\r\n")

    def test_a_claim_of_100_mib_costs_little(self) -> None:
        assembler = FrameAssembler()
        with traced() as taken:
            feed(assembler, (100 << 20).to_bytes(4, "big") + b"x" * 10)
        assert taken.peak <= EAGER_BYTES_MAX + 2 * CHUNK_BYTES

    def test_a_claim_of_100_mib_gets_eight_times_what_was_sent(self) -> None:
        assembler = FrameAssembler()
        feed(assembler, (100 << 20).to_bytes(4, "big") + bytes(EAGER_BYTES_MAX))
        assert len(assembler.get_buffer()) + assembler.bytes_pending == GROWTH * EAGER_BYTES_MAX

    @pytest.mark.skipif(not STATM.exists(), reason="needs Linux's /proc")
    def test_bytes_not_arrived_take_no_resident_memory(self) -> None:
        assembler = FrameAssembler()
        feed(assembler, (100 << 20).to_bytes(4, "big") + bytes(GROWTH * EAGER_BYTES_MAX - 4))
        before = resident_bytes()
        room = assembler.get_buffer()
        assert len(room) > 80 << 20
        assert resident_bytes() - before < 2 * GROWTH * EAGER_BYTES_MAX, "the beginning is copied, and nothing else is touched"

    def test_the_budget_counts_what_arrived_of_unfinished_large_frames(self) -> None:
        budget = FrameBudget(1_000_000)
        first, second = FrameAssembler(budget=budget), FrameAssembler(budget=budget)
        feed(first, framed(body(900_000))[:700_004])
        assert budget.bytes_reserved == 700_000
        feed(second, framed(body(10_000))[:10])
        assert budget.bytes_reserved == 700_000, "small frames live in the chunk and cost nothing more"
        third = FrameAssembler(budget=budget)
        with pytest.raises(ProtocolViolation, match=r"more bytes of a frame refused: \d+ of 1000000 are free"):
            feed(third, framed(b"good") + framed(body(400_000))[:-1])
        assert budget.bytes_reserved == 700_000, "who is refused gives back at once what it had"
        third.close()
        feed(first, framed(body(900_000))[700_004:])
        assert budget.bytes_reserved == 0
        assert feed(FrameAssembler(budget=budget), framed(body(300_001))) == [body(300_001)]

    def test_refused_large_frame_keeps_the_frames_before_it(self) -> None:
        with pytest.raises(ProtocolViolation) as caught:
            feed(FrameAssembler(budget=FrameBudget(100)), framed(b"good") + framed(body(300_000))[:1000])
        assert [*map(bytes, caught.value.frames)] == [b"good"]

    def test_claimed_sizes_do_not_exhaust_the_budget(self) -> None:
        budget = FrameBudget(1_000_000)
        claiming = [FrameAssembler(budget=budget) for _ in range(100)]
        for assembler in claiming:
            feed(assembler, (100 << 20).to_bytes(4, "big") + b"x" * 10)
        assert budget.bytes_reserved == 100 * 10
        assert feed(FrameAssembler(budget=budget), framed(body(900_000))) == [body(900_000)]

    def test_claims_allocate_no_more_than_the_budget_and_a_chunk_each(self) -> None:
        budget = FrameBudget(10 * EAGER_BYTES_MAX)
        claiming = [FrameAssembler(budget=budget) for _ in range(100)]
        with traced() as taken:
            for assembler in claiming:
                feed(assembler, (100 << 20).to_bytes(4, "big") + b"x" * 10)
        assert taken.size <= 11 * EAGER_BYTES_MAX + 100 * 2 * CHUNK_BYTES
        small = FrameAssembler(budget=budget)
        assert feed(small, framed(body(3_000_000))) == [body(3_000_000)], "it begins small, and grows"
        for assembler in claiming:
            assembler.close()
        assert (budget.bytes_eager, budget.bytes_reserved) == (0, 0)

    def test_closed_assembler_releases_its_budget(self) -> None:
        budget = FrameBudget(1_000_000)
        closed, dropped = FrameAssembler(budget=budget), FrameAssembler(budget=budget)
        for assembler in (closed, dropped):
            feed(assembler, framed(body(500_000))[:100_004])
        closed.close()
        closed.close()
        assert budget.bytes_reserved == 100_000
        del dropped, assembler
        assert budget.bytes_reserved == 0


class TestPool:
    @pytest.mark.parametrize("size", [2 * CHUNK_BYTES, 2 * EAGER_BYTES_MAX], ids=["ordinary", "large"])
    def test_a_buffer_without_views_is_lent_again(self, size: int) -> None:
        pool = BufferPool()
        first = pool.lend(size)
        first[0] = 1
        part = first[10:20]
        del first
        assert pool.lend(size)[0] == 0, "a view of the first still exists"
        part[:] = b"0123456789"
        del part
        again = [pool.lend(size), pool.lend(size)]
        assert sorted(bytes(view[10:20]) for view in again) == [b"\0" * 10, b"0123456789"]
        assert pool.bytes_pooled == 2 * size

    def test_untrusted_sizes_are_mapped_and_trusted_sizes_are_allocated(self) -> None:
        kinds = {trusts: type(BufferPool(trusts_sizes=trusts).lend(EAGER_BYTES_MAX + 1).obj) for trusts in (False, True)}
        assert kinds == {False: mmap, True: bytearray}

    def test_much_larger_buffers_are_not_wasted_on_small_frames(self) -> None:
        pool = BufferPool()
        pool.lend(1_000_000)[0] = 7
        assert pool.lend(100_000)[0] == 0

    def test_pool_is_limited_in_bytes_and_number(self) -> None:
        pool = BufferPool(1_000_000)
        views = [pool.lend(400_000) for _ in range(5)]
        assert pool.bytes_pooled <= 1_000_000
        assert bytes(pool.lend(5_000_000)[:3]) == b"\0\0\0"
        assert pool.bytes_pooled <= 1_000_000
        many = BufferPool()
        views += [many.lend(10) for _ in range(POOL_BUFFERS_MAX + 5)]
        assert many.bytes_pooled == POOL_BUFFERS_MAX * CHUNK_BYTES
        assert len({id(view.obj) for view in views}) == len(views), "buffers in use are never shared"
