"""Responses of a real broker that do not arrive although the connection lives."""

from __future__ import annotations

import time

import pytest

from chaffinch import EmbeddedBroker, TopicPartition
from tests.consumer.conftest import ConsumerOf
from tests.consumer.polling import LIMIT_S, poll_until

NEVER_MS = 600_000
OPTIONS = {"request_timeout_ms": 500, "session_timeout_ms": 20_000, "heartbeat_interval_ms": 100}


@pytest.mark.parametrize("instance", [None, "i"])
@pytest.mark.parametrize("api", ["JoinGroup", "SyncGroup", "Heartbeat"])
def test_member_gets_its_partitions_though_a_response_is_lost(
    broker: EmbeddedBroker, topic: str, name: str, consumer_of: ConsumerOf, api: str, instance: str | None
) -> None:
    broker.faults.add(api=api, action="delay", delay_ms=NEVER_MS, count=1, client_id=name)
    consumer = consumer_of(broker, client_id=name, group_instance_id=instance, **OPTIONS)
    consumer.subscribe([topic])
    poll_until(lambda: consumer.assignment() == {TopicPartition(topic, 0)} and not broker.faults.list(), consumer)
    generation = consumer.group_metadata().generation_id
    consumer.commit()
    assert consumer.group_metadata().generation_id == generation


def test_lost_response_to_a_second_join(broker: EmbeddedBroker, name: str, consumer_of: ConsumerOf) -> None:
    """The other member waits only for this one: the group continues with both."""
    broker.create_topic(name, 2)
    first, second = (consumer_of(broker, client_id=f"{name}{number}", **OPTIONS) for number in range(2))
    first.subscribe([name])
    poll_until(lambda: len(first.assignment()) == 2, first)
    broker.faults.add(api="JoinGroup", action="delay", delay_ms=NEVER_MS, count=1, client_id=f"{name}0")
    second.subscribe([name])
    poll_until(lambda: len(first.assignment()) == len(second.assignment()) == 1, first, second)


def test_member_that_is_slow_to_join_again_is_waited_for(broker: EmbeddedBroker, name: str, consumer_of: ConsumerOf) -> None:
    """Several probes see a group that prepares its rebalance, and change nothing."""
    broker.create_topic(name, 2)
    slow, other = (consumer_of(broker, client_id=f"{name}{number}", **OPTIONS) for number in range(2))
    slow.subscribe([name])
    poll_until(lambda: len(slow.assignment()) == 2, slow)
    broker.faults.add(api="DescribeGroups", action="delay", delay_ms=1, count=3, client_id=f"{name}1")
    other.subscribe([name])
    poll_until(lambda: not broker.faults.list(), other)
    assert other.metrics()["join-total"] == 2, "one for the member id, one that waits"
    generation = slow.group_metadata().generation_id
    poll_until(lambda: len(slow.assignment()) == len(other.assignment()) == 1, slow, other)
    assert slow.group_metadata().generation_id == other.group_metadata().generation_id == generation + 1


def test_close_leaves_the_group_though_the_response_is_lost(broker: EmbeddedBroker, topic: str, name: str, consumer_of: ConsumerOf) -> None:
    broker.faults.add(api="LeaveGroup", action="delay", delay_ms=NEVER_MS, count=1, client_id=name)
    consumer = consumer_of(broker, client_id=name)
    consumer.subscribe([topic])
    poll_until(lambda: bool(consumer.assignment()), consumer)
    begins = time.monotonic()
    consumer.close(LIMIT_S)
    assert time.monotonic() - begins < LIMIT_S / 2
    assert not broker.faults.list()
