"""What a consumer refuses at the call: wrong arguments, calls out of order, two threads, another process, after the end."""

from __future__ import annotations

import gc
import os
import pickle
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest

from chaffinch import Consumer, EmbeddedBroker, TopicPartition, errors
from chaffinch.consumer.callbacks import Callbacks
from chaffinch.consumer.runner import finish
from tests.consumer.conftest import ConsumerOf
from tests.consumer.polling import poll_until, read, write

PLACE = TopicPartition("orders", 0)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda c: c.subscribe(7), TypeError, "argument topics must be names of topics or a compiled pattern, not int"),
        (lambda c: c.subscribe(b"orders"), TypeError, "argument topics must be names of topics or a compiled pattern, not bytes"),
        (lambda c: c.subscribe(bytearray()), TypeError, "argument topics must be names of topics or a compiled pattern, not bytearray"),
        (lambda c: c.assign(b"orders"), TypeError, "argument partitions must be a list of TopicPartitions, not b'orders'"),
        (lambda c: c.assign(b""), TypeError, "argument partitions must be a list of TopicPartitions, not b''"),
        (lambda c: c.pause(memoryview(b"orders")), TypeError, "argument partitions must be a list of TopicPartitions, not <memory"),
        (lambda c: c.committed(b"orders"), TypeError, "argument partitions must be a list of TopicPartitions, not b'orders'"),
        (lambda c: c.subscribe([7]), TypeError, "argument topics has 7"),
        (lambda c: c.subscribe([""]), ValueError, "empty name"),
        (lambda c: c.subscribe({"orders": 1}), TypeError, "not dict"),
        (lambda c: c.subscribe(re.compile(b"x")), TypeError, "not of bytes"),
        (lambda c: c.subscribe(["orders"], on_assign=7), TypeError, "argument on_assign must be callable"),
        (lambda c: c.assign("orders"), TypeError, "argument partitions must be a list of TopicPartitions"),
        (lambda c: c.assign("x" * 100_000), TypeError, "not 'x{199}\\.\\.\\.$"),
        (lambda c: c.subscribe(["^" + "x" * 100_000]), ValueError, "^.{0,600}$"),
        (lambda c: c.subscribe(["x" * 100_000]), errors.InvalidTopicException, "topic 'x{199}\\.\\.\\. is not a legal name"),
        (lambda c: c.assign(PLACE), TypeError, "argument partitions must be a list of TopicPartitions"),
        (lambda c: c.assign(["orders"]), TypeError, "must be a TopicPartition, not 'orders'"),
        (lambda c: c.assign([("orders", "0")]), TypeError, "must be a TopicPartition"),
        (lambda c: c.assign([TopicPartition("orders", "0")]), TypeError, "its partition is a str and must be an int"),  # type: ignore[arg-type]
        (lambda c: c.assign([TopicPartition(7, 0)]), TypeError, "its topic must be a str, not int"),  # type: ignore[arg-type]
        (lambda c: c.assign([("orders", -1)]), ValueError, "has the number -1"),
        (lambda c: c.poll("1"), TypeError, "argument timeout must be None or a number of seconds"),
        (lambda c: c.poll(-1), ValueError, "from 0 up"),
        (lambda c: c.poll(float("nan")), ValueError, "from 0 up"),
        (lambda c: c.poll_table(True), TypeError, "argument timeout"),
        (lambda c: c.seek(PLACE, "1"), TypeError, "argument offset must be an int or an OffsetAndMetadata"),
        (lambda c: c.seek(PLACE, -1), ValueError, "argument offset must be from 0"),
        (lambda c: c.commit([PLACE]), TypeError, "argument offsets must be a mapping"),
        (lambda c: c.commit({PLACE: None}), TypeError, "argument offset"),
        (lambda c: c.commit(on_commit=1), TypeError, "argument on_commit must be callable"),
        (lambda c: c.offsets_for_times({PLACE: "now"}), TypeError, "argument times has 'now'"),
        (lambda c: c.offsets_for_times({PLACE: -5}), ValueError, "argument times has -5"),
        (lambda c: c.offsets_for_times([PLACE]), TypeError, "argument times must be a mapping"),
        (lambda c: c.partitions_for(7), TypeError, "argument topic must be a str"),
        (lambda c: c.partitions_for("a b"), errors.InvalidTopicException, "topic 'a b' is not a legal name: a name has letters"),
        (lambda c: c.partitions_for(".."), errors.InvalidTopicException, "topic '..' is not a legal name: .* are names of directories"),
        (lambda c: Consumer({"on_commit": print}), errors.ConfigException, r"give on_commit to commit\(\)"),
        (lambda c: c.poll(0), errors.IllegalStateException, r"nothing to poll: call subscribe\(\) or assign\(\) first"),
        (lambda c: c.poll_table(0), errors.IllegalStateException, "nothing to poll"),
        (lambda c: next(iter(c)), errors.IllegalStateException, "nothing to poll"),
        (lambda c: c.seek(PLACE, 1), errors.IllegalStateException, "orders-0 is not assigned to this consumer; it has none"),
        (lambda c: c.position(PLACE), errors.IllegalStateException, "orders-0 is not assigned"),
        (lambda c: c.pause([PLACE]), errors.IllegalStateException, "orders-0 is not assigned"),
        (lambda c: c.resume([PLACE]), errors.IllegalStateException, "orders-0 is not assigned"),
        (lambda c: c.seek_to_end([PLACE]), errors.IllegalStateException, "orders-0 is not assigned"),
        (lambda c: (c.assign([PLACE]), c.subscribe(["orders"])), errors.IllegalStateException, r"call unsubscribe\(\) first"),
        (lambda c: (c.subscribe(["orders"]), c.assign([PLACE])), errors.IllegalStateException, r"call unsubscribe\(\) first"),
    ],
)
def test_invalid_arguments_are_rejected(
    broker: EmbeddedBroker, consumer_of: ConsumerOf, call: Callable[[Consumer], object], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        call(consumer_of(broker))


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.subscribe(["orders"]),
        lambda c: c.commit({PLACE: 1}),
        lambda c: c.committed([PLACE]),
        lambda c: c.group_metadata(),
    ],
)
def test_call_without_a_group_is_rejected(broker: EmbeddedBroker, consumer_of: ConsumerOf, call: Callable[[Consumer], object]) -> None:
    with pytest.raises(errors.IllegalStateException, match=r"needs a group, and this consumer has none: give it the option group\.id"):
        call(consumer_of(broker, group_id=None))


