"""Reading partitions as columns: the same records as the log holds, in order, within bounds; and what is said of what cannot be read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chaffinch import EmbeddedBroker, Producer
from chaffinch.admin import offsets, options, topics
from chaffinch.admin.reading import RecordReader
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import CorruptRecordException, OffsetOutOfRangeException, TimeoutException, UnknownTopicOrPartitionException
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from chaffinch.protocol.schema import Message
from chaffinch.records import batch
from chaffinch.records.columns import RecordColumns
from chaffinch.runtime.clock import ManualClock
from tests.client.scripted_server import ScriptedServer

PLACES = [TopicPartition("orders", number) for number in range(3)]
COUNT = 300


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    """Records of two transactions, one aborted, and of a producer without, in small batches over three partitions."""
    with EmbeddedBroker(topics={"orders": {"partitions": 3}}) as running:
        servers = running.bootstrap_servers
        with (
            Producer(bootstrap_servers=servers, batch_size=200) as plain,
            Producer(bootstrap_servers=servers, transactional_id="t") as bound,
        ):
            bound.init_transactions()
            for is_committed in (True, False):
                bound.begin_transaction()
                for number in range(COUNT):
                    bound.send("orders", b"t%d %r" % (number, is_committed), partition=number % 3)
                    plain.send("orders", b"p%d" % number, partition=number % 3, key=b"k" if number % 2 else None, headers=[("h", b"x")])
                plain.flush()
                bound.flush()
                if is_committed:
                    bound.commit_transaction()
                else:
                    bound.abort_transaction()
        yield running


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[SyncClient]:
    with options.connect(bootstrap_servers=broker.bootstrap_servers) as connected:
        yield connected


def read(reader: RecordReader) -> dict[TopicPartition, list[tuple[int, bytes | None]]]:
    found: dict[TopicPartition, list[tuple[int, bytes | None]]] = {place: [] for place in PLACES}
    for place, columns in reader:
        assert columns.offsets is not None
        found[place] += [(int(columns.offsets[index]), columns.value(index)) for index in range(len(columns))]
    return found


def stored(broker: EmbeddedBroker, isolation: offsets.Isolation) -> dict[TopicPartition, list[tuple[int, bytes | None]]]:
    found: dict[TopicPartition, list[tuple[int, bytes | None]]] = {place: [] for place in PLACES}
    for row in broker.read("orders", isolation).to_pylist():
        found[TopicPartition("orders", row["partition"])].append((row["offset"], row["value"]))
    return found


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("bytes_max", [1, 300, 4 << 20])
def test_reads_all_records(broker: EmbeddedBroker, client: SyncClient, isolation: offsets.Isolation, bytes_max: int) -> None:
    settings = options.READING_TABLE.parse(
        {"bootstrap.servers": "x", "isolation.level": isolation, "max.partition.fetch.bytes": bytes_max, "fetch.max.bytes": 3 * bytes_max}
    )
    ends = offsets.latest(client, PLACES, isolation=isolation)
    reader = RecordReader(client, offsets.earliest(client, PLACES), ends=ends, settings=settings)
    assert read(reader) == stored(broker, isolation)
    assert reader.positions == ends


SETTINGS = options.READING_TABLE.parse({"bootstrap.servers": "x", "fetch.max.wait.ms": 10})


@pytest.mark.parametrize("limit", [1, 7, 100, 10_000])
def test_records_max_limits_the_records(broker: EmbeddedBroker, client: SyncClient, limit: int) -> None:
    """`positions` are where the next reader goes on: nothing is read twice or left out."""
    ends = offsets.latest(client, PLACES)
    first = RecordReader(client, offsets.earliest(client, PLACES), ends=ends, settings=SETTINGS, records_max=limit)
    before = read(first)
    after = read(RecordReader(client, first.positions, ends=ends, settings=SETTINGS))
    assert sum(map(len, before.values())) == min(limit, sum(map(len, stored(broker, "read_committed").values())))
    assert {place: before[place] + after[place] for place in PLACES} == stored(broker, "read_committed")


def test_from_the_middle_of_a_batch_to_the_middle_of_another(broker: EmbeddedBroker, client: SyncClient) -> None:
    starts, ends = dict.fromkeys(PLACES, 5), dict.fromkeys(PLACES, 133)
    expected = {place: [row for row in rows if 5 <= row[0] < 133] for place, rows in stored(broker, "read_committed").items()}
    assert read(RecordReader(client, starts, ends=ends, settings=SETTINGS)) == expected


def test_missing_offset_is_out_of_range(client: SyncClient) -> None:
    with pytest.raises(OffsetOutOfRangeException, match="offset 999999 does not exist") as raised:
        read(RecordReader(client, {PLACES[1]: 999_999}, ends=None, settings=SETTINGS))
    assert raised.value.topic_partition == PLACES[1]


def test_recreated_topic_is_out_of_range_and_has_no_position(broker: EmbeddedBroker) -> None:
    """Records of the new one lie before that offset, too."""
    place = TopicPartition("renewed", 0)

    def create() -> None:
        broker.create_topic("renewed", 1)
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            for number in range(10):
                producer.send("renewed", b"%d" % number).result(60)

    settings = options.READING_TABLE.parse({"bootstrap.servers": "x", "max.partition.fetch.bytes": 1, "fetch.max.wait.ms": 10})
    with options.connect(bootstrap_servers=broker.bootstrap_servers) as client:
        create()
        reader = RecordReader(client, {place: 0, PLACES[0]: 0}, ends=None, settings=settings)
        records = iter(reader)
        assert any(read_of == place for read_of, _ in records)
        topics.delete_topics(client, ["renewed"])
        create()
        with pytest.raises(OffsetOutOfRangeException, match="created again: offset 1 belongs to the previous topic"):
            list(records)
        assert list(reader.positions) == [PLACES[0]]


def test_missing_topic_is_unknown(client: SyncClient) -> None:
    with pytest.raises(UnknownTopicOrPartitionException):
        read(RecordReader(client, {TopicPartition("ordres", 0): 0}, ends=None, settings=SETTINGS))


def answering(records: bytes, clock: ManualClock | None = None) -> ScriptedServer:
    """A server whose partition orders-0 holds `records`; each answer takes 400 ms of `clock`."""

    def script(server: ScriptedServer, message: Message) -> Message | None:
        if not isinstance(message, FetchRequest):
            return None
        if clock is not None:
            clock.advance(400)
        data = PartitionData(partition_index=0, error_code=0, high_watermark=10, records=records)
        return FetchResponse(responses=[FetchableTopicResponse(topic="orders", partitions=[data])])

    return ScriptedServer(script)


def damaged() -> bytes:
    data = batch.encode(RecordColumns.from_lists(None, [b"value"], [0]))
    data[-3] ^= 0xFF
    return bytes(data)


def test_damaged_batch_is_corrupt(broker: EmbeddedBroker) -> None:
    with answering(damaged()) as server, options.connect(bootstrap_servers=server.bootstrap_servers) as client:
        with pytest.raises(CorruptRecordException, match="the checksum of the batch at offset 0"):
            read(RecordReader(client, {PLACES[0]: 0}, ends=None, settings=SETTINGS))
        trusting = options.READING_TABLE.parse({"bootstrap.servers": "x", "check.crcs": "false"})
        assert len(read(RecordReader(client, {PLACES[0]: 0}, ends={PLACES[0]: 1}, settings=trusting))[PLACES[0]]) == 1


def test_partition_without_records_times_out() -> None:
    clock = ManualClock()
    with (
        answering(b"", clock) as server,
        SyncClient(server.bootstrap_servers, clock=clock, timeout_ms=1_000) as client,
        pytest.raises(TimeoutException, match="orders-0 returned no records at offset 0 for 1200 ms"),
    ):
        read(RecordReader(client, {PLACES[0]: 0}, ends={PLACES[0]: 10}, settings=SETTINGS))
