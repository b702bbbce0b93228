"""Options and arguments of `write_table`, as options of the Spark sink, whose commit protocol it runs.

Internal; may change without notice.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final

from chaffinch.client.arguments import illegal_topic_error
from chaffinch.client.options import (
    METADATA_OPTIONS,
    STRING_BYTES_MAX,
    WITHOUT_EFFECT,
    ConnectionSettings,
    connection_options,
    reconnect_backoff,
    retry_backoff,
)
from chaffinch.errors import ConfigException
from chaffinch.producer.core.options import OPTIONS as PRODUCER_OPTIONS
from chaffinch.producer.core.options import WITHOUT_EFFECT as PRODUCER_WITHOUT_EFFECT
from chaffinch.settings import INT_MAX, Option, OptionTable, Settings, shown_value
from chaffinch.spark.commit.tolerance import Tolerance
from chaffinch.spark.options import ClientOptions
from chaffinch.spark.sink.option_tables import BATCH_SIZE_DEFAULT, EXACTLY_ONCE, TOKEN_BYTES_MAX, UNKNOWN_TOPIC_MS_DEFAULT
from chaffinch.spark.sink.options import SinkOptions
from chaffinch.spark.tasks.row_codec import WRITTEN

_COMPRESSION: Final = ("compression.type", "compression.gzip.level", "compression.lz4.level", "compression.zstd.level")
_OPTIONS: Final = (
    *connection_options("chaffinch-table"),
    *(option for option in PRODUCER_OPTIONS if option.name in _COMPRESSION),
    Option("batch.size", "int", BATCH_SIZE_DEFAULT, "bytes of a record batch before compression; max.message.bytes limits it too",
           minimum=1),
    Option("max.block.ms", "int", 60_000, "how long each step of the commit is retried", minimum=1),
    Option("max.request.size", "int", None, "bytes of the largest row; default: the limit of the topic", minimum=1),
    Option("retry.unknown.topic.partition.ms", "int", UNKNOWN_TOPIC_MS_DEFAULT,
           "how long a topic that a row names is looked for before the row is a bad one", minimum=0),
    Option("transaction.timeout.ms", "int", None, "default: from the size of the table, at least one minute", minimum=1, maximum=INT_MAX),
    Option("transactional.id", "string", None, "default: `chaffinch-` and the token", bytes_max=STRING_BYTES_MAX),
    Option("acks", "string", "all", "a transaction waits for all in-sync replicas", choices=("all", "-1")),
    Option("enable.idempotence", "bool", True, "a transaction is idempotent", refusal="a transaction needs it"),
)  # fmt: skip
_KNOWN: Final = {option.name for option in _OPTIONS}
# Options of producers that are shared in configurations: this client waits for each response, and a table has no lingering.
_WITHOUT_EFFECT: Final = sorted(
    ({option.name for option in (*PRODUCER_OPTIONS, *METADATA_OPTIONS)} | WITHOUT_EFFECT | PRODUCER_WITHOUT_EFFECT)
    - _KNOWN
    - {"key.serializer", "value.serializer", "custom.exception.handler.class", "drop.invalid.large.records", "trace.headers"}
)
TABLE: Final = OptionTable(
    _OPTIONS,
    without_effect=_WITHOUT_EFFECT,
    hints={
        **dict.fromkeys(("key.serializer", "value.serializer"), "keys and values are written as they are: bytes or text"),
        "trace.headers": "a table brings its headers in the column headers",
        **dict.fromkeys(
            ("custom.exception.handler.class", "drop.invalid.large.records"), "bad rows become dead letters: give dead_letters"
        ),
    },
)


def sink_options(
    topic: str | None,
    *,
    token: str,
    dead_letters: str | None,
    dead_letter_path: str | os.PathLike[str] | None,
    rejected_max: int | str | None,
    reason_column: str | None,
    marker_topic: str | None,
    staging_location: str | os.PathLike[str] | None,
    settings: Settings,
) -> SinkOptions:
    """The options of the sink for these arguments. Raises ConfigException, TypeError or ValueError for wrong ones."""
    texts = {
        "idempotency_token": token, "topic": topic, "dead_letters": dead_letters, "dead_letter_path": dead_letter_path,
        "reason_column": reason_column, "marker_topic": marker_topic, "staging_location": staging_location,
    }  # fmt: skip
    given = {name: _text(name, value) for name, value in texts.items()}
    if given["idempotency_token"] is None:
        raise ConfigException("argument idempotency_token cannot be None: give a name for this write, the same for each retry of it")
    if (size := len(given["idempotency_token"].encode())) > TOKEN_BYTES_MAX:
        raise ConfigException(f"argument idempotency_token has {size} bytes: it must have at most {TOKEN_BYTES_MAX}")
    for name in ("topic", "dead_letters", "marker_topic"):
        if given[name] is not None and (illegal := illegal_topic_error(given[name])) is not None:
            raise ConfigException(f"argument {name} cannot be {shown_value(given[name])}: {illegal.message}")
    if topic is None and marker_topic is None:
        raise ConfigException(
            "argument topic is missing: name the target topic; if rows name theirs in a topic column, name in marker_topic an existing "
            "topic whose partition 0 can carry the marker of the token"
        )
    if dead_letters is not None and dead_letters == topic:
        raise ConfigException(f"argument dead_letters cannot be {dead_letters!r}: it is the target topic itself")
    if reason_column in WRITTEN:
        raise ConfigException(f"argument reason_column cannot be {reason_column!r}: that column is part of the record; choose another")
    codec = settings["compression.type"]
    return SinkOptions(
        client=ClientOptions(
            bootstrap_servers=settings["bootstrap.servers"],
            connections=ConnectionSettings.of(settings),
            retry_backoff=retry_backoff(settings),
            reconnect_backoff=reconnect_backoff(settings),
        ),
        guarantee=EXACTLY_ONCE,
        topic=topic,
        marker_topic=marker_topic or topic,
        idempotency_token=token,
        staging_location=given["staging_location"],
        checkpoint_location=None,
        tolerance=_tolerance(dead_letters is not None or dead_letter_path is not None, rejected_max),
        dead_letter_topic=dead_letters,
        dead_letter_path=given["dead_letter_path"],
        reason_column=reason_column,
        writes_without_marker=False,
        compression_type=codec,
        compression_level=settings.get(f"compression.{codec}.level"),
        batch_bytes=settings["batch.size"],
        request_bytes_max=settings["max.request.size"],
        block_max_ms=settings["max.block.ms"],
        topic_wait_ms=min(settings["retry.unknown.topic.partition.ms"], settings["max.block.ms"]),
        transactional_id=settings["transactional.id"],
        transaction_timeout_ms=settings["transaction.timeout.ms"],
    )


def _text(name: str, value: object) -> Any:
    """The text of an argument; None if it is not given."""
    if value is None:
        return None
    text = os.fspath(value) if isinstance(value, os.PathLike) and ("path" in name or "location" in name) else value
    if not isinstance(text, str):
        raise TypeError(f"argument {name} must be a string, and is a {type(value).__name__}")
    if not text.strip():
        raise ConfigException(f"argument {name} is empty: give it a value, or leave it out")
    return text


def _tolerance(has_destination: bool, rejected_max: int | str | None) -> Tolerance:
    if rejected_max is None:
        return Tolerance(tolerates=has_destination)
    if not has_destination:
        raise ConfigException(
            "argument rejected_max needs dead_letters or dead_letter_path: without them the first bad row fails the write"
        )
    text = str(rejected_max) if isinstance(rejected_max, int) and not isinstance(rejected_max, bool) else rejected_max
    try:
        if isinstance(text, str):
            return Tolerance.parse("all", text)
    except ValueError:
        pass
    raise ConfigException(f"argument rejected_max cannot be {shown_value(rejected_max)}: it must be a count (100) or a share ('5%')")


# Names in texts of the sink, in this order -> those of the arguments and options here.
_NAMES: Final[Mapping[str, str]] = {
    r"errors\.tolerance=none allows none": "none is allowed without dead_letters",
    r"set errors\.tolerance=all and a dead letter topic or path": "give dead_letters or dead_letter_path",
    r"errors\.tolerance\.max": "rejected_max",
    r"errors\.dead\.letter\.queue\.topic\.name": "dead_letters",
    r"errors\.dead\.letter\.path": "dead_letter_path",
    r"\bidempotencyToken\b": "idempotency_token",
    r"\bmarkerTopic\b": "marker_topic",
    r"\bstagingLocation\b": "staging_location",
    r"\boption (?=topic\b|marker_topic\b|dead_letters\b)": "argument ",
    r"(?<=\brow )(\d+) of task 0\b": r"\1",
    r"(?<![\w.])kafka\.(?=[a-z]+(?:\.[a-z]+)+)": "",
}


def in_own_names(text: str) -> str:
    """A text of the sink with the names that users of `write_table` know."""
    for pattern, name in _NAMES.items():
        text = re.sub(pattern, name, text)
    return text
