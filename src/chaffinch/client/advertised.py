"""A hint in the reasons of failed connections: the address came from brokers (`advertised.listeners`), not from `bootstrap.servers`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final, TypeVar

from chaffinch.client.addresses import Address, Attempts
from chaffinch.client.connections import Disconnected, Failed

HINT: Final = "brokers advertise this address (advertised.listeners), bootstrap.servers does not have it"

AnyEvent = TypeVar("AnyEvent")


def hinted(reason: str, address: Address, servers: Collection[Address]) -> str:
    """`servers`: the addresses in `bootstrap.servers`."""
    return reason if address.first_lane in servers else f"{reason}; {HINT}"


def explained(event: AnyEvent, attempts: Attempts, servers: Collection[Address]) -> AnyEvent:
    """The event with the hint, where no connection to the address was ever ready: all texts about the failure take its reason."""
    if not isinstance(event, (Failed, Disconnected)):
        return event
    is_answer = event.was_answered if isinstance(event, Disconnected) else event.was_sent or event.is_unsupported
    if is_answer or event.error is not None or attempts.was_reached(event.address):
        return event
    reason = hinted(event.reason, event.address, servers)
    return event if reason == event.reason else replace(event, reason=reason)
