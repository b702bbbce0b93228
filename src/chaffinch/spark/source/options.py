"""Options of the source: tables, parsed form, and checks that need no broker.

Names, defaults and precedence are those of Spark's Kafka source (KafkaSourceProvider.scala), except `read_committed`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Self

from chaffinch.client.option_hints import JAVA_ONLY_OPTIONS
from chaffinch.client.options import WITHOUT_EFFECT as OF_CLIENTS_WITHOUT_EFFECT
from chaffinch.consumer.core.options import OPTIONS as CONSUMER_OPTIONS
from chaffinch.consumer.core.options import WITHOUT_EFFECT as OF_CONSUMERS_WITHOUT_EFFECT
from chaffinch.errors import ConfigException
from chaffinch.identifiers import OFFSET_EARLIEST, OFFSET_LATEST, TopicPartition
from chaffinch.settings import INT_MAX, Option, OptionTable, Settings, shown_value
from chaffinch.spark.options import (
    CLIENT_OPTIONS,
    CLIENT_WITHOUT_EFFECT,
    INCLUDE_HEADERS,
    SINK_OPTION_NAMES,
    SPARK_OPTION_NAMES,
    ClientOptions,
    hints,
    kafka_options,
    log_once,
    log_without_effect,
    parse,
)
from chaffinch.spark.source.topic_offsets import OffsetChoice, parse_assignment, parse_offsets, parse_times

_COMMON_OPTIONS: Final = (
    *CLIENT_OPTIONS,
    Option("subscribe", "list", None, "topics to read, separated by commas"),
    Option("subscribePattern", "string", None,
           "topics to read: a regular expression for whole names; Kafka's internal topics are never read"),
    Option("assign", "string", None, 'partitions to read, as JSON: {"orders":[0,1]}'),
    Option("startingOffsetsByTimestamp", "string", None,
           'where to start, as JSON: {"orders":{"0":1700000000000}}: each partition at its first record of that time (ms since 1970) or '
           "later; overrides startingOffsets"),
    Option("startingTimestamp", "int", None,
           "the same for all partitions; overrides startingOffsetsByTimestamp and startingOffsets", minimum=0),
    Option("startingOffsetsByTimestampStrategy", "string", "error",
           "if there is no record of the starting time or later: fail, or start with the latest offset",
           choices=("error", "latest"), synonyms=(("ERROR", "error"), ("LATEST", "latest"))),
    Option("minPartitions", "int", None, "minimum number of tasks of a read; default: one task per topic partition",
           minimum=1, maximum=1_000_000),
    Option("maxRecordsPerPartition", "int", None, "maximum number of offsets that a task reads", minimum=1),
    Option("failOnDataLoss", "bool", True,
           "fail if offsets to be read, or their topic, were deleted; otherwise they are skipped and logged"),
    INCLUDE_HEADERS,
    Option("kafka.isolation.level", "string", "read_committed",
           "leave out records of transactions that are not committed, or read all records", choices=("read_committed", "read_uncommitted")),
    Option("kafka.fetch.max.bytes", "int", 52_428_800, "bytes of one response of a broker", minimum=1, maximum=INT_MAX),
    Option("kafka.max.partition.fetch.bytes", "int", 16 << 20, "bytes per partition in one response", minimum=1, maximum=INT_MAX),
    Option("kafka.default.api.timeout.ms", "int", 60_000,
           "timeout of requests for offsets and, without progress, for records", minimum=1),
)  # fmt: skip
_STREAM_OPTIONS: Final = (
    Option("maxOffsetsPerTrigger", "int", None,
           "offsets per micro-batch, shared by partitions in proportion to their backlog, at least one each; needs PySpark 4.2", minimum=1),
    Option("minOffsetsPerTrigger", "int", None,
           "wait until there are this many new offsets, or maxTriggerDelay is over; needs PySpark 4.2", minimum=1),
    Option("maxTriggerDelay", "string", "15m",
           "longest wait for minOffsetsPerTrigger: a number and ms, s, m (min), h or d; without a unit, ms"),
)  # fmt: skip
_WITHOUT_EFFECT: Final = (
    *SPARK_OPTION_NAMES, *CLIENT_WITHOUT_EFFECT, "groupIdPrefix",
    *(Option(name, "int", None, "of the Kafka source of Spark", minimum=0)
      for name in ("fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "kafkaConsumer.pollTimeoutMs")),
    # Options of the consumer group in Spark's built-in source.
    *kafka_options(
        CONSUMER_OPTIONS, "group.id", "group.instance.id", "group.protocol", "partition.assignment.strategy", "session.timeout.ms",
              "heartbeat.interval.ms", "max.poll.interval.ms", "max.poll.records", "auto.commit.interval.ms", "fetch.min.bytes",
              "fetch.max.wait.ms", "check.crcs", "client.rack", "allow.auto.create.topics", "exclude.internal.topics"),
    *(f"kafka.{name}" for name in sorted(OF_CONSUMERS_WITHOUT_EFFECT - {"interceptor.classes"} - OF_CLIENTS_WITHOUT_EFFECT)),
)  # fmt: skip
_DESERIALIZER_HINT: Final = "keys and values are read as binary; cast them in Spark"
_HINTS: Final = {
    **{f"kafka.{name}": hint for name, hint in JAVA_ONLY_OPTIONS.items()},
    "path": "load() takes no path here; name topics with one of subscribe, subscribePattern and assign",
    "kafka.auto.offset.reset": "set the start with startingOffsets",
    "kafka.auto.offset.reset.new.partitions": "partitions that are created while a query runs are read from their first record",
    "kafka.key.deserializer": _DESERIALIZER_HINT,
    "kafka.value.deserializer": _DESERIALIZER_HINT,
    "kafka.enable.auto.commit": "Spark's checkpoint stores the offsets, nothing is committed to Kafka",
    "kafka.interceptor.classes": "interceptors are not supported",
    "topic": "it is an option of the sink; name the topics to read with one of subscribe, subscribePattern and assign",
}
# Options of batches or streams, including those without effect.
_KNOWN_NAMES: Final = tuple(each if isinstance(each, str) else each.name for each in (*_COMMON_OPTIONS, *_STREAM_OPTIONS, *_WITHOUT_EFFECT))
_END_OPTIONS: Final = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")

SOURCE: Final = OptionTable(
    (
        *_COMMON_OPTIONS,
        Option("startingOffsets", "string", "earliest", 'earliest, or JSON: {"orders":{"0":23,"1":-2}}; -2 is earliest'),
        Option("endingOffsets", "string", "latest", 'latest, or JSON: {"orders":{"0":50,"1":-1}}; -1 is latest'),
        Option("endingOffsetsByTimestamp", "string", None,
               "where to end, in the form of startingOffsetsByTimestamp; latest if there is no such record; overrides endingOffsets"),
        Option("endingTimestamp", "int", None,
               "the same for all partitions; overrides endingOffsetsByTimestamp and endingOffsets", minimum=0),
    ),
    without_effect=(*_WITHOUT_EFFECT, *_STREAM_OPTIONS),
    hints={**hints(SINK_OPTION_NAMES, "sink", _KNOWN_NAMES), **_HINTS},
)  # fmt: skip
STREAM_SOURCE: Final = OptionTable(
    (
        *_COMMON_OPTIONS,
        Option("startingOffsets", "string", "latest",
               'of a query without checkpoint: latest, earliest, or JSON: {"orders":{"0":23,"1":-2}}; -2 is earliest, -1 latest. '
               "Partitions found later start with the earliest"),
        *_STREAM_OPTIONS,
    ),
    without_effect=_WITHOUT_EFFECT,
    hints={
        **hints(SINK_OPTION_NAMES, "sink", _KNOWN_NAMES),
        **_HINTS,
        **dict.fromkeys(_END_OPTIONS, "a stream has no end; trigger(availableNow=True) ends a query at the current ends"),
    },
)  # fmt: skip

_DOUBTFUL_MS: Final = range(100_000_000, 100_000_000_000)
"""Milliseconds in the years 1970 to 1973; as seconds they are in 1973 to 5138."""
_SUFFIXES_MS: Final = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Parsed options of the source. Exactly one of `topics`, `pattern` and `assignment` is not empty."""

    client: ClientOptions
    topics: tuple[str, ...]
    pattern: str | None
    assignment: tuple[TopicPartition, ...]
    starting: OffsetChoice
    ending: OffsetChoice
    starts_with_latest: bool
    """Start with the latest offset if there is no record of the starting time or later; otherwise that is an error."""
    fail_on_data_loss: bool
    include_headers: bool
    isolation_level: str
    fetch_bytes_max: int
    partition_bytes_max: int
    timeout_ms: int
    parts_min: int
    part_offsets_max: int | None
    trigger_offsets_max: int | None
    trigger_offsets_min: int | None
    trigger_delay_max_ms: int

    @property
    def start_changes_on_restart(self) -> bool:
        """Whether the start depends on when the query starts, as `latest` does."""
        if self.starting.is_time:
            return self.starts_with_latest
        return OFFSET_LATEST in (self.starting.everywhere, *(position for _, position in self.starting.by_partition))

    @classmethod
    def parse(cls, options: Mapping[str, str], *, is_stream: bool = False) -> Self:
        """Parse and check the options. Raises ConfigException for all errors that can be found without a broker."""
        settings = parse(STREAM_SOURCE if is_stream else SOURCE, options)
        _check_choice(settings)
        largest, least = settings.get("maxOffsetsPerTrigger"), settings.get("minOffsetsPerTrigger")
        if largest is not None and least is not None and least > largest:
            raise ConfigException(f"minOffsetsPerTrigger={least} is more than maxOffsetsPerTrigger={largest}: it must not be larger")
        _log_options_without_effect(settings)
        starting = _offset_choice(settings, "starting", (OFFSET_LATEST, OFFSET_EARLIEST) if is_stream else (OFFSET_EARLIEST,))
        ending = OffsetChoice(option="", everywhere=OFFSET_LATEST) if is_stream else _offset_choice(settings, "ending", (OFFSET_LATEST,))
        _warn_of_seconds(starting, ending)
        return cls(
            client=ClientOptions.of(settings),
            topics=tuple(settings["subscribe"] or ()),
            pattern=settings["subscribePattern"],
            assignment=parse_assignment("assign", settings["assign"]) if settings["assign"] else (),
            starting=starting,
            ending=ending,
            starts_with_latest=settings["startingOffsetsByTimestampStrategy"] == "latest",
            fail_on_data_loss=settings["failOnDataLoss"],
            include_headers=settings["includeHeaders"],
            isolation_level=settings["kafka.isolation.level"],
            fetch_bytes_max=settings["kafka.fetch.max.bytes"],
            partition_bytes_max=settings["kafka.max.partition.fetch.bytes"],
            timeout_ms=settings["kafka.default.api.timeout.ms"],
            parts_min=settings["minPartitions"] or 1,
            part_offsets_max=settings["maxRecordsPerPartition"],
            trigger_offsets_max=largest,
            trigger_offsets_min=least,
            trigger_delay_max_ms=_delay_ms(settings),
        )


