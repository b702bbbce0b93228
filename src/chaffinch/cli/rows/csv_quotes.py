"""Where a quote of CSV opened that is never closed: Arrow takes the rest of the file for the field, and does not say so."""

from __future__ import annotations

import re
from collections import deque
from typing import IO, Final

# Two quotes within a quoted field are one of its characters. What is left of a field, up to the quote that closes it, or to the end.
_REST_OF_FIELD: Final = rb'[^"]*(?:""[^"]*)*("(?!")|\Z)'
_INSIDE: Final = re.compile(_REST_OF_FIELD)
# A quote opens a field only where the field begins.
_QUOTED_FIELD: Final = re.compile(rb'"(?<=[,\r\n]")' + _REST_OF_FIELD)  # The quote first: the search then skips what has none.


class QuoteWatch:
    """A file for Arrow to read that looks at what goes through it. `file` stands at the beginning of line `line`."""

    closed = False

    def __init__(self, file: IO[bytes], line: int) -> None:
        self.open_line: int | None = None
        """The line of the quote that is open after what was read so far."""
        self.is_ended = False
        self._file = file
        self._line = line
        self._before = b"\n"
        self._held = b""

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        """Nothing: the file is its opener's."""

    def read(self, size: int = -1) -> bytes:
        chunk = self._file.read(size)
        if not self.is_ended:
            self.is_ended = not chunk
            self._look(self._held + chunk)
        return chunk

    def _look(self, data: bytes) -> None:
        # Whether quotes at the end are one that closes shows with what follows.
        end = len(data) if self.is_ended else len(data.rstrip(b'"'))
        text, self._held = self._before + data[:end], data[end:]
        position = 1
        if self.open_line is not None:
            rest = _INSIDE.match(text, 1)
            assert rest is not None, "it matches nothing too"
            position = rest.end()
            self.open_line = None if rest[1] else self.open_line
        if self.open_line is None:
            for last in deque(_QUOTED_FIELD.finditer(text, position), maxlen=1):
                self.open_line = None if last[1] else self._line + text.count(b"\n", 1, last.start())
        self._line += text.count(b"\n", 1)
        self._before = text[-1:]
