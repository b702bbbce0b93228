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

_AS_OPTIONS_ARE: Final = re.compile(r"[a-z]{1,20}(?:\.[a-z]{1,20})+")
_NOT_SHOWN: Final = "(its name is not shown)"


class Given(NamedTuple):
    """An option. `place`: the file and its line, or the option of the command; empty where the name says it. `is_read`: in a file, where
    any text may stand for a name."""

    name: str
    value: Any
    place: str = ""
    is_read: bool = False

    @property
    def dotted(self) -> str:
        """Its name as Apache Kafka spells it."""
        return self.name.strip().replace("_", ".")


def over(line: Iterable[Given], file: Iterable[Given]) -> list[Given]:
    """The command line's, and those of the file that are not given there, however both are spelled."""
    line = list(line)
    names = {given.dotted for given in line}
    return [*line, *(given for given in file if given.dotted not in names)]


def judged(table: OptionTable, options: Iterable[Given], parse: Callable[[Mapping[str, Any]], Settings] | None = None) -> Settings:
    """The settings, by `parse` or the table. ConfigException says all that is wrong with single options, or what does not go together,
    and where each was given."""
    options = list(options)
    wrong = [f"{given.place}: {text}" if given.place else text for given in options if (text := _fault(table, given))]
    if wrong:
        raise ConfigException(join_errors(wrong))
    fault = _fault_of_all(parse or table.parse, options)
    if isinstance(fault, Settings):
        return fault
    places = []
    for left_out in options:  # All are known here, so that there are few.
        without = _fault_of_all(parse or table.parse, [given for given in options if given is not left_out])
        if without != fault and not (_is_missing(left_out, without) and left_out.dotted not in fault):
            places.append(f"{left_out.name}: {left_out.place or 'the command line'}")
    raise ConfigException(f"{fault} ({', '.join(places)})" if places else fault)


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


def _is_missing(option: Given, fault: Settings | str) -> bool:
    """Whether all that is wrong is that it has to be given, which says nothing about another fault."""
    return isinstance(fault, str) and fault.startswith(f"option {option.dotted} is missing")


def _fault_of_all(parse: Callable[[Mapping[str, Any]], Settings], options: Iterable[Given]) -> Settings | str:
    try:
        return parse({given.name: given.value for given in options})
    except ConfigException as error:
        return error.message


def _fault(table: OptionTable, given: Given) -> str:
    """What is wrong with one option by itself, or nothing."""
    if given.is_read and not (_AS_OPTIONS_ARE.fullmatch(given.name) or table.resembles_known(given.name)):
        return table.unknown(given.name, shown=_NOT_SHOWN)
    try:
        table.check(given.name, given.value)
    except ConfigException as error:
        return error.message
    return ""
