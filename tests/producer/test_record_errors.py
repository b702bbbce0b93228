"""Errors of records that fail together: each future has its own error, which names its record."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from chaffinch import EmbeddedBroker, Producer
from chaffinch.errors import KafkaException, TopicAuthorizationException
from chaffinch.records import batch as record_batch
from chaffinch.records.compression import Compression, PayloadTooLarge

Make = Callable[..., Producer]
KEYS = [b"first", None, b"k" * 100]
KEYS_IN_ERRORS = ["key 'first'", "no key", f"key '{'k' * 60}'..."]
LATEST_S = 60

REFUSALS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "refused as a whole": ({"error": "TOPIC_AUTHORIZATION_FAILED"}, {}),
    "refused as a whole, compressed": ({"error": "TOPIC_AUTHORIZATION_FAILED"}, {"compression_type": "zstd"}),
    "a code without culprits (KIP-467, 3.b.i)": ({"error": "INVALID_REQUIRED_ACKS"}, {}),
    "no answer in time": ({"action": "drop_after", "count": 1_000}, {"delivery_timeout_ms": 300, "request_timeout_ms": 200}),
    "refused until time was up": (
        {"error": "NOT_ENOUGH_REPLICAS", "count": 1_000_000},
        {"delivery_timeout_ms": 300, "request_timeout_ms": 200},
    ),
    "never sent": (
        {"api": "InitProducerId", "error": "COORDINATOR_LOAD_IN_PROGRESS", "count": 1_000_000},
        {"delivery_timeout_ms": 300, "request_timeout_ms": 200},
    ),
}


@pytest.mark.parametrize(("fault", "options"), REFUSALS.values(), ids=REFUSALS.keys())
def test_each_error_names_its_record(broker: EmbeddedBroker, producer_of: Make, fault: dict[str, Any], options: dict[str, Any]) -> None:
    broker.faults.add(**{"api": "Produce", **fault})
    called: list[BaseException | None] = []
    with producer_of(broker, linger_ms=100, **options) as producer:
        futures = [producer.send("orders", b"v", key=key, partition=0, on_delivery=lambda _, error: called.append(error)) for key in KEYS]
        errors = [future.exception(LATEST_S) for future in futures]
    assert called == errors
    assert len({id(error) for error in errors}) == len(errors)
    for index, (error, key_in_error) in enumerate(zip(errors, KEYS_IN_ERRORS, strict=True)):
        assert isinstance(error, KafkaException)
        assert error.topic_partition == ("orders", 0)
        assert f" (record {index} of the 3 in its batch, {key_in_error})" in str(error)


def test_errors_of_unsent_records_name_their_records(broker: EmbeddedBroker, producer_of: Make) -> None:
    """Their batch was never sent, so it was never encoded."""
    producer = producer_of(broker, linger_ms=60_000, transactional_id="t")
    producer.init_transactions()
    producer.begin_transaction()
    futures = [producer.send("orders", b"v", key=key, partition=0) for key in KEYS]
    producer.abort_transaction()
    for index, (future, key_in_error) in enumerate(zip(futures, KEYS_IN_ERRORS, strict=True)):
        assert f" (record {index} of the 3 in its batch, {key_in_error})" in str(future.exception(0))
    producer.close()


CANNOT_BE_READ = [MemoryError("no memory"), PayloadTooLarge(Compression.ZSTD, 1)]


@pytest.mark.parametrize("failure", CANNOT_BE_READ, ids=["no memory", "unpacks to too much"])
def test_records_fail_without_readable_keys(
    broker: EmbeddedBroker, producer_of: Make, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """A refused batch may decompress to more than memory allows: the sender thread used to die of it, and with it other records."""

    def fail(*_: object) -> NoReturn:
        raise failure

    broker.faults.add(api="Produce", topic="orders", error="TOPIC_AUTHORIZATION_FAILED")
    monkeypatch.setattr(record_batch, "keys_at", fail)
    with producer_of(broker, linger_ms=100) as producer:
        futures = [producer.send("orders", b"v", key=key, partition=0) for key in KEYS]
        errors = [future.exception(LATEST_S) for future in futures]
        assert producer.send("stamped", b"an innocent").result(LATEST_S).offset == 0
    for index, error in enumerate(errors):
        assert isinstance(error, TopicAuthorizationException)
        assert f" (record {index} of the 3 in its batch); " in str(error)


def test_raised_errors_do_not_share_tracebacks(broker: EmbeddedBroker, producer_of: Make) -> None:
    """Records of one batch used to share an exception, whose traceback grew with each raise."""
    broker.faults.add(api="Produce", error="TOPIC_AUTHORIZATION_FAILED")
    with producer_of(broker, linger_ms=100) as producer:
        futures = [producer.send("orders", b"v", partition=0) for _ in range(50)]
        producer.flush()
    depths = []
    for future in futures:
        with pytest.raises(KafkaException) as raised:
            future.result(0)
        depths.append(len(traceback.extract_tb(raised.value.__traceback__)))
    assert depths == [depths[0]] * 50


def test_too_large_record_error_names_its_key(broker: EmbeddedBroker, producer_of: Make) -> None:
    with producer_of(broker, max_request_size=1000) as producer:
        future = producer.send("orders", b"v" * 2000, key=b"mine", partition=1)
        error = future.exception(0)
    assert isinstance(error, KafkaException)
    assert error.topic_partition == ("orders", 1)
    assert "the record (key 'mine') takes 2101 bytes" in str(error)
