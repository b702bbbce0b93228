"""Walking and converting messages of formats 0 and 1: the compiled loops and their plain twins find and write the same."""

import importlib
import zlib
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaffinch.records.errors import Fault
from chaffinch.records.kernels_reference import messages as reference
from tests.support.raw_batches import NOW_MS, record
from tests.support.raw_messages import message

compiled = importlib.import_module("chaffinch.records.kernels.messages")
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


@pytest.fixture(params=[reference, compiled], ids=["twin", "compiled"])
def loops(request: pytest.FixtureRequest) -> ModuleType:
    chosen: ModuleType = request.param
    return chosen


def walked(
    loops: ModuleType,
    data: bytearray | bytes,
    magic: int,
    *,
    is_wrapped: bool = False,
    is_append_time: bool = False,
    bounds: tuple[int, int] = (0, NOW_MS),
    must_have_key: bool = True,
    bytes_max: int = 10**6,
    culprits_max: int = 100,
) -> tuple[Fault, list[int], list[tuple[int, int, int]]]:
    """(fault, summary, culprits)"""
    indices, seen = np.zeros((2, culprits_max), np.int64)
    reasons, summary = np.zeros(culprits_max, np.uint8), np.full(reference.SUMMARY_LENGTH, -7)
    array = np.frombuffer(bytes(data), np.uint8)
    fault = loops.walk_messages(
        array, magic, is_wrapped, is_append_time, *bounds, must_have_key, bytes_max, indices, reasons, seen, summary
    )
    found = min(int(summary[reference.CULPRITS]), culprits_max)
    triples = list(zip(indices[:found].tolist(), reasons[:found].tolist(), seen[:found].tolist(), strict=True))
    return Fault(fault), summary.tolist(), triples


def converted(loops: ModuleType, data: bytes, magic: int, base_timestamp: int, size: int, position: int = 0) -> tuple[int, bytes]:
    out = np.full(size, 0xEE, np.uint8)
    end = loops.convert_messages(np.frombuffer(bytes(data), np.uint8), magic, base_timestamp, out, position)
    return end, out.tobytes()


GOOD = b"".join(message(offset=index, timestamp=NOW_MS - 2 + index) for index in range(3))


def test_valid_messages_are_walked_without_fault(loops: ModuleType) -> None:
    size = sum(len(record(index, timestamp_delta=index)) for index in range(3))
    expected = [3, len(GOOD), 0, NOW_MS, NOW_MS - 2, size]
    assert walked(loops, GOOD, 1) == (Fault.NONE, expected, [])


def test_messages_become_records_of_format_2(loops: ModuleType) -> None:
    records = b"".join(record(index, timestamp_delta=index) for index in range(3))
    assert converted(loops, GOOD, 1, NOW_MS - 2, len(records)) == (len(records), records)
    assert converted(loops, GOOD, 1, NOW_MS - 2, len(records) - 1)[0] == -1
    assert converted(loops, GOOD, 1, NOW_MS - 2, len(records) + 5, 3) == (len(records) + 3, b"\xee" * 3 + records + b"\xee" * 2)


@pytest.mark.parametrize("position", [-1, 6])
def test_position_outside_the_output_is_refused(loops: ModuleType, position: int) -> None:
    assert converted(loops, GOOD, 1, 0, 5, position)[0] == -1


def test_format_0_has_no_timestamp(loops: ModuleType) -> None:
    data = message(magic=0) + message(None, None, magic=0, attributes=0b1000)
    assert walked(loops, data, 0, must_have_key=False)[:2] == (
        Fault.NONE,
        [2, len(data), 0, -1, -1, len(record(0) + record(1, None, None))],
    )
    assert converted(loops, data, 0, -1, 30)[1].startswith(record(0) + record(1, None, None))


