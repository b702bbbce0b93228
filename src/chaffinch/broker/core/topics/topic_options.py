"""Topic options under Apache Kafka's names, with the defaults of Apache Kafka 4.3: table, validation, and resolved form `TopicConfig`.

All Kafka topic options are stored and shown; the options with an effect are resolved into `TopicConfig`. This table is also the
documentation of the options. Options with another name on brokers, such as `max.message.bytes`: see `BROKER_SYNONYMS`.

CreateTopics and config changes call `validate_topic_options` (Kafka's `LogConfig.validate`) through `TopicRegistry.validate_options`. It
checks combinations; `OptionTable` and `Option.parse` in `settings.py` check names and single values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chaffinch.errors import ConfigException
from chaffinch.identifiers import TopicPartition
from chaffinch.records import compression
from chaffinch.records.batch_header import TimestampType
from chaffinch.records.compression import Compression
from chaffinch.records.validation_policy import ValidationPolicy
from chaffinch.settings import INT_MAX, LONG_MAX, Option, OptionTable
from chaffinch.storage.log_config import LogConfig

HOUR_MS = 3_600_000
DAY_MS = 86_400_000

COMPRESSION_TYPES = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
CLEANUP_POLICIES = ("compact", "delete")

MIN_INSYNC_REPLICAS_DOCUMENTATION = (
    "Smallest number of in-sync replicas, including the leader, that must have a write before it is acknowledged to a producer with "
    "acks=all. With fewer in sync the producer gets NotEnoughReplicas or NotEnoughReplicasAfterAppend. If it is larger than the "
    "topic's replication factor, no such write can ever succeed, and the producer gets InconsistentReplicationFactorException at once, "
    "which it does not retry (KIP-579; see min.insync.replicas.policy). Typical: replication factor 3, min.insync.replicas 2, acks=all."
)

_OPTIONS = (
    Option(
        "cleanup.policy",
        "list",
        ("delete",),
        "How old records are removed: delete by age and size, compact by key, both, or none.",
        choices=CLEANUP_POLICIES,
    ),
    Option(
        "compression.gzip.level",
        "int",
        -1,
        "Level when the broker compresses with gzip; -1 is the codec's own.",
        minimum=-1,
        maximum=9,
        gap=0,
    ),
    Option("compression.lz4.level", "int", 9, "Level when the broker compresses with lz4.", minimum=1, maximum=17),
    Option("compression.zstd.level", "int", 3, "Level when the broker compresses with zstd.", minimum=-131_072, maximum=22),
    Option(
        "compression.type", "string", "producer", "Codec of stored batches; producer keeps the producer's codec.", choices=COMPRESSION_TYPES
    ),
    Option("delete.retention.ms", "int", DAY_MS, "How long compaction keeps tombstones.", minimum=0),
    Option(
        "file.delete.delay.ms", "int", 60_000, "Pause between forgetting a file and deleting it; here files are deleted at once.", minimum=0
    ),
    Option("flush.messages", "int", LONG_MAX, "Records between forced writes to disk; see flush.policy for the guarantee here.", minimum=1),
    Option("flush.ms", "int", LONG_MAX, "Time between forced writes to disk; see flush.policy for the guarantee here.", minimum=0),
    Option("follower.replication.throttled.replicas", "list", (), "Replicas whose replication from the leader is throttled."),
    Option("index.interval.bytes", "int", 4096, "Bytes of log between two entries of the offset index.", minimum=0, maximum=INT_MAX),
    Option(
        "internal.segment.bytes",
        "int",
        None,
        "Overrides segment.bytes and may be below 1 MiB: for tests of compaction and retention. Shown only for topics that set it.",
        minimum=1,
        maximum=INT_MAX,
    ),
    Option("leader.replication.throttled.replicas", "list", (), "Replicas that are throttled when they serve followers."),
    Option("local.retention.bytes", "int", -2, "As retention.bytes, for the local part of tiered storage.", minimum=-2),
    Option("local.retention.ms", "int", -2, "As retention.ms, for the local part of tiered storage.", minimum=-2),
    Option("max.compaction.lag.ms", "int", LONG_MAX, "Longest time a record may wait for compaction.", minimum=1),
    Option(
        "max.message.bytes",
        "int",
        1_048_588,
        "Largest accepted record batch, in its size on the wire, compressed or not.",
        minimum=0,
        maximum=INT_MAX,
    ),
    Option(
        "message.format.version",
        "string",
        "3.0",
        "Oldest record format consumers must be able to read; below 0.11 idempotent batches are refused.",
    ),
    Option(
        "message.timestamp.after.max.ms", "int", 3_600_000, "How far ahead of the broker's clock a record's timestamp may be.", minimum=0
    ),
    Option("message.timestamp.before.max.ms", "int", LONG_MAX, "How far behind the broker's clock a record's timestamp may be.", minimum=0),
    Option(
        "message.timestamp.type",
        "string",
        "CreateTime",
        "Source of timestamps: CreateTime is the producer's clock, LogAppendTime the broker's.",
        choices=("CreateTime", "LogAppendTime"),
    ),
    Option("min.cleanable.dirty.ratio", "float", 0.5, "Smallest share of new bytes at which a log is compacted.", minimum=0, maximum=1),
    Option("min.compaction.lag.ms", "int", 0, "Shortest time a record stays uncompacted, at most max.compaction.lag.ms.", minimum=0),
    Option("min.insync.replicas", "int", 1, MIN_INSYNC_REPLICAS_DOCUMENTATION, minimum=1, maximum=INT_MAX),
    Option("preallocate", "bool", False, "Whether a segment file is allocated in full size when it is created."),
    Option("remote.log.copy.disable", "bool", False, "Tiered storage: stop copying."),
    Option("remote.log.delete.on.disable", "bool", False, "Tiered storage: delete the remote part when switched off."),
    Option("remote.storage.enable", "bool", False, "Tiered storage: not supported, so only false is accepted."),
    Option("retention.bytes", "int", -1, "Size beyond which old segments of a partition are deleted; -1 for no limit.", minimum=-1),
    Option("retention.ms", "int", 7 * DAY_MS, "Age beyond which old segments are deleted; -1 for no limit.", minimum=-1),
    Option("segment.bytes", "int", 1 << 30, "Size at which a new segment begins.", minimum=1 << 20, maximum=INT_MAX),
    Option("segment.index.bytes", "int", 10 << 20, "Largest size of a segment's index.", minimum=4, maximum=INT_MAX),
    Option("segment.jitter.ms", "int", 0, "Random part of segment.ms.", minimum=0),
    Option("segment.ms", "int", 7 * DAY_MS, "Age at which a new segment begins.", minimum=1),
    Option("unclean.leader.election.enable", "bool", False, "Whether a replica out of sync may lead when no other is left."),
)

WITH_EFFECT = frozenset(
    [
        "cleanup.policy",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.type",
        "compression.zstd.level",
        "delete.retention.ms",
        "index.interval.bytes",
        "internal.segment.bytes",
        "max.compaction.lag.ms",
        "max.message.bytes",
        "message.format.version",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.type",
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "min.insync.replicas",
        "retention.bytes",
        "retention.ms",
        "segment.bytes",
        "segment.jitter.ms",
        "segment.ms",
    ]
)
"""Topic options with an effect. Each of the others is logged once as being without effect."""
SHOWN_WHERE_SET = frozenset({"internal.segment.bytes"})
"""Topic options that DescribeConfigs shows only for topics that set them, like Apache Kafka's internal ones."""
TOPIC_OPTIONS_BY_NAME: Mapping[str, Option] = {option.name: option for option in _OPTIONS}

