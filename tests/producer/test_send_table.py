"""`send_table`: every row is written or rejected, one by one; partitions, topics, order and back-pressure as with `send`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from chaffinch import EmbeddedBroker, Producer
from chaffinch.admin.configs import alter_topic_configs
from chaffinch.admin.options import connect
from chaffinch.admin.topics import add_partitions
from chaffinch.errors import (
    IllegalStateException,
    InvalidCompactionKeyException,
    NetworkException,
    RecordTooLargeException,
    Stored,
    TransactionAbortableException,
)
from chaffinch.producer.core.batches.accumulator import Accumulator
from chaffinch.producer.core.partitioner import partition_of_key
from chaffinch.producer.core.refusals.screening import Screening
from chaffinch.records.columns import RECORD_BYTES_MIN, RecordColumns
from chaffinch.records.errors import InvalidColumn
from tests.producer.threads import blocked_sender

TOPICS: dict[str, dict[str, Any]] = {
    "orders": {"partitions": 3},
    "wide": {"partitions": 100},
    "latest": {"partitions": 2, "cleanup.policy": "compact"},
    "one": {"partitions": 1},
}


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics=TOPICS) as running:
        yield running


@pytest.fixture
def producer(broker: EmbeddedBroker) -> Iterator[Producer]:
    with Producer(bootstrap_servers=broker.bootstrap_servers, linger_ms=1, retry_backoff_ms=10) as made:
        yield made


def table(count: int, **more: Any) -> pa.Table:
    keys, values = [b"k%d" % i for i in range(count)], [b"v%d" % i for i in range(count)]
    return pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary()), **more})


def test_every_row_is_stored_at_its_offset(broker: EmbeddedBroker, producer: Producer) -> None:
    result = producer.send_table("orders", table(5000)).result(60)
    assert (result.written, result.rejected_count, result.rejected.num_rows) == (5000, 0, 0)
    assert result.offsets.column("row").to_pylist() == list(range(5000))
    stored = {(row["partition"], row["offset"]): row for row in broker.read("orders").to_pylist()}
    for row in result.offsets.to_pylist():
        found = stored.pop((row["partition"], row["offset"]))
        assert (found["key"], found["value"]) == (b"k%d" % row["row"], b"v%d" % row["row"])
        assert row["partition"] == partition_of_key(found["key"], 3)
    assert not stored


def test_only_the_first_waiting_batch_of_a_partition_wakes_the_sender(producer: Producer, monkeypatch: pytest.MonkeyPatch) -> None:
    producer.partitions_for("orders")
    woken, wakeup = 0, producer._sender.wakeup

    def counted() -> None:
        nonlocal woken
        woken += 1
        wakeup()

    monkeypatch.setattr(producer._sender, "wakeup", counted)
    with blocked_sender(producer):
        future = producer.send_table("orders", pa.table({"value": [b"v" * 100_000] * 100}))
    assert future.result(60).written == 100
    assert woken == TOPICS["orders"]["partitions"]


def test_rows_of_a_partition_stay_in_order(broker: EmbeddedBroker, producer: Producer) -> None:
    producer.send_table("orders", table(20_000)).result(60)
    by_partition: dict[int, list[int]] = {}
    for row in broker.read("orders").to_pylist():
        by_partition.setdefault(row["partition"], []).append(int(row["value"][1:]))
    assert all(numbers == sorted(numbers) for numbers in by_partition.values())
    assert sum(map(len, by_partition.values())) == 20_000


def test_all_columns_are_stored(broker: EmbeddedBroker, producer: Producer) -> None:
    header_type = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = pa.table(
        {
            "value": ["a", "b", None],
            "key": ["k", None, "m"],
            "timestamp": pa.array([1_700_000_000_000, None, 1_700_000_000_001], pa.timestamp("ms")),
            "headers": pa.array([[{"key": "h", "value": b"1"}], [], None], header_type),
            "partition": pa.array([2, 0, None], pa.int32()),
            "topic": ["one-more", "orders", None],
        }
    )
    broker.create_topic("one-more", 3)
    result = producer.send_table("orders", rows).result(60)
    assert result.written == 3
    (first,) = broker.read("one-more").to_pylist()
    assert (first["partition"], first["key"], first["value"], first["headers"]) == (2, b"k", b"a", [{"key": "h", "value": b"1"}])
    others = {row["value"]: row for row in broker.read("orders").to_pylist()}
    assert (others[b"b"]["partition"], others[b"b"]["key"]) == (0, None)
    assert (others[None]["partition"], others[None]["key"]) == (partition_of_key(b"m", 3), b"m")


def test_culprits_are_rejected_with_their_reason(broker: EmbeddedBroker, producer: Producer) -> None:
    bad = {7, 500, 999}
    keys = [None if i in bad else b"k%d" % i for i in range(1000)]
    result = producer.send_table("latest", pa.table({"key": keys, "value": [b"v"] * 1000})).result(60)
    assert result.written == 997
    assert result.rejected.column("row").to_pylist() == sorted(bad)
    assert set(result.rejected.column("error").to_pylist()) == {"INVALID_COMPACTION_KEY"}
    assert set(result.rejected.column("group").to_pylist()) == {"InvalidConfiguration"}
    assert set(result.rejected.column("stored").to_pylist()) == {"no"}
    assert isinstance(result.errors()[7], InvalidCompactionKeyException)
    assert set(result.offsets.column("row").to_pylist()) == set(range(1000)) - bad
    assert broker.read("latest").num_rows == 997


def test_rows_like_refused_ones_are_not_sent(broker: EmbeddedBroker) -> None:
    bad = set(range(0, 20_000, 100))
    rows = pa.table({"key": [None if i in bad else b"k%d" % i for i in range(20_000)], "value": [b"%d" % i for i in range(20_000)]})
    with Producer(bootstrap_servers=broker.bootstrap_servers, batch_size=4096) as producer:
        result = producer.send_table("latest", rows).result(60)
        metrics = producer.metrics()
    messages = result.rejected.column("message").to_pylist()
    unsent = [message for message in messages if "was not sent, because it has no key" in message]
    assert len(unsent) == metrics["record-screened-total"] > 0
    refused = [message for message in messages if message not in unsent]
    words = {message.partition(" ms earlier: ")[2] for message in unsent}
    assert all(word and any(word in message for message in refused) for word in words), "each has the text of a refusal"
    assert result.rejected.column("row").to_pylist() == sorted(bad)
    assert set(result.rejected.column("error").to_pylist()) == {"INVALID_COMPACTION_KEY"}
    assert metrics["record-error-total"] == len(bad)
    stored = {(row["partition"], row["offset"]): row["value"] for row in broker.read("latest").to_pylist()}
    assert len(stored) == result.written == 20_000 - len(bad)
    for row in result.offsets.to_pylist():
        assert stored[row["partition"], row["offset"]] == b"%d" % row["row"]


def test_screened_rows_are_not_encoded(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that could only be sent later because memory is short; batches that wait lose none here."""
    monkeypatch.setattr(Screening, "errors_of", lambda *_: None)
    keys = [None if row % 100 == 0 else b"k%d" % row for row in range(20_000)]
    with Producer(bootstrap_servers=broker.bootstrap_servers, batch_size=4096, buffer_memory=16_384) as producer:
        result = producer.send_table("latest", pa.table({"key": keys, "value": [b"%d" % row for row in range(20_000)]})).result(60)
        metrics = producer.metrics()
    unsent = {row: error for row, error in result.errors().items() if "was not sent, because it has no key" in error.message}
    assert len(unsent) == metrics["record-screened-total"] > 0
    assert all(error.message.startswith(f"row {row} for latest-") and error.stored is Stored.NO for row, error in unsent.items())
    assert sorted(result.errors()) == list(range(0, 20_000, 100))
    assert metrics["record-error-total"] == 200
    assert sorted(int(row["value"]) for row in broker.read("latest").to_pylist()) == [row for row in range(20_000) if row % 100]


