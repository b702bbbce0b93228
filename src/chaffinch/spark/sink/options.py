"""Options of the sink: the values that are fixed per query, and checks that need no broker. Their tables: `option_tables.py`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from chaffinch.errors import ConfigException
from chaffinch.settings import Settings, shown_value
from chaffinch.spark.commit.tolerance import Tolerance
from chaffinch.spark.options import KAFKA_PREFIX, ClientOptions, log_without_effect, with_spark_names
from chaffinch.spark.sink.option_tables import EXACTLY_ONCE, parsed
from chaffinch.spark.task_facts import TaskContextFacts
from chaffinch.spark.tasks.plan import TaskOptions
from chaffinch.spark.tasks.replay_notes import ReplayNotes, RetainedRows
from chaffinch.spark.tasks.row_handler import HandlerOptions

# Set by KafkaSink or a replay for their own writes. Users must not set them, so they are in no table (`refuse_own_options`).
_SINK_NAME: Final = "chaffinch.sink"
_BATCH_ID: Final = "chaffinch.batch.id"
_QUERY_ID: Final = "chaffinch.query.id"
NOTES: Final = "chaffinch.notes"
WRITER: Final = "chaffinch.writer"
RETAINED_ROWS: Final = "chaffinch.kept"
_DEAD_LETTER_TOPIC: Final = "errors.dead.letter.queue.topic.name"
REPLAY_TOKEN_PREFIX: Final = "replay-"
"""Prefix of the token of a replay for which the user has not chosen one."""
_INTERNAL: Final = (_SINK_NAME, _BATCH_ID, _QUERY_ID, NOTES, WRITER, RETAINED_ROWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions(TaskOptions):
    """All options of a query that concern writing; they are sent to the tasks."""

    client: ClientOptions
    guarantee: str
    marker_topic: str | None
    """None: there is no marker."""
    idempotency_token: str | None
    staging_location: str | None
    checkpoint_location: str | None
    tolerance: Tolerance
    dead_letter_topic: str | None
    writes_without_marker: bool
    block_max_ms: int
    transactional_id: str | None
    transaction_timeout_ms: int | None
    handler: HandlerOptions | None = None
    """None: no handler is called for bad rows."""
    producer: tuple[tuple[str, Any], ...] = ()
    """If tasks send: the options of their producers, under Kafka's names."""
    sink_name: str | None = None
    """Distinguishes several sinks of one query: each has its own marker, transactional id, state, staging and dead letter files."""
    batch_id: int | None = None
    """Micro-batch of a batch write inside `foreachBatch`: it is committed as by the stream's own sink."""
    query_id: str | None = None
    """Query of that micro-batch, on Spark Connect, where tasks do not know it."""
    notes: ReplayNotes | None = None
    """Notes of a replay for the dead letter topic, in addition to its rows."""
    writer_id: str | None = None
    """Writer name in the marker, by which a replay recognises its own marker."""
    retained_rows: RetainedRows | None = None
    """Dead letters of a Parquet file that a replay skips: they move to the file of this write."""

    @property
    def is_exactly_once(self) -> bool:
        return self.guarantee == EXACTLY_ONCE

    def qualified_name(self, query: str) -> str:
        """The query's name with that of this sink, under which it stores its files and marker."""
        return query if self.sink_name is None else f"{query}-{self.sink_name}"

    def completed_facts(self, facts: TaskContextFacts) -> TaskContextFacts:
        """Facts of a task about its query: those from Spark, completed with those from `KafkaSink`."""
        return facts if self.query_id is None else replace(facts, query_id=self.query_id, batch_id=self.batch_id)

    @classmethod
    def parse(cls, options: Mapping[str, str], *, is_stream: bool) -> Self:
        """Raises ConfigException for every error that can be found without a broker."""
        internal = {name.lower(): value for name, value in options.items() if name.lower() in _INTERNAL}
        public = {name: value for name, value in options.items() if name.lower() not in internal}
        _refuse_foreign_internal_options(internal, public, is_stream)
        guarantee, settings = parsed(public)
        batch_id = int(internal[_BATCH_ID]) if _BATCH_ID in internal else None
        is_stream = is_stream or batch_id is not None
        _refuse_contradictions(settings)
        _warn_unused_levels(settings)
        if not is_stream and "checkpointLocation" in settings.ignored:
            once = "; a batch write with an idempotencyToken writes once, however often it runs" if guarantee == EXACTLY_ONCE else ""
            raise ConfigException(
                f"option checkpointLocation is for streams: a batch write has no checkpoint, leave it out{once}; "
                "in foreachBatch write with chaffinch.spark.KafkaSink, which accepts it"
            )
        has_marker = guarantee == EXACTLY_ONCE and (is_stream or settings["idempotencyToken"] is not None)
        if guarantee == EXACTLY_ONCE:
            _refuse_non_transactional(settings, is_stream)
            if has_marker:
                _require_marker_topic(settings)
            elif settings["markerTopic"] is not None:
                log_without_effect("on a batch write without idempotencyToken, which has no marker", ["markerTopic"])
        try:
            tolerance = Tolerance.parse(settings["errors.tolerance"], settings["errors.tolerance.max"])
        except ValueError as error:
            raise ConfigException(str(error)) from None
        checkpoint: Any = settings.ignored.get("checkpointLocation") if is_stream else None
        return cls(
            client=ClientOptions.of(settings),
            guarantee=guarantee,
            topic=settings["topic"],
            marker_topic=(settings["markerTopic"] or settings["topic"]) if has_marker else None,
            idempotency_token=settings.get("idempotencyToken"),
            staging_location=settings["stagingLocation"],
            checkpoint_location=checkpoint,
            tolerance=tolerance,
            dead_letter_topic=settings[_DEAD_LETTER_TOPIC],
            dead_letter_path=settings["errors.dead.letter.path"],
            reason_column=settings["errors.column"],
            writes_without_marker=settings.get("onMissingMarker") == "write",
            compression_type=settings["kafka.compression.type"],
            compression_level=settings.get(f"kafka.compression.{settings['kafka.compression.type']}.level"),
            batch_bytes=settings["kafka.batch.size"],
            request_bytes_max=settings["kafka.max.request.size"],
            block_max_ms=settings["kafka.max.block.ms"],
            topic_wait_ms=min(settings["kafka.retry.unknown.topic.partition.ms"], settings["kafka.max.block.ms"]),
            transactional_id=settings.get("kafka.transactional.id"),
            transaction_timeout_ms=settings.get("kafka.transaction.timeout.ms"),
            handler=_handler(settings),
            producer=() if guarantee == EXACTLY_ONCE else _producer(settings),
            sink_name=internal.get(_SINK_NAME),
            batch_id=batch_id,
            query_id=internal.get(_QUERY_ID),
            notes=ReplayNotes.of_option(internal[NOTES]) if NOTES in internal else None,
            writer_id=internal.get(WRITER),
            retained_rows=RetainedRows.of_option(internal[RETAINED_ROWS]) if RETAINED_ROWS in internal else None,
        )


