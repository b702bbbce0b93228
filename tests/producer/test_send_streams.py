"""`send_table` with readers, streams and data frames, which are read no faster than rows are sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from chaffinch import EmbeddedBroker, Producer
from chaffinch.errors import InvalidCompactionKeyException
from chaffinch.producer.sender_thread import IDLE_WAIT_MS
from chaffinch.producer.tables import sending
from chaffinch.producer.tables.columns import GATHERED_MS, pieces_of
from chaffinch.records.errors import InvalidColumn
from chaffinch.runtime.clock import ManualClock

LATEST_S = 60
SCHEMA = pa.schema([("key", pa.string()), ("value", pa.binary())])
ROWS: dict[str, list[Any]] = {"key": [f"k{i}" for i in range(100)], "value": [b"v%d" % i for i in range(100)]}


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics={"orders": {"partitions": 3}, "one": {}, "latest": {"cleanup.policy": "compact"}}) as running:
        yield running


@pytest.fixture
def producer(broker: EmbeddedBroker) -> Iterator[Producer]:
    with Producer(bootstrap_servers=broker.bootstrap_servers, linger_ms=1, retry_backoff_ms=10) as made:
        yield made


class Stream:
    """Only the Arrow stream interface: not a pyarrow class that could be recognised."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._data.__arrow_c_stream__(requested_schema)


def batches(count: int, rows: int, value: bytes = b"v") -> Iterator[pa.RecordBatch]:
    for number in range(count):
        keys = [f"{number}-{row}" for row in range(rows)]
        yield pa.record_batch([pa.array(keys), pa.array([value] * rows, pa.binary())], schema=SCHEMA)


def reader(source: Iterator[pa.RecordBatch]) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(SCHEMA, source)


SOURCES: dict[str, Callable[[], Any]] = {
    "pandas": lambda: pd.DataFrame(ROWS),
    "polars": lambda: pl.DataFrame(ROWS),
    "a table": lambda: pa.table(ROWS),
    "a batch": lambda: pa.RecordBatch.from_pydict(ROWS),
    "a reader": lambda: pa.table(ROWS).to_reader(max_chunksize=7),
    "chunked": lambda: pa.concat_tables([pa.table(ROWS).slice(0, 30), pa.table(ROWS).slice(30)]),
    "the interface": lambda: Stream(pa.table(ROWS)),
}


@pytest.mark.parametrize("name", SOURCES)
def test_all_rows_arrive(broker: EmbeddedBroker, producer: Producer, name: str) -> None:
    result = producer.send_table("orders", SOURCES[name]()).result(LATEST_S)
    assert (result.written, result.rejected_count) == (100, 0)
    assert result.offsets.column("row").to_pylist() == list(range(100))
    stored = {(row["partition"], row["offset"]): row["value"] for row in broker.read("orders").to_pylist()}
    for row in result.offsets.to_pylist():
        assert stored[row["partition"], row["offset"]] == b"v%d" % row["row"]


def test_row_numbers_count_through_all_batches(broker: EmbeddedBroker, producer: Producer) -> None:
    table = pa.table({"key": [None if i % 50 == 49 else f"k{i}" for i in range(200)], "value": ["v"] * 200})
    result = producer.send_table("latest", table.to_reader(max_chunksize=30)).result(LATEST_S)
    assert (result.written, result.rejected.column("row").to_pylist()) == (196, [49, 99, 149, 199])
    assert {type(error) for error in result.errors().values()} == {InvalidCompactionKeyException}


def test_stream_rows_stay_in_order(broker: EmbeddedBroker, producer: Producer) -> None:
    producer.send_table("one", reader(batches(50, 20))).result(LATEST_S)
    keys = [key.decode() for key in broker.read("one").column("key").to_pylist()]
    assert keys == [f"{number}-{row}" for number in range(50) for row in range(20)]


def test_small_stream_batches_are_gathered() -> None:
    pieces = list(pieces_of(reader(batches(100, 10)), 10_000)[1])
    assert 1 < len(pieces) < 20
    assert sum(piece.num_rows for piece in pieces) == 1_000