def test_configuration_changed_before_the_call_applies(broker: EmbeddedBroker, producer: Producer) -> None:
    rows = pa.table({"value": [b"v"] * 10})
    with connect(bootstrap_servers=broker.bootstrap_servers) as client:
        assert producer.send_table("latest", rows).result(60).rejected_count == 10
        alter_topic_configs(client, "latest", changed={"cleanup.policy": "delete"})

        def is_changed() -> bool:
            with Producer(bootstrap_servers=broker.bootstrap_servers) as another:
                return another.send_table("latest", rows).result(60).written == 10

        assert any(is_changed() for _ in range(1000)), "Apache Kafka applies it a moment after its response"
        assert producer.send_table("latest", rows).result(60).written == 10


def test_all_rows_rejected_and_empty_table(broker: EmbeddedBroker, producer: Producer) -> None:
    result = producer.send_table("latest", pa.table({"value": [b"v"] * 10})).result(60)
    assert (result.written, result.rejected.num_rows, result.offsets.num_rows) == (0, 10, 0)
    empty = producer.send_table("latest", table(0)).result(60)
    assert (empty.written, empty.rejected.num_rows) == (0, 0)


def test_unsendable_rows_are_rejected_by_reason(broker: EmbeddedBroker, producer: Producer, monkeypatch: pytest.MonkeyPatch) -> None:
    producer.partitions_for("one")
    monkeypatch.setattr(producer._gate, "_block_ms", 1)  # Do not wait for a partition that may still be created.
    rows = pa.table(
        {
            "value": pa.array([b"ok", bytes(1_100_000), b"early", b"beyond", b"ok too"], pa.binary()),
            "timestamp": pa.array([1, 1, -5, 1, 1], pa.int64()),
            "partition": pa.array([0, 0, 0, 9, 0], pa.int64()),
        }
    )
    result = producer.send_table("one", rows).result(60)
    assert result.written == 2
    assert [(row["row"], row["error"]) for row in result.rejected.to_pylist()] == [
        (1, "MESSAGE_TOO_LARGE"),
        (2, "INVALID_TIMESTAMP"),
        (3, "UNKNOWN_TOPIC_OR_PARTITION"),
    ]
    assert isinstance(result.errors()[1], RecordTooLargeException)
    assert "there is no partition 9" in str(result.errors()[3])


