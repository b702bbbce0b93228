"""Offsets added to a transaction while their topic is recreated: only offsets of the old topic are left out."""

from __future__ import annotations

from uuid import UUID

import pytest

from chaffinch.errors import codes
from chaffinch.identifiers import ConsumerGroupMetadata, GroupMetadata, OffsetAndMetadata, TopicPartition
from chaffinch.producer.core import events
from chaffinch.protocol.messages.metadata import MetadataRequest
from chaffinch.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from tests.producer.core.rig import Rig

ORDERS_0 = TopicPartition("orders", 0)
OLD_ID, NEW_ID = UUID(int=7), UUID(int=8)
OFFSETS = {ORDERS_0: OffsetAndMetadata(5)}


def group(topic_ids: dict[TopicPartition, UUID]) -> GroupMetadata:
    found = ConsumerGroupMetadata("g", 3, "member")
    found.topic_ids = topic_ids
    return found


def in_transaction(monkeypatch: pytest.MonkeyPatch, version: int) -> Rig:
    monkeypatch.setattr(Rig, "transaction_version", version)
    rig = Rig(options={"transactional.id": "t"})
    rig.topic_id = NEW_ID
    rig.call(events.InitTransactionsCalled, "init")
    rig.call(events.BeginTransactionCalled, "begin")
    return rig


def offset_commit_topics(rig: Rig) -> list[tuple[str, UUID]]:
    """Topic name and id of each TxnOffsetCommit request."""
    return [(request.topics[0].name, request.topics[0].topic_id) for request in rig.requests if isinstance(request, TxnOffsetCommitRequest)]


def refusal(topic_id: UUID) -> TxnOffsetCommitResponse:
    refused = TxnOffsetCommitResponsePartition(partition_index=0, error_code=codes.UNKNOWN_TOPIC_ID.number)
    return TxnOffsetCommitResponse(topics=[TxnOffsetCommitResponseTopic(topic_id=topic_id, partitions=[refused])])


def assert_left_out(rig: Rig) -> None:
    for _ in range(50):
        rig.sleep(100)
    assert rig.calls["offsets"] == "done"
    (line,) = [report for report in rig.reports if "left out of the transaction" in report]
    assert "topic 'orders'" in line
    assert "AAAAAAAAAAAAAAAAAAAABw" in line
    assert "AAAAAAAAAAAAAAAAAAAACA" in line
    checks = [request for request in rig.requests if isinstance(request, MetadataRequest)]
    assert not checks[-1].allow_auto_topic_creation
    assert rig.call(events.CommitCalled, "commit") == "done"


def test_coordinator_refuses_the_old_topic_id_and_offsets_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = in_transaction(monkeypatch, 2)
    rig.scripted[TxnOffsetCommitRequest] = [refusal(OLD_ID)]
    rig.call(events.SendOffsetsCalled, "offsets", offsets=OFFSETS, group=group({ORDERS_0: OLD_ID}))
    assert_left_out(rig)
    assert [topic_id for _, topic_id in offset_commit_topics(rig)] == [OLD_ID]


def test_version_1_compares_topic_ids_and_leaves_offsets_out(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = in_transaction(monkeypatch, 1)
    rig.call(events.SendOffsetsCalled, "offsets", offsets=OFFSETS, group=group({ORDERS_0: OLD_ID}))
    assert_left_out(rig)
    assert offset_commit_topics(rig) == []


@pytest.mark.parametrize(("version", "topic_id"), [(1, UUID(int=0)), (2, NEW_ID)])
def test_offsets_of_the_current_topic_are_committed(monkeypatch: pytest.MonkeyPatch, version: int, topic_id: UUID) -> None:
    rig = in_transaction(monkeypatch, version)
    rig.call(events.SendOffsetsCalled, "offsets", offsets=OFFSETS, group=group({ORDERS_0: NEW_ID}))
    assert rig.calls["offsets"] == "done"
    assert offset_commit_topics(rig) == [("orders", topic_id)]


@pytest.mark.parametrize("version", [1, 2])
def test_offsets_without_topic_ids_are_committed_unchecked(monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    rig = in_transaction(monkeypatch, version)
    rig.call(events.SendOffsetsCalled, "offsets", offsets=OFFSETS, group=GroupMetadata("g"))
    assert rig.calls["offsets"] == "done"
    assert offset_commit_topics(rig) == [("orders", UUID(int=0))]


def test_coordinator_without_the_new_topic_id_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = in_transaction(monkeypatch, 2)
    rig.scripted[TxnOffsetCommitRequest] = [refusal(NEW_ID)]
    rig.call(events.SendOffsetsCalled, "offsets", offsets=OFFSETS, group=group({ORDERS_0: NEW_ID}))
    rig.sleep(1_000)
    assert rig.calls["offsets"] == "done"
    assert len(offset_commit_topics(rig)) == 2


@pytest.mark.parametrize("version", [1, 2])
def test_coordinator_with_stale_metadata_is_retried(monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    """If offsets were left out here, their records would be read and written a second time."""
    rig = in_transaction(monkeypatch, version)
    if version == 2:
        rig.scripted[TxnOffsetCommitRequest] = [refusal(NEW_ID)]
    rig.topic_id = OLD_ID
    rig.call(events.SendOffsetsCalled, "offsets", offsets=OFFSETS, group=group({ORDERS_0: NEW_ID}))
    for _ in range(20):
        rig.sleep(100)
    assert "offsets" not in rig.calls
    rig.topic_id = NEW_ID
    for _ in range(20):
        rig.sleep(100)
    assert rig.calls["offsets"] == "done"
    assert offset_commit_topics(rig)[-1] == ("orders", UUID(int=0) if version == 1 else NEW_ID)
    assert not [report for report in rig.reports if "left out" in report]
