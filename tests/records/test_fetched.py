"""Records of a fetch response, read in pieces: every format, any number at a time, and exact positions of damage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaffinch.identifiers import NO_PRODUCER, ProducerIdentity
from chaffinch.records import batch as batches
from chaffinch.records.columns import RecordColumns
from chaffinch.records.compression import Compression
from chaffinch.records.control_batch import encode_control_batch
from chaffinch.records.errors import CorruptBatch, RecordsError
from chaffinch.records.fetched import FetchedRecords
from tests.records.record_strategies import offsets_of
from tests.support.raw_batches import NOW_MS
from tests.support.raw_messages import message, wrapper

FOREVER = 2**31
LAST_OFFSET_DELTA_END = 27


def batch(
    offset: int,
    values: list[bytes],
    *,
    producer: int | None = None,
    compression: Compression = Compression.NONE,
    epoch: int = 0,
    appended_ms: int | None = None,
) -> bytearray:
    columns = RecordColumns.from_lists([b"k"] * len(values), values, list(range(len(values))), [[("h", b"1")]] * len(values))
    identity = NO_PRODUCER if producer is None else ProducerIdentity(producer, 0)
    out = batches.encode(
        columns,
        compression=compression,
        identity=identity,
        base_sequence=-1 if producer is None else 0,
        is_transactional=producer is not None,
    )
    if appended_ms is not None:
        batches.patch_log_append_time(out, 0, appended_ms)
    batches.patch_offset(out, 0, offset, epoch)
    return out


def marker(offset: int, producer: int, *, is_commit: bool) -> bytearray:
    return encode_control_batch(is_commit, ProducerIdentity(producer, 0), 0, 0, base_offset=offset)


def numbered(start: int, stop: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, stop)]


def pieces(records: FetchedRecords, records_max: int = FOREVER) -> list[tuple[list[int], list[bytes | None], int, int, int]]:
    """(offsets, values, timestamp type, epoch, position afterwards) of every piece."""
    found = []
    while (piece := records.read(records_max)) is not None:
        values = [piece.columns.value(row) for row in range(len(piece.columns))]
        found.append((offsets_of(piece.columns), values, int(piece.timestamp_type), piece.leader_epoch, records.position))
    return found


@given(st.lists(st.tuples(st.integers(1, 5), st.sampled_from(Compression)), max_size=6), st.integers(1, 12), st.integers(0, 20))
def test_reads_of_any_size_from_any_offset_return_all_records(shapes: list[tuple[int, Compression]], records_max: int, start: int) -> None:
    log, offset = b"", 0
    for count, compression in shapes:
        log += batch(offset, numbered(offset, offset + count), compression=compression)
        offset += count
    found = pieces(FetchedRecords(log, start), records_max)
    assert [value for _, values, *_ in found for value in values] == numbered(start, offset)
    assert all(0 < len(values) <= records_max for _, values, *_ in found)
    assert [position for *_, position in found] == [offsets[-1] + 1 for offsets, *_ in found]


def test_neighbours_are_read_together_unless_times_or_leaders_differ() -> None:
    log = (
        batch(0, numbered(0, 2))
        + batch(2, numbered(2, 3))
        + batch(3, numbered(3, 4), epoch=5)
        + batch(4, [b"4", b"5"], epoch=5, appended_ms=99)
    )
    found = FetchedRecords(log, 0)
    assert pieces(found) == [
        ([0, 1, 2], numbered(0, 3), 0, 0, 3),
        ([3], [b"3"], 0, 5, 4),
        ([4, 5], [b"4", b"5"], 1, 5, 6),
    ]
    assert found.leader_epoch == 5


def test_append_time_is_that_of_each_batch() -> None:
    piece = FetchedRecords(batch(0, [b"a", b"b"], appended_ms=7) + batch(2, [b"c"], appended_ms=9), 0).read(FOREVER)
    assert piece is not None
    assert piece.columns.timestamps.tolist() == [7, 7, 9]
    assert piece.columns.headers(2) == [("h", b"1")]


def test_aborted_and_control_batches_are_skipped() -> None:
    log = batch(0, [b"a"], producer=1) + batch(1, [b"b"], producer=2) + marker(2, 1, is_commit=False) + marker(3, 2, is_commit=True)
    assert pieces(FetchedRecords(log, 0, aborted=[(1, 0)])) == [([1], [b"b"], 0, 0, 4)]
    assert pieces(FetchedRecords(log, 0)) == [([0, 1], [b"a", b"b"], 0, 0, 4)]
    nothing = FetchedRecords(marker(2, 1, is_commit=False), 2)
    assert (nothing.read(FOREVER), nothing.position) == (None, 3)


@pytest.mark.parametrize("records_max", [1, FOREVER])
def test_batch_with_only_earlier_records_is_skipped(records_max: int) -> None:
    thinned = batch(0, [b"a", b"b"])
    thinned[LAST_OFFSET_DELTA_END - 1] = 5  # As where compaction has taken its last records.
    assert pieces(FetchedRecords(thinned + batch(6, [b"c"]), 3, checks_crc=False), records_max) == [([6], [b"c"], 0, 0, 7)]


def test_the_last_batch_may_be_cut_short() -> None:
    log = bytes(batch(0, [b"a"]) + batch(1, [b"b"]))
    for cut in range(1, len(batch(1, [b"b"])) + 1):
        assert pieces(FetchedRecords(log[:-cut], 0)) == [([0], [b"a"], 0, 0, 1)]


@pytest.mark.parametrize("records_max", [1, FOREVER])
@pytest.mark.parametrize(
    ("at", "checks_crc", "says"), [(80, True, "checksum of the batch at offset 2"), (61, False, "record"), (57, False, "records in")]
)
def test_damage_is_raised_after_the_records_before_it(records_max: int, at: int, checks_crc: bool, says: str) -> None:
    bad = batch(2, [b"c", b"d"])
    bad[at] ^= 0x7F
    records = FetchedRecords(batch(0, [b"a"]) + batch(1, [b"b"]) + bad + batch(4, [b"e"]), 0, checks_crc=checks_crc)
    seen: list[bytes | None] = []

    def read_all() -> None:
        while (piece := records.read(records_max)) is not None:
            seen.extend(piece.columns.value(row) for row in range(len(piece.columns)))

    with pytest.raises(RecordsError, match=says):
        read_all()
    assert (seen, records.position) == ([b"a", b"b"], 2)
    with pytest.raises(RecordsError, match=says):
        records.read(records_max)


def test_highly_compressed_batches_are_read_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small they are as they came: of what is asked for only so much is unpacked at once, and nothing is left out."""
    monkeypatch.setattr("chaffinch.records.fetched.PART_BYTES", 10_000)
    log = b"".join(batch(number, [bytes(4_000)], compression=Compression.ZSTD) for number in range(7)) + marker(9, 7, is_commit=False)
    found = pieces(FetchedRecords(log, 0))
    assert [(offsets, position) for offsets, *_, position in found] == [([0, 1, 2], 3), ([3, 4, 5], 6), ([6], 10)]
    assert [offsets for offsets, *_ in pieces(FetchedRecords(log, 4), 1)] == [[4], [5], [6]]


