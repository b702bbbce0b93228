"""The options of the source: their table, what of it is fixed per query, and the checks that need no broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from chaffinch.errors import ConfigException
from chaffinch.identifiers import OFFSET_EARLIEST, OFFSET_LATEST, TopicPartition
from chaffinch.settings import Option, OptionTable
from chaffinch.spark.options import CLIENT, CLIENT_WITHOUT_EFFECT, OF_SPARK, ClientOptions, parse
from chaffinch.spark.topic_offsets import OffsetChoice, parse_assignment, parse_offsets

SOURCE: Final = OptionTable(
    (
        *CLIENT,
        Option("subscribe", "list", None, "topics to read, separated by commas"),
        Option("assign", "string", None, 'partitions to read, as JSON: {"orders":[0,1]}'),
        Option("startingOffsets", "string", "earliest", 'earliest, or JSON: {"orders":{"0":23,"1":-2}}; -2 is earliest, -1 latest'),
        Option("endingOffsets", "string", "latest", "latest, or JSON as for startingOffsets"),
        Option("failOnDataLoss", "bool", True, "fail when offsets asked for are gone from the topic"),
        Option("includeHeaders", "bool", False, "add the column `headers`"),
        Option("kafka.isolation.level", "string", "read_committed", "leave out what transactions have not committed, or read everything",
               choices=("read_committed", "read_uncommitted")),
        Option("kafka.fetch.max.bytes", "int", 52_428_800, "bytes of one answer of a broker", minimum=1),
        Option("kafka.max.partition.fetch.bytes", "int", 16 << 20, "bytes per partition in one answer", minimum=1),
        Option("kafka.default.api.timeout.ms", "int", 60_000, "how long each partition is asked for offsets and records", minimum=1),
    ),
    without_effect=(
        *OF_SPARK, *CLIENT_WITHOUT_EFFECT, "groupIdPrefix", "kafka.group.id", "kafka.fetch.min.bytes", "kafka.fetch.max.wait.ms",
        "kafka.max.poll.records", "kafka.check.crcs",
    ),
    hints={"path": "load() takes no path here; topics are named by one of subscribe, subscribePattern and assign"},
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """All that a query's options say about reading. Exactly one of `topics` and `assignment` has something in it."""

    client: ClientOptions
    topics: tuple[str, ...]
    assignment: tuple[TopicPartition, ...]
    starting: OffsetChoice
    ending: OffsetChoice
    fail_on_data_loss: bool
    include_headers: bool
    isolation_level: str
    fetch_bytes_max: int
    partition_bytes_max: int
    timeout_ms: int

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Errors: ConfigException for everything that can be told without a broker."""
        settings = parse(SOURCE, options)
        given = [name for name in ("subscribe", "assign") if settings[name]]
        if len(given) != 1:
            found = "both are given" if given else "neither is given"
            raise ConfigException(f"what to read is said by one of subscribe and assign, {found}")
        return cls(
            client=ClientOptions.of(settings),
            topics=tuple(settings["subscribe"] or ()),
            assignment=parse_assignment("assign", settings["assign"]) if settings["assign"] else (),
            starting=parse_offsets("startingOffsets", settings["startingOffsets"], sentinel=OFFSET_EARLIEST),
            ending=parse_offsets("endingOffsets", settings["endingOffsets"], sentinel=OFFSET_LATEST),
            fail_on_data_loss=settings["failOnDataLoss"],
            include_headers=settings["includeHeaders"],
            isolation_level=settings["kafka.isolation.level"],
            fetch_bytes_max=settings["kafka.fetch.max.bytes"],
            partition_bytes_max=settings["kafka.max.partition.fetch.bytes"],
            timeout_ms=settings["kafka.default.api.timeout.ms"],
        )
