"""Configuration options: definitions, and the parser used by every part of Chaffinch through an `OptionTable`.

Internal; may change without notice.

Options are named as in Apache Kafka, with dots; in keyword arguments dots become underscores, and both mean the same. Values may be
strings, as from files and command lines. Nothing is silently ignored. An unknown name is an error that offers the nearest known one. A name
that Apache Kafka knows and Chaffinch does not use is collected in `Settings.ignored`, which the owner logs. Documentation is printed from
the table.
"""

from __future__ import annotations

import difflib
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, Final, Literal, TypeGuard

from chaffinch.errors import ConfigException
from chaffinch.public_names import exported_from

Kind = Literal["int", "float", "bool", "string", "list", "any"]

INT_MAX: Final = 2**31 - 1
LONG_MIN: Final = -(2**63)
LONG_MAX: Final = 2**63 - 1

# Similarity, from 0 to 1, from which a known name is offered for an unknown one; below it the offer misleads.
LIKENESS_MIN: Final = 0.58

# Similarity of a misspelled known name, and the largest difference in length.
MISSPELLED_LIKENESS_MIN: Final = 0.85
MISSPELLED_LENGTH_DIFFERENCE_MAX: Final = 2

# Prefix of client options on Spark; it does not make two names similar.
_KAFKA_PREFIX: Final = "kafka_"

ERRORS_SHOWN_MAX: Final = 5
"""Wrong options listed in a message: usually there is one, but a file of another program has many."""

SHOWN_MAX: Final = 200
"""Characters of a wrong value shown in a message, which is one line."""

_SECRET_WORDS: Final = ("password", "passphrase", "secret", "jaas", "ssl.keystore.key")


# Kafka's classes in a shaded jar, as Databricks and others ship it.
_SHADED: Final = re.compile(r"(?:[A-Za-z_$][\w$]*\.)+(?=org\.apache\.kafka\.)", re.ASCII)


def unshaded(java_class: str) -> str:
    """The name of a Kafka class without the package prefix of a shaded jar; any other text unchanged."""
    return _SHADED.sub("", java_class, count=1) if _SHADED.match(java_class) else java_class


def is_secret(name: str) -> bool:
    """Whether values of the option must not appear in messages."""
    return any(word in name.lower() for word in _SECRET_WORDS)


def as_text(name: str, value: object) -> str:
    """The value of an option as in a configuration file; secrets are hidden."""
    if is_secret(name):
        return "(not shown)"
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, tuple) else str(value)


def shown_value(value: object) -> str:
    """A wrong value for a message, shortened so that the text after it is read too."""
    return shortened(repr(value))