class TestOldFormats:
    @pytest.mark.parametrize("magic", [0, 1])
    @pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP, Compression.SNAPPY, Compression.LZ4])
    def test_messages_keep_their_offsets(self, magic: int, codec: Compression) -> None:
        """Inside a compressed message of format 0 offsets are absolute, in one of format 1 relative to the first; both may have gaps."""
        absolute = [5, 6, 9]
        inner = absolute if magic == 0 or codec is Compression.NONE else [0, 1, 4]
        messages = [
            message(b"k", b"%d" % place, magic=magic, offset=offset, timestamp=100 + place)
            for offset, place in zip(inner, absolute, strict=True)
        ]
        data = b"".join(messages) if codec is Compression.NONE else wrapper(messages, codec, magic=magic, offset=9)
        log = data + batch(10, [b"10"])
        found = pieces(FetchedRecords(log, 6))
        assert [offset for offsets, *_ in found for offset in offsets] == [6, 9, 10]
        assert [value for _, values, *_ in found for value in values] == [b"6", b"9", b"10"]
        piece = FetchedRecords(log, 0).read(1)
        assert piece is not None
        assert (piece.columns.key(0), piece.columns.timestamps.tolist(), piece.leader_epoch) == (b"k", [105 if magic else -1], -1)

    def test_append_time_is_that_of_the_wrapper(self) -> None:
        data = wrapper([message(offset=0, timestamp=1), message(offset=1, timestamp=2)], Compression.GZIP, attributes=8, timestamp=77)
        piece = FetchedRecords(data, 0).read(FOREVER)
        assert piece is not None
        assert (piece.columns.timestamps.tolist(), int(piece.timestamp_type)) == ([77, 77], 1)

    def test_null_key_and_value_are_read(self) -> None:
        piece = FetchedRecords(message(None, None), 0).read(1)
        assert piece is not None
        assert (piece.columns.key(0), piece.columns.value(0)) == (None, None)

    @pytest.mark.parametrize(
        "data",
        [
            message(crc=1),
            message(key_length=1000),
            message(key_length=4),  # To where the value's length would be.
            message(value_length=1000),
            wrapper(b"no gzip", Compression.GZIP),
            wrapper([], Compression.GZIP),
            message(attributes=4),
        ],
    )
    def test_damage_is_raised(self, data: bytes) -> None:
        with pytest.raises(RecordsError):
            FetchedRecords(batch(0, [b"a"]) + data, 1).read(1)
        with pytest.raises((CorruptBatch, RecordsError)):
            FetchedRecords(data, 0).read(1)

    def test_cut_message_ends_the_response(self) -> None:
        data = message(offset=0, timestamp=NOW_MS) + message(offset=1)
        for cut in range(1, len(message())):
            assert [offsets for offsets, *_ in pieces(FetchedRecords(data[:-cut], 0))] == [[0]]


@pytest.mark.parametrize("position", [17, 50, -1])
def test_damaged_marker_is_raised_and_not_applied(position: int) -> None:
    """Taken for a commit, it would leave its producer's next records unseen."""
    damaged = marker(2, 7, is_commit=False)
    damaged[position] ^= 1
    reader = FetchedRecords(batch(0, [b"a", b"b"], producer=7) + damaged + batch(3, [b"c"], producer=7), 0, aborted=[(7, 0)])
    for _ in range(2):
        with pytest.raises(RecordsError, match=r"offset 2|record 0"):
            reader.read(FOREVER)
    assert reader.position == 2
