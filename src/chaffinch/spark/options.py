"""What the options of the sink and of the source share: how they are found, and what it takes to reach a cluster.

Spark lower-cases option names before a data source sees them, so names are found without regard to case. `kafka.*` is what
the Kafka client takes, under Kafka's names. The tables are in `sink/option_tables.py` and `source/options.py`; their
documentation is printed from them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, Self

from chaffinch import plain_text
from chaffinch.client.backoff import Backoff
from chaffinch.client.option_hints import CONSUMER_OPTION_NAMES, PRODUCER_OPTION_NAMES
from chaffinch.client.options import (
    METADATA_OPTIONS,
    WITHOUT_EFFECT,
    ConnectionSettings,
    connection_options,
    reconnect_backoff,
    retry_backoff,
)
from chaffinch.errors import ConfigException
from chaffinch.producer.core.options import OPTIONS as PRODUCER_OPTIONS
from chaffinch.settings import Option, OptionTable, Settings

_log = plain_text.logger(__name__)

# Spark adds these itself; they say where the query lives, and are no options of ours.
SPARK_OPTION_NAMES: Final = ("checkpointLocation", "queryName")

INCLUDE_HEADERS: Final = Option("includeHeaders", "bool", False, "add the column `headers`")
"""Of the source; a sink writes headers where there is the column."""

# Names of options that only one side of the format takes, for the other side to refuse them in words: both are often given one mapping.
# Sink and source do not import each other, so the names that are not Kafka's are listed here; a test compares them with both tables.
SINK_OPTION_NAMES: Final = (
    "deliveryGuarantee", "stagingLocation", "errors.tolerance", "errors.tolerance.max", "errors.dead.letter.queue.topic.name",
    "errors.dead.letter.path", "idempotencyToken", "onMissingMarker", "markerTopic",
    *(f"kafka.{name}" for name in sorted(PRODUCER_OPTION_NAMES)),
)  # fmt: skip
SOURCE_OPTION_NAMES: Final = (
    "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy", "endingOffsets",
    "endingTimestamp", "endingOffsetsByTimestamp", "minPartitions", "maxRecordsPerPartition", "failOnDataLoss", "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger", "maxTriggerDelay", "groupIdPrefix", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs",
    "kafkaConsumer.pollTimeoutMs", *(f"kafka.{name}" for name in sorted(CONSUMER_OPTION_NAMES)),
)  # fmt: skip

# What this process has said of options: they are read anew for each micro-batch.
_logged: set[str] = set()
KAFKA_PREFIX: Final = "kafka."
"""In front of what the Kafka client takes."""
_JAVA: Final = "of Java clients"
# Of what has no effect, that which may have a wrong value: whoever has mistyped it shall know.
_CHECKED_IDLE: Final = (
    Option("auto.include.jmx.reporter", "bool", True, _JAVA),
    Option("client.dns.lookup", "string", "use_all_dns_ips", _JAVA,
           choices=("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only")),
    Option("enable.metrics.push", "bool", True, _JAVA),
    Option("metrics.num.samples", "int", 2, _JAVA, minimum=1),
    Option("metrics.recording.level", "string", "INFO", _JAVA, choices=("INFO", "DEBUG", "TRACE")),
    Option("metrics.sample.window.ms", "int", 30_000, _JAVA, minimum=0),
)  # fmt: skip


def kafka_options(options: Iterable[Option], *names: str) -> tuple[Option, ...]:
    """Rows of a client's table, those of these names or all, under the names that Spark's users type."""
    return tuple(replace(option, name=KAFKA_PREFIX + option.name) for option in options if not names or option.name in names)


CLIENT_OPTIONS: Final = kafka_options(connection_options("chaffinch-spark"))
JAVA_WITHOUT_EFFECT: Final[tuple[str | Option, ...]] = (
    *(KAFKA_PREFIX + name for name in sorted(WITHOUT_EFFECT)),
    *kafka_options(_CHECKED_IDLE),
)
# A client that waits for each answer asks for metadata when it needs some, of every broker that it knows or was given.
CLIENT_WITHOUT_EFFECT: Final = (*JAVA_WITHOUT_EFFECT, *kafka_options(METADATA_OPTIONS))


# The longest first, so that none is found in another; a name without a dot is an English word elsewhere.
_NAMES: Final = sorted({option.name for option in (*connection_options(""), *PRODUCER_OPTIONS)}, key=len, reverse=True)
_DOTTED, _PLAIN = ("|".join(re.escape(name) for name in _NAMES if ("." in name) is has_dot) for has_dot in (True, False))
_CLIENT_OPTION_NAMES: Final = re.compile(rf"(?<![\w./'-])(?:{_DOTTED})(?![\w-]|\.\w)|(?<=option )(?:{_PLAIN})\b")


@contextmanager
def with_spark_names() -> Iterator[None]:
    """What a client refuses under Kafka's names is said under those of Spark's options: who typed `kafka.acks` reads `kafka.acks`."""
    try:
        yield
    except ConfigException as error:
        raise ConfigException(_CLIENT_OPTION_NAMES.sub(rf"{KAFKA_PREFIX}\g<0>", str(error))) from error


_NO_OPTIONS: Final = (
    "option kafka.bootstrap.servers is missing: no option was given at all; Spark keeps to itself those of CREATE TABLE and saveAsTable, "
    "CREATE TEMPORARY VIEW hands them on, and so does WITH (`name` 'value') behind the name of a table"
)


def parse(table: OptionTable, options: Mapping[str, str]) -> Settings:
    """Options as Spark hands them over, in any case. ConfigException names an unknown one's nearest; those without effect are logged."""
    if not options:
        raise ConfigException(_NO_OPTIONS)
    _refuse_duplicates(options)
    proper_names = {name.lower(): name for name in (*(option.name for option in table.options), *table.without_effect, *table.hinted)}
    settings = table.parse({proper_names.get(name.lower(), name): value for name, value in options.items()})
    if idle := sorted(set(settings.ignored) - set(SPARK_OPTION_NAMES)):
        log_without_effect("here", idle)
    return settings


