"""Lines of the broker's log for whoever runs it: who was refused, and what will go wrong with what was started."""

from __future__ import annotations

import logging

import pytest

from chaffinch import EmbeddedBroker
from tests.broker.batches import batch_of
from tests.broker.core_client import produce_request
from tests.broker.socket_client import SocketClient


def test_a_refusal_names_the_address_of_its_client(caplog: pytest.LogCaptureFixture) -> None:
    topics = {"orders": {"max.message.bytes": 100}}
    with (
        caplog.at_level(logging.INFO, "chaffinch.broker"),
        EmbeddedBroker(topics=topics) as broker,
        SocketClient(broker.bootstrap_servers) as client,
    ):
        client.ask(produce_request("orders", batch_of(b"a" * 1000)))
    assert any(" at 127.0.0.1 for orders-0: MESSAGE_TOO_LARGE: " in record.getMessage() for record in caplog.records)
