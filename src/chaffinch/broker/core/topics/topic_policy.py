"""The rules for the records of a topic, from its options."""

from __future__ import annotations

from chaffinch.broker.core.topics.topic_options import TopicConfig
from chaffinch.identifiers import TopicPartition
from chaffinch.records import compression
from chaffinch.records.batch_header import TimestampType
from chaffinch.records.compression import Compression
from chaffinch.records.validation_policy import ValidationPolicy


def validation_policy(topic_partition: TopicPartition, config: TopicConfig, decompressed_bytes_max: int) -> ValidationPolicy:
    """What the record rules need to know of a topic."""
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
    """The codec of stored batches; None keeps the producer's."""
    if compression_type == "producer":
        return None
    return compression.from_name("none" if compression_type == "uncompressed" else compression_type)
