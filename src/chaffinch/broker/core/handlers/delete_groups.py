"""DeleteGroups: deletes groups without members, with their offsets."""

from __future__ import annotations

from chaffinch.broker.core.broker_state import BrokerState, Result, log_refusal
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.handlers.group_responses import NOT_WRITTEN
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from chaffinch.storage.file_system import StorageError


def handle(broker: BrokerState, event: RequestReceived, request: DeleteGroupsRequest, steady_ms: int) -> Result:
    outcomes = [(group, _delete(broker, event, group, steady_ms)) for group in dict.fromkeys(request.groups_names)]
    return DeleteGroupsResponse(results=[DeletableGroupResult(group_id=group, error_code=code.number) for group, code in outcomes])


def _delete(broker: BrokerState, event: RequestReceived, group_id: str, steady_ms: int) -> ErrorCode:
    if not broker.is_coordinator(event.node_id, group_id):
        return codes.NOT_COORDINATOR
    try:
        return broker.groups.delete(group_id)
    except StorageError as error:
        log_refusal(broker, event, steady_ms, subject=f"group {group_id!r}", code=NOT_WRITTEN, reason=str(error))
        return NOT_WRITTEN