@pytest.mark.parametrize(
    ("bad", "options", "reason", "seen"),
    [
        (message(attributes=2), {}, reference.INNER_COMPRESSION, 2),
        (message(magic=0, attributes=3), {}, reference.INNER_COMPRESSION, 3),
        (message(magic=0), {}, reference.MAGIC_DIFFERS, 0),
        (message(magic=2), {}, reference.MAGIC_DIFFERS, 2),
        (message(magic=200), {"is_wrapped": True}, reference.MAGIC_DIFFERS, 200),
        (message(crc=0xFFFFFFFF), {}, reference.CRC_WRONG, 0xFFFFFFFF),
        (message(crc=5, key_length=99), {}, reference.CRC_WRONG, 5),
        (message(value=bytes(100)), {"bytes_max": 100}, reference.MESSAGE_TOO_LARGE, 137),
        (message(offset=7), {"is_wrapped": True}, reference.OFFSET_WRONG, 7),
        (message(offset=-7), {"is_wrapped": True}, reference.OFFSET_WRONG, -7),
        (message(None, offset=1), {}, reference.NO_KEY, 0),
        (message(attributes=8, offset=1), {}, reference.TIMESTAMP_TYPE_WRONG, 0),
        (message(timestamp=NOW_MS + 1, offset=1), {}, reference.TIMESTAMP_OUTSIDE, NOW_MS + 1),
        (message(timestamp=INT64_MIN, offset=1), {}, reference.TIMESTAMP_OUTSIDE, INT64_MIN),
    ],
)
def test_culprits_are_found(loops: ModuleType, bad: bytes, options: dict[str, Any], reason: int, seen: int) -> None:
    data = message() + bad + message(offset=2)
    assert walked(loops, data, 1, **options)[2] == [(1, reason, seen)]


def test_permitted_messages_are_not_culprits(loops: ModuleType) -> None:
    """Offsets of plain messages, sizes of wrapped ones, a missing timestamp, null keys where keys are not needed."""
    assert walked(loops, message(offset=9) + message(offset=3), 1)[2] == []
    assert walked(loops, message(value=bytes(100)), 1, is_wrapped=True, bytes_max=10)[2] == []
    assert walked(loops, message(timestamp=-1), 1)[2] == []
    assert walked(loops, message(None), 1, must_have_key=False)[2] == []


def test_wrapper_with_append_time_makes_all_of_format_1_culprits(loops: ModuleType) -> None:
    found = walked(loops, message() + message(offset=1), 1, is_wrapped=True, is_append_time=True)[2]
    assert found == [(0, reference.TIMESTAMP_TYPE_WRONG, 0), (1, reference.TIMESTAMP_TYPE_WRONG, 0)]
    assert walked(loops, message(magic=0), 0, is_wrapped=True, is_append_time=True)[2] == []


@pytest.mark.parametrize(
    ("data", "is_wrapped", "fault", "index", "position"),
    [
        (GOOD + b"\x00" * 11, True, Fault.TRAILING_BYTES, 3, len(GOOD)),
        (GOOD + message(size_off_by=1), True, Fault.MESSAGE_CUT_SHORT, 3, len(GOOD)),
        (GOOD + message(size_off_by=-(2**31)), True, Fault.MESSAGE_SIZE, 3, len(GOOD)),
        (message(b"", b"", magic=0, size_off_by=-1), True, Fault.MESSAGE_SIZE, 0, 0),
        (GOOD + message(magic=3), False, Fault.BATCH_MAGIC, 3, len(GOOD)),
        (message(key_length=100), False, Fault.MESSAGE_KEY_LENGTH, 0, 26),
        (message(value_length=100), False, Fault.MESSAGE_VALUE_LENGTH, 0, 33),
        (message(None, key_length=-2), False, Fault.MESSAGE_KEY_LENGTH, 0, 26),
        (message(None, magic=0, key_length=-(2**31)), False, Fault.MESSAGE_KEY_LENGTH, 0, 18),
        (GOOD + message(value=None, value_length=-2), True, Fault.MESSAGE_VALUE_LENGTH, 3, len(GOOD) + 33),
        (message(value=None, magic=0, value_length=-(2**31)), False, Fault.MESSAGE_VALUE_LENGTH, 0, 25),
        (message(value_length=3), False, Fault.RECORD_LENGTH_UNUSED, 0, 40),
        (message(value_length=-1), False, Fault.RECORD_LENGTH_UNUSED, 0, 37),
    ],
)
def test_faults_name_message_and_position(
    loops: ModuleType, data: bytes, is_wrapped: bool, fault: Fault, index: int, position: int
) -> None:
    found = walked(loops, data, 1 if data[16] else 0, is_wrapped=is_wrapped)
    assert (found[0], *found[1][:2]) == (fault, index, position)
    assert converted(loops, data, 1 if data[16] else 0, 0, 1000)[0] == -1


