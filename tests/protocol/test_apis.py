"""The registry, and what it costs to import it."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import pytest

from chaffinch.consumer.core import fetch_session
from chaffinch.errors import UnsupportedVersionException
from chaffinch.producer.core.batches import produce_requests
from chaffinch.protocol.apis import APIS, Api, api_of
from chaffinch.protocol.client_connection import ApiVersionTable
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from chaffinch.protocol.messages.produce import ProduceRequest

ROWS = list(APIS.values())


@pytest.mark.parametrize("api", ROWS, ids=repr)
def test_rows_are_consistent(api: Api) -> None:
    assert APIS[api.key] is api
    assert (api.key, api.key) == (api.request.API_KEY, api.response.API_KEY)
    assert (api.request.__name__, api.response.__name__) == (f"{api.name}Request", f"{api.name}Response")
    assert api.request.VERSIONS == api.response.VERSIONS
    assert api.request.FLEXIBLE_SINCE == api.response.FLEXIBLE_SINCE == api.flexible_since
    for versions in (api.served, api.used, api.reach):
        assert set(versions) <= set(range(api.request.VERSIONS[0], api.request.VERSIONS[1] + 1))
    assert set(api.served) & set(api.used), "our client and our broker understand each other"


def test_served_versions_of_produce() -> None:
    """All that Kafka 4.3 announces; librdkafka looks for version 0 before it compresses."""
    assert APIS[0].served == range(14)


def test_client_writes_with_versions_before_the_second_transaction_protocol() -> None:
    """From Produce 12, EndTxn 5 and TxnOffsetCommit 5 on, the broker adds partitions and bumps epochs by itself (KIP-890)."""
    assert {key: APIS[key].used[-1] for key in (0, 24, 26, 28)} == {0: 11, 24: 3, 26: 4, 28: 4}


def test_api_of_messages_and_classes() -> None:
    assert api_of(MetadataRequest()) is api_of(MetadataResponse) is APIS[3]
    assert api_of(ProduceRequest) is APIS[0]
    with pytest.raises(KeyError):
        api_of(MetadataRequestTopic())


def test_importing_the_protocol_loads_nothing_heavy() -> None:
    """A broker must answer half a second after its process began."""
    code = "import sys, chaffinch.protocol.server_connection, chaffinch.protocol.client_connection; print(*sys.modules)"
    loaded = set(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout.split())
    assert "chaffinch.protocol.messages.fetch" in loaded
    assert not loaded & {"numpy", "pyarrow", "numba", "asyncio", "socket", "ctypes", "threading", "random", "chaffinch.errors.exceptions"}


@pytest.mark.parametrize("api", ROWS, ids=repr)
def test_reach_lists_every_version_that_our_clients_may_request(api: Api) -> None:
    """The printed table has `reach`; no limit that is named leads beyond it, whatever the broker offers."""
    table = ApiVersionTable(ranges={api.key: api.request.VERSIONS}, features={})
    assert set(api.used) <= set(api.reach)
    found: set[int] = set()
    for version_max in (None, *range(api.request.VERSIONS[1] + 5)):
        with contextlib.suppress(UnsupportedVersionException):
            found.add(table.choose(api, version_max))
    assert found == set(api.reach)


def test_reach_ends_with_the_versions_named_by_client_modules() -> None:
    assert (APIS[1].reach[-1], APIS[0].reach[-1]) == (fetch_session.LAST_VERSION, produce_requests.VERSION_WITH_TOPIC_IDS)
