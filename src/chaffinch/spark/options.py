"""The options of the Spark format: two tables, what of them is fixed per query, and the checks that need no broker.

Spark lower-cases option names before a data source sees them, so names are found without regard to case. `kafka.*` is what
the Kafka client takes, under Kafka's names. A table's documentation is printed from it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from chaffinch.client.backoff import Backoff
from chaffinch.client.options import (
    METADATA_OPTIONS,
    WITHOUT_EFFECT,
    ConnectionSettings,
    connection_options,
    reconnect_backoff,
    retry_backoff,
)
from chaffinch.errors import ConfigException
from chaffinch.identifiers import OFFSET_EARLIEST, OFFSET_LATEST, TopicPartition
from chaffinch.settings import Option, OptionTable, Settings
from chaffinch.spark.tolerance import Tolerance
from chaffinch.spark.topic_offsets import OffsetChoice, parse_assignment, parse_offsets

_log = logging.getLogger(__name__)

# Spark adds these itself; they say where the query lives, and are no options of ours.
_OF_SPARK: Final = ("checkpointLocation", "queryName", "path")
BATCH_SIZE_DEFAULT: Final = 1_000_000

_KAFKA: Final = "kafka."
_CLIENT: Final = tuple(replace(option, name=_KAFKA + option.name) for option in connection_options("chaffinch-spark"))
# A client that waits for each answer asks for metadata when it needs some, of every broker that it knows or was given.
_CLIENT_WITHOUT_EFFECT: Final = tuple(_KAFKA + name for name in sorted({option.name for option in METADATA_OPTIONS} | WITHOUT_EFFECT))
SINK: Final = OptionTable(
    (
        *_CLIENT,
        Option("topic", "string", None, "the target topic; without it every row names its own in a column `topic`"),
        Option("deliveryGuarantee", "string", "exactly-once", "one Kafka transaction per micro-batch", choices=("exactly-once",)),
        Option("idempotencyToken", "string", None, "batch writes: the same token is written once"),
        Option("stagingLocation", "string", None, "where tasks leave more than 1 MiB; default: `chaffinch/staging` in the checkpoint"),
        Option("errors.tolerance", "string", "none", "`none`: a bad row fails the batch; `all`: it becomes a dead letter",
               choices=("none", "all")),
        Option("errors.tolerance.max", "string", None, "count (`100`) or share (`5%`) of bad rows above which the batch fails anyway"),
        Option("errors.dead.letter.queue.topic.name", "string", None, "topic for dead letters, written in the same transaction"),
        Option("errors.dead.letter.path", "string", None, "folder or URI for dead letters as Parquet, one file per batch"),
        Option("onMissingMarker", "string", "fail", "what to do when a batch that is not the first finds no marker",
               choices=("fail", "write")),
        Option("markerTopic", "string", None, "existing topic whose partition 0 carries the marker; default: the `topic` option"),
        Option("kafka.compression.type", "string", "none", "codec of the batches", choices=("none", "gzip", "snappy", "lz4", "zstd")),
        Option("kafka.compression.level", "int", None, "the codec's level; default: its own"),
        Option("kafka.batch.size", "int", BATCH_SIZE_DEFAULT, "bytes of a record batch before compression; max.message.bytes limits it too",
               minimum=1),
        Option("kafka.max.block.ms", "int", 60_000, "how long each step of a commit is asked again", minimum=1),
        Option("kafka.transactional.id", "string", None, "default: `chaffinch-` and the query's id; fixed in the checkpoint"),
        Option("kafka.transaction.timeout.ms", "int", None, "default: from the staged size, at least one minute", minimum=1),
        Option("kafka.acks", "string", "all", "a transaction waits for all in-sync replicas", choices=("all", "-1")),
        Option("kafka.enable.idempotence", "bool", True, "a transaction is idempotent"),
    ),
    without_effect=(
        *_OF_SPARK, *_CLIENT_WITHOUT_EFFECT, "includeHeaders", "kafka.linger.ms", "kafka.buffer.memory", "kafka.retries",
        "kafka.delivery.timeout.ms", "kafka.max.in.flight.requests.per.connection", "kafka.max.request.size", "kafka.partitioner.class",
    ),
)  # fmt: skip
SOURCE: Final = OptionTable(
    (
        *_CLIENT,
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
        *_OF_SPARK, *_CLIENT_WITHOUT_EFFECT, "groupIdPrefix", "kafka.group.id", "kafka.fetch.min.bytes", "kafka.fetch.max.wait.ms",
        "kafka.max.poll.records", "kafka.check.crcs",
    ),
)  # fmt: skip


def parse(table: OptionTable, options: Mapping[str, str]) -> Settings:
    """Options as Spark hands them over, in any case. ConfigException names an unknown one's nearest; those without effect are logged."""
    spelled = {name.lower(): name for name in (*(option.name for option in table.options), *table.without_effect)}
    settings = table.parse({spelled.get(name.lower(), name): value for name, value in options.items()})
    if idle := sorted(set(settings.ignored) - set(_OF_SPARK)):
        _log.warning("options without effect here: %s", ", ".join(idle))
    return settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """What it takes to reach a cluster. Hashable: connections are kept per value of this."""

    bootstrap_servers: tuple[str, ...]
    connections: ConnectionSettings
    retry_backoff: Backoff
    reconnect_backoff: Backoff

    @classmethod
    def of(cls, settings: Settings) -> Self:
        kafka = {name.removeprefix(_KAFKA): value for name, value in settings.items() if name.startswith(_KAFKA)}
        return cls(
            bootstrap_servers=kafka["bootstrap.servers"],
            connections=ConnectionSettings.of(kafka),
            retry_backoff=retry_backoff(kafka),
            reconnect_backoff=reconnect_backoff(kafka),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """All that a query's options say about writing; travels to the tasks."""

    client: ClientOptions
    topic: str | None
    marker_topic: str
    idempotency_token: str | None
    staging_location: str | None
    checkpoint_location: str | None
    tolerance: Tolerance
    dead_letter_topic: str | None
    dead_letter_path: str | None
    writes_without_marker: bool
    compression_type: str
    compression_level: int | None
    batch_bytes: int
    block_max_ms: int
    transactional_id: str | None
    transaction_timeout_ms: int | None

    @classmethod
    def parse(cls, options: Mapping[str, str], *, is_stream: bool) -> Self:
        """Errors: ConfigException for everything that can be told without a broker."""
        settings = parse(SINK, options)
        _refuse_contradictions(settings, is_stream)
        try:
            tolerance = Tolerance.parse(settings["errors.tolerance"], settings["errors.tolerance.max"])
        except ValueError as error:
            raise ConfigException(str(error)) from None
        checkpoint: Any = settings.ignored.get("checkpointLocation") if is_stream else None
        return cls(
            client=ClientOptions.of(settings),
            topic=settings["topic"],
            marker_topic=settings["markerTopic"] or settings["topic"],
            idempotency_token=settings["idempotencyToken"],
            staging_location=settings["stagingLocation"],
            checkpoint_location=checkpoint,
            tolerance=tolerance,
            dead_letter_topic=settings["errors.dead.letter.queue.topic.name"],
            dead_letter_path=settings["errors.dead.letter.path"],
            writes_without_marker=settings["onMissingMarker"] == "write",
            compression_type=settings["kafka.compression.type"],
            compression_level=settings["kafka.compression.level"],
            batch_bytes=settings["kafka.batch.size"],
            block_max_ms=settings["kafka.max.block.ms"],
            transactional_id=settings["kafka.transactional.id"],
            transaction_timeout_ms=settings["kafka.transaction.timeout.ms"],
        )


def _refuse_contradictions(settings: Settings, is_stream: bool) -> None:
    if settings["topic"] is None and settings["markerTopic"] is None:
        raise ConfigException(
            "option topic is missing: name the target topic; or, where rows name theirs in a column topic, "
            "name in markerTopic an existing topic whose partition 0 can carry the batch marker"
        )
    if is_stream and settings["idempotencyToken"] is not None:
        raise ConfigException("option idempotencyToken is for batch writes: a stream has its batch ids, leave it out")
    if settings["idempotencyToken"] is not None and not settings["idempotencyToken"].strip():
        raise ConfigException("option idempotencyToken is empty: give each write a token of its own, or leave it out")
    if not settings["kafka.enable.idempotence"]:
        raise ConfigException("option kafka.enable.idempotence cannot be false: deliveryGuarantee=exactly-once needs it")
    dead_letter_topic = settings["errors.dead.letter.queue.topic.name"]
    if dead_letter_topic is not None and dead_letter_topic == settings["topic"]:
        raise ConfigException(f"option errors.dead.letter.queue.topic.name cannot be {dead_letter_topic!r}: it is the target topic itself")
    if settings["errors.tolerance"] == "all" and dead_letter_topic is None and settings["errors.dead.letter.path"] is None:
        raise ConfigException(
            "errors.tolerance=all needs a place for the bad rows, or they would be lost: "
            "set errors.dead.letter.queue.topic.name, errors.dead.letter.path, or both"
        )


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
