"""Names of other clients lead to ours: as attributes, in imports and as arguments."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import pytest

import chaffinch
from chaffinch import Consumer, EmbeddedBroker, Producer, foreign_names
from chaffinch.admin import Admin

SERVERS = {"bootstrap.servers": "127.0.0.1:1"}
TABLES = {
    Producer: foreign_names.PRODUCER_HINTS,
    Consumer: foreign_names.CONSUMER_HINTS,
    EmbeddedBroker: foreign_names.BROKER_HINTS,
    Admin: foreign_names.ADMIN_HINTS,
}


@pytest.fixture
def clients() -> Iterator[dict[type, Any]]:
    with Producer(SERVERS) as producer, Consumer(SERVERS) as consumer, EmbeddedBroker() as broker, Admin(SERVERS) as admin:
        yield {Producer: producer, Consumer: consumer, EmbeddedBroker: broker, Admin: admin}


@pytest.mark.parametrize(
    ("kind", "name", "says"),
    [
        (Producer, "produce", "'Producer' object has no attribute 'produce': it is send(topic, value, key=..., on_delivery=...)"),
        (Producer, "poll", "outcomes need no call, they come through the future of send()"),
        (Producer, "list_topics", "call partitions_for(topic) for one topic"),
        (Producer, "send_and_wait", "call send(...).result()"),
        (Producer, "initTransactions", "it is init_transactions"),
        (Producer, "partitionsFor", "it is partitions_for"),
        (Consumer, "consume", "it is poll(timeout)"),
        (Consumer, "getmany", "it is poll(timeout)"),
        (Consumer, "commitSync", "it is commit()"),
        (Consumer, "seekToBeginning", "it is seek_to_beginning"),
        (Consumer, "get_watermark_offsets", "beginning_offsets(partitions)"),
        (EmbeddedBroker, "get_bootstrap_server", "it is the attribute bootstrap_servers"),
        (EmbeddedBroker, "stop", "it is close()"),
        (Admin, "create_topics", "call create_topic(name, ...) for each"),
        (Admin, "listConsumerGroups", "it is list_groups()"),
        (Admin, "describeTopics", "it is describe_topics"),
    ],
)
def test_attribute_of_another_client_has_a_hint(clients: dict[type, Any], kind: type, name: str, says: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(says)):
        getattr(clients[kind], name)
    assert not hasattr(clients[kind], name)


@pytest.mark.parametrize("kind", TABLES)
def test_other_missing_attribute_has_no_hint(clients: dict[type, Any], kind: type) -> None:
    with pytest.raises(AttributeError, match=rf"^'{kind.__name__}' object has no attribute 'no_such_thing'$") as raised:
        _ = clients[kind].no_such_thing
    assert (raised.value.name, raised.value.obj) == ("no_such_thing", clients[kind])
    assert not hasattr(clients[kind], "__deepcopy__")
    with pytest.raises(TypeError):
        copy.copy(clients[kind])


@pytest.mark.parametrize(("kind", "table"), TABLES.items())
def test_hints_hide_no_attribute_and_name_existing_ones(kind: type, table: dict[str, str]) -> None:
    assert not [name for name in table if hasattr(kind, name)]
    for hint in table.values():
        if found := re.match(r"(?:it is|call) (?:the attribute )?(\w+)", hint):
            assert any(hasattr(each, found[1]) for each in (*TABLES, chaffinch)) or found[1] in ("a", "chaffinch", "the"), hint


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("KafkaProducer", "it is Producer"),
        ("KafkaConsumer", "it is Consumer"),
        ("AdminClient", "it is chaffinch.admin.Admin"),
        ("SerializingProducer", "use Producer with key_serializer and value_serializer"),
    ],
)
def test_import_of_another_client_has_a_hint(name: str, says: str) -> None:
    with pytest.raises(ImportError, match=rf"^cannot import name '{name}' from 'chaffinch': {re.escape(says)}$"):
        exec(f"from chaffinch import {name}", {})
    with pytest.raises(AttributeError, match=rf"^module 'chaffinch' has no attribute '{name}': {re.escape(says)}$"):
        getattr(chaffinch, name)
    assert not hasattr(chaffinch, name)


def test_import_from_admin_of_another_client_has_a_hint() -> None:
    says = "cannot import name 'NewTopic' from 'chaffinch.admin': call create_topic(name, ...) of Admin"
    with pytest.raises(ImportError, match=f"^{re.escape(says)}$"):
        exec("from chaffinch.admin import NewTopic", {})
    with pytest.raises(ImportError, match=r"cannot import name 'no_such_thing' from 'chaffinch\.admin'"):
        exec("from chaffinch.admin import no_such_thing", {})


def test_other_missing_import_has_no_hint() -> None:
    with pytest.raises(ImportError, match="cannot import name 'no_such_thing' from 'chaffinch'"):
        exec("from chaffinch import no_such_thing", {})
    assert not hasattr(chaffinch, "no_such_thing")
    assert not [name for name in foreign_names.MODULE_HINTS if name in chaffinch.__all__]


@pytest.mark.parametrize(
    ("kind", "method", "arguments", "says"),
    [
        (Consumer, "poll", {"timeout_ms": 100}, "poll() got an unexpected keyword argument 'timeout_ms': it is timeout, in seconds"),
        (Consumer, "poll", {"max_records": 5}, "set the option max.poll.records"),
        (Consumer, "poll", {"no_such": 5}, "poll() got an unexpected keyword argument 'no_such'"),
        (Consumer, "poll_table", {"timeout_ms": 100}, "it is timeout, in seconds"),
        (Consumer, "commit", {"message": None}, "give offsets: {partition: record.offset + 1}"),
        (Consumer, "close", {"autocommit": False}, "set the option enable.auto.commit"),
        (Producer, "flush", {"timeout_ms": 100}, "it is timeout, in seconds"),
        (Producer, "close", {"timeout_ms": 100}, "it is timeout, in seconds"),
        (Producer, "send", {"topic": "t", "callback": print}, "unexpected keyword argument 'callback': it is on_delivery"),
        (Producer, "send", {"topic": "t", "timestamp": 1}, "unexpected keyword argument 'timestamp': it is timestamp_ms"),
        (Producer, "send", {"topic": "t", "no_such": 1}, "send() got an unexpected keyword argument 'no_such'"),
    ],
)
def test_argument_of_another_client_has_a_hint(
    clients: dict[type, Any], kind: type, method: str, arguments: dict[str, Any], says: str
) -> None:
    with pytest.raises(TypeError, match=re.escape(says)):
        getattr(clients[kind], method)(**arguments)
