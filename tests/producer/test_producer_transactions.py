"""Transactions of the public producer against the real broker: only committed records are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Literal

import pytest

from chaffinch import EmbeddedBroker, OffsetAndMetadata, Producer, TopicPartition
from chaffinch.client.response_errors import raise_for
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import (
    IllegalStateException,
    InvalidCompactionKeyException,
    InvalidTxnTimeoutException,
    ProducerFencedException,
    RecordTooLargeException,
    Stored,
    TimeoutException,
    TransactionAbortableException,
)
from chaffinch.protocol.messages.describe_transactions import DescribeTransactionsRequest
from chaffinch.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tests.producer.conftest import TOPICS


class Interrupted(Exception):
    """Raised by a test within a transaction."""


def run_interrupted_transaction(producer: Producer, call: Callable[[], object]) -> None:
    """Run a transaction that makes a call and then raises."""
    with pytest.raises(Interrupted), producer.transaction():
        _call_and_raise(call)


def _call_and_raise(call: Callable[[], object]) -> None:
    call()
    raise Interrupted


Make = Callable[..., Producer]


@pytest.fixture(params=[1, 2])
def version(request: pytest.FixtureRequest) -> int:
    """Transaction version that the broker reports."""
    found: int = request.param
    return found


@pytest.fixture
def broker(version: int) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics=TOPICS, config={"transaction.version": version}) as running:
        yield running


def values(broker: EmbeddedBroker, topic: str, **more: Any) -> list[bytes]:
    return broker.read(topic, **more).column("value").to_pylist()


class TestTransactions:
    @pytest.mark.parametrize("is_closed", [False, True], ids=["abort", "close"])
    def test_unsent_record_of_an_aborted_transaction_advises_how_to_send_it(
        self, producer_of: Make, broker: EmbeddedBroker, is_closed: bool
    ) -> None:
        with producer_of(broker, transactional_id="t", linger_ms=60_000) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            future = producer.send("orders", b"v", partition=0)
            producer.close() if is_closed else producer.abort_transaction()
            advice = "with a new producer" if is_closed else "in the next transaction"
            assert str(future.exception(0)) == (
                f"orders-0: TRANSACTION_ABORTABLE (120): the transaction was aborted (the only record of its batch, no key); "
                f"not stored; send it again {advice}"
            )

    def test_only_committed_records_are_read(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        with producer_of(broker, transactional_id="t") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            first = producer.send("latest", b"committed", key=b"k")
            assert values(broker, "latest") == []
            producer.commit_transaction()
            assert first.result(0).offset == 0
            producer.begin_transaction()
            producer.send("latest", b"aborted", key=b"k").result(60)
            producer.abort_transaction()
            with producer.transaction():
                producer.send("orders", b"again")
        assert values(broker, "latest") == [b"committed"]
        assert values(broker, "latest", isolation="read_uncommitted") == [b"committed", b"aborted"]
        assert values(broker, "orders") == [b"again"]

    def test_many_transactions_in_a_row(self, producer_of: Make, broker: EmbeddedBroker, version: int) -> None:
        with producer_of(broker, transactional_id="t") as producer:
            producer.init_transactions()
            before = _epoch(broker, "t")
            for i in range(20):
                with producer.transaction():
                    for partition in range(3):
                        producer.send("orders", b"%d" % i, partition=partition)
        assert _epoch(broker, "t") - before == (0 if version == 1 else 20)
        assert sorted(values(broker, "orders")) == sorted(b"%d" % i for i in range(20) for _ in range(3))

    def test_exception_in_the_with_block_aborts(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        with producer_of(broker, transactional_id="t") as producer:
            producer.init_transactions()
            run_interrupted_transaction(producer, lambda: producer.send("orders", b"v"))
            with producer.transaction():
                producer.send("orders", b"w")
        assert values(broker, "orders") == [b"w"]

    def test_with_block_can_end_its_transaction_itself(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        with producer_of(broker, transactional_id="t") as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send("orders", b"aborted")
                producer.abort_transaction()
            with producer.transaction():
                producer.send("orders", b"committed")
                producer.commit_transaction()
            with pytest.raises(IllegalStateException, match="no transaction is open"):
                producer.commit_transaction()
        assert broker.read("orders").column("value").to_pylist() == [b"committed"]

    def test_culprit_fails_the_commit_with_its_error_class(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        with producer_of(broker, transactional_id="t", linger_ms=60_000) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            good, bad = producer.send("latest", b"v", key=b"k"), producer.send("latest", b"v")
            with pytest.raises(InvalidCompactionKeyException):
                producer.commit_transaction()
            assert isinstance(good.exception(0), TransactionAbortableException)
            assert isinstance(bad.exception(0), InvalidCompactionKeyException)
            assert isinstance(producer.send("latest", b"v", key=b"k").exception(0), TransactionAbortableException)
            producer.abort_transaction()
            with producer.transaction():
                producer.send("latest", b"w", key=b"k")
        assert values(broker, "latest") == [b"w"]

    def test_too_large_record_fails_the_transaction(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        with producer_of(broker, transactional_id="t", max_request_size=1000) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            assert isinstance(producer.send("orders", bytes(1000)).exception(0), RecordTooLargeException)
            with pytest.raises(RecordTooLargeException):
                producer.commit_transaction()
            producer.abort_transaction()

    def test_offsets_are_committed_with_the_transaction(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        with producer_of(broker, transactional_id="t") as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send("orders", b"v")
                producer.send_offsets_to_transaction({TopicPartition("latest", 0): OffsetAndMetadata(42, "note")}, "group")
            run_interrupted_transaction(producer, lambda: producer.send_offsets_to_transaction({TopicPartition("latest", 0): 43}, "group"))
        assert _committed(broker, "group", "latest") == (42, "note")

    def test_later_producer_of_the_same_id_fences_the_earlier(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        with producer_of(broker, transactional_id="t") as earlier, producer_of(broker, transactional_id="t") as later:
            earlier.init_transactions()
            earlier.begin_transaction()
            earlier.send("orders", b"old").result(60)
            later.init_transactions()
            with later.transaction():
                later.send("orders", b"new")
            with pytest.raises(ProducerFencedException):
                earlier.commit_transaction()
            with pytest.raises(ProducerFencedException):
                earlier.begin_transaction()
        assert values(broker, "orders") == [b"new"]

    @pytest.mark.parametrize("api", ["InitProducerId", "AddPartitionsToTxn", "EndTxn", "Produce", "FindCoordinator"])
    @pytest.mark.parametrize("action", ["drop_before", "drop_after"])
    def test_lost_connections_lose_and_duplicate_nothing(
        self, producer_of: Make, broker: EmbeddedBroker, api: str, action: Literal["drop_before", "drop_after"]
    ) -> None:
        with producer_of(broker, transactional_id="t") as producer:
            broker.faults.add(api=api, action=action)
            producer.init_transactions()
            for i in range(3):
                with producer.transaction():
                    producer.send("orders", b"%d" % i)
        assert sorted(values(broker, "orders")) == [b"0", b"1", b"2"]

    @pytest.mark.parametrize("api", ["AddOffsetsToTxn", "TxnOffsetCommit"])
    @pytest.mark.parametrize("action", ["drop_before", "drop_after"])
    def test_lost_connections_still_commit_offsets(
        self, producer_of: Make, broker: EmbeddedBroker, api: str, action: Literal["drop_before", "drop_after"]
    ) -> None:
        with producer_of(broker, transactional_id="t") as producer:
            broker.faults.add(api=api, action=action)
            producer.init_transactions()
            with producer.transaction():
                producer.send_offsets_to_transaction({TopicPartition("latest", 0): 5}, "group")
        assert _committed(broker, "group", "latest")[0] == 5

    def test_transaction_after_a_timed_out_record_is_clean(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        options = {"delivery_timeout_ms": 250, "request_timeout_ms": 200}
        with producer_of(broker, transactional_id="t", **options) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            broker.faults.add(api="Produce", error="REQUEST_TIMED_OUT", count=1000)
            error = producer.send("orders", b"lost").exception(60)
            assert isinstance(error, TransactionAbortableException)
            assert isinstance(error.__cause__, TimeoutException)
            broker.faults.clear()
            producer.abort_transaction()
            while not values(broker, "orders"):  # A busy machine may take longer than a record has time.
                with suppress(TransactionAbortableException), producer.transaction():
                    producer.send("orders", b"found")
        assert values(broker, "orders") == [b"found"]

    def test_abort_of_an_unknown_transaction_succeeds(self, producer_of: Make, broker: EmbeddedBroker, version: int) -> None:
        """In version 1 the coordinator refuses EndTxn, and the producer stays usable."""
        with producer_of(broker, transactional_id="t") as producer:
            producer.init_transactions()
            broker.faults.add(api="AddPartitionsToTxn" if version == 1 else "Produce", error="TOPIC_AUTHORIZATION_FAILED")
            producer.begin_transaction()
            assert producer.send("orders", b"v").exception(60) is not None
            producer.abort_transaction()
            with producer.transaction():
                producer.send("orders", b"w")
        assert values(broker, "orders") == [b"w"]

    def test_close_aborts_the_open_transaction(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        producer = producer_of(broker, transactional_id="t")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"v", partition=0).result(60)
        producer.close()
        assert values(broker, "orders") == []
        with producer_of(broker) as other:
            other.send("orders", b"w", partition=0).result(60)
        assert b"w" in values(broker, "orders")

    def test_calls_in_the_wrong_order_raise(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        with producer_of(broker, transactional_id="t") as producer:
            for call in (producer.begin_transaction, producer.commit_transaction, producer.abort_transaction):
                with pytest.raises(IllegalStateException):
                    call()
            producer.init_transactions()
            with pytest.raises(IllegalStateException, match="begin_transaction"):
                producer.send("orders", b"v")
            with pytest.raises(IllegalStateException):
                producer.init_transactions()
            with pytest.raises(IllegalStateException):
                producer.send_offsets_to_transaction({TopicPartition("orders", 0): 1}, "g")
            producer.begin_transaction()
            with pytest.raises(IllegalStateException):
                producer.begin_transaction()

    def test_init_without_a_transactional_id_raises(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        with producer_of(broker) as producer, pytest.raises(IllegalStateException, match=r"transactional\.id"):
            producer.init_transactions()

    def test_too_long_transaction_timeout_raises(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        with producer_of(broker, transactional_id="t", transaction_timeout_ms=10**9) as producer:
            with pytest.raises(InvalidTxnTimeoutException):
                producer.init_transactions()
            with pytest.raises(InvalidTxnTimeoutException):
                producer.init_transactions()


def _epoch(broker: EmbeddedBroker, transactional_id: str) -> int:
    """Producer epoch at the coordinator."""
    with SyncClient(broker.bootstrap_servers) as client:
        answer = client.coordinator_request(
            transactional_id, "transaction", DescribeTransactionsRequest(transactional_ids=[transactional_id])
        )
    epoch: int = answer.transaction_states[0].producer_epoch
    return epoch


def _committed(broker: EmbeddedBroker, group: str, topic: str) -> tuple[int, str | None]:
    """The group's committed offset and its note."""
    request = OffsetFetchRequest(
        group_id=group,
        topics=[OffsetFetchRequestTopic(name=topic, partition_indexes=[0])],
        groups=[OffsetFetchRequestGroup(group_id=group, topics=[OffsetFetchRequestTopics(name=topic, partition_indexes=[0])])],
        require_stable=True,
    )
    with SyncClient(broker.bootstrap_servers) as client:
        answer = client.coordinator_request(group, "group", request)
        raise_for(answer)
    (topic_found,) = (answer.groups[0] if answer.groups else answer).topics  # One group in versions up to 7.
    (partition,) = topic_found.partitions
    return partition.committed_offset, partition.metadata


