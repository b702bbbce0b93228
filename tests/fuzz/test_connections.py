"""A few worlds of connections in every test run; `make fuzz` runs many. Also what the fuzzer can find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chaffinch.broker.connection_manager import ConnectionManager
from chaffinch.broker.connections import Peer
from chaffinch.protocol.violations import ProtocolViolation
from tests.fuzz import connection_fuzzer

SEEDS = (1, 2, 3)
WORLDS = 3


@pytest.mark.parametrize("seed", SEEDS)
def test_connections_are_isolated_and_leave_nothing(seed: int) -> None:
    seen = connection_fuzzer.run(seed, WORLDS)
    assert seen["answers"] > 1000, "the requests do not get anywhere"
    assert seen["closed by the broker"]
    assert seen["silent clients"]


flush = Peer.flush


def send_the_last_first(self: Peer) -> None:
    self._unsent.reverse()
    flush(self)


def close_the_others(self: ConnectionManager, peer: Peer, violation: ProtocolViolation) -> None:
    for other in list(self._peers.values()):
        other.close()


def drop_what_was_good(self: ConnectionManager, peer: Peer, violation: ProtocolViolation) -> None:
    peer.abort()


def never_give_back(self: Peer, count: int) -> None:
    self._queued.bytes_queued += max(0, count - self._queued_bytes)
    self._queued_bytes = count


def do_nothing(*_: object) -> list[Any]:
    return []


CONNECTION_MANAGER, CONNECTION, WATCH = (
    "broker.connection_manager.ConnectionManager",
    "broker.connections.Peer",
    "broker.connection_watch.ConnectionWatch",
)
BROKEN_RULES: dict[str, tuple[str, Callable[..., Any], str]] = {
    "answers overtake": (f"{CONNECTION}.flush", send_the_last_first, "expected .* next"),
    "others are closed": (f"{CONNECTION_MANAGER}.violated", close_the_others, "closed, and it has sent no nonsense"),
    "no connection is closed": (f"{CONNECTION_MANAGER}.violated", do_nothing, "not answered, or not closed"),
    "good ones are dropped": (f"{CONNECTION_MANAGER}.violated", drop_what_was_good, "good requests not answered"),
    "bytes stay held": (f"{CONNECTION}._set_queued_bytes", never_give_back, "bytes are counted that no connection holds"),
    "turns never end": (f"{CONNECTION}.end_turn", do_nothing, "a client that behaves is not answered"),
    "connections stay": (f"{CONNECTION_MANAGER}.disconnected", do_nothing, "held by"),
    "silent ones stay": (f"{WATCH}.sweep", do_nothing, "held by"),
}


WAITED_OUT = ("no connection is closed", "turns never end")
"""Noticed because what is to happen at last does not. With the others nothing has to wait, however slow the machine is."""


@pytest.mark.parametrize("rule", BROKEN_RULES)
def test_broken_rule_is_found(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, broken, noticed = BROKEN_RULES[rule]
    monkeypatch.setattr(f"chaffinch.{place}", broken)
    if rule in WAITED_OUT:
        monkeypatch.setattr(connection_fuzzer, "TURN_TIMEOUT_SECONDS", 5)
    with pytest.raises(AssertionError, match=f"of seed 1: .*{noticed}"):
        connection_fuzzer.run(1, 20)
