"""Whether a query that failed is started again, and when (decision 43): a table over the error's class, and limits. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from chaffinch.errors import ConfigException
from chaffinch.errors.codes import Group
from chaffinch.spark.refusals import ErrorTag

ANOTHER_WRITER: Final = "ANOTHER_WRITER"

PAUSE_MAX_S: Final = 1e6
"""No system sleeps for any time."""

# Why a restart would be in vain, by the error's class; the other classes are those that a restart may cure.
_NOT_RETRIED: Final[Mapping[Group, str]] = {
    Group.INVALID_CONFIGURATION: "a restart alone fails again: correct the data, the options or the topic",
}
_FENCED: Final = "another query has taken over this checkpoint: each would fence the other for ever"
_NOT_KAFKA: Final = "this error is not Kafka's, and nothing says that a restart would help"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """At most `restarts_max` restarts within any `window_s`; the pause doubles with each other one in the window, up to `pause_max_s`."""

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
    """Leave it. `reason`: why, for the end of a line."""

    reason: str


def decide(tag: ErrorTag | None, restarts: Sequence[float], now_s: float, limits: Limits) -> Restart | Stop:
    """What follows on an error. `restarts`: the times of earlier ones, on the clock that `now_s` is on."""
    if tag is None:
        return Stop(_NOT_KAFKA)
    if tag.name == ANOTHER_WRITER:
        return Stop(_FENCED)
    if tag.group in _NOT_RETRIED:
        return Stop(_NOT_RETRIED[tag.group])
    recent = sum(now_s - then < limits.window_s for then in restarts)
    if recent >= limits.restarts_max:
        return Stop(f"{recent} restarts within {limits.window_s:g} s are the limit (restarts_max={limits.restarts_max})")
    # The exponent is bounded: beyond it no pause is below any maximum that makes sense, and 2.0 ** 1024 is an error.
    return Restart(min(limits.pause_s * 2.0 ** min(recent, 64), limits.pause_max_s))
