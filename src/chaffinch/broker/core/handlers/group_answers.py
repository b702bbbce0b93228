"""What the handlers of groups share: who asks, answers that wait, lines for the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from chaffinch.broker.core.broker_state import BrokerState, Waiting
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.groups.classic_group import Client
from chaffinch.broker.core.groups.tickets import Ticket
from chaffinch.protocol.schema import Message

WAIT_MS_MAX: Final = (1 << 31) - 1
"""Longest wait for the other members: that of the longest rebalance timeout, whose end answers before."""

Answer = TypeVar("Answer", bound=Message)


def client_of(event: RequestReceived) -> Client:
    return Client(client_id=event.request.client_id or "", host=event.client_host)


def when_answered(ticket: Ticket[Answer], finished: Callable[[Answer], Message], interrupted: Message, now_ms: int) -> Message | Waiting:
    """The ticket's answer, at once or when it is there; `interrupted` if somebody insists on one before."""
    if ticket.answer is not None:
        return finished(ticket.answer)

    def answer(_now_ms: int, is_last: bool) -> Message | None:
        if ticket.answer is not None:
            return finished(ticket.answer)
        return interrupted if is_last else None

    return Waiting(deadline_ms=now_ms + WAIT_MS_MAX, keys=(ticket,), answer=answer)


def say_lines(broker: BrokerState) -> None:
    """What groups did, into the log."""
    for line in broker.groups.take_lines():
        broker.refusals.say(line)
