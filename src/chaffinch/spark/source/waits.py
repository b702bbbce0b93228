"""Log lines about what the source waits for beyond a single request of the client, which logs its own waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chaffinch import plain_text
from chaffinch.client.wait_log import WaitLog

if TYPE_CHECKING:
    from chaffinch.client.exchange import Deadline

_log = plain_text.logger(__name__)

LOOK_MS: Final = 500
"""How often a wait is looked at: its first line is due after 2.5 s, and comes within 3."""


class SourceWaits:
    """Logs one wait after another: the first line within 3 seconds, then after growing pauses."""

    def __init__(self) -> None:
        self._waits = WaitLog()

    def say(self, deadline: Deadline, why: str) -> None:
        """Call it regularly while something is waited for, until `deadline`."""
        wait = deadline.wait(why)._replace(limit="kafka.default.api.timeout.ms")
        if (line := self._waits.line(wait, wait.since_ms + deadline.waited_ms)) is not None:
            _log.warning("%s", line)

    def over(self) -> None:
        """What was waited for has come."""
        self._waits.over()