def test_table_larger_than_buffer_memory_is_sent(broker: EmbeddedBroker) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers, buffer_memory=100_000) as producer:
        result = producer.send_table("orders", pa.table({"value": [bytes(1000)] * 2000})).result(60)
        assert result.written == 2000
        assert producer.metrics()["buffer-available-bytes"] == producer.metrics()["buffer-total-bytes"]
    assert broker.read("orders").num_rows == 2000


def test_row_larger_than_buffer_memory_fails_at_once(broker: EmbeddedBroker) -> None:
    """As with `send`: neither waiting nor retrying would help."""
    with Producer(bootstrap_servers=broker.bootstrap_servers, buffer_memory=100_000) as producer:
        error = producer.send("one", bytes(200_000)).exception(60)
        result = producer.send_table("one", pa.table({"value": [b"a", bytes(200_000), b"c"]})).result(60)
    assert (result.written, result.rejected_count) == (2, 1)
    for each_error in (error, result.errors()[1]):
        assert isinstance(each_error, RecordTooLargeException)
        assert "buffer.memory allows 100000" in each_error.message


class TopicGrowingPartitioner:
    """Leaves all partitions to the producer, and adds partitions to the topic during its first call."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = broker
        self.counts: list[int] = []
        self.producer: Producer

    def __call__(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int | None:
        raise AssertionError("only called for tables")

    def for_columns(self, topic: str, columns: RecordColumns, partition_count: int) -> npt.NDArray[np.int64]:
        if not self.counts:
            with connect(bootstrap_servers=self._broker.bootstrap_servers) as client:
                add_partitions(client, topic, 4)
            self.producer.send(topic, b"here now", partition=3).result(60)
        self.counts.append(partition_count)
        return np.full(columns.count, -1)


def test_topic_grows_while_a_table_is_sent(broker: EmbeddedBroker) -> None:
    rule = TopicGrowingPartitioner(broker)
    with Producer(bootstrap_servers=broker.bootstrap_servers, partitioner=rule, batch_size=5000) as producer:
        rule.producer = producer
        result = producer.send_table("one", pa.table({"value": [bytes(100)] * 500})).result(60)
    assert (result.written, result.rejected_count) == (500, 0)
    assert (rule.counts[0], set(rule.counts[1:])) == (1, {4})


def test_batches_have_at_most_batch_size_bytes(broker: EmbeddedBroker) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers, batch_size=5000) as producer:
        producer.send_table("one", table(1000)).result(60)
        metrics = producer.metrics()
    assert metrics["outgoing-byte-total"] / metrics["batch-send-total"] <= 5000
    assert metrics["batch-send-total"] > 3


def test_rows_without_a_key_use_all_partitions(broker: EmbeddedBroker) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers, batch_size=10_000) as producer:
        producer.send_table("orders", pa.table({"value": [bytes(100)] * 3000})).result(60)
    counts = np.bincount(broker.read("orders").column("partition").to_numpy())
    assert counts.min() > 500


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("rest", ["small", "larger than a batch", "too large", "before 1970"])
def test_rows_without_a_key_fill_batches_around_large_rows(broker: EmbeddedBroker, codec: str, rest: str) -> None:
    """Rows after a large one are measured first, and each goes to the batch that it would have joined otherwise."""
    sizes = {"small": 100, "larger than a batch": 15_000, "too large": 40_000, "before 1970": 100}
    values = [b"%06d" % row + bytes(sizes[rest] if row in (700, 701, 1400) else 100) for row in range(2000)]
    times = [-5 if rest == "before 1970" and row in (700, 701, 1400) else 7 for row in range(2000)]
    rows = pa.table({"value": pa.array(values, pa.binary()), "timestamp": pa.array(times, pa.int64())})
    options: dict[str, Any] = {"batch_size": 10_000, "max_request_size": 20_000, "compression_type": codec}
    with Producer(bootstrap_servers=broker.bootstrap_servers, **options) as producer:
        result = producer.send_table("orders", rows).result(60)
        batch_count = producer.metrics()["batch-send-total"]
    refused = [700, 701, 1400] if rest in ("too large", "before 1970") else []
    assert result.rejected.column("row").to_pylist() == refused
    written = result.offsets.to_pylist()
    assert [row["row"] for row in written] == [row for row in range(2000) if row not in refused]
    stored = {(row["partition"], row["offset"]): row["value"] for row in broker.read("orders").to_pylist()}
    assert [stored[row["partition"], row["offset"]] for row in written] == [values[row["row"]] for row in written]
    in_order = sorted(written, key=lambda row: (row["partition"], row["offset"]))
    assert all(one["row"] < other["row"] for one, other in pairwise(in_order) if one["partition"] == other["partition"])
    assert batch_count < 40, "nearly all are full"


def test_cost_of_a_batch_does_not_depend_on_remaining_rows(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time to slice rows with headers grows with the number of rows."""
    counts: list[int] = []
    encode = Accumulator.encode_first_rows

    def recording_encode(accumulator: Accumulator, columns: RecordColumns, size_max: int) -> tuple[bytearray, int]:
        counts.append(columns.count)
        return encode(accumulator, columns, size_max)

    monkeypatch.setattr(Accumulator, "encode_first_rows", recording_encode)
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = pa.table({"value": [bytes(100)] * 5000, "headers": pa.array([[{"key": "a", "value": b"b"}]] * 5000, kind)})
    with Producer(bootstrap_servers=broker.bootstrap_servers, batch_size=3000) as producer:
        assert producer.send_table("wide", rows).result(60).written == 5000
    assert len(counts) > 100, "small batches, many in one piece of the table"
    assert max(counts) <= 3000 // RECORD_BYTES_MIN + 1


