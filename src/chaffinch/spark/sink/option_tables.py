"""Option tables of the sink, one per `deliveryGuarantee`: an option that a guarantee does not use is refused, never ignored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from chaffinch.client.option_hints import JAVA_ONLY_OPTIONS
from chaffinch.client.options import METADATA_OPTIONS, STRING_BYTES_MAX
from chaffinch.client.options import WITHOUT_EFFECT as OF_CLIENTS_WITHOUT_EFFECT
from chaffinch.errors import ConfigException
from chaffinch.producer.core.options import OPTIONS as PRODUCER_OPTIONS
from chaffinch.producer.core.options import WITHOUT_EFFECT as OF_PRODUCERS_WITHOUT_EFFECT
from chaffinch.settings import INT_MAX, Option, OptionTable, Settings
from chaffinch.spark.options import (
    CLIENT_OPTIONS,
    CLIENT_WITHOUT_EFFECT,
    INCLUDE_HEADERS,
    JAVA_WITHOUT_EFFECT,
    SOURCE_OPTION_NAMES,
    SPARK_OPTION_NAMES,
    hints,
    kafka_options,
    parse,
)

EXACTLY_ONCE, AT_LEAST_ONCE, NONE = "exactly-once", "at-least-once", "none"
BATCH_SIZE_DEFAULT: Final = 1_000_000
UNKNOWN_TOPIC_MS_DEFAULT: Final = 1_000
TOKEN_BYTES_MAX: Final = STRING_BYTES_MAX - len("chaffinch-")
"""Group and transactional id consist of this prefix and the token."""


GUARANTEE: Final = Option(
    "deliveryGuarantee", "string", EXACTLY_ONCE,
    "`exactly-once`: one Kafka transaction per micro-batch; `at-least-once`: tasks send; `none`: tasks send, without acknowledgement",
    choices=(EXACTLY_ONCE, AT_LEAST_ONCE, NONE),
)  # fmt: skip
_ACKS_0: Final = f"for acks=0 set deliveryGuarantee={NONE}"
_COMMON: Final = (
    *CLIENT_OPTIONS,
    Option("topic", "string", None, "the target topic; without it every row names its own in a `topic` column"),
    GUARANTEE,
    Option("stagingLocation", "string", None, "where tasks stage more than 1 MiB; default: `chaffinch/staging` in the checkpoint"),
    Option("errors.tolerance", "string", "none", "`none`: a bad row fails the batch; `all`: it becomes a dead letter",
           choices=("none", "all")),
    Option("errors.tolerance.max", "string", None, "count (`100`) or share (`5%`) of bad rows above which the batch fails anyway"),
    Option("errors.dead.letter.queue.topic.name", "string", None, "topic for dead letters, written like the rows, in their transaction"),
    Option("errors.dead.letter.path", "string", None, "folder or URI for dead letters as Parquet, one file per batch"),
    Option("errors.column", "string", None,
           "a nullable string column: a row with text in it is a bad row, and the text is the reason; null or an empty text: no reason"),
    Option("kafka.custom.exception.handler.class", "string", None,
           "dotted name of a ProducerExceptionHandler, called for bad rows: those that it swallows are dropped, without a dead letter"),
    Option("kafka.drop.invalid.large.records", "bool", False,
           "rows larger than kafka.max.request.size, or than the topic allows, are dropped"),
    Option("kafka.retry.unknown.topic.partition.ms", "int", UNKNOWN_TOPIC_MS_DEFAULT,
           "how long a task looks for a topic that a row names, before it rejects the row", minimum=0),
    Option("kafka.batch.size", "int", BATCH_SIZE_DEFAULT, "bytes of a record batch before compression; max.message.bytes limits it too",
           minimum=1),
    *kafka_options(PRODUCER_OPTIONS, "compression.type", "compression.gzip.level", "compression.lz4.level", "compression.zstd.level"),
)  # fmt: skip
_TRANSACTION_OPTIONS: Final = (
    Option("idempotencyToken", "string", None, "batch writes: the same token is written once", bytes_max=TOKEN_BYTES_MAX),
    Option("onMissingMarker", "string", "fail", "what to do when a batch that is not the first finds no marker",
           choices=("fail", "write")),
    Option("markerTopic", "string", None,
           "existing topic whose partition 0 carries the marker of a stream or token; default: the `topic` option"),
    Option("kafka.max.request.size", "int", None, "bytes of the largest row; default: the limit of the topic", minimum=1),
    Option("kafka.max.block.ms", "int", 60_000, "how long each step of a commit is retried", minimum=1),
    Option("kafka.transactional.id", "string", None, "default: `chaffinch-` and the query's id; fixed in the checkpoint",
           bytes_max=STRING_BYTES_MAX),
    Option("kafka.transaction.timeout.ms", "int", None, "default: derived from the staged size, at least one minute",
           minimum=1, maximum=INT_MAX),
    Option("kafka.acks", "string", "all", "a transaction waits for all in-sync replicas", choices=("all", "-1"),
           advice=f"{_ACKS_0}, which writes without transactions"),
    Option("kafka.enable.idempotence", "bool", True, "a transaction is idempotent"),
)  # fmt: skip

# The producer's own rows, except Python objects, transactions, and settings that each row has itself.
_PRODUCER_OPTIONS: Final = kafka_options(
    PRODUCER_OPTIONS,
    "metadata.max.idle.ms", "retries", "delivery.timeout.ms", "max.in.flight.requests.per.connection", "max.request.size", "linger.ms",
    "buffer.memory", "max.block.ms", *(option.name for option in METADATA_OPTIONS),
)  # fmt: skip
_ACKNOWLEDGED_OPTIONS: Final = (
    Option(
        "kafka.acks",
        "string",
        "all",
        "all in-sync replicas have a batch before it counts as written",
        choices=("all", "-1"),
        advice=_ACKS_0,
    ),
    Option("kafka.enable.idempotence", "bool", True, "each batch of a task is written once, however often it is sent"),
)
_UNACKNOWLEDGED_OPTIONS: Final = (
    Option("kafka.acks", "string", "0", "brokers send no response", choices=("0",),
           advice=f"for acknowledged rows set deliveryGuarantee to {EXACTLY_ONCE} or {AT_LEAST_ONCE}"),
)  # fmt: skip
_BYTES: Final = "keys and values are written as they are, string or binary; cast them in Spark"
_PARTITION: Final = "a row goes to the partition in its partition column, or else to that of its key; omit the key if it must not decide"
_OF_SOURCE: Final = "this is an option of the source; name the target with the option topic, or in a topic column"
_HINTS: Final = {
    **{f"kafka.{name}": hint for name, hint in JAVA_ONLY_OPTIONS.items()},
    "kafka.trace.headers": "rows bring their headers in the column headers",
    "kafka.key.serializer": _BYTES,
    "kafka.value.serializer": _BYTES,
    "kafka.group.id": "a sink does not join a group",
    **dict.fromkeys(("kafka.partitioner", "kafka.partitioner.ignore.keys"), _PARTITION),
    **dict.fromkeys(("subscribe", "subscribePattern", "assign"), _OF_SOURCE),
    "path": "save() and start() take no path here; name a topic with the option topic, or in a topic column",
    "kafka.compression.level": "each codec has its own option, such as kafka.compression.zstd.level",
}


# Options for choosing partitions, and those of Java producers only.
_PRODUCER_WITHOUT_EFFECT: Final[tuple[str | Option, ...]] = (
    "kafka.partitioner.class",
    *kafka_options(PRODUCER_OPTIONS, "partitioner.adaptive.partitioning.enable", "partitioner.availability.timeout.ms"),
    *(f"kafka.{name}" for name in sorted(OF_PRODUCERS_WITHOUT_EFFECT - OF_CLIENTS_WITHOUT_EFFECT)),
)


def _hints_of_source(options: Iterable[Option], without_effect: Iterable[str | Option]) -> dict[str, str]:
    known = [each if isinstance(each, str) else each.name for each in (*options, *without_effect)]
    return hints(SOURCE_OPTION_NAMES, "source", known)


def _direct(*own: Option) -> OptionTable:
    options = (*_COMMON, *_PRODUCER_OPTIONS, *own)
    known = {option.name for option in options}
    own_hints = {
        option.name: f"it belongs to deliveryGuarantee={EXACTLY_ONCE}, leave it out"
        for option in _TRANSACTION_OPTIONS
        if option.name not in known
    }
    without_effect = (*SPARK_OPTION_NAMES, INCLUDE_HEADERS, *_PRODUCER_WITHOUT_EFFECT, *JAVA_WITHOUT_EFFECT)
    return OptionTable(options, without_effect=without_effect, hints={**_hints_of_source(options, without_effect), **_HINTS, **own_hints})


SINK_WITHOUT_EFFECT: Final[tuple[str | Option, ...]] = (
    *SPARK_OPTION_NAMES, *CLIENT_WITHOUT_EFFECT, INCLUDE_HEADERS, *_PRODUCER_WITHOUT_EFFECT,
    *kafka_options(PRODUCER_OPTIONS, "linger.ms", "buffer.memory", "retries", "delivery.timeout.ms",
              "max.in.flight.requests.per.connection", "metadata.max.idle.ms"),
)  # fmt: skip
SINK: Final = OptionTable(
    (*_COMMON, *_TRANSACTION_OPTIONS),
    without_effect=SINK_WITHOUT_EFFECT,
    hints={**_hints_of_source((*_COMMON, *_TRANSACTION_OPTIONS), SINK_WITHOUT_EFFECT), **_HINTS},
)
"""Of `exactly-once`."""
TABLES: Final[Mapping[str, OptionTable]] = {
    EXACTLY_ONCE: SINK,
    AT_LEAST_ONCE: _direct(*_ACKNOWLEDGED_OPTIONS),
    NONE: _direct(*_UNACKNOWLEDGED_OPTIONS),
}
DIRECT_ONLY: Final = (*_PRODUCER_OPTIONS, *_ACKNOWLEDGED_OPTIONS)
"""Additional options of `at-least-once` and `none`, for the documentation."""


def parsed(options: Mapping[str, str]) -> tuple[str, Settings]:
    """The requested guarantee, given in any case, and the options parsed with its table. Raises ConfigException with all errors."""
    guarantee = next((value for name, value in options.items() if name.lower() == GUARANTEE.name.lower()), EXACTLY_ONCE)
    if guarantee in TABLES:
        return guarantee, parse(TABLES[guarantee], options)
    # The intended guarantee is unknown: report the errors of the table that fits the other options best.
    raise ConfigException(min((_error_text(table, options) for table in TABLES.values()), key=len))


def _error_text(table: OptionTable, options: Mapping[str, str]) -> str:
    """The errors of options whose guarantee is invalid."""
    try:
        parse(table, options)
    except ConfigException as error:
        return error.message
    raise AssertionError("every table refuses an invalid guarantee")
