"""Batches and message sets of formats 0, 1 and 2: validated, decoded, read as a log, taken apart; by the compiled loops and their twin.

Both do the same, and nothing but a RecordsError is raised. Branches are counted in the twin. The first byte says what is done to the rest
before: checksums put right, so that what lies behind them is reached, and records compressed by the codec that their header names, so that
the codecs' contents are reached, too. The second byte is the topic's policy. Nothing unpacks to more than it may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct
from zlib import crc32

import numpy as np

from chaffinch.identifiers import TopicPartition
from chaffinch.records import batch, kernels
from chaffinch.records.batch_codec import decompressed_payload
from chaffinch.records.batch_header import TimestampType, write_crc
from chaffinch.records.columns import RecordColumns
from chaffinch.records.compression import Compression, compress
from chaffinch.records.errors import RecordsError
from chaffinch.records.fetched import FetchedRecords, whole_batches
from chaffinch.records.old_formats.message_set import read_message_set
from chaffinch.records.validation import Origin, validate
from chaffinch.records.validation_policy import ValidationPolicy
from chaffinch.records.validation_result import Accepted, Rejected
from tests.fuzz.batch_fuzzer import loops
from tests.support.raw_batches import NOW_MS, raw_batch, record
from tests.support.raw_messages import message, message_set
from tests.support.validated_sets import validate_set

PARTS = ("chaffinch.records",)
UNPACKED_BYTES_MAX = 1 << 10
PLACE = TopicPartition("orders", 0)
RIGHT_CHECKSUMS, COMPRESSES = 1, 2
GOLDEN = Path(__file__).parents[2] / "golden" / "batches.txt"
_LENGTH = Struct(">i")
_CRC_OLD = Struct(">I")


def seeds() -> Iterator[bytes]:
    for line in GOLDEN.read_text().splitlines():
        yield b"\0\0" + bytes.fromhex(line.split()[1])
    rows = [record(0), record(1, None, b"v" * 300, headers=[(b"name", b"x"), (b"", None)]), record(2, b"k", None, timestamp_delta=-5)]
    for codec in Compression:
        yield bytes([RIGHT_CHECKSUMS | COMPRESSES, codec]) + raw_batch(b"".join(rows), count=3, compression=codec)
        yield bytes([RIGHT_CHECKSUMS, 5 * codec]) + raw_batch(rows, compression=codec) + raw_batch(rows[:1], base_offset=3)
        for size in (900, 2 * UNPACKED_BYTES_MAX):
            yield bytes([RIGHT_CHECKSUMS, 7]) + raw_batch([record(0, None, bytes(size))], compression=codec)
        for magic in (0, 1):
            if codec is not Compression.ZSTD:
                for size in (90, 2 * UNPACKED_BYTES_MAX):
                    messages = [message(magic=magic, offset=0), message(None, bytes(size), magic=magic, offset=1)]
                    yield bytes([RIGHT_CHECKSUMS, 1 + codec]) + message_set(messages, codec, magic=magic)
    yield b"\0\0" + batch.encode_control_batch(True, batch.read_header(raw_batch(rows)).identity, 1, NOW_MS) + raw_batch(rows)


def check(data: bytes) -> None:
    if len(data) < 2:
        return
    log = _prepared(bytearray(data[2:]), data[0])
    policy = _policy(data[1])
    assert kernels.load()
    compiled = kernels.choose(1)
    for ask in (_read, _taken_apart, _validated, _validated_old):
        with loops(kernels.REFERENCE):
            expected = _outcome(ask, log, policy)
        with loops(compiled):
            found = _outcome(ask, log, policy)
        assert found == expected, f"{ask.__name__}: {found!r}, the twin says {expected!r}"


def _prepared(log: bytearray, how: int) -> bytes:
    position = 0
    while len(log) - position >= batch.HEADER_BYTES:
        end = position + 12 + max(_LENGTH.unpack_from(log, position + 8)[0], 0)
        if end > len(log) or end - position < 17:
            break
        if log[position + 16] == 2 and end - position >= batch.HEADER_BYTES:
            codec = log[position + 22] & 7
            if how & COMPRESSES and codec in (1, 2, 3, 4):
                packed = compress(Compression(codec), bytes(log[position + batch.HEADER_BYTES : end]))
                log[position + batch.HEADER_BYTES : end] = packed
                end = position + batch.HEADER_BYTES + len(packed)
                _LENGTH.pack_into(log, position + 8, end - position - 12)
            if how & RIGHT_CHECKSUMS:
                write_crc(log, position)
        elif how & RIGHT_CHECKSUMS:
            _CRC_OLD.pack_into(log, position + 12, crc32(log[position + 16 : end]))
        position = end
    return bytes(log)


def _policy(choice: int) -> ValidationPolicy:
    return ValidationPolicy(
        topic_partition=PLACE,
        is_compacted=bool(choice & 8),
        timestamp_type=TimestampType.LOG_APPEND_TIME if choice & 16 else TimestampType.CREATE_TIME,
        timestamp_before_max_ms=1000 if choice & 32 else 2**63 - 1,
        batch_bytes_max=200 if choice & 64 else 1 << 20,
        compression=Compression(choice & 7) if choice & 7 < 5 else None,
        decompressed_bytes_max=UNPACKED_BYTES_MAX,
    )


Ask = Callable[[bytes, ValidationPolicy], Iterator[object]]


def _outcome(ask: Ask, log: bytes, policy: ValidationPolicy) -> list[object]:
    """What was found, and the error that ended it. Only this error is documented."""
    found: list[object] = []
    try:
        for one in ask(log, policy):
            found.append(one)
    except RecordsError as error:
        found += [error, str(error)]
    return found


def _read(log: bytes, policy: ValidationPolicy) -> Iterator[object]:
    """As a consumer does."""
    yield whole_batches(log)
    reader = FetchedRecords(log, 0, aborted=[(4711, 0)] if policy.is_compacted else ())
    while (piece := reader.read(3)) is not None:
        yield _shown(piece.columns), piece.timestamp_type, piece.leader_epoch, reader.position


def _taken_apart(log: bytes, policy: ValidationPolicy) -> Iterator[object]:
    for view in batch.views(log):
        payload = decompressed_payload(view, UNPACKED_BYTES_MAX)
        assert len(payload) <= max(UNPACKED_BYTES_MAX, len(view.payload)), f"{len(payload)} bytes unpacked"
        columns = batch.decode(view, decompressed_bytes_max=UNPACKED_BYTES_MAX)
        yield _shown(columns)
        if len(columns):
            yield batch.without_records(view, [0])
            yield batch.remove_records_in_place(bytearray(view.data), np.array([len(columns) - 1]))
            yield batch.split_in_half(view)
            yield batch.keys_at(view, np.array([0]), 5).value(0)
        if view.header.is_control:
            yield batch.read_control(view)


def _shown(columns: RecordColumns) -> object:
    rows = [(columns.key(index), columns.value(index), columns.headers(index)) for index in range(len(columns))]
    return rows, columns.timestamps.tolist(), None if columns.offsets is None else columns.offsets.tolist()


def _validated(log: bytes, policy: ValidationPolicy) -> Iterator[object]:
    """As a broker does, by each origin."""
    for view in batch.views(log):
        for origin in Origin:
            verdict = validate(view, policy, origin, NOW_MS)
            yield verdict
            if origin is Origin.CLIENT:
                _check_accepted(verdict, view.header.compression is not Compression.NONE)


def _validated_old(log: bytes, policy: ValidationPolicy) -> Iterator[object]:
    found = read_message_set(log)
    verdict = validate_set(found, policy, NOW_MS)
    yield verdict
    _check_accepted(verdict, found.is_wrapper)


def _check_accepted(verdict: Accepted | Rejected, was_compressed: bool) -> None:
    """It can be read, and is not too much."""
    if isinstance(verdict, Accepted):
        assert len(batch.decode(verdict.batch)) == verdict.count
        assert verdict.records_bytes <= UNPACKED_BYTES_MAX or not was_compressed, f"{verdict.records_bytes} bytes unpacked"
