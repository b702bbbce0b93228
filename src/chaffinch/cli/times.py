"""Timestamps and durations on the command line, as milliseconds since 1970 and in ISO 8601."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from chaffinch.errors import ConfigException

_DURATION: Final = re.compile(r"P(?:(?P<d>\d+)D)?(?:T(?:(?P<h>\d+)H)?(?:(?P<m>\d+)M)?(?:(?P<s>\d+)S)?)?")
_DURATION_UNITS_MS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000}


def parse_time(option: str, text: str) -> int:
    """Parse milliseconds since 1970, or an ISO 8601 date and time, which is UTC if it names no zone. Returns milliseconds since 1970."""
    if re.fullmatch(r"[0-9]{1,18}", text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigException(f"{option} {text!r}: expected milliseconds since 1970, or a time such as 2026-01-31T12:00:00Z") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def parse_lookup_time(option: str, text: str) -> int:
    """Like `parse_time`, for a lookup of offsets. Times before 1970 are refused: negative timestamps are sentinels of ListOffsets."""
    return _not_before_1970(option, text, parse_time(option, text))


def parse_time_ago(option: str, text: str, wall_ms: int) -> int:
    """Parse an ISO 8601 duration before `wall_ms` (P7D, PT1H30M). Returns milliseconds since 1970, like `parse_lookup_time`."""
    found = _DURATION.fullmatch(text)
    if found is None or not any(found.groups()):
        raise ConfigException(f"{option} {text!r}: expected a duration such as P7D or PT1H30M")
    return _not_before_1970(
        option, text, wall_ms - sum(int(number) * _DURATION_UNITS_MS[unit] for unit, number in found.groupdict().items() if number)
    )


def _not_before_1970(option: str, text: str, ms: int) -> int:
    if ms < 0:
        raise ConfigException(f"{option} {text!r} is before 1970: expected a later time")
    return ms


def format_time(ms: int) -> str:
    """Format a time in UTC, with milliseconds."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
