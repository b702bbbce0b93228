"""`send` calls that another thread's commit overtakes: no transaction with a failed record is committed."""

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


class BlockingHandler(ProducerExceptionHandler):
    """A handler that returns only when the test lets it."""

    def __init__(self) -> None:
        self.is_called, self.may_return = threading.Event(), threading.Event()

    def handle_record_too_large(self, record: Any, exception: KafkaException) -> NonRetriableResponse:
        self.is_called.set()
        assert self.may_return.wait(LATEST_S)
        return NonRetriableResponse.FAIL


@pytest.fixture
def handler() -> BlockingHandler:
    return BlockingHandler()


@pytest.fixture
def producer(producer_of: Make, broker: EmbeddedBroker, handler: BlockingHandler) -> Iterator[Producer]:
    options = {"transactional_id": "t", "max_request_size": 1_000, "custom_exception_handler_class": handler}
    with producer_of(broker, **options) as transactional:
        transactional.init_transactions()
        transactional.begin_transaction()
        yield transactional


@pytest.fixture
def sending(request: pytest.FixtureRequest, producer: Producer, handler: BlockingHandler) -> Iterator[Future[Any]]:
    """A call in another thread whose record is too large; it waits in the exception handler."""
    with ThreadPoolExecutor(1) as threads:
        producer.send("orders", b"good", partition=0).result(LATEST_S)
        try:
            call = threads.submit(request.param, producer)
            assert handler.is_called.wait(LATEST_S)
            yield call
        finally:
            handler.may_return.set()


def send(producer: Producer) -> Future[Any]:
    return producer.send("orders", TOO_LARGE, partition=0)


def send_table(producer: Producer) -> Future[Any]:
    return producer.send_table("orders", pa.table({"value": [TOO_LARGE]}))


CALLS = pytest.mark.parametrize("sending", [send, send_table], indirect=True)


@CALLS
def test_send_that_fails_after_the_commit_raises(producer: Producer, handler: BlockingHandler, sending: Future[Any]) -> None:
    producer.commit_transaction()
    handler.may_return.set()
    with pytest.raises(IllegalStateException, match=r"could not send .*1\d\d\d bytes.*another thread has ended its transaction") as raised:
        sending.result(LATEST_S)
    assert isinstance(raised.value.__cause__, RecordTooLargeException)


@CALLS
def test_send_that_fails_after_the_commit_does_not_fail_the_next_transaction(
    broker: EmbeddedBroker, producer: Producer, handler: BlockingHandler, sending: Future[Any]
) -> None:
    producer.commit_transaction()
    producer.begin_transaction()
    handler.may_return.set()
    with pytest.raises(IllegalStateException):
        sending.result(LATEST_S)
    producer.send("orders", b"next", partition=0)
    producer.commit_transaction()
    assert broker.read("orders").column("value").to_pylist() == [b"good", b"next"]


@CALLS
def test_send_that_fails_before_the_commit_fails_it(producer: Producer, handler: BlockingHandler, sending: Future[Any]) -> None:
    handler.may_return.set()
    sending.result(LATEST_S)
    with pytest.raises(RecordTooLargeException):
        producer.commit_transaction()
    producer.abort_transaction()
