"""KIP-1038: what a handler may do with the producer that asks it. On the caller's thread everything; on the producer's own, nothing that
waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chaffinch import EmbeddedBroker, NonRetriableResponse, Producer, ProducerExceptionHandler, ProducerRecord, RetriableResponse
from chaffinch.errors import ConfigException, IllegalStateException, InvalidCompactionKeyException, KafkaException, TimeoutException

LATEST_S = 60
CALLS: dict[str, Callable[[Producer], Any]] = {
    "send": lambda producer: producer.send("orders", b"of the handler"),
    "send and wait": lambda producer: producer.send("orders", b"of the handler").result(LATEST_S),
    "flush": lambda producer: producer.flush(LATEST_S),
    "close": lambda producer: producer.close(LATEST_S),
}
SENDS = [ProducerRecord("orders", bytes(2_000_000)), ProducerRecord("ordres", b"v")]


class Calling(ProducerExceptionHandler):
    """Calls the producer whatever it is asked."""

    def __init__(self, call: Callable[[Producer], Any]) -> None:
        self.call = call
        self.producer: Producer
        self.found: Any = None

    def handle_record_too_large(self, record: ProducerRecord, exception: KafkaException) -> NonRetriableResponse:
        self.found = self.call(self.producer)
        return NonRetriableResponse.SWALLOW

    def handle_unknown_topic_or_partition(self, record: ProducerRecord, exception: KafkaException) -> RetriableResponse:
        self.found = self.call(self.producer)
        return RetriableResponse.SWALLOW

    def handle_rejected_record(self, record: ProducerRecord, exception: KafkaException) -> NonRetriableResponse:
        self.found = self.call(self.producer)
        return NonRetriableResponse.SWALLOW


@pytest.fixture
def calling() -> Iterator[Callable[[str], tuple[Producer, Calling]]]:
    topics = {"orders": {}, "latest": {"cleanup.policy": "compact"}}
    made: list[Producer] = []
    with EmbeddedBroker(topics=topics, config={"auto.create.topics.enable": False}) as broker:

        def make(name: str) -> tuple[Producer, Calling]:
            handler = Calling(CALLS[name])
            handler.producer = Producer(bootstrap_servers=broker.bootstrap_servers, custom_exception_handler_class=handler, linger_ms=0)
            made.append(handler.producer)
            return handler.producer, handler

        yield make
        for producer in made:
            producer.close()


@pytest.mark.parametrize("record", SENDS, ids=["too large", "unknown"])
@pytest.mark.parametrize("name", CALLS)
def test_handler_on_the_callers_thread_can_call_everything(
    calling: Callable[[str], tuple[Producer, Calling]], name: str, record: ProducerRecord
) -> None:
    producer, handler = calling(name)
    assert producer.send(record).result(LATEST_S).dropped
    if name == "send":
        assert handler.found.result(LATEST_S).offset == 0
    elif name == "send and wait":
        assert handler.found.offset == 0
    elif name == "close":
        with pytest.raises(IllegalStateException, match="closed"):
            producer.send("orders", b"v")


@pytest.mark.parametrize("name", CALLS)
def test_handler_on_the_producers_thread_cannot_call_what_blocks(calling: Callable[[str], tuple[Producer, Calling]], name: str) -> None:
    producer, handler = calling(name)
    producer.partitions_for("orders")
    future = producer.send("latest", b"without a key")
    if name in ("flush", "send and wait"):
        error = future.exception(LATEST_S)
        assert isinstance(error, InvalidCompactionKeyException)
        assert isinstance(error.__cause__, IllegalStateException)
        assert "of the same producer would wait for itself" in str(error.__cause__)
    elif name == "send":
        assert future.result(LATEST_S).dropped
        assert handler.found.result(LATEST_S).offset == 0
    else:
        # It ends the producer: what has no outcome fails, and that is the record it was asked about as well.
        assert future.exception(LATEST_S) is None or isinstance(future.exception(0), KafkaException)
        with pytest.raises(IllegalStateException, match="closed"):
            producer.send("orders", b"v")


def test_handler_on_the_producers_thread_cannot_wait_for_a_topic(calling: Callable[[str], tuple[Producer, Calling]]) -> None:
    producer, handler = calling("send")
    assert producer.send("latest", b"without a key").result(LATEST_S).dropped
    error = handler.found.exception(0)
    assert isinstance(error, TimeoutException)
    assert "topic 'orders' is not known yet, and a callback cannot wait for it: call partitions_for('orders') beforehand" in str(error)
    assert producer.send("orders", b"v").result(LATEST_S).offset == 0


def _leave(_: Producer) -> None:
    raise SystemExit(3)


@pytest.mark.parametrize("record", SENDS, ids=["too large", "unknown"])
def test_system_exit_on_the_callers_thread_is_raised_by_send(
    calling: Callable[[str], tuple[Producer, Calling]], record: ProducerRecord
) -> None:
    """A signal handler that exits may come while it thinks; its SystemExit became the cause of the record's error."""
    producer, handler = calling("send")
    handler.call = _leave
    with pytest.raises(SystemExit):
        producer.send(record)
    assert producer.send("orders", b"v").result(LATEST_S).offset == 0


@pytest.mark.parametrize("ending", [SystemExit, KeyboardInterrupt])
def test_system_exit_on_the_producers_thread_fails_the_record(
    calling: Callable[[str], tuple[Producer, Calling]], ending: type[BaseException]
) -> None:
    producer, handler = calling("send")

    def leave(_: Producer) -> None:
        raise ending

    handler.call = leave
    error = producer.send("latest", b"no key").exception(LATEST_S)
    assert isinstance(error, InvalidCompactionKeyException)
    assert isinstance(error.__cause__, ending)
    assert producer.send("orders", b"v").result(LATEST_S).offset == 0


def test_handler_is_not_configured_when_another_option_is_refused() -> None:
    """No producer would exist to close it."""
    configured = []

    class Configured(ProducerExceptionHandler):
        def configure(self, settings: Any) -> None:
            configured.append(settings)

    with pytest.raises(ConfigException, match="option partitioner"):
        Producer(bootstrap_servers="127.0.0.1:1", partitioner="no.such.function", custom_exception_handler_class=Configured())
    assert configured == []


@pytest.mark.parametrize("method", ["__init__", "configure"])
@pytest.mark.parametrize(("ending", "raised"), [(SystemExit(3), ConfigException), (KeyboardInterrupt(), KeyboardInterrupt)], ids=repr)
def test_system_exit_and_interrupt_at_construction(method: str, ending: BaseException, raised: type[BaseException]) -> None:
    """A program that ends itself is no handler; Ctrl-C is Ctrl-C."""

    def end(*_: object) -> None:
        raise ending

    kind = type("Ending", (ProducerExceptionHandler,), {method: end})
    with pytest.raises(raised) as caught:
        Producer(bootstrap_servers="127.0.0.1:1", custom_exception_handler_class=kind)
    if raised is ConfigException:
        assert "raised SystemExit(3)" in str(caught.value)
