"""Types of options for type checkers: prints the module `option_types.py` of each package from its option table."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from chaffinch.admin.options import ADMIN_TABLE
from chaffinch.broker.core.options import BROKER_OPTIONS
from chaffinch.consumer.core.options import CONSUMER_OPTIONS
from chaffinch.producer.core.options import PRODUCER_OPTIONS
from chaffinch.settings import Option
from chaffinch.spark.sink import option_tables
from chaffinch.table_writes.options import TABLE

SOURCE: Final = Path(__file__).resolve().parents[1] / "src" / "chaffinch"

_SERIALIZER: Final = "str | Callable[[Any], bytes | str | None]"
ANY_TYPES: Final[Mapping[str, str]] = {
    "partitioner": "str | Callable[[str, bytes | None, bytes | None, int], int | None]",
    "trace.headers": "str | Callable[[], Sequence[tuple[str, bytes | None]]]",
    "key.serializer": _SERIALIZER,
    "value.serializer": _SERIALIZER,
    "custom.exception.handler.class": "str | ProducerExceptionHandler | type[ProducerExceptionHandler]",
}
"""Types of options whose values may be Python objects."""

COUNT_OR_SHARE: Final = frozenset({"errors.tolerance.max"})
"""Options that are a number or text."""

PATH_SUFFIXES: Final = ("location", "Location", ".path")
"""Ends of the names of options whose values are paths."""


def python_type(option: Option) -> str:
    """Type of the values in Python. `parse` also accepts numbers and booleans as text, from files; a keyword is given as what it is."""
    if option.kind == "any":
        return ANY_TYPES[option.name]
    if option.kind == "list":
        element = _literal(option) if option.choices else "str"
        return f"str | Sequence[{element}]"
    if option.kind == "string":
        if option.choices:
            return _literal(option)
        if option.name in COUNT_OR_SHARE:
            return "str | int"
        return "str | PathLike[str]" if option.name.endswith(PATH_SUFFIXES) else "str"
    return option.kind


def spark_type(option: Option) -> str:
    """Type of the values that Spark can pass on: lists and objects only as text."""
    if option.kind == "list" and not option.choices:
        return "str"
    return "str" if option.kind in ("any", "list") else python_type(option)


def _literal(option: Option) -> str:
    names = [repr(name) for name in (*option.choices, *(synonym for synonym, _ in option.synonyms))]
    numbers = [name for name in option.choices if name.lstrip("-").isdigit()]  # acks=1
    return f"Literal[{', '.join(dict.fromkeys([*names, *numbers]))}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A TypedDict to print. `left_out`: options with a parameter of their own. `extra`: further lines, of options outside the table."""

    package: str
    exported_from: str
    name: str
    documentation: str
    options: Iterable[Option]
    type_of: Callable[[Option], str] = python_type
    left_out: frozenset[str] = frozenset()
    extra: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    takes_none: bool = True


def _all_sink_options() -> list[Option]:
    """Options of the sink with every delivery guarantee; an option allows what one of the guarantees allows."""
    found: dict[str, Option] = {}
    for option in (option for table in option_tables.TABLES.values() for option in table.options):
        known = found.get(option.name, option)
        found[option.name] = replace(known, choices=tuple(dict.fromkeys((*known.choices, *option.choices))))
    return list(found.values())


PARTS: Final = (
    Part(
        package="producer",
        exported_from="chaffinch",
        name="ProducerOptions",
        documentation="Options of Producer and AsyncProducer as keywords (docs/reference/producer.md). None means not given.",
        options=PRODUCER_OPTIONS.options,
        imports=("from chaffinch.producer.core.exception_handler import ProducerExceptionHandler",),
    ),
    Part(
        package="consumer",
        exported_from="chaffinch",
        name="ConsumerOptions",
        documentation="Options of Consumer and AsyncConsumer as keywords (docs/reference/consumer.md). None means not given.\n\n"
        "    The two deserializers are not in it: they are arguments with a type of their own, which decides the types of keys and values.",
        options=CONSUMER_OPTIONS.options,
        left_out=frozenset({"key.deserializer", "value.deserializer"}),
    ),
    Part(
        package="admin",
        exported_from="chaffinch.admin",
        name="AdminOptions",
        documentation="Options of Admin as keywords (docs/reference/cli.md). None means not given.",
        options=ADMIN_TABLE.options,
    ),
    Part(
        package="broker",
        exported_from="chaffinch",
        name="BrokerOptions",
        documentation="Options of EmbeddedBroker as keywords (docs/reference/broker.md).",
        options=BROKER_OPTIONS.options,
        takes_none=False,
    ),
    Part(
        package="table_writes",
        exported_from="chaffinch",
        name="WriteTableOptions",
        documentation="Options of write_table as keywords (docs/reference/write-table.md). None means not given.",
        options=TABLE.options,
    ),
    Part(
        package="spark",
        exported_from="chaffinch.spark",
        name="KafkaSinkOptions",
        documentation="Options of KafkaSink as keywords (docs/reference/spark-sink.md). None means not given.",
        options=_all_sink_options(),
        type_of=spark_type,
        extra=("checkpointLocation: str | PathLike[str] | None",),
    ),
)


def module_text(part: Part) -> str:
    """The text of the module, formatted."""
    optional = " | None" if part.takes_none else ""
    lines = [
        f"{option.name.replace('.', '_')}: {part.type_of(option)}{optional}" for option in part.options if option.name not in part.left_out
    ]
    body = "\n".join(f"    {line}" for line in (*lines, *part.extra))
    text = f'''"""{part.name}: types of options, for type checkers. Printed from the option table by `make docs`."""

from __future__ import annotations

{_imports(part, body)}

@exported_from("{part.exported_from}")
class {part.name}(TypedDict, total=False):
    """{part.documentation}

    Options without an effect are not in it. Pass them in a mapping of options, as well as numbers that are text, for example from a file.
    """

{body}
'''
    return formatted(text)


_IMPORTS: Final = {
    "Callable": "collections.abc",
    "Sequence": "collections.abc",
    "PathLike": "os",
    "Any": "typing",
    "Literal": "typing",
    "TypedDict": "typing",
}


def _imports(part: Part, body: str) -> str:
    found: dict[str, list[str]] = {}
    for name, module in _IMPORTS.items():
        if name == "TypedDict" or re.search(rf"\b{name}\b", body):
            found.setdefault(module, []).append(name)
    standard = [f"from {module} import {', '.join(names)}" for module, names in found.items()]
    return "\n".join([*standard, "", *sorted((*part.imports, "from chaffinch.public_names import exported_from"))])


def formatted(text: str) -> str:
    """The text as `ruff format` writes it."""
    command = [sys.executable, "-m", "ruff", "format", "--quiet", "--config", str(SOURCE.parents[1] / "pyproject.toml"), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def modules() -> dict[Path, str]:
    """The text of each module, by path."""
    return {SOURCE / part.package / "option_types.py": module_text(part) for part in PARTS}
