"""Work that takes long, and answers that become due together, are done in turns: between two of them the others are served, and what is
answered leaves."""

from __future__ import annotations

import random

import pytest

from chaffinch.broker.core import broker_core
from chaffinch.broker.core.broker_core import TURN_BYTES_MAX
from chaffinch.broker.core.events import TimePassed
from chaffinch.broker.core.handlers import produce
from chaffinch.errors import codes
from chaffinch.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from chaffinch.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from chaffinch.protocol.messages.end_txn import EndTxnRequest
from chaffinch.protocol.messages.metadata import MetadataRequest
from chaffinch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from chaffinch.records.compression import Compression
from tests.broker.batches import batch_of
from tests.broker.core.fetch_requests import fetch, first
from tests.broker.core.transactions.transactional_writer import Writer
from tests.broker.core_client import Client, Cluster

MEBIBYTE = random.Random(1).randbytes(1_000_000)
LARGE = bytes(batch_of(bytes(produce.TURN_BYTES_MAX), compression=Compression.ZSTD))
"""A few hundred bytes that unpack to what is done in one turn."""
PARTITIONS = 4


def turn(cluster: Cluster) -> None:
    """One more turn, which the core must have asked for."""
    deadline_ms = cluster.core.next_deadline_ms
    assert deadline_ms is not None
    assert deadline_ms <= cluster.steady_ms
    cluster.carry_out(cluster.core.handle(TimePassed(), cluster.steady_ms))


def answered(clients: list[Client]) -> list[int]:
    return [len(client.answers) for client in clients]


class TestDelayedResponses:
    @pytest.fixture
    def cluster(self) -> Cluster:
        cluster = Cluster()
        cluster.topic("orders")
        return cluster

    @pytest.mark.parametrize("wakes", ["records", "time"])
    def test_woken_responses_are_sent_in_turns(self, cluster: Cluster, wakes: str) -> None:
        """The longest wait first, and each once. Otherwise their records would fill the memory."""
        count, each = 20, TURN_BYTES_MAX // len(MEBIBYTE) + 1
        readers = [cluster.client() for _ in range(count)]
        for reader in readers:
            reader.send(fetch(wait_ms=500, min_bytes=1 if wakes == "records" else 1 << 20))
        cluster.client().produce("orders", batch_of(MEBIBYTE))
        if wakes == "time":
            assert sum(answered(readers)) == 0
            cluster.steady_ms += 500
            turn(cluster)
        for done in range(each, count + 1, each):
            assert answered(readers) == [1] * done + [0] * (count - done)
            if done < count:
                turn(cluster)
        assert all(len(first(reader.answers[0]).records or b"") > len(MEBIBYTE) for reader in readers)
        assert not cluster.core._waits

    def test_small_woken_responses_are_tried_in_turns(self, cluster: Cluster) -> None:
        each = TURN_BYTES_MAX // broker_core.ATTEMPT_BYTES
        readers = [cluster.client() for _ in range(each + 1)]
        for reader in readers:
            reader.send(fetch(wait_ms=500))
        cluster.client().ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="orders")]))
        assert answered(readers) == [1] * each + [0]
        turn(cluster)
        assert answered(readers) == [1] * (each + 1)

    def test_response_awaiting_its_turn_is_not_overtaken(self, cluster: Cluster) -> None:
        readers = [cluster.client() for _ in range(7)]
        for reader in readers:
            reader.send(fetch(wait_ms=500))
        writer = cluster.client()
        writer.produce("orders", batch_of(MEBIBYTE))
        done = sum(answered(readers))
        assert done < len(readers)
        readers[done].lose()
        for reader in readers[:done]:
            reader.answers.clear()
            reader.send(fetch(1, wait_ms=500))
        writer.produce("orders", batch_of(b"a"))
        assert sum(answered(readers)) == 0, "they come after those that wait for their turn"
        turn(cluster)
        assert answered(readers) == [1] * done + [0] + [1] * (len(readers) - done - 1)

    def test_response_size_follows_the_limit_when_it_is_built(self, cluster: Cluster) -> None:
        """Not what it was when they were asked for."""
        batch = batch_of(b"a" * 1000)
        records_bytes_max = 100 * len(batch)
        cluster.core.state.records_max = lambda: records_bytes_max
        readers = [cluster.client() for _ in range(2)]
        for reader in readers:
            reader.send(fetch(wait_ms=500, min_bytes=1 << 20))
        for _ in range(10):
            cluster.client().produce("orders", batch)
        records_bytes_max = 3 * len(batch)
        cluster.advance(500)
        assert [len(first(reader.answers[0]).records or b"") for reader in readers] == [records_bytes_max] * 2


