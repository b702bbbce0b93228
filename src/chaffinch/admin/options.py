"""The options of administration and reading: names and meanings as in Apache Kafka (AdminClientConfig, ConsumerConfig).

The one default that differs is `default.api.timeout.ms`: a person waits for the answer, so it is shorter than Kafka's minute.
Names in `WITHOUT_EFFECT` are Kafka's, accepted so that files of options can be shared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from chaffinch.client import options as client_options
from chaffinch.client.option_hints import JAVA_ONLY_OPTIONS
from chaffinch.client.options import ConnectionSettings, connection_options, reconnect_backoff, retry_backoff
from chaffinch.client.sync_client import SyncClient
from chaffinch.settings import INT_MAX, Option, OptionTable, Settings

CLIENT_OPTIONS: Final = (
    *connection_options("chaffinch-admin"),
    Option("default.api.timeout.ms", "int", 15_000, "how long one operation is tried, all attempts together", minimum=1, maximum=INT_MAX),
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

WITHOUT_EFFECT: Final = client_options.WITHOUT_EFFECT | {
    "bootstrap.controllers",
    "retries",
    *(option.name for option in client_options.METADATA_OPTIONS),
}
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

ADMIN_TABLE: Final = OptionTable(CLIENT_OPTIONS, WITHOUT_EFFECT, hints=JAVA_ONLY_OPTIONS)
READING_TABLE: Final = OptionTable((*CLIENT_OPTIONS, *READING_OPTIONS), WITHOUT_EFFECT | READING_WITHOUT_EFFECT, hints=JAVA_ONLY_OPTIONS)


def open_client(settings: Settings, on_wait: Callable[[str], None] | None = None) -> SyncClient:
    """A client with these settings of one of the tables; nothing is sent yet. `on_wait`: see `SyncClient`."""
    return SyncClient(
        settings["bootstrap.servers"],
        timeout_ms=settings["default.api.timeout.ms"],
        connections=ConnectionSettings.of(settings),
        retry_backoff=retry_backoff(settings),
        reconnect_backoff=reconnect_backoff(settings),
        on_wait=on_wait,
    )


def connect(options: Mapping[str, Any] | None = None, **keywords: Any) -> SyncClient:
    """A client for the functions of this package, with options of `ADMIN_TABLE`. ConfigException for what is wrong with them."""
    return open_client(ADMIN_TABLE.parse(options, **keywords))
