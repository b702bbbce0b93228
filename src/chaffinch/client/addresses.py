"""Broker addresses: the parser of `bootstrap.servers`, and the reconnect backoff of each address.

Free of I/O: the owner of the sockets reports successes and failures here and checks `may_try` before it reconnects. The backoff follows
`reconnect.backoff.ms` and `reconnect.backoff.max.ms` of Apache Kafka's clients (ClusterConnectionStates.java).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from chaffinch.client.backoff import Backoff, Rng
from chaffinch.errors import ConfigException

PORT_MAX: Final = 65535
_ADDRESS: Final = re.compile(r"(?:\[(?P<bracketed>[0-9a-fA-F:.%\w]+)\]|(?P<name>[\w.-]+)):(?P<port>[0-9]{1,5})")
_BARE_IPV6: Final = re.compile(r"[0-9a-fA-F]*:[0-9a-fA-F]*:[0-9a-fA-F:.]*")


class Address(NamedTuple):
    """One listener. `str()` gives `host:port`, with brackets around an IPv6 host.

    Brokers answer the requests of a connection in order. Requests that must not wait behind a slow one, such as a Fetch that waits for
    records, use a second connection to the same listener: another `lane`, with an address of its own.
    """

    host: str
    port: int
    lane: int = 0

    @property
    def first_lane(self) -> Address:
        """The address of the listener's first connection, for requests that are answered immediately."""
        return self._replace(lane=0)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_bootstrap_servers(servers: str | Sequence[str]) -> tuple[Address, ...]:
    """Parse `host:port,host:port` or a sequence of `host:port`. The ConfigException names the invalid part."""
    parts = servers.split(",") if isinstance(servers, str) else list(servers)
    addresses = tuple(_parse(part.strip()) for part in parts if part.strip())
    if not addresses:
        raise ConfigException("option bootstrap.servers is empty: it must be host:port, or several separated by commas")
    return addresses


def _parse(text: str) -> Address:
    match = _ADDRESS.fullmatch(text)
    if match is None or not 1 <= int(match["port"]) <= PORT_MAX:
        hint = "; an IPv6 address needs brackets, as in [::1]:9092" if _BARE_IPV6.fullmatch(text) else ""
        what = f"each server must be host:port, with a port from 1 to 65535{hint}"
        raise ConfigException(f"option bootstrap.servers cannot contain {text!r}: {what}")
    return Address(match["name"] or match["bracketed"], int(match["port"]))


class Attempts:
    """Connection attempts by address: consecutive failures, the last reason, and when the next attempt is allowed."""

    __slots__ = ("_backoff", "_failures", "_failures_before_success", "_reached", "_reasons", "_requested", "_rng", "_wait_until_ms")

    def __init__(self, backoff: Backoff, rng: Rng) -> None:
        self._backoff = backoff
        self._rng = rng
        self._failures: dict[Address, int] = {}
        self._reasons: dict[Address, str] = {}
        self._wait_until_ms: dict[Address, int] = {}
        self._requested: set[Address] = set()
        self._failures_before_success: dict[Address, int] = {}
        """Failures before the current connection was made."""
        self._reached: set[Address] = set()

    def request_sent(self, address: Address) -> None:
        """A request is sent to the address."""
        self._requested.add(address.first_lane)

    def succeeded(self, address: Address) -> None:
        """A connection is ready: reset the failures. They count again if it is lost before its first response."""
        self._reached.add(address.first_lane)
        if address in self._failures:
            self._failures_before_success[address] = self._failures.pop(address)
        for values in (self._reasons, self._wait_until_ms):
            values.pop(address, None)

    def failed(self, address: Address, reason: str, steady_ms: int, *, had_response: bool = False) -> None:
        """The connection was refused or lost, or timed out. `had_response`: it had received a response before."""
        failures_before_success = self._failures_before_success.pop(address, 0)
        failures = self._failures.get(address, 0 if had_response else failures_before_success) + 1
        self._failures[address] = failures
        self._reasons[address] = reason.removeprefix(f"{address}: ")
        self._wait_until_ms[address] = steady_ms + self._backoff.wait_ms(failures, self._rng)

    def throttled(self, address: Address, until_ms: int) -> None:
        """The broker responded and accepts no request until `until_ms` (`throttle_time_ms`, KIP-219)."""
        self._wait_until_ms[address] = max(until_ms, self._wait_until_ms.get(address, until_ms))

    def may_try(self, address: Address, steady_ms: int) -> bool:
        """Whether the backoff after the last failure, or the throttle time of the broker, is over."""
        return self._wait_until_ms.get(address, steady_ms) <= steady_ms

    def retry_at_ms(self, address: Address, steady_ms: int) -> int:
        """When the next attempt is allowed; `steady_ms` if immediately."""
        return max(steady_ms, self._wait_until_ms.get(address, steady_ms))

    def wait_ends_ms(self, steady_ms: int) -> int | None:
        """The earliest time at which a backoff ends; None if no address is backing off."""
        return min([time_ms for time_ms in self._wait_until_ms.values() if time_ms > steady_ms], default=None)

    def failures(self, address: Address) -> int:
        """Consecutive failures; 0 after a success."""
        return self._failures.get(address, 0)

    def pick(self, candidates: Sequence[Address], steady_ms: int) -> Address | None:
        """Of the addresses that may be tried now, the one with the fewest failures (ties: the first); None if all are backing off."""
        ready = [address for address in candidates if self.may_try(address, steady_ms)]
        return min(ready, key=self.failures) if ready else None

    def describe(self, candidates: Iterable[Address], waited_ms: int | None = None) -> str:
        """One line for an error: the addresses, the last reason of each, and `waited_ms`, if given, as how long they were tried."""
        addresses = list(dict.fromkeys(candidates))
        return f"no broker reachable at {', '.join(f'{address} ({self._reason(address)})' for address in addresses)}" + (
            "" if waited_ms is None else f"; tried for {waited_ms} ms"
        )

    def was_reached(self, address: Address) -> bool:
        """Whether a connection to the listener was ever ready."""
        return address.first_lane in self._reached

    def reason(self, address: Address) -> str:
        """Why the last attempt failed; empty after a success, or before the first attempt."""
        return self._reasons.get(address, "")

    def _reason(self, address: Address) -> str:
        return self._reasons.get(address, "no response yet" if address.first_lane in self._requested else "not tried yet")
