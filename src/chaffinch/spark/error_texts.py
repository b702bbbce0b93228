"""One-line error messages, extracted from the texts of Spark errors. Pure."""

from __future__ import annotations

import re
from typing import Final

from chaffinch.errors.codes import Group
from chaffinch.spark.refusals import ErrorTag, Refusal, tag_in

WORKER_LOST: Final = "WORKER_LOST"
# Texts of Spark for a process that died. Nothing is misconfigured, so the batch is run again.
_WORKER_LOST_TEXT: Final = re.compile(
    r"(?:Python worker exited unexpectedly|Python worker failed to connect back|ExecutorLostFailure)(?:(?! SQLSTATE: )[^\r\n])*"
)
# When the Python process of a stream's source dies, Spark has no message for it: only the Java stack trace shows it.
_SOURCE_LOST: Final = re.compile(
    r"java\.(?:io|net|nio)\.[\w.]*Exception(?:: [^\r\n]*)?(?:\s+at [^\r\n]+)+?\s+at [\w.]*\.PythonStreamingSourceRunner\."
)
_SOURCE_LOST_TEXT: Final = "the Python process that gives Spark the offsets of a source died"
# An error without a tag, such as that of a KafkaSink that is created or called incorrectly in the user's function.
_CONFIG_ERROR: Final = re.compile(r"chaffinch\.errors\.ConfigException: ([^\r\n]*)")
UNUSABLE_OUTPUT_MODE: Final = (
    'output mode update cannot be used with format("chaffinch"), because Spark refuses it for sinks in Python: write with '
    'foreachBatch(KafkaSink(...)) of chaffinch.spark, or use outputMode("append") or outputMode("complete")'
)
_UPDATE_REFUSED: Final = "requirement failed: chaffinch does not support Update mode"
_SAVE_MODE_REFUSED: Final = re.compile(
    r'\[UNSUPPORTED_DATA_SOURCE_SAVE_MODE\] The data source "chaffinch" cannot be written in the "(\w+)"'
)
# The text that Py4J adds before the Java message.
_PY4J_PREFIX: Final = re.compile(r"\A\s*An error occurred while calling \S+\s*:\s*")
_LINE_MAX: Final = 300


def tag_of(text: str) -> ErrorTag | None:
    """The tag in an error's text. An invalid configuration and the death of a Spark process get a tag; None for all other errors."""
    if found := tag_in(text):
        return found
    if wrong := _CONFIG_ERROR.search(text):
        return _config_tag(wrong[1])
    if (reason := config_error_of_spark(text)) is not None:
        return _config_tag(reason)
    lost = _WORKER_LOST_TEXT.search(text)
    return lost and ErrorTag(group=Group.APPLICATION_RECOVERABLE, name=WORKER_LOST, text=_short(lost[0]))


def config_error_of_spark(text: str) -> str | None:
    """The error to report for a mode that Spark refuses before it calls the data source; None for all other texts."""
    if _UPDATE_REFUSED in text:
        return UNUSABLE_OUTPUT_MODE
    if found := _SAVE_MODE_REFUSED.search(text):
        return (
            f'mode {found[1]} cannot be used with format("chaffinch"), which only appends to a topic: call .mode("append") before '
            ".save(); without a mode Spark uses errorifexists"
        )
    return None


def _config_tag(reason: str) -> ErrorTag | None:
    return tag_in(str(Refusal(Group.INVALID_CONFIGURATION, "CONFIG", reason)))


def tag_of_error(error: Exception) -> ErrorTag | None:
    """Like `tag_of`, for an error that PySpark raised; also searches its Java stack trace."""
    if found := tag_of(str(error)):
        return found
    trace = getattr(error, "_stackTrace", None)
    if isinstance(trace, str) and _SOURCE_LOST.search(trace):
        return ErrorTag(group=Group.APPLICATION_RECOVERABLE, name=WORKER_LOST, text=_SOURCE_LOST_TEXT)
    return None


def first_line(tag: ErrorTag | None, text: str) -> str:
    """The error on one line: that of the tag, or else the first line of the text."""
    if tag is not None:
        return f"KAFKA[{tag.group.value}] {tag.name}: {tag.text}"
    return _short(next((line for line in _PY4J_PREFIX.sub("", text).splitlines() if line.strip()), "an error without a message"))


def _short(line: str) -> str:
    line = line.strip()
    return line if len(line) <= _LINE_MAX else line[: _LINE_MAX - 3] + "..."
