"""What all commands ask of their command line, and the library does not; and what is wrong with one, in one line.

An option is given once, unless it may be repeated: the library takes the last one, and says nothing of the others. Kafka's own tools
refuse it, too (joptsimple's MultipleArgumentsForOptionException). What is no name of a file is a text, and that is UTF-8. The library's own
boxes leave out the value that is wrong.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any, Final

import typer
from typer.core import TyperCommand

from chaffinch.cli.display import print_text
from chaffinch.errors import ConfigException

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
_OPTION_OF_ARGUMENT: Final = {"--topic": "a topic", "--group": "a group", "--transactional-id": "a transactional id"}
_EXTRA: Final = "got unexpected extra argument"


def is_usage_error(error: Exception) -> bool:
    """By what it has, not by its class: typer brings its own click in some versions, and none may be loaded before it is needed."""
    return getattr(error, "exit_code", None) == 2 and hasattr(error, "format_message")


def usage_line(error: Any) -> str:
    """One line without a full stop; empty where a command that has others was called without one, and the help was printed instead."""
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
    """Where an option belongs that stands before the command that has it."""
    commands = getattr(getattr(error.ctx, "command", None), "commands", None)
    if type(error).__name__ != "NoSuchOption" or not commands:
        return ""
    return f" before the command: options go after it, as in {error.ctx.command_path} COMMAND {error.option_name} ..."


def _option_hint(error: Any) -> str:
    """How a command wants to be told what was given to it without an option."""
    has = {name for parameter in getattr(getattr(error.ctx, "command", None), "params", []) for name in parameter.opts}
    named = [f"{what} is named by {option}" for option, what in _OPTION_OF_ARGUMENT.items() if option in has]
    return ": " + ", ".join(named) if named else ""


def _reason(error: Any) -> str:
    for found in getattr(error.__cause__, "errors", list)():
        if found["type"] in _REASONS:
            return f"{found['input']!r} {_REASONS[found['type']].format(**found.get('ctx', {}))}"
    return _as_line(error.message)


def _as_line(text: str) -> str:
    line = " ".join(text.split()).removesuffix(".")
    return line[:1].lower() + line[1:]


# What is shown in the place of a file's name, which may have any bytes.
_PATH_METAVARS: Final = frozenset({"FILE", "[FILE]", "DIR"})


class StrictCommand(TyperCommand):
    """ConfigException for an option with a value that is given twice, though flags may be repeated, and for texts that are not UTF-8."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, surplus, found = self.make_parser(ctx).parse_args(args=list(args))
        single = [each for each in found if each.param_type_name == "option" and not (each.multiple or getattr(each, "is_flag", False))]
        for parameter, count in Counter(single).items():
            if count > 1:
                raise ConfigException(f"option {max(parameter.opts, key=len)} is given twice: give it once")
        try:
            rest = super().parse_args(ctx, args)
        except Exception as error:
            # `consume orders`: what is there says more of what was meant than what is missing.
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
    """Python makes half a surrogate pair of each byte that is not UTF-8, which only the request that holds it would fail on."""
    value = ctx.params.get(parameter.name)
    for text in value if isinstance(value, list | tuple) else (value,):
        try:
            if isinstance(text, str):
                text.encode()
        except UnicodeEncodeError as error:
            raise ConfigException(
                f"{_source_of(ctx, parameter)} {text!r}: expected a text, and character {error.start} is not UTF-8"
            ) from None


def _source_of(ctx: Any, parameter: Any) -> str:
    source = ctx.get_parameter_source(parameter.name)
    if source is not None and source.name == "ENVIRONMENT":
        return str(parameter.envvar)
    return str((parameter.metavar or parameter.name).strip("[]") if _is_argument(parameter) else max(parameter.opts, key=len))


class StrictApp(typer.Typer):
    """Its commands are of that kind. Their help is plain: in boxes, on 80 columns, long names of options are cut."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(rich_markup_mode=None, **keywords)

    def command(self, name: str | None = None, **keywords: Any) -> Any:
        return super().command(name, cls=StrictCommand, **keywords)
