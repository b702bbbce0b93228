"""Text from elsewhere as one line of visible characters: for terminals, tables and logs.

Names and messages that come by network may hold anything: escape sequences that rewrite a terminal, line feeds that forge a line of a log,
marks that reverse the direction of reading. Here each such character becomes its escape as in JSON, `\\u001b`, `\\n`.
"""

from __future__ import annotations

import logging
from typing import Final

_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def plain(text: str, keep: str = "") -> str:
    """Characters that cannot be printed, but for those to `keep`, as their escapes; all others as they are."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in keep else _escape(each) for each in text)


def abbreviate(text: str, length_max: int) -> str:
    """At most this long: the middle goes, since ids often begin and end with what tells them apart."""
    if len(text) <= length_max:
        return text
    tail = (length_max - 3) * 2 // 5
    return f"{text[: length_max - 3 - tail]}...{text[-tail:]}"


def logger(name: str) -> logging.Logger:
    """The logger of this name; from now on each of its messages is one line."""
    found = logging.getLogger(name)
    found.addFilter(_one_line)
    return found


def _one_line(record: logging.LogRecord) -> bool:
    message = record.getMessage()
    if not message.isprintable():
        record.msg, record.args = plain(message), ()
    return True


def _escape(character: str) -> str:
    if character in _SHORT:
        return _SHORT[character]
    code = ord(character)
    if code < 0x10000:
        return f"\\u{code:04x}"
    return "".join(f"\\u{half:04x}" for half in (0xD800 + ((code - 0x10000) >> 10), 0xDC00 + (code & 0x3FF)))
