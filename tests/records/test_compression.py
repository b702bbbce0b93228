"""Compression codecs: output formats, accepted input, and bounded output for any input."""

import gzip
import pickle
import resource
import struct

import aiokafka.codec
import cramjam
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaffinch.records.compression import (
    XERIAL_BLOCK_BYTES,
    XERIAL_MAGIC,
    Compression,
    CompressionError,
    PayloadTooLarge,
    PayloadUnreadable,
    UnknownCompression,
    compress,
    decompress,
    from_name,
    zstd_content_size,
)
from chaffinch.records.errors import RecordsError
from tests.support.traced_memory import traced

CODECS = list(Compression)
REAL_CODECS = CODECS[1:]
TEXT = b"one bad record never sinks its batch; " * 4000
NOISE = bytes((i * i * 2654435761 >> 7) & 0xFF for i in range(70_000))
MIB = 1024 * 1024


def xerial(*blocks: bytes) -> bytes:
    return XERIAL_MAGIC + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def raw_snappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def length_or_refused(codec: Compression, data: bytes | bytearray, bytes_max: int) -> int:
    """How many bytes come out; -1 where that is refused as it should be. Any other error goes through."""
    try:
        return len(decompress(codec, data, bytes_max))
    except CompressionError:
        return -1


class TestRoundTrip:
    @pytest.mark.parametrize("codec", CODECS)
    @pytest.mark.parametrize("data", [b"", b"x", TEXT, NOISE, bytes(XERIAL_BLOCK_BYTES), bytes(XERIAL_BLOCK_BYTES + 1)])
    def test_payload_round_trips_within_its_exact_size(self, codec: Compression, data: bytes) -> None:
        assert bytes(decompress(codec, compress(codec, data), len(data))) == data

    @given(st.sampled_from(CODECS), st.binary(max_size=5000), st.sampled_from([bytes, bytearray, memoryview]))
    def test_any_bytes_round_trip_from_any_buffer_type(
        self, codec: Compression, data: bytes, kind: type[bytearray] | type[bytes] | type[memoryview]
    ) -> None:
        assert bytes(decompress(codec, kind(bytes(compress(codec, kind(data)))), 5000)) == data

    @pytest.mark.parametrize(
        ("codec", "level"), [(Compression.GZIP, 1), (Compression.GZIP, 9), (Compression.LZ4, 12), (Compression.ZSTD, 19)]
    )
    def test_compression_level_is_used(self, codec: Compression, level: int) -> None:
        words = b"".join(b"%d " % (i * i % 9973) for i in range(20_000))
        with_level = bytes(compress(codec, words, level))
        assert with_level != bytes(compress(codec, words))
        assert bytes(decompress(codec, with_level, MIB)) == words

    def test_none_copies_nothing(self) -> None:
        data = bytearray(b"records")
        assert compress(Compression.NONE, data) is data
        assert decompress(Compression.NONE, data, 7).obj is data


READERS = {
    Compression.GZIP: [gzip.decompress, aiokafka.codec.gzip_decode],
    Compression.SNAPPY: [aiokafka.codec.snappy_decode],
    Compression.LZ4: [aiokafka.codec.lz4_decode, lambda data: pa.Codec("lz4").decompress(data, len(TEXT)).to_pybytes()],
    Compression.ZSTD: [aiokafka.codec.zstd_decode, lambda data: pa.Codec("zstd").decompress(data, len(TEXT)).to_pybytes()],
}
WRITERS = {
    Compression.GZIP: [gzip.compress, aiokafka.codec.gzip_encode],
    Compression.SNAPPY: [aiokafka.codec.snappy_encode, raw_snappy, lambda data: pa.Codec("snappy").compress(data).to_pybytes()],
    Compression.LZ4: [aiokafka.codec.lz4_encode, lambda data: pa.Codec("lz4").compress(data).to_pybytes()],
    Compression.ZSTD: [aiokafka.codec.zstd_encode, lambda data: pa.Codec("zstd").compress(data).to_pybytes()],
}


