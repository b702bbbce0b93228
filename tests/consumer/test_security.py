"""TLS and SASL: an authenticated consumer reads; a rejected login raises in every waiting call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chaffinch import Consumer, EmbeddedBroker, Producer, TopicPartition, errors
from tests.consumer.conftest import CONFIG, ConsumerOf
from tests.consumer.polling import LIMIT_S, read, values_of
from tests.support.certificates import Certificates


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EmbeddedBroker, dict[str, Any]]]:
    """A broker, and the options of a client that it lets in."""
    certificates = Certificates(tmp_path_factory.mktemp("certificates"))
    config = {**CONFIG, "security.protocol": "SASL_SSL", "ssl.keystore.location": certificates.server}
    with EmbeddedBroker(topics=["orders"], config=config, users={"alice": "secret"}) as broker:
        yield (
            broker,
            {
                "security_protocol": "SASL_SSL",
                "ssl_truststore_location": certificates.root,
                "sasl_mechanism": "SCRAM-SHA-256",
                "sasl_username": "alice",
                "sasl_password": "secret",
            },
        )


def test_authenticated_consumer_reads(secured: tuple[EmbeddedBroker, dict[str, Any]], consumer_of: ConsumerOf) -> None:
    broker, options = secured
    with Producer(bootstrap_servers=broker.bootstrap_servers, **options) as producer:
        producer.send("orders", b"v").result(LIMIT_S)
    consumer = consumer_of(broker, **options)
    consumer.subscribe(["orders"])
    assert values_of(read(consumer, 1)) == [b"v"]


@pytest.mark.parametrize(
    "call",
    [
        lambda consumer: consumer.poll(LIMIT_S),
        lambda consumer: consumer.position(TopicPartition("orders", 0)),
        lambda consumer: consumer.end_offsets([TopicPartition("orders", 0)]),
        lambda consumer: consumer.partitions_for("orders"),
        lambda consumer: consumer.commit({TopicPartition("orders", 0): 1}),
        lambda consumer: consumer.committed([TopicPartition("orders", 0)]),
    ],
)
def test_rejected_login_raises(
    secured: tuple[EmbeddedBroker, dict[str, Any]], consumer_of: ConsumerOf, call: Callable[[Consumer], object]
) -> None:
    broker, options = secured
    consumer = consumer_of(broker, **{**options, "sasl_password": "wrong"})
    consumer.assign([TopicPartition("orders", 0)])
    with pytest.raises(errors.SaslAuthenticationException):
        call(consumer)


def test_rejected_login_raises_until_the_broker_accepts_it(consumer_of: ConsumerOf) -> None:
    options: dict[str, Any] = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_username": "alice",
        "sasl_password": "new",
    }
    config = {**CONFIG, "security.protocol": "SASL_PLAINTEXT", "sasl.enabled.mechanisms": "PLAIN"}
    with EmbeddedBroker(topics=["orders"], config=config, users={"alice": "old"}) as broker:
        consumer = consumer_of(broker, **options, group_id=None)
        consumer.assign([TopicPartition("orders", 0)])
        for _ in range(3):
            with pytest.raises(errors.SaslAuthenticationException):
                consumer.poll(LIMIT_S)
        broker._users["alice"] = "new"
        broker.restart()
        with Producer(bootstrap_servers=broker.bootstrap_servers, **options) as producer:
            producer.send("orders", b"v", partition=0).result(LIMIT_S)
        consumer.partitions_for("orders")  # It is let in: what was refused before is over.
        assert values_of(read(consumer, 1)) == [b"v"]