def test_message_cut_within_its_timestamp_is_a_fault(loops: ModuleType) -> None:
    body = b"\x01\x00" + bytes(8 + 7)
    for cut in (15, 9, 8):
        checked = body[: len(body) - cut]
        data = bytes(8) + (4 + len(checked)).to_bytes(4, "big") + zlib.crc32(checked).to_bytes(4, "big") + checked
        if len(data) >= reference.MESSAGE_BYTES_MIN:
            assert walked(loops, data, 1)[0] is Fault.MESSAGE_TIMESTAMP


def test_culprits_beyond_the_arrays_are_only_counted(loops: ModuleType) -> None:
    found = walked(loops, message(None) * 5, 1, culprits_max=2)
    assert (found[1][reference.CULPRITS], len(found[2])) == (5, 2)


lengths = st.none() | st.sampled_from([-2, -1, 0, 1, 2**31 - 1, -(2**31)])
contents = st.none() | st.binary(max_size=200)
random_messages = st.builds(
    message,
    contents,
    contents,
    magic=st.sampled_from([0, 1, 1, 1, 2]),
    offset=st.integers(0, 3) | st.sampled_from([INT64_MIN, INT64_MAX]),
    attributes=st.sampled_from([0, 0, 0, 0, 1, 8, 64]),
    timestamp=st.sampled_from([NOW_MS, NOW_MS - 1, -1, INT64_MIN, INT64_MAX, NOW_MS + 5]),
    crc=st.none() | st.none() | st.just(7),
    size_off_by=st.sampled_from([0, 0, 0, 0, 0, 0, 1, -1, 100]),
    key_length=lengths,
    value_length=lengths,
)


@given(
    st.lists(random_messages, max_size=6).map(b"".join), st.booleans(), st.booleans(), st.booleans(), st.integers(0, 1), st.integers(0, 3)
)
def test_twins_agree_on_messages(
    data: bytes, is_wrapped: bool, is_append_time: bool, must_have_key: bool, magic: int, culprits_max: int
) -> None:
    options: dict[str, Any] = {
        "is_wrapped": is_wrapped,
        "is_append_time": is_append_time,
        "must_have_key": must_have_key,
        "bytes_max": 150,
        "culprits_max": culprits_max,
    }
    found = walked(reference, data, magic, **options)
    assert walked(compiled, data, magic, **options) == found
    size = found[1][reference.CONVERTED_BYTES]
    ends = [converted(loops, data, magic, found[1][reference.BASE_TIMESTAMP], size) for loops in (reference, compiled)]
    assert ends[0][0] == ends[1][0]
    if not found[0] and not found[1][reference.CULPRITS]:
        assert ends[0] == ends[1]
        assert ends[0][0] == size


@given(st.binary(max_size=60), st.booleans(), st.integers(0, 1))
def test_twins_agree_on_any_bytes(data: bytes, is_wrapped: bool, magic: int) -> None:
    assert walked(compiled, data, magic, is_wrapped=is_wrapped) == walked(reference, data, magic, is_wrapped=is_wrapped)


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=4), st.data())
def test_twins_agree_on_mutated_bytes(values: list[bytes], data: st.DataObject) -> None:
    raw = bytearray(b"".join(message(b"k", value, offset=index) for index, value in enumerate(values)))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] = data.draw(st.integers(0, 255))
    assert walked(compiled, raw, 1, is_wrapped=True) == walked(reference, raw, 1, is_wrapped=True)
