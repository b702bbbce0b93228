"""The topics in a subscription of the classic protocol type "consumer": the one thing in members' metadata that a broker reads.

Source: Apache Kafka's ConsumerProtocolSubscription: a version (int16), then an array of topic names, then what only assignors need.
"""

from __future__ import annotations

import struct
from typing import Final

PROTOCOL_TYPE: Final = "consumer"


def topics_of(metadata: bytes) -> frozenset[str] | None:
    """The topics subscribed to; None for bytes that are no subscription."""
    try:
        _, count = struct.unpack_from(">hi", metadata, 0)
        position = 6
        topics = []
        for _ in range(count):
            (length,) = struct.unpack_from(">h", metadata, position)
            position += 2
            name = metadata[position : position + length]
            if length < 0 or len(name) != length:
                return None
            topics.append(name.decode())
            position += length
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)