class TestOtherWritersAndReaders:
    """What the codecs of other projects write is read, and they read ours."""

    @pytest.mark.parametrize("codec", REAL_CODECS)
    def test_others_read_ours(self, codec: Compression) -> None:
        ours = bytes(compress(codec, TEXT))
        assert [bytes(read(ours)) == TEXT for read in READERS[codec]] == [True] * len(READERS[codec])

    @pytest.mark.parametrize("codec", REAL_CODECS)
    def test_ours_reads_others(self, codec: Compression) -> None:
        for write in WRITERS[codec]:
            assert bytes(decompress(codec, write(TEXT), len(TEXT))) == TEXT

    def test_lz4_blocks_are_independent(self) -> None:
        """Java's reader refuses a frame whose blocks depend on each other (KIP-57). FLG is the fifth byte, bit 5."""
        assert compress(Compression.LZ4, TEXT * 10)[4] & 0x20

    def test_several_gzip_members_are_one_stream(self) -> None:
        assert bytes(decompress(Compression.GZIP, gzip.compress(b"one ") + gzip.compress(b"") + gzip.compress(b"two"), 100)) == b"one two"

    def test_several_zstd_frames_are_one_stream(self) -> None:
        two = bytes(compress(Compression.ZSTD, b"one ")) + bytes(compress(Compression.ZSTD, b"two"))
        assert bytes(decompress(Compression.ZSTD, two, 100)) == b"one two"

    def test_concatenated_snappy_streams_are_one_stream(self) -> None:
        two = xerial(raw_snappy(b"one ")) + xerial(raw_snappy(b"two"))
        assert bytes(decompress(Compression.SNAPPY, two, 100)) == b"one two"

    def test_the_version_in_the_snappy_frame_may_be_in_the_other_byte_order(self) -> None:
        framed = bytearray(xerial(raw_snappy(b"one")))
        framed[8:16] = struct.pack("<ii", 1, 1)
        assert bytes(decompress(Compression.SNAPPY, framed, 100)) == b"one"


class TestRefused:
    @pytest.mark.parametrize("codec", REAL_CODECS)
    @pytest.mark.parametrize("junk", [b"\x00", b"\x00" * 16, b"junk", b"\xff" * 3])
    def test_junk_after_the_stream_is_refused(self, codec: Compression, junk: bytes) -> None:
        with pytest.raises(PayloadUnreadable):
            decompress(codec, bytes(compress(codec, TEXT)) + junk, MIB)

    @pytest.mark.parametrize("codec", REAL_CODECS)
    def test_truncated_stream_is_refused(self, codec: Compression) -> None:
        whole = bytes(compress(codec, NOISE[:2000]))
        for end in range(len(whole)):
            if codec is Compression.SNAPPY and end == len(XERIAL_MAGIC) + 8:
                continue  # A frame header without blocks is an empty stream.
            with pytest.raises(PayloadUnreadable) as caught:
                decompress(codec, whole[:end], MIB)
            assert caught.value.codec is codec

    @pytest.mark.parametrize("codec", REAL_CODECS)
    def test_empty_payload_is_refused(self, codec: Compression) -> None:
        with pytest.raises(PayloadUnreadable):
            decompress(codec, b"", MIB)

    @pytest.mark.parametrize(
        "payload",
        [
            xerial(b""),
            xerial(raw_snappy(b"one"))[:-1],
            XERIAL_MAGIC + bytes(8) + struct.pack(">i", -1) + b"x",
            XERIAL_MAGIC + bytes(8) + struct.pack(">i", 2**31 - 1) + b"x",
            xerial(b"\xff\xff\xff\xff\xff\x01"),
            xerial(b"\xff\xff\xff\xff\x7f"),
            xerial(b"\x05\x08aaa"),
            b"\x80",
        ],
    )
    def test_wrong_snappy_lengths_are_refused(self, payload: bytes) -> None:
        with pytest.raises(PayloadUnreadable):
            decompress(Compression.SNAPPY, payload, 2**40)

    @given(st.sampled_from(REAL_CODECS), st.binary(max_size=200))
    def test_noise_is_refused_or_read_but_never_another_error(self, codec: Compression, data: bytes) -> None:
        assert length_or_refused(codec, data, 10_000) <= 10_000

    @given(st.sampled_from(REAL_CODECS), st.data())
    def test_a_changed_byte_is_refused_or_read_but_never_another_error(self, codec: Compression, data: st.DataObject) -> None:
        damaged = bytearray(compress(codec, TEXT[:3000]))
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
        assert length_or_refused(codec, damaged, 10_000) <= 10_000