@pytest.mark.parametrize(
    ("pauses_ms", "rows"),
    [
        ([0] * 6, [6]),
        ([1] * 6, [6]),
        ([40] * 6, [3, 3]),
        ([GATHERED_MS] * 3, [1, 1, 1]),
        ([0, 0, GATHERED_MS, 0, 0, 0], [3, 3]),
        ([GATHERED_MS, 0, 0, GATHERED_MS, 0], [1, 3, 1]),
    ],
)
def test_slow_stream_is_gathered_for_a_limited_time(pauses_ms: list[int], rows: list[int]) -> None:
    """Rows are gathered for at most GATHERED_MS; rows that have arrived do not wait for the next batch of the stream."""
    clock = ManualClock()

    def slow() -> Iterator[pa.RecordBatch]:
        for ms, batch in zip(pauses_ms, batches(len(pauses_ms), 1), strict=True):
            clock.advance(ms)
            yield batch

    assert [piece.num_rows for piece in pieces_of(reader(slow()), 1_000_000, clock.steady_ms)[1]] == rows


def test_time_spent_sending_does_not_count_as_slow_stream() -> None:
    """A stream that waits for `buffer.memory` is not slow by itself."""
    clock, rows = ManualClock(), []
    for piece in pieces_of(reader(batches(6, 10)), 200, clock.steady_ms)[1]:
        rows.append(piece.num_rows)
        clock.advance(10 * GATHERED_MS)
    assert rows == [20, 20, 20]


class MovedClock:
    """The clock of the send gate, advanced by `moved_ms`."""

    def __init__(self, clock: Any) -> None:
        self._clock, self.moved_ms = clock, 0

    def steady_ms(self) -> int:
        return int(self._clock.steady_ms()) + self.moved_ms


@pytest.mark.parametrize(("linger_ms", "stored"), [(0, 2), (GATHERED_MS, 2), (60_000, 0)])
def test_rows_of_a_slow_stream_are_sent_before_it_ends(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, linger_ms: int, stored: int
) -> None:
    """They stay stored when Ctrl-C ends the stream."""
    with Producer(bootstrap_servers=broker.bootstrap_servers, linger_ms=linger_ms) as producer:
        producer.partitions_for("one")
        clock = MovedClock(producer._gate.clock)
        monkeypatch.setattr(producer._gate, "clock", clock)
        seen: list[int] = []

        def slow() -> Iterator[pa.RecordBatch]:
            for batch in batches(2, 1):
                clock.moved_ms += GATHERED_MS
                yield batch
            producer.flush(LATEST_S)
            seen.append(broker.read("one").num_rows)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt) as raised:
            producer.send_table("one", reader(slow()))
        assert seen == [stored]
        notes = [f"{stored} rows before this one were handed over and are sent"] if stored else []
        assert getattr(raised.value, "__notes__", []) == notes


def test_stream_is_read_no_faster_than_its_rows_are_sent(broker: EmbeddedBroker) -> None:
    """The stream has 20 times buffer.memory: rows read without an outcome never exceed it by more than three pieces."""
    memory_bytes, piece_bytes = 200_000, 20_000
    furthest = 0
    producer: Producer

    def watched() -> Iterator[pa.RecordBatch]:
        nonlocal furthest
        for number, batch in enumerate(batches(400, 10, bytes(1_000))):
            written = producer.metrics()["record-written-total"]
            furthest = max(furthest, int(number * 10 - written) * 1_000)
            yield batch

    options: dict[str, Any] = {"bootstrap_servers": broker.bootstrap_servers, "buffer_memory": memory_bytes, "batch_size": piece_bytes}
    with Producer(**options) as producer:
        assert producer.send_table("orders", reader(watched())).result(LATEST_S).written == 4_000
    assert 0 < furthest <= memory_bytes + 3 * piece_bytes


def test_failed_stream_error_notes_how_many_rows_are_sent(broker: EmbeddedBroker) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield from batches(5, 10)
        raise OSError("the disk is gone")

    with Producer(bootstrap_servers=broker.bootstrap_servers, batch_size=300) as producer:
        with pytest.raises(OSError, match="the disk is gone") as raised:
            producer.send_table("orders", reader(failing()))
        (note,) = raised.value.__notes__
        count = int(note.split()[0])
        producer.flush(LATEST_S)
        assert broker.read("orders").num_rows == count > 0


