"""KeyboardInterrupt at every moment of every call: later calls work, and each record is stored and reported once, or not at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pytest

from chaffinch import EmbeddedBroker, Producer, TopicPartition
from chaffinch.errors import IllegalStateException, KafkaException, TimeoutException, TransactionAbortableException
from chaffinch.producer.futures import SHARED_LOCK, RecordFuture
from chaffinch.producer.tables.result import TableOutcome
from tests.client.interrupts import Interrupt, moments
from tests.producer.threads import in_thread

Make = Callable[..., Producer]
Call = Callable[[Producer, int], Any]
LATEST_S = 60
INTERRUPTED = b"interrupted"
BATCH_BYTES = 2000
# The shortest of the calls has at least this many moments.
MOMENTS_MIN = 10


def interrupted(index: int, call: Callable[[], object]) -> Interrupt:
    """Make the call, and interrupt it at its moment number `index`, if there is one."""
    interrupt = Interrupt(index)
    try:
        with interrupt:
            call()
    except KeyboardInterrupt:
        pass
    return interrupt


def check_in_thread(call: Callable[[], Any]) -> Any:
    """Make the call on another thread: this thread would not notice a lock that it still holds."""
    return in_thread(call).result(LATEST_S)


def stored(broker: EmbeddedBroker) -> Counter[Any]:
    values: list[Any] = broker.read("orders")["value"].to_pylist()
    return Counter(value for value in values if not value.startswith(INTERRUPTED))


TABLE = pa.table({"value": [INTERRUPTED]})
CALLS: dict[str, Call] = {
    "send": lambda producer, _: producer.send("orders", INTERRUPTED),
    "send with a callback and headers": lambda producer, _: producer.send(
        "orders", INTERRUPTED, partition=1, headers=[("name", b"v")], on_delivery=do_nothing
    ),
    "send that joins a batch": lambda producer, _: producer.send("orders", INTERRUPTED, key=b"before"),
    "send that fills a batch": lambda producer, _: producer.send("orders", INTERRUPTED * (BATCH_BYTES // 20), partition=0),
    "send to a new topic": lambda producer, index: producer.send(f"new-{index}", INTERRUPTED),
    "send_table": lambda producer, _: producer.send_table("orders", TABLE),
    "result": lambda producer, _: producer.send("orders", INTERRUPTED).result(LATEST_S),
    "result of one that is watched": lambda producer, _: watched(producer.send("orders", INTERRUPTED)).result(LATEST_S),
    "flush": lambda producer, _: producer.flush(),
    "partitions_for": lambda producer, _: producer.partitions_for("orders"),
    "metrics": lambda producer, _: producer.metrics(),
}


def do_nothing(*_: object) -> None:
    pass


def watched(future: Any) -> Any:
    future.add_done_callback(do_nothing)
    return future


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_interrupted_call_leaves_the_producer_consistent(producer_of: Make, broker: EmbeddedBroker, call: Call) -> None:
    delivered: Counter[bytes] = Counter()
    producer = producer_of(broker, batch_size=BATCH_BYTES)
    producer.partitions_for("orders")
    call(producer, -1)  # Imports and lookups that happen once.
    for index in count():
        futures: dict[bytes, Any] = {}

        def send(value: bytes, futures: dict[bytes, Any] = futures) -> None:
            futures[value] = producer.send("orders", value, key=b"before", on_delivery=lambda metadata, _: delivered.update([value]))

        send(b"before-%d" % index)
        interrupt = interrupted(index, partial(call, producer, index))
        assert check_in_thread(producer.metrics), interrupt.place
        send(b"after-%d" % index)
        check_in_thread(lambda: producer.flush(LATEST_S))
        assert all(future.done() and future.exception() is None for future in futures.values()), interrupt.place
        if not interrupt.has_happened:
            break
    check_in_thread(producer.close)
    assert index >= MOMENTS_MIN
    assert stored(broker) == delivered == Counter(b"%s-%d" % (when, done) for done in range(index + 1) for when in (b"before", b"after"))
    assert producer._core.accumulator.memory_free == producer._core.accumulator.memory_bytes


def test_interrupted_wait_for_memory_holds_no_memory(producer_of: Make, broker: EmbeddedBroker) -> None:
    """And it blocks no later caller: records linger for ever unless a caller waits."""
    producer = producer_of(broker, linger_ms=60_000, buffer_memory=3000, max_block_ms=60_000)
    accumulator = producer._core.accumulator
    for index in count():
        first = producer.send("orders", b"%d" % index + bytes(2000), partition=0)
        assert not accumulator.has_memory_for(2000)
        interrupt = interrupted(index, lambda: producer.send("orders", INTERRUPTED + bytes(2000), partition=0))
        check_in_thread(producer.flush)
        assert first.done()
        assert accumulator.memory_free == accumulator.memory_bytes, interrupt.place
        assert accumulator.claim_count == producer._core.callers.memory_waiters == 0, interrupt.place
        if not interrupt.has_happened:
            break
    check_in_thread(producer.close)
    assert index >= MOMENTS_MIN
    assert stored(broker) == Counter(b"%d" % done + bytes(2000) for done in range(index + 1))


class TestTransactions:
    def producer(self, producer_of: Make, broker: EmbeddedBroker) -> Producer:
        producer = producer_of(broker, transactional_id="t")
        producer.init_transactions()
        with producer.transaction():
            producer.send("orders", INTERRUPTED, partition=0)
        return producer

    def test_interrupted_begin_can_be_aborted(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        """The transaction has begun or not; if not, abort_transaction raises."""
        producer = self.producer(producer_of, broker)
        for index in count():
            interrupt = interrupted(index, producer.begin_transaction)
            try:
                check_in_thread(producer.abort_transaction)
            except IllegalStateException:
                assert interrupt.has_happened
            with producer.transaction():
                producer.send("orders", b"%d" % index, partition=0)
            if not interrupt.has_happened:
                break
        check_in_thread(producer.close)
        assert index >= MOMENTS_MIN
        assert stored(broker) == Counter(b"%d" % done for done in range(index + 1))

    @pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
    def test_interrupted_commit_or_abort_can_be_repeated(self, producer_of: Make, broker: EmbeddedBroker, end: str) -> None:
        """The second call succeeds, or raises that no transaction is open: then the first one had succeeded."""
        producer = self.producer(producer_of, broker)
        for index in count():
            producer.begin_transaction()
            producer.send("orders", b"%d" % index, partition=0)
            interrupt = interrupted(index, getattr(producer, end))
            with suppress(IllegalStateException):
                check_in_thread(getattr(producer, end))
            if not interrupt.has_happened:
                break
        check_in_thread(producer.close)
        assert index >= MOMENTS_MIN
        assert stored(broker) == Counter(b"%d" % done for done in range(index + 1) if end == "commit_transaction")

    def test_interrupted_with_statement_commits_or_aborts(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        """If it did neither, abort_transaction does, or raises because a commit is in progress, which is then waited for."""
        producer = self.producer(producer_of, broker)
        transaction_number: list[int] = []

        def transaction() -> None:
            with producer.transaction():
                transaction_number.append(index)
                producer.send("orders", b"%d" % index, partition=0)

        for index in count():
            interrupt = interrupted(index, transaction)
            if not interrupt.has_happened:
                break
            for end in (producer.abort_transaction, producer.commit_transaction):
                with suppress(IllegalStateException):
                    check_in_thread(end)
        check_in_thread(producer.close)
        assert index >= MOMENTS_MIN
        found = stored(broker)
        assert set(found.values()) == {1}
        assert found.keys() <= {b"%d" % done for done in transaction_number}
        assert b"%d" % index in found


@pytest.mark.parametrize("is_transactional", [False, True], ids=["plain", "with a transaction open"])
def test_interrupted_close_can_be_repeated(producer_of: Make, broker: EmbeddedBroker, is_transactional: bool) -> None:
    """Outstanding records are sent or given up, as by a close that times out; the thread ends."""
    for index in count():
        producer = producer_of(broker, **({"transactional_id": "t"} if is_transactional else {}))
        if is_transactional:
            producer.init_transactions()
            producer.begin_transaction()
        future = producer.send("orders", b"%d" % index)
        interrupt = interrupted(index, producer.close)
        check_in_thread(producer.close)
        producer._sender._thread.join(LATEST_S)
        assert not producer._sender._thread.is_alive(), interrupt.place
        given_up = TransactionAbortableException if is_transactional else TimeoutException
        assert type(future.exception(LATEST_S)) in (type(None), given_up), interrupt.place
        if not interrupt.has_happened:
            break
    assert index >= MOMENTS_MIN
    assert set(stored(broker).values()) <= {1}


def test_close_with_interrupted_clean_up_can_be_repeated(
    producer_of: Make, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first close did not stop the thread."""

    def ctrl_c(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    producer = producer_of(broker)
    future = producer.send("orders", b"v")
    monkeypatch.setattr(producer._closing, "_end", ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        producer.close()
    monkeypatch.undo()
    check_in_thread(producer.close)
    producer._sender._thread.join(LATEST_S)
    assert not producer._sender._thread.is_alive()
    assert future.done()


def test_interrupted_init_can_be_repeated(producer_of: Make, broker: EmbeddedBroker) -> None:
    """Unless it was complete, which the second call reports."""
    for index in count():
        producer = producer_of(broker, transactional_id="t")
        interrupt = interrupted(index, producer.init_transactions)
        with suppress(IllegalStateException):
            check_in_thread(producer.init_transactions)
        with producer.transaction():
            producer.send("orders", b"%d" % index)
        check_in_thread(producer.close)
        if not interrupt.has_happened:
            break
    assert index >= MOMENTS_MIN
    assert stored(broker) == Counter(b"%d" % done for done in range(index + 1))


@pytest.mark.parametrize(
    "call",
    [
        lambda producer: producer.send("orders", b"v"),
        lambda producer: producer.send_table("orders", TABLE),
        lambda producer: producer.partitions_for("orders"),
        lambda producer: producer.flush(),
    ],
    ids=["send", "send_table", "partitions_for", "flush"],
)
def test_call_in_a_signal_handler_under_the_futures_lock_is_refused(
    producer_of: Make, broker: EmbeddedBroker, call: Callable[[Producer], object]
) -> None:
    """Waiting there for the producer's lock would deadlock with a thread that holds it and waits for the futures lock."""
    with producer_of(broker) as producer:
        with SHARED_LOCK, pytest.raises(IllegalStateException, match="in a signal handler"):
            call(producer)
        call(producer)


def test_signal_handler_during_a_table_outcome_does_not_deadlock() -> None:
    """At every moment of a change on the caller's thread, the sender thread can go on, or the handler sees that the lock is held."""
    for interrupt in moments():
        outcome = TableOutcome(RecordFuture())
        outcome.add(2)

        def handler(outcome: TableOutcome = outcome) -> None:
            done = in_thread(lambda: outcome.written(np.arange(1), 0, 0))
            if not SHARED_LOCK._is_owned():
                done.result(LATEST_S)

        interrupt.handler = handler
        with interrupt:
            outcome.add(1)
            outcome.rejected(np.arange(1, 2), TopicPartition("orders", 0), KafkaException("no"))