class TestBound:
    @pytest.mark.parametrize("codec", CODECS)
    @pytest.mark.parametrize("data", [b"x", TEXT, NOISE])
    def test_one_byte_too_many_is_refused(self, codec: Compression, data: bytes) -> None:
        with pytest.raises(PayloadTooLarge) as caught:
            decompress(codec, compress(codec, data), len(data) - 1)
        assert (caught.value.codec, caught.value.bytes_max) == (codec, len(data) - 1)

    @pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
    def test_too_small_size_guess_is_enlarged(self, codec: Compression) -> None:
        """The whole ratio is far above the guess of 16 times the input, and above the least guess of 64 KiB."""
        data = bytes(3 * MIB)
        # A frame of zstd in one go says how much it holds: nothing is guessed then.
        payload = streamed(data) if codec is Compression.ZSTD else compress(codec, data)
        assert max(16 * len(payload), 64 * 1024) < len(data)
        assert zstd_content_size(payload) is None
        assert bytes(decompress(codec, payload, 4 * MIB)) == data

    @pytest.mark.parametrize("holds_more", ["one byte more than it claims", "a frame that follows"])
    def test_too_small_claimed_size_is_enlarged(self, holds_more: str) -> None:
        data = bytes(3 * MIB)
        if holds_more == "a frame that follows":
            payload = bytes(compress(Compression.ZSTD, data[:10])) + bytes(compress(Compression.ZSTD, data[10:]))
        else:
            payload = claiming(len(data) - 1, bytes(compress(Compression.ZSTD, data)))
        claimed = zstd_content_size(payload)
        assert claimed is not None
        assert claimed < len(data)
        assert bytes(decompress(Compression.ZSTD, payload, 4 * MIB)) == data

    def test_a_claim_far_below_the_content_is_refused(self) -> None:
        payload = claiming(100, bytes(compress(Compression.ZSTD, bytes(3 * MIB))))
        with pytest.raises(PayloadUnreadable):
            decompress(Compression.ZSTD, payload, 4 * MIB)

    @pytest.mark.parametrize("codec", REAL_CODECS)
    def test_a_bomb_costs_one_buffer_of_the_limit(self, codec: Compression) -> None:
        """256 MiB of zeros, 8 MiB allowed: the process's peak grows by little more than the limit."""
        bomb = _bomb(codec, 256)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(PayloadTooLarge):
            decompress(codec, bomb, 8 * MIB)
        assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 64 * MIB


def _bomb(codec: Compression, mebibytes: int) -> bytes:
    """Zeros, built out of pieces so that the test itself never holds them."""
    if codec is Compression.SNAPPY:
        return xerial(*[raw_snappy(bytes(MIB))] * mebibytes)
    if codec is Compression.GZIP:
        return gzip.compress(bytes(MIB)) * mebibytes
    if codec is Compression.ZSTD:
        return bytes(compress(codec, bytes(MIB))) * mebibytes
    compressor = cramjam.lz4.Compressor(block_linked=False)
    for _ in range(mebibytes):
        compressor.compress(bytes(MIB))
    return bytes(compressor.finish())


