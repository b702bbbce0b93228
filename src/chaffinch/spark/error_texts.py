"""What went wrong, in one line, out of the text of whatever error Spark raised. Pure."""

from __future__ import annotations

import re
from typing import Final

from chaffinch.errors.codes import Group
from chaffinch.spark.refusals import ErrorTag, Refusal, tag_in

WORKER_LOST: Final = "WORKER_LOST"
# What Spark says, in its own words, when a process of it died: nobody's fault, so the batch is run again.
_WORKER_LOST_TEXT: Final = re.compile(
    r"(?:Python worker exited unexpectedly|Python worker failed to connect back|ExecutorLostFailure)(?:(?! SQLSTATE: )[^\r\n])*"
)
# Of the process that a stream's source runs in as long as the query does, Spark says in no words that it died: Java's trace does.
_SOURCE_LOST: Final = re.compile(
    r"java\.(?:io|net|nio)\.[\w.]*Exception(?:: [^\r\n]*)?(?:\s+at [^\r\n]+)+?\s+at [\w.]*\.PythonStreamingSourceRunner\."
)
_SOURCE_LOST_TEXT: Final = "the Python process that Spark asks for the offsets of a source died"
# Said without a tag, as by a KafkaSink that is made or called wrongly in a function of the user's.
_CONFIG_ERROR: Final = re.compile(r"chaffinch\.errors\.exceptions\.ConfigException: ([^\r\n]*)")
# What Py4J writes before what Java said.
_PY4J_PREFIX: Final = re.compile(r"\A\s*An error occurred while calling \S+\s*:\s*")
_LINE_MAX: Final = 300


def tag_of(text: str) -> ErrorTag | None:
    """The tag in an error's text; or one for a wrong configuration, or for what Spark says of a process that died; None for all else."""
    if found := tag_in(text):
        return found
    if wrong := _CONFIG_ERROR.search(text):
        return tag_in(str(Refusal(Group.INVALID_CONFIGURATION, "CONFIG", wrong[1])))
    lost = _WORKER_LOST_TEXT.search(text)
    return lost and ErrorTag(group=Group.APPLICATION_RECOVERABLE, name=WORKER_LOST, text=_short(lost[0]))


def tag_of_error(error: Exception) -> ErrorTag | None:
    """The same of an error that PySpark raised, with what Java's trace alone says."""
    if found := tag_of(str(error)):
        return found
    trace = getattr(error, "_stackTrace", None)
    if isinstance(trace, str) and _SOURCE_LOST.search(trace):
        return ErrorTag(group=Group.APPLICATION_RECOVERABLE, name=WORKER_LOST, text=_SOURCE_LOST_TEXT)
    return None


def first_line(tag: ErrorTag | None, text: str) -> str:
    """One line that says what went wrong: the tag's, else the first of the text."""
    if tag is not None:
        return f"KAFKA[{tag.group.value}] {tag.name}: {tag.text}"
    return _short(next((line for line in _PY4J_PREFIX.sub("", text).splitlines() if line.strip()), "an error without words"))


def _short(line: str) -> str:
    line = line.strip()
    return line if len(line) <= _LINE_MAX else line[: _LINE_MAX - 3] + "..."
