"""The compiled loops and their plain twin: the same results, outputs and faults for any input, malformed bytes included."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chaffinch.records import kernels
from chaffinch.records.columns import RecordColumns
from chaffinch.records.errors import Fault
from chaffinch.records.kernels import Loops
from chaffinch.records.kernels_reference.retain import NOT_IN_PLACE
from chaffinch.records.kernels_reference.varints import varint_size, write_varint
from tests.records.record_strategies import INT64_MAX, INT64_MIN, Row, columns_and_rows

REFERENCE = kernels.REFERENCE


@pytest.fixture(scope="module")
def compiled() -> Loops:
    assert kernels.load(), "numba is not installed"
    return kernels.choose(1)


def measured(loops: Loops, columns: RecordColumns, base_timestamp: int, delta_bytes: int = 0) -> tuple[int, list[int]]:
    sizes = np.full(columns.count, -7, np.int64)
    total = loops.measure(
        *(columns.key_offsets, len(columns.key_data), columns.keys.validity),
        *(columns.value_offsets, len(columns.value_data), columns.values.validity),
        *(columns.timestamps, columns.header_offsets, columns.header_key_offsets, len(columns.header_key_data)),
        *(columns.header_value_offsets, len(columns.header_value_data), columns.header_values.validity),
        *(base_timestamp, delta_bytes, sizes),
    )
    return total, sizes.tolist()


def encoded(
    loops: Loops, columns: Any, base_timestamp: int, size: int, position: int, rows: list[int] | tuple[()] = ()
) -> tuple[int, int, bytes]:
    out, written = np.full(size, 0xEE, np.uint8), np.full(1, -7, np.int64)
    end = loops.encode(
        *(columns.key_offsets, columns.key_data, columns.keys.validity),
        *(columns.value_offsets, columns.value_data, columns.values.validity),
        *(columns.timestamps, columns.header_offsets, columns.header_key_offsets, columns.header_key_data),
        *(columns.header_value_offsets, columns.header_value_data, columns.header_values.validity),
        *(base_timestamp, out, position, np.array(rows, np.int64), written),
    )
    return end, int(written[0]), out.tobytes()


def scanned(loops: Loops, payload: bytes, count: int, base_offset: int, base_timestamp: int) -> tuple[int, list[Any]]:
    """Fault, summary and, without a fault, everything else that scan and scan_headers write."""
    data = np.frombuffer(payload, np.uint8)
    rows = max(count, 0)
    ints, longer = np.full((5, rows), -7, np.int64), np.full((3, rows + 1), -7, np.int64)
    flags, summary = np.full((2, rows), 7, np.uint8), np.full(4, -7, np.int64)
    offsets, timestamps, key_starts, value_starts, header_starts = ints
    fault = loops.scan(
        *(data, count, base_offset, base_timestamp, offsets, timestamps),
        *(key_starts, longer[0], flags[0], value_starts, longer[1], flags[1], header_starts, longer[2], summary),
    )
    if fault:
        return fault, summary.tolist()
    entries = int(longer[2][-1])
    starts, ends = np.full((2, entries), -7, np.int64), np.full((2, entries + 1), -7, np.int64)
    valid, header_summary = np.full(entries, 7, np.uint8), np.full(4, -7, np.int64)
    header_fault = loops.scan_headers(data, header_starts, longer[2], starts[0], ends[0], starts[1], ends[1], valid, header_summary)
    found: list[npt.NDArray[Any]] = [ints, longer, flags, summary, starts, ends, valid, header_summary]
    return header_fault, [array.tolist() for array in found]


def scanned_together(loops: Loops, payloads: list[bytes], counts: list[int], bases: list[int]) -> tuple[int, list[Any]]:
    """Fault and, without one, everything that scan_batches writes."""
    data, total = np.frombuffer(b"".join(payloads), np.uint8), max(sum(counts), 0)
    ints, longer = np.full((5, total), -7, np.int64), np.full((3, total + 1), -7, np.int64)
    flags, summary = np.full((2, total), 7, np.uint8), np.full(4, -7, np.int64)
    offsets, timestamps, key_starts, value_starts, header_starts = ints
    fault = loops.scan_batches(
        *(data, np.cumsum([len(payload) for payload in payloads], dtype=np.int64), np.array(counts, np.int64)),
        *(np.array(bases, np.int64), np.array(bases, np.int64) + 1, offsets, timestamps),
        *(key_starts, longer[0], flags[0], value_starts, longer[1], flags[1], header_starts, longer[2], summary),
    )
    return fault, [] if fault else [ints.tolist(), longer.tolist(), flags.tolist(), summary.tolist()]


bases = st.just(1_700_000_000_000) | st.integers(INT64_MIN, INT64_MAX)


@given(columns_and_rows(), bases, st.integers(0, 15))
def test_measure_agrees(compiled: Loops, drawn: tuple[RecordColumns, list[Row]], base_timestamp: int, delta_bytes: int) -> None:
    columns, _ = drawn
    assert measured(compiled, columns, base_timestamp, delta_bytes) == measured(REFERENCE, columns, base_timestamp, delta_bytes)


def with_wrong_offset(columns: RecordColumns, column: str, data: st.DataObject) -> RecordColumns:
    offsets = getattr(columns, f"{column}_offsets").copy()
    at = data.draw(st.integers(0, len(offsets) - 1))
    offsets[at] = data.draw(st.sampled_from([-1, INT64_MIN, INT64_MAX, int(offsets[at]) + 1, int(offsets[at]) - 1]))
    return columns.__class__(**{name: getattr(columns, name) for name in columns.__slots__} | {f"{column}_offsets": offsets})


@given(columns_and_rows(min_size=1), bases, st.sampled_from(["key", "value", "header", "header_key", "header_value"]), st.data())
def test_measure_agrees_on_wrong_offsets(
    compiled: Loops, drawn: tuple[RecordColumns, list[Row]], base_timestamp: int, column: str, data: st.DataObject
) -> None:
    broken = with_wrong_offset(drawn[0], column, data)
    assert measured(compiled, broken, base_timestamp) == measured(REFERENCE, broken, base_timestamp)


@given(columns_and_rows(), bases, st.integers(0, 3), st.integers(-200, 2))
def test_encode_agrees(compiled: Loops, drawn: tuple[RecordColumns, list[Row]], base_timestamp: int, position: int, spare: int) -> None:
    """As many as there is room for, and nothing behind them."""
    columns, _ = drawn
    total, sizes = measured(REFERENCE, columns, base_timestamp)
    size = max(0, position + total + spare)
    end, count, out = encoded(compiled, columns, base_timestamp, size, position)
    assert (end, count, out) == encoded(REFERENCE, columns, base_timestamp, size, position)
    assert end == position + sum(sizes[:count])
    assert count == columns.count or end + sizes[count] > size
    assert out[:position] == b"\xee" * min(position, size)
    assert out[end:] == b"\xee" * (size - end)


@given(columns_and_rows(min_size=1), bases, st.sampled_from(["key", "value", "header", "header_key", "header_value"]), st.data())
def test_encode_agrees_on_wrong_offsets(
    compiled: Loops, drawn: tuple[RecordColumns, list[Row]], base_timestamp: int, column: str, data: st.DataObject
) -> None:
    """It says of which record, the same as `measure`, unless there is no room for one before it."""
    columns, _ = drawn
    total, _ = measured(REFERENCE, columns, base_timestamp)
    broken = with_wrong_offset(columns, column, data)
    found, _ = measured(REFERENCE, broken, base_timestamp)
    size = data.draw(st.sampled_from([total + 100, total // 2]))
    end, count = encoded(compiled, broken, base_timestamp, size, 0)[:2]
    assert (end, count) == encoded(REFERENCE, broken, base_timestamp, size, 0)[:2]
    assert end == found if end < 0 else (found >= 0 or count < -found - 1)
    assert count <= columns.count


class Watched:
    """Offsets that note which of them were looked at."""

    def __init__(self, offsets: npt.NDArray[np.int64]) -> None:
        self.offsets = offsets
        self.seen: set[int] = set()

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, index: int) -> int:
        self.seen.add(index)
        return int(self.offsets[index])


def test_twin_reads_no_record_after_the_first_that_does_not_fit() -> None:
    """Else a table's rows would be looked at as often as it has batches."""
    columns = RecordColumns.from_lists([b"k"] * 100, [b"value"] * 100, [0] * 100, [[("h", b"v")]] * 100)
    offsets = {f"{name}_offsets": Watched(getattr(columns, f"{name}_offsets")) for name in ("key", "value", "header_key", "header_value")}
    watched = SimpleNamespace(**{name: getattr(columns, name) for name in columns.__slots__} | offsets)
    watched.keys, watched.values, watched.header_values = columns.keys, columns.values, columns.header_values
    size = sum(measured(REFERENCE, columns, 0)[1][:10])
    assert encoded(REFERENCE, watched, 0, size, 0)[:2] == (size, 10)
    assert {name: max(each.seen) for name, each in offsets.items()} == dict.fromkeys(offsets, 11)


