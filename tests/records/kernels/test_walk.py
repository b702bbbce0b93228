"""The walk over the records of a batch: what it finds, and that the compiled one and the plain one find the same."""

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaffinch.records.errors import Fault
from chaffinch.records.kernels_reference import walk as reference
from tests.support.raw_batches import NOW_MS, record, varint

compiled = importlib.import_module("chaffinch.records.kernels.walk")

OFFSET, KEY, TIME = reference.OFFSET_DELTA_WRONG, reference.KEY_MISSING, reference.TIMESTAMP_WRONG
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
Walk = Callable[..., int]
WalkValid = Callable[..., tuple[int, int, int]]


@pytest.fixture(params=[reference.walk, compiled.walk], ids=["twin", "compiled"])
def walk(request: pytest.FixtureRequest) -> Walk:
    chosen: Walk = request.param
    return chosen


def walked(
    walk: Walk,
    payload: bytes,
    count: int,
    *,
    base: int = NOW_MS,
    least: int = 0,
    largest: int = INT64_MAX,
    may_lack: bool = True,
    must_have_key: bool = True,
    culprits_max: int = 100,
) -> tuple[Any, ...]:
    """(fault, index, position, culprit count, largest timestamp, culprits)"""
    indices, seen, reasons = np.zeros(culprits_max, np.int64), np.zeros(culprits_max, np.int64), np.zeros(culprits_max, np.uint8)
    summary = np.full(reference.SUMMARY_LENGTH, -7)
    data = np.frombuffer(bytes(payload), np.uint8)
    fault = walk(data, count, base, least, largest, may_lack, must_have_key, indices, reasons, seen, summary)
    found = min(int(summary[reference.CULPRITS]), culprits_max)
    triples = list(zip(indices[:found].tolist(), reasons[:found].tolist(), seen[:found].tolist(), strict=True))
    return (Fault(fault), *summary.tolist(), triples)


def good(count: int, **fields: Any) -> list[bytes]:
    return [record(index, **fields) for index in range(count)]


class TestReadable:
    @pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 8191, 8192, 8200])
    def test_records_without_fault_are_walked(self, walk: Walk, count: int) -> None:
        payload = b"".join(good(count))
        assert walked(walk, payload, count) == (Fault.NONE, count, len(payload), 0, NOW_MS, [])

    @pytest.mark.parametrize(
        "fields",
        [
            {"value": None},
            {"key": b"", "value": b""},
            {"value": b"v" * 70},
            {"value": b"v" * 9000},
            {"value": b"v" * 1_200_000},
            {"key": b"k" * 9000},
            {"headers": [(b"name", b"content"), (b"", None), (b"x" * 200, b"y" * 20_000)]},
            {"headers": [(b"h", b"")] * 300},
            {"timestamp_delta": 3_599_999},
            {"timestamp_delta": -200_000_000_000},
        ],
    )
    def test_records_of_every_shape_are_walked(self, walk: Walk, fields: dict[str, Any]) -> None:
        payload = b"".join(good(3, **fields))
        expected_time = NOW_MS + fields.get("timestamp_delta", 0)
        assert walked(walk, payload, 3) == (Fault.NONE, 3, len(payload), 0, expected_time, [])

    def test_overlong_varints_are_read(self, walk: Walk) -> None:
        """Java reads them too: 2 written as 0x84 0x80 0x80 0x80 0x00."""
        key = b"\x84\x80\x80\x80\x00kk"
        body = b"\x00" + b"\x80\x80\x00" + b"\x80\x80\x80\x80\x00" + key + b"\x81\x00" + b"\x80\x00"
        payload = varint(len(body)) + body
        assert walked(walk, payload, 1)[:3] == (Fault.NONE, 1, len(payload))

    def test_empty_batch_has_no_fault(self, walk: Walk) -> None:
        assert walked(walk, b"", 0) == (Fault.NONE, 0, 0, 0, INT64_MIN, [])

    def test_the_largest_timestamp_is_found_wherever_it_is(self, walk: Walk) -> None:
        deltas = [0, 5, 9_000_000, -3, 7]
        payload = b"".join(record(index, timestamp_delta=delta) for index, delta in enumerate(deltas))
        assert walked(walk, payload, 5)[4] == NOW_MS + 9_000_000

    def test_timestamps_wrap_as_in_java(self, walk: Walk) -> None:
        assert walked(walk, record(timestamp_delta=1), 1, base=INT64_MAX, least=INT64_MIN)[4] == INT64_MIN


