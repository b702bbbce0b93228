"""Reads a command line that holds nothing but options and their values, for a command whose start is waited for.

typer reads each value with a validator of pydantic, whose import takes 70 ms, a fifth of a broker's start. What is plain is read here from
the same annotations: `--name value` and `--name=value` of text and whole numbers, flags, options that may be repeated. Everything else,
help and every mistake among it, is typer's: it gets the whole line anew, so nothing is said in two ways.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, get_args, get_type_hints

import typer
from typer.models import OptionInfo

KINDS: Final[dict[Any, str]] = {
    str: "text",
    str | None: "text",
    int: "number",
    int | None: "number",
    bool: "flag",
    list[str] | None: "texts",
}

HARMLESS: Final = frozenset({"default", "param_decls", "metavar", "help", "min", "max"})
"""What an option may say of itself here; whatever else it says is for typer to understand."""

DIGITS_MAX: Final = 18


class _Option(NamedTuple):
    parameter: str
    kind: str
    minimum: float | None
    maximum: float | None


def read(command: Callable[..., object], given: Sequence[str]) -> dict[str, Any] | None:
    """The keyword arguments that typer would call `command` with; None where that is for typer to find out."""
    options = _options_of(command)
    values: dict[str, Any] = {}
    words = iter(given)
    for word in words:
        name, is_joined, text = word.partition("=")
        option = options.get(name)
        if option is None or (option.parameter in values and option.kind != "texts"):
            return None
        if option.kind == "flag":
            if is_joined:
                return None
            values[option.parameter] = True
            continue
        if not is_joined:
            text = next(words, "-")
            if text.startswith("-"):
                return None
        if option.kind == "texts":
            values.setdefault(option.parameter, []).append(text)
        elif option.kind == "text":
            values[option.parameter] = text
        elif (number := _number(option, text)) is not None:
            values[option.parameter] = number
        else:
            return None
    needed = {name for name, parameter in inspect.signature(command).parameters.items() if parameter.default is parameter.empty}
    return values if needed <= values.keys() else None


def _options_of(command: Callable[..., object]) -> dict[str, _Option]:
    """The plain options by their names."""
    options = {}
    usual = vars(typer.Option())
    for parameter, hint in get_type_hints(command, include_extras=True).items():
        kind, *described = get_args(hint) if hasattr(hint, "__metadata__") else (hint,)
        if kind not in KINDS or len(described) != 1 or not isinstance(described[0], OptionInfo):
            continue
        option = described[0]
        # In an annotation, `Option("--name")` takes the name for the default; typer puts it right later.
        name, *others = (option.default, *(option.param_decls or ()))
        special = {key for key, value in vars(option).items() if value != usual.get(key)} - HARMLESS
        if isinstance(name, str) and name.startswith("--") and "/" not in name and not others and not special:
            options[name] = _Option(parameter, KINDS[kind], option.min, option.max)
    return options


def _number(option: _Option, text: str) -> int | None:
    """A number in ASCII digits that the option takes, else None."""
    if not (text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX):
        return None
    number = int(text)
    is_taken = (option.minimum is None or option.minimum <= number) and (option.maximum is None or number <= option.maximum)
    return number if is_taken else None
