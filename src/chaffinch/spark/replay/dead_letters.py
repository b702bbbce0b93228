"""Dead letters as data frames, read from a dead letter topic or its Parquet files, to be repaired and written again.

Every frame has the columns of `COLUMNS`, first those that the sink writes. `topic` is the original target of the row.
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
"""Columns that identify a letter, with the same values in the topic and in a file. `row`: its number in the task, null in the topic for
letters of earlier versions. `content`: query, batch, task, error, and digests of topic, key and value."""

_WRITTEN_SCHEMA: Final = (
    "key binary, value binary, headers array<struct<key: string, value: binary>>, timestamp timestamp_ltz, partition int, topic string"
)
_REASONS_SCHEMA: Final = "error_code int, error_name string, error_message string, error_group string, query string, batch bigint"

_FIRST_REASON: Final = "__connect.errors.topic"
# The sink adds its reasons after the row's own headers. These can have the same names if the row was itself a dead letter.
_REASONS_COUNT: Final = f"array_position(reverse(transform(headers, h -> h.key)), '{_FIRST_REASON}')"
_OWN: Final = f"coalesce(slice(headers, 1, size(headers) - {_REASONS_COUNT}), array())"
_ADDED: Final = f"slice(headers, size(headers) - {_REASONS_COUNT} + 1, {_REASONS_COUNT})"
# Exactly these headers: a dead letter can have headers of these names from its row.
IS_NOTE: Final = (
    f"coalesce(size(headers) = 2 AND get(headers, 0).key = '{NOTE}' AND get(headers, 1).key = '{NOTE_TOKEN}', false)"
)  # fmt: skip
# Headers of a truncated letter, which was too large for its topic.
_CUT: Final = (
    "chaffinch.error.value.sha256", "chaffinch.error.key.sha256", "chaffinch.error.headers.count", "chaffinch.error.topic.sha256",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Letters of one partition, from `start` to `end` - 1; may be empty. `replayed`: end of earlier replays, 0 for none."""

    partition: int
    start: int
    end: int
    replayed: int

    @property
    def is_empty(self) -> bool:
        return self.start >= self.end


def header(name: str) -> str:
    """An SQL expression for the text of a header. The last one of that name counts, which the sink has added."""
    return f"CAST(get(reverse(filter(headers, h -> h.key = '{name}')), 0).value AS STRING)"


def dead_letters_in_topic(spark: SparkSession, client: Mapping[str, str], topic: str, spans: Sequence[Span]) -> DataFrame:
    """Records of the spans without notes, with further columns: `is_letter`, `is_cut` (truncated), `at_partition`, `at_offset`, and those
    of `ORIGIN`.

    Reading fails if records were removed in the meantime.
    """
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
            # Also with a null value, for a letter without a topic.
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
    """Letters of one Parquet file, which are never truncated, with the columns of `ORIGIN`; `at_offset` is the row number in the file."""
    # Spark treats a path as a glob pattern: escape its special characters.
    literal = re.sub(r"[\\*?\[\]{}]", r"\\\g<0>", path)
    read = spark.read.parquet(literal)
    changed = {"partition": "CAST(NULL AS INT) AS partition", "topic": "nullif(topic, '') AS topic"}
    found = (changed.get(name, name) for name in COLUMNS)
    task, row = (name if name in read.columns else "NULL" for name in ("task", "row"))
    columns = "false AS is_cut", "true AS is_letter", "0 AS at_partition", "_metadata.row_index AS at_offset"
    content = _content(["query", "batch", task, "error_name"], [("NULL", "coalesce(topic, '')"), ("NULL", "key"), ("NULL", "value")])
    return read.selectExpr(*found, *columns, f"CAST({row} AS BIGINT) AS row", content)


def _content(texts: Sequence[str], bytes_of: Sequence[tuple[str, str]]) -> str:
    """The column `content`, equal for a letter in the topic and in a file: texts, then SHA-256 digests.

    `bytes_of`: pairs of the digest in a truncated letter and the bytes themselves.
    """
    parts = [f"coalesce(CAST({text} AS STRING), '-')" for text in texts]
    parts += [f"coalesce({digest}, sha2(CAST({found} AS BINARY), 256), '-')" for digest, found in bytes_of]
    return f"concat_ws('|', {', '.join(parts)}) AS content"


def empty_frame(spark: SparkSession) -> DataFrame:
    """An empty frame of letters, to check expressions before anything is read."""
    return spark.createDataFrame([], f"{_WRITTEN_SCHEMA}, {_REASONS_SCHEMA}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of the replays under one token: the runs in their notes, and new dead letters by error, with an example each.

    `runs`: at most one; "" for a note of an earlier version, which has none. `retained`: unselected letters of a file, which are in the
    same file now.
    """

    runs: frozenset[str]
    rejected: Mapping[str, int]
    examples: tuple[str, ...]
    retained: int = 0


def outcome_in_topic(spark: SparkSession, client: Mapping[str, str], topic: str, starts: Mapping[str, int], token: str) -> Outcome:
    """Outcome of the replay with this token, from the dead letter topic after the start offsets by partition."""
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
    """Outcome of the replay with this token, from the file that it has written."""
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
