"""What the source tells: errors on the way to a topic's rows, in the words that the user reads; losses, which may be let pass; waits."""

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
"""How often a wait is looked at: its first line is due after 2.5 s, and comes within 3."""


@contextmanager
def refusals() -> Iterator[None]:
    """Whatever a client or an option says is raised as the Refusal that the user sees (decision 43)."""
    try:
        yield
    except ConfigException as error:
        raise invalid(error) from None
    except ApiException as error:
        raise refusal_of(error) from None


def report_loss(text: str, *, fails: bool, rest: str = "what is left") -> None:
    """Offsets that were to be read are not there: Refusal, or a line in the log, as the option failOnDataLoss says. `rest` is read."""
    if fails:
        text = f"{text}; set failOnDataLoss=false to read {rest}"
        raise Refusal(Group.INVALID_CONFIGURATION, codes.OFFSET_OUT_OF_RANGE.name, text)
    _log.warning("%s; reading %s", text, rest)


class SourceWaits:
    """Logs one wait after another: the first line within 3 seconds, then after growing pauses. Waits of a single request are logged by the
    client."""

    def __init__(self) -> None:
        self._waits = WaitLog()

    def log(self, deadline: Deadline, why: str) -> None:
        """Call it regularly while something is waited for, until `deadline`."""
        wait = deadline.wait(why)._replace(limit="kafka.default.api.timeout.ms")
        if (line := self._waits.line(wait, wait.since_ms + deadline.waited_ms)) is not None:
            _log.warning("%s", line)

    def over(self) -> None:
        """What was waited for has come."""
        self._waits.over()
