"""Wrong arguments of EmbeddedBroker: one line each that names the argument, the value and what is allowed, and nothing left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chaffinch import EmbeddedBroker, errors
from chaffinch.errors import ConfigException

BAD: list[tuple[dict[str, Any], str]] = [
    ({"topics": "orders"}, r"topics='orders': expected a list of names"),
    ({"topics": b"orders"}, r"topics=b'orders': expected a list of names"),
    ({"topics": bytearray(b"orders")}, r"topics=bytearray\(b'orders'\): expected a list of names"),
    ({"topics": 5}, r"topics=5: expected a list of names"),
    ({"topics": [1]}, r"topics: topic names must be strings, not 1"),
    ({"topics": {"orders": {"partitions": True}}}, r"topic 'orders': partitions=True: expected a whole number"),
    ({"topics": {"orders": {"partitions": "x"}}}, r"topic 'orders': partitions='x': expected a whole number"),
    ({"topics": {"orders": {"partitions": 0}}}, r"topic 'orders': partitions=0: expected a whole number of at least 1"),
    ({"topics": {"orders": True}}, r"topic 'orders': partitions=True"),
    ({"topics": {"orders": "3"}}, r"topic 'orders': partitions='3'"),
    ({"topics": {"orders": {"partition": 3}}}, r"topic 'orders': unknown option 'partition': .* 'partitions'"),
    ({"topics": {"orders": {"replication.factor": 3}}}, r"topic 'orders': unknown option 'replication.factor': .* 'replication'"),
    ({"topics": {"orders": {"retention.ms": None}}}, r"topic 'orders': .*option retention.ms cannot be None"),
    ({"brokers": 0}, r"brokers=0: expected a whole number from 1 to 1000"),
    ({"brokers": 5000}, r"brokers=5000: expected"),
    ({"brokers": "3"}, r"brokers='3': expected"),
    ({"brokers": True}, r"brokers=True: expected"),
    ({"data_dir": 5}, r"data_dir=5: expected the path"),
    ({"data_dir": ""}, r"data_dir='': expected the path"),
    ({"port": "9092"}, r"port='9092': expected a whole number from 0 to 65535"),
    ({"port": -1}, r"port=-1: expected"),
    ({"port": 99999}, r"port=99999: expected"),
    ({"port": 65535, "brokers": 3}, r"3 declared nodes from 127.0.0.1:65535 on: the last port would be 65537"),
    ({"config": {"flush.policy": None}}, r"config: option flush.policy cannot be None"),
    ({"config": [("ssl.key.password", "S3cret")]}, r"config: expected a mapping of option names .* type list$"),
    ({"config": {1: "x"}}, r"config: option names must be strings, not 1"),
    ({"log_retention_ms": None}, r"keyword arguments: option log_retention_ms cannot be None"),
    ({"topic": ["orders"]}, r"unknown argument 'topic': the nearest is 'topics'"),
    ({"log_retention_mss": 5}, r"unknown option 'log_retention_mss': the nearest known one is 'log_retention_ms'"),
    ({"log_retention_ms": "x"}, r"option log.retention.ms cannot be 'x': it must be a whole number"),
    ({"log_retention_ms": 5, "config": {"log_retention_ms": 6}}, r"option log_retention_ms is given twice: in config and as a keyword"),
    ({"log_retention_ms": 5, "config": {"log.retention.ms": 6}}, r"option log.retention.ms is given twice"),
    ({"config": {"default.replication.factor": 3}}, r"default.replication.factor=3, but only 1 node is declared"),
]


@pytest.mark.parametrize(("arguments", "says"), BAD, ids=lambda value: str(value))
def test_invalid_argument_is_refused_with_one_line(arguments: dict[str, Any], says: str, tmp_path: Path) -> None:
    given = {"data_dir": tmp_path / "data", **arguments}
    with pytest.raises(ConfigException, match=says) as refused:
        EmbeddedBroker(**given)
    assert "\n" not in str(refused.value)
    with EmbeddedBroker(data_dir=tmp_path / "data"):
        pass  # The directory is free.


@pytest.mark.parametrize("given", [{"num_partitions": 3}, {"config": {"num.partitions": 3}}, {"config": {"num_partitions": 3}}], ids=str)
def test_broker_options_are_keywords_or_in_config(given: dict[str, Any]) -> None:
    with EmbeddedBroker(**given, group_initial_rebalance_delay_ms=7) as broker:
        broker.create_topic("orders")
        assert broker.topics() == {"orders": 3}
        assert "group.initial.rebalance.delay.ms" not in broker._config, "the broker's own default does not replace a keyword"


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics=["orders"], brokers=2) as broker:
        yield broker


METHODS: list[tuple[Callable[[Any], Any], type[Exception], str]] = [
    (lambda broker: broker.advance(1e15), ConfigException, r"seconds from 0 to 315360000 \(ten years\); the clock has not moved"),
    (lambda broker: broker.stop_node("0"), ConfigException, r"node_id='0': expected a whole number"),
    (lambda broker: broker.stop_node(True), ConfigException, r"node_id=True: expected a whole number"),
    (lambda broker: broker.start_node("0"), ConfigException, r"node_id='0'"),
    (lambda broker: broker.stop_node(7), ConfigException, r"nodes 0 to 1"),
    (lambda broker: broker.counters("ordres"), errors.UnknownTopicOrPartitionException, r"^topic 'ordres' does not exist; .* 'orders'$"),
    (lambda broker: broker.counters(5), ConfigException, r"topic=5: expected a string"),
    (lambda broker: broker.read("ordres"), errors.UnknownTopicOrPartitionException, r"^topic 'ordres' does not exist; .* 'orders'$"),
    (lambda broker: broker.read("zzz"), errors.UnknownTopicOrPartitionException, r"^topic 'zzz' does not exist; none has a name like it$"),
    (lambda broker: broker.read("orders", "committed"), ConfigException, r"isolation='committed': expected 'read_committed' or"),
    (lambda broker: broker.create_topic("a", partitions=0), ConfigException, r"partitions=0: expected a whole number of at least 1"),
    (lambda broker: broker.create_topic("a", partitions=-2), ConfigException, r"partitions=-2: expected a whole number of at least 1"),
    (lambda broker: broker.create_topic("a", replication="2"), ConfigException, r"replication='2': expected"),
    (lambda broker: broker.create_topic(5), ConfigException, r"name=5: expected a string"),
    (
        lambda broker: broker.create_topic("a", config=["x=y"]),
        ConfigException,
        r"config: expected a mapping of option names to values, not a value of type list$",
    ),
    (
        lambda broker: broker.create_topic("a", config={"retention.ms": None}),
        ConfigException,
        r"config: option retention.ms cannot be None",
    ),
    (lambda broker: broker.create_topic("a", replication=3), errors.InvalidReplicationFactorException, r"3 is more than the 2 nodes"),
]


def test_error_for_one_node_uses_the_singular() -> None:
    with EmbeddedBroker() as broker, pytest.raises(errors.InvalidReplicationFactorException, match="is more than the 1 node of this"):
        broker.create_topic("a", replication=3)


@pytest.mark.parametrize(("call", "error", "says"), METHODS, ids=[row[2] for row in METHODS])
def test_invalid_argument_of_a_method_is_refused_with_one_line(
    broker: EmbeddedBroker, call: Callable[[Any], Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says) as refused:
        call(broker)
    assert "\n" not in str(refused.value)
    assert broker.topics() == {"orders": 1}
    assert set(broker.nodes().values()) == {"running"}
