"""Options of administration and of reading records: names and meanings as in Apache Kafka (AdminClientConfig, ConsumerConfig).

One default differs: `default.api.timeout.ms` is shorter than Kafka's minute, because a person waits for the result. Names in
`WITHOUT_EFFECT` are Kafka's; they are accepted so that option files can be shared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from chaffinch.client import options as client_options
from chaffinch.client.option_hints import CONSUMER_OPTION_NAMES, JAVA_ONLY_OPTIONS, PRODUCER_OPTION_NAMES
from chaffinch.client.options import ConnectionSettings, connection_options, reconnect_backoff, retry_backoff
from chaffinch.client.sync_client import SyncClient
from chaffinch.settings import INT_MAX, Option, OptionTable, Settings

CLIENT_OPTIONS: Final = (
    *connection_options("chaffinch-admin"),
    Option("default.api.timeout.ms", "int", 15_000, "time limit of one operation with all its attempts", minimum=1, maximum=INT_MAX),
)
READING_OPTIONS: Final = (
    Option(
        "isolation.level",
        "string",
        "read_committed",
        "`read_committed` skips records of open and aborted transactions, `read_uncommitted` reads all records",
        choices=("read_committed", "read_uncommitted"),
    ),
    Option("fetch.max.bytes", "int", 50 << 20, "bytes of one response", minimum=1),
    Option("fetch.max.wait.ms", "int", 500, "how long a broker may wait for records", minimum=0),
    Option("max.partition.fetch.bytes", "int", 4 << 20, "bytes per partition in one response", minimum=1),
    Option("check.crcs", "bool", True, "verify the checksum of every batch"),
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

_HINTS: Final = {
    **dict.fromkeys(CONSUMER_OPTION_NAMES, "it is an option of consumers, remove it here"),
    **dict.fromkeys(PRODUCER_OPTION_NAMES, "it is an option of producers, remove it here"),
    **JAVA_ONLY_OPTIONS,
}
ADMIN_TABLE: Final = OptionTable(CLIENT_OPTIONS, WITHOUT_EFFECT, hints=_HINTS)
READING_TABLE: Final = OptionTable((*CLIENT_OPTIONS, *READING_OPTIONS), WITHOUT_EFFECT | READING_WITHOUT_EFFECT, hints=_HINTS)


def open_client(settings: Settings, on_wait: Callable[[str], None] | None = None) -> SyncClient:
    """Make a client from parsed settings of one of the tables. No request is sent yet.

    Args:
        settings: result of `ADMIN_TABLE.parse` or `READING_TABLE.parse`.
        on_wait: called with one line about each long wait, see `SyncClient`.

    Raises:
        ConfigException: contradictory security options, or a certificate file that cannot be read.
    """
    return SyncClient(
        settings["bootstrap.servers"],
        timeout_ms=settings["default.api.timeout.ms"],
        connections=ConnectionSettings.of(settings),
        retry_backoff=retry_backoff(settings),
        reconnect_backoff=reconnect_backoff(settings),
        on_wait=on_wait,
    )


def connect(options: Mapping[str, Any] | None = None, **keywords: Any) -> SyncClient:
    """Make a client for the functions of this package. Close it, or use it in a `with` statement.

    Args:
        options: options of `ADMIN_TABLE` by dotted name; `bootstrap.servers` is required.
        **keywords: the same options, with underscores instead of dots.

    Returns:
        The client. No request is sent yet.

    Raises:
        ConfigException: an option is unknown or invalid; the message lists all errors.
    """
    return open_client(ADMIN_TABLE.parse(options, **keywords))