@given(columns_and_rows(min_size=1), bases, st.data())
def test_encode_agrees_on_picked_rows(
    compiled: Loops, drawn: tuple[RecordColumns, list[Row]], base_timestamp: int, data: st.DataObject
) -> None:
    """In any order, repeats allowed, as if they were all there is; no row outside the columns."""
    columns, _ = drawn
    rows = data.draw(st.lists(st.integers(0, columns.count - 1), min_size=1, max_size=12))
    taken = columns.take(rows)
    total, _ = measured(REFERENCE, taken, base_timestamp)
    expected = encoded(REFERENCE, taken, base_timestamp, total, 0)
    assert expected[:2] == (total, len(rows))
    assert encoded(REFERENCE, columns, base_timestamp, total, 0, rows) == expected
    assert encoded(compiled, columns, base_timestamp, total, 0, rows) == expected
    at = data.draw(st.integers(0, len(rows) - 1))
    rows[at] = data.draw(st.sampled_from([-1, columns.count, INT64_MAX, INT64_MIN]))
    for loops in (compiled, REFERENCE):
        assert encoded(loops, columns, base_timestamp, total, 0, rows)[:2] == (-(at + 1), at)


@given(columns_and_rows(), bases)
def test_sizes_are_upper_bounds_and_exact_sums(drawn: tuple[RecordColumns, list[Row]], base_timestamp: int) -> None:
    columns, _ = drawn
    total, exact = measured(REFERENCE, columns, base_timestamp)
    assert total == sum(exact)
    _, bounds = measured(REFERENCE, columns, base_timestamp, 15)
    assert all(size <= bound <= size + 15 for size, bound in zip(exact, bounds, strict=True))


