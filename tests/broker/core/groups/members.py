"""Members of groups for tests: each with a connection of its own to a cluster, because an answer that waits holds its connection."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock
from uuid import UUID

from chaffinch.broker.core.groups.consumer_group import ConsumerGroup
from chaffinch.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from chaffinch.protocol.messages.heartbeat import HeartbeatRequest
from chaffinch.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from chaffinch.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from chaffinch.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from chaffinch.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from chaffinch.storage.file_system import StorageError
from tests.broker.core_client import Client, Cluster

GROUP = "g"
SESSION_MS = 10_000
REBALANCE_MS = 30_000
DELAY_MS = 3_000
"""`group.initial.rebalance.delay.ms`, as it comes."""


def subscription(*topics: str) -> bytes:
    """Metadata of a classic consumer."""
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 1, len(topics)) + names + struct.pack(">i", -1)


class ClassicMember:
    """One member of the classic protocol. `id` is what the broker gave it, `generation` the last one of an answer."""

    def __init__(self, cluster: Cluster, instance: str | None = None, *, group: str = GROUP, **protocols: bytes) -> None:
        self.client = cluster.client()
        self.group = group
        self.instance = instance
        self.protocols = protocols or {"range": subscription("orders")}
        self.protocol_type = "consumer"
        self.id = ""
        self.generation = -1
        self.protocol: str | None = next(iter(self.protocols))
        self.version: int | None = None
        self.session_ms = SESSION_MS
        self.rebalance_ms = REBALANCE_MS

    def request(self) -> JoinGroupRequest:
        return JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=self.rebalance_ms,
            member_id=self.id,
            group_instance_id=self.instance,
            protocol_type=self.protocol_type,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in self.protocols.items()],
        )

    def send_join(self) -> None:
        """Join, with the id asked for first where that is needed; the last answer may wait."""
        self.client.send(self.request(), self.version)
        if self.client.answers and self.client.answers[-1].error_code == 79:
            self.id = self.client.answers.pop().member_id
            self.client.send(self.request(), self.version)

    def taken(self) -> Any:
        """The answer that waited; None while it waits."""
        if not self.client.answers:
            return None
        answer = self.client.answers.pop(0)
        if hasattr(answer, "generation_id") and answer.error_code == 0:
            self.id, self.generation, self.protocol = answer.member_id, answer.generation_id, answer.protocol_name
        return answer

    def join(self) -> Any:
        """Join, and the answer if it has come."""
        self.send_join()
        return self.taken()

    def send_sync(self, **assignments: bytes) -> None:
        self.client.send(
            SyncGroupRequest(
                group_id=self.group,
                generation_id=self.generation,
                member_id=self.id,
                group_instance_id=self.instance,
                protocol_type=self.protocol_type,
                protocol_name=self.protocol,
                assignments=[SyncGroupRequestAssignment(member_id=name, assignment=data) for name, data in assignments.items()],
            ),
            self.version and min(self.version, 5),
        )

    def sync(self, assignments: dict[str, bytes] | None = None) -> Any:
        self.send_sync(**(assignments or {}))
        return self.taken()

    def heartbeat(self) -> int:
        request = HeartbeatRequest(group_id=self.group, generation_id=self.generation, member_id=self.id, group_instance_id=self.instance)
        code: int = self.client.ask(request).error_code
        return code

    def leave(self) -> int:
        members = [MemberIdentity(member_id=self.id, group_instance_id=self.instance)]
        code: int = self.client.ask(LeaveGroupRequest(group_id=self.group, members=members)).members[0].error_code
        return code

    def commit(self, offset: int = 5, **changes: Any) -> int:
        return commit(
            self.client,
            offset,
            **{"group": self.group, "generation": self.generation, "member": self.id, "instance": self.instance, **changes},
        )


def commit(
    client: Client,
    offset: int = 5,
    *,
    group: str = GROUP,
    generation: int = -1,
    member: str = "",
    instance: str | None = None,
    topic: str = "orders",
    partition: int = 0,
    metadata: str | None = None,
    retention_ms: int = -1,
    version: int = 9,
) -> int:
    """Commit one offset; its code."""
    requested = OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset, committed_metadata=metadata)
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member,
        group_instance_id=instance,
        retention_time_ms=retention_ms,
        topics=[OffsetCommitRequestTopic(name=topic, partitions=[requested])],
    )
    code: int = client.ask(request, version).topics[0].partitions[0].error_code
    return code


def stable_group(cluster: Cluster, count: int = 2, **protocols: Any) -> list[ClassicMember]:
    """Members of a stable generation, the leader first; each is assigned the bytes of its place."""
    members = [ClassicMember(cluster, **protocols) for _ in range(count)]
    for member in members:
        member.send_join()
    cluster.advance(2 * cluster.core.state.settings["group.initial.rebalance.delay.ms"])
    for member in members:
        assert member.taken().error_code == 0
    assign(members)
    return members


def assign(members: list[ClassicMember]) -> None:
    """Every member fetches its assignment; the first leads."""
    for member in members[1:]:
        member.send_sync()
    assert members[0].sync({member.id: b"%d" % place for place, member in enumerate(members)}).assignment == b"0"
    for place, member in enumerate(members[1:], 1):
        assert member.taken().assignment == b"%d" % place


@contextmanager
def full_disk(cluster: Cluster) -> Iterator[None]:
    """While this lasts the journal of groups cannot be written."""
    refusal = StorageError("offsets.journal", "append", "no space left")
    with mock.patch.object(cluster.core._journals["offsets"], "put", side_effect=refusal):
        yield


class ConsumerMember:
    """One member of KIP-848. It revokes and takes partitions at once as assigned, and reports that with its next heartbeat."""

    def __init__(self, cluster: Cluster, name: str, instance: str | None = None, *, group: str = GROUP) -> None:
        self.client = cluster.client()
        self.name = name
        self.group = group
        self.instance = instance
        self.epoch = 0
        self.owned: set[tuple[UUID, int]] = set()

    def join(self, topics: list[str] | None = None, *, pattern: str | None = None, version: int = 1, **fields: Any) -> Any:
        self.epoch, self.owned = 0, set()
        first = {
            "rebalance_timeout_ms": REBALANCE_MS,
            "subscribed_topic_names": ["orders"] if topics is None and pattern is None else topics,
            "subscribed_topic_regex": pattern,
            "topic_partitions": [],
        }
        return self.beat(version=version, **{**first, **fields})

    def beat(self, *, version: int = 1, with_owned: bool = True, **fields: Any) -> Any:
        """One heartbeat; what the answer says is done. Returns the answer."""
        by_topic: dict[UUID, TopicPartitions] = {}
        for topic_id, index in sorted(self.owned):
            by_topic.setdefault(topic_id, TopicPartitions(topic_id=topic_id)).partitions.append(index)
        owned = list(by_topic.values()) if with_owned else None
        values = {"topic_partitions": owned, **fields}
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group, member_id=self.name, member_epoch=self.epoch, instance_id=self.instance, **values
        )
        answer = self.client.ask(request, version)
        if answer.error_code == 0 and self.epoch >= 0:
            self.name, self.epoch = answer.member_id, answer.member_epoch
            if answer.assignment is not None:
                self.owned = {(topic.topic_id, index) for topic in answer.assignment.topic_partitions for index in topic.partitions}
        return answer

    def leave(self, epoch: int = -1) -> Any:
        self.epoch, self.owned = epoch, set()
        return self.beat(with_owned=False)

    @property
    def partitions(self) -> list[int]:
        """Indexes of what it has."""
        return sorted(index for _, index in self.owned)


def settle(*members: ConsumerMember) -> None:
    """Heartbeats until nothing changes any more; three rounds are enough for one change."""
    for _ in range(4):
        for member in members:
            assert member.beat().error_code == 0


def consumer_group_of(cluster: Cluster) -> ConsumerGroup:
    """The group GROUP, which must be one of KIP-848."""
    group = cluster.core.state.groups.find(GROUP)
    assert isinstance(group, ConsumerGroup)
    return group


def state_of(cluster: Cluster) -> str:
    """Of the group GROUP, which must be there, the state as Kafka writes it."""
    group = cluster.core.state.groups.find(GROUP)
    assert group is not None
    state: str = group.state.value
    return state
