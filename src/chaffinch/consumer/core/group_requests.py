"""The requests of a group member to its coordinator, in a form that every version of them can carry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from chaffinch.consumer.core.group_protocol import (
    NO_GENERATION,
    PROTOCOL_TYPE,
    MemberSubscription,
    encode_cooperative,
    encode_sticky,
    encode_subscription,
)
from chaffinch.errors import ErrorCode, codes
from chaffinch.identifiers import OffsetAndMetadata, TopicPartition
from chaffinch.protocol.messages.describe_groups import DescribeGroupsRequest
from chaffinch.protocol.messages.heartbeat import HeartbeatRequest
from chaffinch.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from chaffinch.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from chaffinch.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from chaffinch.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from chaffinch.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from chaffinch.protocol.primitives import ZERO_UUID
from chaffinch.settings import Settings


class Identity(NamedTuple):
    """Which generation of the group, and which member: -1 and an empty name before there is one."""

    generation: int
    member_id: str

    @property
    def has_generation(self) -> bool:
        return self.generation >= 0


NO_IDENTITY: Final = Identity(NO_GENERATION, "")

# KIP-800 lets brokers log so much of it.
_REASON_CHARACTERS_MAX: Final = 255


def join(settings: Settings, identity: Identity, said: Iterable[tuple[str, MemberSubscription]], reason: str) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=settings["group.id"],
        session_timeout_ms=settings["session.timeout.ms"],
        rebalance_timeout_ms=settings["max.poll.interval.ms"],
        member_id=identity.member_id,
        group_instance_id=settings["group.instance.id"],
        protocol_type=PROTOCOL_TYPE,
        protocols=[JoinGroupRequestProtocol(name=name, metadata=encode_subscription(subscription)) for name, subscription in said],
        reason=reason[:_REASON_CHARACTERS_MAX],
    )


def refusal_of_join(settings: Settings, code: ErrorCode) -> str:
    """Why the coordinator does not take this member, with the value of ours that is at fault, and what to do."""
    if code is codes.INVALID_SESSION_TIMEOUT:
        limits = "the broker's group.min.session.timeout.ms and group.max.session.timeout.ms, 6000 and 1800000 unless they are set"
        return f"session.timeout.ms is {settings['session.timeout.ms']}: choose one between {limits}"
    return code.text


def user_data(assignor: str, remembered: tuple[Sequence[TopicPartition], int] | None, generation: int) -> bytes | None:
    """What an assignor wants to know besides: of the last assignment and its generation, and of the present generation."""
    if assignor == "sticky":
        return None if remembered is None else encode_sticky(*remembered)
    return encode_cooperative(generation) if assignor == "cooperative-sticky" else None


def sync(group_id: str, identity: Identity, instance_id: str | None, protocol_name: str, shares: Mapping[str, bytes]) -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id=group_id,
        generation_id=identity.generation,
        member_id=identity.member_id,
        group_instance_id=instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=protocol_name,
        assignments=[SyncGroupRequestAssignment(member_id=member, assignment=share) for member, share in shares.items()],
    )


def heartbeat(group_id: str, identity: Identity, instance_id: str | None) -> HeartbeatRequest:
    return HeartbeatRequest(
        group_id=group_id, generation_id=identity.generation, member_id=identity.member_id, group_instance_id=instance_id
    )


def describe(group_id: str) -> DescribeGroupsRequest:
    return DescribeGroupsRequest(groups=[group_id])


def leave(group_id: str, member_id: str, reason: str) -> LeaveGroupRequest:
    members = [MemberIdentity(member_id=member_id, reason=reason[:_REASON_CHARACTERS_MAX])]
    return LeaveGroupRequest(group_id=group_id, member_id=member_id, members=members)


VERSION_WITH_IDS: Final = 10
"""Of OffsetCommit and OffsetFetch: topics by id (Apache Kafka 4.2)."""
LAST_VERSION_WITH_NAMES: Final = 9


def commit(
    group_id: str,
    identity: Identity,
    instance_id: str | None,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    topic_ids: Mapping[TopicPartition, UUID],
) -> OffsetCommitRequest:
    """With `topic_ids`, which may be empty, only versions with ids can carry it."""
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for place, committed in offsets.items():
        topic_id = topic_ids.get(place, ZERO_UUID)
        topics.setdefault(place.topic, OffsetCommitRequestTopic(name=place.topic, topic_id=topic_id)).partitions.append(
            OffsetCommitRequestPartition(
                partition_index=place.partition,
                committed_offset=committed.offset,
                committed_leader_epoch=committed.leader_epoch,
                committed_metadata=committed.metadata,
            )
        )
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=identity.generation,
        member_id=identity.member_id,
        group_instance_id=instance_id,
        topics=list(topics.values()),
    )


def offset_fetch(
    group_id: str, places: Iterable[TopicPartition], topic_ids: Mapping[TopicPartition, UUID], *, require_stable: bool
) -> OffsetFetchRequest:
    """`topic_ids` as for `commit`."""
    ids = {place.topic: topic_id for place, topic_id in topic_ids.items()}
    numbers: dict[str, list[int]] = {}
    for place in places:
        numbers.setdefault(place.topic, []).append(place.partition)
    return OffsetFetchRequest(
        group_id=group_id,
        topics=[OffsetFetchRequestTopic(name=topic, partition_indexes=found) for topic, found in numbers.items()],
        groups=[
            OffsetFetchRequestGroup(
                group_id=group_id,
                topics=[
                    OffsetFetchRequestTopics(name=topic, topic_id=ids.get(topic, ZERO_UUID), partition_indexes=found)
                    for topic, found in numbers.items()
                ],
            )
        ],
        require_stable=require_stable,
    )
