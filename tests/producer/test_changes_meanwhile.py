"""What happens to topics and transactions while a producer uses them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from chaffinch import EmbeddedBroker, Producer
from chaffinch.admin.options import connect
from chaffinch.admin.topics import delete_topics
from chaffinch.admin.transactions import describe_transaction
from chaffinch.errors import (
    ApplicationRecoverableException,
    TimeoutException,
    UnknownTopicOrPartitionException,
)

LATEST_S = 20
Make = Callable[..., Producer]


def deleted(broker: EmbeddedBroker, topic: str) -> None:
    with connect(bootstrap_servers=broker.bootstrap_servers) as client:
        delete_topics(client, [topic])


class TestATopicThatIsDeleted:
    # fmt: off
    LIMITS = (
        # the option                                                   the error
        ({"retry_unknown_topic_partition_ms": 100},                    UnknownTopicOrPartitionException),
        ({"delivery_timeout_ms": 500, "request_timeout_ms": 400},      TimeoutException),
    )
    # fmt: on

    @pytest.mark.parametrize(("options", "error_class"), LIMITS)
    def test_its_records_fail_in_time(
        self, producer_of: Make, strict_broker: EmbeddedBroker, options: dict[str, Any], error_class: type[Exception]
    ) -> None:
        with producer_of(strict_broker, **options) as producer:
            producer.send("orders", b"before", partition=0).result(LATEST_S)
            deleted(strict_broker, "orders")
            error = producer.send("orders", b"after", partition=0).exception(LATEST_S)
            assert type(error) is error_class
            assert producer.send("small", b"others go on").result(LATEST_S).offset == 0

    def test_made_anew_it_gets_what_was_waiting(self, producer_of: Make, strict_broker: EmbeddedBroker) -> None:
        with producer_of(strict_broker) as producer:
            strict_broker.create_topic("again", 1)
            producer.send("again", b"lost with its topic").result(LATEST_S)
            deleted(strict_broker, "again")
            waiting = producer.send("again", b"waits")
            strict_broker.create_topic("again", 1)
            assert waiting.result(LATEST_S).offset == 0
            assert producer.send("again", b"follows").result(LATEST_S).offset == 1
        assert strict_broker.read("again").column("value").to_pylist() == [b"waits", b"follows"]


def test_a_transaction_that_takes_too_long(producer_of: Make, broker: EmbeddedBroker) -> None:
    """The coordinator aborts it and fences its producer, who hears of it with whatever it does next; a new one goes on."""
    options = {"transactional_id": "slow", "transaction_timeout_ms": 200}
    with producer_of(broker, **options) as slow, connect(bootstrap_servers=broker.bootstrap_servers) as client:
        slow.init_transactions()
        slow.begin_transaction()
        slow.send("orders", b"late").result(LATEST_S)
        ends = time.monotonic() + LATEST_S
        while "complete" not in str(describe_transaction(client, "slow").state).lower():
            assert time.monotonic() < ends
        with pytest.raises(ApplicationRecoverableException):
            slow.commit_transaction()
        with pytest.raises(ApplicationRecoverableException):
            slow.begin_transaction()
    with producer_of(broker, **options) as fresh:
        fresh.init_transactions()
        with fresh.transaction():
            fresh.send("orders", b"in time")
    assert broker.read("orders").column("value").to_pylist() == [b"in time"]
