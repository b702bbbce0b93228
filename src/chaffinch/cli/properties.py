"""Java properties files, for `--command-config` and similar options: `name=value` lines with Java's comments, continuations and escapes.

Follows the grammar of java.util.Properties; the text is UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from chaffinch.cli.option_source import SourcedOption
from chaffinch.errors import ConfigException

FILE_BYTES_MAX: Final = 1 << 20

_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
# The name ends at the first `=`, `:` or blank without a backslash before it.
_ENTRY: Final = re.compile(r"(?P<name>(?:\\.|[^\\=: \t\f])*)[ \t\f]*(?P<separator>[=:]?)[ \t\f]*(?P<value>.*)", re.DOTALL)


def load(path: str, option: str = "", *, what: str = "option", is_strict: bool = False) -> dict[str, str]:
    """Like `read`, without the sources."""
    return {name: value for name, value, *_ in read(path, option, what=what, is_strict=is_strict)}


def read(path: str, option: str = "", *, what: str = "option", is_strict: bool = False) -> list[SourcedOption]:
    """Read the entries of a file that `option` of the command line named; `what` is the noun for a name in errors.

    With `is_strict` each entry needs a `=`; the format itself accepts any text as a name and a value. Raises ConfigException for a file
    that cannot be read and for a repeated name. The error shows nothing of the file, which may hold a secret.
    """
    if not path:
        raise ConfigException(f"{option or 'the name of a file'} is empty: expected the name of a file of {what}s")
    where = f"{option} {path}" if option else path
    try:
        with Path(path).open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise ConfigException(f"{where}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigException(f"{where}: not a text file in UTF-8") from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigException(f"{where}: larger than {FILE_BYTES_MAX} bytes, too large for a file of options")
    entries: list[SourcedOption] = []
    lines: dict[str, int] = {}
    for line, name, separator, value in _entries(text):
        if is_strict and separator != "=":
            raise ConfigException(f"{where}:{line}: not name=value")
        if lines.setdefault(name, line) != line:
            raise ConfigException(f"{where}:{line}: repeats the {what} of line {lines[name]}")
        entries.append(SourcedOption(name, value, f"{where}:{line}", is_from_file=True))
    return entries


def parse(text: str) -> Iterator[tuple[str, str]]:
    """Parse a text: names and values in its order."""
    return ((name, value) for _, name, _, value in _entries(text))


def _entries(text: str) -> Iterator[tuple[int, str, str, str]]:
    """(number of the last line, name, separator, value) of each entry; the separator is "" if only blanks separate them."""
    for number, line in _logical_lines(text):
        found = _ENTRY.fullmatch(line)
        assert found is not None, "every text is a name and a value"
        yield number, _unescape(found["name"]), found["separator"], _unescape(found["value"]).rstrip()


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """(number of the last line, text) of each logical line. A line that ends with an odd number of backslashes continues in the next one.

    Comments and blank lines are left out.
    """
    waiting, number = "", 0
    for number, line in enumerate(re.split(r"\r\n|\n|\r", text), start=1):
        line = line.lstrip(" \t\f")
        if not waiting and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            waiting += line[:-1]
            continue
        yield number, waiting + line
        waiting = ""
    if waiting:
        yield number, waiting


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1][1:], 16)) if len(found[1]) > 1 else _ESCAPES.get(found[1], found[1]), text)
