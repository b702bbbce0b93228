"""Options with their source (command line or file): the command line overrides the file, and errors name the source.

The options of both are validated together. A file may be the wrong one, or a secret may be pasted into the wrong line. So errors show a
name from a file only if it is a known option, a misspelled known option, or looks like an option: short lower-case words joined by dots.
For other names the error shows the line number only.
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
    """An option with the place where it was given.

    `source` is the file with its line, or the option of the command; empty if the name alone identifies it. `is_from_file`: the name
    was read from a file and may be any text.
    """

    name: str
    value: Any
    source: str = ""
    is_from_file: bool = False

    @property
    def kafka_name(self) -> str:
        """The name as Apache Kafka writes it, with dots."""
        return self.name.strip().replace("_", ".")


def merge_options(command_line: Iterable[SourcedOption], file: Iterable[SourcedOption]) -> list[SourcedOption]:
    """All options of the command line, and those of the file that the command line does not give. Dots and underscores are the same."""
    command_line = list(command_line)
    names = {option.kafka_name for option in command_line}
    return [*command_line, *(option for option in file if option.kafka_name not in names)]


def validate_options(
    table: OptionTable, options: Iterable[SourcedOption], parse: Callable[[Mapping[str, Any]], Settings] | None = None
) -> Settings:
    """Validate the options and return the settings that `parse` (default: `table.parse`) makes of them.

    Raises ConfigException with all errors of single options, or with one contradiction between options, and with their sources.
    """
    options = list(options)
    errors = [f"{option.source}: {text}" if option.source else text for option in options if (text := _error_of(table, option))]
    if errors:
        raise ConfigException(join_errors(errors))
    error = _settings_or_error(parse or table.parse, options)
    if isinstance(error, Settings):
        return error
    sources = []
    for left_out in options:  # Every name is a known option here, so there are few.
        without = _settings_or_error(parse or table.parse, [option for option in options if option is not left_out])
        if without != error and not (_is_missing(left_out, without) and left_out.kafka_name not in error):
            sources.append(f"{left_out.name}: {left_out.source or 'the command line'}")
    raise ConfigException(f"{error} ({', '.join(sources)})" if sources else error)


def parse_pairs(option: str, texts: Iterable[str] | None, what: str = "name=value") -> dict[str, str]:
    """Parse `name=value` texts. Raises ConfigException for any other text and for a repeated name."""
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
    """Whether the only error is that this option is missing. That does not explain another error."""
    return isinstance(error, str) and error.startswith(f"option {option.kafka_name} is missing")


def _settings_or_error(parse: Callable[[Mapping[str, Any]], Settings], options: Iterable[SourcedOption]) -> Settings | str:
    try:
        return parse({option.name: option.value for option in options})
    except ConfigException as error:
        return error.message


def _error_of(table: OptionTable, option: SourcedOption) -> str:
    """The error of one option by itself, "" if it is valid."""
    if option.is_from_file and not (_OPTION_NAME.fullmatch(option.name) or table.resembles_known(option.name)):
        return table.unknown(option.name, shown=_NOT_SHOWN)
    try:
        table.check(option.name, option.value)
    except ConfigException as error:
        return error.message
    return ""
