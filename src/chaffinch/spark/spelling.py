"""How a value of Python's reads in Spark, which takes strings only: in its configuration, and as an option."""

from __future__ import annotations

import sys
from os import PathLike


def spelled(name: str, value: object) -> str:
    """A string, a number, numpy's among them, or a path; true and false in lower case. ConfigException, naming it so, for all else."""
    from chaffinch.errors import ConfigException
    from chaffinch.settings import is_secret, shown_value

    numpy = sys.modules.get("numpy")  # Whoever has a number of numpy's has loaded it.
    plain = value.item() if numpy is not None and isinstance(value, numpy.generic) else value
    if not isinstance(plain, str | bool | int | float | PathLike):
        shown = f"a {type(value).__name__} (not shown)" if is_secret(name) else shown_value(value)
        raise ConfigException(f"{name} cannot be {shown}: it must be a string, a number, True or False")
    return str(plain).lower() if isinstance(plain, bool) else str(plain)
