"""KeyboardInterrupt at every moment of every call: the next calls work, and every record is read once, in order, and committed."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

import pytest

from chaffinch import Consumer, EmbeddedBroker, TopicPartition
from chaffinch.errors import IllegalStateException, WakeupException
from tests.client.interrupts import Interrupt
from tests.consumer.conftest import ConsumerOf
from tests.consumer.polling import write
from tests.producer.threads import in_thread

LATEST_S = 60
VALUES = [b"0", b"1", b"2", b"3", b"4", b"5"]
# The shortest call has at least this many moments.
MOMENTS_MIN = 10


def interrupted(index: int, call: Callable[[], object]) -> Interrupt:
    """Make the call, and interrupt it at its moment number `index`, if it has that many."""
    interrupt = Interrupt(index)
    with suppress(KeyboardInterrupt), interrupt:
        call()
    return interrupt


def in_other_thread(call: Callable[[], Any]) -> Any:
    """Of a lock that this thread still held this thread would not notice."""
    return in_thread(call).result(LATEST_S)


def read(consumer: Consumer, number: int) -> list[int]:
    """The offsets of this many records."""
    found: list[int] = []
    while len(found) < number and (records := consumer.poll(LATEST_S)):
        found += [record.offset for record in records]
    return found


def loop(consumer: Consumer, given: list[int]) -> None:
    records = iter(consumer)
    for record in records:
        given.append(record.offset)
        break
    assert isinstance(records, Generator)
    records.close()


def poll_paused(consumer: Consumer, tp: TopicPartition) -> None:
    consumer.pause([tp])
    consumer.poll(0.001)


def look_up_beginning(consumer: Consumer, tp: TopicPartition) -> None:
    consumer.seek_to_beginning()
    consumer.position(tp)


CALLS: dict[str, Callable[[Consumer, TopicPartition], Any]] = {
    "poll": lambda consumer, _: consumer.poll(LATEST_S),
    "poll_table": lambda consumer, _: consumer.poll_table(LATEST_S),
    "poll without records": poll_paused,
    "a loop": lambda consumer, _: loop(consumer, []),
    "commit": lambda consumer, _: consumer.commit(on_commit=ignore),
    "commit without waiting": lambda consumer, _: consumer.commit(asynchronous=True),
    "a position that is looked up": look_up_beginning,
    "seek": lambda consumer, tp: consumer.seek(tp, 0),
    "partitions_for": lambda consumer, tp: consumer.partitions_for(tp.topic),
    "assign": lambda consumer, tp: consumer.assign([tp, TopicPartition("nowhere", 0)]),
    "unsubscribe": lambda consumer, _: consumer.unsubscribe(),
    "metrics": lambda consumer, _: consumer.metrics(),
    "wakeup": lambda consumer, _: consumer.wakeup(),
}

# After these nothing is as it was, whether they were done or not.
TRANSITIONS = ("a position that is looked up", "seek", "assign", "unsubscribe")


def ignore(*_: object) -> None:
    pass


@pytest.mark.parametrize("what", CALLS)
def test_interrupted_call_leaves_the_consumer_usable(broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf, what: str) -> None:
    """Its records are read again, from the same position."""
    write(broker, topic, VALUES)
    tp, call, given = TopicPartition(topic, 0), CALLS[what], list[int]()
    if what == "a loop":
        call = lambda consumer, _: loop(consumer, given)  # noqa: E731
    consumer: Consumer = consumer_of(broker, max_poll_records=2, enable_auto_commit=False, fetch_max_wait_ms=10)

    def start() -> None:
        consumer.unsubscribe()
        consumer.assign([tp])
        consumer.seek(tp, 0)
        assert read(consumer, 2) == [0, 1]

    def resume() -> list[int]:
        assert consumer.metrics()
        receive_wakeup()
        if what in TRANSITIONS:
            consumer.unsubscribe()
            consumer.assign([tp])
            consumer.seek(tp, 2)
        consumer.resume([tp])
        found = read(consumer, len(VALUES) - 2 - len(given))
        consumer.commit()
        committed = consumer.committed([tp])[tp]
        assert committed is not None
        assert committed.offset == len(VALUES)
        return found

    def receive_wakeup() -> None:
        if what == "wakeup":
            with suppress(WakeupException):
                consumer.end_offsets([tp])

    start()
    call(consumer, tp)  # What is imported, or looked up, once.
    receive_wakeup()
    for index in count():
        start()
        given.clear()
        interrupt = interrupted(index, lambda: call(consumer, tp))
        if not interrupt.has_happened:
            break
        assert given + in_other_thread(resume) == [2, 3, 4, 5], interrupt.place
    in_other_thread(consumer.close)
    assert index >= MOMENTS_MIN


@pytest.mark.parametrize("what", ["subscribe", "poll", "close"])
def test_interrupted_call_of_a_group_member(broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf, name: str, what: str) -> None:
    """It joins, its callbacks run, and it leaves."""
    write(broker, topic, VALUES)
    for index in count():
        callbacks: list[Any] = []
        consumer: Consumer = consumer_of(broker, group_id=f"{name}-{index}", enable_auto_commit=False, fetch_max_wait_ms=10)
        calls: dict[str, Callable[[], object]] = {
            "subscribe": partial(consumer.subscribe, topic, on_assign=callbacks.append, on_revoke=callbacks.append),
            "poll": partial(consumer.poll, LATEST_S),
            "close": consumer.close,
        }
        interrupt = interrupted(index, calls[what]) if what == "subscribe" else None
        calls["subscribe"]()
        if what == "poll":
            interrupt = interrupted(index, calls["poll"])
        if what != "poll" or (interrupt is not None and interrupt.has_happened):
            assert in_other_thread(partial(read, consumer, len(VALUES))) == list(range(len(VALUES)))
            consumer.commit()
        if what == "close":
            interrupt = interrupted(index, calls["close"])
        in_other_thread(consumer.close)
        consumer._thread._thread.join(LATEST_S)
        assert not consumer._thread._thread.is_alive()
        assert interrupt is not None
        if not interrupt.has_happened:
            break
        assert [TopicPartition(topic, 0)] in callbacks
    assert index >= MOMENTS_MIN


@pytest.mark.parametrize("what", ["poll", "seek", "metrics", "close"])
def test_signal_handler_may_close(broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf, what: str) -> None:
    """As for SIGTERM. The interrupted call raises, unless it was done."""
    write(broker, topic, VALUES)
    tp = TopicPartition(topic, 0)
    for index in count():
        consumer: Consumer = consumer_of(broker, group_id=None)
        consumer.assign([tp])
        signal = Interrupt(index, consumer.close)
        if what == "close":
            with signal:
                consumer.close()
        else:
            with suppress(IllegalStateException), signal:
                CALLS[what](consumer, tp)
        consumer.close()
        assert not consumer._thread._thread.is_alive(), signal.place
        if not signal.has_happened:
            break
    assert index >= MOMENTS_MIN
