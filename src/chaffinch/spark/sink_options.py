"""The options of the sink: their table, what of it is fixed per query, and the checks that need no broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from chaffinch.errors import ConfigException
from chaffinch.settings import Option, OptionTable, Settings
from chaffinch.spark.options import CLIENT, CLIENT_WITHOUT_EFFECT, OF_SPARK, ClientOptions, parse
from chaffinch.spark.tolerance import Tolerance

BATCH_SIZE_DEFAULT: Final = 1_000_000

SINK: Final = OptionTable(
    (
        *CLIENT,
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
        *OF_SPARK, *CLIENT_WITHOUT_EFFECT, "includeHeaders", "kafka.linger.ms", "kafka.buffer.memory", "kafka.retries",
        "kafka.delivery.timeout.ms", "kafka.max.in.flight.requests.per.connection", "kafka.max.request.size", "kafka.partitioner.class",
    ),
    hints={"path": "save() and start() take no path here; a topic is named by the option topic, or in a column topic"},
)  # fmt: skip


# Options that KafkaSink sets for its writes; nobody else's, so they are in no table.
_SINK_NAME: Final = "chaffinch.sink"
_BATCH_ID: Final = "chaffinch.batch.id"
_RUN_ID: Final = "chaffinch.run.id"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRun:
    """The micro-batch that a batch write inside `foreachBatch` belongs to: it is committed as the stream's own sink would commit it."""

    batch_id: int
    run_id: str | None


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
    sink_name: str | None = None
    """Tells several sinks of one query apart: each has its own marker, transactional id, state, staging and dead letter files."""
    run: BatchRun | None = None

    def named(self, query: str) -> str:
        """The name under which this sink keeps what it writes for a query."""
        return query if self.sink_name is None else f"{query}-{self.sink_name}"

    @classmethod
    def parse(cls, options: Mapping[str, str], *, is_stream: bool) -> Self:
        """Errors: ConfigException for everything that can be told without a broker."""
        hidden = {name.lower(): value for name, value in options.items() if name.lower() in (_SINK_NAME, _BATCH_ID, _RUN_ID)}
        settings = parse(SINK, {name: value for name, value in options.items() if name.lower() not in hidden})
        run = BatchRun(batch_id=int(hidden[_BATCH_ID]), run_id=hidden.get(_RUN_ID)) if _BATCH_ID in hidden else None
        is_stream = is_stream or run is not None
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
            sink_name=hidden.get(_SINK_NAME),
            run=run,
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
