"""Testing kit for programs that use Kafka: a broker inside the test process, and pytest fixtures.

    def test_an_order_is_billed(kafka):
        orders = kafka.topic("orders")
        kafka.seed(orders, ["tea"])
        bill(kafka.bootstrap_servers, orders)          # The program under test, with any Kafka client.
        assert kafka.wait_for(orders, 2).num_rows == 2

Installing chaffinch is enough: pytest finds the fixtures `kafka_broker`, `kafka_broker_options` and `kafka` by the plugin
`chaffinch.testing.plugin`. Without pytest, use `EmbeddedBroker` and `KafkaNamespace`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from chaffinch.broker.embedded import EmbeddedBroker
    from chaffinch.testing.namespace import KafkaNamespace

__all__ = ["EmbeddedBroker", "KafkaNamespace"]


def __getattr__(name: str) -> Any:
    # On first use (PEP 562): pytest imports this package in every project that has chaffinch installed.
    if name == "EmbeddedBroker":
        from chaffinch.broker.embedded import EmbeddedBroker

        return EmbeddedBroker
    if name == "KafkaNamespace":
        from chaffinch.testing.namespace import KafkaNamespace

        return KafkaNamespace
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
