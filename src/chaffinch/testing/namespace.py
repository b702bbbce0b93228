"""Namespace of one test on a shared broker: topic, group and transactional id names that no other test uses, and clients that it closes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.broker.seeding import Rows
from chaffinch.consumer.consumer import Consumer
from chaffinch.producer.producer import Producer
from chaffinch.public_names import exported_from

if TYPE_CHECKING:
    import pyarrow as pa

_NUMBERS: Final = itertools.count(1)
"""One count for all namespaces of the process; every process has brokers of its own."""


@exported_from("chaffinch.testing")
class KafkaNamespace:
    """Fresh names on a running broker, with the clients of one test.

        with KafkaNamespace(broker) as kafka:
            orders = kafka.topic("orders", partitions=3)
            kafka.producer().send(orders, b"tea").result()

    `close` closes the clients and deletes the topics.

    Args:
        broker: the broker to use; it stays open.
    """

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker
        self._clients = ExitStack()
        self._topics: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the clients, newest first, then delete the topics that still exist."""
        try:
            self._clients.close()
        finally:
            existing = self.broker.topics()
            for name in self._topics:
                if name in existing:
                    self.broker.delete_topic(name)
            self._topics.clear()

    @property
    def bootstrap_servers(self) -> str:
        """The broker's addresses, for clients of any library."""
        return self.broker.bootstrap_servers

    def name(self, prefix: str) -> str:
        """A name that no other namespace of this process has: `prefix` and a number."""
        return f"{prefix}-{next(_NUMBERS)}"

    def topic(self, prefix: str = "topic", partitions: int = 1, replication: int = -1, config: Mapping[str, Any] | None = None) -> str:
        """Create a topic with a fresh name.

        Args:
            prefix: beginning of the name.
            partitions: number of partitions.
            replication: replication factor; -1 for the broker's default.
            config: topic options, for example `{"cleanup.policy": "compact"}`.

        Returns:
            The name.

        Raises:
            ConfigException: an argument or option is invalid.
            ApiException: the broker refuses the topic.
        """
        name = self.name(prefix)
        self.broker.create_topic(name, partitions, replication, config)
        self._topics.append(name)
        return name

    def group(self, prefix: str = "group") -> str:
        """A fresh consumer group id."""
        return self.name(prefix)

    def transactional_id(self, prefix: str = "transactions") -> str:
        """A fresh transactional id."""
        return self.name(prefix)

    def producer(self, **options: Any) -> Producer:
        """A producer of this broker, closed with the namespace.

        Args:
            options: producer options as keyword arguments, for example `linger_ms=5`.

        Raises:
            ConfigException: an option is wrong.
        """
        return self._clients.enter_context(Producer(**{"bootstrap_servers": self.bootstrap_servers, **options}))

    def consumer(self, *topics: str, **options: Any) -> Consumer:
        """A consumer of this broker that reads `topics` from their beginning, in a fresh group; closed with the namespace.

        Args:
            topics: names of the topics to subscribe to; none for a consumer without a subscription.
            options: consumer options as keyword arguments; they replace the defaults above.

        Raises:
            ConfigException: an option is wrong.
        """
        defaults = {"bootstrap_servers": self.bootstrap_servers, "group_id": self.group(), "auto_offset_reset": "earliest"}
        consumer = self._clients.enter_context(Consumer(**{**defaults, **options}))
        if topics:
            consumer.subscribe(list(topics))
        return consumer

    def seed(self, topic: str, rows: Rows) -> None:
        """Write test data, see `EmbeddedBroker.seed`."""
        self.broker.seed(topic, rows)

    def read(self, topic: str, **filters: Any) -> pa.Table:
        """The records of a topic, see `EmbeddedBroker.read`."""
        return self.broker.read(topic, **filters)

    def wait_for(self, topic: str, count: int, *, timeout: float = 10.0) -> pa.Table:
        """Wait until a topic has at least `count` records, see `EmbeddedBroker.wait_for`."""
        return self.broker.wait_for(topic, count, timeout=timeout)