def shortened(text: str) -> str:
    """Text that may contain a value, shortened."""
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    - `minimum` and `maximum` are inclusive; `gap` is between them and not allowed.
    - `choices` apply to each element of a list. A default of None means unset.
    - Whole numbers have at most 64 bits. `bytes_max`: of a string, in UTF-8.
    - `synonyms`: names of choices in other programs, and ours.
    - `refusal`: why only the default is accepted, and what to do.
    - `advice`: what to do about a value that is not among the choices.
    """

    name: str
    kind: Kind
    default: Any
    documentation: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    gap: int | None = None
    required: bool = False
    bytes_max: int | None = None
    synonyms: tuple[tuple[str, str], ...] = ()
    refusal: str = ""
    advice: str = ""

    def __post_init__(self) -> None:
        if self.default is not None:
            assert self.parse(self.default) == self.default, f"the default of {self.name} is not what its parser gives: {self.default!r}"

    @property
    def allowed(self) -> str:
        """Description of the allowed values; empty if the kind is enough."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.bytes_max is not None:
            return f"at most {self.bytes_max} bytes"
        limits = [(self.minimum, "at least"), (self.maximum, "at most"), (self.gap, "not")]
        return " and ".join(f"{words} {limit}" for limit, words in limits if limit is not None)

    def parse(self, value: object) -> Any:
        """The value in the option's type (a list becomes a tuple). Otherwise raises ConfigException with option, value and what is
        allowed.
        """
        try:
            parsed = _PARSERS[self.kind](value)
        except (ValueError, OverflowError):
            raise self._refusal(value, _KIND_TEXTS[self.kind]) from None
        if self.choices and self.kind == "string":
            parsed = parsed.strip()
        chosen = parsed if self.kind == "list" else (parsed,)
        if self.kind in ("string", "list") and not all(map(_is_encodable, chosen)):
            raise self._refusal(value, f"{_KIND_TEXTS[self.kind]}, in characters that UTF-8 has")
        if self.bytes_max is not None and (size := len(parsed.encode())) > self.bytes_max:
            raise ConfigException(f"option {self.name} cannot be {parsed[:40]!r}..., {size} bytes of it: it must be {self.allowed}")
        if self.synonyms:
            chosen = tuple(dict(self.synonyms).get(unshaded(word), word) for word in chosen)
            parsed = chosen if self.kind == "list" else chosen[0]
        has_gap = self.kind == "list" and isinstance(value, str) and value.strip() and not all(map(str.strip, value.split(",")))
        if self.choices and (has_gap or not set(chosen) <= set(self.choices)):
            raise self._refusal(value, self.allowed)
        is_outside = (self.minimum is not None and parsed < self.minimum) or (self.maximum is not None and parsed > self.maximum)
        if is_outside or (self.gap is not None and parsed == self.gap):
            raise self._refusal(value, self.allowed)
        if self.kind == "int" and not LONG_MIN <= parsed <= LONG_MAX:
            raise self._refusal(value, "a whole number of at most 64 bits")
        if self.refusal and parsed not in (self.default, "", ()):
            raise ConfigException(f"option {self.name} cannot be used here: {self.refusal}")
        return parsed

    def _refusal(self, value: object, allowed: str) -> ConfigException:
        shown = "the value given (not shown)" if is_secret(self.name) else shown_value(value)
        advice = f"; {self.advice}" if self.advice else ""
        return ConfigException(f"option {self.name} cannot be {shown}: it must be {allowed}{advice}")


@exported_from("chaffinch")
class Settings(Mapping[str, Any]):
    """Parsed options by dotted name, including those with defaults. Immutable, and can be pickled."""

    __slots__ = ("_given", "_ignored", "_values")

    def __init__(self, values: Mapping[str, Any], given: Iterable[str] = (), ignored: Mapping[str, Any] | None = None) -> None:
        self._values = dict(values)
        self._given = frozenset(given)
        self._ignored = dict(ignored or {})

    @property
    def given(self) -> frozenset[str]:
        """Names that the caller set, not those with their default."""
        return self._given

    @property
    def ignored(self) -> Mapping[str, Any]:
        """Names that are known and accepted but have no effect, with the values given."""
        return MappingProxyType(self._ignored)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        shown = {name: "..." if is_secret(name) else self._values[name] for name in sorted(self._given)}
        return f"Settings({shown})"


