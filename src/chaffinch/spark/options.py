"""Options that sink and source share: parsing, connection options, and names of the other side.

Spark lower-cases option names before it passes them to a data source, so names are matched case-insensitively. Options `kafka.*` are
those of the Kafka client. The tables are in `sink/option_tables.py` and `source/options.py`; their documentation is generated from them.
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

# Spark adds these itself: they describe the query and have no effect here.
SPARK_OPTION_NAMES: Final = ("checkpointLocation", "queryName")

INCLUDE_HEADERS: Final = Option("includeHeaders", "bool", False, "add the column `headers`")
"""An option of the source. The sink writes headers if the column exists."""

# Options of only one side. The other side rejects them with a hint, because users often pass one mapping to both. Sink and source do not
# import each other, so the names that are not Kafka's are listed here; a test compares them with both tables.
SINK_OPTION_NAMES: Final = (
    "deliveryGuarantee", "stagingLocation", "errors.tolerance", "errors.tolerance.max", "errors.column",
    "errors.dead.letter.queue.topic.name", "errors.dead.letter.path", "idempotencyToken", "onMissingMarker", "markerTopic",
    *(f"kafka.{name}" for name in sorted(PRODUCER_OPTION_NAMES)),
)  # fmt: skip
SOURCE_OPTION_NAMES: Final = (
    "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy", "endingOffsets",
    "endingTimestamp", "endingOffsetsByTimestamp", "minPartitions", "maxRecordsPerPartition", "failOnDataLoss", "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger", "maxTriggerDelay", "groupIdPrefix", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs",
    "kafkaConsumer.pollTimeoutMs", *(f"kafka.{name}" for name in sorted(CONSUMER_OPTION_NAMES)),
)  # fmt: skip

# Texts about options that this process has logged: options are parsed again for each micro-batch.
_logged: set[str] = set()
KAFKA_PREFIX: Final = "kafka."
"""Prefix of the options of the Kafka client."""
_JAVA: Final = "of Java clients"
# Options without effect whose values are checked, so that a typing error is reported.
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
    """Options of a client's table with the prefix `kafka.`: those with these names, or all."""
    return tuple(replace(option, name=KAFKA_PREFIX + option.name) for option in options if not names or option.name in names)


CLIENT_OPTIONS: Final = kafka_options(connection_options("chaffinch-spark"))
JAVA_WITHOUT_EFFECT: Final[tuple[str | Option, ...]] = (
    *(KAFKA_PREFIX + name for name in sorted(WITHOUT_EFFECT)),
    *kafka_options(_CHECKED_IDLE),
)
# A client that waits for each response requests metadata when needed, from every known or configured broker.
CLIENT_WITHOUT_EFFECT: Final = (*JAVA_WITHOUT_EFFECT, *kafka_options(METADATA_OPTIONS))


# Longest first, so that no name matches inside another. A name without a dot only counts after the word "option".
_NAMES: Final = sorted({option.name for option in (*connection_options(""), *PRODUCER_OPTIONS)}, key=len, reverse=True)
_DOTTED, _PLAIN = ("|".join(re.escape(name) for name in _NAMES if ("." in name) is has_dot) for has_dot in (True, False))
_CLIENT_OPTION_NAMES: Final = re.compile(rf"(?<![\w./'-])(?:{_DOTTED})(?![\w-]|\.\w)|(?<=option )(?:{_PLAIN})\b")


@contextmanager
def with_spark_names() -> Iterator[None]:
    """Rewrite option names in ConfigExceptions of a client with the prefix `kafka.`, as the user typed them."""
    try:
        yield
    except ConfigException as error:
        raise ConfigException(_CLIENT_OPTION_NAMES.sub(rf"{KAFKA_PREFIX}\g<0>", str(error))) from error


_NO_OPTIONS: Final = (
    "option kafka.bootstrap.servers is missing: no option was given at all; Spark does not pass on those of CREATE TABLE and saveAsTable; "
    "use CREATE TEMPORARY VIEW, or WITH (`name` 'value') after the name of a table"
)


def parse(table: OptionTable, options: Mapping[str, str]) -> Settings:
    """Parse options as Spark passes them, in any case. Logs options without effect.

    Raises ConfigException; for an unknown option it names the most similar one.
    """
    if not options:
        raise ConfigException(_NO_OPTIONS)
    _refuse_duplicates(options)
    proper_names = {name.lower(): name for name in (*(option.name for option in table.options), *table.without_effect, *table.hinted)}
    settings = table.parse({proper_names.get(name.lower(), name): value for name, value in options.items()})
    if idle := sorted(set(settings.ignored) - set(SPARK_OPTION_NAMES)):
        log_without_effect("here", idle)
    return settings


def hints(names: Iterable[str], side: str, known: Iterable[str]) -> dict[str, str]:
    """Hints for those of the names that are not `known` here. `side`: the side that they belong to."""
    other_side = "source" if side == "sink" else "sink"
    return dict.fromkeys(set(names) - set(known), f"it is an option of the {side}; remove it from the {other_side}")


def _refuse_duplicates(options: Iterable[str]) -> None:
    """Raises ConfigException for an option that is given in lower and upper case; Spark itself would use the last."""
    seen: dict[str, str] = {}
    for name in options:
        if (first := seen.setdefault(name.lower(), name)) != name:
            raise ConfigException(f"option {first} is given twice, as {first!r} and as {name!r}: give it once")


def log_without_effect(where: str, names: Iterable[str]) -> None:
    """Log options without effect, once per process."""
    log_once(f"options without effect {where}: {', '.join(names)}")


def log_once(text: str) -> None:
    """Log a warning once per process: Spark creates several readers and writers for a query."""
    if text not in _logged:
        _logged.add(text)
        _log.warning("%s", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Connection settings of a cluster. Hashable: connections are cached per value."""

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
