"""The pytest plugin as a project uses it that has chaffinch installed: pytest runs its tests in a process of their own."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

PROJECT = """
import asyncio, json
import pytest
from confluent_kafka import Consumer as ConfluentConsumer, Producer as ConfluentProducer
from kafka import KafkaProducer

@pytest.mark.parametrize("number", range(4))
def test_names_are_fresh(kafka, number):
    orders = kafka.topic("orders", config={"cleanup.policy": "compact"})
    assert kafka.read(orders).num_rows == 0
    kafka.seed(orders, [("a", "1")])
    assert kafka.wait_for(orders, 1).num_rows == 1

def test_own_clients(kafka):
    orders, bills = kafka.topic("orders"), kafka.topic("bills", partitions=2)
    kafka.seed(orders, ["tea"])
    for record in kafka.consumer(orders).poll(timeout=30):
        kafka.producer().send(bills, record.value).result()
    assert kafka.read(bills)["value"].to_pylist() == [b"tea"]

def test_confluent_kafka(kafka):
    orders = kafka.topic()
    producer = ConfluentProducer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(orders, b"tea")
    producer.flush(30)
    consumer = ConfluentConsumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": kafka.group(), "auto.offset.reset": "earliest"})
    consumer.subscribe([orders])
    assert consumer.poll(30).value() == b"tea"
    consumer.close()

def test_kafka_python(kafka):
    orders = kafka.topic()
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    producer.send(orders, b"tea")
    producer.close()
    assert kafka.wait_for(orders, 1)["value"].to_pylist() == [b"tea"]
"""


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess("-p", "no:randomly", "-p", "no:cacheprovider", "-W", "ignore", *arguments)


def test_fixtures_serve_a_project(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(PROJECT)
    run(pytester).assert_outcomes(passed=7)


def test_fixtures_serve_parallel_workers(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(PROJECT)
    run(pytester, "-n", "2").assert_outcomes(passed=7)


def test_broker_options_can_be_overridden(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session")
        def kafka_broker_options():
            return {"brokers": 3, "config": {"default.replication.factor": 3}}
        """
    )
    pytester.makepyfile(
        """
        def test_nodes(kafka_broker, kafka):
            assert len(kafka_broker.nodes()) == 3
            kafka_broker.stop_node(0)
            kafka.producer().send(kafka.topic(), b"tea").result()
            kafka_broker.start_node(0)
        """
    )
    run(pytester).assert_outcomes(passed=1)


def test_topics_of_a_test_are_deleted_after_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_first(kafka):
            kafka.topic("left-over")
            kafka.broker.delete_topic(kafka.topic("deleted-by-the-test"))

        def test_second(kafka_broker):
            assert kafka_broker.topics() == {}
        """
    )
    run(pytester).assert_outcomes(passed=2)


def test_plugin_loads_no_broker_before_a_test_asks_for_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_modules():
            loaded = [name for name in sys.modules if name.startswith("chaffinch.") and not name.startswith("chaffinch.testing")]
            assert set(loaded) <= {"chaffinch.version"}
        """
    )
    run(pytester).assert_outcomes(passed=1)


def test_modules_are_imported_unchanged(pytester: pytest.Pytester) -> None:
    """Rewriting assertions in all modules takes seconds, and CPython 3.11 may fail at it in a thread."""
    pytester.makepyfile(
        """
        def test_loader():
            from chaffinch import settings

            assert "Rewriting" not in type(settings.__spec__.loader).__name__
        """
    )
    run(pytester).assert_outcomes(passed=1)