class OptionTable:
    """The options of one component, in the order of its documentation."""

    def __init__(
        self,
        options: Iterable[Option],
        without_effect: Iterable[str | Option] = (),
        names_elsewhere: Mapping[str, str] | None = None,
        hints: Mapping[str, str] | None = None,
        family: Callable[[str], Option | None] = lambda _name: None,
    ) -> None:
        """Define a table.

        - `without_effect`: names that accept any value, and options of other components, whose values are checked.
        - `names_elsewhere`: names of these options in other components, which users may try -> their names here.
        - `hints`: unknown names that users try -> what to do instead.
        - `family`: the option without effect of a name in an open set, such as `listener.name.NAME.OPTION`.
        """
        self.options: Final = tuple(options)
        self._defaults: Final = {option.name: option.default for option in self.options}
        self._required: Final = [option for option in self.options if option.required]
        self._names_elsewhere: Final = {_key(name): known for name, known in (names_elsewhere or {}).items()}
        self._hints: Final = {_key(name): hint for name, hint in (hints or {}).items()}
        self.hinted: Final = frozenset(hints or ())
        self._family: Final = family
        idle = {each if isinstance(each, str) else each.name: each for each in without_effect}
        self._idle: Final = {name: each for name, each in idle.items() if isinstance(each, Option)}
        self.without_effect: Final = frozenset(idle)
        self._by_key: Final = {_key(option.name): option for option in self.options}
        self._ignored_by_key: Final = {_key(name): name for name in self.without_effect}
        self._name_by_key: Final = self._ignored_by_key | {key: option.name for key, option in self._by_key.items()}
        self._names: Final = frozenset(self._name_by_key.values())
        assert len(self._by_key) == len(self.options), "an option is defined twice"
        assert not self._by_key.keys() & self._ignored_by_key.keys(), "an option has an effect and has none"

    def parse(self, mapping: Mapping[str, Any] | None = None, **keywords: Any) -> Settings:
        """Parse options over the defaults. A value of None means "not given". The ConfigException lists all errors."""
        if mapping is not None and not isinstance(mapping, Mapping):  # The value may be secret.
            raise ConfigException(f"options must be a mapping of names to values, not a value of type {type(mapping).__name__}")
        return self._parse([*(mapping or {}).items(), *keywords.items()], is_exact=False)

    def parse_exact(self, mapping: Mapping[str, Any]) -> Settings:
        """Like `parse`, for stored options and those of a request: only exact names are accepted."""
        return self._parse(mapping.items(), is_exact=True)

    def name_of(self, given: str) -> str:
        """The table's name of an option that `parse` accepts as `given`; an unknown one unchanged."""
        return self._name_by_key.get(_key(given), given)

    def _parse(self, options: Iterable[tuple[str, Any]], *, is_exact: bool) -> Settings:
        given: dict[str, Any] = {}
        ignored: dict[str, Any] = {}
        seen: dict[str, str] = {}
        wrong: list[str] = []
        for name, value in options:
            try:
                if is_exact and name not in self._names and self._family(name) is None:
                    raise ConfigException(self.unknown(name, is_exact=True))
                self._take(name, value, given, ignored, seen)
            except ConfigException as error:
                wrong.append(error.message)
        if wrong:
            raise ConfigException(join_errors(wrong))
        values = {**self._defaults, **given}
        for option in self._required:
            if values[option.name] in (None, "", ()):
                raise ConfigException(f"option {option.name} is missing: {option.documentation}")
        return Settings(values, given, ignored)

    def check(self, name: str, value: object) -> None:
        """Check one option. Raises ConfigException."""
        self._take(name, value, {}, {}, {})

    def resembles_known(self, name: str) -> bool:
        """Whether the name is known (an option, one without effect, a hint, another component's name) or a small misspelling of one."""
        if self._family(name.strip()) is not None:
            return True
        key, known = _key(name).removeprefix(_KAFKA_PREFIX), {*self._by_key, *self._ignored_by_key, *self._hints, *self._names_elsewhere}
        lengths = range(len(key) - MISSPELLED_LENGTH_DIFFERENCE_MAX, len(key) + MISSPELLED_LENGTH_DIFFERENCE_MAX + 1)
        of_its_length = [each for each in known if len(each) in lengths]
        return bool(difflib.get_close_matches(key, of_its_length, n=1, cutoff=MISSPELLED_LIKENESS_MIN))

    def _take(self, name: object, value: object, given: dict[str, Any], ignored: dict[str, Any], seen: dict[str, str]) -> None:
        """Parse one option into `given` or `ignored`, by its table name; `seen` maps keys to the names as given."""
        if not isinstance(name, str):
            raise ConfigException(f"an option has the name {name!r}, which is not a string")
        if value is None:
            return
        key = _key(name)
        if key in seen:
            raise ConfigException(
                f"option {self._name_by_key.get(key, key)} is given twice, as {seen[key]!r} and as {name!r}: give it once"
            )
        seen[key] = name
        if (option := self._by_key.get(key)) is not None:
            given[option.name] = option.parse(value)
        elif key in self._ignored_by_key:
            known = self._ignored_by_key[key]
            ignored[known] = self._idle[known].parse(value) if known in self._idle else value
        elif (member := self._family(name.strip())) is not None:
            ignored[member.name] = member.parse(value)
        else:
            raise ConfigException(self.unknown(name))

    def unknown(self, name: str, shown: str | None = None, *, is_exact: bool = False) -> str:
        """Message about an unknown name: what to do instead, or the most similar known name, if there is one.

        `shown`: replaces the name if that may be a secret. `is_exact`: no other spelling is accepted.
        """
        unknown = f"unknown option {repr(name) if shown is None else shown}"
        if is_exact and (meant := self._name_by_key.get(_key(name))) is not None:
            return f"{unknown}: it is spelled {meant!r} here, with dots and without blanks"
        if (hint := self._hints.get(_key(name))) is not None and _key(name) not in self._by_key:
            return f"{unknown}: {hint}"
        every = self._names_elsewhere | {key: option.name for key, option in self._by_key.items()} | self._ignored_by_key
        known = {key.removeprefix(_KAFKA_PREFIX): option for key, option in every.items()}
        found = difflib.get_close_matches(_key(name).removeprefix(_KAFKA_PREFIX), known, n=1, cutoff=LIKENESS_MIN)
        if not found:
            return f"{unknown}: no known option is similar"
        is_keyword = "_" in name and "." not in name and not is_exact
        return f"{unknown}: the nearest known one is {_key(known[found[0]]) if is_keyword else known[found[0]]!r}"