@pytest.mark.parametrize("name", ["commit_transaction", "abort_transaction"])
def test_commit_or_abort_in_a_callback_has_no_effect(producer_of: Callable[..., Producer], broker: EmbeddedBroker, name: str) -> None:
    producer = producer_of(broker, transactional_id="t")
    producer.init_transactions()
    producer.begin_transaction()
    refusal: Future[str] = Future()

    def call_in_callback(_metadata: object, _error: object) -> None:
        try:
            getattr(producer, name)()
        except IllegalStateException as refused:
            refusal.set_result(str(refused))

    producer.send("orders", b"1", on_delivery=call_in_callback)
    producer.flush()
    assert "would wait for itself" in refusal.result(60)
    producer.send("orders", b"2")
    producer.commit_transaction()
    producer.close()


def test_commit_interrupted_by_close_may_have_happened(producer_of: Make, broker: EmbeddedBroker) -> None:
    producer = producer_of(broker, transactional_id="t", linger_ms=60_000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("latest", b"v", key=b"k", on_delivery=lambda _metadata, _error: producer.close())
    with pytest.raises(IllegalStateException) as raised:
        producer.commit_transaction()
    assert raised.value.stored is Stored.POSSIBLY
    text = "the commit of transactional.id 't' may have happened, EndTxn got no response: the producer was closed in the meantime"
    assert raised.value.message == text
