"""ConsumerGroupHeartbeat: the only request between a member and its KIP-848 group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from chaffinch.broker.core.broker_state import BrokerState, Result, log_refusal
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.handlers.group_responses import NOT_WRITTEN, client_of, log_lines
from chaffinch.broker.core.refusal import RequestRefused, to_refusal
from chaffinch.errors import codes
from chaffinch.protocol.messages.consumer_group_heartbeat import (
    EPOCH_JOIN,
    EPOCH_LEAVE,
    EPOCH_LEAVE_FOR_A_WHILE,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from chaffinch.storage.file_system import StorageError

VERSION_WITH_OWN_MEMBER_ID: Final = 1

PROTOCOL = "consumer"
"""Name of the protocol in `group.coordinator.rebalance.protocols`."""


def handle(broker: BrokerState, event: RequestReceived, request: ConsumerGroupHeartbeatRequest, steady_ms: int) -> Result:
    try:
        answer = _answer(broker, event, request, steady_ms)
    except (RequestRefused, StorageError) as error:
        refused = to_refusal(error, f"group {request.group_id}", NOT_WRITTEN)
        log_refusal(broker, event, steady_ms, subject=f"group {request.group_id!r}", code=refused.code, reason=refused.logged)
        return ConsumerGroupHeartbeatResponse(error_code=refused.code.number, error_message=refused.message)
    log_lines(broker, steady_ms)
    return answer


def _answer(
    broker: BrokerState, event: RequestReceived, request: ConsumerGroupHeartbeatRequest, steady_ms: int
) -> ConsumerGroupHeartbeatResponse:
    if PROTOCOL not in broker.settings["group.coordinator.rebalance.protocols"]:
        raise RequestRefused(codes.UNSUPPORTED_VERSION, "group.coordinator.rebalance.protocols does not name the consumer protocol")
    _check(request, event.request.version, broker.settings)
    if not broker.is_coordinator(event.node_id, request.group_id):
        return ConsumerGroupHeartbeatResponse(error_code=codes.NOT_COORDINATOR.number)
    return broker.groups.consumer_heartbeat(request, client_of(event), steady_ms)


def _check(request: ConsumerGroupHeartbeatRequest, version: int, settings: Mapping[str, Any]) -> None:
    """Validate the request's fields. Raises INVALID_REQUEST or UNSUPPORTED_ASSIGNOR with the reason."""
    for fault in _faults(request, version):
        raise RequestRefused(codes.INVALID_REQUEST, fault)
    offered: tuple[str, ...] = settings["group.consumer.assignors"]
    if request.server_assignor is not None and request.server_assignor not in offered:
        raise RequestRefused(codes.UNSUPPORTED_ASSIGNOR, f"assignor {request.server_assignor[:100]!r} is not one of {', '.join(offered)}")


def _faults(request: ConsumerGroupHeartbeatRequest, version: int) -> list[str]:
    epoch = request.member_epoch
    # An empty list counts too: a pattern that the client matches itself may still wait for its first topic.
    has_topics = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    needs_member_id = epoch != EPOCH_JOIN or version >= VERSION_WITH_OWN_MEMBER_ID
    checks = (
        (not request.group_id, "the group id cannot be empty"),
        (request.instance_id == "", "the instance id cannot be empty"),
        (request.rack_id == "", "the rack id cannot be empty"),
        (epoch < EPOCH_LEAVE_FOR_A_WHILE, f"there is no member epoch {epoch}"),
        (needs_member_id and not request.member_id, "the member id cannot be empty"),
        (epoch == EPOCH_JOIN and request.rebalance_timeout_ms == -1, "a joining member must send its rebalance timeout"),
        (epoch == EPOCH_JOIN and request.topic_partitions != [], "a joining member must send an empty list of owned partitions"),
        (epoch == EPOCH_JOIN and not has_topics, "a joining member must send its subscription"),
        (epoch == EPOCH_LEAVE_FOR_A_WHILE and request.instance_id is None, "only a static member can leave for a while"),
        (epoch not in (EPOCH_LEAVE, EPOCH_LEAVE_FOR_A_WHILE) and request.rebalance_timeout_ms < -1, "a timeout cannot be negative"),
    )
    return [reason for is_wrong, reason in checks if is_wrong]
