"""What requests that wait for their answers are counted for, on a pretend transport."""

from __future__ import annotations

import pytest

from chaffinch.broker.connections import QueuedRequestBytes
from chaffinch.protocol.client_connection import ClientConnection
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.broker.pretend_line import Line, produce_request
from tests.support.traced_memory import traced

pytestmark = pytest.mark.usefixtures("clock")


def test_a_request_that_waits_counts_for_what_it_takes_as_it_is_read() -> None:
    held = QueuedRequestBytes(1 << 30)
    line = Line(held)
    line.lets_wait = True
    many_small = MetadataRequest(topics=[MetadataRequestTopic(name="")] * 50_000)
    data = b"".join(ClientConnection("test", "test", "1").encode_request(many_small, 4)[1])
    with traced() as taken:
        line.feed(data)
    assert taken.size > 20 * len(data)
    assert taken.size < held.bytes_queued < 2 * taken.size
    line.lets_wait = False
    line.answer()
    assert held.bytes_queued == 0


def test_records_of_a_request_that_waits_are_not_counted_twice() -> None:
    held = QueuedRequestBytes(1 << 30)
    line = Line(held)
    line.lets_wait = True
    line.feed(produce_request(100_000))
    assert 100_000 < held.bytes_queued < 110_000
    line.complete_silently()
    line.peer.end_turn()
    assert held.bytes_queued == 0