def includes_headers(options: Mapping[str, str]) -> bool:
    """The option includeHeaders alone: Spark requests the schema before it is known whether a batch or a stream is read."""
    given = [value for name, value in options.items() if name.lower() == INCLUDE_HEADERS.name.lower()]
    return bool(INCLUDE_HEADERS.parse(given[-1])) if given else False


def _check_choice(settings: Settings) -> None:
    names = ("subscribe", "subscribePattern", "assign")
    given = [name for name in names if settings[name]]
    if len(given) != 1:
        empty = [name for name in names if settings[name] is not None]
        found = f"{' and '.join(given)} are given" if given else f"{empty[0]} is empty" if empty else "none is given"
        raise ConfigException(f"give exactly one of subscribe, subscribePattern and assign: {found}")
    if (pattern := settings["subscribePattern"]) is not None:
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise ConfigException(f"subscribePattern cannot be {shown_value(pattern)}: it is not a regular expression: {error}") from None


_NEEDED_BY: Final = {
    "startingOffsetsByTimestampStrategy": ("startingTimestamp", "startingOffsetsByTimestamp"),
    "maxTriggerDelay": ("minOffsetsPerTrigger",),
}
"""Options that only apply together with one of the others."""


def _log_options_without_effect(settings: Settings) -> None:
    for name, others in _NEEDED_BY.items():
        if name in settings.given and all(settings.get(other) is None for other in others):
            log_without_effect(f"without {' or '.join(others)}", [name])