def join_errors(wrong: Sequence[str]) -> str:
    """All errors about options on one line, up to `ERRORS_SHOWN_MAX`."""
    more = len(wrong) - ERRORS_SHOWN_MAX
    return "; ".join(wrong[:ERRORS_SHOWN_MAX]) + (f"; and {more} more" if more > 0 else "")


def _key(name: str) -> str:
    return name.strip().replace(".", "_")


def _is_whole(value: object) -> TypeGuard[Integral]:
    """Accepts numpy integers too; not bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def _parse_int(value: object) -> int:
    if _is_whole(value):
        return int(value)
    if isinstance(value, str) and value.isascii() and "_" not in value:  # Python accepts more number formats than Kafka.
        return int(value)
    raise ValueError


def _parse_float(value: object) -> float:
    if isinstance(value, str | Real) and not isinstance(value, bool) and math.isfinite(number := float(value)):
        return number
    raise ValueError


def _parse_bool(value: object) -> bool:
    numpy = sys.modules.get("numpy")  # A caller with a numpy bool has loaded numpy.
    if isinstance(value, bool) or (numpy is not None and isinstance(value, numpy.bool_)):
        return bool(value)
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise ValueError


def _parse_string(value: object) -> str:
    # Numbers are accepted as strings, such as acks=1 or client_id=7, and so are paths.
    if hasattr(value, "__fspath__"):
        value = value.__fspath__()
    if isinstance(value, str):
        return str(value)
    if _is_whole(value):
        return str(int(value))
    raise ValueError


def _parse_list(value: object) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise ValueError
    return tuple(part.strip() for part in parts if part.strip())


_PARSERS: Final[dict[Kind, Callable[[object], Any]]] = {
    "int": _parse_int,
    "float": _parse_float,
    "bool": _parse_bool,
    "string": _parse_string,
    "list": _parse_list,
    "any": lambda value: value,
}
_KIND_TEXTS: Final[dict[Kind, str]] = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "a string",
    "list": "a list of strings, or one string with commas",
    "any": "anything",
}


def _is_encodable(text: str) -> bool:
    # Otherwise a lone surrogate would fail only when a request is encoded, on a background thread.
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