@pytest.mark.parametrize(
    "call", ["poll", "poll_table", "assignment", "subscription", "unsubscribe", "metrics", "commit", "paused", "seek_to_end"]
)
def test_calls_after_close_are_rejected(broker: EmbeddedBroker, consumer_of: ConsumerOf, call: str) -> None:
    consumer = consumer_of(broker)
    consumer.close()
    consumer.close()
    with pytest.raises(errors.IllegalStateException, match=rf"{call} after close\(\)"):
        getattr(consumer, call)()
    with pytest.raises(errors.IllegalStateException, match=r"poll after close\(\)"):
        next(iter(consumer))


def test_close_in_a_loop_ends_the_loop(broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf) -> None:
    write(broker, topic, [b"0", b"1"])
    consumer = consumer_of(broker, group_id=None, auto_offset_reset="earliest")
    consumer.assign([TopicPartition(topic, 0)])
    found = []
    for record in consumer:
        found.append(record.value)
        consumer.close()
    assert found == [b"0"]


def test_second_thread_is_rejected(broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf) -> None:
    consumer = consumer_of(broker)
    raised: list[BaseException] = []
    inside, raised_error = threading.Event(), threading.Event()

    def poll_too(_tps: list[TopicPartition]) -> None:
        inside.set()
        assert raised_error.wait(30)

    def other() -> None:
        assert inside.wait(30)
        try:
            consumer.poll(0)
        except errors.IllegalStateException as error:
            raised.append(error)
        raised_error.set()

    runs = threading.Thread(target=other)
    runs.start()
    consumer.subscribe([topic], on_assign=poll_too)
    poll_until(raised_error.is_set, consumer)
    runs.join()
    assert "poll while another thread uses the consumer" in str(raised[0])


