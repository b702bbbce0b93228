"""Encoding and decoding of record batches on one core, compared with aiokafka's compiled codec, the fastest other one on PyPI.

The input is an Arrow table of one million records with 100-byte values (in a second run also with 8-byte keys), taken in slices: 2,000
records make a batch of 220 KB, 150 one of 16 KB, 20,000 one of 2.2 MB. Our codec converts Arrow to batches and batches to columns; aiokafka
converts prepared Python objects and returns Python objects. As in a stream, no buffer is used twice in a row. Then each codec reads every
record of the other, and the records are compared.

`python -m benchmarks.records`
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from chaffinch.identifiers import ProducerIdentity
from chaffinch.records import kernels
from chaffinch.records.arrow_columns import from_arrow, to_arrow
from chaffinch.records.batch import Compression, decode, encode, patch_producer, views
from chaffinch.records.columns import RecordColumns

NOW_MS = 1_700_000_000_000
RECORDS = 1_000_000
OTHER_RECORDS = 200_000
"""Records for aiokafka, which is slower."""
REPETITIONS = 5
SHAPES = (("16 KB", 150), ("220 KB", 2_000), ("2.2 MB", 20_000))

Item = TypeVar("Item")
Rows = list[tuple[bytes | None, bytes]]


def table_of(has_keys: bool) -> pa.Table:
    """A table of distinct values of 100 bytes, with timestamps that advance by 1 ms every ten records."""
    rng = np.random.default_rng(7)
    alphabet = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz012345", np.uint8)
    values = alphabet[rng.integers(0, len(alphabet), RECORDS * 100, np.uint8)]
    offsets = pa.py_buffer(np.arange(RECORDS + 1, dtype=np.int32) * 100)
    columns = {"value": pa.Array.from_buffers(pa.binary(), RECORDS, [None, offsets, pa.py_buffer(values)])}
    if has_keys:
        columns["key"] = pa.array([b"%08d" % index for index in range(RECORDS)], pa.binary())
    columns["timestamp"] = pa.array(NOW_MS + np.arange(RECORDS) // 10, pa.timestamp("ms", "UTC"))
    return pa.table(columns)


def slices(table: pa.Table, count: int, limit: int = RECORDS) -> Iterator[pa.Table]:
    return (table.slice(start, count) for start in range(0, limit - count + 1, count))


def columns_from(part: pa.Table) -> RecordColumns:
    return from_arrow(part, timestamp_default_ms=0)


def rate(count: int, work: Callable[[], object], repetitions: int = REPETITIONS) -> float:
    """Records a second in the fastest repetition; other processes slowed down the others."""
    best = float("inf")
    for _ in range(repetitions):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return count / best


def for_each(work: Callable[[Item], object], items: Iterable[Item]) -> None:
    """Call `work` on every item and release its result at once, as a sender does."""
    for item in items:
        work(item)


def encode_with_aiokafka(rows: Rows) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 30)
    append = builder.append
    for offset, (key, value) in enumerate(rows):
        append(offset, NOW_MS, key, value, [])
    return bytes(builder.build())


def decode_with_aiokafka(data: bytes) -> Rows:
    return [(record.key, record.value) for record in DefaultRecordBatch(data)]


def report(name: str, ours: float, other: float | None = None) -> None:
    comparison = "" if other is None else f"   aiokafka {other / 1e6:6.2f}   {ours / other:5.1f} times"
    print(f"  {name:<52} {ours / 1e6:8.2f} M records/s{comparison}")


def encode_and_decode(table: pa.Table, size: str, count: int) -> None:
    parts = [columns_from(part) for part in slices(table, count)]
    total = sum(map(len, parts))
    ours = rate(total, lambda: for_each(encode, parts))
    keep: list[bytearray] = [encode(part) for part in parts]
    rows = list(zip(keys_of(table), table.column("value").to_pylist(), strict=True))
    other_parts = [rows[start : start + count] for start in range(0, OTHER_RECORDS - count + 1, count)]
    other_total = sum(map(len, other_parts))
    other = rate(other_total, lambda: for_each(encode_with_aiokafka, other_parts), 3)
    report(f"encode, {size}", ours, other)
    report(f"encode, {size}, from Arrow", rate(total, lambda: for_each(lambda part: encode(columns_from(part)), slices(table, count))))

    other_batches = [encode_with_aiokafka(part) for part in other_parts]
    ours = rate(total, lambda: for_each(decode, keep))
    other = rate(other_total, lambda: for_each(decode_with_aiokafka, other_batches), 3)
    report(f"decode, {size}", ours, other)
    compare(keep, parts, rows, other_batches, other_parts)


def keys_of(table: pa.Table) -> list[bytes | None]:
    return table.column("key").to_pylist() if "key" in table.column_names else [None] * len(table)


def compare(keep: list[bytearray], parts: list[RecordColumns], rows: Rows, other_batches: list[bytes], other_parts: list[Rows]) -> None:
    """Compare every record: our batches as we decode them and (a part) as aiokafka does, aiokafka's batches as we decode them."""
    for data, part in zip(keep, parts, strict=True):
        found = decode(data)
        assert to_arrow(found).equals(to_arrow(part))
        assert next(views(data)).crc_is_valid()
    for data, other_rows in zip(keep, other_parts, strict=False):
        assert decode_with_aiokafka(bytes(data)) == other_rows
    for other, other_rows in zip(other_batches, other_parts, strict=True):
        batch = to_arrow(decode(other))
        assert list(zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)) == other_rows