# (what is wrong, payload, count, fault, record, position)
FAULTS = [
    ("no payload", b"", 1, Fault.RECORD_COUNT, 0, 0),
    ("a negative count", record(), -1, Fault.RECORD_COUNT, 0, 0),
    ("a count no payload of this size can hold", record(), 3, Fault.RECORD_COUNT, 0, 0),
    ("one record fewer than announced", record() + record(1), 3, Fault.RECORD_COUNT, 2, 30),
    ("one record more than announced", record() + record(1), 1, Fault.TRAILING_BYTES, 1, 15),
    ("a byte after the records", record() + b"\x00", 1, Fault.TRAILING_BYTES, 1, 15),
    ("length -1", record() + b"\x01" + bytes(20), 2, Fault.RECORD_LENGTH, 1, 15),
    ("length of six bytes", b"\x80\x80\x80\x80\x80\x00" + bytes(20), 1, Fault.RECORD_LENGTH, 0, 0),
    ("length cut short", record() + b"\xff", 2, Fault.RECORD_LENGTH, 1, 15),
    ("length one too large", record() + record(1, length_off_by=1), 2, Fault.RECORD_CUT_SHORT, 1, 15),
    ("length far too large", record() + record(1, length_off_by=100_000), 2, Fault.RECORD_CUT_SHORT, 1, 15),
    ("largest length", varint(2**31 - 1) + bytes(10), 1, Fault.RECORD_CUT_SHORT, 0, 0),
    ("length one too large, bytes follow", record(length_off_by=1) + record(1), 2, Fault.RECORD_LENGTH_UNUSED, 0, 15),
    ("length one too small", record(length_off_by=-1) + record(1), 2, Fault.HEADER_COUNT, 0, 14),
    ("length 0", b"\x00" + bytes(7), 1, Fault.TIMESTAMP_DELTA, 0, 2),
    ("length 1", b"\x02" + bytes(7), 1, Fault.TIMESTAMP_DELTA, 0, 2),
    ("timestamp delta of eleven bytes", varint(16) + b"\x00" + b"\x80" * 10 + bytes(5), 1, Fault.TIMESTAMP_DELTA, 0, 2),
    ("offset delta of six bytes", varint(12) + b"\x00\x00" + b"\x80" * 5 + bytes(5), 1, Fault.OFFSET_DELTA, 0, 3),
    ("offset delta cut short", varint(3) + b"\x00\x00\x80" + bytes(5), 1, Fault.OFFSET_DELTA, 0, 3),
    ("key longer than the record", varint(6) + b"\x00\x00\x00" + varint(3) + b"kk", 1, Fault.KEY_LENGTH, 0, 4),
    ("key length cut short", varint(6) + b"\x00\x00\x00" + b"\x80\x80\x80", 1, Fault.KEY_LENGTH, 0, 4),
    ("value longer than the record", varint(7) + b"\x00\x00\x00\x01" + varint(9) + b"v\x00", 1, Fault.VALUE_LENGTH, 0, 5),
    ("key length -2", record() + record(1, -2), 2, Fault.KEY_LENGTH, 1, 19),
    ("least key length", record(key=-(2**31)), 1, Fault.KEY_LENGTH, 0, 4),
    ("value length -2", record() + record(1, value=-2), 2, Fault.VALUE_LENGTH, 1, 23),
    ("least value length", record(value=-(2**31)), 1, Fault.VALUE_LENGTH, 0, 8),
    ("no value", varint(6) + b"\x00\x00\x00" + varint(2) + b"kk", 1, Fault.VALUE_LENGTH, 0, 7),
    ("no header count", varint(7) + b"\x00\x00\x00\x01" + varint(2) + b"vv", 1, Fault.HEADER_COUNT, 0, 8),
    ("header count -1", varint(6) + b"\x00\x00\x00\x01\x01" + varint(-1), 1, Fault.HEADER_COUNT, 0, 6),
    ("more headers than fit", varint(8) + b"\x00\x00\x00\x01\x01" + varint(2) + bytes(2), 1, Fault.HEADER_COUNT, 0, 6),
    ("largest header count", varint(12) + b"\x00\x00\x00\x01\x01" + varint(2**31 - 1) + bytes(2), 1, Fault.HEADER_COUNT, 0, 6),
    ("null header key", record(headers=[(None, b"v")]), 1, Fault.HEADER_KEY_LENGTH, 0, 15),
    ("header key too long", varint(8) + b"\x00\x00\x00\x01\x01" + varint(1) + varint(5) + b"a", 1, Fault.HEADER_KEY_LENGTH, 0, 7),
    ("header value too long", varint(8) + b"\x00\x00\x00\x01\x01" + varint(1) + varint(0) + varint(3), 1, Fault.HEADER_VALUE_LENGTH, 0, 8),
    ("header value length -2", record(headers=[(b"h", -2)]), 1, Fault.HEADER_VALUE_LENGTH, 0, 17),
    ("least header value length", record(headers=[(b"h", -(2**31))]), 1, Fault.HEADER_VALUE_LENGTH, 0, 17),
    ("bytes after the headers", varint(8) + b"\x00\x00\x00\x01\x01\x00\x00\x00", 1, Fault.RECORD_LENGTH_UNUSED, 0, 7),
]


