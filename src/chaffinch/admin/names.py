"""Several names that a caller hands over."""

from __future__ import annotations

from collections.abc import Iterable

from chaffinch.settings import shown_value


def checked_names(names: Iterable[str]) -> list[str]:
    """Each once, in the order given. TypeError for one name in the place of several: Python would make a name of each character."""
    if isinstance(names, str | bytes | bytearray | memoryview):
        raise TypeError(f"argument names must be a list of names, not {shown_value(names)}: nothing was asked of the brokers")
    return list(dict.fromkeys(names))