_REPLICA = re.compile(r"\d+:\d+", re.ASCII)

BROKER_SYNONYMS: Mapping[str, str] = {
    "cleanup.policy": "log.cleanup.policy",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "index.interval.bytes": "log.index.interval.bytes",
    "local.retention.bytes": "log.local.retention.bytes",
    "local.retention.ms": "log.local.retention.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "preallocate": "log.preallocate",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
    "segment.bytes": "log.segment.bytes",
    "segment.index.bytes": "log.index.size.max.bytes",
    "segment.ms": "log.roll.ms",
    "segment.jitter.ms": "log.roll.jitter.ms",
    "compression.type": "compression.type",
    "compression.gzip.level": "compression.gzip.level",
    "compression.lz4.level": "compression.lz4.level",
    "compression.zstd.level": "compression.zstd.level",
    "min.insync.replicas": "min.insync.replicas",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
}
"""Topic option -> the broker option that gives its default, as in Kafka."""

TOPIC_OPTIONS = OptionTable(_OPTIONS, names_elsewhere={broker: topic for topic, broker in BROKER_SYNONYMS.items()})

COARSER_SYNONYMS: Mapping[str, Sequence[tuple[str, int]]] = {
    "log.retention.ms": (("log.retention.minutes", 60_000), ("log.retention.hours", HOUR_MS)),
    "log.roll.ms": (("log.roll.hours", HOUR_MS),),
    "log.roll.jitter.ms": (("log.roll.jitter.hours", HOUR_MS),),
}
"""Broker option -> coarser options that apply, in this order, if it is not set, with their unit in ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """A topic's resolved options as the append path and its logs use them. A limit of -1 means no limit."""

    is_compacted: bool
    compression_type: str
    compression_level: int | None
    is_log_append_time: bool
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    batch_bytes_max: int
    in_sync_min: int
    takes_idempotent_batches: bool
    log: LogConfig