@pytest.mark.parametrize(("payload", "count", "fault", "index", "position"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS])
def test_fault_names_record_and_byte(walk: Walk, payload: bytes, count: int, fault: Fault, index: int, position: int) -> None:
    assert walked(walk, payload, count)[:3] == (fault, index, position)


def test_fault_wins_over_earlier_culprits(walk: Walk) -> None:
    payload = record(0, key=None) + record(1, length_off_by=100)
    assert walked(walk, payload, 2)[:4] == (Fault.RECORD_CUT_SHORT, 1, len(record(0, key=None)), 1)


# (records, options, culprits as (index, reason, value seen))
CULPRITS = [
    (good(4), {}, []),
    ([record(0, key=None), record(1)], {}, [(0, KEY, 0)]),
    ([record(0, key=None), record(1)], {"must_have_key": False}, []),
    ([record(0, key=b"")], {}, []),
    ([record(0), record(2), record(2), record(1)], {}, [(1, OFFSET, 2), (3, OFFSET, 1)]),
    ([record(-1)], {}, [(0, OFFSET, -1)]),
    ([record(2**31 - 1)], {}, [(0, OFFSET, 2**31 - 1)]),
    ([record(0), record(1, timestamp_delta=11), record(2, timestamp_delta=10)], {"largest": NOW_MS + 10}, [(1, TIME, NOW_MS + 11)]),
    ([record(0), record(1, timestamp_delta=-11), record(2, timestamp_delta=-10)], {"least": NOW_MS - 10}, [(1, TIME, NOW_MS - 11)]),
    ([record(0, timestamp_delta=-1), record(1, timestamp_delta=-2)], {"base": 0}, [(1, TIME, -2)]),
    ([record(0, timestamp_delta=-1)], {"base": 0, "may_lack": False}, [(0, TIME, -1)]),
    ([record(0), record(1)], {"least": 1, "largest": 0, "may_lack": False}, [(0, TIME, NOW_MS), (1, TIME, NOW_MS)]),
    # One reason per record, in order of precedence.
    ([record(5, key=None, timestamp_delta=-(10**15))], {}, [(0, OFFSET, 5)]),
    ([record(0, key=None, timestamp_delta=-(10**15))], {}, [(0, KEY, 0)]),
]


@pytest.mark.parametrize(("records", "options", "culprits"), CULPRITS)
def test_culprits_are_found(walk: Walk, records: list[bytes], options: dict[str, Any], culprits: list[tuple[int, int, int]]) -> None:
    fault, index, _, culprit_count, _, found = walked(walk, b"".join(records), len(records), **options)
    assert (fault, index, culprit_count, found) == (Fault.NONE, len(records), len(culprits), culprits)


def test_culprits_beyond_the_arrays_are_only_counted(walk: Walk) -> None:
    payload = b"".join(good(10, key=None))
    assert walked(walk, payload, 10, culprits_max=3)[3:] == (10, NOW_MS, [(0, KEY, 0), (1, KEY, 0), (2, KEY, 0)])


def test_payload_in_the_middle_of_a_buffer_is_walked(walk: Walk) -> None:
    payload = b"".join(good(3))
    frame = np.frombuffer(bytearray(b"\xff" * 61 + payload + b"\xff" * 9), np.uint8)[61 : 61 + len(payload)]
    summary = np.zeros(4, np.int64)
    none, nothing = np.empty(0, np.int64), np.empty(0, np.uint8)
    assert walk(frame, 3, NOW_MS, 0, INT64_MAX, True, True, none, nothing, none, summary) == Fault.NONE


