"""What a consumer wants done: the words in which the core tells its shell. To be carried out in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from chaffinch.client.effects import CompleteCall as CompleteCall
from chaffinch.client.effects import Disconnect as Disconnect
from chaffinch.client.effects import FailCall as FailCall
from chaffinch.client.effects import Report as Report
from chaffinch.client.effects import SendRequest as SendRequest


@dataclass(frozen=True, slots=True)
class WakeCaller:
    """There is something for whoever waits in `poll`."""


Effect: TypeAlias = SendRequest | Disconnect | CompleteCall | FailCall | WakeCaller | Report