def resolve(overrides: Mapping[str, str], defaults: Mapping[str, Any]) -> TopicConfig:
    """Resolve a topic's own options over the broker's defaults. Raises ConfigException for an unknown name (naming the most similar one) or
    an illegal value.

    Combinations of options are not checked here: they were set at different times, on the topic and on the broker. See
    `validate_topic_options`.
    """
    settings = TOPIC_OPTIONS.parse_exact({**topic_defaults(defaults), **overrides})
    policies = settings["cleanup.policy"]
    # None is the codec's own default: in Kafka this is -1 for gzip and 9 for lz4.
    levels = {
        "gzip": _unless(settings["compression.gzip.level"], -1),
        "lz4": _unless(settings["compression.lz4.level"], 9),
        "zstd": settings["compression.zstd.level"],
    }
    return TopicConfig(
        is_compacted="compact" in policies,
        compression_type=settings["compression.type"],
        compression_level=levels.get(settings["compression.type"]),
        is_log_append_time=settings["message.timestamp.type"] == "LogAppendTime",
        timestamp_before_max_ms=settings["message.timestamp.before.max.ms"],
        timestamp_after_max_ms=settings["message.timestamp.after.max.ms"],
        batch_bytes_max=settings["max.message.bytes"],
        in_sync_min=settings["min.insync.replicas"],
        takes_idempotent_batches=_format_at_least_0_11(settings["message.format.version"]),
        log=LogConfig(
            segment_bytes=settings["internal.segment.bytes"] or settings["segment.bytes"],
            segment_ms=settings["segment.ms"],
            segment_jitter_ms=settings["segment.jitter.ms"],
            index_interval_bytes=settings["index.interval.bytes"],
            retention_ms=settings["retention.ms"],
            retention_bytes=settings["retention.bytes"],
            delete_retention_ms=settings["delete.retention.ms"],
            compaction_lag_min_ms=settings["min.compaction.lag.ms"],
            compaction_lag_max_ms=settings["max.compaction.lag.ms"],
            dirty_ratio_min=settings["min.cleanable.dirty.ratio"],
            deletes="delete" in policies,
            compacts="compact" in policies,
            decompressed_bytes_max=defaults["max.decompressed.bytes"],
        ),
    )


def validate_topic_options(overrides: Mapping[str, str], defaults: Mapping[str, Any]) -> TopicConfig:
    """Validate options about to be set, and resolve them. Raises the errors of `resolve`, and ConfigException for a contradiction."""
    config = resolve(overrides, defaults)
    if config.log.compaction_lag_min_ms > config.log.compaction_lag_max_ms:
        raise ConfigException("option min.compaction.lag.ms is larger than max.compaction.lag.ms")
    settings = TOPIC_OPTIONS.parse_exact(overrides)
    if settings["remote.storage.enable"]:
        raise ConfigException("option remote.storage.enable cannot be true: there is no tiered storage here")
    for name in ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas"):
        if settings[name] != ("*",) and not all(_REPLICA.fullmatch(each) for each in settings[name]):
            raise ConfigException(f"option {name} cannot be {overrides[name]!r}: it must be * or partition:node,...")
    return config


def topic_defaults(broker_settings: Mapping[str, Any]) -> dict[str, Any]:
    """The broker's defaults for topic options."""
    found = ((name, _default(synonym, broker_settings)) for name, synonym in BROKER_SYNONYMS.items())
    return {name: value for name, value in found if value is not None}


def _default(synonym: str, broker_settings: Mapping[str, Any]) -> Any:
    value = broker_settings.get(synonym)
    if value is not None:
        return value
    for coarser, unit_ms in COARSER_SYNONYMS.get(synonym, ()):
        value = broker_settings.get(coarser)
        if value is not None:
            return value * unit_ms if value >= 0 else -1
    return None


def _unless(level: int, default: int) -> int | None:
    return None if level == default else level


def _format_at_least_0_11(version: str) -> bool:
    """Whether record format 2 is allowed: message.format.version 0.11 or newer ("0.10.2-IV0" is older, "3.0-IV1" is newer)."""
    try:
        major, minor = (int(part) for part in version.split("-")[0].split(".")[:2])
    except ValueError:
        raise ConfigException(f"message.format.version={version}: expected a version such as 3.0 or 0.10.2") from None
    return (major, minor) >= (0, 11)


def record_validation_policy(topic_partition: TopicPartition, config: TopicConfig, decompressed_bytes_max: int) -> ValidationPolicy:
    """The policy by which a topic's records are validated (`records/validation.py`)."""
    return ValidationPolicy(
        topic_partition=topic_partition,
        is_compacted=config.is_compacted,
        timestamp_type=TimestampType.LOG_APPEND_TIME if config.is_log_append_time else TimestampType.CREATE_TIME,
        timestamp_before_max_ms=config.timestamp_before_max_ms,
        timestamp_after_max_ms=config.timestamp_after_max_ms,
        batch_bytes_max=config.batch_bytes_max,
        compression=stored_compression(config.compression_type),
        compression_level=config.compression_level,
        decompressed_bytes_max=decompressed_bytes_max,
    )


def stored_compression(compression_type: str) -> Compression | None:
    """The codec of stored batches; None keeps the producer's codec."""
    if compression_type == "producer":
        return None
    return compression.from_name("none" if compression_type == "uncompressed" else compression_type)