@given(columns_and_rows(min_size=1), st.data())
def test_sizes_are_bounds_in_any_batch(drawn: tuple[RecordColumns, list[Row]], data: st.DataObject) -> None:
    """In any batch of some of the records, in their order."""
    columns, _ = drawn
    rows = sorted(data.draw(st.sets(st.integers(0, columns.count - 1), min_size=1)))
    batch = columns.take(rows)
    exact, bounds = measured(REFERENCE, batch, int(batch.timestamps[0]))[1], columns.sizes()[rows].tolist()
    assert all(size <= bound <= size + 15 for size, bound in zip(exact, bounds, strict=True))


def payload_of(columns: RecordColumns, base_timestamp: int = 0) -> bytes:
    total, _ = measured(REFERENCE, columns, base_timestamp)
    return encoded(REFERENCE, columns, base_timestamp, total, 0)[2]


@given(columns_and_rows(), bases, bases)
def test_scan_agrees_on_valid_bytes(compiled: Loops, drawn: tuple[RecordColumns, list[Row]], base_offset: int, base_timestamp: int) -> None:
    columns, _ = drawn
    payload = payload_of(columns)
    found = scanned(compiled, payload, columns.count, base_offset, base_timestamp)
    assert found[0] == Fault.NONE
    assert found == scanned(REFERENCE, payload, columns.count, base_offset, base_timestamp)