class TestNamesAndErrors:
    @pytest.mark.parametrize("codec", CODECS)
    def test_from_name_accepts_option_names(self, codec: Compression) -> None:
        assert from_name(codec.name.lower()) is codec

    def test_an_unknown_name_lists_the_known_ones(self) -> None:
        with pytest.raises(UnknownCompression, match="'brotli' does not exist; allowed: none, gzip, snappy, lz4, zstd"):
            from_name("brotli")

    @pytest.mark.parametrize(
        ("error", "text"),
        [
            (PayloadTooLarge(Compression.ZSTD, 128), "the zstd payload decompresses to more than 128 bytes"),
            (PayloadUnreadable(Compression.GZIP, "unexpected end"), "the gzip payload cannot be decompressed: unexpected end"),
        ],
    )
    def test_errors_name_codec_and_reason(self, error: PayloadTooLarge | PayloadUnreadable, text: str) -> None:
        assert isinstance(error, RecordsError)
        assert str(error) == text
        assert pickle.loads(pickle.dumps(error)) == error


class TestMemory:
    """Memory of many small payloads together; the size of each is unknown beforehand, or stated in its header."""

    @pytest.mark.parametrize("codec", REAL_CODECS)
    def test_decompressed_buffers_are_no_larger_than_their_content(self, codec: Compression) -> None:
        payload, count = bytes(compress(codec, NOISE[:2000])), 300
        decompress(codec, payload, 128 * MIB)
        with traced() as taken:
            kept = [decompress(codec, payload, 128 * MIB) for _ in range(count)]
        assert sum(map(len, kept)) == 2000 * count
        assert taken.size < 3000 * count
        assert taken.peak < taken.size + MIB // 2

    @pytest.mark.parametrize("codec", REAL_CODECS)
    def test_highly_compressed_payload_takes_little_more_than_its_content(self, codec: Compression) -> None:
        payload = bytes(compress(codec, bytes(4 * MIB)))
        with traced() as taken:
            assert len(decompress(codec, payload, 512 * MIB)) == 4 * MIB
        # While it grows, the size before is there, too.
        assert taken.peak < (1 + 1 / 8) * 8 * 4 * MIB


def streamed(data: bytes) -> bytes:
    """As Java writes it, which begins before it knows how much there is."""
    compressor = cramjam.zstd.Compressor()
    compressor.compress(data)
    return bytes(compressor.finish())


def claiming(size: int, frame: bytes) -> bytes:
    """A frame with a field of four bytes for its size, after magic number, descriptor and window, which says this one instead."""
    patched = frame[:6] + struct.pack("<I", size) + frame[10:]
    assert zstd_content_size(patched) == size
    return patched


class TestZstdContentSize:
    @pytest.mark.parametrize("size", [0, 1, 255, 256, 65_791, 65_792, 3 * MIB])
    def test_content_size_of_a_frame_is_read(self, size: int) -> None:
        frame = bytes(cramjam.zstd.compress(bytes(size)))
        assert zstd_content_size(frame) == size
        assert zstd_content_size(pa.Codec("zstd").compress(bytes(size), asbytes=True)) == size
        head = next(end for end in range(len(frame) + 1) if zstd_content_size(frame[:end]) is not None)
        assert head in (6, 7, 9, 10)
        assert len(decompress(Compression.ZSTD, frame, 4 * MIB)) == size

    def test_frame_without_content_size_is_decompressed(self) -> None:
        assert zstd_content_size(streamed(TEXT)) is None
        assert bytes(decompress(Compression.ZSTD, streamed(TEXT), MIB)) == TEXT

    def test_content_size_after_a_dictionary_id_is_read(self) -> None:
        assert zstd_content_size(bytes.fromhex("28b52ffd 21 07 64")) == 100
        assert zstd_content_size(bytes.fromhex("28b52ffd 83 58 07000000 00000100")) == 65_536

    def test_bytes_that_are_not_a_frame_have_no_content_size(self) -> None:
        assert zstd_content_size(bytes(20)) is None

    def test_claimed_size_above_the_limit_allocates_no_more(self) -> None:
        lie = bytes.fromhex("28b52ffd e0 ffffffffffffff7f") + bytes(10)
        assert zstd_content_size(lie) == 2**63 - 1
        assert length_or_refused(Compression.ZSTD, lie, 1000) == -1
