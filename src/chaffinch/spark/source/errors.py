"""What goes wrong on the way to a topic's rows, in the words that the user reads; and what is lost, which may be let pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from chaffinch import plain_text
from chaffinch.errors import ApiException, ConfigException, codes
from chaffinch.errors.codes import Group
from chaffinch.spark.refusals import Refusal, invalid, refusal_of

_log = plain_text.logger(__name__)


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
