"""Serializers and deserializers of confluent-kafka, with its mock registry, as options of our clients; and JSON."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AsyncAvroSerializer, AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import Deserializer, MessageField, SerializationContext, Serializer, StringDeserializer, StringSerializer
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from chaffinch import AsyncProducer, Consumer, Producer
from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.errors import ConfigException, RecordDeserializationException

POLL_S = 60
_numbers = itertools.count()
AVRO = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}'
JSON_SCHEMA = '{"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}'


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    name = f"orders-{next(_numbers)}"
    broker.create_topic(name, 1)
    return name


@pytest.fixture
def registry() -> SchemaRegistryClient:
    return SchemaRegistryClient.new_client({"url": "mock://"})


def consumer_of(broker: EmbeddedBroker, topic: str, **options: Any) -> Consumer[Any, Any]:
    return Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest", **options})


def read(broker: EmbeddedBroker, topic: str, **options: Any) -> Any:
    """The first record."""
    with consumer_of(broker, topic, **options) as consumer:
        consumer.subscribe([topic])
        (record,) = consumer.poll(POLL_S)
        return record


def pair(kind: str, registry: SchemaRegistryClient) -> tuple[Any, Any, Any]:
    """Serializer, deserializer and a value."""
    if kind == "avro":
        return AvroSerializer(registry, AVRO), AvroDeserializer(registry), {"id": 7}
    if kind == "json schema":
        return JSONSerializer(JSON_SCHEMA, registry), JSONDeserializer(JSON_SCHEMA, schema_registry_client=registry), {"id": 7}
    plain = {"use.deprecated.format": False}
    order = order_message()
    return ProtobufSerializer(order, registry, plain), ProtobufDeserializer(order, plain, registry), order(id=7)


@cache
def order_message() -> Any:
    """The class of the message `shop.Order`, as `protoc` makes it."""
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    field = file.message_type.add(name="Order").field.add(name="id", number=1)
    field.type, field.label = field.TYPE_INT32, field.LABEL_OPTIONAL
    pool = descriptor_pool.Default()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


@pytest.mark.parametrize("kind", ["avro", "json schema", "protobuf"])
def test_values_of_a_schema_are_read_as_written(broker: EmbeddedBroker, topic: str, registry: SchemaRegistryClient, kind: str) -> None:
    serializer, deserializer, value = pair(kind, registry)
    with Producer(bootstrap_servers=broker.bootstrap_servers, key_serializer=StringSerializer(), value_serializer=serializer) as producer:
        producer.send(topic, value, key="k", headers=[("h", b"1")]).result()
    assert registry.get_subjects() == [f"{topic}-value"]
    record = read(broker, topic, **{"key.deserializer": StringDeserializer(), "value.deserializer": deserializer})
    assert (record.key, record.value, list(record.headers)) == ("k", value, [("h", b"1")])


def test_schema_ids_in_headers_are_sent(broker: EmbeddedBroker, topic: str, registry: SchemaRegistryClient) -> None:
    """Its deserializer refuses payloads of fewer than 6 bytes, also where they have no prefix."""
    schema = '{"type": "record", "name": "Order", "fields": [{"name": "note", "type": "string"}]}'
    serializer = AvroSerializer(registry, schema, conf={"schema.id.serializer": header_schema_id_serializer})
    with Producer(bootstrap_servers=broker.bootstrap_servers, value_serializer=serializer) as producer:
        producer.send(topic, {"note": "longer"}, headers=(("h", b"1"),)).result()
    record = read(broker, topic, **{"value.deserializer": AvroDeserializer(registry)})
    assert record.value == {"note": "longer"}
    assert [name for name, _ in record.headers] == ["h", "__value_schema_id"]


def test_async_producer_calls_serializers_too(broker: EmbeddedBroker, topic: str, registry: SchemaRegistryClient) -> None:
    async def send() -> None:
        async with AsyncProducer(bootstrap_servers=broker.bootstrap_servers, value_serializer=AvroSerializer(registry, AVRO)) as producer:
            await producer.send(topic, {"id": 9})

    asyncio.run(send())
    assert read(broker, topic, **{"value.deserializer": AvroDeserializer(registry)}).value == {"id": 9}


class Recording(Serializer):
    def __init__(self) -> None:
        self.calls: list[tuple[str, str, Any]] = []

    def __call__(self, obj: Any, ctx: SerializationContext | None = None) -> bytes:
        assert ctx is not None
        self.calls.append((ctx.topic, ctx.field, list(ctx.headers or ())))
        return str(obj).encode()


class RecordingDeserializer(Deserializer):
    def __init__(self) -> None:
        self.calls: list[tuple[str, str, Any]] = []

    def __call__(self, value: bytes | None, ctx: SerializationContext | None = None) -> bytes | None:
        assert ctx is not None
        self.calls.append((ctx.topic, ctx.field, list(ctx.headers or ())))
        return value


def test_context_has_topic_field_and_headers(broker: EmbeddedBroker, topic: str) -> None:
    """Null keys and values stay null, without a call."""
    serializer, deserializer = Recording(), RecordingDeserializer()
    with Producer(bootstrap_servers=broker.bootstrap_servers, key_serializer=serializer, value_serializer=serializer) as producer:
        producer.send(topic, 1, key=2, headers=[("h", b"x")]).result()
        producer.send(topic, None).result()
    expected = {(topic, MessageField.KEY, "h"), (topic, MessageField.VALUE, "h")}
    assert {(name, field, headers[0][0]) for name, field, headers in serializer.calls} == expected
    assert len(serializer.calls) == 2
    with consumer_of(broker, topic, **{"key.deserializer": deserializer, "value.deserializer": deserializer}) as consumer:
        consumer.subscribe([topic])
        found: list[Any] = []
        while len(found) < 2:
            found += consumer.poll(POLL_S)
    assert [(record.key, record.value) for record in found] == [(b"2", b"1"), (None, None)]
    assert {(name, field, headers[0]) for name, field, headers in deserializer.calls} == {
        (topic, MessageField.KEY, ("h", b"x")), (topic, MessageField.VALUE, ("h", b"x")),
    }  # fmt: skip
    assert len(deserializer.calls) == 2


def test_value_that_does_not_fit_the_schema_is_refused_at_send(broker: EmbeddedBroker, topic: str, registry: SchemaRegistryClient) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers, value_serializer=AvroSerializer(registry, AVRO)) as producer:
        with pytest.raises(Exception, match="id") as caught:
            producer.send(topic, {"id": "seven"})
        assert caught.value.__notes__ == [
            f"raised by the value.serializer AvroSerializer, which was called for the value of a record of '{topic}'"
        ]


def test_bytes_without_a_schema_stop_the_consumer_at_them(broker: EmbeddedBroker, topic: str, registry: SchemaRegistryClient) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send(topic, b"plain").result()
    with pytest.raises(RecordDeserializationException, match=f"the value at offset 0 of {topic}-0 cannot be deserialized"):
        read(broker, topic, **{"value.deserializer": AvroDeserializer(registry)})


def test_serializer_of_asyncio_is_refused() -> None:
    async def made() -> Any:
        from confluent_kafka.schema_registry import AsyncSchemaRegistryClient

        return await AsyncAvroSerializer(AsyncSchemaRegistryClient.new_client({"url": "mock://"}), AVRO)

    with pytest.raises(ConfigException, match="cannot be an AsyncAvroSerializer: its results have to be awaited, give a AvroSerializer"):
        Producer(bootstrap_servers="127.0.0.1:1", value_serializer=asyncio.run(made()))


VALUES: Mapping[str, tuple[Any, bytes]] = {
    "object": ({"a": [1, None, "é"]}, '{"a":[1,null,"é"]}'.encode()),
    "number": (1.5, b"1.5"),
    "text": ("x", b'"x"'),
}


@pytest.mark.parametrize("value", VALUES)
def test_json_is_built_in(broker: EmbeddedBroker, topic: str, value: str) -> None:
    given, sent = VALUES[value]
    with Producer(bootstrap_servers=broker.bootstrap_servers, value_serializer="json", key_serializer="json") as producer:
        producer.send(topic, given, key=given).result()
    assert broker.read(topic).column("value").to_pylist() == [sent]
    record = read(broker, topic, **{"key.deserializer": "json", "value.deserializer": "json"})
    assert (record.key, record.value) == (given, given)


@pytest.mark.parametrize(("value", "kind"), [({1, 2}, TypeError), (float("nan"), ValueError)])
def test_value_without_json_is_refused_at_send(broker: EmbeddedBroker, topic: str, value: Any, kind: type[Exception]) -> None:
    with (
        Producer(bootstrap_servers=broker.bootstrap_servers, value_serializer="json") as producer,
        pytest.raises(kind),
    ):
        producer.send(topic, value)


def test_confluent_kafka_is_only_needed_for_its_objects(broker: EmbeddedBroker, topic: str) -> None:
    code = (
        "import sys; sys.modules['confluent_kafka'] = None\n"
        "from chaffinch import Producer\n"
        f"with Producer(bootstrap_servers={broker.bootstrap_servers!r}, value_serializer='json', key_serializer=str) as producer:\n"
        f"    producer.send({topic!r}, [1], key=2).result()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert broker.read(topic).to_pylist()[0]["value"] == b"[1]"
