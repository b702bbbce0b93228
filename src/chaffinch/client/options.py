"""Options shared by producer, consumer and administration: names, defaults and ranges as in Apache Kafka 4.3.

Each component's table takes `connection_options` and adds its own rows (CommonClientConfigs.java). `ConnectionSettings` are the parsed
values for the network. Names in `WITHOUT_EFFECT` are Kafka's; all components accept them so that option files can be shared.
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

# Batches are few and large: with this size the system buffers several, and the sender thread continues. Kafka's default is 131072.
SEND_BUFFER_BYTES: Final = 4 << 20
# The protocol encodes the length of a string in 16 bits.
STRING_BYTES_MAX: Final = 2**15 - 1

_AT_ONCE: Final = "; 0: immediately, which can use a whole processor"
_LONGEST: Final = "longest wait; the wait doubles with each failure; 0: no wait"
_ROWS: Final = (
    Option(
        "request.timeout.ms",
        "int",
        30_000,
        "how long to wait for a response before the connection is closed",
        minimum=1,
        maximum=INT_MAX,
    ),
    Option(
        "socket.connection.setup.timeout.ms",
        "int",
        10_000,
        "limit for opening a connection; after a fifth of it the next of `bootstrap.servers` is tried if one is silent",
        minimum=1,
    ),
    Option(
        "socket.connection.setup.timeout.max.ms",
        "int",
        30_000,
        "longest limit for opening a connection; the limit doubles with each failure",
        minimum=1,
    ),
    Option("connections.max.idle.ms", "int", 540_000, "a connection without traffic for this time is closed; -1: never", minimum=-1),
    Option(
        "reconnect.backoff.ms",
        "int",
        50,
        f"first wait before reconnecting to an address that failed{_AT_ONCE}",
        minimum=0,
    ),
    Option("reconnect.backoff.max.ms", "int", 1_000, _LONGEST, minimum=0),
    Option(
        "retry.backoff.ms",
        "int",
        100,
        f"first wait before a batch or request is retried{_AT_ONCE}",
        minimum=0,
    ),
    Option("retry.backoff.max.ms", "int", 1_000, _LONGEST, minimum=0),
    Option(
        "send.buffer.bytes",
        "int",
        SEND_BUFFER_BYTES,
        "socket send buffer of a connection; -1: the system's default",
        minimum=-1,
        maximum=INT_MAX,
    ),
    Option(
        "receive.buffer.bytes",
        "int",
        -1,
        "socket receive buffer of a connection; -1: the system's default",
        minimum=-1,
        maximum=INT_MAX,
    ),
)

METADATA_OPTIONS: Final = (
    Option("metadata.max.age.ms", "int", 300_000, "age at which metadata is refreshed", minimum=0),
    *RECOVERY_OPTIONS,
)
"""For components that refresh metadata in the background."""

WITHOUT_EFFECT: Final = (
    TLS_WITHOUT_EFFECT
    | SASL_WITHOUT_EFFECT
    | frozenset(
        {
            "auto.include.jmx.reporter",
            "client.dns.lookup",  # All addresses of a name are tried, as with use_all_dns_ips.
            "enable.metrics.push",
            "metric.reporters",
            "metrics.num.samples",
            "metrics.recording.level",
            "metrics.sample.window.ms",
        }
    )
)


def connection_options(client_id: str) -> tuple[Option, ...]:
    """The options that every client has; `client_id` is the default of client.id."""
    return (
        Option("bootstrap.servers", "list", None, "host:port of one or more brokers to start from", required=True),
        Option("client.id", "string", client_id, "name sent with each request, for the broker's logs", bytes_max=STRING_BYTES_MAX),
        *_ROWS,
        *SECURITY_OPTIONS,
    )


def retry_backoff(settings: Mapping[str, Any]) -> Backoff:
    """Backoff between the attempts of one request."""
    return Backoff(initial_ms=settings["retry.backoff.ms"], max_ms=settings["retry.backoff.max.ms"])


def reconnect_backoff(settings: Mapping[str, Any]) -> Backoff:
    """Backoff between the attempts to connect to one address."""
    return Backoff(initial_ms=settings["reconnect.backoff.ms"], max_ms=settings["reconnect.backoff.max.ms"])


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """Connection settings of one client. Hashable, and can be pickled, because Spark sends it to tasks. -1: no limit."""

    client_id: str = "chaffinch"
    request_timeout_ms: int = 30_000
    setup_timeout_ms: int = 10_000
    setup_timeout_max_ms: int = 30_000
    idle_ms_max: int = 540_000
    send_buffer_bytes: int = SEND_BUFFER_BYTES
    receive_buffer_bytes: int = -1
    security: Security = PLAINTEXT
    given_addresses: frozenset[Address] = frozenset()
    """The addresses in bootstrap.servers; all others are advertised by brokers."""

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """From parsed `connection_options`. Raises ConfigException for invalid security options."""
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
        """Time limit for opening a connection, by consecutive failures + 1 (KIP-601). A maximum below the first limit has no effect."""
        return Backoff(initial_ms=self.setup_timeout_ms, max_ms=max(self.setup_timeout_ms, self.setup_timeout_max_ms))
