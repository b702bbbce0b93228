"""Dead letters as rows again: what `replay` reads from the dead letter topic or its Parquet files, ready to be repaired and written.

Every frame here has the columns of `COLUMNS`: those that the sink writes come first. `topic` is where the row was to go.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chaffinch.identifiers import OFFSET_EARLIEST
from chaffinch.spark.tasks.notes import NOTE, NOTE_TOKEN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WRITTEN: Final = ("key", "value", "headers", "timestamp", "partition", "topic")
REASONS: Final = ("error_code", "error_name", "error_message", "error_group", "query", "batch")
COLUMNS: Final = (*WRITTEN, *REASONS)

_WRITTEN_SCHEMA: Final = (
    "key binary, value binary, headers array<struct<key: string, value: binary>>, timestamp timestamp_ltz, partition int, topic string"
)
_REASONS_SCHEMA: Final = "error_code int, error_name string, error_message string, error_group string, query string, batch bigint"

_FIRST_REASON: Final = "__connect.errors.topic"
# The sink adds its reasons behind the row's own headers, which may have the same names: those of a letter that was read as a row.
_REASONS_COUNT: Final = f"array_position(reverse(transform(headers, h -> h.key)), '{_FIRST_REASON}')"
_OWN: Final = f"coalesce(slice(headers, 1, size(headers) - {_REASONS_COUNT}), array())"
_ADDED: Final = f"slice(headers, size(headers) - {_REASONS_COUNT} + 1, {_REASONS_COUNT})"
# Nothing else: a row may have brought headers of these names with it, and is a letter then.
_IS_NOTE: Final = (
    f"coalesce(size(headers) = 2 AND get(headers, 0).key = '{NOTE}' AND get(headers, 1).key = '{NOTE_TOKEN}', false)"
)  # fmt: skip
# What stands in a letter in place of what its topic was too small for.
_CUT: Final = (
    "chaffinch.error.value.sha256", "chaffinch.error.key.sha256", "chaffinch.error.headers.count", "chaffinch.error.topic.sha256",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Letters of one partition, from `start` to `end` - 1, or none. `replayed`: up to where earlier replays have come, 0 for none."""

    partition: int
    start: int
    end: int
    replayed: int

    @property
    def is_empty(self) -> bool:
        return self.start >= self.end


def header(name: str) -> str:
    """An SQL expression for the text of a header; of several the last, which is the one that the sink has added."""
    return f"CAST(get(reverse(filter(headers, h -> h.key = '{name}')), 0).value AS STRING)"


def spans_in(spark: SparkSession, client: Mapping[str, str], topic: str, *, is_all: bool) -> tuple[Span, ...]:
    """What there is to replay in a dead letter topic now; `is_all`: what was replayed before too. Of each partition that has, or had,
    something."""
    from pyspark.sql.functions import expr

    read = spark.read.format("chaffinch").options(**client, subscribe=topic, includeHeaders="true").load()
    note = f"max_by(from_json({header(NOTE)}, 'map<string, bigint>'), offset) FILTER (WHERE {_IS_NOTE})"
    wanted = {"first": "min(offset)", "end": "max(offset) + 1", "note": note}
    found = read.groupBy("partition").agg(*(expr(text).alias(name) for name, text in wanted.items())).collect()
    replayed: dict[int, int] = {}
    for row in found:
        for number, end in (row["note"] or {}).items():
            replayed[int(number)] = max(end, replayed.get(int(number), 0))
    there = {row["partition"]: (row["first"], row["end"]) for row in found}
    spans = []
    for number in sorted({*there, *replayed}):
        done = replayed.get(number, 0)
        first, end = there.get(number, (done, done))
        spans.append(Span(partition=number, start=first if is_all else max(first, done), end=max(end, done), replayed=done))
    return tuple(spans)


