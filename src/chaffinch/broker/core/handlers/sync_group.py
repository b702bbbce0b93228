"""SyncGroup: the leader sends the assignments of a classic group, every member receives its own. The response waits for the leader."""

from __future__ import annotations

from chaffinch.broker.core.broker_state import BrokerState, Result
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.groups.context import Deferred
from chaffinch.broker.core.handlers.group_responses import delayed_write_error, log_lines, when_ready
from chaffinch.errors import codes
from chaffinch.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from chaffinch.storage.file_system import StorageError

VERSION_WITH_PROTOCOL = 5
"""Since this version both protocol fields are required, although they are nullable on the wire."""


def handle(broker: BrokerState, event: RequestReceived, request: SyncGroupRequest, steady_ms: int) -> Result:
    if not request.group_id:
        return SyncGroupResponse(error_code=codes.INVALID_GROUP_ID.number)
    if not broker.is_coordinator(event.node_id, request.group_id):
        return SyncGroupResponse(error_code=codes.NOT_COORDINATOR.number)
    if event.request.version >= VERSION_WITH_PROTOCOL and (request.protocol_type is None or request.protocol_name is None):
        return SyncGroupResponse(error_code=codes.INCONSISTENT_GROUP_PROTOCOL.number)
    try:
        result = broker.groups.sync(request, steady_ms)
    except StorageError as error:
        return delayed_write_error(broker, event, error, lambda code: SyncGroupResponse(error_code=code.number), steady_ms)
    finally:
        log_lines(broker, steady_ms)
    if not isinstance(result, Deferred):
        return result
    return when_ready(broker, event, result, lambda answer: answer, lambda code: SyncGroupResponse(error_code=code.number), steady_ms)
