"""Points in time and spans as people and scripts give them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from chaffinch.errors import ConfigException

_DURATION: Final = re.compile(r"P(?:(?P<d>\d+)D)?(?:T(?:(?P<h>\d+)H)?(?:(?P<m>\d+)M)?(?:(?P<s>\d+)S)?)?")
_DURATION_UNITS_MS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000}


def parse_time(option: str, text: str) -> int:
    """Milliseconds since 1970: a number of them, or a date and time as in ISO 8601, in UTC where it names no zone."""
    if re.fullmatch(r"[0-9]{1,18}", text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigException(f"{option} {text!r}: expected milliseconds since 1970, or a time such as 2026-01-31T12:00:00Z") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def parse_lookup_time(option: str, text: str) -> int:
    """As `parse_time`, where records are looked up by it: not before 1970, because negative times mean other things to brokers."""
    return _not_before_1970(option, text, parse_time(option, text))


def parse_time_ago(option: str, text: str, wall_ms: int) -> int:
    """As `parse_lookup_time`, from a span before now as in ISO 8601: P7D, PT1H30M."""
    found = _DURATION.fullmatch(text)
    if found is None or not any(found.groups()):
        raise ConfigException(f"{option} {text!r}: expected a span such as P7D or PT1H30M")
    return _not_before_1970(
        option, text, wall_ms - sum(int(number) * _DURATION_UNITS_MS[unit] for unit, number in found.groupdict().items() if number)
    )


def _not_before_1970(option: str, text: str, ms: int) -> int:
    if ms < 0:
        raise ConfigException(f"{option} {text!r} lies before 1970, where no record is: expected something later")
    return ms


def format_time(ms: int) -> str:
    """A time in UTC, to the millisecond."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
