"""Java properties files, as `--command-config` takes them: `name=value` lines with Java's comments, continuations and escapes.

Follows the grammar of java.util.Properties; the text is UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from chaffinch.errors import ConfigException

FILE_BYTES_MAX: Final = 1 << 20

_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
# The name ends at the first `=`, `:` or blank that no backslash stands before.
_ENTRY: Final = re.compile(r"(?P<name>(?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(?P<value>.*)", re.DOTALL)


def load(path: str) -> dict[str, str]:
    """The entries of a file. ConfigException for a file that cannot be read, or that gives a name twice."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise ConfigException(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigException(f"{path}: not a text file in UTF-8") from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigException(f"{path}: larger than {FILE_BYTES_MAX} bytes, too large for a file of options")
    entries: dict[str, str] = {}
    for name, value in parse(text):
        if name in entries:
            raise ConfigException(f"{path}: option {name} is given twice")
        entries[name] = value
    return entries


def parse(text: str) -> Iterator[tuple[str, str]]:
    """Names and values, in the order of the text."""
    for line in _logical_lines(text):
        found = _ENTRY.fullmatch(line)
        assert found is not None, "every text is a name and a value"
        yield _unescaped(found["name"]), _unescaped(found["value"]).rstrip()


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments and blank ones, continuations joined: those that end with an odd number of backslashes."""
    waiting = ""
    for line in re.split(r"\r\n|\n|\r", text):
        line = line.lstrip(" \t\f")
        if not waiting and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            waiting += line[:-1]
            continue
        yield waiting + line
        waiting = ""
    if waiting:
        yield waiting


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1][1:], 16)) if len(found[1]) > 1 else _ESCAPES.get(found[1], found[1]), text)
