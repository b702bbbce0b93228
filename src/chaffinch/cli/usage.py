"""Strict command-line parsing on top of typer, and usage errors as one line.

An option may be given once, unless it is declared as repeatable: typer silently takes the last value. Kafka's own tools refuse repeated
options as well (joptsimple's MultipleArgumentsForOptionException). Every value but a file name must be UTF-8. typer's own error boxes omit
the invalid value.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any, Final

import typer
from typer.core import TyperCommand

from chaffinch.cli.display import print_text
from chaffinch.errors import ConfigException

# Error texts by pydantic's error types; other errors keep typer's text.
_REASONS: Final = {
    "int_parsing": "is not an integer",
    "int_parsing_size": "has too many digits",
    "int_from_float": "is not an integer",
    "float_parsing": "is not a number",
    "greater_than_equal": "is less than {ge}",
    "less_than_equal": "is more than {le}",
}


# Options whose value users often give as an argument.
_OPTION_OF_ARGUMENT: Final = {"--topic": "a topic", "--group": "a group", "--transactional-id": "a transactional id"}
_EXTRA: Final = "got unexpected extra argument"


def is_usage_error(error: Exception) -> bool:
    """Recognised by attributes, not by class: some versions of typer bundle click, and neither may be imported before it is needed."""
    return getattr(error, "exit_code", None) == 2 and hasattr(error, "format_message")


def usage_line(error: Any) -> str:
    """The error as one line without a full stop. "" if a command was called without its sub-command: the help is printed instead."""
    if type(error).__name__ == "NoArgsIsHelpError":
        print_text(error.format_message(), to=sys.stderr)
        return ""
    parameter = getattr(error, "param", None)
    if parameter is None:
        line = _as_line(error.format_message())
        return line + (_option_hint(error) if line.startswith(_EXTRA) else _misplaced_option_hint(error))
    name = max(parameter.opts, key=len) if parameter.param_type_name == "option" else (parameter.metavar or parameter.name)
    kind = f"{parameter.param_type_name} {name}"
    if type(error).__name__ == "MissingParameter":
        return f"{kind} is missing" + (f" (or the variable {parameter.envvar})" if parameter.envvar else "")
    return f"{kind}: {_reason(error)}"


def _misplaced_option_hint(error: Any) -> str:
    """Advice about an option that was given before its command."""
    commands = getattr(getattr(error.ctx, "command", None), "commands", None)
    if type(error).__name__ != "NoSuchOption" or not commands:
        return ""
    return f" before the command: options go after it, as in {error.ctx.command_path} COMMAND {error.option_name} ..."


def _option_hint(error: Any) -> str:
    """Advice about an argument that should be the value of an option."""
    has = {name for parameter in getattr(getattr(error.ctx, "command", None), "params", []) for name in parameter.opts}
    named = [f"give {what} with {option}" for option, what in _OPTION_OF_ARGUMENT.items() if option in has]
    return ": " + ", ".join(named) if named else ""


def _reason(error: Any) -> str:
    for found in getattr(error.__cause__, "errors", list)():
        if found["type"] in _REASONS:
            return f"{found['input']!r} {_REASONS[found['type']].format(**found.get('ctx', {}))}"
    return _as_line(error.message)


def _as_line(text: str) -> str:
    line = " ".join(text.split()).removesuffix(".")
    return line[:1].lower() + line[1:]


# Metavars of file names, which may have any bytes.
_PATH_METAVARS: Final = frozenset({"FILE", "[FILE]", "DIR"})


class StrictCommand(TyperCommand):
    """A command that raises ConfigException for a repeated option with a value and for values that are not UTF-8. Flags may be repeated."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, surplus, found = self.make_parser(ctx).parse_args(args=list(args))
        single = [each for each in found if each.param_type_name == "option" and not (each.multiple or getattr(each, "is_flag", False))]
        for parameter, count in Counter(single).items():
            if count > 1:
                raise ConfigException(f"option {max(parameter.opts, key=len)} is given twice: give it once")
        try:
            rest = super().parse_args(ctx, args)
        except Exception as error:
            # `consume orders`: the extra argument explains the mistake better than the missing option.
            if type(error).__name__ == "MissingParameter" and surplus and not any(map(_is_argument, self.params)):
                ctx.fail(f"Got unexpected extra argument(s) ({' '.join(surplus)})")
            raise
        for parameter in self.params:
            if parameter.metavar not in _PATH_METAVARS:
                _check_utf8(ctx, parameter)
        return rest


def _is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def _check_utf8(ctx: Any, parameter: Any) -> None:
    """Python turns each byte that is not UTF-8 into a lone surrogate. Without this check encoding the request would fail much later."""
    value = ctx.params.get(parameter.name)
    for text in value if isinstance(value, list | tuple) else (value,):
        try:
            if isinstance(text, str):
                text.encode()
        except UnicodeEncodeError as error:
            raise ConfigException(f"{_source_of(ctx, parameter)} {text!r}: not UTF-8 at character {error.start}") from None


def _source_of(ctx: Any, parameter: Any) -> str:
    source = ctx.get_parameter_source(parameter.name)
    if source is not None and source.name == "ENVIRONMENT":
        return str(parameter.envvar)
    return str((parameter.metavar or parameter.name).strip("[]") if _is_argument(parameter) else max(parameter.opts, key=len))


class StrictApp(typer.Typer):
    """A typer app whose commands are `StrictCommand`s. Their help is plain text: typer's boxes cut long option names at 80 columns."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(rich_markup_mode=None, **keywords)

    def command(self, name: str | None = None, **keywords: Any) -> Any:
        return super().command(name, cls=StrictCommand, **keywords)
