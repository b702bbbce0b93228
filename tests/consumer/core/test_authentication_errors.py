"""Rejected logins: each is raised once, by the next call, unless a login has succeeded since."""

import pytest

from chaffinch import errors
from chaffinch.client.addresses import Address
from chaffinch.client.connections import Connected, Disconnected
from tests.consumer.core.rig import Rig

B, C = Address("b", 1), Address("c", 2)
MAX_MS = 1_000


def reject(rig: Rig, address: Address = B) -> None:
    error = errors.SaslAuthenticationException(f"{address}: no such user")
    rig.step(Disconnected(address=address, reason="refused", error=error))


def test_each_rejection_is_raised_once() -> None:
    rig = Rig().assign(0)
    for _ in range(3):
        reject(rig)
        reject(rig)
        with pytest.raises(errors.SaslAuthenticationException, match="b:1: no such user"):
            rig.core.raise_error()
        rig.core.raise_error()


def test_rejection_before_a_successful_login_is_not_raised() -> None:
    rig = Rig().assign(0)
    reject(rig)
    reject(rig, C)
    rig.step(Connected(address=B))
    with pytest.raises(errors.SaslAuthenticationException, match="c:2: no such user"):
        rig.core.raise_error()
    rig.core.raise_error()


def test_retries_back_off() -> None:
    rig = Rig(**{"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": MAX_MS}).assign(0)
    waits = []
    for _ in range(12):
        reject(rig)
        waits.append(rig.core.context.attempts.retry_at_ms(B, rig.steady_ms) - rig.steady_ms)
        rig.advance(waits[-1])
    assert 0 < waits[0] <= 60
    assert waits[1] > waits[0]
    # A fifth more or less by chance.
    assert min(waits[-3:]) >= MAX_MS * 0.8
    assert max(waits) <= MAX_MS * 1.2
