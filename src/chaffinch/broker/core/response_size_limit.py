"""How much one answer may hold whose parts are larger than what asks for them: a few bytes name a group of ten thousand members.

No answer beyond `queued.max.response.bytes` could ever leave, so none is built: the connection is closed instead, with one line in the
log. (A request itself is bounded by `protocol.decoder.REQUEST_STRUCTURES_MAX`, and with it every answer whose parts are as small.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from chaffinch.protocol.schema import Message

STRUCTURE_BYTES: Final = 200
"""What a part of an answer takes in memory beside its texts, about."""

_Part = TypeVar("_Part", bound=Message)


class ResponseTooLarge(Exception):
    """Raised by handlers in the middle of an answer; whoever called them closes the connection."""


class ResponseSizeLimit:
    """The room of one answer. Each of its parts is put through `add` as soon as it is made."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._bytes_max: int = settings["queued.max.response.bytes"]
        self._bytes_left = self._bytes_max

    def add(self, part: _Part) -> _Part:
        """The same part, whose own texts are counted, not the parts within it. Raises ResponseTooLarge."""
        size = STRUCTURE_BYTES
        for field in part.FIELDS:
            value = getattr(part, field.name)
            if isinstance(value, str | bytes):
                size += len(value)
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise ResponseTooLarge(f"the answer would take more than queued.max.response.bytes={self._bytes_max}")
        return part
