"""A `send` that has not returned when another thread ends its transaction: never is one committed that has a failed record."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from chaffinch import EmbeddedBroker, NonRetriableResponse, Producer, ProducerExceptionHandler
from chaffinch.errors import IllegalStateException, KafkaException, RecordTooLargeException

Make = Callable[..., Producer]
LATEST_S = 60
TOO_LARGE = bytes(1_500)


class Thinking(ProducerExceptionHandler):
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.asked, self.may_answer = threading.Event(), threading.Event()

    def handle_record_too_large(self, record: Any, exception: KafkaException) -> NonRetriableResponse:
        self.asked.set()
        assert self.may_answer.wait(LATEST_S)
        return NonRetriableResponse.FAIL


@pytest.fixture
def handler() -> Thinking:
    return Thinking()


@pytest.fixture
def producer(producer_of: Make, broker: EmbeddedBroker, handler: Thinking) -> Iterator[Producer]:
    options = {"transactional_id": "t", "max_request_size": 1_000, "custom_exception_handler_class": handler}
    with producer_of(broker, **options) as made:
        made.init_transactions()
        made.begin_transaction()
        yield made


@pytest.fixture
def sending(request: pytest.FixtureRequest, producer: Producer, handler: Thinking) -> Iterator[Future[Any]]:
    """A call in another thread, whose record is too large; the handler is being asked about it."""
    with ThreadPoolExecutor(1) as threads:
        producer.send("orders", b"good", partition=0).result(LATEST_S)
        try:
            call = threads.submit(request.param, producer)
            assert handler.asked.wait(LATEST_S)
            yield call
        finally:
            handler.may_answer.set()


def send(producer: Producer) -> Future[Any]:
    return producer.send("orders", TOO_LARGE, partition=0)


def send_table(producer: Producer) -> Future[Any]:
    return producer.send_table("orders", pa.table({"value": [TOO_LARGE]}))


CALLS = pytest.mark.parametrize("sending", [send, send_table], indirect=True)


@CALLS
def test_what_fails_after_the_commit_is_refused_as_part_of_no_transaction(
    producer: Producer, handler: Thinking, sending: Future[Any]
) -> None:
    producer.commit_transaction()
    handler.may_answer.set()
    with pytest.raises(IllegalStateException, match=r"could not send .*1\d\d\d bytes.*another thread has ended its transaction") as raised:
        sending.result(LATEST_S)
    assert isinstance(raised.value.__cause__, RecordTooLargeException)


@CALLS
def test_what_fails_after_the_commit_does_not_fail_the_next_transaction(
    broker: EmbeddedBroker, producer: Producer, handler: Thinking, sending: Future[Any]
) -> None:
    producer.commit_transaction()
    producer.begin_transaction()
    handler.may_answer.set()
    with pytest.raises(IllegalStateException):
        sending.result(LATEST_S)
    producer.send("orders", b"next", partition=0)
    producer.commit_transaction()
    assert broker.read("orders").column("value").to_pylist() == [b"good", b"next"]


@CALLS
def test_what_fails_before_the_commit_fails_it(producer: Producer, handler: Thinking, sending: Future[Any]) -> None:
    handler.may_answer.set()
    sending.result(LATEST_S)
    with pytest.raises(RecordTooLargeException):
        producer.commit_transaction()
    producer.abort_transaction()
