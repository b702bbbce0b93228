"""JoinGroup: joins a classic group. The response waits for the other members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chaffinch.broker.core.broker_state import BrokerState, Result, log_refusal
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.groups.classic_requests import refusal
from chaffinch.broker.core.groups.context import Deferred
from chaffinch.broker.core.handlers.group_responses import client_of, delayed_write_error, log_lines, when_ready
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from chaffinch.storage.file_system import StorageError

VERSION_WITH_NULL_PROTOCOL = 7

_EXPECTED = frozenset({codes.NONE.number, codes.MEMBER_ID_REQUIRED.number, codes.REBALANCE_IN_PROGRESS.number})


def handle(broker: BrokerState, event: RequestReceived, request: JoinGroupRequest, steady_ms: int) -> Result:
    code = _fault(request, broker.settings)
    if code is codes.NONE and not broker.is_coordinator(event.node_id, request.group_id):
        code = codes.NOT_COORDINATOR
    try:
        refused = code is not codes.NONE
        result = refusal(request, code) if refused else broker.groups.join(request, event.request.version, client_of(event), steady_ms)
    except StorageError as error:
        return delayed_write_error(broker, event, error, lambda code: _in_version(refusal(request, code), event), steady_ms)
    log_lines(broker, steady_ms)
    if isinstance(result, Deferred):
        return when_ready(
            broker,
            event,
            result,
            lambda answer: _in_version(answer, event),
            lambda code: _in_version(refusal(request, code), event),
            steady_ms,
        )
    if result.error_code not in _EXPECTED:
        answered = codes.by_number(result.error_code)
        log_refusal(broker, event, steady_ms, subject=f"group {request.group_id!r}", code=answered, reason=_reason(request, answered))
    return _in_version(result, event)


def _fault(request: JoinGroupRequest, settings: Mapping[str, Any]) -> ErrorCode:
    """24: no group id; 26: the session timeout is outside the broker's limits."""
    if not request.group_id:
        return codes.INVALID_GROUP_ID
    least, most = settings["group.min.session.timeout.ms"], settings["group.max.session.timeout.ms"]
    return codes.NONE if least <= request.session_timeout_ms <= most else codes.INVALID_SESSION_TIMEOUT


def _in_version(answer: JoinGroupResponse, event: RequestReceived) -> JoinGroupResponse:
    """Adapt the response to earlier versions, in which the protocol name cannot be null."""
    if answer.protocol_name is None and event.request.version < VERSION_WITH_NULL_PROTOCOL:
        return answer.replace(protocol_name="")
    return answer


def _reason(request: JoinGroupRequest, code: ErrorCode) -> str:
    if code is codes.INVALID_SESSION_TIMEOUT:
        return f"session timeout {request.session_timeout_ms} ms"
    names = ", ".join(protocol.name for protocol in request.protocols[:10])
    return f"member {request.member_id!r}, protocol type {request.protocol_type!r}, protocols {names}"