def request_of(name: str, count: int = PARTITIONS, acks: int = -1) -> ProduceRequest:
    partitions = [PartitionProduceData(index=index, records=LARGE) for index in range(count)]
    return ProduceRequest(acks=acks, timeout_ms=1000, topics=[TopicProduceData(name=name, partitions=partitions)])


def lengths(cluster: Cluster, name: str = "orders") -> list[int]:
    topic = cluster.core.topics.get(name)
    assert topic is not None
    return [partition.log.log_end_offset for partition in topic.partitions]


class TestProduce:
    @pytest.fixture
    def cluster(self) -> Cluster:
        cluster = Cluster()
        cluster.topic("orders", PARTITIONS)
        return cluster

    @pytest.mark.parametrize("acks", [-1, 1, 0])
    def test_produce_of_highly_compressed_batches_takes_turns(self, cluster: Cluster, acks: int) -> None:
        client, other = cluster.client(), cluster.client()
        client.send(request_of("orders", acks=acks))
        client.send(MetadataRequest(topics=[]))
        for done in range(1, PARTITIONS):
            assert lengths(cluster) == [1] * done + [0] * (PARTITIONS - done)
            assert (client.answers, client.silent) == ([], 0)
            other.ask(MetadataRequest(topics=[]))
            turn(cluster)
        assert lengths(cluster) == [1] * PARTITIONS
        assert [type(answer).__name__ for answer in client.answers] == ["ProduceResponse"] * (acks != 0) + ["MetadataResponse"]
        assert client.silent == (acks == 0)
        if acks:
            (topic,) = client.answers[0].responses
            assert [(answer.index, answer.error_code) for answer in topic.partition_responses] == [(at, 0) for at in range(PARTITIONS)]

    def test_produce_to_many_partitions_takes_turns(self, cluster: Cluster) -> None:
        each = produce.TURN_BYTES_MAX // produce.PARTITION_BYTES
        client = cluster.client()
        client.send(request_of("nowhere", 2 * each + 1))
        for _ in range(2):
            assert client.answers == []
            turn(cluster)
        assert [answer.error_code for answer in client.answers[0].responses[0].partition_responses] == [3] * (2 * each + 1)

    def test_refused_batches_take_turns(self, cluster: Cluster) -> None:
        bad = bytes(batch_of(b"a", compression=Compression.ZSTD, timestamps=[1]))
        cluster.topic("strict", 3, message_timestamp_before_max_ms="1000")
        partitions = [PartitionProduceData(index=index, records=bad) for index in range(3)]
        client = cluster.client()
        client.send(ProduceRequest(acks=1, timeout_ms=1000, topics=[TopicProduceData(name="strict", partitions=partitions)]))
        for _ in range(2):
            assert client.answers == []
            turn(cluster)
        assert [answer.error_code for answer in client.answers[0].responses[0].partition_responses] == [32] * 3

    def test_produce_requests_of_two_clients_alternate(self, cluster: Cluster) -> None:
        cluster.topic("bills", PARTITIONS)
        cluster.client().send(request_of("orders"))
        cluster.client().send(request_of("bills"))
        for done in range(2, PARTITIONS + 1):
            turn(cluster)
            assert (sum(lengths(cluster)), sum(lengths(cluster, "bills"))) == (done, done - 1)
            turn(cluster)
            assert (sum(lengths(cluster)), sum(lengths(cluster, "bills"))) == (done, done)

    def test_lost_connection_ends_its_produce(self, cluster: Cluster) -> None:
        client = cluster.client()
        client.send(request_of("orders"))
        client.lose()
        cluster.advance(1000)
        assert lengths(cluster) == [1] + [0] * (PARTITIONS - 1)
        assert not cluster.core._waits

    def test_topic_replaced_during_a_produce_gets_no_records(self, cluster: Cluster) -> None:
        """By its old id, that is: the new one is another topic."""
        client, admin = cluster.client(), cluster.client()
        request = request_of("orders")
        topic = cluster.core.topics.get("orders")
        assert topic is not None
        request.topics[0].topic_id = topic.topic_id
        client.send(request, 13)
        admin.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="orders")]))
        admin.ask(CreateTopicsRequest(topics=[CreatableTopic(name="orders", num_partitions=PARTITIONS, replication_factor=1)]))
        cluster.advance(0)
        (answer,) = client.answers[0].responses
        assert [found.error_code for found in answer.partition_responses] == [0] + [100] * (PARTITIONS - 1)
        assert lengths(cluster) == [0] * PARTITIONS

    def test_transaction_ended_during_a_produce_takes_no_more_records(self, cluster: Cluster) -> None:
        client, identity = cluster.client(), Writer(cluster.client(), "t").identity
        values = bytes(produce.TURN_BYTES_MAX)
        batch = bytes(batch_of(values, compression=Compression.ZSTD, identity=identity, sequence=0, transactional=True))
        request = request_of("orders")
        request.transactional_id = "t"
        for data in request.topics[0].partitions:
            data.records = batch
        client.send(request, 12)
        (transaction,) = cluster.core.state.transactions
        assert {tp.partition for tp in transaction.partitions} == {*range(PARTITIONS)}, "all are added at once, in the first turn"
        end = EndTxnRequest(transactional_id="t", producer_id=identity.producer_id, producer_epoch=identity.epoch, committed=False)
        assert cluster.client().ask(end, 5).error_code == 0
        cluster.advance(0)
        assert lengths(cluster) == [2] + [1] * (PARTITIONS - 1), "each has the marker"
        errors = [found.error_code for found in client.answers[0].responses[0].partition_responses]
        assert errors[0] == 0
        assert errors[1:] == [codes.INVALID_PRODUCER_EPOCH.number] * (PARTITIONS - 1)
        assert all(not part.log.ongoing_transactions() for part in cluster.topic_named("orders").partitions)

    def test_loss_of_power_after_the_response_loses_nothing(self) -> None:
        cluster = Cluster({"flush.policy": "always"})
        cluster.topic("orders", PARTITIONS)
        client = cluster.client()
        client.send(request_of("orders"))
        cluster.advance(0)
        assert len(client.answers) == 1
        cluster.core.abandon()
        cluster.file_system.crash(lambda path, unsynced: 0)
        cluster.core = cluster._core()
        assert lengths(cluster) == [1] * PARTITIONS

    def test_fault_rules_apply_to_produce_in_turns(self, cluster: Cluster) -> None:
        cluster.core.faults.add(api="Produce", action="drop_after")
        client = cluster.client()
        client.send(request_of("orders"))
        assert client.closed == "requested by a fault script, after the request was processed"
        assert lengths(cluster) == [1] * PARTITIONS
        cluster.core.faults.add(api="Produce", action="delay", delay_ms=300)
        client = cluster.client()
        client.send(request_of("orders"))
        cluster.advance(299)
        assert lengths(cluster) == [2] * PARTITIONS
        assert client.answers == []
        cluster.advance(1)
        assert len(client.answers) == 1
