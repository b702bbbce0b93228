"""What is wrong with a command line, in one line, from what typer raises; its own boxes leave out the value that is wrong."""

from __future__ import annotations

import sys
from typing import Any, Final

from chaffinch.cli.display import say_lines

# By pydantic's names of what is wrong with a value; other texts are the library's own.
_REASONS: Final = {
    "int_parsing": "is no integer",
    "int_parsing_size": "has too many digits",
    "int_from_float": "is no integer",
    "float_parsing": "is no number",
    "greater_than_equal": "is less than {ge}",
    "less_than_equal": "is more than {le}",
}


# What people name without its option, and how the option says it.
_NAMED_BY: Final = {"--topic": "a topic", "--group": "a group", "--transactional-id": "a transactional id"}
_EXTRA: Final = "got unexpected extra argument"


def is_usage_error(error: Exception) -> bool:
    """By what it has, not by its class: typer brings its own click in some versions, and none may be loaded before it is needed."""
    return getattr(error, "exit_code", None) == 2 and hasattr(error, "format_message")


def usage_line(error: Any) -> str:
    """One line without a full stop; empty where a command that has others was called without one, and the help was printed instead."""
    if type(error).__name__ == "NoArgsIsHelpError":
        say_lines(error.format_message(), to=sys.stderr)
        return ""
    parameter = getattr(error, "param", None)
    if parameter is None:
        line = _as_line(error.format_message())
        return line + (_option_for(error) if line.startswith(_EXTRA) else _right_place(error))
    name = max(parameter.opts, key=len) if parameter.param_type_name == "option" else (parameter.metavar or parameter.name)
    kind = f"{parameter.param_type_name} {name}"
    if type(error).__name__ == "MissingParameter":
        return f"{kind} is missing" + (f" (or the variable {parameter.envvar})" if parameter.envvar else "")
    return f"{kind}: {_reason(error)}"


def _right_place(error: Any) -> str:
    """Where an option belongs that stands before the command that has it."""
    commands = getattr(getattr(error.ctx, "command", None), "commands", None)
    if type(error).__name__ != "NoSuchOption" or not commands:
        return ""
    return f" before the command: options go after it, as in {error.ctx.command_path} COMMAND {error.option_name} ..."


def _option_for(error: Any) -> str:
    """How a command wants to be told what was given to it without an option."""
    has = {name for parameter in getattr(getattr(error.ctx, "command", None), "params", []) for name in parameter.opts}
    named = [f"{what} is named by {option}" for option, what in _NAMED_BY.items() if option in has]
    return ": " + ", ".join(named) if named else ""


def _reason(error: Any) -> str:
    for found in getattr(error.__cause__, "errors", list)():
        if found["type"] in _REASONS:
            return f"{found['input']!r} {_REASONS[found['type']].format(**found.get('ctx', {}))}"
    return _as_line(error.message)


def _as_line(text: str) -> str:
    line = " ".join(text.split()).removesuffix(".")
    return line[:1].lower() + line[1:]
