"""Requests of a group member to its coordinator, with the fields of every version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from chaffinch.consumer.core.group_protocol import (
    NO_GENERATION,
    PROTOCOL_TYPE,
    MemberSubscription,
    encode_cooperative,
    encode_sticky,
    encode_subscription,
)
from chaffinch.errors import ErrorCode, codes
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.describe_groups import DescribeGroupsRequest
from chaffinch.protocol.messages.heartbeat import HeartbeatRequest
from chaffinch.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from chaffinch.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from chaffinch.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from chaffinch.settings import Settings


class Identity(NamedTuple):
    """Generation of the group, and member id; -1 and an empty id before the first join."""

    generation: int
    member_id: str

    @property
    def has_generation(self) -> bool:
        return self.generation >= 0


NO_IDENTITY: Final = Identity(NO_GENERATION, "")

# Brokers log at most this many characters (KIP-800).
_REASON_CHARACTERS_MAX: Final = 255


def join(settings: Settings, identity: Identity, subscriptions: Iterable[tuple[str, MemberSubscription]], reason: str) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=settings["group.id"],
        session_timeout_ms=settings["session.timeout.ms"],
        rebalance_timeout_ms=settings["max.poll.interval.ms"],
        member_id=identity.member_id,
        group_instance_id=settings["group.instance.id"],
        protocol_type=PROTOCOL_TYPE,
        protocols=[JoinGroupRequestProtocol(name=name, metadata=encode_subscription(subscription)) for name, subscription in subscriptions],
        reason=reason[:_REASON_CHARACTERS_MAX],
    )


def join_error_text(settings: Settings, code: ErrorCode) -> str:
    """Why the coordinator rejects this member, with the invalid option value and what to do."""
    if code is codes.INVALID_SESSION_TIMEOUT:
        limits = "the broker's group.min.session.timeout.ms and group.max.session.timeout.ms, 6000 and 1800000 unless they are set"
        return f"session.timeout.ms is {settings['session.timeout.ms']}: choose one between {limits}"
    return code.text


def user_data(assignor: str, remembered: tuple[Sequence[TopicPartition], int] | None, generation: int) -> bytes | None:
    """User data for an assignor: the last assignment and its generation for `sticky`, the current generation for `cooperative-sticky`."""
    if assignor == "sticky":
        return None if remembered is None else encode_sticky(*remembered)
    return encode_cooperative(generation) if assignor == "cooperative-sticky" else None


def sync(
    group_id: str, identity: Identity, instance_id: str | None, protocol_name: str, assignments: Mapping[str, bytes]
) -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id=group_id,
        generation_id=identity.generation,
        member_id=identity.member_id,
        group_instance_id=instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=protocol_name,
        assignments=[SyncGroupRequestAssignment(member_id=member, assignment=assignment) for member, assignment in assignments.items()],
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
