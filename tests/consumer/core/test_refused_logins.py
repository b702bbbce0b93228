"""A broker that does not let the consumer in: each refusal is told once, by the next call; a login that works takes it back."""

import pytest

from chaffinch import errors
from chaffinch.client.addresses import Address
from chaffinch.client.connections import Connected, Disconnected
from tests.consumer.core.rig import Rig

B, C = Address("b", 1), Address("c", 2)
MAX_MS = 1_000


def refuse(rig: Rig, address: Address = B) -> None:
    error = errors.SaslAuthenticationException(f"{address}: no such user")
    rig.step(Disconnected(address=address, reason="refused", error=error))


def test_each_refusal_is_told_once() -> None:
    rig = Rig().assign(0)
    for _ in range(3):
        refuse(rig)
        refuse(rig)
        with pytest.raises(errors.SaslAuthenticationException, match="b:1: no such user"):
            rig.core.raise_error()
        rig.core.raise_error()


def test_one_that_a_login_has_overtaken_is_not_told() -> None:
    rig = Rig().assign(0)
    refuse(rig)
    refuse(rig, C)
    rig.step(Connected(address=B))
    with pytest.raises(errors.SaslAuthenticationException, match="c:2: no such user"):
        rig.core.raise_error()
    rig.core.raise_error()


def test_it_is_tried_again_less_and_less_often() -> None:
    rig = Rig(**{"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": MAX_MS}).assign(0)
    waits = []
    for _ in range(12):
        refuse(rig)
        waits.append(rig.core.wiring.attempts.retry_at_ms(B, rig.steady_ms) - rig.steady_ms)
        rig.advance(waits[-1])
    assert 0 < waits[0] <= 60
    assert waits[1] > waits[0]
    # A fifth more or less by chance.
    assert min(waits[-3:]) >= MAX_MS * 0.8
    assert max(waits) <= MAX_MS * 1.2
