"""What a request about a group must be like by itself, before any group is looked at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from chaffinch.broker.core.refusal import RequestRefused
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.protocol.messages.consumer_group_heartbeat import (
    EPOCH_JOIN,
    EPOCH_LEAVE,
    EPOCH_LEAVE_FOR_A_WHILE,
    ConsumerGroupHeartbeatRequest,
)
from chaffinch.protocol.messages.join_group import JoinGroupRequest

VERSION_WITH_OWN_MEMBER_ID: Final = 1


def join_fault(request: JoinGroupRequest, settings: Mapping[str, Any]) -> ErrorCode:
    """24: no group id; 26: a session timeout outside of the broker's limits."""
    if not request.group_id:
        return codes.INVALID_GROUP_ID
    least, most = settings["group.min.session.timeout.ms"], settings["group.max.session.timeout.ms"]
    return codes.NONE if least <= request.session_timeout_ms <= most else codes.INVALID_SESSION_TIMEOUT


def check_consumer_heartbeat(request: ConsumerGroupHeartbeatRequest, version: int, settings: Mapping[str, Any]) -> None:
    """Raises INVALID_REQUEST, UNSUPPORTED_ASSIGNOR with the reason."""
    for fault in _consumer_faults(request, version):
        raise RequestRefused(codes.INVALID_REQUEST, fault)
    offered: tuple[str, ...] = settings["group.consumer.assignors"]
    if request.server_assignor is not None and request.server_assignor not in offered:
        raise RequestRefused(codes.UNSUPPORTED_ASSIGNOR, f"assignor {request.server_assignor[:100]!r} is not one of {', '.join(offered)}")


def _consumer_faults(request: ConsumerGroupHeartbeatRequest, version: int) -> list[str]:
    epoch = request.member_epoch
    # To nothing, too: a pattern that the client matches itself may wait for its first topic.
    says_topics = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    needs_member_id = epoch != EPOCH_JOIN or version >= VERSION_WITH_OWN_MEMBER_ID
    checks = (
        (not request.group_id, "the group id cannot be empty"),
        (request.instance_id == "", "the instance id cannot be empty"),
        (request.rack_id == "", "the rack id cannot be empty"),
        (epoch < EPOCH_LEAVE_FOR_A_WHILE, f"there is no member epoch {epoch}"),
        (needs_member_id and not request.member_id, "the member id cannot be empty"),
        (epoch == EPOCH_JOIN and request.rebalance_timeout_ms == -1, "who joins must say its rebalance timeout"),
        (epoch == EPOCH_JOIN and request.topic_partitions != [], "who joins has no partitions, and must say so"),
        (epoch == EPOCH_JOIN and not says_topics, "who joins must say what it subscribes to"),
        (epoch == EPOCH_LEAVE_FOR_A_WHILE and request.instance_id is None, "only a static member can leave for a while"),
        (epoch not in (EPOCH_LEAVE, EPOCH_LEAVE_FOR_A_WHILE) and request.rebalance_timeout_ms < -1, "a timeout cannot be negative"),
    )
    return [reason for is_wrong, reason in checks if is_wrong]
