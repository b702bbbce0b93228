"""Error and log texts of the source: refusals, data loss, and waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from chaffinch import plain_text
from chaffinch.client.wait_log import WaitLog
from chaffinch.errors import ApiException, ConfigException, codes
from chaffinch.errors.codes import Group
from chaffinch.spark.refusals import Refusal, invalid, refusal_of

if TYPE_CHECKING:
    from chaffinch.client.pending_request import Deadline

_log = plain_text.logger(__name__)

POLL_MS: Final = 500
"""Poll interval of waits. Their first log line is due after 2.5 s, so it appears within 3 s."""


@contextmanager
def refusals() -> Iterator[None]:
    """Convert ConfigException and ApiException to Refusal (decision 43)."""
    try:
        yield
    except ConfigException as error:
        raise invalid(error) from None
    except ApiException as error:
        raise refusal_of(error) from None


def report_loss(text: str, *, fails: bool, rest: str = "the remaining records") -> None:
    """Report missing offsets. Raises Refusal or logs a warning, depending on the option failOnDataLoss. `rest`: the records that are read
    instead.
    """
    if fails:
        text = f"{text}; set failOnDataLoss=false to read {rest}"
        raise Refusal(Group.INVALID_CONFIGURATION, codes.OFFSET_OUT_OF_RANGE.name, text)
    _log.warning("%s; reading %s", text, rest)


class SourceWaits:
    """Logs consecutive waits: the first line within 3 seconds, then with growing pauses. The client logs waits of single requests."""

    def __init__(self) -> None:
        self._waits = WaitLog()

    def log(self, deadline: Deadline, why: str) -> None:
        """Log the wait if a line is due. Call it regularly until `deadline`."""
        wait = deadline.wait(why)._replace(limit="kafka.default.api.timeout.ms")
        if (line := self._waits.line(wait, wait.since_ms + deadline.waited_ms)) is not None:
            _log.warning("%s", line)

    def over(self) -> None:
        """The wait has ended."""
        self._waits.over()