def _warn_of_seconds(*choices: OffsetChoice) -> None:
    """Warn about times that look like seconds: they are allowed, but rarely intended."""
    for choice in choices:
        times = (choice.everywhere, *(position for _, position in choice.by_partition)) if choice.is_time else ()
        if doubtful := [time_ms for time_ms in times if time_ms is not None and time_ms in _DOUBTFUL_MS]:
            day = datetime.fromtimestamp(doubtful[0] / 1000, UTC).date()
            log_once(f"{choice.option}={doubtful[0]} is in {day}: times are milliseconds since 1970, and this one looks like seconds")


def _offset_choice(settings: Settings, side: str, words: tuple[int, ...]) -> OffsetChoice:
    """The start or end: a time for all partitions, or else a time per partition, or else offsets."""
    if (time_ms := settings[f"{side}Timestamp"]) is not None:
        return OffsetChoice(option=f"{side}Timestamp", everywhere=time_ms, is_time=True)
    if (text := settings[f"{side}OffsetsByTimestamp"]) is not None:
        return parse_times(f"{side}OffsetsByTimestamp", text)
    return parse_offsets(f"{side}Offsets", settings[f"{side}Offsets"], words=words)


def _delay_ms(settings: Settings) -> int:
    """The option maxTriggerDelay in ms. It is also checked if it has no effect."""
    option = "maxTriggerDelay"
    text = settings.get(option) or settings.ignored.get(option, "0")
    found = re.fullmatch(r"(\d{1,15})\s*([a-z]*)", text.strip().lower(), re.ASCII)
    if found is None or found[2] not in _SUFFIXES_MS:
        allowed = f"a number and one of {', '.join(filter(None, _SUFFIXES_MS))}"
        raise ConfigException(f"option {option} cannot be {shown_value(text)}: it must be {allowed}")
    return int(found[1]) * _SUFFIXES_MS[found[2]]
