"""The options of administration and reading: names and meanings as in Apache Kafka (AdminClientConfig, ConsumerConfig).

The one default that differs is `default.api.timeout.ms`: a person waits for the answer, so it is shorter than Kafka's minute.
Names in `WITHOUT_EFFECT` are Kafka's, accepted so that files of options can be shared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from chaffinch.client.backoff import Backoff
from chaffinch.client.sync_client import SyncClient
from chaffinch.settings import Option, OptionTable, Settings

CLIENT_OPTIONS: Final = (
    Option("bootstrap.servers", "list", None, "host:port of one or more brokers to start from", required=True),
    Option("client.id", "string", "chaffinch-admin", "name sent with each request, for the broker's logs"),
    Option("security.protocol", "string", "PLAINTEXT", "how to talk to the broker", choices=("PLAINTEXT",)),
    Option("default.api.timeout.ms", "int", 15_000, "how long one operation is tried, all attempts together", minimum=1),
    Option("request.timeout.ms", "int", 30_000, "how long a broker may take to answer before its connection is given up", minimum=1),
    Option("socket.connection.setup.timeout.ms", "int", 10_000, "how long opening a connection may take", minimum=1),
    Option("retry.backoff.ms", "int", 100, "first wait before a request is sent again", minimum=0),
    Option("retry.backoff.max.ms", "int", 1_000, "longest such wait; it doubles with each failure", minimum=0),
    Option("reconnect.backoff.ms", "int", 50, "first wait before an address that failed is tried again", minimum=0),
    Option("reconnect.backoff.max.ms", "int", 1_000, "longest such wait; it doubles with each failure", minimum=0),
)
READING_OPTIONS: Final = (
    Option(
        "isolation.level",
        "string",
        "read_committed",
        "leave out what transactions have not committed, or read everything",
        choices=("read_committed", "read_uncommitted"),
    ),
    Option("fetch.max.bytes", "int", 50 << 20, "bytes of one answer of a broker", minimum=1),
    Option("fetch.max.wait.ms", "int", 500, "how long a broker may wait for records to come", minimum=0),
    Option("max.partition.fetch.bytes", "int", 4 << 20, "bytes per partition in one answer", minimum=1),
    Option("check.crcs", "bool", True, "check the checksum of every batch that is read"),
)

WITHOUT_EFFECT: Final = frozenset(
    {
        "auto.include.jmx.reporter",
        "bootstrap.controllers",
        "client.dns.lookup",
        "connections.max.idle.ms",
        "enable.metrics.push",
        "metadata.max.age.ms",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "receive.buffer.bytes",
        "retries",
        "send.buffer.bytes",
        "socket.connection.setup.timeout.max.ms",
    }
)
READING_WITHOUT_EFFECT: Final = frozenset(
    {
        "allow.auto.create.topics",
        "auto.commit.interval.ms",
        "auto.offset.reset",
        "enable.auto.commit",
        "fetch.min.bytes",
        "group.id",
        "interceptor.classes",
        "key.deserializer",
        "max.poll.interval.ms",
        "max.poll.records",
        "value.deserializer",
    }
)

ADMIN_TABLE: Final = OptionTable(CLIENT_OPTIONS, WITHOUT_EFFECT)
READING_TABLE: Final = OptionTable((*CLIENT_OPTIONS, *READING_OPTIONS), WITHOUT_EFFECT | READING_WITHOUT_EFFECT)


def open_client(settings: Settings) -> SyncClient:
    """A client with these settings of one of the tables; nothing is sent yet."""
    return SyncClient(
        settings["bootstrap.servers"],
        client_id=settings["client.id"],
        timeout_ms=settings["default.api.timeout.ms"],
        request_timeout_ms=settings["request.timeout.ms"],
        connect_timeout_ms=settings["socket.connection.setup.timeout.ms"],
        retry_backoff=Backoff(initial_ms=settings["retry.backoff.ms"], max_ms=settings["retry.backoff.max.ms"]),
        reconnect_backoff=Backoff(initial_ms=settings["reconnect.backoff.ms"], max_ms=settings["reconnect.backoff.max.ms"]),
    )


def connect(options: Mapping[str, Any] | None = None, **keywords: Any) -> SyncClient:
    """A client for the functions of this package, with options of `ADMIN_TABLE`. ConfigException for what is wrong with them."""
    return open_client(ADMIN_TABLE.parse(options, **keywords))