def hints(names: Iterable[str], side: str, known: Iterable[str]) -> dict[str, str]:
    """The advice for each of these names that is not `known` here. `side`: where it belongs."""
    other_side = "source" if side == "sink" else "sink"
    return dict.fromkeys(set(names) - set(known), f"it is an option of the {side}; leave it out of the {other_side}'s")


def _refuse_duplicates(options: Iterable[str]) -> None:
    """One that stands in a mapping in two cases; Spark itself would take the last."""
    seen: dict[str, str] = {}
    for name in options:
        if (first := seen.setdefault(name.lower(), name)) != name:
            raise ConfigException(f"option {first} is given twice, as {first!r} and as {name!r}: give it once")


def log_without_effect(where: str, names: Iterable[str]) -> None:
    """Says it once per process in the log."""
    log_once(f"options without effect {where}: {', '.join(names)}")


def log_once(text: str) -> None:
    """In the log of this process; Spark makes a reader or writer more than once for a query."""
    if text not in _logged:
        _logged.add(text)
        _log.warning("%s", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """What it takes to reach a cluster. Hashable: connections are kept per value of this."""

    bootstrap_servers: tuple[str, ...]
    connections: ConnectionSettings
    retry_backoff: Backoff
    reconnect_backoff: Backoff

    @classmethod
    def of(cls, settings: Settings) -> Self:
        kafka = {name.removeprefix(KAFKA_PREFIX): value for name, value in settings.items() if name.startswith(KAFKA_PREFIX)}
        with with_spark_names():
            connections = ConnectionSettings.of(kafka)
        return cls(
            bootstrap_servers=kafka["bootstrap.servers"],
            connections=connections,
            retry_backoff=retry_backoff(kafka),
            reconnect_backoff=reconnect_backoff(kafka),
        )
