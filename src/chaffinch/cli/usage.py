"""Strict command-line parsing on top of typer, and usage errors as one line.

An option may be given once, unless it is declared as repeatable: typer silently takes the last value. Kafka's own tools refuse repeated
options as well (joptsimple's MultipleArgumentsForOptionException). Every value but a file name must be UTF-8. typer's own error boxes omit
the invalid value.
"""

from __future__ import annotations

import difflib
import sys
from collections import Counter
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from chaffinch.cli.display import print_text
from chaffinch.cli.help_format import first_line, is_argument, write_parameters
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

# Options that have another name in the tools of Apache Kafka.
_FOREIGN_OPTIONS: Final = {
    "--broker-list": "--bootstrap-server",
    "--bootstrap-servers": "--bootstrap-server",
    "--brokers": "--bootstrap-server",
    "--zookeeper": "--bootstrap-server",
    "--consumer.config": "--command-config",
    "--consumer-config": "--command-config",
    "--producer.config": "--command-config",
    "--producer-config": "--command-config",
    "--compression-codec": "--compression",
    "--request-required-acks": "--acks",
    "--transactionalId": "--transactional-id",
    "--max-records": "--max-messages",
}
# Sub-commands by the words of other tools.
_FOREIGN_COMMANDS: Final = {
    "ls": "list",
    "rm": "delete",
    "remove": "delete",
    "show": "describe",
    "new": "create",
    "add": "create",
    "update": "alter",
    "configs": "topics",
    "consumer-groups": "groups",
    "kafka-topics": "topics",
    "kafka-consumer-groups": "groups",
    "kafka-console-producer": "produce",
    "kafka-console-consumer": "consume",
    "kafka-transactions": "transactions",
    "producer": "produce",
    "consumer": "consume",
    "server": "broker",
    "start": "broker",
}


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
        if line.startswith(_EXTRA):
            return line + _option_hint(error)
        if type(error).__name__ == "NoSuchOption":
            return f"no such option: {error.option_name}" + (_misplaced_option_hint(error) or _nearest_option(error))
        return line
    name = max(parameter.opts, key=len) if parameter.param_type_name == "option" else (parameter.metavar or parameter.name)
    kind = f"{parameter.param_type_name} {name}"
    if type(error).__name__ == "MissingParameter":
        return f"{kind} is missing" + (f" (or the variable {parameter.envvar})" if parameter.envvar else "")
    return f"{kind}: {_reason(error)}"


def _misplaced_option_hint(error: Any) -> str:
    """Advice about an option that was given before its command."""
    commands = getattr(getattr(error.ctx, "command", None), "commands", None)
    if not commands or (error.ctx.parent is None and difflib.get_close_matches(error.option_name, _option_names(error.ctx), 1, 0.8)):
        return ""
    return f" before the command: options go after it, as in {error.ctx.command_path} COMMAND {error.option_name} ..."


def _option_names(context: Any) -> list[str]:
    """All options of a command but hidden ones."""
    parameters = [each for each in context.command.get_params(context) if not getattr(each, "hidden", False)]
    return [name for each in parameters if not is_argument(each) for name in (*each.opts, *each.secondary_opts)]


def _nearest_option(error: Any) -> str:
    """The nearest option of the command, or the one that has the given name in the tools of Apache Kafka."""
    known = _option_names(error.ctx)
    meant = _FOREIGN_OPTIONS.get(error.option_name)
    nearest = [meant] if meant in known else difflib.get_close_matches(error.option_name, known, n=1)
    return f": the nearest is {nearest[0]}" if nearest else f": {error.ctx.command_path} --help lists the options"


def _option_hint(error: Any) -> str:
    """Advice about an argument that should be the value of an option."""
    has = {name for parameter in getattr(getattr(error.ctx, "command", None), "params", []) for name in parameter.opts}
    named = [f"give {what} with {option}" for option, what in _OPTION_OF_ARGUMENT.items() if option in has]
    return ": " + ", ".join(named) if named else ""


def _reason(error: Any) -> str:
    for found in getattr(error.__cause__, "errors", list)():
        if found["type"] in _REASONS:
            limits = {
                name: int(limit) if limit == int(limit) else limit for name, limit in found.get("ctx", {}).items() if name in ("ge", "le")
            }
            return f"{found['input']!r} {_REASONS[found['type']].format(**limits)}"
    return _as_line(error.message)


def _as_line(text: str) -> str:
    line = " ".join(text.split()).removesuffix(".")
    return line[:1].lower() + line[1:]


# Metavars of file names, which may have any bytes.
_PATH_METAVARS: Final = frozenset({"FILE", "DIR"})


class StrictCommand(TyperCommand):
    """A command that raises ConfigException for a repeated option with a value and for values that are not UTF-8. Flags may be repeated."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        write_parameters(self, ctx, formatter)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]

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
            if type(error).__name__ == "MissingParameter" and surplus and not any(map(is_argument, self.params)):
                ctx.fail(f"Got unexpected extra argument(s) ({' '.join(surplus)})")
            raise
        for parameter in self.params:
            if parameter.metavar not in _PATH_METAVARS:
                _check_utf8(ctx, parameter)
        return rest


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
    return str((parameter.metavar or parameter.name) if is_argument(parameter) else max(parameter.opts, key=len))


class StrictGroup(TyperGroup):
    """A command with sub-commands. Its help shows the first line of each sub-command in full: typer cuts them to one screen line."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        write_parameters(self, ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        shown = [command for command in self.commands.values() if not command.hidden]
        with formatter.section("Commands"):
            formatter.write_dl([(str(command.name), first_line(command.help)) for command in shown])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands and not args[0].startswith("-") and not ctx.resilient_parsing:
            meant = _FOREIGN_COMMANDS.get(args[0])
            nearest = [meant] if meant in self.commands else difflib.get_close_matches(args[0], self.commands, n=1)
            ctx.fail(
                f"No such command {args[0]!r}: "
                + (f"the nearest is {nearest[0]!r}" if nearest else f"{ctx.command_path} --help lists the commands")
            )
        return super().resolve_command(ctx, args)


class StrictApp(typer.Typer):
    """A typer app of `StrictCommand`s and `StrictGroup`s. Their help is plain text: typer's boxes cut long option names at 80 columns."""

    def __init__(self, *, cls: type[StrictGroup] = StrictGroup, add_completion: bool = False, **keywords: Any) -> None:
        super().__init__(rich_markup_mode=None, cls=cls, add_completion=add_completion, pretty_exceptions_enable=False, **keywords)

    def command(self, name: str | None = None, **keywords: Any) -> Any:
        return super().command(name, cls=StrictCommand, **keywords)