def other_operations(table: pa.Table) -> None:
    count = 2_000
    parts = [columns_from(part) for part in slices(table, count)]
    batches = [encode(part) for part in parts]
    odd, identity = np.arange(1, count, 2), ProducerIdentity(1, 0)
    report("partitions of keys (murmur2)", rate(RECORDS, lambda: for_each(lambda part: part.murmur2_partitions(4), parts)))
    report("sizes", rate(RECORDS, lambda: for_each(RecordColumns.sizes, parts)))
    report("take every other record", rate(RECORDS // 2, lambda: for_each(lambda part: part.take(odd), parts)))
    report(
        "patch a producer into batches of 220 KB",
        rate(RECORDS, lambda: for_each(lambda data: patch_producer(data, 0, identity, 0), batches)),
    )
    for codec in (Compression.LZ4, Compression.SNAPPY, Compression.ZSTD, Compression.GZIP):
        few = parts[:20]
        packed = [encode(part, compression=codec) for part in few]
        ratio = sum(map(len, batches[: len(few)])) / sum(map(len, packed))
        name = f"220 KB, {codec.name.lower()} ({ratio:.1f} times smaller)"
        report(f"encode, {name}", rate(len(few) * count, partial(for_each, partial(encode, compression=codec), few), 2))
        report(f"decode, {name}", rate(len(few) * count, partial(for_each, decode, packed), 2))


LOADING = """
import time
peak = lambda: next(int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
start = time.perf_counter()
import chaffinch.records.batch
from chaffinch.records import kernels
imported, idle = time.perf_counter(), peak()
import numba
numba_imported = time.perf_counter()
kernels.load()
loaded = time.perf_counter()
print(f"  records {1000 * (imported - start):.0f} ms, {idle} MB; numba {1000 * (numba_imported - imported):.0f} ms more; "
      f"cached loops {1000 * (loaded - numba_imported):.0f} ms more, {peak()} MB in all")
"""


def main() -> int:
    if not kernels.load():
        print(f"no compiled loops: {kernels.missing_reason()}", file=sys.stderr)
        return 1
    print("import and load, in a separate process:")
    subprocess.run([sys.executable, "-c", LOADING], check=True)
    for has_keys in (False, True):
        table = table_of(has_keys)
        print(f"100-byte values{', 8-byte keys' if has_keys else ''}, one core:")
        for size, count in SHAPES:
            encode_and_decode(table, size, count)
    other_operations(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
