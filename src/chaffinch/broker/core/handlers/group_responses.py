"""What the handlers of groups share: who asks, answers that wait, lines for the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from chaffinch.broker.core.broker_state import BrokerState, DelayedResponse, log_refusal
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.groups.classic_group import Client
from chaffinch.broker.core.groups.context import Deferred
from chaffinch.broker.core.replicas.cluster_membership import COORDINATORS
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.protocol.schema import Message
from chaffinch.storage.file_system import StorageError

WAIT_MS_MAX: Final = (1 << 31) - 1
"""Longest wait for the other members: that of the longest rebalance timeout, whose end answers before."""

NOT_WRITTEN: Final = codes.NOT_COORDINATOR
"""Answer when the journal cannot be written, as Apache Kafka makes it of KAFKA_STORAGE_ERROR: clients look the coordinator up again."""

RETRY_MS: Final = 1000
"""When a member that joins is told so. The coordinator is where it was, so some clients (librdkafka) come again at once, ever and ever."""

Answer = TypeVar("Answer", bound=Message)


def client_of(event: RequestReceived) -> Client:
    return Client(client_id=event.request.client_id or "", host=event.client_host)


def when_ready(
    broker: BrokerState,
    event: RequestReceived,
    deferred: Deferred[Answer],
    finished: Callable[[Answer], Message],
    interrupted: Callable[[ErrorCode], Message],
    steady_ms: int,
) -> Message | DelayedResponse:
    """The ticket's answer, at once or when it is there; `interrupted` when the group moves to another coordinator before, or time is up."""
    if deferred.answer is not None:
        return finished(deferred.answer)
    group_id: str = event.request.message.group_id  # type: ignore[attr-defined]

    def answer(_steady_ms: int, is_last: bool) -> Message | None:
        if deferred.answer is not None:
            return finished(deferred.answer)
        if not broker.is_coordinator(event.node_id, group_id):
            return interrupted(codes.NOT_COORDINATOR)
        return interrupted(codes.REBALANCE_IN_PROGRESS) if is_last else None

    return DelayedResponse(deadline_ms=steady_ms + WAIT_MS_MAX, keys=(deferred, COORDINATORS), answer=answer)


def delayed_write_error(
    broker: BrokerState, event: RequestReceived, error: StorageError, answer: Callable[[ErrorCode], Message], steady_ms: int
) -> DelayedResponse:
    """What a member that joins is told when the journal cannot be written: later, so that it does not try without a break."""
    group_id: str = event.request.message.group_id  # type: ignore[attr-defined]
    log_refusal(broker, event, steady_ms, subject=f"group {group_id!r}", code=NOT_WRITTEN, reason=str(error))
    return DelayedResponse(
        deadline_ms=steady_ms + RETRY_MS, keys=(), answer=lambda _steady_ms, is_last: answer(NOT_WRITTEN) if is_last else None
    )


def log_lines(broker: BrokerState, steady_ms: int) -> None:
    """What groups did, into the log."""
    for line in broker.groups.take_log_lines():
        broker.refusals.log_within_limit(line, steady_ms)