@pytest.mark.parametrize("call", [lambda consumer: consumer.seek(PLACE, 0), lambda consumer: consumer.close()])
def test_call_in_finalizer_on_consumer_thread_is_rejected(
    broker: EmbeddedBroker, consumer_of: ConsumerOf, call: Callable[[Consumer], object]
) -> None:
    consumer = consumer_of(broker)

    def finalize() -> None:
        with pytest.raises(errors.IllegalStateException, match="on the consumer's own thread would wait for itself"):
            call(consumer)

    consumer._thread.run(finalize)
    consumer.close()


def test_finished_job_returns_its_result_after_thread_end(
    broker: EmbeddedBroker, consumer_of: ConsumerOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = consumer_of(broker)
    thread = consumer._thread
    hand_over = thread._submit

    def submit_and_end(job: Any) -> None:
        hand_over(job)
        thread._thread.join(30)

    def closing() -> str:
        with pytest.raises(errors.IllegalStateException, match="would wait for itself"):
            consumer.close()
        return "done"

    monkeypatch.setattr(thread, "_submit", submit_and_end)
    assert thread.run(closing) == "done"
    with pytest.raises(errors.IllegalStateException, match="was closed in the meantime"):
        thread.run(closing)


def test_post_in_finalizer_on_consumer_thread_is_done(broker: EmbeddedBroker, consumer_of: ConsumerOf) -> None:
    """The finalizer of an abandoned loop, which returns its undelivered records."""
    consumer, done = consumer_of(broker), []
    consumer._thread.run(lambda: consumer._thread.post(lambda: done.append(True)))
    consumer._thread.run(lambda: None)
    assert done == [True]


def test_raised_error_is_not_referenced_by_the_consumer(broker: EmbeddedBroker, consumer_of: ConsumerOf) -> None:
    consumer = consumer_of(broker)

    def raised_error() -> weakref.ref[errors.IllegalStateException]:
        try:
            consumer.seek(PLACE, 0)
        except errors.IllegalStateException as error:
            return weakref.ref(error)
        raise AssertionError("seek was not refused")

    gc.disable()
    try:
        assert raised_error()() is None
    finally:
        gc.enable()


class TestWakeup:
    def test_wakeup_ends_a_waiting_poll(self, broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf) -> None:
        consumer = consumer_of(broker, group_id=None)
        consumer.assign([TopicPartition(topic, 0)])
        consumer.poll(0)
        waker = threading.Timer(0.05, consumer.wakeup)
        waker.start()
        with pytest.raises(errors.WakeupException):
            consumer.poll(30)
        waker.join()
        assert consumer.poll(0) == []

    def test_wakeup_ends_the_next_waiting_call(self, broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf) -> None:
        consumer = consumer_of(broker, group_id=None)
        consumer.assign([TopicPartition(topic, 0)])
        consumer.wakeup()
        with pytest.raises(errors.WakeupException):
            consumer.poll(30)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("call", [lambda consumer: consumer.poll(0), lambda consumer: consumer.wakeup()])
def test_calls_in_forked_child_are_rejected(
    broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf, call: Callable[[Consumer], object]
) -> None:
    write(broker, topic, [b"0", b"1"])
    consumer = consumer_of(broker, max_poll_records=1)
    consumer.subscribe([topic])
    read(consumer, 1)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            call(consumer)
        except errors.IllegalStateException as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as output:
        assert "make one in each process" in output.read()
    os.waitpid(child, 0)
    assert [record.value for record in read(consumer, 1)] == [b"1"]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_close_in_forked_child_has_no_effect(broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf) -> None:
    write(broker, topic, [b"0", b"1"])
    consumer = consumer_of(broker, max_poll_records=1)
    consumer.subscribe([topic])
    read(consumer, 1)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with consumer:
                raise ValueError("of the body")
        except BaseException as error:
            os.write(writer, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as output:
        assert output.read() == "ValueError('of the body')"
    os.waitpid(child, 0)
    assert [record.value for record in read(consumer, 1)] == [b"1"]


def test_pickle_is_rejected(broker: EmbeddedBroker, consumer_of: ConsumerOf) -> None:
    with pytest.raises(TypeError, match="a Consumer cannot be pickled: make one in each process"):
        pickle.dumps(consumer_of(broker))


def test_invalid_options_start_no_thread(broker: EmbeddedBroker) -> None:
    before = threading.active_count()
    with pytest.raises(errors.ConfigException, match=r"nearest known one is 'group_id'"):
        Consumer(bootstrap_servers=broker.bootstrap_servers, group_ids="x")  # type: ignore[call-overload]
    gc.collect()
    assert threading.active_count() == before


def test_with_statement_closes(broker: EmbeddedBroker, topic: str) -> None:
    with Consumer(bootstrap_servers=broker.bootstrap_servers, group_id=topic) as consumer:
        consumer.subscribe(topic)
        poll_until(lambda: bool(consumer.assignment()), consumer)
    with pytest.raises(errors.IllegalStateException):
        consumer.poll(0)
    assert not any("chaffinch-consumer" in thread.name for thread in threading.enumerate())


def test_options_without_effect_are_logged(broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture) -> None:
    with Consumer({"bootstrap.servers": broker.bootstrap_servers, "interceptor.classes": "x"}):
        pass
    assert "interceptor.classes is known to Apache Kafka and without effect" in caplog.text


def release(held: list[Consumer], runs: Thread) -> None:
    held.clear()
    runs.join(30)


def test_collected_consumer_ends_its_thread_with_a_warning(broker: EmbeddedBroker, topic: str) -> None:
    held = [Consumer(bootstrap_servers=broker.bootstrap_servers, client_id="forgotten", group_id=topic)]
    (runs,) = [thread for thread in threading.enumerate() if thread.name == "forgotten-network"]
    held[0].subscribe(topic)
    poll_until(lambda: bool(held[0].assignment()), held[0])
    with pytest.warns(ResourceWarning, match="<Consumer 'forgotten' of .*was not closed: close it, or use it in a with statement"):
        release(held, runs)
    assert not runs.is_alive()


def test_closed_consumer_gives_no_warning(broker: EmbeddedBroker, recwarn: pytest.WarningsRecorder) -> None:
    Consumer(bootstrap_servers=broker.bootstrap_servers).close()
    gc.collect()
    assert not recwarn.list


def test_open_consumer_does_not_block_process_exit(broker: EmbeddedBroker) -> None:
    code = f"""
from chaffinch import Consumer
consumer = Consumer(bootstrap_servers={broker.bootstrap_servers!r})
consumer.beginning_offsets([])
"""
    done = subprocess.run([sys.executable, "-X", "dev", "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_timeout_argument_or_default_api_timeout(broker: EmbeddedBroker, consumer_of: ConsumerOf) -> None:
    consumer = consumer_of(broker, default_api_timeout_ms=100)
    with pytest.raises(errors.TimeoutException):
        consumer.end_offsets([TopicPartition("nowhere", 0)])
    with pytest.raises(errors.TimeoutException):
        consumer.end_offsets([TopicPartition("nowhere", 0)], timeout=0)


def test_commit_callbacks_after_one_that_raises_run_in_the_next_call() -> None:
    """Without a broker: with one, both commits need not be complete when the first callback runs."""
    callbacks, called = Callbacks(), []
    callbacks.add_completed_commit(lambda *_: int("no number"), {}, None)
    callbacks.add_completed_commit(lambda *_: called.append("the one behind it"), {}, None)
    with pytest.raises(errors.KafkaException, match="the callback on_commit raised ValueError"):
        finish(callbacks.run_commit_callbacks)
    assert (called, callbacks.has_completed_commits) == ([], True)
    finish(callbacks.run_commit_callbacks)
    assert (called, callbacks.has_completed_commits) == (["the one behind it"], False)