NEGATIVE_LENGTHS = st.integers(-3, -1) | st.integers(-(2**31), -1)
CONTENTS = st.none() | st.binary(max_size=80) | NEGATIVE_LENGTHS
SHORT_CONTENTS = st.none() | st.binary(max_size=4) | NEGATIVE_LENGTHS
RECORDS = st.builds(
    record,
    st.integers(-3, 300) | st.integers(-(2**31), 2**31 - 1),
    CONTENTS,
    CONTENTS,
    timestamp_delta=st.integers(-100, 100) | st.integers(INT64_MIN, INT64_MAX),
    headers=st.lists(st.tuples(SHORT_CONTENTS, SHORT_CONTENTS), max_size=2),
    length_off_by=st.sampled_from([0, 0, 0, 0, 0, 0, 0, 1, -1]),
)
OPTIONS = st.fixed_dictionaries(
    {
        "base": st.sampled_from([0, -1, NOW_MS, INT64_MIN, INT64_MAX]),
        "least": st.sampled_from([INT64_MIN, 0, 1, NOW_MS - 50]),
        "largest": st.sampled_from([0, NOW_MS + 50, INT64_MAX]),
        "may_lack": st.booleans(),
        "must_have_key": st.booleans(),
        "culprits_max": st.integers(0, 5),
    }
)


@given(st.lists(RECORDS, max_size=6), st.integers(-1, 1), OPTIONS)
def test_compiled_and_twin_agree_on_records(records: list[bytes], count_off_by: int, options: dict[str, Any]) -> None:
    arguments = (b"".join(records), len(records) + count_off_by)
    assert walked(compiled.walk, *arguments, **options) == walked(reference.walk, *arguments, **options)


@given(st.binary(max_size=60), st.integers(-1, 9) | st.integers(-(2**31), 2**31 - 1), OPTIONS)
def test_compiled_and_twin_agree_on_noise(payload: bytes, count: int, options: dict[str, Any]) -> None:
    assert walked(compiled.walk, payload, count, **options) == walked(reference.walk, payload, count, **options)


def walked_valid(
    walk_valid: WalkValid,
    payload: bytes,
    count: int,
    *,
    base: int = NOW_MS,
    least: int = 0,
    largest: int = INT64_MAX,
    may_lack: bool = True,
    must_have_key: bool = True,
    culprits_max: int = 0,
) -> tuple[int, int, int]:
    """(records, bytes, largest timestamp)"""
    return walk_valid(np.frombuffer(bytes(payload), np.uint8), count, base, least, largest, may_lack, must_have_key)


@pytest.mark.parametrize("walk_valid", [reference.walk_valid, compiled.walk_valid], ids=["twin", "compiled"])
class TestWalkValid:
    @pytest.mark.parametrize(("payload", "count"), [row[1:3] for row in FAULTS], ids=[row[0] for row in FAULTS])
    def test_valid_prefix_ends_at_a_fault(self, walk_valid: WalkValid, payload: bytes, count: int) -> None:
        assert walked_valid(walk_valid, payload, count)[:2] != (count, len(payload))

    @pytest.mark.parametrize(("records", "options", "culprits"), CULPRITS)
    def test_valid_prefix_ends_before_the_first_culprit(
        self, walk_valid: WalkValid, records: list[bytes], options: dict[str, Any], culprits: list[tuple[int, int, int]]
    ) -> None:
        valid = culprits[0][0] if culprits else len(records)
        found = walked_valid(walk_valid, b"".join(records), len(records), **options)
        assert found[:2] == (valid, len(b"".join(records[:valid])))


@given(st.lists(RECORDS, max_size=6), st.integers(-1, 1), OPTIONS)
def test_batch_without_findings_is_valid_as_a_whole(records: list[bytes], count_off_by: int, options: dict[str, Any]) -> None:
    arguments = (b"".join(records), len(records) + count_off_by)
    fault, index, position, culprit_count, largest, _ = walked(reference.walk, *arguments, **options)
    valid = walked_valid(compiled.walk_valid, *arguments, **options)
    assert valid == walked_valid(reference.walk_valid, *arguments, **options)
    is_valid = valid[:2] == (arguments[1], len(arguments[0]))
    assert is_valid == (fault == Fault.NONE and culprit_count == 0)
    if is_valid:
        assert valid == (index, position, largest)


@given(st.binary(max_size=60), st.integers(-1, 9) | st.integers(-(2**31), 2**31 - 1), OPTIONS)
def test_compiled_and_twin_agree_on_the_valid_prefix_of_noise(payload: bytes, count: int, options: dict[str, Any]) -> None:
    found = walked_valid(compiled.walk_valid, payload, count, **options)
    assert found == walked_valid(reference.walk_valid, payload, count, **options)
