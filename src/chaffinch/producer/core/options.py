"""The producer's options: names, defaults and ranges as in Apache Kafka 4.3 (ProducerConfig.java, CommonClientConfigs.java).

Every option in `OPTIONS` has an effect. Names in `WITHOUT_EFFECT` are Kafka's: they are accepted, so that configurations can be shared,
and logged once. Contradictory options are refused here, before anything is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from chaffinch.client import options as client_options
from chaffinch.client.option_hints import PRODUCER_HINTS
from chaffinch.client.options import METADATA_OPTIONS, STRING_BYTES_MAX, connection_options
from chaffinch.errors import ConfigException
from chaffinch.settings import INT_MAX, LONG_MAX, Option, OptionTable, Settings

IDEMPOTENT_IN_FLIGHT_MAX: Final = 5

_CONNECTION: Final = (
    *connection_options("chaffinch-producer"),
    *METADATA_OPTIONS,
    Option("metadata.max.idle.ms", "int", 300_000, "how long the metadata of a topic without records is still requested", minimum=5_000),
)
_SENDING: Final = (
    Option(
        "acks",
        "string",
        "all",
        "replicas that must have a batch before it counts as written: `all` in-sync ones (also `-1`), the leader (`1`), or none (`0`); "
        "`1` and `0` turn idempotence off",
        choices=("all", "-1", "1", "0"),
    ),
    Option(
        "enable.idempotence",
        "bool",
        True,
        "each batch is written once, however often it is sent; needs `acks=all` and `retries`: unless it is given, other values turn it "
        "off, which is logged",
    ),
    Option(
        "retries",
        "int",
        INT_MAX,
        "how often a batch is sent again after a retriable error; 0 turns idempotence off",
        minimum=0,
        maximum=INT_MAX,
    ),
    Option(
        "delivery.timeout.ms",
        "int",
        120_000,
        "time from `send` to the outcome, after which a record fails; at least `linger.ms` + `request.timeout.ms`, also by default",
        minimum=0,
        maximum=INT_MAX,
    ),
    Option(
        "max.in.flight.requests.per.connection",
        "int",
        5,
        "Produce requests per broker without a response; at most 5 with idempotence, which keeps the order; without it only 1 does",
        minimum=1,
        maximum=INT_MAX,
    ),
    Option(
        "max.request.size", "int", 1_048_576, "bytes of the largest record, and of the batches in one request", minimum=0, maximum=INT_MAX
    ),
)
_GATHERING: Final = (
    Option("linger.ms", "int", 5, "how long a batch waits for more records before it is sent", minimum=0),
    Option("batch.size", "int", 16_384, "bytes of a full batch; for `send_table` 1000000 unless given", minimum=0, maximum=INT_MAX),
    Option(
        "buffer.memory",
        "int",
        33_554_432,
        "bytes of records that wait for their outcome; beyond this `send` waits",
        minimum=0,
        maximum=LONG_MAX,
    ),
    Option(
        "max.block.ms", "int", 60_000, "how long `send` waits for metadata or memory, and a transaction's calls for a response", minimum=0
    ),
    Option("compression.type", "string", "none", "codec of the batches", choices=("none", "gzip", "snappy", "lz4", "zstd")),
    Option("compression.gzip.level", "int", None, "level of gzip, 1 to 9; -1: the codec's own", minimum=-1, maximum=9, gap=0),
    Option("compression.lz4.level", "int", None, "level of lz4, 1 to 17", minimum=1, maximum=17),
    Option("compression.zstd.level", "int", None, "level of zstd, up to 22", minimum=-131_072, maximum=22),
    Option(
        "partitioner",
        "any",
        "murmur2",
        "chooses the partition of a record without one: `murmur2` (its key's hash, as in Java), `round_robin`, or a function of "
        "topic, key, value and number of partitions, or its dotted name",
    ),
    Option("partitioner.ignore.keys", "bool", False, "with `murmur2`: records go to the sticky partition even when they have a key"),
    Option(
        "partitioner.adaptive.partitioning.enable",
        "bool",
        True,
        "records without a key go less often to partitions for which more batches wait",
    ),
    Option(
        "partitioner.availability.timeout.ms",
        "int",
        0,
        "a leader that accepts no batch for this long, although one is ready, gets no records without a key; 0: no limit. "
        "Without effect with `partitioner.adaptive.partitioning.enable=false`",
        minimum=0,
    ),
)
_WITH_CODE: Final = (
    Option(
        "key.serializer",
        "any",
        None,
        "function from the key given to `send` to bytes, its dotted name, a serializer of confluent-kafka, or `json`; not called for None",
    ),
    Option("value.serializer", "any", None, "the same for values"),
    Option(
        "trace.headers",
        "any",
        None,
        "headers with a trace context for each record of `send`: `opentelemetry`, a function without arguments that returns (name, bytes) "
        "pairs, or its dotted name; a name that the record has already is left out",
    ),
    Option(
        "custom.exception.handler.class",
        "any",
        None,
        "decides about records that are too large or whose topic is unknown: a ProducerExceptionHandler, its class, or a dotted name",
    ),
    Option("drop.invalid.large.records", "bool", False, "records larger than `max.request.size` are dropped; by default they fail"),
    Option(
        "retry.unknown.topic.partition.ms",
        "int",
        INT_MAX,
        "how long records for a topic or partition that no broker knows are retried, within `max.block.ms` and `delivery.timeout.ms`",
        minimum=0,
        maximum=INT_MAX,
    ),
)
_TRANSACTIONS: Final = (
    Option(
        "transactional.id",
        "string",
        None,
        "name under which a broker knows the producer across restarts; makes it transactional",
        bytes_max=STRING_BYTES_MAX,
    ),
    Option(
        "transaction.timeout.ms",
        "int",
        60_000,
        "how long a transaction may stay open before the broker aborts it",
        minimum=1,
        maximum=INT_MAX,
    ),
)
OPTIONS: Final = (*_CONNECTION, *_SENDING, *_GATHERING, *_WITH_CODE, *_TRANSACTIONS)

WITHOUT_EFFECT: Final = client_options.WITHOUT_EFFECT | {
    "interceptor.classes",
    "transaction.two.phase.commit.enable",
}

PRODUCER_OPTIONS: Final = OptionTable(OPTIONS, WITHOUT_EFFECT, hints=PRODUCER_HINTS)

ACKS: Final = {"all": -1, "-1": -1, "1": 1, "0": 0}


def parse_options(mapping: Mapping[str, Any] | None = None, **keywords: Any) -> Settings:
    """The settings of a producer. ConfigException for an unknown name, a value out of range, or options that contradict each other."""
    settings = PRODUCER_OPTIONS.parse(mapping, **keywords)
    for check in (_check_idempotence, _check_times, _check_transactional_id):
        check(settings)
    return settings


def is_idempotent(settings: Settings) -> bool:
    """Whether batches carry sequence numbers. As in Kafka, some values of acks and retries turn the default off, not an explicit value."""
    if "enable.idempotence" in settings.given or settings["transactional.id"] is not None:
        return bool(settings["enable.idempotence"])
    return idempotence_ended_by(settings) is None


def idempotence_ended_by(settings: Settings) -> str | None:
    """The option that turns the default off, with its value. None: no option does, or idempotence was set explicitly."""
    if "enable.idempotence" in settings.given or settings["transactional.id"] is not None:
        return None
    rules_out = {"acks": ACKS[settings["acks"]] != -1, "retries": settings["retries"] == 0}
    return next((f"{name}={settings[name]}" for name, does in rules_out.items() if does), None)


def availability_ended_by(settings: Settings) -> str | None:
    """The option that leaves partitioner.availability.timeout.ms without effect, as in Kafka; None if there is none."""
    is_idle = settings["partitioner.availability.timeout.ms"] > 0 and not settings["partitioner.adaptive.partitioning.enable"]
    return "partitioner.adaptive.partitioning.enable=false" if is_idle else None


def compression_level(settings: Settings) -> int | None:
    """The level of the codec in use; None: the codec's own default."""
    level: int | None = settings.get(f"compression.{settings['compression.type']}.level")
    return level


