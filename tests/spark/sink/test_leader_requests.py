"""Requests to partition leaders, one to each: the results of leaders that refuse, fail, or do not respond."""

from collections.abc import Iterator

import pytest

from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import NetworkException, Stored, codes, exception_for
from chaffinch.errors.exceptions import SaslAuthenticationException, UnknownServerException
from chaffinch.identifiers import ProducerIdentity, TopicPartition
from chaffinch.spark.commit.complete_previous import OFFSETS_TOPIC
from chaffinch.spark.commit.operations import CountPartitions, FindHangingTransactions, HangingTransaction, Lost, Step, WriteMarkers
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.sink.leader_requests import count_partitions, find_hanging_transactions, write_markers


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics={"orders": {"partitions": 2}}) as broker:
        yield broker


@pytest.fixture
def topic() -> str:
    return "orders"


@pytest.mark.parametrize(("stored", "is_possibly_written"), [(Stored.NO, False), (Stored.POSSIBLY, True)], ids=["never sent", "sent"])
def test_marker_without_response_is_possibly_written(
    broker: EmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch, stored: Stored, is_possibly_written: bool
) -> None:
    def lost(*_: object, **__: object) -> None:
        raise NetworkException("no answer", stored=stored)

    tp = TopicPartition(topic, 0)
    asked = WriteMarkers(step=Step.FINISH_COMMIT, identity=ProducerIdentity(7, 0), transactions=(HangingTransaction(tp, 0, 0),))
    with SyncClient(broker.bootstrap_servers) as client:
        client.leader(tp)
        monkeypatch.setattr(SyncClient, "request", lost)
        assert write_markers(client, asked, 2_000, 2_000).possibly_written == ({tp} if is_possibly_written else set())


def test_denied_and_unknown_partitions_are_reported(broker: EmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tps = [TopicPartition(topic, 0), TopicPartition(f"{topic}-gone", 0)]
    asked = WriteMarkers(
        step=Step.FINISH_COMMIT, identity=ProducerIdentity(7, 0), transactions=tuple(HangingTransaction(tp, 0, 0) for tp in tps)
    )

    def refused(*_: object, **__: object) -> None:
        raise exception_for(codes.CLUSTER_AUTHORIZATION_FAILED)

    with SyncClient(broker.bootstrap_servers) as client:
        monkeypatch.setattr(SyncClient, "request", refused)
        result = write_markers(client, asked, 2_000, 2_000)
    assert (result.denied, result.refused) == (frozenset(tps[:1]), codes.CLUSTER_AUTHORIZATION_FAILED)
    assert (result.unknown, result.possibly_written) == (frozenset(tps[1:]), frozenset())
    assert result.reason.startswith(f"{tps[1]}: ")


@pytest.mark.parametrize(
    ("error", "reason", "refused"),
    [
        (NetworkException("no answer"), "no answer", codes.NONE),
        (exception_for(codes.SASL_AUTHENTICATION_FAILED, message="no"), "no", codes.SASL_AUTHENTICATION_FAILED),
        (exception_for(codes.UNKNOWN_SERVER_ERROR, message="failed"), "failed", codes.NONE),
    ],
    ids=lambda given: getattr(given, "name", ""),
)
def test_marker_without_leader_is_neither_written_nor_denied(
    broker: EmbeddedBroker,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    error: SaslAuthenticationException | UnknownServerException | NetworkException,
    reason: str,
    refused: codes.ErrorCode,
) -> None:
    def lost(*_: object, **__: object) -> None:
        raise error

    asked = WriteMarkers(
        step=Step.FINISH_COMMIT, identity=ProducerIdentity(7, 0), transactions=(HangingTransaction(TopicPartition(topic, 0), 0, 0),)
    )
    monkeypatch.setattr(SyncClient, "refresh_metadata", lost)
    with SyncClient(broker.bootstrap_servers) as client:
        result = write_markers(client, asked, 2_000, 2_000)
    assert (result.reason, result.refused, result.possibly_written, result.denied) == (reason, refused, frozenset(), frozenset())


@pytest.mark.parametrize("code", [codes.SASL_AUTHENTICATION_FAILED, codes.UNKNOWN_SERVER_ERROR], ids=lambda code: code.name)
def test_partition_count_is_retried_for_retriable_errors_only(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, code: codes.ErrorCode
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise exception_for(code, message="no")

    monkeypatch.setattr(SyncClient, "refresh_metadata", fails)
    asked = CountPartitions(step=Step.FINISH_COMMIT, topic=OFFSETS_TOPIC)
    with SyncClient(broker.bootstrap_servers) as client:
        if code is codes.UNKNOWN_SERVER_ERROR:
            assert count_partitions(client, asked, 2_000) == Lost(reason="no")
        else:
            with pytest.raises(Refusal, match=code.name):
                count_partitions(client, asked, 2_000)


def test_leader_without_response_gets_no_further_requests(broker: EmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time for as long as an answer may take."""
    asked = []

    def lost(*_: object, **__: object) -> None:
        asked.append(1)
        raise NetworkException("no answer")

    tps = tuple(TopicPartition(topic, number) for number in range(2))
    with SyncClient(broker.bootstrap_servers) as client:
        monkeypatch.setattr(SyncClient, "request", lost)
        operation = FindHangingTransactions(step=Step.FIND_HANGING_TRANSACTIONS, producer_id=1, partitions=tps, refresh=True)
        assert find_hanging_transactions(client, operation, 2_000, 2_000).answered == frozenset()
    assert len(asked) == 1
