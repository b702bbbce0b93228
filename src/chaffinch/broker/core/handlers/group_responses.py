"""Shared parts of the group handlers: client data, deferred responses, log lines."""

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
"""Longest wait for other members: the longest possible rebalance timeout, at which the group responds anyway."""

NOT_WRITTEN: Final = codes.NOT_COORDINATOR
"""Error code if the journal cannot be written; Apache Kafka maps KAFKA_STORAGE_ERROR to it. Clients look up the coordinator again."""

RETRY_MS: Final = 1000
"""Delay before a joining member receives that error. The coordinator is unchanged, so some clients (librdkafka) would retry immediately,
forever."""

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
    """The deferred response, now or when it is completed; `interrupted` if the group moves to another coordinator first, or the time is
    up.
    """
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
    """The response to a joining member if the journal cannot be written: delayed, so that the member does not retry in a tight loop."""
    group_id: str = event.request.message.group_id  # type: ignore[attr-defined]
    log_refusal(broker, event, steady_ms, subject=f"group {group_id!r}", code=NOT_WRITTEN, reason=str(error))
    return DelayedResponse(
        deadline_ms=steady_ms + RETRY_MS, keys=(), answer=lambda _steady_ms, is_last: answer(NOT_WRITTEN) if is_last else None
    )


def log_lines(broker: BrokerState, steady_ms: int) -> None:
    """Write the group coordinator's lines to the log."""
    for line in broker.groups.take_log_lines():
        broker.refusals.log_within_limit(line, steady_ms)
