"""Data directories of earlier formats, left by an orderly stop or by SIGKILL: a broker of this tree serves all that is in them, and clients
go on where they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from chaffinch import Consumer, Producer, TopicPartition
from chaffinch.admin.group_offsets import committed_offsets
from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import codes
from chaffinch.identifiers import ProducerIdentity
from tests.upgrades.fixtures import Fixture, fixtures_of, served, unpacked
from tests.upgrades.write_records import GROUPS, OPEN_WRITER, ORDERS, WRITER, produce_once

SHOWN = 12
ISOLATIONS = ("read_committed", "read_uncommitted")
Values = dict[str, dict[str, list[str]]]


@pytest.fixture(params=fixtures_of("broker"))
def fixture(request: pytest.FixtureRequest, tmp_path: Path) -> Fixture:
    return unpacked(request.param, tmp_path)


@pytest.fixture
def broker(fixture: Fixture) -> Iterator[EmbeddedBroker]:
    with served(fixture) as broker:
        yield broker


def values_in(broker: EmbeddedBroker, topic: str, partition: int, isolation: str) -> list[str]:
    """Of all records of a partition, in order; of long ones the beginning."""
    place = TopicPartition(topic, partition)
    options: dict[str, Any] = {"bootstrap_servers": broker.bootstrap_servers, "isolation_level": isolation, "enable_auto_commit": False}
    with Consumer(**options, auto_offset_reset="earliest") as consumer:
        consumer.assign([place])
        (end,) = consumer.end_offsets([place]).values()
        found = []
        while consumer.position(place) < end:
            found += [(record.value or b"").rstrip(b".").decode() for record in consumer.poll(5)]
        return found


def expected_in(fixture: Fixture, *kinds: str) -> dict[TopicPartition, list[str]]:
    """By partition the values that facts of these kinds name."""
    found: dict[TopicPartition, list[str]] = {}
    for kind in kinds:
        for topic, partitions in fixture.facts[kind].items():
            for partition, values in partitions.items():
                found.setdefault(TopicPartition(topic, int(partition)), []).extend(values)
    return found


def abort_what_is_open(broker: EmbeddedBroker) -> Producer:
    """As the producer does that was killed, when it is started again."""
    producer = Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id=OPEN_WRITER)
    producer.init_transactions()
    return producer


def check_all(fixture: Fixture, broker: EmbeddedBroker, added: dict[TopicPartition, list[str]]) -> None:
    """Every record of the fixture once, and what was added behind."""
    for isolation, kinds in zip(ISOLATIONS, (("committed",), ("committed", "aborted", "open")), strict=True):
        for place, values in expected_in(fixture, *kinds).items():
            found = values_in(broker, *place, isolation)
            assert sorted(found) == sorted([*values, *added.get(place, [])]), (isolation, place)
    for topic, values in fixture.facts["latest"].items():
        latest = dict(value.split() for value in values_in(broker, topic, 0, "read_committed"))
        assert {key: f"{key} {version}" for key, version in latest.items()} == values


def test_all_records_are_readable_after_two_starts(fixture: Fixture, broker: EmbeddedBroker) -> None:
    """The second start is on what this tree has written, after a kill."""
    for place, values in expected_in(fixture, "committed", "aborted", "open").items():
        assert sorted(values_in(broker, *place, "read_uncommitted")) == sorted(values), "before anything is aborted"
    abort_what_is_open(broker).close()
    check_all(fixture, broker, {})
    broker.restart(kill=True)
    check_all(fixture, broker, {})


def test_transactional_ids_continue(fixture: Fixture, broker: EmbeddedBroker) -> None:
    """The transaction that is open is never committed, also by a new one of the same id."""
    added = []
    for transactional_id in (OPEN_WRITER, WRITER):
        with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id=transactional_id) as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send("paid", f"more of {transactional_id}".encode())
        added.append(f"more of {transactional_id}")
    check_all(fixture, broker, {TopicPartition("paid", 0): added})
    broker.restart(kill=False)
    check_all(fixture, broker, {TopicPartition("paid", 0): added})


def test_surviving_producer_writes_no_duplicates(fixture: Fixture, broker: EmbeddedBroker) -> None:
    """Its newest batch, sent again because its response was lost, is recognised; the next one follows."""
    known = fixture.facts["retried"]
    identity, sequence = ProducerIdentity(known["producer_id"], known["epoch"]), known["sequence"]
    with SyncClient([broker.bootstrap_servers]) as client:
        assert produce_once(client, identity, sequence) == (codes.NONE.number, sequence)
        assert produce_once(client, identity, sequence + 1) == (codes.NONE.number, sequence + 1)
    assert values_in(broker, "retried", 0, "read_committed") == [f"retried {number}" for number in range(sequence + 2)]


def test_group_offsets_are_kept(fixture: Fixture, broker: EmbeddedBroker) -> None:
    with SyncClient([broker.bootstrap_servers]) as client:
        for group, known in fixture.facts["groups"].items():
            found = committed_offsets(client, group)
            assert {str(place): committed.offset for place, committed in found.items()} == known["offsets"], group
            assert {committed.metadata for committed in found.values()} == {known["metadata"]}, group


@pytest.mark.parametrize("protocol", GROUPS)
def test_new_member_continues_at_group_offsets(fixture: Fixture, broker: EmbeddedBroker, protocol: str) -> None:
    """The members that were killed with the broker, or before it, do not come back: their sessions end first."""
    group, _ = GROUPS[protocol]
    wanted = sum(ORDERS - offset for offset in fixture.facts["groups"][group]["offsets"].values())
    with closing(member_of(broker, group, protocol)) as member:
        found: list[Any] = []
        while len(found) < wanted:
            found += read_some(member)
        assert read_some(member) == []
    assert len(set(found)) == wanted


def member_of(broker: EmbeddedBroker, group: str, protocol: str) -> Any:
    import confluent_kafka

    config = {"bootstrap.servers": broker.bootstrap_servers, "group.id": group, "group.protocol": protocol}
    member = confluent_kafka.Consumer({**config, "auto.offset.reset": "error", "enable.auto.commit": False})
    member.subscribe(["orders"])
    return member


def read_some(member: Any) -> list[tuple[int, bytes]]:
    messages = member.consume(100, 0.5)
    assert [message.error() for message in messages if message.error()] == []
    return [(message.partition(), message.value()) for message in messages]
