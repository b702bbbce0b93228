"""Log lines for the waits of a commit. No clock: the caller passes times of the steady clock in ms."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

from chaffinch.client.addresses import Address
from chaffinch.client.wait_log import Wait, WaitLog
from chaffinch.identifiers import TopicPartition


class Unanswered(NamedTuple):
    """A Produce request without a response yet."""

    topic_partition: TopicPartition
    address: Address
    sent_ms: int


class CommitWaits:
    """Logs the waits of a commit through `warn`: the first line within 3 seconds, then at growing intervals."""

    def __init__(self, warn: Callable[[str], None], request_timeout_ms: int) -> None:
        self._warn = warn
        self._request_timeout_ms = request_timeout_ms
        self._log = WaitLog()
        self._began_ms: dict[Hashable, int] = {}
        """Start of the first attempt, by cause: earlier than its first failure."""

    def retry(self, wait: Wait, steady_ms: int, wait_ms: int, attempt_ms: int) -> None:
        """The last attempt took `attempt_ms` and failed. The next begins in `wait_ms` and may take as long; a line that is due before its
        end is logged now.
        """
        began_ms = self._began_ms.setdefault((wait.cause, wait.since_ms), min(wait.since_ms, steady_ms - attempt_ms))
        if steady_ms + wait_ms + attempt_ms >= self._log.due_ms(wait.cause, began_ms):
            self._log.logged(wait.cause, began_ms, steady_ms)
            self._warn(wait._replace(since_ms=began_ms).line(steady_ms))

    def answers(self, under_way: Iterable[Unanswered], steady_ms: int) -> int:
        """Logs the request that has been without a response for longest, if that is due. Returns the time of the next call."""
        oldest = min(under_way, key=lambda found: found.sent_ms, default=None)
        if oldest is None:
            return steady_ms + self._request_timeout_ms
        wait = Wait(
            oldest.address,
            f"the Produce response for {oldest.topic_partition} from {oldest.address}",
            oldest.sent_ms,
            "no response yet",
            until_ms=oldest.sent_ms + self._request_timeout_ms,
            limit="kafka.request.timeout.ms",
        )
        if line := self._log.line(wait, steady_ms):
            self._warn(line)
        return max(self._log.due_ms(wait.cause, wait.since_ms), steady_ms + 1)