def test_table_follows_records_sent_before(broker: EmbeddedBroker, producer: Producer) -> None:
    before = producer.send("one", b"before")
    producer.send_table("one", table(10)).result(60)
    after = producer.send("one", b"after")
    assert (before.result(60).offset, after.result(60).offset) == (0, 11)


@pytest.mark.parametrize(
    ("rows", "column"),
    [
        (pa.table({"key": [b"k"]}), "value"),
        (pa.table({"value": [1.5]}), "value"),
        (pa.table({"value": [b"v"], "colour": ["red"]}), "colour"),
        (pa.table({"value": [b"v"], "partition": ["0"]}), "partition"),
        (pa.table({"value": [b"v"], "partition": [-1]}), "partition"),
        (pa.table({"value": [b"v"], "topic": [5]}), "topic"),
    ],
)
def test_invalid_columns_raise_at_the_call(producer: Producer, rows: pa.Table, column: str) -> None:
    with pytest.raises(ValueError, match=f"column '{column}' is "):
        producer.send_table("orders", rows)


@pytest.mark.parametrize(
    ("partitions", "seen"),
    [
        (pa.array([0, 2**31, 1]), "int64 with 2147483648 in row 1"),
        (pa.array([0, 2**64 - 1, 1], pa.uint64()), "uint64 with 18446744073709551615 in row 1"),
        (pa.array([0, None, -2], pa.int8()), "int8 with -2 in row 2"),
        (pa.chunked_array([[0], [None, 1], [-1, 5]]), "int64 with -1 in row 3"),
    ],
    ids=str,
)
def test_invalid_partition_number_names_its_row(producer: Producer, partitions: Any, seen: str) -> None:
    rows = pa.table({"value": [b"v"] * len(partitions), "partition": partitions})
    with pytest.raises(InvalidColumn) as raised:
        producer.send_table("nowhere", rows)
    assert str(raised.value) == f"column 'partition' is {seen}; allowed: whole numbers from 0 to 2147483647, or null"


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("timestamp", pa.array([0] * 99 + [2**62], pa.int64()).cast(pa.timestamp("s"))),
        (
            "headers",
            pa.array([[]] * 99 + [[{"key": None, "value": b"h"}]], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ),
        ("partition", pa.array([0] * 99 + [-1])),
        ("topic", pa.array(["one"] * 99 + [None])),
    ],
    ids=["timestamp", "headers", "partition", "topic"],
)
def test_invalid_last_row_raises_before_the_first_is_sent(broker: EmbeddedBroker, column: str, values: Any) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers, batch_size=200) as producer:
        with pytest.raises(InvalidColumn, match=column) as raised:
            producer.send_table("one" if column != "topic" else None, pa.table({"value": [b"v" * 100] * 100, column: values}))
        assert not hasattr(raised.value, "__notes__")
    assert broker.read("one").num_rows == 0