@given(columns_and_rows(min_size=1), st.data())
def test_scan_agrees_on_mutated_bytes(compiled: Loops, drawn: tuple[RecordColumns, list[Row]], data: st.DataObject) -> None:
    columns, _ = drawn
    changed = bytearray(payload_of(columns))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(changed) - 1))
        changed[at] = data.draw(st.sampled_from([0, 1, 2, 3, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    cut = data.draw(st.integers(0, 3))
    payload = bytes(changed[: len(changed) - cut]) + data.draw(st.binary(max_size=2))
    count = columns.count + data.draw(st.integers(-1, 1))
    assert scanned(compiled, payload, count, 0, 0) == scanned(REFERENCE, payload, count, 0, 0)


@given(st.binary(max_size=40), st.integers(-2, 6))
def test_scan_agrees_on_any_bytes(compiled: Loops, payload: bytes, count: int) -> None:
    assert scanned(compiled, payload, count, 5, 7) == scanned(REFERENCE, payload, count, 5, 7)


@given(st.lists(st.integers(0, 0xFF), max_size=14), st.integers(0, 3))
def test_scan_agrees_on_long_varints(compiled: Loops, tail: list[int], filler: int) -> None:
    """Varints of up to eleven bytes where the deltas are: the bits beyond 32 and 64 are dropped, the eleventh byte refused."""
    body = bytes([0]) + bytes([0x80 | byte for byte in tail]) + bytes([filler, 0, 1, 1, 0])
    payload = bytes([2 * len(body)]) + body
    assert scanned(compiled, payload, 1, INT64_MAX, INT64_MIN) == scanned(REFERENCE, payload, 1, INT64_MAX, INT64_MIN)


@given(st.lists(columns_and_rows(), max_size=4), st.data())
def test_scan_agrees_on_several_batches(compiled: Loops, drawn: list[tuple[RecordColumns, list[Row]]], data: st.DataObject) -> None:
    payloads = [payload_of(columns) for columns, _ in drawn]
    counts, bases = [columns.count for columns, _ in drawn], list(range(0, 100 * len(drawn), 100))
    fault, found = scanned_together(compiled, payloads, counts, bases)
    assert fault == 0
    assert (fault, found) == scanned_together(REFERENCE, payloads, counts, bases)
    alone = [scanned(REFERENCE, payload, count, base, base + 1)[1] for payload, count, base in zip(payloads, counts, bases, strict=True)]
    for row in (0, 1):  # Offsets and timestamps are what each batch alone has.
        assert found[0][row] == [value for ints, *_ in alone for value in ints[row]]
    if drawn:
        at = data.draw(st.integers(0, len(drawn) - 1))
        counts[at] += data.draw(st.sampled_from([-1, 1, 5]))
        assert scanned_together(compiled, payloads, counts, bases) == scanned_together(REFERENCE, payloads, counts, bases)
        assert scanned_together(compiled, payloads, counts, bases)[0] != 0


small = st.integers(-2, 12)


@given(st.binary(max_size=10), st.lists(small | st.sampled_from([INT64_MIN, INT64_MAX]), max_size=5), st.lists(small, max_size=6))
def test_gather_agrees(compiled: Loops, data: bytes, starts: list[int], offsets: list[int]) -> None:
    out_offsets = np.array(offsets or [0], np.int64)
    found = []
    for loops in (compiled, REFERENCE):
        out = np.zeros(12, np.uint8)
        found.append((loops.gather(np.frombuffer(data, np.uint8), np.array(starts, np.int64), out_offsets, out), out.tobytes()))
    assert found[0] == found[1]


@given(st.binary(max_size=40))
def test_murmur2_of_key_agrees(compiled: Loops, key: bytes) -> None:
    assert compiled.murmur2_of_key(key, len(key)) == REFERENCE.murmur2_of_key(key, len(key))


@given(columns_and_rows(), st.integers(1, 2**31 - 1))
def test_murmur2_partitions_agree(compiled: Loops, drawn: tuple[RecordColumns, list[Row]], partition_count: int) -> None:
    columns, _ = drawn
    found = []
    for loops in (compiled, REFERENCE):
        out = np.full(columns.count, -7, np.int32)
        result = loops.murmur2_partitions(columns.key_offsets, columns.key_data, columns.keys.validity, partition_count, out)
        found.append((result, out.tolist()))
    assert found[0] == found[1]


@given(st.integers(INT64_MIN, INT64_MAX))
def test_varint_size_is_the_written_size(value: int) -> None:
    out = bytearray()
    write_varint(out, value)
    assert len(out) == varint_size(value)


def retained_by(loops: Loops, payload: bytes, keeps: list[int], shift: int, size: int) -> tuple[int, bytes]:
    out = np.full(size, 0xEE, np.uint8)
    written = loops.retain(np.frombuffer(payload, np.uint8), np.array(keeps, np.uint8), shift, out)
    return written, out[: max(written, 0)].tobytes()


shifts = st.sampled_from([0, 1, -1, INT64_MIN, INT64_MAX]) | st.integers(-(10**13), 10**13)


@given(columns_and_rows(), st.data(), shifts, st.integers(-20, 40))
def test_retain_agrees(compiled: Loops, drawn: tuple[RecordColumns, list[Row]], data: st.DataObject, shift: int, spare: int) -> None:
    columns, _ = drawn
    payload = payload_of(columns)
    keeps = data.draw(st.lists(st.integers(0, 1), min_size=columns.count, max_size=columns.count))
    size = max(0, len(payload) + spare)
    assert retained_by(compiled, payload, keeps, shift, size) == retained_by(REFERENCE, payload, keeps, shift, size)


@given(st.binary(max_size=40), st.lists(st.integers(0, 1), max_size=5), shifts)
def test_retain_agrees_on_any_bytes(compiled: Loops, payload: bytes, keeps: list[int], shift: int) -> None:
    assert retained_by(compiled, payload, keeps, shift, 200) == retained_by(REFERENCE, payload, keeps, shift, 200)


def keys_found_by(loops: Loops, payload: bytes, keeps: list[int], room: int) -> tuple[int, list[list[int]]]:
    starts, lengths = keys = np.full((2, room), -7, np.int64)
    return loops.find_keys(np.frombuffer(payload, np.uint8), np.array(keeps, np.uint8), starts, lengths), keys.tolist()


@given(columns_and_rows(), st.data(), st.integers(-1, 1))
def test_find_keys_agrees(compiled: Loops, drawn: tuple[RecordColumns, list[Row]], data: st.DataObject, spare: int) -> None:
    columns, rows = drawn
    payload = payload_of(columns)
    keeps = data.draw(st.lists(st.integers(0, 1), min_size=columns.count, max_size=columns.count))
    room = max(0, keeps.count(0) + spare)
    count, (starts, lengths) = keys_found_by(REFERENCE, payload, keeps, room)
    if room < keeps.count(0):
        assert count == keys_found_by(compiled, payload, keeps, room)[0] == -1
        return
    assert keys_found_by(compiled, payload, keeps, room) == (count, [starts, lengths])
    keys = [payload[start : start + length] if length >= 0 else None for start, length in zip(starts, lengths, strict=True)]
    assert keys[:count] == [row[0] for row, keep in zip(rows, keeps, strict=True) if not keep]


@given(st.binary(max_size=40), st.lists(st.integers(0, 1), max_size=5), st.integers(0, 5))
def test_find_keys_agrees_on_any_bytes(compiled: Loops, payload: bytes, keeps: list[int], room: int) -> None:
    count, keys = keys_found_by(REFERENCE, payload, keeps, room)
    found = keys_found_by(compiled, payload, keeps, room)
    assert found == (count, keys) if count >= 0 else found[0] == count


def extracted_by(loops: Loops, payload: bytes, keeps: list[int], base_timestamp: int, size: int) -> int | tuple[int, bytes, list[int]]:
    out, times = np.full(size, 0xEE, np.uint8), np.full(2, -7, np.int64)
    written = loops.extract_records(np.frombuffer(payload, np.uint8), np.array(keeps, np.uint8), base_timestamp, out, times)
    return (written, out[:written].tobytes(), times.tolist()) if written >= 0 else written


def extracted_in_place_by(loops: Loops, payload: bytes, keeps: list[int], base_timestamp: int) -> int | tuple[int, bytes, list[int]]:
    inside, times = np.array(bytearray(payload), np.uint8), np.full(2, -7, np.int64)
    written = loops.extract_in_place(inside, np.array(keeps, np.uint8), base_timestamp, times)
    if written == NOT_IN_PLACE:
        assert inside.tobytes() == payload
    return (written, inside[:written].tobytes(), times.tolist()) if written >= 0 else written


@given(columns_and_rows(), st.data(), bases, st.integers(-20, 40))
def test_extract_records_agrees(
    compiled: Loops, drawn: tuple[RecordColumns, list[Row]], data: st.DataObject, base_timestamp: int, spare: int
) -> None:
    columns, _ = drawn
    payload = payload_of(columns, base_timestamp)
    keeps = data.draw(st.lists(st.integers(0, 1), min_size=columns.count, max_size=columns.count))
    size = max(0, len(payload) + spare)
    found = extracted_by(compiled, payload, keeps, base_timestamp, size)
    assert found == extracted_by(REFERENCE, payload, keeps, base_timestamp, size)
    kept = columns.take(np.flatnonzero(keeps))
    expected = payload_of(kept, int(kept.timestamps[0])) if any(keeps) else b""
    if found == -1:
        assert len(expected) > size  # Timestamps may take more room than they did.
        return
    assert isinstance(found, tuple)
    _, written, times = found
    assert written == expected
    if any(keeps):
        assert times == [kept.timestamps[0], kept.timestamps.max()]


@given(columns_and_rows(), st.data(), st.booleans())
def test_extract_in_place_agrees(
    compiled: Loops, drawn: tuple[RecordColumns, list[Row]], data: st.DataObject, begins_at_base: bool
) -> None:
    """As `extract_records`, in place; not where the first record that stays is not the one that the deltas count from."""
    columns, _ = drawn
    keeps = data.draw(st.lists(st.integers(0, 1), min_size=columns.count, max_size=columns.count))
    base = int(columns.timestamps[keeps.index(1) if any(keeps) and begins_at_base else 0]) if columns.count else 0
    payload = payload_of(columns, base)
    found = extracted_in_place_by(compiled, payload, keeps, base)
    assert found == extracted_in_place_by(REFERENCE, payload, keeps, base)
    if any(keeps) and columns.timestamps[keeps.index(1)] != base:
        assert found == NOT_IN_PLACE
    else:
        assert found == extracted_by(REFERENCE, payload, keeps, base, len(payload))


any_keeps = st.lists(st.integers(0, 1), max_size=5)


@given(st.binary(max_size=40), any_keeps, bases)
def test_extract_records_agrees_on_any_bytes(compiled: Loops, payload: bytes, keeps: list[int], base_timestamp: int) -> None:
    assert extracted_by(compiled, payload, keeps, base_timestamp, 200) == extracted_by(REFERENCE, payload, keeps, base_timestamp, 200)


@given(st.binary(max_size=40), any_keeps, bases)
@example(b"\x0e\0\0\0\1\2v\0" * 2, [0, 1], 5)
@example(b"\x0e\0\0\0\1\2v\0" * 65, [1] * 65, 5)
def test_extract_in_place_agrees_on_any_bytes(compiled: Loops, payload: bytes, keeps: list[int], base_timestamp: int) -> None:
    """Offset deltas that are wrong may take more room: it is refused, nothing behind them is written over and read."""
    found = extracted_in_place_by(compiled, payload, keeps, base_timestamp)
    assert found == extracted_in_place_by(REFERENCE, payload, keeps, base_timestamp)
    if isinstance(found, tuple):
        assert found == extracted_by(REFERENCE, payload, keeps, base_timestamp, len(payload))


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**40))
def test_shift_crc_agrees(compiled: Loops, crc: int, zeros: int) -> None:
    assert compiled.shift_crc(crc, zeros) == REFERENCE.shift_crc(crc, zeros)
