"""Two clients of others under load: kafka-python with idempotence, confluent-kafka with transactions.

Each runs on a thread of its own and records the outcome of every record or transaction: the broker must keep those promises.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import confluent_kafka
import kafka

PLAIN_TOPIC, TRANSACTIONS_TOPIC = "plain", "transactions"
PLAIN_PARTITIONS, TRANSACTIONS_PARTITIONS = 3, 4
IN_FLIGHT_RECORDS_MAX = 400
TIMEOUT_SECONDS = 120.0
PLAIN_TIMEOUT_SECONDS = 600.0
"""Longer than any outage here: once a batch that was sent has taken its delivery.timeout.ms, kafka-python (3.0.12) gives up its producer id
and never asks for another, so that nothing is sent any more, and nothing expires."""
TRANSACTION_RECORDS_MAX = 20
ABORT_EVERY = 4
TRANSACTIONAL_WRITERS = 4
"""Several, because after each kill this client takes its time to find the coordinator again."""

logging.getLogger("kafka").setLevel(logging.CRITICAL)


class Writer(ABC):
    """A thread that writes until `stop`; what went wrong beside the expected is in `error`."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.error: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name=type(self).__name__, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when everything begun has its outcome. Raises what the thread ended with."""
        self._stopping.set()
        self._thread.join(3 * TIMEOUT_SECONDS)
        assert not self._thread.is_alive(), f"{self._thread.name} does not end"
        if self.error is not None:
            raise self.error

    def _guarded(self) -> None:
        try:
            self.run()
        except BaseException as error:  # Shown by `stop`, in the main thread.
            self.error = error

    @abstractmethod
    def run(self) -> None:
        """Write until `stop`, then see that everything begun has its outcome."""


class PlainWriter(Writer):
    """kafka-python: numbers 0, 1, 2, ... round robin over the partitions, idempotent, acks=all."""

    def __init__(self, bootstrap_servers: str) -> None:
        super().__init__(bootstrap_servers)
        self.acknowledged: set[int] = set()
        self.failed: dict[int, str] = {}

    def run(self) -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=self.bootstrap_servers,
            acks="all",
            enable_idempotence=True,
            linger_ms=2,
            batch_size=4096,
            max_block_ms=int(1000 * TIMEOUT_SECONDS),
            delivery_timeout_ms=int(1000 * PLAIN_TIMEOUT_SECONDS),
            request_timeout_ms=5000,
            reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=100,
            retry_backoff_ms=20,
        )
        capacity = threading.Semaphore(IN_FLIGHT_RECORDS_MAX)
        number = 0
        while not self._stopping.is_set():
            capacity.acquire()
            future = producer.send(PLAIN_TOPIC, b"%d" % number, partition=number % PLAIN_PARTITIONS)
            future.add_callback(self._acknowledged(number, capacity))
            future.add_errback(self._failed(number, capacity))
            number += 1
        producer.flush(TIMEOUT_SECONDS)
        producer.close(TIMEOUT_SECONDS)

    def _acknowledged(self, number: int, capacity: threading.Semaphore) -> Callable[[object], None]:
        def note(_metadata: object) -> None:
            self.acknowledged.add(number)
            capacity.release()

        return note

    def _failed(self, number: int, capacity: threading.Semaphore) -> Callable[[BaseException], None]:
        def note(error: BaseException) -> None:
            self.failed[number] = repr(error)
            capacity.release()

        return note


@dataclass(slots=True)
class Outcomes:
    """Transaction number -> number of its records, by the outcome the client got."""

    committed: dict[int, int] = field(default_factory=dict)
    aborted: dict[int, int] = field(default_factory=dict)
    unknown: dict[int, int] = field(default_factory=dict)


class TransactionalWriter(Writer):
    """confluent-kafka: transaction n holds the records `n:0`, `n:1`, ... over all partitions; every fourth is aborted.

    Writer `index` of TRANSACTIONAL_WRITERS has every such transaction from `index` on, under a transactional id of its own.
    """

    def __init__(self, bootstrap_servers: str, transactional_id: str, index: int) -> None:
        super().__init__(bootstrap_servers)
        self._transactional_id = f"{transactional_id}-{index}"
        self._index = index
        self.outcomes = Outcomes()
        self.restarts = 0

    def run(self) -> None:
        producer = self._new_producer()
        number = self._index
        while not self._stopping.is_set():
            count = 1 + number % TRANSACTION_RECORDS_MAX
            ledger, is_usable = self._transaction(producer, number, count)
            ledger[number] = count
            if not is_usable:
                producer = self._new_producer()
            number += TRANSACTIONAL_WRITERS

    def _transaction(self, producer: confluent_kafka.Producer, number: int, count: int) -> tuple[dict[int, int], bool]:
        """One transaction; (where its outcome belongs, whether the producer goes on)."""
        outcomes, asked_to_commit = self.outcomes, False
        try:
            producer.begin_transaction()
            for index in range(count):
                value = b"%d:%d" % (number, index)
                producer.produce(TRANSACTIONS_TOPIC, value, partition=(number + index) % TRANSACTIONS_PARTITIONS)
                producer.poll(0)
            if number // TRANSACTIONAL_WRITERS % ABORT_EVERY == ABORT_EVERY - 1:
                _until_done(producer.abort_transaction)
                return outcomes.aborted, True
            asked_to_commit = True
            _until_done(producer.commit_transaction)
            return outcomes.committed, True
        except confluent_kafka.KafkaException as failed:
            if failed.args[0].txn_requires_abort():
                try:
                    _until_done(producer.abort_transaction)
                    return outcomes.aborted, True
                except confluent_kafka.KafkaException:
                    pass
            # The next instance's init_transactions aborts what is open; what was asked to commit may be committed.
            return (outcomes.unknown if asked_to_commit else outcomes.aborted), False

    def _new_producer(self) -> confluent_kafka.Producer:
        self.restarts += 1
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "transactional.id": self._transactional_id,
                "transaction.timeout.ms": 60_000,
                "linger.ms": 1,
                "socket.timeout.ms": 5000,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
            }
        )
        _until_done(producer.init_transactions)
        return producer


def all_outcomes(writers: Sequence[TransactionalWriter]) -> Outcomes:
    """Those of all writers: their transactions have different numbers."""
    merged = Outcomes()
    for outcomes in [writer.outcomes for writer in writers]:
        merged.committed.update(outcomes.committed)
        merged.aborted.update(outcomes.aborted)
        merged.unknown.update(outcomes.unknown)
    return merged


def _until_done(call: Callable[[float], None]) -> None:
    """Call again as long as the client says that this is right."""
    while True:
        try:
            call(TIMEOUT_SECONDS)
            return
        except confluent_kafka.KafkaException as failed:
            if not failed.args[0].retriable():
                raise
