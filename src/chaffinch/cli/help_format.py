"""Help of all commands: arguments, options and their types in words. typer itself prints `<int range>` and `[0<=x<=1]`."""

from __future__ import annotations

import re
from typing import Any, Final

from chaffinch.settings import INT_MAX

# Names of types as typer prints them: `<int range>`, `<list[int]>`, `<str>`; before version 0.20 `INTEGER RANGE`.
_TYPE: Final = re.compile(r"<[^>]+>|\bINTEGER RANGE\b")
_RANGE: Final = re.compile(r"(?P<low>-?\d+)<=x<=(?P<high>\d+)|x>=(?P<least>-?\d+)|x<=(?P<most>-?\d+)")


def first_line(text: str | None) -> str:
    """The first paragraph of a help text, on one line."""
    return " ".join((text or "").strip().partition("\n\n")[0].split())


def is_argument(parameter: Any) -> bool:
    """Whether a parameter of a command is an argument, not an option."""
    return bool(parameter.param_type_name == "argument")


def write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    """Write arguments and options with their types and ranges in words."""
    sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None:
            names, text = record
            if found := _TYPE.search(names):
                names = names.replace(found[0], _type_name(found[0], parameter)).strip()
            sections["Arguments" if is_argument(parameter) else "Options"].append((names, _RANGE.sub(_range_text, text)))
    for title, rows in sections.items():
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows)


def _type_name(shown: str, parameter: Any) -> str:
    """The type of a value; "" for flags, and for arguments, whose name is enough."""
    if is_argument(parameter) or getattr(parameter, "is_flag", False):
        return ""
    return "INTEGER" if "int" in shown.lower() else "NUMBER" if "float" in shown else "TEXT"


def _range_text(found: re.Match[str]) -> str:
    """A range in words. Limits of 32 and 64 bits are left out."""
    if found["most"] is not None:
        return f"at most {found['most']}"
    if found["least"] is not None or int(found["high"]) >= INT_MAX:
        return f"at least {found['least'] or found['low']}"
    return f"{found['low']} to {found['high']}"
