"""Reasons of failed connections to addresses that came from brokers: they name `advertised.listeners`."""

from __future__ import annotations

import random

import pytest

from chaffinch.client.addresses import Address, Attempts
from chaffinch.client.backoff import Backoff
from chaffinch.client.connections import Disconnected, RequestFailed
from chaffinch.client.known_cluster import ADVERTISED_HINT, explain_unreachable
from chaffinch.errors import AuthenticationException

GIVEN, ADVERTISED = Address("b", 1), Address("n", 9)
"""The address in `bootstrap.servers`, and one that brokers advertise."""


def attempts() -> Attempts:
    return Attempts(Backoff(initial_ms=50, max_ms=1_000), random.Random(1))


def failed(address: Address, *, was_sent: bool = False, is_unsupported: bool = False) -> RequestFailed:
    return RequestFailed(address=address, token=None, reason="refused", was_sent=was_sent, is_unsupported=is_unsupported)


def test_unreachable_advertised_address_has_the_hint() -> None:
    for event in (failed(ADVERTISED), failed(ADVERTISED._replace(lane=1)), Disconnected(address=ADVERTISED, reason="refused")):
        assert explain_unreachable(event, attempts(), [GIVEN]).reason == f"refused; {ADVERTISED_HINT}"


@pytest.mark.parametrize(
    "event",
    [
        failed(GIVEN),
        failed(GIVEN._replace(lane=1)),
        failed(ADVERTISED, was_sent=True),
        failed(ADVERTISED, is_unsupported=True),
        Disconnected(address=ADVERTISED, reason="refused", had_response=True),
        Disconnected(address=ADVERTISED, reason="refused", error=AuthenticationException("refused")),
    ],
    ids=["in bootstrap.servers", "another connection to it", "a request was sent", "the broker lacks the API", "it had responded", "login"],
)
def test_other_failures_have_no_hint(event: RequestFailed | Disconnected) -> None:
    assert explain_unreachable(event, attempts(), [GIVEN]) is event


def test_address_reached_before_has_no_hint() -> None:
    facts = attempts()
    facts.succeeded(ADVERTISED._replace(lane=1))
    assert explain_unreachable(failed(ADVERTISED), facts, [GIVEN]).reason == "refused"
