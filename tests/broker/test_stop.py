"""An orderly stop, over real sockets: who is still answered, and who is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.handlers import produce
from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.protocol.apis import api_of
from chaffinch.protocol.messages.metadata import MetadataRequest
from chaffinch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from chaffinch.protocol.schema import Message
from chaffinch.protocol.server_connection import ReceivedRequest
from chaffinch.records.compression import Compression
from tests.broker.batches import batch_of
from tests.broker.broker_probes import wait_until
from tests.broker.core_client import produce_request
from tests.broker.socket_client import SocketClient
from tests.broker.test_half_close import FETCH_VERSION, fetch

UNKNOWN_CONNECTION = 1 << 40
"""A connection that the server does not know."""
READERS = 300
"""More than are answered in one turn of the loop."""
PARTITIONS = 5


@pytest.fixture(params=["os", "always"])
def broker(request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    topics = {"orders": {"partitions": PARTITIONS}, "quiet": {}}
    with EmbeddedBroker(topics=topics, config={"flush.policy": request.param}) as broker:
        yield broker


def close_after(broker: EmbeddedBroker, happens: Callable[[], object]) -> None:
    """In the same turn of the loop: nothing else comes between."""
    server, broker._server = broker._running, None

    async def end() -> None:
        happens()
        await server.close()

    broker._thread.run(end())


def ask(broker: EmbeddedBroker, message: Message, version: int) -> Callable[[], None]:
    """Send a request whose sender does not wait for the answer."""
    server = broker._running
    request = ReceivedRequest(api=api_of(message), version=version, correlation_id=0, client_id=None, message=message)

    def happens() -> None:
        server._effect_runner.unsent += server.core.apply(RequestReceived(UNKNOWN_CONNECTION, request), server._time.steady_ms())

    return happens


def wait_for_waiting(broker: EmbeddedBroker, count: int) -> None:
    waits = broker._running.core._waits.waits
    wait_until(broker, lambda: len(waits) == count)


def test_due_responses_are_sent_before_the_stop(broker: EmbeddedBroker) -> None:
    with ExitStack() as stack:
        readers = [stack.enter_context(SocketClient(broker.bootstrap_servers)) for _ in range(READERS)]
        for reader in readers:
            reader.send(fetch(), FETCH_VERSION)
        wait_for_waiting(broker, READERS)
        close_after(broker, ask(broker, produce_request("orders", batch_of(b"a")), 9))
        for reader in readers:
            assert reader.receive().responses[0].partitions[0].high_watermark == 1
            assert reader.is_closed_by_peer()


def test_large_request_in_progress_is_answered_before_the_stop(broker: EmbeddedBroker) -> None:
    large = bytes(batch_of(bytes(produce.TURN_BYTES_MAX), compression=Compression.ZSTD))
    partitions = [PartitionProduceData(index=index, records=large) for index in range(PARTITIONS)]
    with SocketClient(broker.bootstrap_servers) as client:
        server = broker._running
        encoded = client.connection.encode_request(
            ProduceRequest(acks=-1, timeout_ms=1000, topics=[TopicProduceData(name="orders", partitions=partitions)])
        )[1]
        (peer,) = server.peers

        def happens() -> None:
            for request in peer.frames.receive(b"".join(encoded)):
                server._connection_manager.received(peer, request)

        close_after(broker, happens)
        (topic,) = client.receive().responses
        assert [answer.error_code for answer in topic.partition_responses] == [0] * PARTITIONS


def test_waiting_requests_are_dropped_by_the_stop(broker: EmbeddedBroker) -> None:
    with SocketClient(broker.bootstrap_servers) as client:
        client.send(fetch(), FETCH_VERSION)
        client.send(produce_request("orders", batch_of(b"behind")))
        client.send(MetadataRequest(topics=[]), 4)
        wait_for_waiting(broker, 1)
        core = broker._running.core
        close_after(broker, lambda: None)
        with pytest.raises(ConnectionResetError):
            client.receive()
        partition = core.topics.partition("orders", 0)
        assert partition is not None
        assert partition.log.log_end_offset == 0