_REPLAY_OPTIONS: Final[Mapping[str, Callable[[str], bool]]] = {
    NOTES: lambda text: ReplayNotes.of_option(text) is not None,
    WRITER: lambda text: re.fullmatch(r"[0-9a-f]{16}", text) is not None,
    RETAINED_ROWS: lambda text: RetainedRows.of_option(text) is not None,
}
"""Options that only a replay sets, each with a check whether a replay can have set the value."""


def refuse_own_options(options: Mapping[str, object]) -> None:
    """Raises ConfigException for an option that only KafkaSink may set."""
    for name, value in options.items():
        if name.lower() in _INTERNAL:
            raise ConfigException(f"option {name} cannot be {value!r}: Chaffinch sets it for its own writes, leave it out")


def _refuse_foreign_internal_options(internal: Mapping[str, str], public: Mapping[str, str], is_stream: bool) -> None:
    """Raises ConfigException for internal options that neither KafkaSink nor a replay would set in this way."""
    of_sink = internal.get(_SINK_NAME) and _is_number(internal.get(_BATCH_ID, "")) and not internal.keys() & _REPLAY_OPTIONS.keys()
    given = {name.lower(): value for name, value in public.items()}
    is_sound = all(name in _REPLAY_OPTIONS and _REPLAY_OPTIONS[name](value) for name, value in internal.items())
    has_destinations = (NOTES not in internal or _DEAD_LETTER_TOPIC in given) and (
        RETAINED_ROWS not in internal or "errors.dead.letter.path" in given
    )
    of_replay = is_sound and has_destinations and given.get("idempotencytoken", "").startswith(REPLAY_TOKEN_PREFIX)
    if is_stream or not (of_sink or of_replay):
        refuse_own_options(internal)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


_SINK_ONLY: Final = frozenset({"kafka.custom.exception.handler.class", "kafka.drop.invalid.large.records"})


def _kafka_options(settings: Settings) -> dict[str, Any]:
    """The `kafka.*` options that were set, under Kafka's names."""
    return {name.removeprefix(KAFKA_PREFIX): settings[name] for name in sorted(settings.given) if name.startswith(KAFKA_PREFIX)}


