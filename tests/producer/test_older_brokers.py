"""Options that the broker's Produce version does not support are refused before a request is sent."""

from __future__ import annotations

from typing import Any

import pytest

from chaffinch import EmbeddedBroker, Producer
from chaffinch.broker.core.handlers import api_versions
from chaffinch.errors import Group, Stored, UnsupportedCompressionTypeException
from chaffinch.protocol.messages.api_versions import ApiVersion

LATEST_S = 60
PRODUCE = 0
LAST_OF_KAFKA_2_0 = 6


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A broker that supports Produce up to the version of Apache Kafka 2.0."""
    served = [
        ApiVersion(api_key=PRODUCE, min_version=0, max_version=LAST_OF_KAFKA_2_0) if version.api_key == PRODUCE else version
        for version in api_versions._SERVED
    ]
    monkeypatch.setattr(api_versions, "_SERVED", served)
    with EmbeddedBroker(topics={"orders": {}}) as broker:
        yield broker


@pytest.mark.parametrize("options", [{}, {"enable.idempotence": False}, {"enable.idempotence": False, "acks": 0}], ids=str)
def test_zstd_is_refused_with_advice(broker: EmbeddedBroker, options: dict[str, Any]) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers, compression_type="zstd", **options) as producer:
        for _ in range(2):
            error = producer.send("orders", b"v" * 100).exception(LATEST_S)
            assert isinstance(error, UnsupportedCompressionTypeException)
            assert (error.group, error.stored) == (Group.INVALID_CONFIGURATION, Stored.NO)
            assert (
                "the broker does not support compression.type zstd (it requires Apache Kafka 2.1): choose lz4, snappy, gzip or none"
                in str(error)
            )
    with Producer(bootstrap_servers=broker.bootstrap_servers, compression_type="lz4", **options) as producer:
        producer.send("orders", b"v" * 100).result(LATEST_S)
    assert broker.read("orders").num_rows == 1


def test_transaction_with_refused_zstd_can_be_aborted(broker: EmbeddedBroker) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers, compression_type="zstd", transactional_id="t") as producer:
        producer.init_transactions()
        for _ in range(2):
            producer.begin_transaction()
            producer.send("orders", b"v" * 100)
            with pytest.raises(UnsupportedCompressionTypeException):
                producer.commit_transaction()
            producer.abort_transaction()
