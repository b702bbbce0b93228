"""Response size limit: bounds responses whose parts are larger than the request for them, for example a group with ten thousand
members.

A response beyond `queued.max.response.bytes` could never be sent, so it is not built: the connection is closed with one log line. (Requests
themselves are bounded by `protocol.decoder.REQUEST_STRUCTURES_MAX`, and so are responses whose parts are as small.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from chaffinch.protocol.schema import Message

STRUCTURE_BYTES: Final = 200
"""Approximate memory overhead of a response part, in addition to its texts."""

_Part = TypeVar("_Part", bound=Message)


class ResponseTooLarge(Exception):
    """Raised by handlers while building a response; the caller closes the connection."""


class ResponseSizeLimit:
    """Size limit of one response. Each of its parts must be passed to `add` when it is created."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._bytes_max: int = settings["queued.max.response.bytes"]
        self._bytes_left = self._bytes_max

    def add(self, part: _Part) -> _Part:
        """Count a part's own texts, without nested parts, and return it. Raises ResponseTooLarge."""
        size = STRUCTURE_BYTES
        for field in part.FIELDS:
            value = getattr(part, field.name)
            if isinstance(value, str | bytes):
                size += len(value)
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise ResponseTooLarge(f"the response would exceed queued.max.response.bytes={self._bytes_max}")
        return part
