"""How long a client waits in silence, and how it says why: the same for the clients that block and for the producer."""

from __future__ import annotations

from typing import Final

from chaffinch.errors import KafkaException
from chaffinch.errors.exceptions import one_line

SAID_AFTER_MS: Final = 3_000
"""Who waits longer is told what for, and why. A new leader or coordinator, as a rule, is there sooner."""
SAID_AGAIN_MS: Final = 30_000
"""How long nothing more is said after that, whatever is waited for."""


def in_words(error: KafkaException) -> str:
    """An error as a part of one line of a log."""
    return f"{error.name} ({one_line(error.message).rstrip('.')})" if error.message else error.name