def letters_in_topic(spark: SparkSession, client: Mapping[str, str], topic: str, spans: Sequence[Span]) -> DataFrame:
    """What is in the spans beside notes, with three columns more: `is_letter` for what the sink has made, `is_cut` for a letter that is not
    whole, `place` (partition and offset). Fails where any of it has been removed meanwhile."""
    from pyspark.sql.functions import expr

    numbers = [span.partition for span in spans]
    read = spark.read.format("chaffinch").options(
        **client,
        assign=json.dumps({topic: numbers}),
        startingOffsets=json.dumps({topic: {str(span.partition): span.start for span in spans}}),
        endingOffsets=json.dumps({topic: {str(span.partition): span.end for span in spans}}),
        includeHeaders="true",
    )
    return (
        read.load()
        .where(f"NOT {_IS_NOTE}")
        .withColumns({"own": expr(_OWN), "headers": expr(_ADDED)})
        .selectExpr(
            "key",
            "value",
            "own AS headers",
            f"coalesce(timestamp_millis(try_cast({header('chaffinch.error.timestamp')} AS BIGINT)), timestamp) AS timestamp",
            "CAST(NULL AS INT) AS partition",
            f"nullif({header(_FIRST_REASON)}, '') AS topic",
            f"try_cast({header('chaffinch.error.code')} AS INT) AS error_code",
            f"{header('chaffinch.error.name')} AS error_name",
            f"{header('__connect.errors.exception.message')} AS error_message",
            f"{header('chaffinch.error.group')} AS error_group",
            f"{header('chaffinch.error.query')} AS query",
            f"try_cast({header('chaffinch.error.batch')} AS BIGINT) AS batch",
            f"{' OR '.join(f'{header(name)} IS NOT NULL' for name in _CUT)} AS is_cut",
            # With a null too: then it names no topic.
            f"coalesce(exists(headers, h -> h.key = '{_FIRST_REASON}'), false) AS is_letter",
            "struct(partition, offset) AS place",
        )
    )


def letters_in_file(spark: SparkSession, path: str) -> DataFrame:
    """The letters of one Parquet file; they are always whole."""
    changed = {"partition": "CAST(NULL AS INT) AS partition", "topic": "nullif(topic, '') AS topic"}
    found = (changed.get(name, name) for name in COLUMNS)
    # Spark takes a path for a pattern, of which these are the marks.
    literal = re.sub(r"[\\*?\[\]{}]", r"\\\g<0>", path)
    return spark.read.parquet(literal).selectExpr(*found, "false AS is_cut")


def none_of_them(spark: SparkSession) -> DataFrame:
    """No letters, in their columns: for what is to be tried before anything is read."""
    return spark.createDataFrame([], f"{_WRITTEN_SCHEMA}, {_REASONS_SCHEMA}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What replays under one token have left: the notes' runs, and the letters that were made, by error, an example of each.

    `runs`: of at most one replay, with "" for a note of an earlier version, which named none.
    """

    runs: frozenset[str]
    rejected: Mapping[str, int]
    examples: tuple[str, ...]


def outcome_in_topic(
    spark: SparkSession, client: Mapping[str, str], topic: str, spans: Sequence[Span], partition_count: int, token: str
) -> Outcome:
    """Of the replay with this token, in what came into the dead letter topic after the spans, of which there is one for each partition that
    had something."""
    starts = {str(number): OFFSET_EARLIEST for number in range(partition_count)} | {str(span.partition): span.end for span in spans}
    read = spark.read.format("chaffinch").options(
        **client, assign=json.dumps({topic: list(range(partition_count))}), startingOffsets=json.dumps({topic: starts}),
        includeHeaders="true", failOnDataLoss="false",
    )  # fmt: skip
    found = read.load().selectExpr(
        f"{header('chaffinch.error.name')} AS error_name",
        f"{header('__connect.errors.exception.message')} AS error_message",
        f"{header(_FIRST_REASON)} AS topic",
        f"if({_IS_NOTE}, coalesce(CAST(value AS STRING), ''), NULL) AS run",
        f"if({_IS_NOTE}, {header(NOTE_TOKEN)}, {header('chaffinch.error.query')}) AS token",
    )
    return _outcome(found.where(found["token"] == token))


def outcome_in_file(spark: SparkSession, path: str) -> Outcome:
    """Of the replay that has made this file."""
    found = letters_in_file(spark, path)
    return _outcome(found.selectExpr("error_name", "error_message", "topic", "CAST(NULL AS STRING) AS run"))


def _outcome(found: DataFrame) -> Outcome:
    from pyspark.sql.functions import expr

    example = "min(concat('topic ', topic, ': ', error_name, ': ', error_message)) AS example"
    rows = found.groupBy("run", "error_name").agg(expr("count(*) AS count"), expr(example)).collect()
    letters = sorted((row for row in rows if row["run"] is None), key=lambda row: str(row["error_name"]))
    return Outcome(
        runs=frozenset(row["run"] for row in rows if row["run"] is not None),
        rejected={str(row["error_name"]): row["count"] for row in letters},
        examples=tuple(str(row["example"]) for row in letters),
    )
