r"""External text as one line of printable characters, for terminals, tables and logs.

Internal; may change without notice.

Names and messages from the network may contain anything: escape sequences that rewrite a terminal, line feeds that forge a log line, marks
that reverse the direction of text. Each such character is replaced by its JSON escape, `\u001b`, `\n`.
"""

from __future__ import annotations

import logging
from typing import Final

_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def plain(text: str, keep: str = "") -> str:
    """Escape unprintable characters, except those in `keep`."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in keep else _escape(each) for each in text)


def abbreviate(text: str, length_max: int) -> str:
    """Shorten to at most `length_max` characters by removing the middle: ids often differ at the beginning and the end."""
    if len(text) <= length_max:
        return text
    tail = (length_max - 3) * 2 // 5
    return f"{text[: length_max - 3 - tail]}...{text[-tail:]}"


def logger(name: str) -> logging.Logger:
    """The logger of this name, whose messages become single lines."""
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