def _handler(settings: Settings) -> HandlerOptions | None:
    class_name, drops_large = settings["kafka.custom.exception.handler.class"], settings["kafka.drop.invalid.large.records"]
    if class_name is None and not drops_large:
        return None
    return HandlerOptions(class_name=class_name, drops_large=drops_large, settings=tuple(_kafka_options(settings).items()))


def _producer(settings: Settings) -> tuple[tuple[str, Any], ...]:
    """Options of the tasks' producers. Rows are checked, and handlers called, before a producer gets them."""
    from chaffinch.producer.core.options import parse_options

    given = {name: value for name, value in _kafka_options(settings).items() if KAFKA_PREFIX + name not in _SINK_ONLY}
    given |= {name: settings[KAFKA_PREFIX + name] for name in ("client.id", "batch.size", "acks")}
    with with_spark_names():
        parse_options(given)
    return tuple(sorted(given.items()))


# Options that hold names. If an empty name counted as missing, a forgotten value would go unnoticed.
_NEVER_EMPTY: Final = (
    "topic", "markerTopic", "idempotencyToken", "stagingLocation", "errors.dead.letter.queue.topic.name", "errors.dead.letter.path",
    "errors.column", "kafka.transactional.id",
)  # fmt: skip


def _refuse_contradictions(settings: Settings) -> None:
    for name in _NEVER_EMPTY:
        if (given := settings.get(name)) is not None and not given.strip():
            raise ConfigException(f"option {name} is empty: give it a value, or leave it out")
    for name in ("stagingLocation", "errors.dead.letter.path"):
        # A folder of that name would be created in the working directory of each process.
        if (settings[name] or "").startswith("~"):
            raise ConfigException(f"option {name} cannot be {shown_value(settings[name])}: ~ has no meaning here; give the full path")
    if "," in (settings["topic"] or ""):
        raise ConfigException(
            f"option topic cannot be {shown_value(settings['topic'])}: it must be a single topic; "
            "leave it out if rows name their topics in a topic column"
        )
    from chaffinch.spark.tasks.row_codec import WRITTEN  # Imported late: planners import this module, that one NumPy.

    if (reason_column := settings["errors.column"]) in WRITTEN:
        raise ConfigException(f"option errors.column cannot be {reason_column!r}: that column is part of the record; choose another")
    dead_letter_topic = settings["errors.dead.letter.queue.topic.name"]
    if dead_letter_topic is not None and dead_letter_topic == settings["topic"]:
        raise ConfigException(f"option errors.dead.letter.queue.topic.name cannot be {dead_letter_topic!r}: it is the target topic itself")
    destinations = [name for name in ("errors.dead.letter.queue.topic.name", "errors.dead.letter.path") if settings[name] is not None]
    if destinations and settings["errors.tolerance"] == "none":
        raise ConfigException(
            f"{destinations[0]} needs errors.tolerance=all; without it the first bad row fails the batch, and there are no dead letters"
        )
    if settings["errors.tolerance"] == "all" and not destinations:
        raise ConfigException(
            "errors.tolerance=all needs a destination for the bad rows, or they would be lost: "
            "set errors.dead.letter.queue.topic.name, errors.dead.letter.path, or both"
        )


def _warn_unused_levels(settings: Settings) -> None:
    """Levels of unused codecs are accepted, as in producers: many programs share one configuration."""
    codec = settings["kafka.compression.type"]
    own = f"kafka.compression.{codec}.level"
    if unused := sorted(name for name in settings.given if re.fullmatch(r"kafka\.compression\..*\.level", name) and name != own):
        log_without_effect(f"with kafka.compression.type={codec}", unused)


def _require_marker_topic(settings: Settings) -> None:
    if settings["topic"] is None and settings["markerTopic"] is None:
        raise ConfigException(
            "option topic is missing: name the target topic; or, if rows name their topics in a topic column, "
            "set markerTopic to an existing topic whose partition 0 can hold the batch marker"
        )


def _refuse_non_transactional(settings: Settings, is_stream: bool) -> None:
    if is_stream and settings["idempotencyToken"] is not None:
        raise ConfigException("option idempotencyToken is for batch writes: a stream has its batch ids, leave it out")
    if not is_stream and settings["onMissingMarker"] == "write":
        raise ConfigException("option onMissingMarker is for streams: a batch write without a marker is written anyway, leave it out")
    if not settings["kafka.enable.idempotence"]:
        raise ConfigException("option kafka.enable.idempotence cannot be false: deliveryGuarantee=exactly-once needs it")
