"""What leaders are asked and told, one request to each: what is made of those that refuse, fail, or do not answer."""

from collections.abc import Iterator

import pytest

from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import NetworkException, Stored, codes, exception_for
from chaffinch.errors.exceptions import SaslAuthenticationException, UnknownServerException
from chaffinch.identifiers import ProducerIdentity, TopicPartition
from chaffinch.spark.commit.finish import OFFSETS_TOPIC
from chaffinch.spark.commit.operations import CountPartitions, FindRemains, LeftOpen, Lost, Step, WriteMarkers
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.sink.find_remains import count_partitions, find_remains, write_markers


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics={"orders": {"partitions": 2}}) as broker:
        yield broker


@pytest.fixture
def topic() -> str:
    return "orders"


@pytest.mark.parametrize(("stored", "is_unsure"), [(Stored.NO, False), (Stored.POSSIBLY, True)], ids=["never sent", "sent"])
def test_who_does_not_answer_may_have_taken_a_marker_that_was_sent(
    broker: EmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch, stored: Stored, is_unsure: bool
) -> None:
    def lost(*_: object, **__: object) -> None:
        raise NetworkException("no answer", stored=stored)

    place = TopicPartition(topic, 0)
    asked = WriteMarkers(step=Step.FINISH_COMMIT, identity=ProducerIdentity(7, 0), places=(LeftOpen(place, 0, 0),))
    with SyncClient(broker.bootstrap_servers) as client:
        client.leader(place)
        monkeypatch.setattr(SyncClient, "request", lost)
        assert write_markers(client, asked, 2_000, 2_000).unsure == ({place} if is_unsure else set())


def test_whose_markers_are_not_ours_and_who_is_unknown_is_told_by_place(
    broker: EmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [TopicPartition(topic, 0), TopicPartition(f"{topic}-gone", 0)]
    asked = WriteMarkers(step=Step.FINISH_COMMIT, identity=ProducerIdentity(7, 0), places=tuple(LeftOpen(place, 0, 0) for place in places))

    def refused(*_: object, **__: object) -> None:
        raise exception_for(codes.CLUSTER_AUTHORIZATION_FAILED)

    with SyncClient(broker.bootstrap_servers) as client:
        monkeypatch.setattr(SyncClient, "request", refused)
        told = write_markers(client, asked, 2_000, 2_000)
    assert (told.not_ours, told.refused) == (frozenset(places[:1]), codes.CLUSTER_AUTHORIZATION_FAILED)
    assert (told.unknown, told.unsure) == (frozenset(places[1:]), frozenset())
    assert told.reason.startswith(f"{places[1]}: ")


@pytest.mark.parametrize(
    ("error", "reason", "refused"),
    [
        (NetworkException("no answer"), "no answer", codes.NONE),
        (exception_for(codes.SASL_AUTHENTICATION_FAILED, message="no"), "no", codes.SASL_AUTHENTICATION_FAILED),
        (exception_for(codes.UNKNOWN_SERVER_ERROR, message="failed"), "failed", codes.NONE),
    ],
    ids=lambda given: getattr(given, "name", ""),
)
def test_where_no_leader_is_found_nobody_has_taken_a_marker_or_refused_it(
    broker: EmbeddedBroker,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    error: SaslAuthenticationException | UnknownServerException | NetworkException,
    reason: str,
    refused: codes.ErrorCode,
) -> None:
    def lost(*_: object, **__: object) -> None:
        raise error

    asked = WriteMarkers(step=Step.FINISH_COMMIT, identity=ProducerIdentity(7, 0), places=(LeftOpen(TopicPartition(topic, 0), 0, 0),))
    monkeypatch.setattr(SyncClient, "refresh_metadata", lost)
    with SyncClient(broker.bootstrap_servers) as client:
        told = write_markers(client, asked, 2_000, 2_000)
    assert (told.reason, told.refused, told.unsure, told.not_ours) == (reason, refused, frozenset(), frozenset())


@pytest.mark.parametrize("code", [codes.SASL_AUTHENTICATION_FAILED, codes.UNKNOWN_SERVER_ERROR], ids=lambda code: code.name)
def test_partitions_are_counted_again_only_where_that_can_help(
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


def test_a_leader_that_does_not_answer_is_asked_about_no_further_partition(
    broker: EmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time for as long as an answer may take."""
    asked = []

    def lost(*_: object, **__: object) -> None:
        asked.append(1)
        raise NetworkException("no answer")

    places = tuple(TopicPartition(topic, number) for number in range(2))
    with SyncClient(broker.bootstrap_servers) as client:
        monkeypatch.setattr(SyncClient, "request", lost)
        operation = FindRemains(step=Step.FIND_REMAINS, producer_id=1, partitions=places, refresh=True)
        assert find_remains(client, operation, 2_000, 2_000).asked == frozenset()
    assert len(asked) == 1
