"""Dead letters as rows again: what `replay` reads from the dead letter topic or its Parquet files, ready to be repaired and written.

Every frame here has the columns of `COLUMNS`: those that the sink writes come first. `topic` is where the row was to go.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chaffinch.spark.tasks.dead_letter_headers import ROW
from chaffinch.spark.tasks.replay_notes import NOTE, NOTE_TOKEN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WRITTEN: Final = ("key", "value", "headers", "timestamp", "partition", "topic")
REASONS: Final = ("error_code", "error_name", "error_message", "error_group", "query", "batch")
COLUMNS: Final = (*WRITTEN, *REASONS)
ORIGIN: Final = ("row", "content")
"""What tells one letter from another, and is the same in the topic and in a file: the row's number in its task, null in the topic for
letters of earlier versions, and what it is of: query, batch, task, error and digests of topic, key and value."""

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
IS_NOTE: Final = (
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


def dead_letters_in_topic(spark: SparkSession, client: Mapping[str, str], topic: str, spans: Sequence[Span]) -> DataFrame:
    """What is in the spans beside notes, with more columns: `is_letter` for what the sink has made, `is_cut` for a letter that is not
    whole, `at_partition` and `at_offset` for its place, and those of `ORIGIN`. Fails where any of it has been removed meanwhile."""
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
        .where(f"NOT {IS_NOTE}")
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
            "partition AS at_partition",
            "offset AS at_offset",
            f"try_cast({header(ROW)} AS BIGINT) AS row",
            _content(
                [
                    header("chaffinch.error.query"),
                    header("chaffinch.error.batch"),
                    f"nullif({header('__connect.errors.task.id')}, '')",
                    header("chaffinch.error.name"),
                ],
                [
                    (header("chaffinch.error.topic.sha256"), f"coalesce({header(_FIRST_REASON)}, '')"),
                    (header("chaffinch.error.key.sha256"), "key"),
                    (header("chaffinch.error.value.sha256"), "value"),
                ],
            ),
        )
    )


def dead_letters_in_file(spark: SparkSession, path: str) -> DataFrame:
    """The letters of one Parquet file, which are always whole, with the column `at_offset` for the row's number in the file, and those of
    `ORIGIN`."""
    # Spark takes a path for a pattern, of which these are the marks.
    literal = re.sub(r"[\\*?\[\]{}]", r"\\\g<0>", path)
    read = spark.read.parquet(literal)
    changed = {"partition": "CAST(NULL AS INT) AS partition", "topic": "nullif(topic, '') AS topic"}
    found = (changed.get(name, name) for name in COLUMNS)
    task, row = (name if name in read.columns else "NULL" for name in ("task", "row"))
    columns = "false AS is_cut", "true AS is_letter", "0 AS at_partition", "_metadata.row_index AS at_offset"
    content = _content(["query", "batch", task, "error_name"], [("NULL", "coalesce(topic, '')"), ("NULL", "key"), ("NULL", "value")])
    return read.selectExpr(*found, *columns, f"CAST({row} AS BIGINT) AS row", content)


def _content(texts: Sequence[str], bytes_of: Sequence[tuple[str, str]]) -> str:
    """The column `content`, the same of a letter in the topic and in a file: some texts, then SHA-256 of some bytes. `bytes_of`: the
    digest that a letter has in place of bytes that it has lost, and the bytes."""
    parts = [f"coalesce(CAST({text} AS STRING), '-')" for text in texts]
    parts += [f"coalesce({digest}, sha2(CAST({found} AS BINARY), 256), '-')" for digest, found in bytes_of]
    return f"concat_ws('|', {', '.join(parts)}) AS content"


def empty_frame(spark: SparkSession) -> DataFrame:
    """No letters, in their columns: for what is to be tried before anything is read."""
    return spark.createDataFrame([], f"{_WRITTEN_SCHEMA}, {_REASONS_SCHEMA}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What replays under one token have left: the notes' runs, and the letters that were made, by error, an example of each.

    `runs`: of at most one replay, with "" for a note of an earlier version, which named none. `kept`: letters of a file that were passed
    over, and are in the same file now.
    """

    runs: frozenset[str]
    rejected: Mapping[str, int]
    examples: tuple[str, ...]
    retained: int = 0


def outcome_in_topic(spark: SparkSession, client: Mapping[str, str], topic: str, starts: Mapping[str, int], token: str) -> Outcome:
    """Of the replay with this token, in what came into the dead letter topic from these offsets on, one for each partition."""
    read = spark.read.format("chaffinch").options(
        **client, assign=json.dumps({topic: [int(number) for number in starts]}), startingOffsets=json.dumps({topic: dict(starts)}),
        includeHeaders="true", failOnDataLoss="false",
    )  # fmt: skip
    run = "coalesce(get_json_object(CAST(value AS STRING), '$.run'), CAST(value AS STRING), '')"
    found = read.load().selectExpr(
        f"{header('chaffinch.error.name')} AS error_name",
        f"{header('__connect.errors.exception.message')} AS error_message",
        f"{header(_FIRST_REASON)} AS topic",
        f"if({IS_NOTE}, {run}, NULL) AS run",
        f"if({IS_NOTE}, {header(NOTE_TOKEN)}, {header('chaffinch.error.query')}) AS query",
    )
    return _outcome(found.where(found["query"] == token), token)


def outcome_in_file(spark: SparkSession, path: str, token: str) -> Outcome:
    """Of the replay with this token, which has made this file."""
    return _outcome(
        dead_letters_in_file(spark, path).selectExpr("error_name", "error_message", "topic", "CAST(NULL AS STRING) AS run", "query"), token
    )


def _outcome(found: DataFrame, token: str) -> Outcome:
    from pyspark.sql.functions import col, expr, lit

    example = "min(concat('topic ', topic, ': ', error_name, ': ', error_message)) AS example"
    is_made = (col("query") == lit(token)).alias("is_made")
    rows = found.groupBy(is_made, "run", "error_name").agg(expr("count(*) AS count"), expr(example)).collect()
    letters = sorted((row for row in rows if row["is_made"] and row["run"] is None), key=lambda row: str(row["error_name"]))
    return Outcome(
        runs=frozenset(row["run"] for row in rows if row["run"] is not None),
        rejected={str(row["error_name"]): row["count"] for row in letters},
        examples=tuple(str(row["example"]) for row in letters),
        retained=sum(row["count"] for row in rows if not row["is_made"]),
    )
