"""ConsumerGroupHeartbeat: the whole conversation of a member with its group (KIP-848)."""

from __future__ import annotations

from chaffinch.broker.core.broker_state import BrokerState, Result, refuse
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.fault_script import Fault
from chaffinch.broker.core.groups import request_checks
from chaffinch.broker.core.handlers.group_answers import NOT_WRITTEN, client_of, say_lines
from chaffinch.broker.core.refusal import RequestRefused, disk_failed
from chaffinch.errors import codes
from chaffinch.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from chaffinch.storage.file_system import StorageError

PROTOCOL = "consumer"
"""Its name in the option `group.coordinator.rebalance.protocols`."""


def handle(broker: BrokerState, event: RequestReceived, now_ms: int, fault: Fault | None) -> Result:
    request = event.request.message
    assert isinstance(request, ConsumerGroupHeartbeatRequest)
    try:
        answer = _answer(broker, event, request, now_ms)
    except RequestRefused as refused:
        refuse(broker, event, now_ms, place=f"group {request.group_id!r}", code=refused.code, reason=refused.message)
        return ConsumerGroupHeartbeatResponse(error_code=refused.code.number, error_message=refused.message)
    except StorageError as error:
        failed = disk_failed(f"group {request.group_id}", error, NOT_WRITTEN)
        refuse(broker, event, now_ms, place=f"group {request.group_id!r}", code=failed.code, reason=failed.logged)
        return ConsumerGroupHeartbeatResponse(error_code=failed.code.number, error_message=failed.message)
    say_lines(broker, now_ms)
    return answer


def _answer(
    broker: BrokerState, event: RequestReceived, request: ConsumerGroupHeartbeatRequest, now_ms: int
) -> ConsumerGroupHeartbeatResponse:
    if PROTOCOL not in broker.settings["group.coordinator.rebalance.protocols"]:
        raise RequestRefused(codes.UNSUPPORTED_VERSION, "group.coordinator.rebalance.protocols does not name the consumer protocol")
    request_checks.check_consumer_heartbeat(request, event.request.version, broker.settings)
    if not broker.is_coordinator(event.node_id, request.group_id):
        return ConsumerGroupHeartbeatResponse(error_code=codes.NOT_COORDINATOR.number)
    return broker.groups.consumer_heartbeat(request, client_of(event), now_ms)