def test_table_of_many_chunks_is_sent_in_order(broker: EmbeddedBroker) -> None:
    """Rows are converted in pieces that do not depend on the chunks."""
    values = [None if index % 7 == 0 else b"%d" % index for index in range(3000)]
    chunks = [pa.array(values[start : start + 130], pa.binary()) for start in range(0, 3000, 130)]
    with Producer(bootstrap_servers=broker.bootstrap_servers, batch_size=500) as small:
        result = small.send_table("one", pa.table({"value": pa.chunked_array(chunks)})).result(60)
    assert result.offsets.column("offset").to_pylist() == list(range(3000))
    assert broker.read("one").column("value").to_pylist() == values


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda values: values,
    "view": lambda values: values.cast(pa.string_view()),
    "dictionary": lambda values: values.dictionary_encode(),
    "dictionary of views": lambda values: pa.DictionaryArray.from_arrays(pa.array(range(len(values))), values.cast(pa.string_view())),
}


@pytest.mark.parametrize("is_reader", [False, True], ids=["sliced", "reader"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_batches_are_full_for_every_arrow_layout(broker: EmbeddedBroker, layout: str, is_reader: bool) -> None:
    """A slice of views or of a dictionary refers to the bytes of all rows, which must not count as its own."""
    values = LAYOUTS[layout](pa.array([f"a value of some length, number {row:020}" for row in range(50_000)]))
    rows = pa.table({"value": values}).slice(20_000, 5_000)
    with Producer(bootstrap_servers=broker.bootstrap_servers, batch_size=50_000) as producer:
        source = rows.to_reader(max_chunksize=100) if is_reader else rows
        assert producer.send_table("one", source).result(60).written == 5_000
        # 300 kB: six full batches, and a remainder in each piece.
        assert 6 <= producer.metrics()["batch-send-total"] <= 14


def test_all_null_columns_are_accepted(broker: EmbeddedBroker, producer: Producer) -> None:
    rows = pa.table({"value": [b"v"], "partition": pa.nulls(1), "topic": pa.nulls(1)})
    assert producer.send_table("one", rows).result(60).written == 1


def test_unknown_column_error_lists_all_columns(producer: Producer) -> None:
    with pytest.raises(InvalidColumn, match="one each of key, value, timestamp, headers, partition, topic"):
        producer.send_table("orders", pa.table({"value": [b"v"], "keey": [b"k"]}))


def test_too_large_row_error_names_the_option_value(producer: Producer) -> None:
    result = producer.send_table("orders", pa.table({"key": [b"k"], "value": [b"v" * 2_000_000]})).result(timeout=30)
    assert "max.request.size allows 1048576" in result.rejected.column("message")[0].as_py()


def test_row_without_a_topic_raises(producer: Producer) -> None:
    with pytest.raises(InvalidColumn, match="'topic' is null in row 1; allowed: a string in each row"):
        producer.send_table(None, pa.table({"value": [b"v"] * 2, "topic": pa.array(["one", None], pa.string())}))
    with pytest.raises(InvalidColumn, match="topic"):
        producer.send_table(None, table(1))


def test_list_instead_of_a_table_raises(producer: Producer) -> None:
    with pytest.raises(TypeError, match="table"):
        producer.send_table("orders", [b"v"])


def test_record_batch_and_arrow_stream_are_accepted(broker: EmbeddedBroker, producer: Producer) -> None:
    class Stream:
        def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
            return table(3).__arrow_c_stream__(requested_schema)

    assert producer.send_table("orders", table(4).to_batches()[0]).result(60).written == 4
    assert producer.send_table("orders", Stream()).result(60).written == 3


def test_unknown_topic_rejects_only_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        EmbeddedBroker(topics=TOPICS, config={"auto.create.topics.enable": False}) as strict,
        Producer(bootstrap_servers=strict.bootstrap_servers) as producer,
    ):
        producer.partitions_for("orders")
        monkeypatch.setattr(producer._gate, "_block_ms", 1)
        rows = pa.table({"value": [b"a", b"b"], "topic": ["nowhere", "orders"]})
        result = producer.send_table(None, rows).result(60)
    assert result.rejected.column("topic").to_pylist() == ["nowhere"]
    assert result.written == 1


def test_refused_connection_rejects_all_rows() -> None:
    with Producer(bootstrap_servers="127.0.0.1:1", max_block_ms=50) as producer:
        # On a busy machine even the refusal may take all that time.
        results = (producer.send_table("orders", table(3)).result(60) for _ in range(100))
        result = next(result for result in results if result.errors()[0].__cause__ is not None)
    assert result.rejected.num_rows == 3
    assert isinstance(result.errors()[0].__cause__, NetworkException)


def test_table_in_a_transaction(broker: EmbeddedBroker) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="t") as producer:
        producer.init_transactions()
        with pytest.raises(IllegalStateException):
            producer.send_table("orders", table(1))
        with producer.transaction():
            future = producer.send_table("orders", table(100))
        assert future.result(0).written == 100
        producer.begin_transaction()
        failed = producer.send_table("latest", pa.table({"key": [b"k", None], "value": [b"v", b"v"], "partition": [0, 0]}))
        with pytest.raises(InvalidCompactionKeyException):
            producer.commit_transaction()
        assert isinstance(failed.result(60).errors()[0], TransactionAbortableException)
        producer.abort_transaction()
    assert broker.read("orders").num_rows == 100
    assert broker.read("latest").num_rows == 0


@pytest.mark.parametrize("action", ["drop_before", "drop_after"])
def test_lost_connections_lose_and_duplicate_no_rows(
    broker: EmbeddedBroker, producer: Producer, action: Literal["drop_before", "drop_after"]
) -> None:
    broker.faults.add(api="Produce", action=action, count=3)
    result = producer.send_table("orders", table(3000)).result(60)
    assert result.written == 3000
    assert sorted(broker.read("orders").column("value").to_pylist()) == sorted(b"v%d" % i for i in range(3000))
