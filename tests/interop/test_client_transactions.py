"""Transactions of three other clients in version 1 and 2: commit and abort, a newer producer, an expired transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import confluent_kafka
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from kafka import KafkaProducer
from kafka.errors import KafkaError

from chaffinch import EmbeddedBroker

TIMEOUT_SECONDS = 60
TRANSACTION_TIMEOUT_MS = 50_000
LATER_MS = TRANSACTION_TIMEOUT_MS + 1000
TOPIC = "orders"
REFUSED = (confluent_kafka.KafkaException, KafkaError, AioKafkaError)


class Writer(Protocol):
    """A transactional producer of any client; `write` returns once the record is on the broker. Errors are in REFUSED."""

    def begin(self) -> None: ...
    def write(self, value: bytes) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class Confluent:
    def __init__(self, servers: str, transactional_id: str) -> None:
        config = {
            "bootstrap.servers": servers,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "log_level": 0,
        }
        self.producer = confluent_kafka.Producer(config)
        self.producer.init_transactions(TIMEOUT_SECONDS)
        self.begin = self.producer.begin_transaction
        self.commit = lambda: self.producer.commit_transaction(TIMEOUT_SECONDS)
        self.abort = lambda: self.producer.abort_transaction(TIMEOUT_SECONDS)

    def write(self, value: bytes) -> None:
        fates: list[Any] = []
        self.producer.produce(TOPIC, value, b"k", on_delivery=lambda error, _message: fates.append(error))
        self.producer.flush(TIMEOUT_SECONDS)
        if fates != [None]:
            raise confluent_kafka.KafkaException(*fates)

    def close(self) -> None:
        self.producer.purge()


class KafkaPython:
    def __init__(self, servers: str, transactional_id: str) -> None:
        self.producer = KafkaProducer(
            bootstrap_servers=servers, transactional_id=transactional_id, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS
        )
        self.producer.init_transactions()
        self.begin = self.producer.begin_transaction
        self.commit = self.producer.commit_transaction
        self.abort = self.producer.abort_transaction

    def write(self, value: bytes) -> None:
        self.producer.send(TOPIC, key=b"k", value=value).get(TIMEOUT_SECONDS)

    def close(self) -> None:
        self.producer.close(timeout=0)


class AioKafka:
    def __init__(self, servers: str, transactional_id: str) -> None:
        self.loop = asyncio.new_event_loop()
        run = self.loop.run_until_complete

        async def made() -> AIOKafkaProducer:
            return AIOKafkaProducer(
                bootstrap_servers=servers, transactional_id=transactional_id, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS
            )

        self.producer = run(made())
        run(self.producer.start())
        self.begin = lambda: run(self.producer.begin_transaction())
        self.commit = lambda: run(self.producer.commit_transaction())
        self.abort = lambda: run(self.producer.abort_transaction())

    def write(self, value: bytes) -> None:
        self.loop.run_until_complete(self.producer.send_and_wait(TOPIC, key=b"k", value=value))

    def close(self) -> None:
        try:
            self.loop.run_until_complete(self.producer.stop())
        except AioKafkaError:
            pass
        finally:
            self.loop.close()


CLIENTS: dict[str, Callable[[str, str], Writer]] = {"confluent-kafka": Confluent, "kafka-python": KafkaPython, "aiokafka": AioKafka}


@pytest.fixture(params=[2, 1], ids=lambda level: f"version {level}")
def broker(request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics=[TOPIC], config={"transaction.version": request.param}) as broker:
        yield broker


@pytest.fixture(params=CLIENTS)
def start(request: pytest.FixtureRequest, broker: EmbeddedBroker) -> Iterator[Callable[[], Writer]]:
    """Makes producers of one client, all under the same transactional id."""
    writers: list[Writer] = []

    def make() -> Writer:
        writers.append(CLIENTS[request.param](broker.bootstrap_servers, f"of-{request.param}"))
        return writers[-1]

    yield make
    for writer in writers:
        writer.close()


def visible(broker: EmbeddedBroker) -> list[bytes]:
    values: list[bytes] = broker.read(TOPIC)["value"].to_pylist()
    return values


def test_commit_shows_and_abort_hides_records(broker: EmbeddedBroker, start: Callable[[], Writer]) -> None:
    """Commits and aborts in turn, an abort of nothing among them."""
    writer = start()
    for number, commit in enumerate((True, False, True, False, True)):
        writer.begin()
        writer.write(b"%d" % number)
        (writer.commit if commit else writer.abort)()
        writer.begin()
        writer.abort()
    assert visible(broker) == [b"0", b"2", b"4"]


def test_newer_producer_fences_older(broker: EmbeddedBroker, start: Callable[[], Writer]) -> None:
    old = start()
    old.begin()
    old.write(b"old")
    new = start()
    new.begin()
    new.write(b"new")
    with pytest.raises(REFUSED):
        old.commit()
    new.commit()
    assert visible(broker) == [b"new"]


def test_expired_transaction_is_aborted(broker: EmbeddedBroker, start: Callable[[], Writer]) -> None:
    writer = start()
    writer.begin()
    writer.write(b"too late")
    broker._call(lambda core: core.state.transactions.run_due((core.state.transactions.next_deadline_ms or 0) + LATER_MS))
    with pytest.raises(REFUSED):
        writer.commit()
    follower = start()
    follower.begin()
    follower.write(b"in time")
    follower.commit()
    assert visible(broker) == [b"in time"]
