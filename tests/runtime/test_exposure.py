"""Exposure: reachable addresses, warnings about unprotected listeners, and accepted Host headers."""

from __future__ import annotations

import socket

import pytest

from chaffinch.runtime.exposure import is_expected, is_loopback, warning


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("LOCALHOST", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.1.2.3", False),
        ("localhost.example", False),
        ("broker", False),
    ],
)
def test_is_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    ("host", "has_tls", "has_login", "says"),
    [
        ("0.0.0.0", False, False, "--listen can be reached from other machines, without TLS and without a login: beware"),
        ("10.0.0.1", True, False, "--listen can be reached from other machines, without a login: beware"),
        ("::", False, True, "--listen can be reached from other machines, without TLS: beware"),
        ("0.0.0.0", True, True, None),
        ("127.0.0.1", False, False, None),
    ],
)
def test_warning_names_missing_tls_and_login(host: str, has_tls: bool, has_login: bool, says: str | None) -> None:
    assert warning("--listen", host, has_tls=has_tls, has_login=has_login, risk="beware") == says


@pytest.mark.parametrize(
    "header", ["127.0.0.1", "10.0.0.7:9100", "[::1]:80", "localhost:9100", "Broker:9100", "other", socket.gethostname()]
)
def test_expected_host_header_is_accepted(header: str) -> None:
    assert is_expected(header, ["broker", "OTHER"])


@pytest.mark.parametrize("header", ["", "evil.example", "broker.evil.example:80", "localhost@evil.example", "127.0.0.1.nip.io", "[evil]"])
def test_unexpected_host_header_is_refused(header: str) -> None:
    assert not is_expected(header, ["broker"])
