"""`bootstrap.servers`, waits between attempts, and the line that says who could not be reached and why."""

from __future__ import annotations

import random

import pytest

from chaffinch.client.addresses import Address, Attempts, parse_bootstrap_servers
from chaffinch.client.backoff import Backoff
from chaffinch.errors import ConfigException

A, B = Address("a", 1), Address("b", 2)


class Steady:
    """Rng that always show the middle."""

    def random(self) -> float:
        return 0.5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:1", [A]),
        (" a:1 , b:2 ", [A, B]),
        (["a:1", "b:2"], [A, B]),
        ("[::1]:9092", [Address("::1", 9092)]),
        ("a:1,", [A]),
    ],
)
def test_bootstrap_servers(text: str | list[str], expected: list[Address]) -> None:
    assert list(parse_bootstrap_servers(text)) == expected


@pytest.mark.parametrize("text", ["", "a", "a:", ":1", "a:0", "a:65536", "a:b", "a:-1", "a:1;b:2", "a:²"])
def test_invalid_address_is_named_in_the_error(text: str) -> None:
    with pytest.raises(ConfigException, match=r"bootstrap\.servers"):
        parse_bootstrap_servers(text)


@pytest.mark.parametrize(("text", "is_hinted"), [("::1:9092", True), ("fe80::2:9092", True), ("PLAINTEXT://h:9092", False), ("h:0", False)])
def test_ipv6_address_without_brackets_is_rejected_with_a_hint(text: str, is_hinted: bool) -> None:
    with pytest.raises(ConfigException) as caught:
        parse_bootstrap_servers(text)
    assert ("an IPv6 address needs brackets, as in [::1]:9092" in str(caught.value)) is is_hinted


def test_address_as_text() -> None:
    assert [str(address) for address in (A, Address("::1", 9092))] == ["a:1", "[::1]:9092"]


def test_backoff_doubles_to_its_limit() -> None:
    backoff = Backoff(initial_ms=100, max_ms=1000)
    assert [backoff.wait_ms(n, Steady()) for n in range(7)] == [0, 100, 200, 400, 800, 1000, 1000]
    assert backoff.wait_ms(10**9, Steady()) == 1000


def test_jitter_stays_within_a_fifth() -> None:
    rng = random.Random(1)
    waits = {Backoff(initial_ms=100, max_ms=1000).wait_ms(1, rng) for _ in range(1000)}
    assert min(waits) >= 80
    assert max(waits) <= 120
    assert len(waits) > 20


def test_failed_address_backs_off_while_others_are_tried() -> None:
    attempts = Attempts(Backoff(initial_ms=100, max_ms=1000), Steady())
    assert attempts.pick([A, B], 0) == A
    attempts.failed(A, "refused", 0)
    assert attempts.pick([A, B], 0) == B
    attempts.failed(B, "timed out", 10)
    assert attempts.pick([A, B], 50) is None
    assert attempts.wait_ends_ms(50) == 100
    assert attempts.pick([A, B], 100) == A
    attempts.succeeded(A)
    attempts.failed(B, "timed out", 10)
    assert attempts.pick([B, A], 5000) == A, "who works is preferred"
    assert (attempts.failures(A), attempts.failures(B)) == (0, 2)


def test_description_names_addresses_reasons_and_time() -> None:
    attempts = Attempts(Backoff(initial_ms=100, max_ms=1000), Steady())
    attempts.failed(A, "refused", 0)
    assert attempts.describe([A, B, A], 300) == "no broker reachable at a:1 (refused), b:2 (not tried yet); tried for 300 ms"
    attempts.request_sent(B._replace(lane=1))
    assert attempts.describe([A, B], 300) == "no broker reachable at a:1 (refused), b:2 (no response yet); tried for 300 ms"
    assert attempts.describe([A]) == "no broker reachable at a:1 (refused)"


def test_connection_lost_before_its_first_response_increases_the_backoff() -> None:
    attempts = Attempts(Backoff(initial_ms=100, max_ms=1000), Steady())
    waits = []
    for _ in range(5):
        attempts.failed(A, "closed", 0)
        waits.append(attempts.retry_at_ms(A, 0))
        attempts.succeeded(A)
        assert attempts.failures(A) == 0
    assert waits == [100, 200, 400, 800, 1000]
    attempts.failed(A, "closed", 0, had_response=True)
    assert attempts.retry_at_ms(A, 0) == 100, "it was of use in between"
