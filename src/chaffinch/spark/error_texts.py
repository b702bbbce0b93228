"""What went wrong, in one line, out of the text of whatever error Spark raised. Pure."""

from __future__ import annotations

import re
from typing import Final

from chaffinch.errors.codes import Group
from chaffinch.spark.refusals import ErrorTag, Refusal, tag_in

WORKER_LOST: Final = "WORKER_LOST"
# What Spark says, in its own words, when a process of it died: nobody's fault, so the batch is run again.
_LOST: Final = re.compile(r"(?:Python worker exited unexpectedly|Python worker failed to connect back|ExecutorLostFailure)[^\r\n]*")
# Said without a tag, as by a KafkaSink that is made or called wrongly in a function of the user's.
_WRONG: Final = re.compile(r"chaffinch\.errors\.exceptions\.ConfigException: ([^\r\n]*)")
# What Py4J writes before what Java said.
_OF_PY4J: Final = re.compile(r"\A\s*An error occurred while calling \S+\s*:\s*")
_LINE_MAX: Final = 300


def tag_of(text: str) -> ErrorTag | None:
    """The tag in an error's text; or one for a wrong configuration, or for what Spark says of a process that died; None for all else."""
    if found := tag_in(text):
        return found
    if wrong := _WRONG.search(text):
        return tag_in(str(Refusal(Group.INVALID_CONFIGURATION, "CONFIG", wrong[1])))
    lost = _LOST.search(text)
    return lost and ErrorTag(group=Group.APPLICATION_RECOVERABLE, name=WORKER_LOST, text=_short(lost[0]))


def first_line(tag: ErrorTag | None, text: str) -> str:
    """One line that says what went wrong: the tag's, else the first of the text."""
    if tag is not None:
        return f"KAFKA[{tag.group.value}] {tag.name}: {tag.text}"
    return _short(next((line for line in _OF_PY4J.sub("", text).splitlines() if line.strip()), "an error without words"))


def _short(line: str) -> str:
    line = line.strip()
    return line if len(line) <= _LINE_MAX else line[: _LINE_MAX - 3] + "..."
