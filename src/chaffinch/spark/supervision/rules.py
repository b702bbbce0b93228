"""Restart policy of a supervised query (decision 43): by the group of the error, with limits. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from chaffinch.errors import ConfigException
from chaffinch.errors.codes import Group
from chaffinch.spark.refusals import ErrorTag

ANOTHER_WRITER: Final = "ANOTHER_WRITER"

PAUSE_MAX_S: Final = 1e6
"""Largest pause: systems limit the time of a sleep."""

# Groups of errors that a restart cannot fix -> the reason. For the other groups a restart can help.
_NOT_RETRIED: Final[Mapping[Group, str]] = {
    Group.INVALID_CONFIGURATION: "a restart alone does not help: correct the data, the options or the topic",
}
_FENCED: Final = "another query has taken over this checkpoint: after a restart each would fence the other again"
_NOT_KAFKA: Final = "this is not an error of Kafka, and a restart may not help"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """At most `restarts_max` restarts within any `window_s` seconds. The pause doubles with each restart in the window, up to
    `pause_max_s`.
    """

    restarts_max: int = 10
    window_s: float = 3600.0
    pause_s: float = 1.0
    pause_max_s: float = 60.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            kinds, what = (int, "a whole number") if name == "restarts_max" else (int | float, "a number")
            # The comparison refuses NaN too.
            if not isinstance(value, kinds) or isinstance(value, bool) or not value >= 0:
                raise ConfigException(f"{name} cannot be {value!r}: it must be {what}, 0 or more")
        for name in ("pause_s", "pause_max_s"):
            if getattr(self, name) > PAUSE_MAX_S:
                raise ConfigException(f"{name} cannot be {getattr(self, name)!r}: it must be at most {PAUSE_MAX_S:g} seconds")


@dataclass(frozen=True, slots=True)
class Restart:
    """Start the query again after a pause."""

    pause_s: float


@dataclass(frozen=True, slots=True)
class Stop:
    """Do not restart. `reason`: for the end of a log line."""

    reason: str


def decide(tag: ErrorTag | None, restarts: Sequence[float], now_s: float, limits: Limits) -> Restart | Stop:
    """Decide after an error. `restarts`: times of earlier restarts, on the same clock as `now_s`."""
    if tag is None:
        return Stop(_NOT_KAFKA)
    if tag.name == ANOTHER_WRITER:
        return Stop(_FENCED)
    if tag.group in _NOT_RETRIED:
        return Stop(_NOT_RETRIED[tag.group])
    recent = sum(now_s - then < limits.window_s for then in restarts)
    if recent >= limits.restarts_max:
        return Stop(f"{recent} restarts within {limits.window_s:g} s are the limit (restarts_max={limits.restarts_max})")
    # The exponent is bounded, because 2.0 ** 1024 overflows. A pause with this exponent exceeds any sensible maximum.
    return Restart(min(limits.pause_s * 2.0 ** min(recent, 64), limits.pause_max_s))
