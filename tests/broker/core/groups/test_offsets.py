"""Committed offsets: who may commit, topic ids, expiry (KIP-211), deletion, and offsets that wait for a transaction."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest

from chaffinch.broker.core.groups.offset_expiry import OFFSETS_PER_CALL
from chaffinch.broker.core.groups.offsets import CommittedOffset, GroupOffsets
from chaffinch.identifiers import ProducerIdentity, TopicPartition
from chaffinch.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from chaffinch.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from chaffinch.protocol.messages.end_txn import EndTxnRequest
from chaffinch.protocol.messages.init_producer_id import InitProducerIdRequest
from chaffinch.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from chaffinch.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic
from chaffinch.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from chaffinch.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.broker.core.groups.members import GROUP, ClassicMember, ConsumerMember, commit, full_disk, stable_group
from tests.broker.core_client import Client, Cluster

MINUTE_MS = 60_000
CHECK_MS = 1000
ORDERS_0 = TopicPartition("orders", 0)


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster({"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": str(CHECK_MS)})
    cluster.topic("orders", 4)
    cluster.topic("other", 1)
    return cluster


def offset_of(cluster: Cluster, group: str = GROUP, tp: TopicPartition = ORDERS_0) -> int | None:
    found = cluster.core.state.offsets.fetch(group, tp)
    return None if found is None else found.offset


def fetch(client: Client, *, group: str = GROUP, require_stable: bool = False) -> tuple[int, int]:
    """(offset, code) of the first partition."""
    topics = [OffsetFetchRequestTopics(name="orders", partition_indexes=[0])]
    requested = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)], require_stable=require_stable)
    found = client.ask(requested, 8).groups[0].topics[0].partitions[0]
    return found.committed_offset, found.error_code


def fetch_all(client: Client, version: int, *, require_stable: bool = False) -> dict[str, list[tuple[int, int, int]]]:
    """(partition, offset, code) of all that the group has, by topic."""
    request_error: dict[str, Any] = (
        {"group_id": GROUP, "topics": None} if version < 8 else {"groups": [OffsetFetchRequestGroup(group_id=GROUP, topics=None)]}
    )
    answer = client.ask(OffsetFetchRequest(require_stable=require_stable, **request_error), version)
    topics = answer.topics if version < 8 else answer.groups[0].topics
    return {topic.name: [(part.partition_index, part.committed_offset, part.error_code) for part in topic.partitions] for topic in topics}


class Transaction:
    """A transactional producer that commits offsets."""

    def __init__(self, client: Client, name: str = "t") -> None:
        self.client, self.name = client, name
        answer = client.ask(InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=600_000))
        self.identity = ProducerIdentity(answer.producer_id, answer.producer_epoch)

    def commit(self, offset: int = 9, *, version: int = 3, **group: Any) -> int:
        fields: dict[str, Any] = {
            "transactional_id": self.name,
            "producer_id": self.identity.producer_id,
            "producer_epoch": self.identity.epoch,
        }
        assert self.client.ask(AddOffsetsToTxnRequest(group_id=GROUP, **fields)).error_code == 0
        requested = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        topics = [TxnOffsetCommitRequestTopic(name="orders", partitions=[requested])]
        answer = self.client.ask(TxnOffsetCommitRequest(group_id=GROUP, topics=topics, **fields, **group), version)
        code: int = answer.topics[0].partitions[0].error_code
        return code

    def end(self, *, committed: bool = True) -> None:
        request = EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            committed=committed,
        )
        assert self.client.ask(request, 4).error_code == 0


class TestCommit:
    @pytest.mark.parametrize(
        ("changes", "code"),
        [
            ({}, 0),
            ({"group": ""}, 0),
            ({"member": "who"}, 0),
            ({"topic": "none"}, 3),
            ({"partition": 4}, 3),
            ({"partition": -1}, 3),
            ({"metadata": "x" * 4096}, 0),
            ({"metadata": "x" * 4097}, 12),
            ({"generation": 0}, 69),
            ({"generation": 0, "version": 8}, 22),
        ],
        ids=str,
    )
    def test_commit_from_outside_has_its_code(self, cluster: Cluster, changes: dict[str, Any], code: int) -> None:
        assert commit(cluster.client(), **changes) == code

    @pytest.mark.parametrize(
        ("text", "code"), [("\u20ac" * 6, 0), ("\u20ac" * 7, 12), ("\U0001f600" * 3, 0), ("\U0001f600" * 3 + "x", 12)], ids=ascii
    )
    def test_metadata_size_is_measured_in_utf_16_units(self, text: str, code: int) -> None:
        """In units of UTF-16, as Java has them: one for a euro sign of three bytes, two for a smiley."""
        cluster = Cluster({"offset.metadata.max.bytes": "6"})
        cluster.topic("orders")
        assert commit(cluster.client(), metadata=text) == code

    @pytest.mark.parametrize("version", range(2, 10))
    def test_commit_in_every_version_is_stored(self, cluster: Cluster, version: int) -> None:
        assert commit(cluster.client(), 3, version=version) == 0
        assert offset_of(cluster) == 3

    def test_commit_and_fetch_by_topic_id(self, cluster: Cluster) -> None:
        topic = cluster.core.topics.get("orders")
        assert topic is not None
        requested = [OffsetCommitRequestPartition(partition_index=0, committed_offset=4)]
        topics = [OffsetCommitRequestTopic(topic_id=topic_id, partitions=requested) for topic_id in (topic.topic_id, UUID(int=5))]
        answer = cluster.client().ask(OffsetCommitRequest(group_id=GROUP, topics=topics), 10)
        assert [(row.topic_id, row.partitions[0].error_code) for row in answer.topics] == [(topic.topic_id, 0), (UUID(int=5), 100)]
        wanted = [OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0]) for topic_id in (topic.topic_id, UUID(int=5))]
        found = cluster.client().ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=wanted)]), 10)
        rows = [(row.topic_id, row.partitions[0].committed_offset, row.partitions[0].error_code) for row in found.groups[0].topics]
        assert rows == [(topic.topic_id, 4, 0), (UUID(int=5), -1, 100)]
        everything = cluster.client().ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=None)]), 10)
        assert [row.topic_id for row in everything.groups[0].topics] == [topic.topic_id]

    def test_memory_of_all_offsets_is_bounded(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("chaffinch.broker.core.groups.offsets.OFFSETS_BYTES_MAX", 5000)
        codes = [commit(cluster.client(), group=f"g{number}", metadata="x" * 1000) for number in range(5)]
        assert codes == [0, 0, 0, 28, 28]
        cluster.core.state.groups.delete("g0")
        assert commit(cluster.client(), metadata="x" * 1000) == 0

    def test_group_names_count_for_the_memory_limit(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("chaffinch.broker.core.groups.offsets.OFFSETS_BYTES_MAX", 50_000)
        assert [commit(cluster.client(), group=f"{number}" + "g" * 30_000) for number in range(2)] == [0, 28]

    def test_commit_on_a_full_disk_is_refused(self, cluster: Cluster) -> None:
        with full_disk(cluster):
            assert commit(cluster.client()) == 16
        assert offset_of(cluster) is None

    def test_offset_fetch_version_1_has_the_error_per_partition(self) -> None:
        cluster = Cluster(nodes=2)
        cluster.topic("orders")
        client = cluster.client(node=1 - cluster.coordinator_of(GROUP))
        topics = [OffsetFetchRequestTopic(name="orders", partition_indexes=[0])]
        answer = client.ask(OffsetFetchRequest(group_id=GROUP, topics=topics), 1)
        assert answer.topics[0].partitions[0].error_code == 16
        assert client.ask(OffsetFetchRequest(group_id=GROUP, topics=topics), 2).error_code == 16


class TestTransactions:
    """KIP-447."""

    def test_require_stable_refuses_pending_offsets(self, cluster: Cluster) -> None:
        client = cluster.client()
        commit(client, 3)
        transaction = Transaction(cluster.client())
        assert transaction.commit(9) == 0
        assert (fetch(client), fetch(client, require_stable=True)) == ((3, 0), (-1, 88))
        transaction.end()
        assert fetch(client, require_stable=True) == (9, 0)

    @pytest.mark.parametrize("version", [7, 8])
    def test_fetching_all_offsets_returns_only_committed_ones(self, cluster: Cluster, version: int) -> None:
        """What only an open transaction has written is not there yet; nor is the topic."""
        assert Transaction(cluster.client()).commit(9) == 0
        for stable in (False, True):
            assert fetch_all(cluster.client(), version, require_stable=stable) == {}
        commit(cluster.client(), 3)
        commit(cluster.client(), 4, partition=1)
        assert fetch_all(cluster.client(), version) == {"orders": [(0, 3, 0), (1, 4, 0)]}
        assert fetch_all(cluster.client(), version, require_stable=True) == {"orders": [(0, -1, 88), (1, 4, 0)]}

    @pytest.mark.parametrize("restarts", [False, True], ids=["", "restarted"])
    def test_later_commit_wins_over_an_earlier_transaction(self, cluster: Cluster, restarts: bool) -> None:
        """Whatever ends when: the order in which offsets were written decides, as that of the records does in Kafka."""
        first, second = Transaction(cluster.client(), "first"), Transaction(cluster.client(), "second")
        first.commit(5)
        second.commit(6)
        commit(cluster.client(), 7)
        third = Transaction(cluster.client(), "third")
        third.commit(8)
        if restarts:
            cluster.restart()
            first.client = second.client = third.client = cluster.client()
        second.end()
        assert offset_of(cluster) == 7
        third.end()
        first.end()
        assert offset_of(cluster) == 8
        assert fetch(cluster.client(), require_stable=True) == (8, 0)

    def test_journal_of_an_earlier_version_is_read(self, cluster: Cluster) -> None:
        """Without numbers what the transaction wrote wins, as it did there; what is committed from now on is later than all of them."""
        journal, committed, pending = cluster.core._journals["offsets"], ["committed", GROUP, "orders", 0, -1], ["pending", GROUP, "orders"]
        old = {
            json.dumps(committed): [3, 0, "m", 1, 2],
            json.dumps([*pending, 0, 7]): [4, -1, "", 1],
            json.dumps([*pending, 1, 7]): [5, -1, "", 1],
        }
        journal.put({key.encode(): json.dumps(value).encode() for key, value in old.items()})
        offsets = GroupOffsets(journal)
        assert offsets.fetch(GROUP, ORDERS_0) == CommittedOffset(offset=3, leader_epoch=0, metadata="m", committed_ms=1, expires_ms=2)
        other = TopicPartition("orders", 1)
        offsets.commit(GROUP, {other: CommittedOffset(offset=6)})
        offsets.complete(GROUP, 7, is_commit=True)
        assert {tp: found.offset for tp, found in offsets.fetch_all(GROUP).items()} == {ORDERS_0: 4, other: 6}

    def test_members_of_another_generation_are_fenced(self, cluster: Cluster) -> None:
        member, _ = stable_group(cluster, 2)
        transaction = Transaction(cluster.client())
        assert transaction.commit(member_id=member.id, generation_id=member.generation) == 0
        assert transaction.commit(member_id=member.id, generation_id=member.generation + 1) == 22
        assert transaction.commit(member_id="who", generation_id=member.generation) == 25
        assert transaction.commit(member_id=member.id, generation_id=member.generation, group_instance_id="i-1") == 25
        assert transaction.commit(version=2) == 0, "old clients do not say who they are"

    def test_members_of_another_epoch_are_fenced(self, cluster: Cluster) -> None:
        member = ConsumerMember(cluster, "a")
        member.join()
        transaction = Transaction(cluster.client())
        assert transaction.commit(member_id="a", generation_id=1) == 0
        assert transaction.commit(member_id="a", generation_id=2) == 22
        assert transaction.commit(member_id="who", generation_id=1) == 25
        assert transaction.commit(group_instance_id="i-1") == 25
        assert transaction.commit(version=2) == transaction.commit() == 0, "a producer that does not have the group metadata sends none"

    def test_transactional_commit_during_a_rebalance_is_accepted(self, cluster: Cluster) -> None:
        """The transaction was begun before it; only the generation counts."""
        member, _ = stable_group(cluster, 2)
        member.protocols = {"range": b"other"}
        member.send_join()
        assert Transaction(cluster.client()).commit(member_id=member.id, generation_id=member.generation) == 0

    def test_pending_offset_does_not_expire(self, cluster: Cluster) -> None:
        commit(cluster.client(), 3)
        transaction = Transaction(cluster.client())
        transaction.commit(9)
        cluster.advance(5 * MINUTE_MS)
        assert offset_of(cluster) == 3
        transaction.end(committed=False)
        cluster.advance(CHECK_MS)
        assert offset_of(cluster) is None
        assert cluster.core.state.groups.find(GROUP) is None


class TestExpiry:
    """KIP-211."""

    def test_offsets_without_members_expire_after_the_commit(self, cluster: Cluster) -> None:
        commit(cluster.client(), 3)
        cluster.advance(MINUTE_MS - 1)
        assert offset_of(cluster) == 3
        cluster.advance(CHECK_MS)
        assert offset_of(cluster) is None
        assert cluster.core.state.groups.find(GROUP) is None
        cluster.restart()
        assert offset_of(cluster) is None

    def test_offsets_of_a_classic_group_expire_after_it_became_empty(self, cluster: Cluster) -> None:
        (member,) = stable_group(cluster, 1)
        member.commit(3)
        for _ in range(20):
            cluster.advance(9000)
            assert member.heartbeat() == 0
        assert offset_of(cluster) == 3
        member.leave()
        cluster.advance(MINUTE_MS - 1)
        cluster.restart()
        assert offset_of(cluster) == 3, "a restart does not reset it"
        cluster.advance(2 * CHECK_MS)
        assert offset_of(cluster) is None

    def test_offsets_of_unsubscribed_topics_expire_after_the_commit(self, cluster: Cluster) -> None:
        (member,) = stable_group(cluster, 1)
        member.commit(3)
        member.commit(4, topic="other")
        for _ in range(10):
            cluster.advance(9000)
            member.heartbeat()
        assert (offset_of(cluster), offset_of(cluster, tp=TopicPartition("other", 0))) == (3, None)

    def test_offsets_of_a_consumer_group_expire(self, cluster: Cluster) -> None:
        member = ConsumerMember(cluster, "a")
        member.join()
        for topic in ("orders", "other"):
            assert commit(cluster.client(), member="a", generation=1, topic=topic) == 0
        cluster.advance(MINUTE_MS // 2)
        member.beat()
        cluster.advance(MINUTE_MS // 2 + CHECK_MS)
        assert (offset_of(cluster), offset_of(cluster, tp=TopicPartition("other", 0))) == (5, None)
        member.beat()
        member.leave()
        cluster.advance(CHECK_MS)
        assert offset_of(cluster) is None
        assert cluster.core.state.groups.find(GROUP) is None

    def test_retention_of_the_request_applies(self, cluster: Cluster) -> None:
        """Versions 2 to 4."""
        commit(cluster.client(), 3, version=4, retention_ms=5 * MINUTE_MS)
        cluster.restart()
        cluster.advance(4 * MINUTE_MS)
        assert offset_of(cluster) == 3
        cluster.advance(MINUTE_MS + CHECK_MS)
        assert offset_of(cluster) is None

    def test_offsets_of_a_large_group_expire_in_slices(self, cluster: Cluster) -> None:
        """What has its turn in between must not wait for 100,000 offsets."""
        offsets, expiry = cluster.core.state.offsets, cluster.core.state.scheduled_tasks[-1]
        count = 2 * OFFSETS_PER_CALL + 5
        requested = {TopicPartition("orders", number): CommittedOffset(offset=1, committed_ms=cluster.steady_ms) for number in range(count)}
        offsets.commit(GROUP, requested)
        cluster.core.state.groups.committed(GROUP, cluster.steady_ms)
        commit(cluster.client(), 3, group="next")
        cluster.steady_ms += 2 * MINUTE_MS
        left = []
        while offsets.groups():
            due_ms = expiry.next_deadline_ms
            assert due_ms is not None
            assert due_ms <= cluster.steady_ms
            expiry.run_due(cluster.steady_ms)
            left.append(len(offsets.fetch_all(GROUP)))
        assert left == [count - OFFSETS_PER_CALL, count - 2 * OFFSETS_PER_CALL, 0]
        assert not list(cluster.core.state.groups)
        assert (offsets._size_bytes, expiry.next_deadline_ms) == (0, cluster.steady_ms + CHECK_MS)

    def test_offsets_of_many_groups_expire_in_slices(self, cluster: Cluster) -> None:
        client = cluster.client()
        for number in range(250):
            commit(client, group=f"g{number}")
        cluster.advance(MINUTE_MS + CHECK_MS)
        assert cluster.core.state.offsets.groups() == ()
        assert list(cluster.core.state.groups) == []

    def test_expiry_on_a_full_disk_is_retried(self, cluster: Cluster) -> None:
        commit(cluster.client(), 3)
        with full_disk(cluster):
            cluster.advance(2 * MINUTE_MS)
            assert offset_of(cluster) == 3
        cluster.advance(CHECK_MS)
        assert offset_of(cluster) is None


class TestDelete:
    def delete(self, cluster: Cluster, *topics: str, group: str = GROUP) -> list[int]:
        """The group's code, then those of the topics' first partitions."""
        requested = [OffsetDeleteRequestTopic(name=topic, partitions=[OffsetDeleteRequestPartition()]) for topic in topics]
        answer = cluster.client().ask(OffsetDeleteRequest(group_id=group, topics=requested))
        return [answer.error_code, *(topic.partitions[0].error_code for topic in answer.topics)]

    def test_offsets_of_an_empty_group_are_deleted(self, cluster: Cluster) -> None:
        commit(cluster.client(), 3)
        assert self.delete(cluster, "orders", "none") == [0, 0, 3]
        assert offset_of(cluster) is None

    @pytest.mark.parametrize("kind", ["classic", "consumer"])
    def test_offsets_of_a_subscribed_topic_are_not_deleted(self, cluster: Cluster, kind: str) -> None:
        if kind == "classic":
            (member,) = stable_group(cluster, 1)
            for topic in ("orders", "other"):
                member.commit(topic=topic)
        else:
            ConsumerMember(cluster, "a").join()
            for topic in ("orders", "other"):
                commit(cluster.client(), member="a", generation=1, topic=topic)
        assert self.delete(cluster, "orders", "other") == [0, 86, 0]
        assert (offset_of(cluster), offset_of(cluster, tp=TopicPartition("other", 0))) == (5, None)

    def test_offsets_of_another_protocol_type_are_not_deleted(self, cluster: Cluster) -> None:
        member = ClassicMember(cluster)
        member.protocol_type = "connect"
        member.send_join()
        cluster.advance(3000)
        assert self.delete(cluster, "orders") == [68]

    @pytest.mark.parametrize(("group", "code"), [("", 24), ("none", 69)])
    def test_delete_for_a_missing_group_is_refused(self, cluster: Cluster, group: str, code: int) -> None:
        assert self.delete(cluster, "orders", group=group) == [code]

    def test_delete_on_a_full_disk_is_refused(self, cluster: Cluster) -> None:
        commit(cluster.client(), 3)
        with full_disk(cluster):
            assert self.delete(cluster, "orders") == [16]
        assert "refused: OffsetDelete from client 'test' for group 'g': NOT_COORDINATOR: cannot append" in cluster.lines[-1]
        assert offset_of(cluster) == 3

    @pytest.mark.parametrize("committed", [True, False])
    def test_deleted_transactional_offsets_free_their_memory(self, cluster: Cluster, committed: bool) -> None:
        for number in range(2):
            transaction = Transaction(cluster.client(), f"t{number}")
            transaction.commit(9)
            transaction.end(committed=committed)
        assert self.delete(cluster, "orders") == [0, 0]
        offsets = cluster.core.state.offsets
        assert (offsets._size_bytes, offsets.groups()) == (0, ())

    def test_pending_offsets_are_deleted_too(self, cluster: Cluster) -> None:
        transaction = Transaction(cluster.client())
        transaction.commit(9)
        assert self.delete(cluster, "orders") == [0, 0]
        assert not cluster.core.state.offsets.has_offsets(GROUP), "the group may go"
        transaction.end()
        assert offset_of(cluster) is None

    def test_offsets_are_deleted_with_the_topic(self, cluster: Cluster) -> None:
        commit(cluster.client(), 3)
        transaction = Transaction(cluster.client())
        transaction.commit(9)
        assert self.delete_topic(cluster) == 0
        assert offset_of(cluster) is None
        assert cluster.core.state.offsets._size_bytes == 0
        cluster.topic("orders")
        transaction.end()
        assert offset_of(cluster) is None

    def delete_topic(self, cluster: Cluster) -> int:
        answer = cluster.client().ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="orders")]))
        code: int = answer.responses[0].error_code
        return code
