"""TxnOffsetCommit 6: topics by id (KIP-1319). An offset of a deleted topic never becomes one of a topic created later under its name."""

from __future__ import annotations

from uuid import UUID

import pytest

from chaffinch.identifiers import ProducerIdentity
from chaffinch.protocol.messages.delete_topics import DeleteTopicsRequest
from chaffinch.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from tests.broker.core.transactions.test_transactions import committed, end, identity_of
from tests.broker.core_client import Client, Cluster

UNKNOWN_ID = UUID(int=5)


@pytest.fixture
def cluster() -> Cluster:
    found = Cluster()
    found.topic("orders")
    return found


def id_of(cluster: Cluster) -> UUID:
    topic = cluster.core.topics.get("orders")
    assert topic is not None
    return topic.topic_id


def commit(client: Client, identity: ProducerIdentity, *topic_ids: UUID, version: int = 6, generation: int = -1) -> TxnOffsetCommitResponse:
    requested = [TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=5, committed_metadata="m")]
    topics = [TxnOffsetCommitRequestTopic(topic_id=topic_id, partitions=requested) for topic_id in topic_ids]
    if version < 6:
        topics = [TxnOffsetCommitRequestTopic(name="orders", partitions=requested)]
    request = TxnOffsetCommitRequest(
        transactional_id="t",
        group_id="g",
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        generation_id=generation,
        topics=topics,
    )
    answer: TxnOffsetCommitResponse = client.ask(request, version)
    return answer


def codes_of(answer: TxnOffsetCommitResponse) -> list[tuple[UUID, int]]:
    return [(topic.topic_id, topic.partitions[0].error_code) for topic in answer.topics]


def renew(cluster: Cluster) -> None:
    cluster.client().ask(DeleteTopicsRequest(topic_names=["orders"]), 5)
    cluster.topic("orders")


def test_offsets_are_committed_by_topic_id(cluster: Cluster) -> None:
    client = cluster.client()
    identity = identity_of(client)
    assert codes_of(commit(client, identity, id_of(cluster), UNKNOWN_ID)) == [(id_of(cluster), 0), (UNKNOWN_ID, 100)]
    (line,) = [line for line in cluster.lines if "UNKNOWN_TOPIC_ID" in line]
    assert "topic id AAAAAAAAAAAAAAAAAAAABQ" in line
    end(client, identity, True)
    assert committed(client) == (5, "m", 0)


def test_id_of_a_deleted_topic_is_refused(cluster: Cluster) -> None:
    client, before = cluster.client(), id_of(cluster)
    identity = identity_of(client)
    renew(cluster)
    assert codes_of(commit(client, identity, before)) == [(before, 100)]


@pytest.mark.parametrize("version", [5, 6])
def test_pending_offsets_are_deleted_with_their_topic(cluster: Cluster, version: int) -> None:
    client = cluster.client()
    identity = identity_of(client)
    assert codes_of(commit(client, identity, id_of(cluster), version=version))[0][1] == 0
    renew(cluster)
    end(client, identity, True)
    assert committed(client) == (-1, "", 0)


@pytest.mark.parametrize(("version", "code"), [(5, 22), (6, 69)])
def test_missing_group_has_its_code(cluster: Cluster, version: int, code: int) -> None:
    client = cluster.client()
    answer = commit(client, identity_of(client), id_of(cluster), version=version, generation=1)
    assert answer.topics[0].partitions[0].error_code == code