def _idempotence_source(settings: Settings) -> str:
    """The option that requires idempotence, as an error text names it; empty if it is only on by default, or off."""
    if "enable.idempotence" in settings.given:
        return "enable.idempotence=true" if settings["enable.idempotence"] else ""
    return "a transactional.id" if settings["transactional.id"] is not None else ""


def _check_idempotence(settings: Settings) -> None:
    if settings["transactional.id"] is not None and not settings["enable.idempotence"]:
        raise ConfigException("option enable.idempotence cannot be false with a transactional.id: transactions need it")
    reason = _idempotence_source(settings)
    if reason and ACKS[settings["acks"]] != -1:
        raise ConfigException(f"option acks cannot be {settings['acks']!r} with {reason}: it must be all")
    if reason and settings["retries"] == 0:
        raise ConfigException(f"option retries cannot be 0 with {reason}: it must be at least 1")
    in_flight = settings["max.in.flight.requests.per.connection"]
    if is_idempotent(settings) and in_flight > IDEMPOTENT_IN_FLIGHT_MAX:
        unless = reason or "idempotence, the default without enable.idempotence=false"
        must = f"it must be at most {IDEMPOTENT_IN_FLIGHT_MAX}, as many batches as brokers remember"
        raise ConfigException(f"option max.in.flight.requests.per.connection cannot be {in_flight} with {unless}: {must}")


def delivery_timeout_ms(settings: Settings) -> int:
    """The effective delivery timeout: the default is raised to linger.ms + request.timeout.ms (KafkaProducer.java)."""
    timeout_ms: int = settings["delivery.timeout.ms"]
    return max(timeout_ms, _delivery_timeout_least_ms(settings))


def _delivery_timeout_least_ms(settings: Settings) -> int:
    least_ms: int = settings["linger.ms"] + settings["request.timeout.ms"]
    return min(least_ms, INT_MAX)


def _check_times(settings: Settings) -> None:
    least = _delivery_timeout_least_ms(settings)
    if settings["delivery.timeout.ms"] < least and "delivery.timeout.ms" in settings.given:
        given = settings["delivery.timeout.ms"]
        raise ConfigException(f"option delivery.timeout.ms cannot be {given}: it must be at least linger.ms + request.timeout.ms, {least}")


def _check_transactional_id(settings: Settings) -> None:
    if settings["transactional.id"] == "":
        raise ConfigException("option transactional.id cannot be empty: leave it out for a producer without transactions")
