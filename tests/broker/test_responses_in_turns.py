"""What is done in turns, over real sockets: the loop comes back to it, and what each turn gives has left before the next."""

from __future__ import annotations

import random
from contextlib import ExitStack

import pytest

from chaffinch.broker.core.handlers import produce
from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from chaffinch.protocol.messages.metadata import MetadataRequest
from chaffinch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from chaffinch.records.compression import Compression
from tests.broker.batches import batch_of
from tests.broker.broker_probes import wait_until
from tests.broker.core_client import produce_request as one_batch
from tests.broker.socket_client import SocketClient

PARTITIONS = 5
FETCH_VERSION = 12
INCOMPRESSIBLE = random.Random(1).randbytes(400_000)


@pytest.mark.parametrize("policy", ["os", "always"])
@pytest.mark.parametrize("acks", [0, 1])
def test_request_over_several_turns_is_answered(policy: str, acks: int) -> None:
    """And what came behind it, of which nothing more may come to wake the loop."""
    large = bytes(batch_of(bytes(produce.TURN_BYTES_MAX), compression=Compression.ZSTD))
    partitions = [PartitionProduceData(index=index, records=large) for index in range(PARTITIONS)]
    request = ProduceRequest(acks=acks, timeout_ms=1000, topics=[TopicProduceData(name="orders", partitions=partitions)])
    with (
        EmbeddedBroker(topics={"orders": {"partitions": PARTITIONS}}, config={"flush.policy": policy}) as broker,
        SocketClient(broker.bootstrap_servers) as client,
    ):
        encoded = [client.connection.encode_request(requested)[1] for requested in (request, MetadataRequest(topics=[]))]
        client.socket.sendall(b"".join(part for parts in encoded for part in parts))
        if acks:
            (topic,) = client.receive().responses
            assert [answer.error_code for answer in topic.partition_responses] == [0] * PARTITIONS
        assert client.receive().brokers
        orders = broker._running.core.topics.get("orders")
        assert orders is not None
        assert [partition.log.log_end_offset for partition in orders.partitions] == [1] * PARTITIONS


def test_readers_woken_together_get_smaller_responses_and_stay_connected() -> None:
    """As if each had asked now: they wait for a little more than there is, and then 20 of them are entitled to 8 MB each."""
    with ExitStack() as stack:
        broker = stack.enter_context(EmbeddedBroker(topics=["large"], config={"queued.max.response.bytes": 64 << 20}))
        writer = stack.enter_context(SocketClient(broker.bootstrap_servers))
        readers = [stack.enter_context(SocketClient(broker.bootstrap_servers, receive_buffer=1 << 14)) for _ in range(20)]
        for _ in range(19):
            writer.ask(one_batch("large", batch_of(INCOMPRESSIBLE)))
        requested = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=50_000_000)
        topics = [FetchTopic(topic="large", partitions=[requested])]
        for reader in readers:
            reader.send(FetchRequest(max_wait_ms=60_000, min_bytes=20 * len(INCOMPRESSIBLE), topics=topics), FETCH_VERSION)
        waits = broker._running.core._waits.waits
        wait_until(broker, lambda: len(waits) == len(readers))
        writer.ask(one_batch("large", batch_of(INCOMPRESSIBLE)))
        for reader in readers:
            assert len(reader.receive().responses[0].partitions[0].records) > len(INCOMPRESSIBLE)
