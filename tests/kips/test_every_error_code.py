"""Every error of the table can be asked for by a fault script, of every API: what a client makes of it can be tested without the cause.

One line per code for Produce, in the three ways it travels (version 8 and later, before, and under the KIPs' numbers), and one per API and
code in the API's latest version.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from chaffinch.broker.core.handlers import HANDLERS
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.protocol.apis import APIS, Api
from chaffinch.protocol.schema import Message
from tests.broker.batches import batch_of
from tests.broker.core_client import Client, Cluster
from tests.protocol.instances import sample

ERRORS = [code for code in codes.ALL if code is not codes.NONE]
SERVED = [api for api in APIS.values() if api.served]
IN_EARNEST: dict[str, dict[str, int]] = {"Produce": {"acks": 1}, "Fetch": {"session_id": 0, "session_epoch": -1}}
ALIKE_IN_OLD_VERSIONS = {codes.INVALID_RECORD, codes.INVALID_COMPACTION_KEY}
each_code = pytest.mark.parametrize("code", ERRORS, ids=lambda code: code.name)


def cluster_with_fault(api: Api, code: ErrorCode, **config: Any) -> tuple[Cluster, Client]:
    cluster = Cluster(config)
    cluster.topic("orders")
    client = cluster.client()
    cluster.core.faults.add(api=api.name, error=code.name)
    return cluster, client


def error_codes(message: Any) -> Iterator[int]:
    """Every field of an answer that holds an error's number, at any depth."""
    if isinstance(message, list):
        for element in message:
            yield from error_codes(element)
    elif isinstance(message, Message):
        for field in message.FIELDS:
            value = getattr(message, field.name)
            if field.name.endswith("error_code") and isinstance(value, int):
                yield value
            else:
                yield from error_codes(value)


def request_of(api: Api, version: int) -> Any:
    """A request with something in every field, and an answer to hope for: of a Produce with acks, of a Fetch without a session."""
    return sample(api.request, version).replace(**IN_EARNEST.get(api.name, {}))


@each_code
def test_produce_response_has_code_and_text(code: ErrorCode) -> None:
    """Refused with the code and a text, stored nothing, and the next request is served."""
    batch = batch_of(b"a")
    cluster, client = cluster_with_fault(APIS[0], code)
    answer = client.produce("orders", batch)
    assert (answer.error_code, answer.base_offset, answer.record_errors) == (code.number, -1, [])
    assert answer.error_message == "requested by a fault script"
    assert client.produce("orders", batch).base_offset == 0
    assert cluster.partition("orders", 0).log.log_end_offset == 1


@each_code
def test_produce_response_before_version_8_has_code(code: ErrorCode) -> None:
    _, client = cluster_with_fault(APIS[0], code)
    expected = codes.INVALID_REQUEST if code in ALIKE_IN_OLD_VERSIONS else code
    assert client.produce("orders", batch_of(b"a"), version=7).error_code == expected.number


@each_code
def test_produce_response_has_kip_number(code: ErrorCode) -> None:
    _, client = cluster_with_fault(APIS[0], code, **{"error.numbering": "kip"})
    assert client.produce("orders", batch_of(b"a")).error_code == code.number_kip


@pytest.mark.parametrize("api", SERVED, ids=lambda api: api.name)
def test_every_api_answers_every_code(api: Api) -> None:
    """All codes, one after the other, in the latest version served."""
    version = api.served[-1]
    cluster = Cluster()
    client = cluster.client()
    for code in ERRORS:
        cluster.core.faults.add(api=api.name, error=code.name)
        answer = client.ask(request_of(api, version), version)
        found = set(error_codes(answer)) - {0}
        assert found == {code.number}, code.name
        assert not cluster.core.faults
        assert client.closed is None


@pytest.mark.parametrize("api", SERVED, ids=lambda api: api.name)
def test_every_version_answers_an_error(api: Api) -> None:
    for version in api.served:
        cluster = Cluster()
        client = cluster.client()
        cluster.core.faults.add(api=api.name, error="CLUSTER_AUTHORIZATION_FAILED")
        answer = client.ask(request_of(api, version), version)
        assert codes.CLUSTER_AUTHORIZATION_FAILED.number in set(error_codes(answer)), f"version {version}"


def test_every_served_api_is_tested() -> None:
    assert {api.key for api in SERVED} == set(HANDLERS)
