"""The options that producers, consumers and administration share: names, defaults and ranges as in Apache Kafka 4.3.

Each part's table takes `connection_options` and adds its own rows (CommonClientConfigs.java). `ConnectionSettings` is what the network
makes of them. Names in `WITHOUT_EFFECT` are Kafka's, accepted by every part so that files of options can be shared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from chaffinch.client.addresses import Address, parse_bootstrap_servers
from chaffinch.client.backoff import Backoff
from chaffinch.client.bootstrap import RECOVERY_OPTIONS
from chaffinch.client.security import PLAINTEXT, SASL_WITHOUT_EFFECT, SECURITY_OPTIONS, Security
from chaffinch.protocol.security_options import TLS_WITHOUT_EFFECT
from chaffinch.settings import INT_MAX, Option

# Batches are large and few: the system takes several at once, so that the thread that sends can go on. Kafka's own default is 131072.
SEND_BUFFER_BYTES: Final = 4 << 20
# The protocol counts the bytes of a string in 16 bits.
STRING_BYTES_MAX: Final = 2**15 - 1

_AT_ONCE: Final = "; with 0 at once, without a pause, which can take a whole processor"
_LONGEST: Final = "longest such wait; it doubles with each failure; with 0 there is none at all"
_ROWS: Final = (
    Option(
        "request.timeout.ms",
        "int",
        30_000,
        "how long a broker may take to answer before its connection is given up",
        minimum=1,
        maximum=INT_MAX,
    ),
    Option(
        "socket.connection.setup.timeout.ms",
        "int",
        10_000,
        "how long opening a connection may take; after a fifth of it the next of `bootstrap.servers` is asked where the first is silent",
        minimum=1,
    ),
    Option("socket.connection.setup.timeout.max.ms", "int", 30_000, "longest such time; it doubles with each failure in a row", minimum=1),
    Option("connections.max.idle.ms", "int", 540_000, "a connection without traffic for so long is closed; -1 for never", minimum=-1),
    Option(
        "reconnect.backoff.ms",
        "int",
        50,
        f"first wait before an address that failed is tried again{_AT_ONCE}",
        minimum=0,
    ),
    Option("reconnect.backoff.max.ms", "int", 1_000, _LONGEST, minimum=0),
    Option(
        "retry.backoff.ms",
        "int",
        100,
        f"first wait before a batch or request is sent again{_AT_ONCE}",
        minimum=0,
    ),
    Option("retry.backoff.max.ms", "int", 1_000, _LONGEST, minimum=0),
    Option(
        "send.buffer.bytes",
        "int",
        SEND_BUFFER_BYTES,
        "the system's buffer for sending, per connection; -1: the system's choice",
        minimum=-1,
        maximum=INT_MAX,
    ),
    Option(
        "receive.buffer.bytes",
        "int",
        -1,
        "the system's buffer for receiving, per connection; -1: the system's choice",
        minimum=-1,
        maximum=INT_MAX,
    ),
)

METADATA_OPTIONS: Final = (
    Option("metadata.max.age.ms", "int", 300_000, "how old metadata may grow before it is asked for anew", minimum=0),
    *RECOVERY_OPTIONS,
)
"""For parts that keep metadata while nobody calls them."""

WITHOUT_EFFECT: Final = (
    TLS_WITHOUT_EFFECT
    | SASL_WITHOUT_EFFECT
    | frozenset(
        {
            "auto.include.jmx.reporter",
            "client.dns.lookup",  # Every address of a name is tried, as with use_all_dns_ips.
            "enable.metrics.push",
            "metric.reporters",
            "metrics.num.samples",
            "metrics.recording.level",
            "metrics.sample.window.ms",
        }
    )
)


def connection_options(client_id: str) -> tuple[Option, ...]:
    """The rows that every client has; `client_id` is the default of client.id."""
    return (
        Option("bootstrap.servers", "list", None, "host:port of one or more brokers to start from", required=True),
        Option("client.id", "string", client_id, "name sent with each request, for the broker's logs", bytes_max=STRING_BYTES_MAX),
        *_ROWS,
        *SECURITY_OPTIONS,
    )


def retry_backoff(settings: Mapping[str, Any]) -> Backoff:
    """The waits between attempts of one request."""
    return Backoff(initial_ms=settings["retry.backoff.ms"], max_ms=settings["retry.backoff.max.ms"])


def reconnect_backoff(settings: Mapping[str, Any]) -> Backoff:
    """The waits between attempts to reach one address."""
    return Backoff(initial_ms=settings["reconnect.backoff.ms"], max_ms=settings["reconnect.backoff.max.ms"])


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """How the connections of one client are made and kept. Hashable, and pickles: Spark sends it to its tasks. -1: no limit."""

    client_id: str = "chaffinch"
    request_timeout_ms: int = 30_000
    setup_timeout_ms: int = 10_000
    setup_timeout_max_ms: int = 30_000
    idle_ms_max: int = 540_000
    send_buffer_bytes: int = SEND_BUFFER_BYTES
    receive_buffer_bytes: int = -1
    security: Security = PLAINTEXT
    given_addresses: frozenset[Address] = frozenset()
    """Those of bootstrap.servers; every other one was told by a broker."""

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """From the options of `connection_options`, parsed. ConfigException for what is wrong about security."""
        return cls(
            client_id=settings["client.id"],
            request_timeout_ms=settings["request.timeout.ms"],
            setup_timeout_ms=settings["socket.connection.setup.timeout.ms"],
            setup_timeout_max_ms=settings["socket.connection.setup.timeout.max.ms"],
            idle_ms_max=settings["connections.max.idle.ms"],
            send_buffer_bytes=settings["send.buffer.bytes"],
            receive_buffer_bytes=settings["receive.buffer.bytes"],
            security=Security.of(settings),
            given_addresses=frozenset(parse_bootstrap_servers(settings["bootstrap.servers"])),
        )

    @property
    def setup_backoff(self) -> Backoff:
        """Opening may take so long, after so many failures and one (KIP-601): a maximum below the first time has no effect."""
        return Backoff(initial_ms=self.setup_timeout_ms, max_ms=max(self.setup_timeout_ms, self.setup_timeout_max_ms))
