"""Options with where each was given: what stands on the command line wins over a file, both are judged together, and errors say where.

A file may be another one than was meant, or a key pasted a line too low: of its names only those are shown that are known, a known one
misspelled, or written as options are, in short words of small letters with dots between. For others its line is enough.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from chaffinch.errors import ConfigException
from chaffinch.settings import OptionTable, Settings, join_errors

_OPTION_NAME: Final = re.compile(r"[a-z]{1,20}(?:\.[a-z]{1,20})+")
_NOT_SHOWN: Final = "(its name is not shown)"


class SourcedOption(NamedTuple):
    """An option. `source`: the file and its line, or the option of the command; empty where the name says it. `is_from_file`: in a file,
    where
    any text may stand for a name."""

    name: str
    value: Any
    source: str = ""
    is_from_file: bool = False

    @property
    def kafka_name(self) -> str:
        """Its name as Apache Kafka spells it."""
        return self.name.strip().replace("_", ".")


def merge_options(command_line: Iterable[SourcedOption], file: Iterable[SourcedOption]) -> list[SourcedOption]:
    """The command line's, and those of the file that are not given there, however both are spelled."""
    command_line = list(command_line)
    names = {option.kafka_name for option in command_line}
    return [*command_line, *(option for option in file if option.kafka_name not in names)]


def validate_options(
    table: OptionTable, options: Iterable[SourcedOption], parse: Callable[[Mapping[str, Any]], Settings] | None = None
) -> Settings:
    """The settings, by `parse` or the table. ConfigException says all that is wrong with single options, or what does not go together,
    and where each was given."""
    options = list(options)
    errors = [f"{option.source}: {text}" if option.source else text for option in options if (text := _error_of(table, option))]
    if errors:
        raise ConfigException(join_errors(errors))
    error = _settings_or_error(parse or table.parse, options)
    if isinstance(error, Settings):
        return error
    sources = []
    for left_out in options:  # All are known here, so that there are few.
        without = _settings_or_error(parse or table.parse, [option for option in options if option is not left_out])
        if without != error and not (_is_missing(left_out, without) and left_out.kafka_name not in error):
            sources.append(f"{left_out.name}: {left_out.source or 'the command line'}")
    raise ConfigException(f"{error} ({', '.join(sources)})" if sources else error)


def parse_pairs(option: str, texts: Iterable[str] | None, what: str = "name=value") -> dict[str, str]:
    """`name=value` texts. ConfigException for anything else, and for a name given twice."""
    pairs: dict[str, str] = {}
    for text in texts or ():
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise ConfigException(f"{option} {text!r}: expected {what}")
        if name.strip() in pairs:
            raise ConfigException(f"{option} {name.strip()} is given twice")
        pairs[name.strip()] = value.strip()
    return pairs


def _is_missing(option: SourcedOption, error: Settings | str) -> bool:
    """Whether all that is wrong is that it has to be given, which says nothing about another fault."""
    return isinstance(error, str) and error.startswith(f"option {option.kafka_name} is missing")


def _settings_or_error(parse: Callable[[Mapping[str, Any]], Settings], options: Iterable[SourcedOption]) -> Settings | str:
    try:
        return parse({option.name: option.value for option in options})
    except ConfigException as error:
        return error.message


def _error_of(table: OptionTable, option: SourcedOption) -> str:
    """What is wrong with one option by itself, or nothing."""
    if option.is_from_file and not (_OPTION_NAME.fullmatch(option.name) or table.resembles_known(option.name)):
        return table.unknown(option.name, shown=_NOT_SHOWN)
    try:
        table.check(option.name, option.value)
    except ConfigException as error:
        return error.message
    return ""
