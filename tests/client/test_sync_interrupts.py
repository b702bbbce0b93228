"""Ctrl-C at every moment of a call of SyncClient: the next one is answered, and close leaves no socket open."""

from __future__ import annotations

from contextlib import suppress
from itertools import count

import pytest

from chaffinch import EmbeddedBroker
from chaffinch.client.sync_client import SyncClient
from chaffinch.protocol.messages.metadata import MetadataRequest
from tests.client.interrupts import Interrupt

# Lower limit of the moments in the shortest call.
MOMENTS_MIN = 10
REQUEST = MetadataRequest(topics=[])

# Of what is made just then Python says that it was not closed, and closes it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.mark.parametrize("is_first", [True, False], ids=["that connects", "on a connection that is there"])
def test_request_interrupted_at_every_moment(is_first: bool) -> None:
    """A partial request or response would be taken for a part of the next one, which would never complete."""
    with EmbeddedBroker() as broker:
        for index in count():
            with SyncClient(broker.bootstrap_servers) as client:
                if not is_first:
                    client.request(REQUEST)
                interrupt = Interrupt(index)
                with suppress(KeyboardInterrupt), interrupt:
                    client.request(REQUEST)
                assert client.request(REQUEST).brokers, interrupt.place
            if not interrupt.has_happened:
                break
    assert index >= MOMENTS_MIN


def test_interrupted_close_can_be_repeated() -> None:
    with EmbeddedBroker() as broker:
        for index in count():
            client = SyncClient(broker.bootstrap_servers)
            client.request(REQUEST)
            (transport,) = client._network._transports.values()
            waker = client._network._waker
            interrupt = Interrupt(index)
            with suppress(KeyboardInterrupt), interrupt:
                client.close()
            client.close()
            assert (transport.opened.fileno(), waker._reader.closed, waker._writer.closed) == (-1, True, True), interrupt.place
            if not interrupt.has_happened:
                break
    assert index >= MOMENTS_MIN
