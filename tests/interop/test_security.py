"""TLS and every SASL mechanism with other clients: they read what they wrote, and a wrong password is reported to them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from kafka import KafkaConsumer, KafkaProducer

from chaffinch import EmbeddedBroker
from chaffinch.protocol.security_options import SASL_MECHANISMS
from tests.support.certificates import Certificates

TIMEOUT_SECONDS = 60
PASSWORD = "alice's, =secret"
WAYS = [("SSL", ""), *((protocol, mechanism) for protocol in ("SASL_PLAINTEXT", "SASL_SSL") for mechanism in SASL_MECHANISMS)]
VALUES = [b"one", b"two" * 50_000]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def brokers(certificates: Certificates) -> Iterator[Mapping[str, EmbeddedBroker]]:
    started = {}
    for protocol in ("SSL", "SASL_PLAINTEXT", "SASL_SSL"):
        config = {"security.protocol": protocol} | ({"ssl.keystore.location": certificates.server} if protocol.endswith("SSL") else {})
        users = {"alice": PASSWORD} if protocol.startswith("SASL") else None
        started[protocol] = EmbeddedBroker(topics=["aiokafka", "kafka-python", "confluent-kafka"], config=config, users=users)
    yield started
    for broker in started.values():
        broker.close()


def with_confluent_kafka(broker: EmbeddedBroker, root: str, protocol: str, mechanism: str, password: str) -> list[bytes]:
    config = {"bootstrap.servers": broker.bootstrap_servers, "security.protocol": protocol, "log_level": 0}
    config |= {"ssl.ca.location": root} if protocol.endswith("SSL") else {}
    config |= {"sasl.mechanism": mechanism, "sasl.username": "alice", "sasl.password": password} if mechanism else {}
    failures: list[Any] = []
    producer = confluent_kafka.Producer({**config, "error_cb": failures.append})
    for value in VALUES:
        producer.produce("confluent-kafka", value)
    while len(producer) and not any(error.code() == confluent_kafka.KafkaError._AUTHENTICATION for error in failures):
        producer.poll(0.1)
    if len(producer):
        producer.purge()
        producer.flush(TIMEOUT_SECONDS)
        raise confluent_kafka.KafkaException(failures[0])
    consumer = confluent_kafka.Consumer({**config, "group.id": "g", "enable.auto.commit": False})
    _, end = consumer.get_watermark_offsets(confluent_kafka.TopicPartition("confluent-kafka", 0), timeout=TIMEOUT_SECONDS)
    consumer.assign([confluent_kafka.TopicPartition("confluent-kafka", 0, end - len(VALUES))])
    found = [message.value() or b"" for message in consumer.consume(len(VALUES), TIMEOUT_SECONDS)]
    consumer.close()
    return found


def with_kafka_python(broker: EmbeddedBroker, root: str, protocol: str, mechanism: str, password: str) -> list[bytes]:
    config: dict[str, Any] = {"bootstrap_servers": broker.bootstrap_servers, "security_protocol": protocol}
    config |= {"ssl_cafile": root} if protocol.endswith("SSL") else {}
    config |= {"sasl_mechanism": mechanism, "sasl_plain_username": "alice", "sasl_plain_password": password} if mechanism else {}
    producer = KafkaProducer(**config)
    try:
        for value in VALUES:
            producer.send("kafka-python", value).get(TIMEOUT_SECONDS)
    finally:
        producer.close()
    consumer = KafkaConsumer("kafka-python", auto_offset_reset="earliest", **config)
    found: list[bytes] = []
    while len(found) < len(VALUES):
        found += [record.value for records in consumer.poll(1_000).values() for record in records]
    consumer.close()
    return found[-len(VALUES) :]


def with_aiokafka(broker: EmbeddedBroker, root: str, protocol: str, mechanism: str, password: str) -> list[bytes]:
    config: dict[str, Any] = {"bootstrap_servers": broker.bootstrap_servers, "security_protocol": protocol}
    config |= {"ssl_context": ssl.create_default_context(cafile=root)} if protocol.endswith("SSL") else {}
    config |= {"sasl_mechanism": mechanism, "sasl_plain_username": "alice", "sasl_plain_password": password} if mechanism else {}

    async def both() -> list[bytes]:
        producer = AIOKafkaProducer(**config)
        try:
            await producer.start()
            for value in VALUES:
                await producer.send_and_wait("aiokafka", value)
        finally:
            await producer.stop()
        consumer = AIOKafkaConsumer("aiokafka", auto_offset_reset="earliest", **config)
        await consumer.start()
        found: list[bytes] = []
        while len(found) < len(VALUES):
            found.append((await consumer.getone()).value)
        await consumer.stop()
        return found[-len(VALUES) :]

    return asyncio.run(asyncio.wait_for(both(), TIMEOUT_SECONDS))


CLIENTS: dict[str, Callable[..., list[bytes]]] = {
    "confluent-kafka": with_confluent_kafka,
    "kafka-python": with_kafka_python,
    "aiokafka": with_aiokafka,
}


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
def test_client_connects_with_each_mechanism(
    protocol: str, mechanism: str, name: str, brokers: Mapping[str, EmbeddedBroker], certificates: Certificates
) -> None:
    assert CLIENTS[name](brokers[protocol], certificates.root, protocol, mechanism, PASSWORD) == VALUES


@pytest.mark.parametrize("mechanism", SASL_MECHANISMS)
def test_wrong_password_is_reported(mechanism: str, brokers: Mapping[str, EmbeddedBroker], certificates: Certificates) -> None:
    """To librdkafka; the two others say so as well, but leave their sockets behind."""
    broker = brokers["SASL_SSL"]
    before = broker._call(lambda core: core.state.authentication.counts["failed"])
    with pytest.raises(confluent_kafka.KafkaException, match="the user name or the password is wrong"):
        with_confluent_kafka(broker, certificates.root, "SASL_SSL", mechanism, "guess")
    assert broker._call(lambda core: core.state.authentication.counts["failed"]) > before


def test_confluent_kafka_adds_users(brokers: Mapping[str, EmbeddedBroker]) -> None:
    """KIP-554, with salts and iterations of librdkafka's."""
    broker = brokers["SASL_PLAINTEXT"]
    config = {"bootstrap.servers": broker.bootstrap_servers, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    admin = AdminClient({**config, "sasl.username": "alice", "sasl.password": PASSWORD})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 10_000)
    for future in admin.alter_user_scram_credentials([UserScramCredentialUpsertion("bob", info, b"b0b")]).values():
        future.result(TIMEOUT_SECONDS)
    answers = admin.describe_user_scram_credentials(["bob"])
    assert isinstance(answers, dict)
    described = answers["bob"].result(TIMEOUT_SECONDS)
    assert [(found.mechanism, found.iterations) for found in described.scram_credential_infos] == [(ScramMechanism.SCRAM_SHA_512, 10_000)]
    bob = AdminClient({**config, "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "bob", "sasl.password": "b0b"})
    assert "aiokafka" in bob.list_topics(timeout=TIMEOUT_SECONDS).topics
