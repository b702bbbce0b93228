"""Offsets that go into a transaction while their topic is deleted and created again: they are left out, and nothing else is."""

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

PLACE = TopicPartition("orders", 0)
OLD_ID, NEW_ID = UUID(int=7), UUID(int=8)
OFFSETS = {PLACE: OffsetAndMetadata(5)}


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


def sent(rig: Rig) -> list[tuple[str, UUID]]:
    """Of each TxnOffsetCommit, the topic's name and id."""
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


def test_where_the_coordinator_takes_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = in_transaction(monkeypatch, 2)
    rig.scripted[TxnOffsetCommitRequest] = [refusal(OLD_ID)]
    rig.call(events.SendOffsetsCalled, "offsets", offsets=OFFSETS, group=group({PLACE: OLD_ID}))
    assert_left_out(rig)
    assert [topic_id for _, topic_id in sent(rig)] == [OLD_ID]


def test_in_version_1_ids_are_compared_first(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = in_transaction(monkeypatch, 1)
    rig.call(events.SendOffsetsCalled, "offsets", offsets=OFFSETS, group=group({PLACE: OLD_ID}))
    assert_left_out(rig)
    assert sent(rig) == []


@pytest.mark.parametrize(("version", "topic_id"), [(1, UUID(int=0)), (2, NEW_ID)])
def test_offsets_in_the_topic_that_is_there_are_committed(monkeypatch: pytest.MonkeyPatch, version: int, topic_id: UUID) -> None:
    rig = in_transaction(monkeypatch, version)
    rig.call(events.SendOffsetsCalled, "offsets", offsets=OFFSETS, group=group({PLACE: NEW_ID}))
    assert rig.calls["offsets"] == "done"
    assert sent(rig) == [("orders", topic_id)]


@pytest.mark.parametrize("version", [1, 2])
def test_offsets_of_which_no_id_is_known_are_the_applications_own_affair(monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    rig = in_transaction(monkeypatch, version)
    rig.call(events.SendOffsetsCalled, "offsets", offsets=OFFSETS, group=GroupMetadata("g"))
    assert rig.calls["offsets"] == "done"
    assert sent(rig) == [("orders", UUID(int=0))]


def test_a_coordinator_that_lags_behind_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = in_transaction(monkeypatch, 2)
    rig.scripted[TxnOffsetCommitRequest] = [refusal(NEW_ID)]
    rig.call(events.SendOffsetsCalled, "offsets", offsets=OFFSETS, group=group({PLACE: NEW_ID}))
    rig.sleep(1_000)
    assert rig.calls["offsets"] == "done"
    assert len(sent(rig)) == 2


@pytest.mark.parametrize("version", [1, 2])
def test_a_coordinator_whose_metadata_has_the_deleted_topic_is_asked_again(monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    """Offsets that are left out for that would be read, and written, a second time."""
    rig = in_transaction(monkeypatch, version)
    if version == 2:
        rig.scripted[TxnOffsetCommitRequest] = [refusal(NEW_ID)]
    rig.topic_id = OLD_ID
    rig.call(events.SendOffsetsCalled, "offsets", offsets=OFFSETS, group=group({PLACE: NEW_ID}))
    for _ in range(20):
        rig.sleep(100)
    assert "offsets" not in rig.calls
    rig.topic_id = NEW_ID
    for _ in range(20):
        rig.sleep(100)
    assert rig.calls["offsets"] == "done"
    assert sent(rig)[-1] == ("orders", UUID(int=0) if version == 1 else NEW_ID)
    assert not [report for report in rig.reports if "left out" in report]
