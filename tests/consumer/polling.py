"""Polls until something is so, with a limit: how tests wait for brokers and other members."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

from chaffinch import Consumer, ConsumerRecord, EmbeddedBroker, OffsetAndMetadata, Producer, TopicPartition

LIMIT_S = 60


class Member(Protocol):
    """Of a group; of whatever client."""

    def assignment(self) -> Collection[Any]: ...


def partition_counts(*consumers: Member) -> list[int]:
    """How many partitions each has."""
    return sorted(len(consumer.assignment()) for consumer in consumers)


def poll_until(condition: Callable[[], bool], *consumers: Consumer) -> list[ConsumerRecord]:
    """All records that the consumers returned in the meantime."""
    found: list[ConsumerRecord] = []
    ends = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < ends, f"not so after {LIMIT_S} s; polled {found[:3]} ... ({len(found)} records)"
        for consumer in consumers:
            found += consumer.poll(0.02)
    return found


def read(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    """At least this many records."""
    found: list[ConsumerRecord] = []
    ends = time.monotonic() + LIMIT_S
    while len(found) < count:
        assert time.monotonic() < ends, f"{len(found)} of {count} records after {LIMIT_S} s"
        found += consumer.poll(0.1)
    return found


def write(broker: EmbeddedBroker, topic: str, values: Iterable[bytes], partition: int = 0) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers, linger_ms=0) as producer:
        for future in [producer.send(topic, value, partition=partition) for value in values]:
            future.result(LIMIT_S)


def committed(consumer: Consumer, tp: TopicPartition) -> OffsetAndMetadata:
    """What is committed of this partition; something must be."""
    found = consumer.committed([tp])[tp]
    assert found is not None
    return found


def values_of(records: Iterable[ConsumerRecord]) -> list[Any]:
    return [record.value for record in records]
