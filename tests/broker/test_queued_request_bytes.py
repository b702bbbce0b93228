"""What requests that wait for their answers are counted for, on a pretend transport."""

from __future__ import annotations

import pytest

from chaffinch.broker.connections import QueuedRequestBytes
from chaffinch.protocol.client_connection import ClientConnection
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.broker.fake_connection import FakeConnection, produce_request
from tests.support.traced_memory import traced

pytestmark = pytest.mark.usefixtures("clock")


def test_waiting_request_counts_with_its_decoded_size() -> None:
    held = QueuedRequestBytes(1 << 30)
    connection = FakeConnection(held)
    connection.lets_wait = True
    many_small = MetadataRequest(topics=[MetadataRequestTopic(name="")] * 50_000)
    data = b"".join(ClientConnection("test", "test", "1").encode_request(many_small, 4)[1])
    with traced() as taken:
        connection.feed(data)
    assert taken.size > 20 * len(data)
    assert taken.size < held.bytes_queued < 2 * taken.size
    connection.lets_wait = False
    connection.answer()
    assert held.bytes_queued == 0


def test_records_of_a_waiting_request_are_counted_once() -> None:
    held = QueuedRequestBytes(1 << 30)
    connection = FakeConnection(held)
    connection.lets_wait = True
    connection.feed(produce_request(100_000))
    assert 100_000 < held.bytes_queued < 110_000
    connection.complete_silently()
    connection.peer.end_turn()
    assert held.bytes_queued == 0