@pytest.mark.parametrize("failure", [ValueError("b"), KeyError("k"), KeyboardInterrupt()], ids=type)
def test_stream_that_fails_before_the_first_row_has_no_note(
    producer: Producer, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    monkeypatch.setattr(sending, "GATHERED_MS", 60_000)  # However slow the machine is.

    def failing() -> Iterator[pa.RecordBatch]:
        yield from batches(5, 10)
        raise failure

    with pytest.raises(type(failure)) as raised:
        producer.send_table("orders", reader(failing()))
    assert raised.value is failure
    assert not hasattr(failure, "__notes__")


@pytest.mark.parametrize("sends_tables", [True, False])
def test_ctrl_c_before_the_wakeup_does_not_delay_later_records(
    producer: Producer, monkeypatch: pytest.MonkeyPatch, sends_tables: bool
) -> None:
    """A later record joins the batch and does not wake the sender thread: it would wait until that thread checks by itself."""

    def send(value: bytes) -> Future[Any]:
        return producer.send_table("one", pa.table({"value": [value]})) if sends_tables else producer.send("one", value, partition=0)

    send(b"before").result(LATEST_S)
    wakeup, interrupts = producer._sender.wakeup, [KeyboardInterrupt()]

    def interrupted_wakeup() -> None:
        if interrupts:
            raise interrupts.pop()
        wakeup()

    monkeypatch.setattr(producer._sender, "wakeup", interrupted_wakeup)
    with pytest.raises(KeyboardInterrupt):
        send(b"interrupted")
    assert send(b"after").result(IDLE_WAIT_MS / 2_000) is not None


def test_table_is_sent_in_pieces(broker: EmbeddedBroker) -> None:
    """The first rows are sent before the last ones are partitioned; if one of those raises, a note says so."""

    def refuses_the_last(topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        if value == b"last":
            raise OSError("no partition for this")
        return 0

    values = [b"v%04d" % index for index in range(400)]
    with Producer(bootstrap_servers=broker.bootstrap_servers, batch_size=300, partitioner=refuses_the_last) as producer:
        with pytest.raises(OSError, match="no partition for this") as raised:
            producer.send_table("one", pa.table({"value": [*values, b"last"]}))
        count = int(raised.value.__notes__[-1].split()[0])
        producer.flush(LATEST_S)
        assert broker.read("one").column("value").to_pylist() == values[:count]
        assert count > 300


def test_empty_stream_writes_nothing(producer: Producer) -> None:
    assert producer.send_table("orders", reader(iter(()))).result(LATEST_S).written == 0


def test_invalid_column_is_reported_before_rows_are_read(producer: Producer) -> None:
    def never() -> Iterator[pa.RecordBatch]:
        raise AssertionError("this was read")
        yield

    with pytest.raises(InvalidColumn, match="vals"):
        producer.send_table("orders", pa.RecordBatchReader.from_batches(pa.schema([("vals", pa.string())]), never()))


@pytest.mark.parametrize("given", [None, [1], {"value": [b"v"]}, "rows.csv"], ids=str)
def test_non_table_raises_type_error(producer: Producer, given: object) -> None:
    with pytest.raises(TypeError, match="__arrow_c_stream__"):
        producer.send_table("orders", given)


BEYOND = {"value": ["a", "b"], "partition": [0, 2**70]}


@pytest.mark.parametrize(
    "frame", [pd.DataFrame(BEYOND), pl.DataFrame(BEYOND, schema={"value": pl.String, "partition": pl.Int128})], ids=type
)
def test_integer_beyond_arrow_types_is_refused(producer: Producer, frame: Any) -> None:
    with pytest.raises(InvalidColumn, match=r"column 'partition' is .*; allowed: whole numbers from 0 to 2147483647, or null"):
        producer.send_table("orders", frame)


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
def test_column_of_empty_headers_is_accepted(broker: EmbeddedBroker, producer: Producer, make: Any) -> None:
    assert producer.send_table("one", make({"value": ["a", "b"], "headers": [[], []]})).result(LATEST_S).written == 2
    assert broker.read("one").column("headers").to_pylist() == [[], []]


@pytest.mark.parametrize("single", [pd.Series(["a"], name="value"), pl.Series("value", ["a"]), pa.chunked_array([["a"]])], ids=type)
def test_single_column_is_refused(producer: Producer, single: Any) -> None:
    with pytest.raises(TypeError, match=f"argument table must be a pyarrow Table.*, not a {type(single).__name__}$"):
        producer.send_table("orders", single)


def test_lazy_frame_is_refused_with_collect_advice(producer: Producer) -> None:
    with pytest.raises(TypeError, match=r"not a LazyFrame; write table\.collect\(\)$"):
        producer.send_table("orders", pl.LazyFrame(ROWS))


@pytest.mark.parametrize("dtype", [pl.Categorical, pl.Enum(["one", "orders"])], ids=["Categorical", "Enum"])
def test_polars_categories_are_accepted(broker: EmbeddedBroker, producer: Producer, dtype: Any) -> None:
    """In more than one chunk."""
    names = pl.Series(["one", "orders", None], dtype=dtype)
    frame = pl.DataFrame({"key": names, "value": names, "topic": names})
    assert producer.send_table("orders", pl.concat([frame, frame], rechunk=False)).result(LATEST_S).written == 6
    assert [row["key"] for row in broker.read("one").to_pylist()] == [b"one"] * 2
    assert sorted(str(row["value"]) for row in broker.read("orders").to_pylist()) == ["None"] * 2 + ["b'orders'"] * 2


@pytest.mark.parametrize("name", ["value", "key", "headers"])
def test_polars_object_column_is_refused(producer: Producer, name: str) -> None:
    frame = pl.DataFrame({"value": pl.Series(["one"]), name: pl.Series([object()], dtype=pl.Object)})
    with pytest.raises(InvalidColumn, match=f"column '{name}' is of Python objects"):
        producer.send_table("orders", frame)


def test_pandas_index_column_is_refused_with_advice(producer: Producer) -> None:
    frame = pd.DataFrame({"value": ["one", "two", "three", "four"]})
    filtered = frame[frame["value"].isin(["one", "two", "four"])]
    with pytest.raises(InvalidColumn, match=r"is the index of a data frame, which reset_index\(drop=True\) leaves out; allowed: "):
        producer.send_table("orders", filtered)
    assert producer.send_table("orders", filtered.reset_index(drop=True)).result(LATEST_S).written == 3


@pytest.mark.parametrize(
    ("names", "twice", "seen"),
    [
        (["value", "key", "key"], "key", "given twice"),
        (["value", "value", "key"], "value", "given twice"),
        (["value", "x", "x"], "x", "unknown"),
    ],
)
@pytest.mark.parametrize("kind", ["pandas", "pyarrow"])
def test_duplicate_column_is_named(producer: Producer, kind: str, names: list[str], twice: str, seen: str) -> None:
    """pandas allows it, and fails to make an Arrow table of it, whatever the types are."""
    frame = pd.DataFrame([["one", "two", "three"]], columns=names) if kind == "pandas" else pa.table([["one"]] * 3, names=names)
    with pytest.raises(InvalidColumn, match=f"column '{twice}' is {seen}; allowed: one each of key, value,"):
        producer.send_table("orders", frame)


EMPTY = {
    "pandas": lambda names: pd.DataFrame({name: [] for name in names}),
    "polars": lambda names: pl.DataFrame({name: [] for name in names}),
    "pyarrow": lambda names: pa.table({name: pa.array([], pa.float64()) for name in names}),
    "a reader": lambda names: pa.table({name: pa.array([], pa.float64()) for name in names}).to_reader(),
}


@pytest.mark.parametrize("make", EMPTY.values(), ids=EMPTY)
def test_empty_table_checks_names_but_not_types(producer: Producer, make: Any) -> None:
    assert producer.send_table("orders", make(["value", "partition", "topic", "timestamp", "headers"])).result(LATEST_S).row_count == 0
    for names, column in ((["value", "vals"], "vals"), (["key"], "value"), ([], "value")):
        with pytest.raises(InvalidColumn, match=f"column '{column}' is"):
            producer.send_table("orders", make(names))
    with pytest.raises(InvalidColumn, match="column 'topic' is missing"):
        producer.send_table(None, make(["value"]))
